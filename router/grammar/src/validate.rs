//! Validates complete arguments and responses, with a JSON Schema validator that shares nothing with the grammar.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jsonschema::{Draft, PatternOptions, Registry, ValidationError, ValidationOptions, Validator};
use serde_json::Value;

use crate::held::{Held, HeldSchemas};
use crate::json_schema::{
    PlainPattern, SchemaPattern, backtracks, compiled_bytes, counting, fault, named, within_budget,
};
use crate::lark::ascii_classes;
use crate::limits::{
    MAX_BACKTRACKS, MAX_QUICK_REGEX_WORK, MAX_QUICK_VALIDATION_BYTES, MAX_VALIDATED_PATTERNS_BYTES,
    MAX_VALIDATED_REGEX_WORK,
};
use crate::rules::{Enforcement, Relaxation, Response, RuleError, Rules, Violation};
use crate::tools::Tool;

/// The validators of a request: of its schemas, compiled on first use, and of its regular expression.
#[derive(Debug, Default)]
pub struct Validators {
    tools: HashMap<String, Lazy>,
    response: Option<Whole>,
}

/// What a whole response must be.
#[derive(Debug)]
enum Whole {
    Json(Box<Lazy>),
    OneOf(Vec<String>),
    Matching(PlainPattern),
}

#[derive(Debug, Default)]
struct Lazy {
    schema: Value,
    validator: OnceLock<Option<Validator>>,
    pattern_bytes: OnceLock<PatternBytes>,
    /// A validator without the patterns of property names.
    without_names: OnceLock<Option<Validator>>,
    /// What of a call is validated before the rest of it is known.
    held: OnceLock<Option<Arc<HeldSchemas>>>,
    /// The validators of its parts, by pointer. None: the part cannot be compiled.
    parts: Mutex<HashMap<String, Option<Arc<Validator>>>>,
}

impl Lazy {
    fn new(schema: Value) -> Self {
        Self { schema, ..Self::default() }
    }

    /// None: the schema itself is invalid, which was reported when the request was compiled.
    fn validator(&self) -> Option<&Validator> {
        self.validator.get_or_init(|| build_leniently(&self.schema).ok()).as_ref()
    }

    /// Whether validating this many bytes takes less than a millisecond.
    fn is_quick(&self, bytes: usize) -> bool {
        let PatternBytes { texts, names, backtrack } = self.pattern_bytes();
        let few_states = (texts + names).saturating_mul(bytes as u64) <= MAX_QUICK_REGEX_WORK as u64;
        bytes <= MAX_QUICK_VALIDATION_BYTES && few_states && !backtrack && self.validator.get().is_some()
    }

    fn pattern_bytes(&self) -> PatternBytes {
        *self.pattern_bytes.get_or_init(|| PatternBytes::of(&self.schema))
    }

    /// The validator for an instance whose property names have this many bytes.
    fn affordable(&self, names: usize) -> Option<&Validator> {
        if self.pattern_bytes().names.saturating_mul(names as u64) <= MAX_VALIDATED_REGEX_WORK as u64 {
            return self.validator();
        }
        let without = || {
            let mut schema = self.schema.clone();
            drop_patterns(&mut schema, &mut |of, _| of == PatternOf::Texts);
            build_leniently(&schema).ok()
        };
        self.without_names.get_or_init(without).as_ref()
    }

    /// The validator of a part of the held schema.
    fn part(&self, held: &HeldSchemas, pointer: &str) -> Option<Arc<Validator>> {
        let mut known = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let build = || build_part(held.schema(), pointer).ok().map(Arc::new);
        known.entry(pointer.to_owned()).or_insert_with(build).clone()
    }

    fn check(&self, instance: &Value) -> Result<(), Violation> {
        match self
            .affordable(bytes_of_names(instance))
            .map(|v| within_budget(MAX_VALIDATED_REGEX_WORK, || v.validate(instance)))
        {
            Some(Some(Err(e))) => Err(violation(&e)),
            _ => Ok(()),
        }
    }
}

/// A strict validator, for validating what another engine generated: Draft 2020-12 unless the schema names another,
/// formats are annotations, and a keyword that cannot be compiled is an error.
///
/// The library is generic, and its caller compiles most of it, so only this crate calls it.
#[derive(Debug)]
pub struct SchemaValidator(Validator);

impl SchemaValidator {
    /// # Errors
    /// What in the schema cannot be compiled, and where.
    pub fn new(schema: &Value) -> Result<Self, Violation> {
        let built = jsonschema::options().should_validate_formats(false).build(schema);
        built.map(Self).map_err(|e| violation(&e))
    }

    /// The first `most` violations.
    #[must_use]
    pub fn violations(&self, instance: &Value, most: usize) -> Vec<Violation> {
        self.0.iter_errors(instance).take(most).map(|e| violation(&e)).collect()
    }
}

/// A violation of the whole instance.
fn of_all(message: String) -> Violation {
    Violation { path: String::new(), message }
}

fn violation(error: &ValidationError<'_>) -> Violation {
    Violation { path: error.instance_path().to_string(), message: error.to_string() }
}

/// Options of validators whose patterns take bounded time.
fn options() -> ValidationOptions<'static> {
    jsonschema::options()
        .with_pattern_options(PatternOptions::fancy_regex().backtrack_limit(MAX_BACKTRACKS))
        .with_keyword("pattern", |_, pattern, _| SchemaPattern::keyword(pattern))
}

fn build(schema: &Value, pointer: &str) -> Result<Validator, String> {
    const WHOLE: &str = "urn:whole";
    let draft = named(schema).unwrap_or(Draft::Draft202012);
    let options = options().with_draft(draft).should_validate_formats(true);
    let built = if pointer.is_empty() {
        options.build(&counting(schema))
    } else {
        let registry = Registry::new().draft(draft).add(WHOLE, counting(schema).into_owned());
        let registry = registry.and_then(|registry| registry.prepare()).map_err(|e| e.to_string())?;
        options.with_registry(&registry).build(&serde_json::json!({"$ref": format!("{WHOLE}#{pointer}")}))
    };
    built.map_err(|e| format!("at {}: {e}", e.instance_path()))
}

fn build_leniently(schema: &Value) -> Result<Validator, String> {
    build_part(schema, "")
}

/// The validator of the part at this pointer.
///
/// Without the patterns that the validator cannot compile at a bounded cost: one of them must not leave everything else
/// unchecked.
fn build_part(schema: &Value, pointer: &str) -> Result<Validator, String> {
    let mut affordable = Affordable::default();
    let costs_too_much = !affordable.keeps_all(schema);
    let mut known = std::borrow::Cow::Borrowed(schema);
    if costs_too_much {
        drop_patterns(known.to_mut(), &mut |_, pattern| affordable.keeps(pattern));
    }
    build(&known, pointer).or_else(|_| {
        drop_patterns(known.to_mut(), &mut |_, pattern| build(&serde_json::json!({"pattern": pattern}), "").is_ok());
        build(&known, pointer)
    })
}

/// The patterns of a schema that may be compiled: as many as [`MAX_VALIDATED_PATTERNS_BYTES`] hold.
#[derive(Default)]
struct Affordable {
    bytes: u64,
    kept: HashMap<String, bool>,
}

impl Affordable {
    fn keeps(&mut self, pattern: &str) -> bool {
        if let Some(kept) = self.kept.get(pattern) {
            return *kept;
        }
        let bytes = self.bytes.saturating_add(compiled_bytes(pattern));
        let kept = bytes <= MAX_VALIDATED_PATTERNS_BYTES;
        if kept {
            self.bytes = bytes;
        }
        self.kept.insert(pattern.to_owned(), kept);
        kept
    }

    fn keeps_all(&mut self, schema: &Value) -> bool {
        let mut all = true;
        each_pattern(schema, &mut |_, pattern| all &= self.keeps(pattern));
        all
    }
}

/// A validator for a part of a schema, without formats.
#[derive(Debug)]
pub(crate) struct PartValidator(Validator);

impl PartValidator {
    /// None: it cannot be compiled, or its patterns cost too much.
    pub fn new(schema: &Value) -> Option<Self> {
        let affordable = Affordable::default().keeps_all(schema);
        affordable.then(|| options().with_draft(Draft::Draft202012).build(schema).ok().map(Self)).flatten()
    }

    pub fn is_valid(&self, instance: &Value) -> bool {
        is_valid(&self.0, instance)
    }
}

/// What a pattern of a schema is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternOf {
    /// Strings: `pattern`.
    Texts,
    /// Property names: `patternProperties`.
    Names,
}

fn each_pattern(schema: &Value, visit: &mut impl FnMut(PatternOf, &str)) {
    match schema {
        Value::Object(map) => {
            map.get("pattern").and_then(Value::as_str).into_iter().for_each(|pattern| visit(PatternOf::Texts, pattern));
            let keys = map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(|map| map.keys());
            keys.for_each(|pattern| visit(PatternOf::Names, pattern));
            map.values().for_each(|part| each_pattern(part, visit));
        }
        Value::Array(all) => all.iter().for_each(|part| each_pattern(part, visit)),
        _ => {}
    }
}

fn drop_patterns(schema: &mut Value, keeps: &mut impl FnMut(PatternOf, &str) -> bool) {
    match schema {
        Value::Object(map) => {
            if map.get("pattern").and_then(Value::as_str).is_some_and(|p| !keeps(PatternOf::Texts, p)) {
                map.remove("pattern");
            }
            if let Some(Value::Object(patterns)) = map.get_mut("patternProperties") {
                let all = patterns.len();
                patterns.retain(|pattern, _| keeps(PatternOf::Names, pattern));
                if patterns.len() < all {
                    // Which names remain for these is unknown then.
                    map.remove("additionalProperties");
                    map.remove("unevaluatedProperties");
                }
            }
            // A part that became laxer would be stricter inside these.
            for keyword in ["not", "if", "oneOf"] {
                let mut part = map.get(keyword).cloned().unwrap_or_default();
                drop_patterns(&mut part, keeps);
                if map.get(keyword).is_some_and(|whole| *whole != part) {
                    map.remove(keyword);
                }
            }
            map.iter_mut()
                .filter(|(key, _)| *key != "const" && *key != "enum")
                .for_each(|(_, part)| drop_patterns(part, keeps));
        }
        Value::Array(all) => all.iter_mut().for_each(|part| drop_patterns(part, keeps)),
        _ => {}
    }
}

/// Bytes of a schema's patterns once they are compiled.
#[derive(Debug, Clone, Copy, Default)]
struct PatternBytes {
    texts: u64,
    names: u64,
    /// Some have lookaround or back references.
    backtrack: bool,
}

impl PatternBytes {
    fn of(schema: &Value) -> Self {
        let mut all = Self::default();
        each_pattern(schema, &mut |of, pattern| {
            let sum = match of {
                PatternOf::Texts => &mut all.texts,
                PatternOf::Names => &mut all.names,
            };
            all.backtrack |= backtracks(pattern);
            // Far below the largest number, so that sums of these sums do not overflow.
            *sum = sum.saturating_add(compiled_bytes(pattern)).min(u64::MAX >> 1);
        });
        all
    }
}

/// Bytes of the property names in an instance.
fn bytes_of_names(instance: &Value) -> usize {
    match instance {
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + bytes_of_names(value)).sum(),
        Value::Array(all) => all.iter().map(bytes_of_names).sum(),
        _ => 0,
    }
}

/// The values that satisfy the schema, as far as the validator can tell.
pub(crate) fn accepted(schema: &Value, mut values: Vec<Value>) -> Vec<Value> {
    if let Ok(validator) = build_leniently(schema) {
        let accepted = || values.iter().map(|value| validator.is_valid(value)).collect::<Vec<_>>();
        if let Some(accepted) = within_budget(MAX_QUICK_REGEX_WORK, accepted) {
            let mut accepted = accepted.into_iter();
            values.retain(|_| accepted.next().unwrap_or(true));
        }
    }
    values
}

fn is_valid(validator: &Validator, instance: &Value) -> bool {
    within_budget(MAX_QUICK_REGEX_WORK, || validator.is_valid(instance)).unwrap_or(true)
}

/// Whether the instance satisfies the schema, as far as the validator can tell.
pub(crate) fn accepts(schema: &Value, instance: &Value) -> bool {
    build_leniently(schema).is_ok_and(|validator| is_valid(&validator, instance))
}

/// Validators for parts of a schema (the same one in every call), compiled on first use.
#[derive(Debug, Default)]
pub(crate) struct Parts(HashMap<String, Option<Validator>>);

impl Parts {
    /// Whether the value satisfies the part at this pointer, as far as its validator can tell.
    pub fn accepts(&mut self, schema: &Value, pointer: &str, value: &Value) -> bool {
        let part = self.0.entry(pointer.to_owned()).or_insert_with(|| build_part(schema, pointer).ok());
        part.as_ref().is_none_or(|validator| is_valid(validator, value))
    }
}

/// A validator for single members of a schema's object, compiled on first use.
#[derive(Debug, Default)]
pub(crate) struct Members(OnceLock<Option<Validator>>);

impl Members {
    /// Whether the member satisfies the schema (the same one in every call), whatever else the schema requires.
    pub fn accepts(&self, schema: &Value, key: &str, value: Value) -> bool {
        let Some(validator) = self.0.get_or_init(|| build_leniently(schema).ok()) else { return true };
        let instance = Value::Object([(key.to_owned(), value)].into_iter().collect());
        let place = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        let within =
            |path: &str| path.strip_prefix(&place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let fails = || validator.iter_errors(&instance).any(|error| within(error.instance_path().as_str()));
        within_budget(MAX_QUICK_REGEX_WORK, fails) != Some(true)
    }
}

impl Validators {
    pub fn new(rules: &Rules) -> Self {
        let none = || serde_json::json!({"type": "object", "maxProperties": 0});
        let schema = |t: &Tool| match rules.enforced(t) {
            Enforcement::NamesAndArguments => t.parameters.clone().filter(|p| !p.is_null()).unwrap_or_else(none),
            // The arguments are then left to the client.
            Enforcement::Off | Enforcement::Names => serde_json::json!({"type": "object"}),
        };
        let tools = rules.tools.iter().map(|t| (t.name.clone(), Lazy::new(schema(t)))).collect();
        let response = match &rules.response {
            Some(Response::JsonSchema { schema, .. }) => Some(Whole::Json(Box::new(Lazy::new(schema.clone())))),
            Some(Response::JsonObject) => Some(Whole::Json(Box::new(Lazy::new(serde_json::json!({"type": "object"}))))),
            Some(Response::Choice(all)) => Some(Whole::OneOf(all.clone())),
            Some(Response::Regex(regex)) => Some(Whole::Matching(PlainPattern::whole(&ascii_classes(regex)))),
            // They are defined only by the grammar.
            Some(Response::Lark(_) | Response::StructuralTag(_)) | None => None,
        };
        Self { tools, response }
    }

    /// Whether a whole response is validated.
    pub fn validates_response(&self) -> bool {
        self.response.is_some()
    }

    /// Approximate memory of the compiled regular expression.
    pub fn regex_bytes(&self) -> usize {
        match &self.response {
            Some(Whole::Matching(pattern)) => pattern.bytes(),
            _ => 0,
        }
    }

    /// Approximate memory of the validators of schemas, once all are compiled.
    pub fn bytes(&self) -> usize {
        /// Bytes of a schema as a tree and as a validator, per byte of its text.
        const TIMES: usize = 20;
        let schema = |lazy: &Lazy| TIMES * lazy.schema.to_string().len();
        let response = match &self.response {
            Some(Whole::Json(lazy)) => schema(lazy),
            Some(Whole::Matching(_) | Whole::OneOf(_)) | None => 0,
        };
        response + self.tools.values().map(schema).sum::<usize>()
    }

    /// Whether this many bytes may be validated on an async thread: the arguments of a tool, or the response.
    pub fn is_quick(&self, tool: Option<&str>, bytes: usize) -> bool {
        match (tool, &self.response) {
            (Some(name), _) => self.tools.get(name).is_none_or(|tool| tool.is_quick(bytes)),
            (None, Some(Whole::Json(schema))) => schema.is_quick(bytes),
            // The duration depends on the expression.
            (None, Some(Whole::Matching(_))) => false,
            (None, Some(Whole::OneOf(_)) | None) => true,
        }
    }

    /// Validates a complete response against its schema, choices or regular expression, if it has one.
    pub fn response(&self, text: &str) -> Result<(), Violation> {
        match &self.response {
            Some(Whole::Json(schema)) => schema.check(&parse(text)?),
            Some(Whole::OneOf(all)) if !all.iter().any(|one| one == text) => {
                Err(of_all("is not one of the choices".into()))
            }
            Some(Whole::Matching(pattern))
                if within_budget(MAX_VALIDATED_REGEX_WORK, || pattern.matches(text)) == Some(false) =>
            {
                Err(of_all("does not match the regular expression".into()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// How much of a tool's calls is held until it is validated. `relaxations`: the same in every call.
    pub fn held(&self, name: &str, relaxations: &[Relaxation]) -> Held {
        let Some(tool) = self.tools.get(name) else { return Held::Nothing };
        let schemas = || {
            let relaxations: Vec<&Relaxation> = relaxations.iter().filter(|one| one.tool == name).collect();
            HeldSchemas::new(&tool.schema, &relaxations).map(Arc::new)
        };
        tool.held.get_or_init(schemas).as_ref().map_or(Held::Nothing, HeldSchemas::held)
    }

    /// Validates a value of a tool's arguments against the schemas at these pointers.
    pub fn value(&self, name: &str, schemas: &[String], text: &str) -> Result<(), Violation> {
        let Some((tool, held)) = self.tools.get(name).and_then(|tool| Some((tool, tool.held.get()?.as_ref()?))) else {
            return Ok(());
        };
        let value = parse(text)?;
        // The whole arguments are validated later.
        let names = tool.pattern_bytes().names.saturating_mul(bytes_of_names(&value) as u64);
        if names > MAX_VALIDATED_REGEX_WORK as u64 {
            return Ok(());
        }
        schemas.iter().filter_map(|schema| tool.part(held, schema)).try_for_each(|validator| {
            let result = within_budget(MAX_VALIDATED_REGEX_WORK, || validator.validate(&value));
            result.unwrap_or(Ok(())).map_err(|e| violation(&e))
        })
    }

    /// Validates complete arguments against their tool's schema. An undeclared tool is a violation.
    pub fn call(&self, name: &str, arguments: &str) -> Result<(), Violation> {
        let Some(tool) = self.tools.get(name) else {
            return Err(of_all(format!("no tool {name:?} is declared")));
        };
        let value = parse(arguments)?;
        if !value.is_object() {
            return Err(of_all("arguments must be a JSON object".into()));
        }
        tool.check(&value)
    }
}

fn parse(text: &str) -> Result<Value, Violation> {
    serde_json::from_str(text).map_err(|e| of_all(format!("not JSON: {e}")))
}

/// Rejects invalid schemas, by the draft that they name.
pub(crate) fn check(schema: &Value, field: &str) -> Result<(), RuleError> {
    let Some((path, reason)) = fault(schema) else { return Ok(()) };
    let place = if path.is_empty() { "the root".to_owned() } else { path };
    Err(RuleError::invalid(field, format!("no valid JSON Schema at {place}: {reason}")))
}

#[cfg(test)]
mod tests;
