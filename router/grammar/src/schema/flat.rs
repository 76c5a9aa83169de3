//! Schemas without combinators: references resolved, `allOf` merged, `anyOf` and `oneOf` spelled out.

use serde_json::{Value, json};

use super::negate::{excluded, excludes_constants};
use super::{Compiler, Schema};
use crate::rules::RuleError;

/// Keywords that say nothing about values, or that are read where they matter.
pub(super) fn is_annotation(keyword: &str) -> bool {
    const CONSTRAINTS: &[&str] = &[
        "$ref",
        "$dynamicRef",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "const",
        "enum",
        "type",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    ];
    !CONSTRAINTS.contains(&keyword)
}

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
    let rest = Value::Object(rest);
    match jsonschema::draft202012::new(&rest) {
        Ok(validator) => Some(listed.into_iter().filter(|v| validator.is_valid(v)).collect()),
        Err(_) => Some(listed),
    }
}

pub(super) fn is_type(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(n) => {
            kind == "number"
                || (kind == "integer" && (n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|f| f.fract() == 0.0)))
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}

/// The types that a schema names, or that its other keywords imply; empty for any.
pub(super) fn types(flat: &Schema) -> Vec<&str> {
    match flat.get("type") {
        Some(Value::String(one)) => return vec![one],
        Some(Value::Array(many)) => {
            let mut all: Vec<_> = many.iter().filter_map(Value::as_str).collect();
            if all.contains(&"number") {
                all.retain(|t| *t != "integer");
            }
            return all;
        }
        _ => {}
    }
    const IMPLIED: &[(&str, &[&str])] = &[
        (
            "object",
            &[
                "properties",
                "required",
                "additionalProperties",
                "patternProperties",
                "propertyNames",
                "minProperties",
                "maxProperties",
                "unevaluatedProperties",
            ],
        ),
        ("array", &["items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"]),
        ("string", &["minLength", "maxLength", "pattern", "format"]),
        ("number", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    ];
    IMPLIED.iter().filter(|(_, keys)| keys.iter().any(|k| flat.contains_key(*k))).map(|(t, _)| *t).collect()
}

impl<'s> Compiler<'s, '_, '_> {
    /// What a reference points at, with its path.
    pub(super) fn resolve(&self, reference: &str, path: &str) -> Result<(&'s Value, String), RuleError> {
        let unknown = || self.refuse(path, "$ref", &format!("{reference:?} is not a place in this schema"));
        let pointer = reference.strip_prefix('#').ok_or_else(unknown)?;
        let pointer = percent_decoded(pointer);
        if pointer.is_empty() {
            return Ok((self.root, String::new()));
        }
        self.root.pointer(&pointer).map(|v| (v, pointer.clone())).ok_or_else(unknown)
    }

    /// Whether no value can satisfy two of the schemas, as far as types, constants and required properties tell.
    pub(super) fn disjoint(&self, options: &[Value]) -> bool {
        options.iter().enumerate().all(|(i, a)| options[i + 1..].iter().all(|b| self.apart(a, b, 0)))
    }

    fn apart(&self, a: &Value, b: &Value, depth: usize) -> bool {
        const DEEP: usize = 8;
        if depth > DEEP {
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
        let typed = |m: &Schema| -> Vec<String> {
            let types = if self.is_open() && !m.contains_key("type") { Vec::new() } else { types(m) };
            types.into_iter().map(|t| if t == "integer" { "number" } else { t }.to_owned()).collect()
        };
        let (ta, tb) = (typed(a), typed(b));
        if !ta.is_empty() && !tb.is_empty() && !ta.iter().any(|t| tb.contains(t)) {
            return true;
        }
        match (values(a), values(b)) {
            (Some(va), Some(vb)) => return !va.iter().any(|v| vb.contains(v)),
            (Some(values), None) => return values.iter().all(|v| !tb.is_empty() && !tb.iter().any(|t| is_type(v, t))),
            (None, Some(values)) => return values.iter().all(|v| !ta.is_empty() && !ta.iter().any(|t| is_type(v, t))),
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
        // A property that both require and that tells them apart, or that one requires and the other does not take.
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

    /// The schema as a union of schemas without combinators.
    pub(super) fn flatten(&mut self, map: &Schema, path: &str) -> Result<Vec<Schema>, RuleError> {
        self.enter(path)?;
        let out = self.flatten_one(map.clone(), path)?;
        self.depth -= 1;
        Ok(out)
    }

    /// What a merge could not keep apart goes first: then only unions, references and `allOf` can clash in one.
    fn flatten_one(&mut self, mut map: Schema, path: &str) -> Result<Vec<Schema>, RuleError> {
        modern(&mut map);
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
            if keyword == "oneOf" && !self.disjoint(&options) {
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
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        Ok(all)
    }

    fn combine(&mut self, base: Schema, other: &Value, path: &str) -> Result<Vec<Schema>, RuleError> {
        match other {
            Value::Bool(true) => self.flatten(&base, path),
            Value::Object(other) => match self.merge(base, other, path) {
                Some(merged) => self.flatten(&merged, path),
                None => Ok(Vec::new()),
            },
            _ => Ok(Vec::new()),
        }
    }

    /// Both schemas at once; none if they contradict.
    fn merge(&mut self, mut a: Schema, b: &Schema, path: &str) -> Option<Schema> {
        let mut b = b.clone();
        modern(&mut b);
        self.localise(&mut b, path);
        join_items(&mut a, &mut b);
        self.close_off(&mut a, &mut b, path);
        for (key, theirs) in &b {
            let Some(ours) = a.get(key).cloned() else {
                a.insert(key.clone(), theirs.clone());
                continue;
            };
            if ours == *theirs || is_annotation(key) {
                continue;
            }
            let merged = match key.as_str() {
                "properties" => {
                    let (mut ours, theirs) = (ours.as_object()?.clone(), theirs.as_object()?);
                    for (name, schema) in theirs {
                        let both = match ours.get(name) {
                            Some(mine) if mine != schema => json!({"allOf": [mine, schema]}),
                            _ => schema.clone(),
                        };
                        ours.insert(name.clone(), both);
                    }
                    Value::Object(ours)
                }
                "required" => {
                    let mut ours = ours.as_array()?.clone();
                    let more: Vec<_> = theirs.as_array()?.iter().filter(|v| !ours.contains(v)).cloned().collect();
                    ours.extend(more);
                    Value::Array(ours)
                }
                "type" => {
                    let list = |v: &Value| match v {
                        Value::Array(many) => many.clone(),
                        one => vec![one.clone()],
                    };
                    let (ours, theirs) = (list(&ours), list(theirs));
                    let has =
                        |l: &[Value], t: &Value| l.contains(t) || (*t == "integer" && l.contains(&"number".into()));
                    let mut both: Vec<Value> = ours.iter().filter(|t| has(&theirs, t)).cloned().collect();
                    both.extend(
                        theirs.iter().filter(|t| has(&ours, t) && !both.contains(t)).cloned().collect::<Vec<_>>(),
                    );
                    if both.is_empty() {
                        return None;
                    }
                    Value::Array(both)
                }
                "patternProperties" => {
                    let (mut ours, theirs) = (ours.as_object()?.clone(), theirs.as_object()?);
                    for (pattern, schema) in theirs {
                        let both = match ours.get(pattern) {
                            Some(mine) if mine != schema => json!({"allOf": [mine, schema]}),
                            _ => schema.clone(),
                        };
                        ours.insert(pattern.clone(), both);
                    }
                    Value::Object(ours)
                }
                "not" if excludes_constants(&ours) && excludes_constants(theirs) => {
                    let mut all = excluded(&a);
                    all.extend(excluded(&b));
                    json!({"enum": all})
                }
                "enum" => {
                    let theirs = theirs.as_array()?;
                    Value::Array(ours.as_array()?.iter().filter(|v| theirs.contains(v)).cloned().collect())
                }
                "const" => return None,
                // What only excludes constants waits, so that this ends.
                "not" if excludes_constants(&ours) => {
                    let mut all = a.get("allOf").and_then(Value::as_array).cloned().unwrap_or_default();
                    all.push(json!({"not": ours}));
                    a.insert("allOf".into(), all.into());
                    theirs.clone()
                }
                "anyOf" | "oneOf" | "$ref" | "allOf" => {
                    let mut all = a.get("allOf").and_then(Value::as_array).cloned().unwrap_or_default();
                    if key == "allOf" {
                        all.extend(theirs.as_array()?.clone());
                    } else {
                        all.push(json!({ key: theirs }));
                    }
                    a.insert("allOf".into(), all.into());
                    continue;
                }
                "items" | "additionalProperties" | "propertyNames" => json!({"allOf": [ours, theirs]}),
                "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties" => {
                    if ours.as_f64() >= theirs.as_f64() { ours } else { theirs.clone() }
                }
                "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties" => {
                    if ours.as_f64() <= theirs.as_f64() { ours } else { theirs.clone() }
                }
                "uniqueItems" => Value::Bool(true),
                other => {
                    self.relax(path, other);
                    ours
                }
            };
            a.insert(key.clone(), merged);
        }
        possible(&a).then_some(a)
    }

    /// What a schema that is merged into another says of properties and items that only it knows.
    fn localise(&mut self, b: &mut Schema, path: &str) {
        const APPLICATORS: &[&str] =
            &["$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "patternProperties"];
        for (keyword, plain) in [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")] {
            let Some(schema) = b.remove(keyword) else { continue };
            if APPLICATORS.iter().any(|k| b.contains_key(*k)) {
                self.relax(path, keyword);
            } else {
                b.entry(plain).or_insert(schema);
            }
        }
    }

    /// What `additionalProperties` of one does to the properties of the other.
    fn close_off(&mut self, a: &mut Schema, b: &mut Schema, path: &str) {
        let patterns = [&*a, &*b].map(|m| m.get("patternProperties").cloned());
        let clear = patterns[0] == patterns[1];
        for forward in [true, false] {
            let (from, to) = if forward { (&*a, &mut *b) } else { (&*b, &mut *a) };
            let Some(rest) = from.get("additionalProperties").filter(|r| **r != Value::Bool(true)).cloned() else {
                continue;
            };
            if !clear {
                self.relax(path, "additionalProperties");
            }
            let named = from.get("properties").and_then(Value::as_object);
            let known: Vec<String> = named.into_iter().flatten().map(|(k, _)| k.clone()).collect();
            let own: Vec<String> = patterns[usize::from(!forward)]
                .iter()
                .filter_map(Value::as_object)
                .flatten()
                .map(|(k, _)| k.clone())
                .collect();
            let Some(theirs) = to.get_mut("properties").and_then(Value::as_object_mut) else { continue };
            for (name, schema) in theirs.iter_mut().filter(|(name, _)| !known.contains(name)) {
                if !own.iter().any(|pattern| matches(pattern, name)) {
                    *schema = if rest == Value::Bool(false) { rest.clone() } else { json!({"allOf": [schema, rest]}) };
                }
            }
        }
    }
}

/// Keywords of older drafts as today's.
fn modern(map: &mut Schema) {
    if map.get("items").is_some_and(Value::is_array) {
        let prefix = map.remove("items").unwrap_or_default();
        map.insert("prefixItems".into(), prefix);
        if let Some(rest) = map.remove("additionalItems") {
            map.insert("items".into(), rest);
        }
    }
    map.remove("additionalItems");
    for (plain, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        match map.get(exclusive) {
            Some(Value::Bool(true)) => {
                let Some(limit) = map.remove(plain) else { continue };
                map.insert(exclusive.into(), limit);
            }
            Some(Value::Bool(false)) => drop(map.remove(exclusive)),
            _ => {}
        }
    }
    if !map.contains_key("if") {
        map.remove("then");
        map.remove("else");
    }
}

/// Items by place, where one of two schemas that are merged has them: all others are beyond the places of its own.
fn join_items(a: &mut Schema, b: &mut Schema) {
    let places = |m: &Schema| m.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    let n = places(a).max(places(b));
    if n == 0 {
        return;
    }
    let at = |m: &Schema, i: usize| {
        let place = m.get("prefixItems").and_then(|p| p.get(i));
        place.or_else(|| m.get("items")).cloned().unwrap_or(Value::Bool(true))
    };
    let both = |i: usize| match (at(a, i), at(b, i)) {
        (Value::Bool(true), one) | (one, Value::Bool(true)) => one,
        (one, other) if one == other => one,
        (one, other) => json!({"allOf": [one, other]}),
    };
    let prefix: Vec<Value> = (0..n).map(both).collect();
    b.remove("prefixItems");
    a.insert("prefixItems".into(), prefix.into());
}

/// Whether a pattern is found in a text.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let validator = jsonschema::draft202012::new(&json!({"pattern": pattern}));
    validator.is_ok_and(|v| v.is_valid(&text.into()))
}

/// Not if a property that has to be there can have no value, as far as constants tell.
fn possible(flat: &Schema) -> bool {
    let required = flat.get("required").and_then(Value::as_array);
    let properties = flat.get("properties").and_then(Value::as_object);
    if flat.get("type") != Some(&"object".into()) {
        return true;
    }
    !required.into_iter().flatten().filter_map(Value::as_str).any(|name| {
        let schema = properties.and_then(|p| p.get(name));
        schema == Some(&Value::Bool(false)) || schema.is_some_and(|s| constants_within(s).is_some_and(|v| v.is_empty()))
    })
}

/// The constants that a schema and what it is combined with leave.
fn constants_within(schema: &Value) -> Option<Vec<Value>> {
    let map = schema.as_object()?;
    let parts = map.get("allOf").and_then(Value::as_array).into_iter().flatten();
    let own = if map.contains_key("const") || map.contains_key("enum") { values(map) } else { None };
    let mut left = own;
    let mut banned = excluded(map);
    for part in parts {
        match constants_within(part) {
            Some(theirs) => {
                left = Some(match left {
                    Some(ours) => ours.into_iter().filter(|v| theirs.contains(v)).collect(),
                    None => theirs,
                });
            }
            None => banned.extend(part.as_object().map(excluded).unwrap_or_default()),
        }
    }
    left.map(|left| left.into_iter().filter(|v| !banned.contains(v)).collect())
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

fn percent_decoded(pointer: &str) -> String {
    let mut out = Vec::new();
    let mut rest = pointer.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
