use super::*;

/// Literals as they are, other terminals in regex-syntax's notation.
fn shown(texts: &Hir) -> String {
    match texts.kind() {
        HirKind::Literal(literal) => String::from_utf8_lossy(&literal.0).into_owned(),
        _ => texts.to_string(),
    }
}

#[test]
fn strings_expressions_and_imports_are_replaced_and_comments_are_dropped() {
    for (lark, expected) in [
        ("start: \"a\" b // \"c\"\nb: \"d\" # /e/\n", "start: /a/ b \nb: /d/ \n"),
        (r#"start: "\"\x41\\x\u0042""#, r#"start: /"A\xB/"#),
        ("start: \"a\"i", "start: /[Aa]/"),
        ("start: \"a\" .. \"c\"~2..3", "start: /[a-c]/~2..3"),
        (r"start: /a\/b/ /[xy]/s", "start: /a/b/ /[xy]/"),
        ("%ignore /[ \\t]/", "%ignore /[\t ]/"),
        ("%import common.LF", "LF: /\n/\n"),
        ("%import common (CR, DIGIT)\nstart: CR", "CR: /\r/\nDIGIT: /[0-9]/\n\nstart: CR"),
        ("%import common.DIGIT -> ONE\nstart: ONE", "ONE: /[0-9]/\n\nstart: ONE"),
        ("?start: [x] | (y)* -> alias\nx[lazy]: /a/", "?start: [x] | (y)* -> alias\nx[lazy]: /a/"),
    ] {
        let got = respell(lark, Spelling::Terminals, &mut |texts| Some(shown(texts)));
        assert_eq!(got.as_deref(), Ok(expected), "{lark}");
    }
}

#[test]
fn terminals_become_rules_with_what_is_ignored_after_them() {
    let mut quoted = |texts: &Hir| Some(format!("<{}>", shown(texts)));
    for (lark, expected) in [
        ("start: _A t_x?\n_A: \"a\" B\nB: \"b\"", "start: tt__a t_x?\ntt__a: <a> tt_b\ntt_b: <b>"),
        (
            "start: A+ \"x\"\nA: \"a\" \"b\"\n%ignore \" \"\n%ignore /[\\t\\n]+/",
            "start: (t_a t_0)+ (<x> t_0)\nt_a: <a> <b>\n\n\nt_0: (< > | <[\t\n]>)*\n",
        ),
    ] {
        assert_eq!(respell(lark, Spelling::Rules, &mut quoted).as_deref(), Ok(expected), "{lark}");
    }
}

#[test]
fn every_common_terminal_is_an_expression() {
    for (name, texts) in COMMON {
        assert!(regex(texts).is_ok(), "{name}");
    }
}
