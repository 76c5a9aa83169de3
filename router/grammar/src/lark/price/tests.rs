use super::*;

fn of(body: &str) -> Price {
    price(body, &mut Budget::default()).expect("a budget")
}

#[test]
fn ordinary_constraints_are_accepted() {
    for body in [
        "/[^\"\\\\x00-\\x1f]*/ & /[a-zA-Z0-9_]+/ & /(?s:.{1,64})/",
        r"/[a-z]+/ & /(?s:.{0,5000})/",
        r"/(\p{L}{1,50} )+/ & /(?s:.{3,200})/",
        r"/[^@\s]+@[^@\s]+\.[a-z]{2,6}/ & /(?s:.{0,254})/",
        r#"/(?s:.*)/ & ~("a" | "b" | "abc")"#,
        r"/(?s:.+)/ & ~/(?s:.*)(x|y)(?s:.*)/",
    ] {
        assert_eq!(of(body), Price::Affordable, "{body}");
    }
}

#[test]
fn expressions_that_would_explode_are_recognized() {
    let many =
        |i: usize| format!("/(?s:.*)([{}-z]{{1,9}}x.*|[a-y]{{2,8}}.*|(?s:.)[c-w].*)/", char::from(b'a' + i as u8));
    let all: Vec<String> = (0..12).map(many).collect();
    assert_eq!(of(&all.join(" & ")), Price::Costly);
    assert_eq!(of(r"/(\S+\s+){0,99}\S+/ & /(?s:.{0,5000})/"), Price::Costly);
}

#[test]
fn contradictions_are_recognized() {
    assert_eq!(of("/a+/ & ~/a+/"), Price::Empty);
    assert_eq!(of(r"/[a-z]{4}/ & /(?s:.{5,})/"), Price::Empty);
}

#[test]
fn repetition_counts_are_found() {
    assert_eq!([largest_count("a{3,77} {x} b{12}"), largest_count("{,")], [77, 1]);
}
