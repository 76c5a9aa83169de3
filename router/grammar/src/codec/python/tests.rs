use super::*;

#[test]
fn python_literals_become_json() {
    let cases = [
        ("'a'", Some("\"a\"")),
        (r#""it's \"x\"""#, Some(r#""it's \"x\"""#)),
        (r"'\x41\u00e9\U0001F600\101\n\q'", Some(r#""Aé😀A\n\\q""#)),
        (r"'\ud83d\ude00 \ud83d'", Some("\"😀 \u{FFFD}\"")),
        (r"r'\d+'", Some(r#""\\d+""#)),
        ("[1, -2., .5, 1_000, 1e5, 0x1f,]", Some("[1, -2.0, 0.5, 1000, 1e5, 31]")),
        ("{'a': (1, None), \"b\": {}, 3: [True]}", Some("{\"a\": [1, null], \"b\": {}, \"3\": [true]}")),
        ("()", Some("[]")),
        ("'a' \"b\"\n'c'", Some("\"abc\"")),
        ("\"\"\"a\n\"b\" 'c'\"\"\"", Some("\"a\\n\\\"b\\\" 'c'\"")),
        ("['', '''''', \"\"]", Some("[\"\", \"\", \"\"]")),
        ("{'a' 'b': ''}", Some("{\"ab\": \"\"}")),
        ("'a' 1", None),
        ("'''a''", None),
        (" False ", Some("false")),
        ("celsius", None),
        ("'a", None),
        ("[1, 2", None),
        ("1 2", None),
        ("007", None),
        ("", None),
        ("-", None),
        ("{1}", None),
    ];
    for (text, want) in cases {
        assert_eq!(to_json(text).as_deref(), want, "{text}");
    }
}
