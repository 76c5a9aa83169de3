//! Parses JSON within a memory budget: the body is split into its fields, values are built only of the fields that are
//! read, and their bytes are charged to a budget.

use std::{borrow::Cow, cell::Cell, fmt};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::{InvalidRequest, limits};

/// How serde_json's errors begin.
const TOO_DEEP: &str = "recursion limit exceeded";
const TOO_LARGE_NUMBER: &str = "number out of range";

/// Budget for the memory of a request's values.
#[derive(Debug)]
pub struct ValueMemoryBudget {
    limit: usize,
    used: Cell<usize>,
}

impl ValueMemoryBudget {
    /// The budget for a document of this many bytes.
    pub fn of(bytes: usize) -> Self {
        ValueMemoryBudget { limit: bytes + limits::VALUE_BYTES, used: Cell::new(0) }
    }

    pub fn used(&self) -> usize {
        self.used.get()
    }

    fn charge<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        let used = self.used.get() + bytes;
        self.used.set(used);
        if used > self.limit { Err(E::custom(OVER_LIMIT)) } else { Ok(()) }
    }

    /// Charges the bytes of the field `at`, whose values exist already.
    pub(super) fn charge_known(&self, at: &str, bytes: usize) -> Result<(), InvalidRequest> {
        self.used.set(self.used.get() + bytes);
        if self.is_spent() { Err(self.spent(at)) } else { Ok(()) }
    }

    fn is_spent(&self) -> bool {
        self.used.get() > self.limit
    }

    fn spent(&self, at: &str) -> InvalidRequest {
        let limit = self.limit;
        let message = format!(
            "'{at}' has too many values: a request of this size may use {limit} bytes of memory for its values"
        );
        InvalidRequest { code: Some("too_many_values"), ..InvalidRequest::invalid(at, message) }
    }
}

const OVER_LIMIT: &str = "the values take too much memory";
/// Bytes of an array item, and of an object entry without the text of its key.
const ITEM: usize = size_of::<Value>();
const ENTRY: usize = ITEM + 96;

/// A field of a body, whose value is not built yet.
#[derive(Debug)]
pub struct RawField<'a> {
    pub name: Cow<'a, str>,
    /// The JSON text of the value.
    pub text: &'a str,
    /// A value was built of the text, so it is known to be valid.
    pub built: bool,
    /// It has no effect, and is not reported as ignored.
    pub neutral: bool,
}

/// Splits a text that is a JSON object into its fields. Their texts are JSON as far as their extent goes; [`check`]
/// checks the rest: escapes, numbers and depth.
pub fn fields(text: &str) -> Result<Vec<RawField<'_>>, InvalidRequest> {
    let kind = match text.trim_ascii_start().as_bytes().first() {
        Some(b'{') => {
            let split = serde_json::from_str(text);
            if !matches!(split, Ok(SplitFields { more: false, .. })) {
                check(text)?;
            }
            let SplitFields { found, more } = split.map_err(|error| broken(&error))?;
            if more {
                let message = format!("the body may have at most {} fields", limits::BODY_FIELDS);
                return Err(InvalidRequest::new("too_many_fields", message));
            }
            return Ok(found);
        }
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    };
    check(text)?;
    Err(InvalidRequest::new("invalid_type", format!("the body must be a JSON object, got {kind}")))
}

/// Checks that a text is JSON.
pub fn check(text: &str) -> Result<(), InvalidRequest> {
    serde_json::from_str::<Checked>(text).map(drop).map_err(|error| broken(&error))
}

fn broken(error: &serde_json::Error) -> InvalidRequest {
    InvalidRequest::new("invalid_json", format!("the body {}", why(error)))
}

/// What is wrong with a text that serde_json does not read.
fn why(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if let Some(place) = text.strip_prefix(TOO_DEEP) {
        return format!("may have arrays and objects in each other up to a depth of {}{place}", limits::JSON_DEPTH);
    }
    match text.strip_prefix(TOO_LARGE_NUMBER) {
        Some(place) => format!("has a number beyond the range of 64-bit floats{place}"),
        None => format!("is not valid JSON: {text}"),
    }
}

/// The fields of an object. `more`: it has more than a body may have.
#[derive(Default)]
struct SplitFields<'a> {
    found: Vec<RawField<'a>>,
    more: bool,
}

impl<'de> Deserialize<'de> for SplitFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SplitFields::default())
    }
}

impl<'de> Visitor<'de> for SplitFields<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Self, A::Error> {
        while let Some(FieldName(name)) = entries.next_key()? {
            let text = entries.next_value::<&RawValue>()?.get();
            match self.found.len() == limits::BODY_FIELDS {
                true => self.more = true,
                false => self.found.push(RawField { name, text, built: false, neutral: false }),
            }
        }
        Ok(self)
    }
}

/// A name, borrowed from the text if it has no escapes.
struct FieldName<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for FieldName<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FieldName(Cow::Borrowed("")))
    }
}

impl<'de> Visitor<'de> for FieldName<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self, E> {
        Ok(FieldName(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self, E> {
        Ok(FieldName(Cow::Owned(name.to_owned())))
    }
}

/// Builds the value of the field `at`, within the budget.
pub fn value(at: &str, text: &str, budget: &ValueMemoryBudget) -> Result<Value, InvalidRequest> {
    let mut reader = serde_json::Deserializer::from_str(text);
    Build(budget).deserialize(&mut reader).map_err(|error| build_error(at, budget, &error))
}

/// Builds the document that the string field `at` contains, within its own budget.
pub fn document(at: &str, text: &str) -> Result<Value, InvalidRequest> {
    let budget = ValueMemoryBudget::of(text.len());
    let mut reader = serde_json::Deserializer::from_str(text);
    let built = Build(&budget).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    built.map_err(|error| match budget.is_spent() {
        true => build_error(at, &budget, &error),
        false => InvalidRequest {
            code: Some("invalid_json"),
            ..InvalidRequest::invalid(at, format!("'{at}' {}", why(&error)))
        },
    })
}

/// Parses a list of token ids without building a value for each. `None` if the text is anything else.
pub fn ids(at: &str, text: &str, budget: &ValueMemoryBudget) -> Result<Option<Vec<u32>>, InvalidRequest> {
    if !text.starts_with('[') {
        return Ok(None);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    match Ids(budget).deserialize(&mut reader) {
        Ok(ids) => Ok(Some(ids)),
        Err(error) if budget.is_spent() => Err(build_error(at, budget, &error)),
        Err(_) => Ok(None),
    }
}

fn build_error(at: &str, budget: &ValueMemoryBudget, error: &serde_json::Error) -> InvalidRequest {
    if budget.is_spent() {
        return budget.spent(at);
    }
    InvalidRequest { code: Some("invalid_json"), ..InvalidRequest::invalid(at, format!("'{at}' {}", why(error))) }
}

/// A JSON value that is validated and dropped.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Checked)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Checked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Checked, A::Error> {
        while items.next_element::<Checked>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Checked, A::Error> {
        while entries.next_entry::<Checked, Checked>()?.is_some() {}
        Ok(self)
    }
}

#[derive(Clone, Copy)]
struct Build<'a>(&'a ValueMemoryBudget);

impl<'de> DeserializeSeed<'de> for Build<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Build<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, on: bool) -> Result<Value, E> {
        Ok(Value::Bool(on))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.0.charge(text.len())?;
        Ok(Value::String(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            self.0.charge(ITEM)?;
            all.push(item);
        }
        all.shrink_to_fit();
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            self.0.charge(ENTRY + name.len())?;
            let value = entries.next_value_seed(self)?;
            all.insert(name, value);
        }
        Ok(Value::Object(all))
    }
}

struct Ids<'a>(&'a ValueMemoryBudget);

impl<'de> DeserializeSeed<'de> for Ids<'_> {
    type Value = Vec<u32>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u32>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Ids<'_> {
    type Value = Vec<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("token ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<u32>, A::Error> {
        let mut all = Vec::new();
        while let Some(id) = items.next_element::<u32>()? {
            self.0.charge(size_of::<u32>())?;
            all.push(id);
        }
        match all.is_empty() {
            true => Err(A::Error::custom("no ids")),
            false => Ok(all),
        }
    }
}

#[cfg(test)]
mod tests;
