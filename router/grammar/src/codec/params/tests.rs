use super::*;

#[test]
fn values_are_read_by_their_types() {
    let number = Types::named("number").unwrap_or(Types::STRING);
    let cases = [
        ("5", number, "5"),
        (" 1e999 ", number, "1e999"),
        ("True", number, "true"),
        ("None", number, "null"),
        ("five", number, "\"five\""),
        ("007", number, "7"),
        ("-08.5", number, "-8.5"),
        ("TRUE", Types::named("boolean").unwrap_or(Types::STRING), "true"),
        ("{'a': [1, None]}", number, "{\"a\": [1, null]}"),
        ("{\"a\" : 1}\n", number, "{\"a\" : 1}"),
        (r#"[{\"a\": \"C:\\\\x\"}]"#, number, r#"[{"a": "C:\\x"}]"#),
        ("5", Types::STRING, "\"5\""),
        ("", number, "\"\""),
    ];
    for (text, types, want) in cases {
        assert_eq!(read(text, types), want, "{text:?}");
    }
}
