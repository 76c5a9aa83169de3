use super::compiled_bytes;

#[test]
fn compiled_bytes_are_of_the_order_that_the_engine_takes() {
    for pattern in [r"^[0-9]{4}-[a-z]+$", r"^\p{L}{1,64}$", r"^(\w+\s?){1,20}$", "^(foo|bar){1,100}$", r"^.{1,500}$"] {
        let regex = jsonschema_regex::to_rust_regex(pattern).expect("a pattern");
        let fits = |bytes: u64| regex::RegexBuilder::new(&regex).size_limit(bytes as usize).build().is_ok();
        let told = compiled_bytes(pattern);
        assert!(fits(16 * told) && !fits(told / 16), "{pattern}: {told}");
    }
    assert_eq!(compiled_bytes(r"(?=a{1000000}){1000000}(?!b{1000000}){1000000}"), u64::MAX);
}
