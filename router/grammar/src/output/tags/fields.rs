//! Reads the fields of a structural tag. It does not know what they mean.

use serde_json::Value;

use crate::rules::RuleError;

pub(super) fn member<'v>(node: &'v Value, path: &str, key: &str) -> Result<&'v Value, RuleError> {
    node.get(key).ok_or_else(|| RuleError::invalid(format!("{path}.{key}"), "is required"))
}

pub(super) fn string<'v>(node: &'v Value, path: &str, key: &str) -> Result<&'v str, RuleError> {
    let text = member(node, path, key)?.as_str();
    text.ok_or_else(|| RuleError::invalid(format!("{path}.{key}"), "must be a string"))
}

pub(super) fn list<'v>(node: &'v Value, path: &str, key: &str) -> Result<&'v [Value], RuleError> {
    match member(node, path, key)?.as_array() {
        Some(all) if !all.is_empty() => Ok(all),
        _ => Err(RuleError::invalid(format!("{path}.{key}"), "must be a list with at least one entry")),
    }
}

pub(super) fn strings(node: &Value, path: &str, key: &str) -> Result<Option<Vec<String>>, RuleError> {
    let Some(value) = node.get(key).filter(|v| !v.is_null()) else { return Ok(None) };
    let all: Option<Vec<String>> =
        value.as_array().and_then(|all| all.iter().map(|v| v.as_str().map(str::to_owned)).collect());
    all.map(Some).ok_or_else(|| RuleError::invalid(format!("{path}.{key}"), "must be a list of strings"))
}

pub(super) fn flag(node: &Value, path: &str, key: &str, default: bool) -> Result<bool, RuleError> {
    match node.get(key).filter(|v| !v.is_null()) {
        None => Ok(default),
        Some(value) => {
            value.as_bool().ok_or_else(|| RuleError::invalid(format!("{path}.{key}"), "must be true or false"))
        }
    }
}
