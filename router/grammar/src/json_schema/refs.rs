//! Rewrites references of any draft as JSON pointers into their schema.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use jsonschema::{Draft, uri};
use serde_json::{Map, Value};

use super::draft;
use super::keywords::percent_decoded;
use super::subschemas::{LIST, NAMED, ONE, below};

/// The name of a schema without one.
const ROOT: &str = "json-schema:///";

/// Where identified schemas are, by absolute name.
#[derive(Default)]
struct SchemaLocations {
    pointers: HashMap<String, String>,
    /// Number of schemas with a dynamic anchor of this name.
    dynamic: HashMap<String, usize>,
    /// Before Draft 2019-09, keywords beside a `$ref` are ignored.
    ref_ignores_siblings: bool,
}

/// The schema with the keywords that count, and every local reference as `#` and a JSON pointer.
pub(crate) fn local(root: &Value) -> Cow<'_, Value> {
    let counting = draft::counting(root);
    match rewritten(&counting) {
        Some(local) => Cow::Owned(local),
        None => counting,
    }
}

/// Pointers to the schemas whose `$ref` leads nowhere within the root.
pub(super) fn dangling(root: &Value) -> Vec<String> {
    if !mentions(root, &["$ref"]) {
        return Vec::new();
    }
    let counting = draft::counting(root);
    let places = SchemaLocations::of(&counting);
    let (mut found, mut seen, mut ahead) = (Vec::new(), HashSet::new(), vec![(String::new(), ROOT.to_owned())]);
    while let Some((pointer, base)) = ahead.pop() {
        let Some(Value::Object(map)) = root.pointer(&pointer) else { continue };
        if !seen.insert(pointer.clone()) {
            continue;
        }
        let base = places.base(map, &base);
        ahead.extend(below(map).into_iter().map(|(at, _)| (format!("{pointer}{at}"), base.clone())));
        let Some(reference) = map.get("$ref").and_then(Value::as_str) else { continue };
        let target = places.find(&base, reference).map(|target| percent_decoded(&target[1..]));
        match target.filter(|target| root.pointer(target).is_some_and(|part| part.is_object() || part.is_boolean())) {
            Some(target) => ahead.push((target, base)),
            None => found.push(pointer),
        }
    }
    found
}

fn rewritten(root: &Value) -> Option<Value> {
    const RESOLVED_KEYWORDS: &[&str] =
        &["$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$schema"];
    if !mentions(root, RESOLVED_KEYWORDS) {
        return None;
    }
    let places = SchemaLocations::of(root);
    let mut local = root.clone();
    places.rewrite(&mut local, ROOT);
    Some(local)
}

/// Whether a schema has one of these keywords anywhere.
pub(crate) fn mentions(value: &Value, keys: &[&str]) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(k, v)| keys.contains(&k.as_str()) || mentions(v, keys)),
        Value::Array(items) => items.iter().any(|v| mentions(v, keys)),
        _ => false,
    }
}

impl SchemaLocations {
    fn of(root: &Value) -> Self {
        let ref_ignores_siblings = draft::named(root).is_some_and(|draft| draft < Draft::Draft201909);
        let mut places = SchemaLocations { ref_ignores_siblings, ..SchemaLocations::default() };
        places.collect(root, ROOT, "");
        places
    }

    fn collect(&mut self, schema: &Value, base: &str, pointer: &str) {
        let Value::Object(map) = schema else { return };
        let base = self.base(map, base);
        if let Some(id) = self.id(map) {
            let (address, fragment) = split(&id);
            if !address.is_empty() {
                self.pointers.entry(base.clone()).or_insert_with(|| pointer.to_owned());
            }
            if !fragment.is_empty() {
                self.pointers.entry(format!("{base}#{fragment}")).or_insert_with(|| pointer.to_owned());
            }
        }
        for keyword in ["$anchor", "$dynamicAnchor"] {
            if let Some(anchor) = map.get(keyword).and_then(Value::as_str) {
                self.pointers.entry(format!("{base}#{anchor}")).or_insert_with(|| pointer.to_owned());
                if keyword == "$dynamicAnchor" {
                    *self.dynamic.entry(anchor.to_owned()).or_default() += 1;
                }
            }
        }
        for (at, inner) in below(map) {
            self.collect(inner, &base, &format!("{pointer}{at}"));
        }
    }

    fn id(&self, map: &Map<String, Value>) -> Option<String> {
        // Keywords beside a reference are ignored in the drafts that say so.
        if self.ref_ignores_siblings && map.contains_key("$ref") {
            return None;
        }
        let id = map.get("$id").or_else(|| map.get("id").filter(|_| self.ref_ignores_siblings))?;
        id.as_str().map(str::to_owned)
    }

    fn base(&self, map: &Map<String, Value>, base: &str) -> String {
        match self.id(map) {
            Some(id) if !split(&id).0.is_empty() => join(base, split(&id).0),
            _ => base.to_owned(),
        }
    }

    /// The target of a reference, if it is local.
    fn find(&self, base: &str, reference: &str) -> Option<String> {
        let (address, fragment) = split(reference);
        let whole = if address.is_empty() { base.to_owned() } else { join(base, address) };
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.pointers.get(&format!("{whole}#{fragment}")).map(|p| format!("#{p}"));
        }
        let resource = if whole == ROOT { Some("") } else { self.pointers.get(&whole).map(String::as_str) };
        resource.map(|resource| format!("#{resource}{fragment}"))
    }

    fn rewrite(&self, schema: &mut Value, base: &str) {
        let Value::Object(map) = schema else { return };
        let base = self.base(map, base);
        if let Some(target) = map.get("$ref").and_then(Value::as_str).and_then(|r| self.find(&base, r)) {
            if self.ref_ignores_siblings {
                map.retain(|k, _| k == "$ref" || k == "definitions" || k == "$defs");
            }
            map.insert("$ref".into(), target.into());
        }
        let recursive = map.remove("$recursiveRef");
        for reference in recursive.into_iter().chain(map.get("$dynamicRef").cloned()) {
            let name = split(reference.as_str().unwrap_or_default()).1;
            // With a single target, a reference is not dynamic.
            let many = self.dynamic.get(name).is_some_and(|n| *n > 1);
            let target = reference.as_str().filter(|_| !many).and_then(|r| self.find(&base, r));
            if let Some(target) = target {
                map.remove("$dynamicRef");
                if map.contains_key("$ref") {
                    let all = map.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
                    if let Value::Array(all) = all {
                        all.push(serde_json::json!({"$ref": target}));
                    }
                } else {
                    map.insert("$ref".into(), target.into());
                }
            }
        }
        for (keyword, value) in map.iter_mut() {
            let keyword = keyword.as_str();
            match value {
                Value::Object(_) if ONE.contains(&keyword) => self.rewrite(value, &base),
                Value::Object(named) if NAMED.contains(&keyword) => {
                    named.values_mut().for_each(|schema| self.rewrite(schema, &base));
                }
                Value::Array(list) if LIST.contains(&keyword) => {
                    list.iter_mut().for_each(|schema| self.rewrite(schema, &base));
                }
                _ => {}
            }
        }
    }
}

fn split(reference: &str) -> (&str, &str) {
    reference.split_once('#').unwrap_or((reference, ""))
}

fn join(base: &str, address: &str) -> String {
    let whole = uri::from_str(base).and_then(|base| uri::resolve_against(&base.borrow(), address));
    whole.map_or_else(|_| address.to_owned(), |whole| whole.as_str().to_owned())
}
