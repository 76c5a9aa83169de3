use super::*;

#[test]
fn characters_are_counted_in_case_insensitive_expressions_alone() {
    for (regex, insensitive, least, most) in [
        (r"[\s\S]{5}", false, 0, 0),
        (r"[\s\S]{5}", true, ALL, 2 * ALL),
        (r"(?i)[a-z]+@[^@]*", false, 26, 30),
        (r"(?i:x)[\s\S][\s\S]", false, 4 * ALL, 4 * ALL),
        (r"a(?s-i:.)[\W]", false, 0, 0),
        (r"(?i)\p{L}", false, ALL, ALL),
        (r"(?i)[\u0000-\uffff]", false, 0xffff, 0x1_0000),
        (r"(?i)[[[[\W]]]]", false, 4 * ALL, 4 * ALL),
        (r"(?i)[\w&&\W]", false, 3 * ALL, 5 * ALL),
        // Not read by this parser.
        (r"(?=a)(?!i)[\s\S](?<i>b)", false, 0, 0),
        (r"(?=a)(?i)[\s\S][\s\S]", false, 2 * ALL, u64::MAX),
    ] {
        let found = folded_characters(regex, insensitive);
        assert!((least..=most).contains(&found), "{regex}: {found}");
    }
}

#[test]
fn the_expressions_of_a_grammar_are_found() {
    for (lark, expressions) in [
        (r#"start: /[\W]/i /a\/[\W]/is "/" /(?i)[\W]/"#, 3),
        (r#"start: /[\W]/ /[\W]/s"#, 0),
        ("# /[\\W]/i\n// /[\\W]/i \"\nstart: /[\\W]/i", 1),
        (r#"start: "\"/[\\W]/i" /x/"#, 0),
        (r#"start: %json {"pattern": "(?i)[\\W]"}"#, 1),
        (r#"start: "/ /[\W]/i"#, 0),
        ("start: /(?i)[\\W]", 1),
    ] {
        assert_eq!(folded_characters_of_lark(lark), expressions * ALL, "{lark}");
    }
}
