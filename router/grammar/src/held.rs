//! Which values of a call are validated before they go out, because the grammar does not enforce all of their schema.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::json_schema::{local, percent_decoded};
use crate::rules::{Cause, Relaxation};

/// The keywords whose schemas apply to other values than the object's: each of these values is held by itself.
const STEPS: &[&str] = &["properties", "additionalProperties", "prefixItems", "items"];

/// The keywords that hold schemas for others to refer to.
const STORES: &[&str] = &["$defs", "definitions"];

/// The parts of a tool's schema that the grammar does not enforce.
#[derive(Debug)]
pub(crate) struct HeldSchemas {
    schema: Value,
    /// Pointers to the schemas with a relaxed keyword.
    relaxed: HashSet<String>,
    /// Pointers to everything from which one of these is reached, downwards or by reference.
    above: HashSet<String>,
}

/// A piece of arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldPart {
    /// What the grammar enforces completely.
    Text(String),
    /// A whole value that the schemas at these pointers must accept.
    Value { text: String, schemas: Vec<String> },
}

/// How much of a call's arguments is held until it is validated.
#[derive(Debug)]
pub enum Held {
    Nothing,
    Whole,
    Values(HeldValues),
}

impl HeldSchemas {
    /// None: nothing is relaxed.
    pub fn new(schema: &Value, relaxations: &[&Relaxation]) -> Option<Self> {
        let relaxations = relaxations.iter().filter(|relaxation| relaxation.cause != Cause::Mended);
        let schema = local(schema).into_owned();
        let relaxed: HashSet<String> = relaxations.map(|relaxation| nearest(&schema, &relaxation.path)).collect();
        if relaxed.is_empty() {
            return None;
        }
        let above = above(&schema, &relaxed);
        Some(Self { schema, relaxed, above })
    }

    pub fn held(self: &Arc<Self>) -> Held {
        let root = vec![String::new()];
        if self.holds(&root) { Held::Whole } else { Held::Values(HeldValues::new(self.clone())) }
    }

    /// The schema to which the pointers belong.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Whether a value to which these schemas apply is held as a whole.
    fn holds(&self, pointers: &[String]) -> bool {
        let Some(all) = self.conjuncts(pointers) else { return true };
        all.iter().any(|(pointer, map)| {
            // Which names are additional depends on the patterns.
            let by_pattern = map.contains_key("patternProperties");
            let apart = |key: &str| STEPS.contains(&key) && !(by_pattern && key == "additionalProperties");
            let conjunctive = |key: &str| key == "allOf" || STORES.contains(&key) || apart(key);
            let below = |key: &String| self.above.contains(&below(pointer, key));
            self.relaxed.contains(pointer) || map.keys().any(|key| !conjunctive(key) && below(key))
        })
    }

    /// The schemas that apply to the member of an object.
    fn member(&self, pointers: &[String], key: &str) -> Vec<String> {
        self.stepped(pointers, |pointer, map| {
            let declared = map.get("properties").and_then(Value::as_object).is_some_and(|all| all.contains_key(key));
            if declared { below(&below(pointer, "properties"), key) } else { below(pointer, "additionalProperties") }
        })
    }

    /// The schemas that apply to the item of a list.
    fn item(&self, pointers: &[String], index: usize) -> Vec<String> {
        self.stepped(pointers, |pointer, map| {
            let prefix = map.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            if index < prefix {
                below(&below(pointer, "prefixItems"), &index.to_string())
            } else {
                below(pointer, "items")
            }
        })
    }

    fn stepped(&self, pointers: &[String], step: impl Fn(&str, &Map<String, Value>) -> String) -> Vec<String> {
        let all = self.conjuncts(pointers).unwrap_or_default();
        let mut next: Vec<String> = all.iter().map(|(pointer, map)| step(pointer, map)).collect();
        next.retain(|pointer| self.above.contains(pointer));
        next
    }

    /// The schemas, with those that they refer to and those of `allOf`. None: one is not in the document.
    fn conjuncts(&self, pointers: &[String]) -> Option<Vec<(String, &Map<String, Value>)>> {
        let mut all: Vec<(String, &Map<String, Value>)> = Vec::new();
        let mut ahead: Vec<String> = pointers.to_vec();
        while let Some(pointer) = ahead.pop() {
            if all.iter().any(|(known, _)| *known == pointer) {
                continue;
            }
            // `true` and `false` have no keywords.
            let Value::Object(map) = self.schema.pointer(&pointer)? else { continue };
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                ahead.push(target(reference)?);
            }
            let parts = map.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
            ahead.extend((0..parts).map(|index| below(&below(&pointer, "allOf"), &index.to_string())));
            all.push((pointer, map));
        }
        Some(all)
    }
}

/// The pointer to the innermost part of the schema that holds the path: merged schemas have paths of their own.
fn nearest(schema: &Value, path: &str) -> String {
    let mut path = path;
    while !schema.pointer(path).is_some_and(Value::is_object) {
        path = path.rsplit_once('/').map_or("", |(outer, _)| outer);
        if path.is_empty() {
            break;
        }
    }
    path.to_owned()
}

/// Pointers to everything from which one of `relaxed` is reached.
fn above(schema: &Value, relaxed: &HashSet<String>) -> HashSet<String> {
    let mut references: HashMap<String, Vec<String>> = HashMap::new();
    let mut ahead = vec![(String::new(), schema)];
    while let Some((pointer, value)) = ahead.pop() {
        match value {
            Value::Object(map) => {
                if let Some(target) = map.get("$ref").and_then(Value::as_str).and_then(target) {
                    references.entry(target).or_default().push(pointer.clone());
                }
                ahead.extend(map.iter().map(|(key, value)| (below(&pointer, key), value)));
            }
            Value::Array(all) => {
                ahead.extend(all.iter().enumerate().map(|(index, value)| (below(&pointer, &index.to_string()), value)));
            }
            _ => {}
        }
    }
    let mut found = HashSet::new();
    let mut ahead: Vec<String> = relaxed.iter().cloned().collect();
    while let Some(pointer) = ahead.pop() {
        if found.contains(&pointer) {
            continue;
        }
        ahead.extend(references.get(&pointer).into_iter().flatten().cloned());
        ahead.extend(pointer.rsplit_once('/').map(|(outer, _)| outer.to_owned()));
        found.insert(pointer);
    }
    found
}

fn target(reference: &str) -> Option<String> {
    reference.strip_prefix('#').map(percent_decoded).filter(|pointer| pointer.is_empty() || pointer.starts_with('/'))
}

fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Cuts arguments into the values that are held and the text around them.
#[derive(Debug)]
pub struct HeldValues {
    plan: Arc<HeldSchemas>,
    open: Vec<Container>,
    place: Place,
    /// The schemas of the next value, as far as they matter.
    schemas: Vec<String>,
    held: Option<HeldValue>,
}

/// An object or a list that has not ended.
#[derive(Debug)]
struct Container {
    schemas: Vec<String>,
    /// None: an object.
    index: Option<usize>,
    awaits_name: bool,
}

#[derive(Debug)]
enum Place {
    Between,
    /// In a number or a literal.
    Scalar,
    /// In a string, or in the name of a member, of which this is the text so far.
    Quoted {
        escaped: bool,
        name: Option<String>,
    },
}

#[derive(Debug)]
struct HeldValue {
    text: String,
    schemas: Vec<String>,
    /// How many containers are around it.
    depth: usize,
}

/// A piece of arguments, and what has become of it so far.
struct Pushed<'a> {
    text: &'a str,
    /// Where the rest begins that no part holds.
    rest: usize,
    parts: Vec<HeldPart>,
}

impl HeldValues {
    fn new(plan: Arc<HeldSchemas>) -> Self {
        Self { plan, open: Vec::new(), place: Place::Between, schemas: vec![String::new()], held: None }
    }

    /// Reads more of the arguments. A held value is returned at its end.
    pub fn push(&mut self, text: &str) -> Vec<HeldPart> {
        let mut pushed = Pushed { text, rest: 0, parts: Vec::new() };
        for (at, character) in text.char_indices() {
            self.read(character, at, &mut pushed);
        }
        match &mut self.held {
            Some(held) => held.text.push_str(&text[pushed.rest..]),
            None => pushed.pass(text.len()),
        }
        pushed.parts
    }

    fn read(&mut self, character: char, at: usize, pushed: &mut Pushed<'_>) {
        match &mut self.place {
            Place::Quoted { escaped: false, name } if character == '"' => {
                let name = name.take();
                self.place = Place::Between;
                match name {
                    Some(name) => self.named(&name),
                    None => self.end_value(at + 1, pushed),
                }
                return;
            }
            Place::Quoted { escaped, name } => {
                *escaped = !*escaped && character == '\\';
                name.iter_mut().for_each(|name| name.push(character));
                return;
            }
            Place::Scalar if !(matches!(character, ',' | ']' | '}') || character.is_whitespace()) => return,
            Place::Scalar => {
                self.place = Place::Between;
                self.end_value(at, pushed);
            }
            Place::Between => {}
        }
        match character {
            '{' | '[' => self.begin_container(character == '[', at, pushed),
            '}' | ']' => {
                self.open.pop();
                self.end_value(at + 1, pushed);
            }
            ',' => self.pass_comma(),
            '"' if self.open.last().is_some_and(|container| container.awaits_name) => {
                self.place = Place::Quoted { escaped: false, name: Some(String::new()) };
            }
            '"' => {
                self.begin_value(at, pushed);
                self.place = Place::Quoted { escaped: false, name: None };
            }
            ':' => {}
            blank if blank.is_whitespace() => {}
            _ => {
                self.begin_value(at, pushed);
                self.place = Place::Scalar;
            }
        }
    }

    fn begin_container(&mut self, list: bool, at: usize, pushed: &mut Pushed<'_>) {
        self.begin_value(at, pushed);
        let schemas = std::mem::take(&mut self.schemas);
        if list {
            self.schemas = self.plan.item(&schemas, 0);
        }
        self.open.push(Container { schemas, index: list.then_some(0), awaits_name: !list });
    }

    fn pass_comma(&mut self) {
        match self.open.last_mut() {
            Some(Container { schemas, index: Some(index), .. }) => {
                *index += 1;
                self.schemas = self.plan.item(schemas, *index);
            }
            Some(object) => object.awaits_name = true,
            None => {}
        }
    }

    /// `name`: as it is written between its quotes.
    fn named(&mut self, name: &str) {
        let Some(object) = self.open.last_mut() else { return };
        object.awaits_name = false;
        let name = serde_json::from_str::<String>(&format!("\"{name}\"")).unwrap_or_else(|_| name.to_owned());
        self.schemas = self.plan.member(&object.schemas, &name);
    }

    fn begin_value(&mut self, at: usize, pushed: &mut Pushed<'_>) {
        if self.held.is_none() && !self.schemas.is_empty() && self.plan.holds(&self.schemas) {
            pushed.pass(at);
            let schemas = std::mem::take(&mut self.schemas);
            self.held = Some(HeldValue { text: String::new(), schemas, depth: self.open.len() });
        }
    }

    fn end_value(&mut self, end: usize, pushed: &mut Pushed<'_>) {
        if let Some(HeldValue { mut text, schemas, .. }) = self.held.take_if(|held| held.depth == self.open.len()) {
            text.push_str(&pushed.text[pushed.rest..end]);
            pushed.rest = end;
            pushed.parts.push(HeldPart::Value { text, schemas });
        }
    }
}

impl Pushed<'_> {
    /// The text up to here is not held.
    fn pass(&mut self, end: usize) {
        if self.rest < end {
            self.parts.push(HeldPart::Text(self.text[self.rest..end].to_owned()));
        }
        self.rest = end;
    }
}

#[cfg(test)]
mod tests;
