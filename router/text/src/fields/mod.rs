//! Reads a JSON object field by field and records which fields were read, so that ignored fields can be reported. It
//! knows no API.

pub mod constraints;
pub mod json;
mod neutral;
mod range;
pub mod shared;

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::{InvalidRequest, limits, template::lossless};
use json::{RawField, ValueMemoryBudget};

pub use neutral::{NeutralValues, Refused, refused};
pub use range::AcceptedRange;

pub struct Fields<'a> {
    /// Path of the object in the request: empty, or ending in a dot.
    path: String,
    map: Map<String, Value>,
    /// The body. Empty: this is an object within it.
    text: &'a str,
    /// The fields of the body, whose values are built when they are read.
    raw: Vec<RawField<'a>>,
    budget: ValueMemoryBudget,
    /// The first error of building a value.
    failed: Option<InvalidRequest>,
    read_names: Vec<&'static str>,
    /// Ignored fields of nested objects.
    ignored_below: Vec<String>,
}

impl<'a> Fields<'a> {
    /// The fields of a body.
    pub fn of(text: &'a str) -> Result<Self, InvalidRequest> {
        let (raw, budget) = (json::fields(text)?, ValueMemoryBudget::of(text.len()));
        Ok(Fields { text, raw, budget, ..Fields::within("", Map::new()) })
    }

    /// An object at this path, which ends in a dot.
    pub fn within(path: &str, map: Map<String, Value>) -> Self {
        Fields {
            path: path.into(),
            map,
            text: "",
            raw: Vec::new(),
            budget: ValueMemoryBudget::of(0),
            failed: None,
            read_names: Vec::new(),
            ignored_below: Vec::new(),
        }
    }

    /// Runs `read`; fails if the value of a field that it reads cannot be built, or if the body is not valid JSON.
    pub fn read<T, E: From<InvalidRequest>>(
        mut self,
        read: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<ParsedBody<T>, E> {
        let value = read(&mut self);
        let value = match self.failed.take() {
            Some(error) => Err(error.into()),
            None => value,
        };
        // Building a value checks its text. An error of JSON precedes all others.
        let whole = !self.text.is_empty() && (value.is_err() || self.unbuilt().any(|text| json::check(text).is_err()));
        if whole {
            json::check(self.text)?;
        }
        Ok(ParsedBody { value: value?, bytes: self.budget.used(), ignored: self.into_ignored() })
    }

    /// The texts of which no value was built.
    fn unbuilt(&self) -> impl Iterator<Item = &'a str> {
        self.raw.iter().filter(|field| !field.built).map(|field| field.text)
    }

    /// The place of a field of the body; the last one when the name occurs several times.
    fn place(&self, name: &str) -> Option<usize> {
        self.raw.iter().rposition(|field| field.name == name && !field.neutral)
    }

    /// Calls `build` with the JSON text of a field of the body; records the first error.
    fn build<T>(
        &mut self,
        name: &str,
        build: impl FnOnce(&str, &str, &ValueMemoryBudget) -> Result<T, InvalidRequest>,
    ) -> Option<T> {
        let text = self.raw[self.place(name)?].text;
        build(name, text, &self.budget).map_err(|error| self.failed.get_or_insert(error)).ok()
    }

    /// The value of a field of the body.
    fn built(&mut self, name: &str) -> Option<Value> {
        let value = self.build(name, json::value)?;
        let place = self.place(name)?;
        self.raw[place].built = true;
        Some(value)
    }

    /// The value that `take` returns, but with numbers as the client wrote them. `None` if there is no difference.
    pub fn exact(&mut self, name: &str) -> Option<Value> {
        self.build(name, |at, text, budget| match lossless::marked(text) {
            Some(marked) => json::value(at, &marked, budget).map(Some),
            None => Ok(None),
        })?
    }

    /// The list that `array` returns, but with numbers as the client wrote them. `None` if there is no difference.
    pub fn exact_array(&mut self, name: &str) -> Option<Vec<Value>> {
        match self.exact(name)? {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The JSON text of a field of the body.
    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        self.place(name).map(|place| self.raw[place].text)
    }

    /// Counts a field of the body as read, and charges the memory of its values, which exist already.
    pub(crate) fn skip(&mut self, name: &'static str, bytes: usize) -> Result<(), InvalidRequest> {
        self.mark_read(name);
        if let Some(place) = self.place(name) {
            self.raw[place].built = true;
        }
        self.budget.charge_known(name, bytes)
    }

    /// Memory of the values so far, bytes.
    pub(crate) fn value_bytes(&self) -> usize {
        self.budget.used()
    }

    /// Whether all values that were read could be built.
    pub(crate) fn is_valid(&self) -> bool {
        self.failed.is_none()
    }

    /// What was not taken of an object within the body.
    pub fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// Path of a field in the request.
    pub fn at(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// Takes the value of a field. Null counts as absent.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        self.mark_read(name);
        let value = match self.map.get_mut(name) {
            Some(value) => Some(value.take()),
            None => self.built(name),
        };
        value.filter(|value| !value.is_null())
    }

    fn mark_read(&mut self, name: &'static str) {
        if !self.read_names.contains(&name) {
            self.read_names.push(name);
        }
    }

    fn convert<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(Value) -> Result<T, Value>,
    ) -> Result<Option<T>, InvalidRequest> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(value).map(Some).map_err(|value| InvalidRequest::wrong_type(&self.at(name), expected, &value))
    }

    pub fn bool(&mut self, name: &'static str) -> Result<Option<bool>, InvalidRequest> {
        self.convert(name, "a boolean", |value| value.as_bool().ok_or(value))
    }

    pub fn string(&mut self, name: &'static str) -> Result<Option<String>, InvalidRequest> {
        self.convert(name, "a string", |value| match value {
            Value::String(text) => Ok(text),
            other => Err(other),
        })
    }

    /// A string that must be there; `what` says which.
    pub fn required(&mut self, name: &'static str, what: &str) -> Result<String, InvalidRequest> {
        self.string(name)?.ok_or_else(|| InvalidRequest::missing(&self.at(name), what))
    }

    pub fn array(&mut self, name: &'static str) -> Result<Option<Vec<Value>>, InvalidRequest> {
        self.convert(name, "an array", |value| match value {
            Value::Array(items) => Ok(items),
            other => Err(other),
        })
    }

    pub fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, InvalidRequest> {
        self.convert(name, "an object", |value| match value {
            Value::Object(map) => Ok(map),
            other => Err(other),
        })
    }

    /// A nested object, to be read field by field.
    pub fn fields(&mut self, name: &'static str) -> Result<Option<Fields<'static>>, InvalidRequest> {
        let path = format!("{}.", self.at(name));
        Ok(self.object(name)?.map(|map| Fields::within(&path, map)))
    }

    /// A number in this range. The error shows it as the client wrote it, even if it does not fit an `f32`.
    pub fn number(&mut self, name: &'static str, range: AcceptedRange) -> Result<Option<f32>, InvalidRequest> {
        let Some(value) = self.take(name) else { return Ok(None) };
        number(&self.at(name), &value, range).map(Some)
    }

    /// An integer in this range.
    pub fn integer(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Result<Option<u32>, InvalidRequest> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let at = self.at(name);
        let number = integer(&value).ok_or_else(|| InvalidRequest::wrong_type(&at, "an integer", &value))?;
        match u32::try_from(number) {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (min, max) = range.into_inner();
                let allowed = match max {
                    u32::MAX if number > 0 => format!("at most {max}"),
                    u32::MAX => format!("at least {min}"),
                    _ => format!("between {min} and {max}"),
                };
                Err(InvalidRequest::invalid(&*at, format!("'{at}' must be {allowed}, got {value}")))
            }
        }
    }

    /// A count; -1 means no limit, as in some APIs.
    pub fn limit(&mut self, name: &'static str) -> Result<Option<u32>, InvalidRequest> {
        let raw = || self.raw[self.place(name)?].text.parse().ok();
        let given = self.map.get(name).and_then(integer).or_else(raw);
        match given {
            Some(-1) => Ok(self.take(name).and(None)),
            _ => self.integer(name, 0..=u32::MAX),
        }
    }

    /// An integer, clamped to 64 bits.
    pub fn signed(&mut self, name: &'static str) -> Result<Option<i64>, InvalidRequest> {
        self.convert(name, "an integer", |value| {
            integer(&value).map(|number| number.clamp(i64::MIN.into(), i64::MAX.into()) as i64).ok_or(value)
        })
    }

    /// A signed or unsigned 64-bit integer.
    pub fn seed(&mut self, name: &'static str) -> Result<Option<u64>, InvalidRequest> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match integer(&value) {
            Some(number) if (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number) => Ok(Some(number as u64)),
            Some(_) => Err(InvalidRequest::invalid(name, format!("'{name}' must fit in 64 bits, got {value}"))),
            None => Err(InvalidRequest::wrong_type(name, "an integer", &value)),
        }
    }

    /// The value if it is a list of token ids. For any other value it returns `None`, and `take` still returns it.
    pub fn only_ids(&mut self, name: &'static str) -> Option<Vec<u32>> {
        self.mark_read(name);
        self.build(name, json::ids)?
    }

    /// A list of token ids; any other value is an error.
    pub fn ids(&mut self, name: &'static str) -> Result<Option<Vec<u32>>, InvalidRequest> {
        if let Some(ids) = self.only_ids(name) {
            return Ok(Some(ids));
        }
        let at = self.at(name);
        self.array(name)?.map(|items| ids(&at, &items)).transpose()
    }

    /// Rejects a field unless its value is `allowed`, for fields that this server implements only in one form.
    pub fn require(
        &mut self,
        name: &'static str,
        allowed: impl Fn(&Value) -> bool,
        why: &str,
    ) -> Result<(), InvalidRequest> {
        match self.take(name) {
            Some(value) if !allowed(&value) => Err(InvalidRequest::unsupported(self.at(name), why)),
            _ => Ok(()),
        }
    }

    /// Rejects these fields unless their values have no effect.
    pub fn refuse(&mut self, table: &[Refused]) -> Result<(), InvalidRequest> {
        for Refused { name, neutral, why } in table {
            let value = match self.map.get_mut(*name) {
                Some(value) => Some(value.take()),
                None => self.built(name),
            };
            if value.is_some_and(|value| !neutral.allows(&value)) {
                return Err(InvalidRequest::unsupported(self.at(name), why));
            }
            // A value without effect is not reported as ignored.
            self.raw.iter_mut().filter(|field| field.name == *name).for_each(|field| field.neutral = true);
        }
        Ok(())
    }

    /// All remaining fields, for a value that is validated elsewhere.
    pub fn rest(self) -> Map<String, Value> {
        self.map.into_iter().filter(|(_, value)| !value.is_null()).collect()
    }

    /// Records the ignored fields of a nested object after it was read.
    pub fn add_ignored(&mut self, object: Fields<'_>) {
        self.ignored_below.extend(object.into_ignored());
    }

    /// Records ignored fields by their paths.
    pub fn extend_ignored(&mut self, paths: &[String]) {
        self.ignored_below.extend_from_slice(paths);
    }

    /// Paths of the fields that were not read.
    pub fn into_ignored(self) -> Vec<String> {
        let own = self.map.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str());
        let effective = |field: &&RawField| !field.neutral && field.text != "null";
        let raw = self.raw.iter().filter(effective).map(|field| &*field.name);
        own.chain(raw)
            .filter(|name| !self.read_names.contains(name))
            .map(|name| format!("{}{}", self.path, clipped(name)))
            .chain(self.ignored_below.iter().cloned())
            .take(limits::HEADER_NAMES)
            .collect()
    }

    /// The fields that were read, in order.
    pub fn read_names(&self) -> &[&'static str] {
        &self.read_names
    }
}

/// The result of reading a body.
pub struct ParsedBody<T> {
    pub value: T,
    /// Memory of its values, bytes.
    pub bytes: usize,
    /// Fields that were not read.
    pub ignored: Vec<String>,
}

/// A field name, cut to the length that a header may contain.
fn clipped(name: &str) -> &str {
    let end = name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&end| end <= limits::HEADER_NAME_BYTES);
    &name[..end.last().unwrap_or(0)]
}

/// Converts to a number in this range.
pub fn number(at: &str, value: &Value, range: AcceptedRange) -> Result<f32, InvalidRequest> {
    let number = value.as_f64().ok_or_else(|| InvalidRequest::wrong_type(at, "a number", value))?;
    let narrow = number as f32;
    range.check(at, narrow, value)?;
    Ok(narrow)
}

/// Converts to an integer; `5.0` counts as one. Larger floats are clamped to 128 bits.
pub fn integer(value: &Value) -> Option<i128> {
    value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.as_u64().map(i128::from))
        .or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128))
}

pub fn ids(at: &str, items: &[Value]) -> Result<Vec<u32>, InvalidRequest> {
    let id = |(i, item): (usize, &Value)| {
        let number =
            integer(item).ok_or_else(|| InvalidRequest::wrong_type(&format!("{at}[{i}]"), "a token id", item))?;
        u32::try_from(number).map_err(|_| {
            let message = format!("'{at}[{i}]' must be a token id, got {item}");
            InvalidRequest {
                code: Some("token_out_of_vocabulary"),
                ..InvalidRequest::invalid(format!("{at}[{i}]"), message)
            }
        })
    };
    items.iter().enumerate().map(id).collect()
}
