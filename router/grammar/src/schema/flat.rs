//! Removes combinators from schemas: resolves references, merges `allOf`, expands `anyOf` and `oneOf`.

use serde_json::{Value, json};

use super::constants::excludes_constants;
use super::{Compiler, Schema};
use crate::json_schema::{modern, percent_decoded, size, size_of_map};
use crate::limits::MAX_SCHEMA_WAYS;
use crate::rules::RuleError;
use crate::validate::PartValidator;

impl<'s> Compiler<'s, '_, '_> {
    /// A validator for a part of the schema. None: it refers to definitions that are not available, or its patterns
    /// cost too much.
    pub(super) fn part_validator(&self, part: &Value) -> Option<PartValidator> {
        let mut whole = json!({"allOf": [part]});
        for shared in ["$defs", "definitions"] {
            if let Some(definitions) = self.root.get(shared) {
                whole[shared] = definitions.clone();
            }
        }
        PartValidator::new(&whole)
    }

    /// The target of a reference, with its path.
    pub(super) fn resolve(&self, reference: &str, path: &str) -> Result<(&'s Value, String), RuleError> {
        let unknown = || self.refuse(path, "$ref", &format!("{reference:?} is not a place in this schema"));
        let pointer = reference.strip_prefix('#').ok_or_else(unknown)?;
        let pointer = percent_decoded(pointer);
        if pointer.is_empty() {
            return Ok((self.root, String::new()));
        }
        self.root.pointer(&pointer).map(|v| (v, pointer.clone())).ok_or_else(unknown)
    }

    /// The schema as a union of schemas without combinators.
    pub(super) fn flatten(&mut self, map: &Schema, path: &str) -> Result<Vec<Schema>, RuleError> {
        self.enter(path)?;
        self.pay(size_of_map(map), path)?;
        let out = self.flatten_one(map.clone(), path)?;
        self.depth -= 1;
        Ok(out)
    }

    /// What a merge could not keep separate comes first: then only unions, references and `allOf` can conflict.
    fn flatten_one(&mut self, mut map: Schema, path: &str) -> Result<Vec<Schema>, RuleError> {
        modern(&mut map);
        if self.work.loose {
            // Expanded, each of them may double the schema.
            for keyword in ["not", "if", "dependentRequired", "dependentSchemas", "dependencies"] {
                if map.remove(keyword).is_some() {
                    self.relax(path, keyword);
                }
            }
        }
        if ["if", "not", "dependentSchemas"].iter().any(|k| map.contains_key(*k)) {
            // What these evaluate depends on the value.
            for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
                if map.contains_key(keyword) {
                    self.relax(path, keyword);
                }
            }
        }
        if map.get("not").is_some_and(|not| !excludes_constants(not)) {
            let not = map.remove("not").unwrap_or_default();
            return match self.negated(&not) {
                Some(parts) => self.any_of(map, &parts, &format!("{path}/not")),
                None => {
                    self.relax(path, "not");
                    self.flatten(&map, path)
                }
            };
        }
        if let Some(condition) = map.remove("if") {
            let either = |map: &mut Schema, keyword| map.remove(keyword).unwrap_or(Value::Bool(true));
            let (then, otherwise) = (either(&mut map, "then"), either(&mut map, "else"));
            let holds = json!({"allOf": [condition, then]});
            let fails = match self.negated(&condition) {
                Some(parts) => json!({"allOf": [{"anyOf": parts}, otherwise]}),
                None => {
                    self.relax(path, "if");
                    otherwise
                }
            };
            return self.any_of(map, &[holds, fails], path);
        }
        if let Some(depends) =
            ["dependentRequired", "dependentSchemas", "dependencies"].iter().find_map(|k| map.remove(*k))
        {
            let depends = depends.as_object().cloned().unwrap_or_default();
            let mut all = Vec::new();
            for (name, demand) in depends {
                let with = match demand {
                    Value::Array(mut names) => {
                        names.push(name.clone().into());
                        json!({"required": names})
                    }
                    schema => json!({"allOf": [{"required": [name]}, schema]}),
                };
                all.push(json!({"anyOf": [{"properties": {name: false}}, with]}));
            }
            return self.combine(map, &json!({"allOf": all}), path);
        }
        if let Some(reference) = map.remove("$ref") {
            let reference = reference.as_str().unwrap_or_default().to_owned();
            let (target, at) = self.resolve(&reference, path)?;
            return self.combine(map, target, &at);
        }
        if let Some((keyword, options)) = ["anyOf", "oneOf"].into_iter().find_map(|k| Some((k, map.remove(k)?))) {
            let options = options.as_array().cloned().unwrap_or_default();
            if keyword == "oneOf" && !self.disjoint(&options)? {
                self.relax(path, keyword);
            }
            return self.any_of(map, &options, &format!("{path}/{keyword}"));
        }
        if let Some(all) = map.remove("allOf") {
            let mut parts = all.as_array().cloned().unwrap_or_default().into_iter();
            let Some(first) = parts.next() else { return self.flatten(&map, path) };
            let rest: Vec<Value> = parts.collect();
            if !rest.is_empty() {
                map.insert("allOf".into(), rest.into());
            }
            return self.combine(map, &first, &format!("{path}/allOf"));
        }
        Ok(vec![map])
    }

    fn any_of(&mut self, map: Schema, options: &[Value], path: &str) -> Result<Vec<Schema>, RuleError> {
        let mut all: Vec<Schema> = Vec::new();
        for (i, option) in options.iter().enumerate() {
            for one in self.combine(map.clone(), option, &format!("{path}/{i}"))? {
                self.pay(all.len() as u64, path)?;
                if !all.contains(&one) {
                    all.push(one);
                }
            }
            if all.len() > MAX_SCHEMA_WAYS {
                let (field, what) = (format!("{}{path}", self.field), "the number of ways to satisfy the schema");
                return Err(RuleError::TooLarge { field, what, found: all.len(), limit: MAX_SCHEMA_WAYS });
            }
        }
        Ok(all)
    }

    fn combine(&mut self, base: Schema, other: &Value, path: &str) -> Result<Vec<Schema>, RuleError> {
        self.pay(size(other), path)?;
        match other {
            Value::Bool(true) => self.flatten(&base, path),
            Value::Object(other) => match self.merge(base, other, path) {
                Some(merged) => self.flatten(&merged, path),
                None => Ok(Vec::new()),
            },
            _ => Ok(Vec::new()),
        }
    }
}
