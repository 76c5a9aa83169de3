use super::*;

/// The expected texts are the output of CPython 3.13.
#[test]
fn floats_print_as_in_python() {
    for (x, text) in [
        (1.0, "1.0"),
        (0.1, "0.1"),
        (-0.0, "-0.0"),
        (1e20, "1e+20"),
        (1e-7, "1e-07"),
        (1e16, "1e+16"),
        (1e15, "1000000000000000.0"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1.5e300, "1.5e+300"),
        (123456.789, "123456.789"),
        (-2.5e-9, "-2.5e-09"),
        (9007199254740993.0, "9007199254740992.0"),
    ] {
        assert_eq!(float_repr(x), text);
    }
}

#[test]
fn repr_of_strings_equals_python() {
    for (s, text) in [
        ("a'b", "\"a'b\""),
        ("a'b\"c", "'a\\'b\"c'"),
        ("\u{a0}\u{3000}\u{2028}\x1c\x7f", "'\\xa0\\u3000\\u2028\\x1c\\x7f'"),
        ("e\u{301}北🎉", "'e\u{301}北🎉'"),
        ("\u{301}", "'\u{301}'"),
        ("\u{f0002}\u{200b}", "'\\U000f0002\\u200b'"),
    ] {
        let mut out = String::new();
        write_str_repr(&mut out, s);
        assert_eq!(out, text);
    }
}

#[test]
fn big_numbers_are_not_rounded() {
    let json = lossless::from_str(
        "[18446744073709551616, 1000000000000000000000000000000, 9007199254740993, 170141183460469231731687303715884105728, 1e20, 1.0]",
    )
    .unwrap();
    let value = from_json(&json);
    let text = "[18446744073709551616, 1000000000000000000000000000000, 9007199254740993, \
                    170141183460469231731687303715884105728, 1e+20, 1.0]";
    assert_eq!(str_of(&value), text);
    assert_eq!(JsonDumpsOptions::default().dump(&value).unwrap(), text);
}

#[test]
fn json_dumps_has_the_arguments_of_python() {
    let value = from_json(&serde_json::json!({"b": [1, {"x": "é\u{7f}🎉\u{1}"}], "a": {}, "c": []}));
    let ascii = JsonDumpsOptions { ensure_ascii: true, sort_keys: true, ..JsonDumpsOptions::default() };
    assert_eq!(ascii.dump(&value).unwrap(), r#"{"a": {}, "b": [1, {"x": "\u00e9\u007f\ud83c\udf89\u0001"}], "c": []}"#);
    let indented =
        JsonDumpsOptions { indent: Some("  ".into()), item_separator: ",".into(), ..JsonDumpsOptions::default() };
    assert_eq!(
        indented.dump(&value).unwrap(),
        "{\n  \"b\": [\n    1,\n    {\n      \"x\": \"é\u{7f}🎉\\u0001\"\n    }\n  ],\n  \"a\": {},\n  \"c\": []\n}"
    );
    assert!(JsonDumpsOptions::default().dump(&Value::UNDEFINED).is_err());
}
