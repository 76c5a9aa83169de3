use serde_json::json;

use super::*;
use crate::limits::MAX_VALIDATED_REGEX_WORK;

fn of(regex: &str) -> Validators {
    Validators::new(&Rules { response: Some(Response::Regex(regex.into())), ..Rules::default() })
}

#[test]
fn a_regex_is_compiled_once_and_charged_by_its_size() {
    for (regex, bytes) in [("a+", 100..10_000), (r"[\p{L} ]{1,60}x", 500_000..4_000_000)] {
        let validators = of(regex);
        assert!(bytes.contains(&validators.regex_bytes()), "{regex}: {}", validators.regex_bytes());
        assert!(validators.response("ax").is_err() == (regex == "a+") && validators.response("").is_err());
    }
    // A regular expression beyond all sizes validates nothing.
    let huge = of(r"(\w{500}){500}");
    assert_eq!((huge.regex_bytes(), huge.response("-")), (0, Ok(())));
}

/// A text after which `[ab]*a[ab]{n}` is in another state for each length.
fn many_states(length: u32) -> String {
    (0..length).map(|i| if i.count_ones() % 2 == 0 { 'a' } else { 'b' }).collect()
}

#[test]
fn a_regex_with_too_many_states_validates_short_responses_only() {
    // Which of the last characters is the one that counts: each text gives another state.
    let validators = of("[ab]*a[ab]{5000}");
    let text = many_states;
    let most = (MAX_VALIDATED_REGEX_WORK / validators.regex_bytes()) as u32;
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

#[test]
fn the_patterns_of_one_validation_share_a_bounded_time() {
    let schema = json!({"type": "array", "items": {"pattern": "^[ab]*a[ab]{5000}$"}});
    let validator = Lazy::new(schema);
    let short = format!("{}-", many_states(6000));
    assert!(validator.check(&json!([short])).is_err());
    // Beyond the budget nothing is known, also of what came before.
    let long = format!("{}-", many_states(300_000));
    assert_eq!(validator.check(&json!([long, long])), Ok(()));
    assert_eq!(validator.check(&json!([long, short])), Ok(()));
    let negated = Lazy::new(json!({"type": "array", "items": {"not": {"pattern": "^[ab]*a[ab]{5000}-$"}}}));
    assert_eq!(negated.check(&json!([long])), Ok(()));
    let fits = (6000..).map(many_states).find(|text| text.as_bytes()[text.len() - 5001] == b'a').unwrap();
    let work = PlainPattern::whole("[ab]*a[ab]{5000}").bytes() * fits.len();
    let mut many = vec![json!(fits); MAX_VALIDATED_REGEX_WORK / work + 2];
    many.push(json!(short));
    assert_eq!(validator.check(&json!(many)), Ok(()));
}

#[test]
fn patterns_mean_what_they_mean_to_the_library() {
    let patterns = [
        "",
        "a",
        "^a$",
        "^a|b$",
        "^[^\"]+$",
        r"^\d+$",
        r"^\w+$",
        r"^\S*$",
        r"\bfoo\b",
        ".",
        "^.$",
        r"^\p{L}+$",
        r"^\u0041",
        "^(?!a)",
        "(?<=x)y",
        r"^(a+)\1$",
        r"^[\s\S]{2}$",
        r"\/",
        r"^\cJ$",
        "^(?:ab){2,3}$",
        r"^[\w.-]+@[\w.-]+$",
        "^$",
        "(?i)A",
    ];
    let texts = [
        "", "a", "b", "ab", "ba", "aa", "aaa", "abab", "xy", "foo bar", "afoo", "5", "\u{665}", "é", "ſ", "K", "\n",
        "a\n", "\u{2028}", "\u{a0}", "\u{feff}", "😀", "\"", "A", "/", "a@b.c", "e\u{301}",
    ];
    for pattern in patterns {
        let schema = json!({"pattern": pattern});
        let (ours, theirs) = (Lazy::new(schema.clone()), jsonschema::draft202012::new(&schema));
        let Ok(theirs) = theirs else {
            assert!(texts.iter().all(|text| ours.check(&json!(text)).is_ok()), "{pattern}");
            continue;
        };
        for text in texts {
            let said = ours.check(&json!(text)).map_err(|violation| violation.message);
            assert_eq!(said, theirs.validate(&json!(text)).map_err(|error| error.to_string()), "{pattern} {text:?}");
        }
    }
    assert_eq!(Lazy::new(json!({"pattern": "a"})).check(&json!(5)), Ok(()));
}

#[test]
fn patterns_of_names_are_left_out_where_they_cost_too_much() {
    let schema = json!({"patternProperties": {"^[ab]*a[ab]{5000}$": {"type": "null"}, "^n$": false},
        "properties": {"m": {"type": "null"}}});
    let validator = Lazy::new(schema);
    assert!(validator.check(&json!({"n": 1})).is_err() && validator.check(&json!({"m": 1})).is_err());
    let long = many_states(300_000);
    assert_eq!(validator.check(&json!({&long: 1, "n": 1})), Ok(()));
    assert!(validator.check(&json!({&long: 1, "m": 1})).is_err());
}

#[test]
fn patterns_that_backtrack_are_validated_within_bounds() {
    let validator = Lazy::new(json!({"type": "array", "items": {"pattern": r"^(?=.*\d)(?!.*x).{2,}$"}}));
    assert_eq!(validator.check(&json!(["a1", "1b"])), Ok(()));
    assert!(validator.check(&json!(["a1", "x1"])).is_err());
    assert!(validator.check(&json!(["ab"])).is_err());
    assert!(!validator.is_quick(10));
    // Each of these would backtrack exponentially often. Validation gives up soon and accepts the value.
    let costly = Lazy::new(json!({"type": "array", "items": {"pattern": r"^(a|a)*\1b"}}));
    let text = format!("{}!", "a".repeat(40));
    let cpu = std::time::Instant::now();
    assert_eq!(costly.check(&json!(vec![text.as_str(); 2000])), Ok(()));
    assert_eq!(accepted(&json!({"pattern": r"^(a|a)*\1b"}), vec![json!(text); 2000]).len(), 2000);
    assert!(cpu.elapsed() < std::time::Duration::from_secs(5), "{:?}", cpu.elapsed());
}
