//! Grammars of objects.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::members::{Layout, MemberRule};
use super::{Compiler, Schema};
use crate::json_schema::{count, matches, steps};
use crate::limits::{MAX_COMPILE_WORK, MAX_MAP_MEMBERS, MAX_ORDERED_PROPERTIES, MAX_PATTERNS, MAX_UNDECLARED_MEMBERS};
use crate::rules::RuleError;

/// The members of an object that its schema names, and all names that it uses.
type Declared = (Vec<MemberRule>, Vec<String>);

impl Compiler<'_, '_, '_> {
    pub(super) fn object(&mut self, flat: &Schema, path: &str) -> Result<Option<String>, RuleError> {
        let patterns = |flat: &Schema| flat.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
        if patterns(flat) > MAX_PATTERNS {
            self.relax_costly(path, "patternProperties");
            let mut flat = flat.clone();
            flat.remove("patternProperties");
            flat.insert("additionalProperties".into(), true.into());
            return self.object(&flat, path);
        }
        let Some((members, names)) = self.members(flat, path)? else { return Ok(None) };
        if members.len() > MAX_ORDERED_PROPERTIES {
            self.relax_costly(path, "properties");
            return Ok(Some(self.any_object()));
        }
        let required = members.iter().filter(|m| m.required).count();
        let (min, max) =
            (count(flat, "minProperties").unwrap_or(0), count(flat, "maxProperties").unwrap_or(usize::MAX));
        let narrow = (!self.is_open() || self.work.closes)
            && (flat.contains_key("properties") || flat.contains_key("patternProperties"));
        let rest = flat.get("additionalProperties").or_else(|| flat.get("unevaluatedProperties"));
        self.work.narrowed += u64::from(narrow && rest.is_none() && !self.is_open());
        let rest = rest.cloned().unwrap_or(Value::Bool(!narrow));
        let other = if rest == Value::Bool(false) && !flat.contains_key("patternProperties") {
            None
        } else if names.is_empty() && min == 0 && max == usize::MAX && rest == Value::Bool(true) && is_free(flat) {
            return Ok(Some(self.any_object()));
        } else {
            self.others(flat, &rest, &names, &format!("{path}/additionalProperties"))?
        };
        if min > members.len() && other.is_none() || required > max {
            return Ok(None);
        }
        // An undeclared name may occur twice, and counts once.
        let counted = other.is_none() || members.is_empty();
        let (fewest, most) = (other.is_none() || (counted && min <= 1), counted);
        for (keyword, set) in
            [("minProperties", min > required && !fewest), ("maxProperties", max < usize::MAX && !most)]
        {
            if set {
                self.relax(path, keyword);
            }
        }
        let (open, close, comma) = (self.open(), self.close(), self.comma());
        let min = if counted { min } else { 0 };
        let max = if most { max } else { usize::MAX };
        let asked = ["additionalProperties", "unevaluatedProperties", "patternProperties"];
        let others = if asked.iter().any(|k| flat.contains_key(*k)) { MAX_MAP_MEMBERS } else { MAX_UNDECLARED_MEMBERS };
        let others = others.max(min.min(MAX_MAP_MEMBERS));
        let in_order = self.work.in_order && min == 0 && max == usize::MAX;
        let inner = self.sequence(members, Layout { comma, close, min, max, other, others, in_order });
        Ok(Some(self.w().rule(&format!("{open} {inner}"))))
    }

    /// The declared properties that can be satisfied. None: a required one cannot.
    fn members(&mut self, flat: &Schema, path: &str) -> Result<Option<Declared>, RuleError> {
        let patterns = flat.get("patternProperties").and_then(Value::as_object);
        let work = patterns.into_iter().flatten().map(|(pattern, _)| steps(pattern)).fold(0, u64::saturating_add);
        self.work.budget.spend(work)?;
        if self.work.budget.left() == 0 {
            return Err(self.too_large(
                path,
                "the work of compiling the patterns of its properties",
                MAX_COMPILE_WORK as usize,
            ));
        }
        let allowed = flat.get("propertyNames").map(|names| self.part_validator(names));
        if matches!(allowed, Some(None)) {
            self.relax(path, "propertyNames");
        }
        let allowed = allowed.flatten();
        let mut members = Vec::new();
        let mut names = Vec::new();
        for (name, schema, required) in declared(flat) {
            names.push(name.clone());
            let schema = with_patterns(flat, &name, schema);
            let allowed = allowed.as_ref().is_none_or(|names| names.is_valid(&name.as_str().into()));
            let path = format!("{path}/properties/{name}");
            if !self.writes(&name) {
                if required {
                    return Err(self.refuse(&path, "properties", "the model's tool format cannot write this name"));
                }
                self.relax(&path, "properties");
                continue;
            }
            let value = if allowed { self.value(&schema, &path)? } else { None };
            match value {
                Some(value) => members.push(MemberRule { rule: self.member(&name, &value), required }),
                None if required => return Ok(None),
                None => {}
            }
        }
        Ok(Some((members, names)))
    }
}

/// The schema of a property, with those of the patterns that its name matches.
pub(super) fn with_patterns<'f>(flat: &'f Schema, name: &str, schema: &'f Value) -> Cow<'f, Value> {
    let patterns = flat.get("patternProperties").and_then(Value::as_object);
    let mut all = vec![schema];
    all.extend(patterns.into_iter().flatten().filter(|(p, _)| matches(p, name)).map(|(_, schema)| schema));
    match all.as_slice() {
        [one] => Cow::Borrowed(one),
        many => Cow::Owned(json!({"allOf": many})),
    }
}

/// Whether an object's schema does not constrain undeclared names.
fn is_free(flat: &Schema) -> bool {
    !["patternProperties", "propertyNames"].iter().any(|k| flat.contains_key(*k))
}

/// The properties of an object: declared and required ones.
pub(super) fn declared(flat: &Schema) -> Vec<(String, &Value, bool)> {
    const ANY: &Value = &Value::Bool(true);
    let required: Vec<&str> =
        flat.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = flat.get("properties").and_then(Value::as_object);
    let patterns = flat.get("patternProperties").and_then(Value::as_object);
    let rest = flat.get("additionalProperties").or_else(|| flat.get("unevaluatedProperties")).unwrap_or(ANY);
    let other = |name: &str| if patterns.into_iter().flatten().any(|(p, _)| matches(p, name)) { ANY } else { rest };
    let named = properties.into_iter().flatten().map(|(k, v)| (k.clone(), v, required.contains(&k.as_str())));
    let unnamed = required.iter().filter(|r| !properties.is_some_and(|p| p.contains_key(**r)));
    let mut all: Vec<_> = named.chain(unnamed.map(|r| ((*r).to_owned(), other(r), true))).collect();
    let mut seen = std::collections::HashSet::new();
    all.retain(|(name, ..)| seen.insert(name.clone()));
    all
}
