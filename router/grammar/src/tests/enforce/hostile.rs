//! Requests that cost far more than their length suggests are compiled, relaxed or rejected within a budget of steps,
//! and the cost of every token is bounded.

use super::Bench;
use crate::limits::{MAX_COMPILE_WORK, MAX_FIRST_WORK, MAX_PART_WORK};
use crate::{Budget, Cancel, Response, RuleError, Rules, Tool, by_name};

#[path = "../../../benches/hostile/cases.rs"]
mod cases;

use cases::{Case, Outcome};

/// How far a step that was begun within the budget may exceed it.
const BEYOND: u64 = MAX_PART_WORK + 1_000_000;

fn outcome(bench: &Bench, case: &Case, budget: &mut Budget) -> Outcome {
    let compiled = match bench.grammars.compile_within(&case.rules, budget) {
        Ok(compiled) => compiled,
        Err(error) => {
            let Outcome::Refused(words) = case.outcome else { panic!("{}: {error}", case.name) };
            assert!(error.to_string().contains(words), "{}: {error}", case.name);
            return Outcome::Refused(words);
        }
    };
    let mut text = case.text.clone();
    if case.rules.response.is_none() {
        text = format!(
            "⟦<|tool_calls_section_begin|>⟧⟦<|tool_call_begin|>⟧functions.f:0⟦<|tool_call_argument_begin|>⟧{text}"
        );
    }
    let mut matcher = compiled.matcher().expect("a matcher");
    for id in bench.tokens.text(&text) {
        let accepted = matcher.mask().and_then(|_| matcher.accept(id));
        match accepted {
            Ok(taken) => assert!(taken, "{}: {:?}", case.name, bench.tokens.show(&[id])),
            Err(error) => {
                let Outcome::Limited(words) = case.outcome else { panic!("{}: {error}", case.name) };
                assert!(error.to_string().contains(words), "{}: {error}", case.name);
                assert_eq!(matcher.mask(), Err(error), "{}: it is used again", case.name);
                return case.outcome;
            }
        }
    }
    match (compiled.relaxations(), case.outcome) {
        ([], _) => Outcome::Enforced,
        (all, Outcome::Relaxed(keyword)) if all.iter().any(|one| one.keyword == keyword) => case.outcome,
        (all, _) => panic!("{}: {all:?}", case.name),
    }
}

#[test]
fn every_compilation_stays_within_its_budget() {
    let bench = Bench::new(by_name("kimi_k2").expect("a format"), false);
    for case in cases::all() {
        let mut budget = Budget::default();
        assert_eq!(outcome(&bench, &case, &mut budget), case.outcome, "{}", case.name);
        let spent = budget.spent();
        assert!(spent < MAX_COMPILE_WORK + BEYOND, "{}: {spent} steps", case.name);
    }
}

/// What a first attempt does not finish is left to a second one, which then gives the same grammar.
#[test]
fn a_first_attempt_stops_early() {
    let bench = Bench::new(by_name("kimi_k2").expect("a format"), false);
    let mut unfinished = 0;
    for case in cases::all() {
        let mut first = Budget::first_attempt(Cancel::default());
        match bench.grammars.compile_within(&case.rules, &mut first) {
            Err(RuleError::Unfinished) => unfinished += 1,
            Err(error) => assert!(matches!(case.outcome, Outcome::Refused(_)), "{}: {error}", case.name),
            Ok(compiled) => {
                let told = match case.outcome {
                    Outcome::Relaxed(keyword) => compiled.relaxations().iter().any(|one| one.keyword == keyword),
                    _ => compiled.relaxations().is_empty(),
                };
                assert!(told, "{}: {:?}", case.name, compiled.relaxations());
            }
        }
        assert!(first.spent() < MAX_FIRST_WORK + BEYOND, "{}: {} steps", case.name, first.spent());
    }
    assert!(unfinished > 3, "{unfinished}");
}

#[test]
fn a_cancelled_compilation_stops() {
    let bench = Bench::new(by_name("kimi_k2").expect("a format"), false);
    let cancel = Cancel::default();
    cancel.cancel();
    for case in cases::all() {
        let compiled = bench.grammars.compile_within(&case.rules, &mut Budget::whole(cancel.clone()));
        assert!(matches!(compiled, Err(RuleError::Unfinished)), "{}", case.name);
    }
}

/// The lexer makes no progress if an expression ends before its first byte.
#[test]
fn expressions_that_match_only_the_empty_text_are_rejected() {
    let bench = Bench::new(by_name("kimi_k2").expect("a format"), false);
    let compiled = |response| {
        let rules = Rules { response: Some(response), parallel: true, ..Rules::default() };
        bench.grammars.compile_within(&rules, &mut Budget::default())
    };
    for regex in ["(?:)", "^$", "a{0}", "[^\\s\\S]*", "([^\\s\\S])?", "(a[^\\s\\S])*"] {
        let error = compiled(Response::Regex(regex.into())).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains("only the empty string")), "{regex}: {error:?}");
    }
    for regex in ["a*", "(a|)", "a?[^\\s\\S]*", "[^\\s\\S]*b"] {
        let mut matcher = compiled(Response::Regex(regex.into())).expect("it compiles").matcher().expect("a matcher");
        matcher.mask().expect("a mask");
    }
}

/// Forced text is computed in one piece, however long it is.
#[test]
fn expressions_without_a_short_match_are_rejected() {
    let tag = |regex: &str| {
        let content = serde_json::json!({"type": "regex", "pattern": regex});
        serde_json::json!({"type": "structural_tag", "format": content})
    };
    for format in ["kimi_k2", "llama_json"] {
        let bench = Bench::new(by_name(format).expect("a format"), false);
        let compiled = |response| {
            let rules = Rules { response: Some(response), parallel: true, ..Rules::default() };
            bench.grammars.compile_within(&rules, &mut Budget::default())
        };
        for regex in ["\\.{1000000}", "a{20000}b*", "(?:ab){9000}"] {
            for response in [Response::Regex(regex.into()), Response::StructuralTag(tag(regex))] {
                let error = compiled(response).err().map(|error| error.to_string());
                assert!(error.as_ref().is_some_and(|error| error.contains("shortest match")), "{regex}: {error:?}");
            }
        }
        assert!(compiled(Response::Regex("[0-9]{64}".into())).is_ok());
    }
}

#[test]
fn case_insensitive_classes_cost_a_bounded_time() {
    let bench = Bench::new(by_name("kimi_k2").expect("a format"), false);
    let wide = r"[\s\S]".repeat(5_000);
    let schema = |pattern: &str| {
        serde_json::json!({"type": "object", "properties": {"a": {"pattern": pattern}},
        "patternProperties": {pattern: {"type": "integer"}}})
    };
    let compiled = |response| {
        let rules = Rules { response: Some(response), parallel: true, ..Rules::default() };
        let compiled = bench.grammars.compile_within(&rules, &mut Budget::default());
        compiled.map(|compiled| compiled.relaxations().len()).map_err(|error| error.to_string())
    };
    let tag = serde_json::json!({"format": {"type": "regex", "pattern": format!("(?i){wide}")}});
    for response in [
        Response::Regex(format!("(?i){wide}")),
        Response::Lark(format!("start: /{wide}/i")),
        Response::Lark(format!("start: /(?i){wide}/")),
        Response::StructuralTag(tag),
    ] {
        let error = compiled(response).expect_err("it costs too much");
        assert!(error.contains("case-insensitive classes"), "{error}");
    }
    let json = |pattern: &str| Response::JsonSchema { schema: schema(pattern), strict: false };
    assert!(compiled(json(&format!("(?i){wide}"))).is_ok_and(|relaxed| relaxed > 0));
    assert_eq!(compiled(json("(?i)^[a-z]+$")), Ok(0));
    assert_eq!(compiled(Response::Regex(r"(?i)[\s\S]{0,20}yes".into())), Ok(0));
}

/// An object with up to this many words within this length, and one with four times `repeats` of them as tokens.
fn words(b: &Bench, most: usize, length: usize, repeats: usize) -> (serde_json::Value, Vec<u32>) {
    let pattern = format!("^(?:\\S+\\s+){{0,{}}}\\S+$", most - 1);
    let text = serde_json::json!({"type": "string", "maxLength": length, "pattern": pattern});
    let schema = serde_json::json!({"type": "object", "properties": {"a": text, "b": {"type": "integer"}}, "required": ["a", "b"], "additionalProperties": false});
    let answer = serde_json::json!({"a": "some words and more ".repeat(repeats).trim(), "b": 1}).to_string();
    (schema, b.tokens.encode(answer.as_bytes()))
}

#[test]
fn fifty_words_within_a_length_are_held_without_loosening() {
    let b = Bench::new(crate::PLAIN, false);
    let (schema, ids) = words(&b, 50, 512, 12);
    for strict in [false, true] {
        let response = Some(Response::JsonSchema { schema: schema.clone(), strict });
        let compiled = b.compile(&Rules { response, ..Rules::default() });
        assert!(compiled.relaxations().is_empty(), "{:?}", compiled.relaxations());
        let mut matcher = compiled.matcher().expect("a matcher");
        for (n, id) in ids.iter().enumerate() {
            let mask = matcher.mask().unwrap_or_else(|error| panic!("{error} after {n} tokens"));
            assert!(mask[*id as usize / 8] >> (id % 8) & 1 == 1, "{n}");
            assert_eq!(matcher.accept(*id), Ok(true), "{n}");
        }
    }
}

/// What an answer costs shows only while it is written: without the constraints of strings it goes on.
#[test]
fn an_output_that_meets_a_limit_goes_on_loosened() {
    let b = Bench::new(crate::PLAIN, false);
    let (schema, ids) = words(&b, 90, 900, 20);
    for strict in [false, true] {
        let response = Some(Response::JsonSchema { schema: schema.clone(), strict });
        let compiled = b.compile(&Rules { response, ..Rules::default() });
        let mut matcher = compiled.matcher().expect("a matcher");
        let taken = ids.iter().take_while(|id| matcher.accept(**id) == Ok(true)).count();
        assert!(taken < ids.len() && matches!(matcher.mask(), Err(crate::MatcherError::Limit(_))), "{taken}");
        match compiled.loosened() {
            Some(mut loosened) => assert!(!strict && b.run(&mut loosened, &ids) == (ids.len(), true)),
            None => assert!(strict),
        }
    }
}
