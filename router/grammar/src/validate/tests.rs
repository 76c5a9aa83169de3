use serde_json::json;

use super::*;

fn of(regex: &str) -> Validators {
    Validators::new(&Rules { response: Some(Response::Regex(regex.into())), ..Rules::default() })
}

#[test]
fn a_regex_is_compiled_once_and_charged_by_its_size() {
    for (regex, bytes) in [("a+", 100..10_000), (r"[\w ]{1,60}x", 500_000..4_000_000)] {
        let validators = of(regex);
        assert!(bytes.contains(&validators.regex_bytes()), "{regex}: {}", validators.regex_bytes());
        assert!(validators.response("ax").is_err() == (regex == "a+") && validators.response("").is_err());
    }
    // A regular expression beyond all sizes judges nothing.
    let huge = of(r"(\w{500}){500}");
    assert_eq!((huge.regex_bytes(), huge.response("-")), (0, Ok(())));
}

#[test]
fn a_regex_with_too_many_states_validates_short_responses_only() {
    // Which of the last characters is the one that counts: each text gives another state.
    let validators = of("[ab]*a[ab]{5000}");
    let text =
        |length: u32| -> String { (0..length).map(|i| if i.count_ones() % 2 == 0 { 'a' } else { 'b' }).collect() };
    let most = (MAX_JUDGED_REGEX_WORK / validators.regex_bytes()) as u32;
    assert!(validators.response("-").is_err() && validators.response(&format!("{}-", text(most / 2))).is_err());
    assert_eq!(validators.response(&format!("{}-", text(most + 6000))), Ok(()));
    // An automaton of few states reads everything, however large the expression is.
    let many = of("(?:[a-z]*){1,20000}");
    let long = "a".repeat(100_000);
    assert!(many.response(&long).is_ok() && many.response(&format!("{long}-")).is_err());
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
