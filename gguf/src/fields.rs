//! Typed reading of metadata, with a record of which of the architecture's keys were read. It knows no architecture.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::GgufError;
use crate::container::{Gguf, MetadataArray, MetadataValue};

/// Values are dimensions and counts.
const MAX_SIZE: u64 = 1 << 31;

/// The keys that begin with the architecture's name.
pub(crate) struct MetadataFields<'a> {
    pub gguf: &'a Gguf,
    /// `general.architecture`.
    pub arch: &'a str,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> MetadataFields<'a> {
    pub fn new(gguf: &'a Gguf) -> Result<Self, GgufError> {
        const KEY: &str = "general.architecture";
        let Some(arch) = string(gguf, KEY)? else {
            return Err(GgufError::invalid(KEY, "is required"));
        };
        Ok(Self { gguf, arch, read: RefCell::default() })
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    pub fn invalid(&self, name: &str, what: impl Into<String>) -> GgufError {
        GgufError::invalid(self.key(name), what)
    }

    pub fn unsupported(&self, name: &str, what: impl Into<String>) -> GgufError {
        GgufError::unsupported(self.key(name), what)
    }

    /// The key does not change results here.
    pub fn ignore(&self, name: &str) {
        self.get(name);
    }

    pub fn is_read(&self, name: &str) -> bool {
        self.read.borrow().contains(&self.key(name))
    }

    fn get(&self, name: &str) -> Option<&'a MetadataValue> {
        let key = self.key(name);
        let value = self.gguf.metadata.get(&key);
        self.read.borrow_mut().insert(key);
        value
    }

    /// A whole number; one number per layer counts if all are equal.
    pub fn size(&self, name: &str) -> Result<Option<u64>, GgufError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = match value {
            MetadataValue::Array(MetadataArray::Unsigned(list)) => Some(self.same(name, list)?),
            MetadataValue::Array(MetadataArray::Signed(list)) => u64::try_from(self.same(name, list)?).ok(),
            other => whole(other),
        };
        match number {
            Some(n) if n <= MAX_SIZE => Ok(Some(n)),
            Some(n) => Err(self.invalid(name, format!("must be at most 2^31, got {n}"))),
            None => Err(self.invalid(name, format!("must be a whole number, got {}", value.kind_name()))),
        }
    }

    fn same<T: Copy + PartialEq>(&self, name: &str, list: &[T]) -> Result<T, GgufError> {
        match list {
            [] => Err(self.invalid(name, "must not be an empty array")),
            [first, rest @ ..] if rest.iter().all(|n| n == first) => Ok(*first),
            _ => Err(self.unsupported(name, "differs between layers; it must be the same for all")),
        }
    }

    pub fn required(&self, name: &str) -> Result<u64, GgufError> {
        match self.size(name)? {
            Some(0) => Err(self.invalid(name, "must be at least 1, got 0")),
            Some(n) => Ok(n),
            None => Err(self.invalid(name, "is required")),
        }
    }

    pub fn float(&self, name: &str) -> Result<Option<f64>, GgufError> {
        match self.get(name) {
            None => Ok(None),
            Some(&MetadataValue::Float(n)) if n.is_finite() => Ok(Some(n)),
            Some(&MetadataValue::Unsigned(n)) => Ok(Some(n as f64)),
            Some(&MetadataValue::Signed(n)) => Ok(Some(n as f64)),
            Some(&MetadataValue::Float(n)) => Err(self.invalid(name, format!("must be finite, got {n}"))),
            Some(other) => Err(self.invalid(name, format!("must be a number, got {}", other.kind_name()))),
        }
    }

    pub fn bool(&self, name: &str) -> Result<Option<bool>, GgufError> {
        match self.get(name) {
            None => Ok(None),
            Some(&MetadataValue::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.invalid(name, format!("must be a bool, got {}", other.kind_name()))),
        }
    }

    /// One for each layer.
    pub fn bools(&self, name: &str) -> Result<Option<Vec<bool>>, GgufError> {
        match self.get(name) {
            None => Ok(None),
            Some(MetadataValue::Array(MetadataArray::Bool(list))) => Ok(Some(list.clone())),
            Some(other) => Err(self.invalid(name, format!("must be an array of bools, got {}", other.kind_name()))),
        }
    }

    pub fn str(&self, name: &str) -> Result<Option<&'a str>, GgufError> {
        self.get(name);
        string(self.gguf, &self.key(name))
    }

    /// Refuses a key unless it has the value that changes nothing.
    pub fn neutral(&self, name: &str, neutral: &[f64]) -> Result<(), GgufError> {
        match self.float(name)? {
            Some(value) if !neutral.contains(&value) => {
                let allowed = neutral.iter().map(f64::to_string).collect::<Vec<_>>().join(" or ");
                Err(self.unsupported(name, format!("must be {allowed} for this architecture, got {value}")))
            }
            _ => Ok(()),
        }
    }

    pub fn require(&self, name: &str, value: bool) -> Result<(), GgufError> {
        match self.bool(name)? {
            Some(other) if other != value => {
                Err(self.unsupported(name, format!("must be {value} for this architecture, got {other}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses the architecture's keys that were not read, unless they are known not to change results.
    pub fn finish(&self, harmless: &[&str]) -> Result<(), GgufError> {
        let read = self.read.borrow();
        let prefix = format!("{}.", self.arch);
        for key in self.gguf.metadata.keys() {
            if let Some(name) = key.strip_prefix(&prefix)
                && !read.contains(key)
                && !harmless.contains(&name)
            {
                return Err(GgufError::unsupported(key, "unknown key, which may change the model's results"));
            }
        }
        Ok(())
    }
}

fn whole(value: &MetadataValue) -> Option<u64> {
    match *value {
        MetadataValue::Unsigned(n) => Some(n),
        MetadataValue::Signed(n) => u64::try_from(n).ok(),
        _ => None,
    }
}

/// A string of the metadata.
pub(crate) fn string<'a>(gguf: &'a Gguf, key: &str) -> Result<Option<&'a str>, GgufError> {
    match gguf.metadata.get(key) {
        None => Ok(None),
        Some(MetadataValue::String(text)) => Ok(Some(text)),
        Some(other) => Err(GgufError::invalid(key, format!("must be a string, got {}", other.kind_name()))),
    }
}

pub(crate) fn flag(gguf: &Gguf, key: &str) -> Result<Option<bool>, GgufError> {
    match gguf.metadata.get(key) {
        None => Ok(None),
        Some(&MetadataValue::Bool(value)) => Ok(Some(value)),
        Some(other) => Err(GgufError::invalid(key, format!("must be a bool, got {}", other.kind_name()))),
    }
}

pub(crate) fn strings<'a>(gguf: &'a Gguf, key: &str) -> Result<Option<&'a [String]>, GgufError> {
    match gguf.metadata.get(key) {
        None => Ok(None),
        Some(MetadataValue::Array(MetadataArray::String(list))) => Ok(Some(list)),
        Some(other) => Err(GgufError::invalid(key, format!("must be an array of strings, got {}", other.kind_name()))),
    }
}

/// The id of a token. Ids beyond 32 bits are invalid.
pub(crate) fn token_id(gguf: &Gguf, key: &str) -> Result<Option<u32>, GgufError> {
    let Some(value) = gguf.metadata.get(key) else { return Ok(None) };
    // The converter of some models writes -1 for "none".
    if matches!(value, MetadataValue::Signed(-1) | MetadataValue::Unsigned(0xffff_ffff)) {
        return Ok(None);
    }
    match whole(value).and_then(|n| u32::try_from(n).ok()) {
        Some(id) => Ok(Some(id)),
        None => Err(GgufError::invalid(key, format!("must be a token id, got {value:?}"))),
    }
}
