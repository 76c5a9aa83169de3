//! Checks clients' own grammars before llguidance compiles them. It does not read them as grammars.

use serde_json::Value;

use crate::json_schema::folded_characters_of_lark;
use crate::limits::{MAX_DIVISOR, MAX_FOREIGN_PATTERNS, MAX_REGEX_FOLDS, MAX_ROUND_DIVISOR};
use crate::schema::divisor_price;

/// Rejects what llguidance would compile at an unbounded cost.
pub(crate) fn check_foreign(lark: &str) -> Result<(), String> {
    let folds = folded_characters_of_lark(lark);
    if folds > MAX_REGEX_FOLDS {
        return Err(format!("its case-insensitive classes have {folds} characters; the limit is {MAX_REGEX_FOLDS}"));
    }
    if !lark.contains("%json") {
        return Ok(());
    }
    if let Some(of) = lark.split("%json").skip(1).filter_map(first_value).find_map(|schema| costly_divisor(&schema)) {
        return Err(format!(
            "the multipleOf of a %json schema must be at most {MAX_DIVISOR}, or a round number up to {MAX_ROUND_DIVISOR}, got {of}"
        ));
    }
    let patterns = ["\"pattern\"", "\"format\"", "\"patternProperties\""].map(|key| lark.matches(key).count());
    let combined = ["\"allOf\"", "\"$ref\""].iter().any(|key| lark.contains(key));
    match combined && patterns.iter().sum::<usize>() > MAX_FOREIGN_PATTERNS {
        true => Err(format!(
            "a %json schema with allOf or $ref may use at most {MAX_FOREIGN_PATTERNS} of pattern, format and patternProperties"
        )),
        false => Ok(()),
    }
}

/// The JSON value at the start of a text.
fn first_value(text: &str) -> Option<Value> {
    serde_json::Deserializer::from_str(text).into_iter().next()?.ok()
}

/// A `multipleOf` in a schema that llguidance would compile at an unbounded cost.
fn costly_divisor(schema: &Value) -> Option<Value> {
    match schema {
        Value::Object(members) => {
            let own = members.get("multipleOf").filter(|of| of.is_number() && divisor_price(of).is_none());
            own.cloned().or_else(|| members.values().find_map(costly_divisor))
        }
        Value::Array(items) => items.iter().find_map(costly_divisor),
        _ => None,
    }
}
