use super::*;

#[test]
fn only_numbers_that_could_change_are_marked() {
    let json = from_str(r#"{"a": [1, -7, 1.5, 18446744073709551616, "2.5 \" 3.5"], "b": 1e5}"#).unwrap();
    assert_eq!(json["a"][0], 1);
    assert_eq!(literal(json["a"][2].as_str().unwrap()), Some("1.5"));
    assert_eq!(literal(json["a"][3].as_str().unwrap()), Some("18446744073709551616"));
    assert_eq!(json["a"][4], "2.5 \" 3.5");
    assert_eq!(literal(json["b"].as_str().unwrap()), Some("1e5"));
}

#[test]
fn invalid_numbers_are_rejected() {
    for text in ["[1.]", "[01.5]", "[1e]", "[-]", "[.5]", "[1.5.2]"] {
        assert!(from_str(text).is_err(), "{text}");
    }
    assert_eq!(literal("\u{F0002}abc"), None);
    assert_eq!(literal("\u{F0002}1e+-5"), None);
}
