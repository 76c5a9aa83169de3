//! Where the schemas of a value's parts are, so that each part is read by its own. It does not validate.

use serde_json::Value;

use super::argument_types::Types;
use super::names::matches;

/// Limit of followed references, and of nested alternatives.
const MAX_DEPTH: usize = 16;
/// Limit of alternatives.
const MAX_WAYS: usize = 32;

/// Pointers to the schemas that all apply to one value. None: any value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SchemaPlace(Vec<String>);

impl SchemaPlace {
    pub fn pointers(&self) -> &[String] {
        &self.0
    }
}

/// The schemas of a tool's arguments, within their root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchemaPlaces<'s>(pub &'s Value);

impl SchemaPlaces<'_> {
    /// The places of an argument, one for each alternative of the root. Empty: no schema describes it.
    pub fn argument(&self, name: &str) -> Vec<SchemaPlace> {
        let root = SchemaPlace(vec![String::new()]);
        let mut all: Vec<SchemaPlace> = self.ways(&root).iter().filter_map(|way| self.member(way, name)).collect();
        all.dedup();
        all
    }

    /// The alternatives of a place: without references, and with one of each `anyOf` and `oneOf`.
    pub fn ways(&self, place: &SchemaPlace) -> Vec<SchemaPlace> {
        let each = place.0.iter().map(|pointer| self.choices(pointer, MAX_DEPTH));
        each.fold(vec![Vec::new()], combined).into_iter().map(SchemaPlace).collect()
    }

    /// The sets of schemas, one of which applies where this one does.
    fn choices(&self, pointer: &str, depth: usize) -> Vec<Vec<String>> {
        let own = vec![vec![pointer.to_owned()]];
        let Some(schema) = self.0.pointer(pointer).filter(|_| depth > 0) else { return own };
        let parts = |keyword: &str| {
            let count = schema.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
            (0..count).map(|i| format!("{pointer}/{keyword}/{i}")).collect::<Vec<_>>()
        };
        let all = target(schema).map(str::to_owned).into_iter().chain(parts("allOf"));
        let all = all.map(|part| self.choices(&part, depth - 1));
        let one_of = |keyword: &str| parts(keyword).iter().flat_map(|part| self.choices(part, depth - 1)).collect();
        let unions: [Vec<Vec<String>>; 2] = ["anyOf", "oneOf"].map(one_of);
        all.chain(unions.into_iter().filter(|union| !union.is_empty())).fold(own, combined)
    }

    /// The types that a value at this place may have.
    pub fn types(&self, place: &SchemaPlace) -> Types {
        let all = place.0.iter().filter_map(|pointer| self.0.pointer(pointer));
        all.fold(Types::ANY, |types, schema| types.and(Types::of_schema(self.0, schema)))
    }

    /// The place of a member, in a place without alternatives. None: no schema describes it.
    pub fn member(&self, place: &SchemaPlace, key: &str) -> Option<SchemaPlace> {
        let escaped = key.replace('~', "~0").replace('/', "~1");
        self.below(place, |schema, pointer| {
            if schema.get("properties").is_some_and(|properties| properties.get(key).is_some()) {
                return Some(format!("{pointer}/properties/{escaped}"));
            }
            let patterns = schema.get("patternProperties").and_then(Value::as_object);
            if let Some((pattern, _)) = patterns.into_iter().flatten().find(|(pattern, _)| matches(pattern, key)) {
                let pattern = pattern.replace('~', "~0").replace('/', "~1");
                return Some(format!("{pointer}/patternProperties/{pattern}"));
            }
            schema.get("additionalProperties")?.is_object().then(|| format!("{pointer}/additionalProperties"))
        })
    }

    /// The same of a list's item.
    pub fn item(&self, place: &SchemaPlace, index: usize) -> Option<SchemaPlace> {
        self.below(place, |schema, pointer| {
            let listed = |key: &str| schema.get(key).and_then(|items| items.get(index)).is_some();
            let one = |key: &str| schema.get(key).is_some_and(Value::is_object).then(|| format!("{pointer}/{key}"));
            match schema.get("items") {
                Some(Value::Array(_)) if listed("items") => Some(format!("{pointer}/items/{index}")),
                Some(Value::Array(_)) => one("additionalItems"),
                _ if listed("prefixItems") => Some(format!("{pointer}/prefixItems/{index}")),
                _ => one("items"),
            }
        })
    }

    fn below(&self, place: &SchemaPlace, find: impl Fn(&Value, &str) -> Option<String>) -> Option<SchemaPlace> {
        let found: Vec<_> = place.0.iter().filter_map(|pointer| find(self.0.pointer(pointer)?, pointer)).collect();
        (!found.is_empty()).then_some(SchemaPlace(found))
    }
}

/// Each of the ways with each of the choices.
fn combined(ways: Vec<Vec<String>>, choices: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let each = ways.iter().flat_map(|way| choices.iter().map(|choice| [&way[..], &choice[..]].concat()));
    each.take(MAX_WAYS).collect()
}

fn target(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix('#').filter(|pointer| pointer.is_empty() || pointer.starts_with('/'))
}
