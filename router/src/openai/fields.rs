//! Reads a JSON object field by field, remembers what was asked for, and so knows what nobody asked for.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::refused::Refused;
use crate::{error::Error, job::Range, limits};

pub struct Fields {
    /// Where the object lies in the request: empty, or a path that ends in a dot.
    path: String,
    map: Map<String, Value>,
    asked: Vec<&'static str>,
    /// Fields below this object that nobody asked for.
    below: Vec<String>,
}

impl Fields {
    pub fn new(body: Value) -> Result<Self, Error> {
        match body {
            Value::Object(map) => Ok(Fields { path: String::new(), map, asked: Vec::new(), below: Vec::new() }),
            other => {
                let mut error = Error::wrong_type("body", "a JSON object", &other);
                error.message = error.message.replace("'body'", "the body");
                error.param = None;
                Err(error)
            }
        }
    }

    /// An object that lies at this path, which ends in a dot.
    pub fn within(path: &str, map: Map<String, Value>) -> Self {
        Fields { path: path.into(), map, asked: Vec::new(), below: Vec::new() }
    }

    /// A field's path in the request.
    pub fn at(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// The value, which is gone from here on. Null counts as absent.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        self.asked.push(name);
        self.map.get_mut(name).map(Value::take).filter(|value| !value.is_null())
    }

    fn read<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(Value) -> Result<T, Value>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(value).map(Some).map_err(|value| Error::wrong_type(&self.at(name), expected, &value))
    }

    pub fn bool(&mut self, name: &'static str) -> Result<Option<bool>, Error> {
        self.read(name, "a boolean", |value| value.as_bool().ok_or(value))
    }

    pub fn string(&mut self, name: &'static str) -> Result<Option<String>, Error> {
        self.read(name, "a string", |value| match value {
            Value::String(text) => Ok(text),
            other => Err(other),
        })
    }

    pub fn array(&mut self, name: &'static str) -> Result<Option<Vec<Value>>, Error> {
        self.read(name, "an array", |value| match value {
            Value::Array(items) => Ok(items),
            other => Err(other),
        })
    }

    pub fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, Error> {
        self.read(name, "an object", |value| match value {
            Value::Object(map) => Ok(map),
            other => Err(other),
        })
    }

    /// An object whose fields are asked for in turn.
    pub fn fields(&mut self, name: &'static str) -> Result<Option<Fields>, Error> {
        let path = format!("{}.", self.at(name));
        Ok(self.object(name)?.map(|map| Fields::within(&path, map)))
    }

    /// A number in this range. The error shows it as the client wrote it, also where no `f32` can hold it.
    pub fn number(&mut self, name: &'static str, range: Range) -> Result<Option<f32>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        number(&self.at(name), &value, range).map(Some)
    }

    /// An integer in this range.
    pub fn integer(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Result<Option<u32>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let at = self.at(name);
        let number = integer(&value).ok_or_else(|| Error::wrong_type(&at, "an integer", &value))?;
        match u32::try_from(number) {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (min, max) = range.into_inner();
                let allowed = match max {
                    u32::MAX if number > 0 => format!("at most {max}"),
                    u32::MAX => format!("at least {min}"),
                    _ => format!("between {min} and {max}"),
                };
                Err(Error::invalid(&*at, format!("'{at}' must be {allowed}, got {value}")))
            }
        }
    }

    /// A number of things; -1, as some APIs write it, is no limit.
    pub fn limit(&mut self, name: &'static str) -> Result<Option<u32>, Error> {
        match self.map.get(name).and_then(integer) {
            Some(-1) => Ok(self.take(name).and(None)),
            _ => self.integer(name, 0..=u32::MAX),
        }
    }

    /// An integer of any size, cut to 64 bits.
    pub fn signed(&mut self, name: &'static str) -> Result<Option<i64>, Error> {
        self.read(name, "an integer", |value| {
            integer(&value).map(|number| number.clamp(i64::MIN.into(), i64::MAX.into()) as i64).ok_or(value)
        })
    }

    /// Any 64-bit integer, signed or not.
    pub fn seed(&mut self, name: &'static str) -> Result<Option<u64>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match integer(&value) {
            Some(number) if (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number) => Ok(Some(number as u64)),
            Some(_) => Err(Error::invalid(name, format!("'{name}' must fit in 64 bits, got {value}"))),
            None => Err(Error::wrong_type(name, "an integer", &value)),
        }
    }

    /// A list of token ids.
    pub fn ids(&mut self, name: &'static str) -> Result<Option<Vec<u32>>, Error> {
        let at = self.at(name);
        self.array(name)?.map(|items| ids(&at, &items)).transpose()
    }

    /// A field that this server implements only in its default form.
    pub fn only(&mut self, name: &'static str, allowed: impl Fn(&Value) -> bool, why: &str) -> Result<(), Error> {
        match self.take(name) {
            Some(value) if !allowed(&value) => Err(Error::unsupported(self.at(name), why)),
            _ => Ok(()),
        }
    }

    /// Refuses these fields, unless their values ask for nothing.
    pub fn refuse(&mut self, table: &[Refused]) -> Result<(), Error> {
        for Refused { name, neutral, why } in table {
            if let Some(value) = self.map.get_mut(*name).map(Value::take)
                && !neutral.allows(&value)
            {
                return Err(Error::unsupported(self.at(name), why));
            }
        }
        Ok(())
    }

    /// All that has not been taken, for what is checked elsewhere.
    pub fn rest(self) -> Map<String, Value> {
        self.map.into_iter().filter(|(_, value)| !value.is_null()).collect()
    }

    /// Remembers what nobody asked for in an object of this one, whose fields have been read.
    pub fn remember(&mut self, object: Fields) {
        self.below.extend(object.ignored());
    }

    /// What nobody asked for.
    pub fn ignored(self) -> Vec<String> {
        let unknown = self.map.iter().filter(|(name, value)| !value.is_null() && !self.asked.contains(&name.as_str()));
        unknown
            .map(|(name, _)| format!("{}{name}", self.path))
            .chain(self.below.iter().cloned())
            .take(limits::HEADER_NAMES)
            .collect()
    }

    #[cfg(test)]
    pub fn asked(&self) -> &[&'static str] {
        &self.asked
    }
}

/// A number in this range.
pub fn number(at: &str, value: &Value, range: Range) -> Result<f32, Error> {
    let number = value.as_f64().ok_or_else(|| Error::wrong_type(at, "a number", value))?;
    let narrow = number as f32;
    range.check(at, narrow, value)?;
    Ok(narrow)
}

/// An integer, also one that is spelled `5.0`. Larger ones than 127 bits hold are cut to that.
pub fn integer(value: &Value) -> Option<i128> {
    value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.as_u64().map(i128::from))
        .or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128))
}

pub fn ids(at: &str, items: &[Value]) -> Result<Vec<u32>, Error> {
    let id = |(i, item): (usize, &Value)| {
        let number = integer(item).ok_or_else(|| Error::wrong_type(&format!("{at}[{i}]"), "a token id", item))?;
        u32::try_from(number).map_err(|_| {
            let message = format!("'{at}[{i}]' must be a token id, got {item}");
            Error { code: Some("token_out_of_vocabulary"), ..Error::invalid(format!("{at}[{i}]"), message) }
        })
    };
    items.iter().enumerate().map(id).collect()
}
