//! The constants that a schema allows or excludes.

use serde_json::{Value, json};

use crate::json_schema::{Schema, each, is_annotation, is_type, types};
use crate::validate::accepted;

/// The constants that a schema allows, if it lists them.
pub(super) fn values(flat: &Schema) -> Option<Vec<Value>> {
    let listed = match (flat.get("const"), flat.get("enum")) {
        (Some(one), None) => vec![one.clone()],
        (None, Some(many)) => many.as_array()?.clone(),
        (Some(one), Some(many)) => many.as_array()?.iter().filter(|v| *v == one).cloned().collect(),
        (None, None) => return None,
    };
    let mut rest: Schema =
        flat.iter().filter(|(k, _)| !is_annotation(k)).map(|(k, v)| (k.clone(), v.clone())).collect();
    rest.retain(|k, _| k != "const" && k != "enum");
    if rest.is_empty() {
        return Some(listed);
    }
    if rest.len() == 1 && rest.contains_key("type") {
        let types = types(flat);
        return Some(listed.into_iter().filter(|v| types.iter().any(|t| is_type(v, t))).collect());
    }
    // After a merge, these may be lists.
    let mut all = Vec::new();
    for keyword in ["pattern", "format"] {
        let many = rest.remove(keyword).map(|value| each(&value)).unwrap_or_default();
        all.extend(many.into_iter().map(|one| json!({ keyword: one })));
    }
    if !all.is_empty() {
        rest.insert("allOf".into(), all.into());
    }
    Some(accepted(&Value::Object(rest), listed))
}

/// Equality as in JSON Schema: numbers are compared by value.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.as_f64() == b.as_f64() && (a.is_f64() || b.is_f64())),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Whether a `not` only excludes constants, which are compared where values are written.
pub(super) fn excludes_constants(not: &Value) -> bool {
    let Value::Object(map) = not else { return false };
    let mut constraints = map.keys().filter(|k| !is_annotation(k));
    constraints.next().is_some_and(|k| k == "enum" || k == "const") && constraints.next().is_none()
}

/// The constants that a `not` excludes.
pub(super) fn excluded(flat: &Schema) -> Vec<Value> {
    let not = flat.get("not");
    let many = not.and_then(|n| n.get("enum")).and_then(Value::as_array).cloned();
    many.or_else(|| not.and_then(|n| n.get("const")).map(|one| vec![one.clone()])).unwrap_or_default()
}
