use serde_json::json;

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

#[test]
fn patterns_that_cost_too_much_are_left_out_alone() {
    let large: serde_json::Map<String, Value> =
        (0..200).map(|i| (format!(r"(?:\s*){{1000000}}${i}"), json!({"type": "integer"}))).collect();
    let mut affordable = Affordable::default();
    assert!(large.keys().all(|pattern| !affordable.keeps(pattern)));
    assert!(affordable.keeps(r"^\p{L}{1,64}$"));
    let schema = json!({"patternProperties": large, "properties": {"a": {"pattern": "^b$"}}, "required": ["a"]});
    assert!(accepts(&schema, &json!({"a": "b"})));
    assert!(!accepts(&schema, &json!({"a": "c"})) && !accepts(&schema, &json!({})));
}
