use super::*;

#[test]
fn names_match_patterns_and_large_patterns_match_nothing() {
    for _ in 0..2 {
        assert!(matches("^a", "ab") && !matches("^a", "ba"));
        assert!(!matches("^(?:(?:a{2}){1000000}){1000000}$|^a$", "a"), "too large to compile");
        assert!(!matches("[", "["), "not a pattern");
    }
    assert_eq!(steps("^(?:(?:a{2}){1000000}){1000000}$"), 1);
    assert!(steps(r"^\p{L}{1,4}$") > steps("^a$"));
}
