//! Compares our parser of grammars with llguidance's: the same masks on random walks.

use serde_json::json;

use super::{Bench, rules, schemas::nasty, tool};
use crate::assemble::common_regexes;
use crate::tests::Random;
use crate::{Rules, ToolChoice, by_name, formats};

#[test]
fn the_expressions_that_are_parsed_once_are_used() {
    let strings = ["date", "time", "date-time"].map(|format| json!({"type": "string", "format": format}));
    let others = ["string", "integer", "number", "boolean"].map(|kind| json!({"type": kind}));
    let members: serde_json::Map<_, _> =
        strings.into_iter().chain(others).enumerate().map(|(i, schema)| (format!("p{i}"), schema)).collect();
    let schema = json!({"type": "object", "properties": {"all": {"type": "array", "items":
        {"type": "object", "properties": members}}}});
    let bench = Bench::new(by_name("kimi_k2").expect("a format"), false);
    let rules = Rules { parallel: true, ..rules(vec![tool("f", schema)]) };
    let compiled = bench.grammars.compile(&rules).expect("compiles").expect("a grammar");
    for regex in common_regexes() {
        assert!(compiled.lark().contains(&format!("/{regex}/")), "{regex} is not in\n{}", compiled.lark());
    }
}

#[test]
fn both_parsers_make_the_same_grammar() {
    let simple = json!({"type": "object", "required": ["city"], "properties": {"city": {"type": "string"},
        "days": {"type": "integer"}, "unit": {"enum": ["c", "f"]}, "tags": {"type": "array", "items": {"type": "string"}}}});
    let mut random = Random::new(3);
    let (mut read, mut steps) = (0, 0);
    for (i, format) in formats().iter().enumerate() {
        for spelled in [false, true] {
            if spelled && format.markers == crate::Markers::Special {
                continue;
            }
            let b = Bench::new(format, spelled);
            let others = nasty().into_iter().skip(i % 4).step_by(4);
            for (at, schema) in std::iter::once(simple.clone()).chain(others).enumerate() {
                let choice = if at % 2 == 0 { ToolChoice::Auto } else { ToolChoice::Required };
                let r = Rules { choice, ..rules(vec![tool("f", schema.clone()), tool("get_weather", simple.clone())]) };
                let Ok(Some(compiled)) = b.grammars.compile(&r) else { continue };
                let mut ours = compiled.matcher().expect("a matcher");
                let Some(mut theirs) = b.grammars.matcher_by_text(&compiled) else {
                    assert!(at > 0 || compiled.lark().contains("multipleOf"), "{}: {}", format.name, compiled.lark());
                    continue;
                };
                read += 1;
                for _ in 0..80 {
                    let (mask, same) = (ours.mask().expect("a mask"), theirs.mask().expect("a mask"));
                    assert!(mask == same, "{} {spelled} {schema}: other masks\n{}", format.name, compiled.lark());
                    assert_eq!(ours.forced(), theirs.forced(), "{} {schema}", format.name);
                    assert_eq!(ours.may_stop(), theirs.may_stop(), "{} {schema}", format.name);
                    let all: Vec<u32> = (0..b.tokens.words.len() as u32)
                        .filter(|t| mask[*t as usize / 8] >> (t % 8) & 1 == 1)
                        .collect();
                    // Not only letters.
                    let signs: Vec<u32> = all.iter().copied().filter(|t| !(97..123).contains(t)).collect();
                    let from = if signs.is_empty() { &all } else { &signs };
                    if from.is_empty() {
                        break;
                    }
                    let id = *random.pick(from);
                    assert!(
                        ours.accept(id).expect("no error") && theirs.accept(id).expect("no error"),
                        "{}",
                        format.name
                    );
                    steps += 1;
                }
            }
        }
    }
    assert!(read > 150 && steps > 5000, "{read} grammars, {steps} steps");
}
