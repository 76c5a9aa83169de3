//! Decides whether schemas exclude each other.

use serde_json::Value;

use super::constants::{same, values};
use super::{Compiler, Schema};
use crate::json_schema::{is_type, size, types};
use crate::limits::MAX_COMPARISON_STEPS;
use crate::rules::RuleError;

impl Compiler<'_, '_, '_> {
    /// Whether no value can satisfy two of the schemas, as far as types, constants and required properties show.
    pub(super) fn disjoint(&mut self, options: &[Value]) -> Result<bool, RuleError> {
        self.steps.set(MAX_COMPARISON_STEPS);
        let disjoint = options.iter().enumerate().all(|(i, a)| options[i + 1..].iter().all(|b| self.apart(a, b, 0)));
        self.work.budget.spend(MAX_COMPARISON_STEPS - self.steps.get())?;
        Ok(disjoint)
    }

    fn apart(&self, a: &Value, b: &Value, depth: usize) -> bool {
        const DEEP: usize = 8;
        if depth > DEEP || !self.step(size(a) + size(b)) {
            return false;
        }
        let (a, b) = match (a, b) {
            (Value::Bool(false), _) | (_, Value::Bool(false)) => return true,
            (Value::Object(a), Value::Object(b)) => (a, b),
            _ => return false,
        };
        for (one, other) in [(a, b), (b, a)] {
            let other = Value::Object(other.clone());
            let target = one.get("$ref").and_then(Value::as_str).and_then(|r| self.resolve(r, "").ok());
            if target.is_some_and(|(target, _)| self.apart(target, &other, depth + 1)) {
                return true;
            }
            let list = |keyword: &str| one.get(keyword).and_then(Value::as_array).filter(|l| !l.is_empty());
            if list("allOf").is_some_and(|all| all.iter().any(|part| self.apart(part, &other, depth + 1))) {
                return true;
            }
            for keyword in ["anyOf", "oneOf"] {
                if list(keyword).is_some_and(|all| all.iter().all(|part| self.apart(part, &other, depth + 1))) {
                    return true;
                }
            }
        }
        // The grammar of a schema has the types that its keywords imply; the schema itself accepts those that it names.
        let typed = |m: &Schema, implied: bool| -> Vec<String> {
            let types = if m.contains_key("type") || implied { types(m) } else { Vec::new() };
            types.into_iter().map(|t| if t == "integer" { "number" } else { t }.to_owned()).collect()
        };
        let implied = !self.is_open();
        let (ta, tb, named_a, named_b) = (typed(a, implied), typed(b, implied), typed(a, false), typed(b, false));
        let foreign = |made: &[String], taken: &[String]| {
            !made.is_empty() && !taken.is_empty() && !made.iter().any(|t| taken.contains(t))
        };
        if foreign(&ta, &named_b) && foreign(&tb, &named_a) {
            return true;
        }
        let refused = |values: &[Value], by: &[String]| {
            !by.is_empty() && !values.iter().any(|v| by.iter().any(|t| is_type(v, t)))
        };
        match (values(a), values(b)) {
            (Some(va), Some(vb)) => return !va.iter().any(|v| vb.iter().any(|w| same(v, w))),
            (Some(values), None) => return refused(&values, &named_b),
            (None, Some(values)) => return refused(&values, &named_a),
            (None, None) => {}
        }
        let (Some(least_a), Some(least_b)) = (least(a), least(b)) else { return false };
        let (Some(most_a), Some(most_b)) = (most(a), most(b)) else { return false };
        if ta == ["number"] && tb == ["number"] && (least_a > most_b || least_b > most_a) {
            return true;
        }
        if ta != ["object"] || tb != ["object"] {
            return false;
        }
        // A property that both require and that distinguishes them, or that one requires and the other does not accept.
        let property = |m: &Schema, key: &str| m.get("properties").and_then(|p| p.get(key)).cloned();
        let takes = |m: &Schema, key: &str| {
            let others =
                m.get("additionalProperties") != Some(&Value::Bool(false)) || m.contains_key("patternProperties");
            others || property(m, key).is_some()
        };
        let required = |m: &Schema| -> Vec<String> {
            let names = m.get("required").and_then(Value::as_array).into_iter().flatten();
            names.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let (ra, rb) = (required(a), required(b));
        if ra.iter().any(|key| !takes(b, key)) || rb.iter().any(|key| !takes(a, key)) {
            return true;
        }
        let both = ra.iter().filter(|key| rb.contains(key));
        let mut both = both.filter_map(|key| Some((property(a, key)?, property(b, key)?)));
        both.any(|(pa, pb)| self.apart(&pa, &pb, depth + 1))
    }
}

fn least(m: &Schema) -> Option<f64> {
    bound(m, ["minimum", "exclusiveMinimum"], f64::NEG_INFINITY)
}

fn most(m: &Schema) -> Option<f64> {
    bound(m, ["maximum", "exclusiveMaximum"], f64::INFINITY)
}

fn bound(m: &Schema, keys: [&str; 2], none: f64) -> Option<f64> {
    match keys.iter().find_map(|k| m.get(*k)) {
        None => Some(none),
        Some(value) => value.as_f64(),
    }
}
