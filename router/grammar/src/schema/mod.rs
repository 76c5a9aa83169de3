//! Compiles JSON Schema to grammar. Objects accept their declared properties in any order. What the grammar cannot
//! express is left to the validation of complete arguments and recorded as a [`Relaxation`].
//!
//! Schemas nest, so the methods of [`Compiler`] call each other across the files of this module: the compiler of arrays
//! compiles items, which may be objects of arrays. The files `constants`, `formats`, `pattern` and `spelled`
//! do not know the compiler.
//!
//! Where a tool's schema leaves room, the grammar is narrower: an object with `properties` and no
//! `additionalProperties` accepts no other property, and constraints without a `type` imply one. A response may be
//! anything that its schema accepts.

mod apart;
mod array;
mod common;
mod constants;
mod cost;
mod elements;
mod flat;
mod formats;
mod free;
mod keys;
mod members;
mod merge;
mod negate;
mod object;
mod params;
mod pattern;
mod range;
mod scalar;
mod spelled;
mod string_grammar;
mod tagged;
mod text;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::budget::Budget;
use crate::format::Tags;
use crate::lark::{Writer, either};
use crate::limits::{MAX_COMPILE_WORK, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES};
use crate::rules::{Cause, Relaxation, RuleError};
use crate::validate::accepts;

pub(crate) use common::common_regexes;
pub(crate) use elements::ELEMENT_OF_LIST;
pub(crate) use keys::bare_name;
pub(crate) use params::{Closer, Forbidden, Pattern};
pub(crate) use scalar::{divisor_price, quoted};
pub use string_grammar::LARK_KEYWORD;
pub(crate) use tagged::{ENTITIES, attribute};

use crate::json_schema::{Schema, TYPES, is_annotation, is_type, mentions, size, types};
use constants::{excluded, values};

/// The syntax in which values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Json,
    Python,
    /// Gemma's, with the mark around strings.
    Bare(&'static str),
    /// Nested elements, with the mark before each tag.
    Elements(&'static str),
    /// Nested elements whose tags name the kind of their value.
    Tagged(Tags),
}

/// Shared by all schemas of a request.
pub(crate) struct Work<'w> {
    pub writer: &'w mut Writer,
    pub relaxations: Vec<Relaxation>,
    /// Omits constraints of strings and numbers, after llguidance rejected some of them, and whatever must be expanded,
    /// after that was too much.
    pub loose: bool,
    /// Objects of a response that declare properties take no others unless they say so: the schema is strict.
    pub closes: bool,
    /// Members come in the order of their schema: JSON writers write them so.
    pub in_order: bool,
    /// Objects of tools' arguments that take fewer members than their schema allows.
    pub narrowed: u64,
    pub nodes: usize,
    pub budget: &'w mut Budget,
}

/// Compiles one schema.
pub(crate) struct Compiler<'s, 'w, 'x> {
    pub work: &'x mut Work<'w>,
    root: &'s Value,
    /// The tool; empty for the response.
    tool: &'s str,
    /// The request's field, for errors.
    field: String,
    dialect: Dialect,
    /// Rules by schema text. None: nothing satisfies the schema.
    memo: HashMap<String, Option<String>>,
    /// Names that recursion used before they were defined.
    recursive: HashSet<String>,
    depth: usize,
    /// The budget at which the part that is being combined has used its share.
    part_end: u64,
    /// Steps left for distinguishing schemas and for negating them.
    steps: Cell<u64>,
}

impl<'s, 'w, 'x> Compiler<'s, 'w, 'x> {
    /// `root` must be the result of [`local`](crate::json_schema::local).
    pub fn new(work: &'x mut Work<'w>, root: &'s Value, tool: &'s str, field: String, dialect: Dialect) -> Self {
        Self {
            work,
            root,
            tool,
            field,
            dialect,
            memo: HashMap::new(),
            recursive: HashSet::new(),
            depth: 0,
            part_end: 0,
            steps: Cell::new(0),
        }
    }

    fn w(&mut self) -> &mut Writer {
        self.work.writer
    }

    /// The rule of a whole document. A tool's arguments are an object, and a schema without declarations accepts no
    /// properties.
    pub fn document(&mut self) -> Result<String, RuleError> {
        let root = self.root;
        let rule = match root {
            Value::Bool(true) if !self.tool.is_empty() => Some(self.any_object()),
            Value::Object(map) if !self.tool.is_empty() => {
                if declares_nothing(map) && (has_no_constraint(map) || accepts(root, &json!({}))) {
                    return Ok(self.closed_empty());
                }
                let types = self.types(map);
                if !types.is_empty() && !types.contains(&"object") {
                    return Err(self.refuse("", "type", "arguments must be an object"));
                }
                let mut map = map.clone();
                map.insert("type".into(), "object".into());
                self.value(&Value::Object(map), "")?
            }
            other => self.value(other, "")?,
        };
        rule.ok_or_else(|| self.refuse("", "type", "no value satisfies the schema"))
    }

    /// The numbers that a whole document may be, and everything else, as expressions.
    pub fn numbers_apart(&mut self) -> Result<(Vec<String>, Vec<String>), RuleError> {
        let flats = match self.root {
            Value::Object(map) => self.ways(map, "")?,
            Value::Bool(true) => vec![Schema::new()],
            _ => Vec::new(),
        };
        let (mut numbers, mut others) = (Vec::new(), Vec::new());
        for mut flat in flats {
            if let Some(allowed) = values(&flat) {
                let (some, rest): (Vec<_>, Vec<_>) = allowed.into_iter().partition(Value::is_number);
                numbers.extend(self.constants(&some, "")?);
                others.extend(self.constants(&rest, "")?);
                continue;
            }
            let named: Vec<String> = self.types(&flat).into_iter().map(str::to_owned).collect();
            let types = if named.is_empty() { TYPES.map(str::to_owned).to_vec() } else { named };
            for kind in types {
                let into = if matches!(kind.as_str(), "number" | "integer") { &mut numbers } else { &mut others };
                flat.insert("type".into(), kind.into());
                into.extend(self.flat(&flat, "")?);
            }
        }
        Ok((numbers, others))
    }

    /// The rule of a schema. None: nothing satisfies it.
    pub(super) fn value(&mut self, schema: &Value, path: &str) -> Result<Option<String>, RuleError> {
        let key = schema.to_string();
        if let Some(known) = self.memo.get(&key) {
            if let Some(name) = known {
                self.recursive.insert(name.clone());
            }
            return Ok(known.clone());
        }
        match self.enter(path) {
            Err(RuleError::TooLarge { .. }) => {
                self.depth -= 1;
                return Ok(Some(self.free_of(schema, path)));
            }
            entered => entered?,
        }
        self.work.budget.spend(size(schema))?;
        let name = self.w().reserve();
        self.memo.insert(key.clone(), Some(name.clone()));
        let mut alternatives = self.alternatives(schema, path)?;
        // A schema that is itself or others is the others.
        alternatives.retain(|a| *a != name);
        self.depth -= 1;
        let rule = if alternatives.is_empty() {
            // A rule that used the name can never be completed either.
            if self.recursive.contains(&name) {
                return Err(self.refuse(
                    path,
                    "$ref",
                    "the definition refers to itself unconditionally, so nothing satisfies it",
                ));
            }
            None
        } else if self.recursive.contains(&name) {
            let body = either(&alternatives);
            self.w().define(&name, &body);
            Some(name)
        } else if let [one] = alternatives.as_slice()
            && one.chars().all(|c| c.is_ascii_alphanumeric())
        {
            Some(one.clone())
        } else {
            let body = alternatives.join(" | ");
            Some(self.w().rule(&body))
        };
        self.memo.insert(key, rule.clone());
        Ok(rule)
    }

    /// One expression per way to satisfy the schema.
    fn alternatives(&mut self, schema: &Value, path: &str) -> Result<Vec<String>, RuleError> {
        let map = match schema {
            Value::Bool(true) => return Ok(vec![self.any()]),
            Value::Bool(false) => return Ok(Vec::new()),
            Value::Object(map) => map,
            _ => return Err(self.refuse(path, "", "a schema must be an object, true or false")),
        };
        // Without anything to combine, each alternative is a rule of its own, and recursion finds it again.
        if let Some(target) = only(map, "$ref").and_then(Value::as_str) {
            let (target, path) = self.resolve(target, path)?;
            return Ok(self.value(target, &path)?.into_iter().collect());
        }
        if let Some(mark) = self.element_mark() {
            return self.elements(map, mark, path);
        }
        if let Some(tags) = self.tags() {
            return self.tagged_ways(map, tags, path);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(options) = only(map, keyword).and_then(Value::as_array) {
                if keyword == "oneOf" && !self.disjoint(options)? {
                    self.relax(path, keyword);
                }
                let mut all = Vec::new();
                for (i, option) in options.iter().enumerate() {
                    all.extend(self.value(option, &format!("{path}/{keyword}/{i}"))?);
                }
                all.dedup();
                return Ok(all);
            }
        }
        let mut all = Vec::new();
        for flat in self.ways(map, path)? {
            all.extend(self.flat(&flat, path)?);
        }
        all.dedup();
        Ok(all)
    }

    /// Whether undeclared properties and items are allowed.
    pub(super) fn is_open(&self) -> bool {
        self.tool.is_empty()
    }

    /// The types that a value may have. Empty: any.
    pub(super) fn types<'f>(&self, flat: &'f Schema) -> Vec<&'f str> {
        match types(flat) {
            types if types.is_empty() || flat.contains_key("type") || !self.is_open() => types,
            _ => TYPES.to_vec(),
        }
    }

    /// A schema without combinators.
    fn flat(&mut self, flat: &Schema, path: &str) -> Result<Vec<String>, RuleError> {
        if let Some(mut values) = values(flat) {
            let rest: Schema = flat
                .iter()
                .filter(|(k, _)| *k != "const" && *k != "enum")
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            if mentions(&Value::Object(rest.clone()), &["$ref"]) {
                match self.part_validator(&Value::Object(rest)) {
                    Some(part) => values.retain(|value| part.is_valid(value)),
                    None => self.relax(path, "enum"),
                }
            }
            return self.constants(&values, path);
        }
        self.unsupported(flat, path);
        let excluded = excluded(flat);
        let mut types = self.types(flat);
        if types.is_empty() {
            if excluded.is_empty() {
                return Ok(vec![self.any()]);
            }
            types = TYPES.to_vec();
        }
        let mut all = Vec::new();
        for kind in types {
            let banned: Vec<&Value> = excluded.iter().filter(|v| is_type(v, kind)).collect();
            let rule = match kind {
                "object" => self.object(flat, path)?,
                "array" => self.array(flat, path)?,
                "string" => self.string(flat, &banned, path)?,
                "integer" | "number" => self.number(flat, kind, &banned, path)?,
                "boolean" => self.boolean(&banned),
                "null" => banned.is_empty().then(|| self.null()),
                other => return Err(self.refuse(path, "type", &format!("unknown type {other:?}"))),
            };
            if matches!(kind, "object" | "array") && !banned.is_empty() {
                self.relax(path, "not");
            }
            all.extend(rule);
        }
        Ok(all)
    }

    fn enter(&mut self, path: &str) -> Result<(), RuleError> {
        self.depth += 1;
        self.work.nodes += 1;
        self.work.budget.spend(1)?;
        if self.depth > MAX_SCHEMA_DEPTH {
            return Err(self.too_large(path, "the depth of the schema", MAX_SCHEMA_DEPTH));
        }
        if self.work.nodes > MAX_SCHEMA_NODES {
            return Err(self.too_large(path, "the number of schema nodes", MAX_SCHEMA_NODES));
        }
        if self.work.budget.left() == 0 {
            return Err(self.too_large(path, "the work of compiling the schemas", MAX_COMPILE_WORK as usize));
        }
        Ok(())
    }

    fn too_large(&self, path: &str, what: &'static str, limit: usize) -> RuleError {
        RuleError::TooLarge { field: format!("{}{path}", self.field), what, found: limit.saturating_add(1), limit }
    }

    fn refuse(&self, path: &str, keyword: &str, reason: &str) -> RuleError {
        RuleError::Unenforceable {
            field: self.field.clone(),
            path: if path.is_empty() { "the root".into() } else { path.to_owned() },
            keyword: keyword.to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn relax(&mut self, path: &str, keyword: &str) {
        self.relaxed(path, keyword, Cause::NoMeans);
    }

    fn relax_costly(&mut self, path: &str, keyword: &str) {
        self.relaxed(path, keyword, Cause::Cost);
    }

    fn relaxed(&mut self, path: &str, keyword: &str, cause: Cause) {
        let relaxation = Relaxation { tool: self.tool.into(), path: path.into(), keyword: keyword.into(), cause };
        if !self.work.relaxations.iter().any(|known| known.names_same(&relaxation)) {
            self.work.relaxations.push(relaxation);
        }
    }

    /// Records keywords for which there is no grammar.
    fn unsupported(&mut self, flat: &Schema, path: &str) {
        if flat.contains_key("$dynamicRef") {
            self.relax(path, "$dynamicRef");
        }
    }
}

/// The value of a keyword that is alone, except for annotations.
fn only<'a>(map: &'a Schema, keyword: &str) -> Option<&'a Value> {
    let value = map.get(keyword)?;
    map.keys().all(|k| k == keyword || is_annotation(k)).then_some(value)
}

fn declares_nothing(map: &Schema) -> bool {
    const DECLARE: &[&str] =
        &["properties", "additionalProperties", "patternProperties", "required", "$ref", "allOf", "anyOf", "oneOf"];
    !DECLARE.iter().any(|k| map.contains_key(*k))
}

/// Whether the schema has only annotations and the type, so that the empty object satisfies it.
fn has_no_constraint(map: &Schema) -> bool {
    let known = |key: &String| is_annotation(key) || (key == "type" && map["type"] == "object");
    map.keys().all(known)
}

/// Checks what can be checked without compiling.
pub(crate) fn check(schema: &Value, field: &str) -> Result<usize, RuleError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(RuleError::invalid(field, "a schema must be an object, true or false"));
    }
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        let field = field.to_owned();
        return Err(RuleError::TooLarge {
            field,
            what: "the schema's size in bytes",
            found: bytes,
            limit: MAX_SCHEMA_BYTES,
        });
    }
    Ok(bytes)
}
