use super::*;

fn of(regex: &str) -> Validators {
    Validators::new(&Rules { response: Some(Response::Regex(regex.into())), ..Rules::default() })
}

#[test]
fn a_regex_is_compiled_once_and_charged_by_its_size() {
    let [small, _, large, _] = JUDGED_REGEX_SIZES;
    for (regex, bytes) in [("a+", small), (r"[\w ]{1,60}x", large)] {
        let validators = of(regex);
        assert_eq!(validators.regex_bytes(), bytes, "{regex}");
        assert!(validators.response("ax").is_err() == (regex == "a+") && validators.response("").is_err());
    }
    // A regular expression beyond all sizes judges nothing.
    let huge = of(r"(\w{500}){500}");
    assert_eq!((huge.regex_bytes(), huge.response("-")), (0, Ok(())));
}
