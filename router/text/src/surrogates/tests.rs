use super::*;

#[test]
fn half_a_pair_becomes_the_replacement_character() {
    for (text, expected) in [
        (r#""a""#, r#""a""#),
        (r#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
        (r#""\ud83d""#, r#""\ufffd""#),
        (r#""\uDE00""#, r#""\ufffd""#),
        (r#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
        (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
        (r#""\ud83d\n\ude00""#, r#""\ufffd\n\ufffd""#),
        // An escaped backslash.
        (r#""\\ud83d""#, r#""\\ud83d""#),
        (r#""\\\ud83d""#, r#""\\\ufffd""#),
        // No escape.
        (r#""\ud8"#, r#""\ud8"#),
        (r#""\ud83g""#, r#""\ud83g""#),
        ("\\", "\\"),
    ] {
        assert_eq!(replaced(text), expected, "{text}");
    }
}

#[test]
fn the_strings_are_named() {
    let body = r#"{"model": "m", "messages": [{"role": "user", "content": "x"}, {"content": [{"text": "a\ud83d, \ud83d"}, "b\ude00"],
        "\ud800": "\ud800"}], "stop": "\udfff"}"#;
    let (replaced, paths) = replaced_in_body(body.as_bytes());
    let value: serde_json::Value = serde_json::from_slice(&replaced).unwrap();
    assert_eq!(value["messages"][1]["content"][0]["text"], "a\u{fffd}, \u{fffd}");
    let named = ["messages[1].content[0].text", "messages[1].content[1]", r"messages[1].\ud800", "stop"];
    assert_eq!(paths, named);
    // What is no JSON stays an error.
    assert!(serde_json::from_slice::<serde_json::Value>(&replaced_in_body(br#"{"a": "\ud83d"#).0).is_err());
}
