use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::tests::enforce::Bench;
use crate::{Response, Rules};

fn bound(value: Value, inclusive: bool) -> Option<Bound> {
    Bound::new(&value, inclusive)
}

#[test]
fn bounds_that_no_number_reaches_are_ignored() {
    let of = |value| bound(value, true);
    let between = |low, high, whole| between(low, high, whole, &mut Budget::default()).unwrap();
    assert_eq!(between(of(json!(f64::MIN)), of(json!(f64::MAX)), false), between(None, None, false));
    assert_eq!(between(of(json!(0)), of(json!(f64::MAX)), false), between(of(json!(0)), None, false));
    assert_eq!(between(of(json!(1e300)), None, false), NumberRange::Beyond);
    assert_eq!(between(of(json!(4.2)), of(json!(4.8)), true), NumberRange::Nothing);
    assert_eq!(between(of(json!(5)), bound(json!(5), false), false), NumberRange::Nothing);
}

/// Whether a response's schema accepts each text.
fn takes(bench: &Bench, schema: &Value, texts: &BTreeSet<String>, mut check: impl FnMut(&str, bool)) {
    let response = Some(Response::JsonSchema { schema: schema.clone(), strict: true });
    let compiled = match bench.grammars.compile(&Rules { response, ..Rules::default() }) {
        Ok(compiled) => compiled.expect("a grammar"),
        // Nothing satisfies it.
        Err(_) => return texts.iter().for_each(|text| check(text, false)),
    };
    let start = compiled.matcher().expect("a matcher");
    for text in texts {
        let ids = bench.tokens.encode(text.as_bytes());
        check(text, bench.run(&mut start.clone(), &ids) == (ids.len(), true));
    }
}

/// Integers around bounds of every size, compared with integer comparison.
#[test]
fn integers_between_bounds_match_integer_comparison() {
    let bench = Bench::new(crate::PLAIN, false);
    let bounds: &[i128] = &[
        -10_000_000_000_000_001,
        -1000,
        -10,
        -1,
        0,
        1,
        9,
        10,
        99,
        100,
        105,
        9_007_199_254_740_993,
        10_000_000_000_000_000,
        9_223_372_036_854_775_807,
        18_446_744_073_709_551_615,
    ];
    let near = bounds.iter().flat_map(|b| [b - 11, b - 10, b - 2, b - 1, *b, b + 1, b + 2, b + 9, b + 10]);
    let texts: BTreeSet<String> = near.map(|n| n.to_string()).collect();
    let number = |n: i128| u64::try_from(n).map_or_else(|_| json!(i64::try_from(n).expect("a bound")), |n| json!(n));
    for (i, low) in bounds.iter().enumerate() {
        for high in &bounds[i..] {
            for (least, most) in [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")] {
                let schema = json!({"type": "integer", least: number(*low), most: number(*high)});
                takes(&bench, &schema, &texts, |text, taken| {
                    let n: i128 = text.parse().expect("a number");
                    let valid = if least == "minimum" { n >= *low && n <= *high } else { n > *low && n < *high };
                    assert_eq!(taken, valid, "{schema}: {text}");
                });
            }
        }
    }
}

/// Bounds with fractions and exponents, multiples, and excluded values.
#[test]
fn unusual_bounds_of_integers_are_exact() {
    let bench = Bench::new(crate::PLAIN, false);
    let texts: BTreeSet<String> = (-130..=130)
        .chain([999_999_999_999_999, 10_000_000_000_000_000, 10_000_000_000_000_001])
        .map(|n: i64| n.to_string())
        .collect();
    for schema in [
        json!({"type": "integer", "minimum": 1e1}),
        json!({"type": "integer", "maximum": 1e16}),
        json!({"type": "integer", "exclusiveMaximum": 1e16, "minimum": -2.5}),
        json!({"type": "integer", "minimum": -2.5, "maximum": 2.5}),
        json!({"type": "integer", "exclusiveMinimum": -2.0, "exclusiveMaximum": 2.0}),
        json!({"type": "integer", "minimum": 5, "exclusiveMinimum": 5}),
        json!({"type": "integer", "minimum": -30, "maximum": 30, "multipleOf": 7}),
        json!({"type": "integer", "maximum": 10, "multipleOf": 5}),
        json!({"type": "integer", "exclusiveMinimum": 100, "multipleOf": 2}),
        json!({"type": "integer", "minimum": 0, "maximum": 9, "not": {"enum": [0, 4, 9]}}),
        json!({"type": "integer", "not": {"const": 0}}),
        json!({"type": "integer", "minimum": 0.1, "maximum": 0.9}),
    ] {
        let validator = crate::SchemaValidator::new(&schema).expect("a schema");
        takes(&bench, &schema, &texts, |text, taken| {
            let value = serde_json::from_str(text).expect("JSON");
            let valid = validator.violations(&value, 1).is_empty();
            // Multiples are accepted as far as floating point represents them all.
            if !(schema.get("multipleOf").is_some() && text.len() > 15) {
                assert_eq!(taken, valid, "{schema}: {text}");
            }
        });
    }
}

/// Numbers around the bounds, in several lengths and spellings.
#[test]
fn numbers_between_bounds_match_decimal_comparison() {
    let bench = Bench::new(crate::PLAIN, false);
    let bounds = [-12.5, -5.0, -0.05, 0.0, 0.1, 0.75, 1.0, 5.0, 9.995, 10.0, 99.5, 100.0, 1234.25];
    let mut texts = BTreeSet::new();
    for b in bounds.iter().copied().chain([2.0, 50.0]) {
        for d in [0.0, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 9.0, 90.0] {
            texts.extend([
                format!("{}", b + d),
                format!("{}", b - d),
                format!("{:.3}", b + d),
                format!("{:.1}", b - d),
            ]);
        }
    }
    texts.extend(["1e-7", "-1e-7", "1.5e3", "-2E+5", "0e1", "9.99e-1", "1e16"].map(str::to_owned));
    texts.retain(|t| t.split_once('.').is_none_or(|(_, f)| f.len() <= 8));
    let texts: BTreeSet<String> =
        texts.into_iter().enumerate().filter(|(i, t)| i % 5 == 0 || t.contains(['e', 'E'])).map(|(_, t)| t).collect();
    for (i, low) in bounds.iter().enumerate() {
        for high in bounds[i..].iter().map(|b| Some(*b)).chain([None]) {
            let (least, most) =
                if i % 2 == 0 { ("minimum", "exclusiveMaximum") } else { ("exclusiveMinimum", "maximum") };
            let mut schema = json!({"type": "number", least: low});
            if let Some(high) = high {
                schema[most] = json!(high);
            }
            let validator = crate::SchemaValidator::new(&schema).expect("a schema");
            takes(&bench, &schema, &texts, |text, taken| {
                let value = serde_json::from_str(text).expect("JSON");
                let valid = validator.violations(&value, 1).is_empty();
                // Negative zero and some exponents are not accepted everywhere.
                let odd = text.contains(['e', 'E']) || (text.starts_with('-') && text.parse() == Ok(0.0));
                assert!(if odd { valid || !taken } else { taken == valid }, "{schema}: {text}: {taken}");
            });
        }
    }
    let small = json!({"type": "number", "exclusiveMinimum": 0});
    let texts = ["1e-7", "2.5E-05", "0.0", "-1e-3", "3e10"].map(str::to_owned).into();
    takes(&bench, &small, &texts, |text, taken| assert_eq!(taken, !text.starts_with("-") && text != "0.0", "{text}"));
}
