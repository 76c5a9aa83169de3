//! The way to the end of a JSON answer is short, wherever the model has strayed.

use serde_json::{Value, json};

use super::{Bench, STOP, rules, schemas};
use crate::tests::Random;
use crate::{Matcher, Response, Rules};

/// Walks per schema, and their longest beginnings in tokens.
const WALKS: usize = 12;
const LONGEST: usize = 160;

/// How many objects, lists and strings are open.
fn open(text: &str) -> usize {
    let (mut depth, mut in_string, mut escaped) = (0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
    }
    depth + usize::from(in_string)
}

#[test]
fn the_punctuation_of_a_refused_draw_is_kept() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false});
    let b = Bench::new(crate::PLAIN, false);
    let r = Rules { response: Some(Response::JsonSchema { schema, strict: true }), ..rules(Vec::new()) };
    let token = |text: &str| {
        let id = b.tokens.words.iter().position(|(word, _)| word == text.as_bytes());
        id.expect("a token") as u32
    };
    for (begun, refused, kept) in [
        ("{\"a\": \"x", "\", \"", "\""),
        ("{\"a\": \"x", "\"}}", "\"}"),
        ("{\"a\": \"x\"", "]}", ""),
        ("{\"a\": \"x\"", ", ", ""),
        ("{", "name", ""),
    ] {
        let mut matcher = b.matcher(&r);
        let output = b.tokens.text(begun);
        assert_eq!(b.run(&mut matcher, &output).0, output.len());
        assert_eq!(matcher.accept(token(refused)), Ok(false), "{begun:?} {refused:?}");
        let ids = matcher.kept(token(refused)).expect("tokens");
        assert_eq!(b.tokens.show(&ids), kept, "{begun:?} {refused:?}");
    }
}

fn ids(mask: &[u8]) -> Vec<u32> {
    (0..8 * mask.len() as u32).filter(|id| mask[*id as usize / 8] >> (id % 8) & 1 == 1).collect()
}

/// From wherever a random walk leads, the way to the end has a bound: for each open value, the text of the schema.
#[test]
fn the_way_to_the_end_is_short_from_everywhere() {
    let mut all = schemas::nasty();
    let cases: Vec<Value> = serde_json::from_str(include_str!("schemas.json")).expect("cases");
    all.extend(cases.iter().filter_map(|case| case.get("schema").cloned()));
    // An object with these members, all required.
    let closed = |properties: Value| {
        let names: Vec<&String> = properties.as_object().into_iter().flat_map(serde_json::Map::keys).collect();
        json!({"type": "object", "required": names, "properties": properties, "additionalProperties": false})
    };
    let node = json!({"type": "object", "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["name", "children"], "additionalProperties": false});
    all.extend([
        json!({"$defs": {"node": node}, "$ref": "#/$defs/node"}),
        json!({"$defs": {"list": {"type": "object", "properties": {"value": {"type": "integer", "minimum": 1000}, "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}},
            "required": ["value", "next"]}}, "$ref": "#/$defs/list"}),
        json!({"$defs": {"e": {"anyOf": [closed(json!({"args": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 2}})), closed(json!({"leaf": {"type": "string"}}))]}}, "$ref": "#/$defs/e"}),
        json!({"$defs": {"f": {"anyOf": [closed(json!({"and": {"type": "array", "items": {"$ref": "#/$defs/f"}, "minItems": 1}})), closed(json!({"not": {"$ref": "#/$defs/f"}})),
            closed(json!({"field": {"type": "string"}, "eq": {"type": "integer"}}))]}}, "$ref": "#/$defs/f"}),
        json!({"$defs": {"x": {"anyOf": [closed(json!({"kind": {"const": "binary"}, "left": {"$ref": "#/$defs/x"}, "right": {"$ref": "#/$defs/x"}})),
            closed(json!({"kind": {"const": "number"}, "value": {"type": "number"}}))]}}, "$ref": "#/$defs/x"}),
        json!({"type": "array", "items": {"type": "string", "minLength": 4}, "minItems": 2}),
        json!({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}}),
    ]);
    all.push(json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 3}));
    let b = Bench::new(&crate::BARE, false);
    let stop = b.tokens.special(STOP);
    let mut random = Random::new(17);
    let (mut failures, mut led) = (Vec::new(), 0);
    // Strings that must contain something are left to the model, which knows what: random letters do not spell it.
    let searched = |schema: &&Value| ["\"x.y\"", "b$"].iter().any(|pattern| schema.to_string().contains(pattern));
    for schema in all.iter().filter(|schema| !searched(schema)) {
        let response = Response::JsonSchema { schema: schema.clone(), strict: false };
        let r = Rules { response: Some(response), ..rules(Vec::new()) };
        let Ok(Some(compiled)) = b.grammars.compile(&r) else { continue };
        for _ in 0..WALKS {
            let mut matcher = compiled.matcher().expect("a matcher");
            let (mut output, beginning) = (Vec::new(), random.below(LONGEST));
            let mut draw = |matcher: &mut Matcher, output: &mut Vec<u32>, mask: &[u8]| {
                // Without reasoning.
                let text = |id: &u32| *id == stop || !b.tokens.words[*id as usize].1;
                let id = *random.pick(&ids(mask).into_iter().filter(text).collect::<Vec<_>>());
                assert_eq!(matcher.accept(id), Ok(true));
                output.push(id);
                id == stop
            };
            let mut ended = false;
            while !ended && output.len() < beginning {
                let mask = matcher.mask().expect("a mask");
                ended = draw(&mut matcher, &mut output, &mask);
            }
            let begun = b.tokens.show(&output);
            let bound = (open(&begun) + 2) * (schema.to_string().len() + 32);
            let mut canonical = compiled.canonical().expect("a canonical form");
            while !ended && output.len() < beginning + bound {
                let mut mask = matcher.mask().expect("a mask");
                canonical.follow(&output);
                if let Some(canonical) = canonical.mask() {
                    let both: Vec<u8> = mask.iter().zip(canonical).map(|(a, b)| a & b).collect();
                    mask = if both.iter().any(|byte| *byte != 0) { both } else { mask };
                }
                matcher.lead_to_end(output.last().copied(), &mut mask);
                ended = draw(&mut matcher, &mut output, &mask);
            }
            led += 1;
            if !ended {
                let rest = b.tokens.show(&output[beginning..]);
                failures.push(format!("{schema}: {begun:?} did not end within {bound} tokens: {rest:?}"));
            }
        }
    }
    assert!(led > 1_000, "{led} walks");
    assert!(failures.is_empty(), "{} of {led}\n{}", failures.len(), failures.join("\n"));
}
