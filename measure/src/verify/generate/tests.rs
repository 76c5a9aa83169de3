use std::collections::BTreeSet;

use serde_json::Value;

use super::schemas::{LEVELS, RandomSource};
use super::traps::TRAPS;
use super::{lines, sample};
use crate::verify::sample::Sample;
use crate::verify::validate::compile;

#[test]
fn every_schema_compiles_and_accepts_its_example_and_most_reject_others() {
    let mut strict = 0;
    for (name, make) in LEVELS {
        for seed in 0..60 {
            let (schema, example) = make(&mut RandomSource::new(seed));
            let Some(schema) = schema else { continue };
            let validator = compile(&schema).unwrap_or_else(|e| panic!("{name}: {e}: {schema}"));
            let wrong = validator.violations(&example, usize::MAX);
            assert!(wrong.is_empty(), "{name}: {wrong:?}\n{schema}\n{example}");
            assert!(example.is_object(), "{name}: {example}");
            strict += usize::from(!validator.violations(&serde_json::json!({ "no such key": [[{}]] }), 1).is_empty());
        }
    }
    assert!(strict > LEVELS.len() * 60 * 3 / 4, "only {strict} schemas reject an unknown key");
}

#[test]
fn samples_are_deterministic_and_cover_every_level_and_trap() {
    let n = (LEVELS.len() * TRAPS.len()) as u32;
    let text = lines(n, 7);
    assert_eq!(text, lines(n, 7));
    assert_ne!(text, lines(n, 8));
    let mut tags = BTreeSet::new();
    let mut hashes = BTreeSet::new();
    for (index, line) in (1..).zip(text.lines()) {
        let sample = Sample::parse(index, line).unwrap_or_else(|e| panic!("{index}: {e}"));
        tags.insert((sample.truth.tags[0].clone(), sample.truth.tags[1].clone()));
        hashes.insert(sample.hash.clone());
        let names: Vec<_> = sample.tools().filter_map(|t| t.get("name")?.as_str()).map(str::to_owned).collect();
        let legal = |n: &String| {
            n.len() <= 64 && !n.is_empty() && n.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
        };
        assert!(names.iter().all(legal), "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{index}: {names:?}");
        assert_eq!(sample.truth.expect.tool.is_some(), sample.truth.expect.call == Some(true));
        assert!(sample.truth.expect.tool.iter().all(|t| names.contains(t)), "{index}");
    }
    assert_eq!(tags.len(), LEVELS.len() * TRAPS.len(), "not every level has every trap");
    assert_eq!(hashes.len(), n as usize, "two samples are equal");
}

#[test]
fn traps_change_the_request_as_named() {
    let of = |trap: &str| -> Value {
        let at = TRAPS.iter().position(|(name, _)| *name == trap).unwrap_or_else(|| panic!("no {trap}")) as u32;
        sample(at, 100, 1)
    };
    let undeclared = of("undeclared_in_history");
    let names = undeclared["request"]["tools"].to_string();
    assert!(undeclared["request"]["messages"].to_string().contains("img_gen") && !names.contains("img_gen"));
    assert_eq!(of("many_tools")["request"]["tools"].as_array().map(Vec::len), Some(64));
    assert_eq!(of("choice_none")["request"]["tool_choice"], "none");
    assert_eq!(of("choice_none")["expect"]["call"], false);
    let named = of("choice_named");
    assert_eq!(named["request"]["tool_choice"]["function"]["name"], named["expect"]["tool"]);
    let content = |of: Value| of["request"]["messages"][1]["content"].clone();
    assert_eq!((content(of("empty_content")), content(of("null_content"))), ("".into(), Value::Null));
    assert!(of("result_parts")["request"]["messages"][2]["content"].is_array());
}
