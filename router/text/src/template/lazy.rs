//! Lists and dicts of a conversation that become template values when the template reads them. Most templates only
//! print tools as JSON, which needs no values.

use std::sync::{Arc, OnceLock};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use serde_json::Value as Json;

use super::python;

/// Levels of the list of tools that are lazy: the list and each tool. A level that is read copies the ones below it.
const LEVELS: usize = 2;

#[derive(Debug)]
pub(super) struct LazyJson {
    json: Json,
    levels: usize,
    value: OnceLock<Value>,
}

impl LazyJson {
    pub fn list(items: &[Json]) -> Value {
        Value::from_object(LazyJson { json: Json::Array(items.to_vec()), levels: LEVELS - 1, value: OnceLock::new() })
    }

    /// What a value is made of, if it is lazy.
    pub fn of(value: &Value) -> Option<&Json> {
        value.downcast_object_ref::<LazyJson>().map(|lazy| &lazy.json)
    }

    fn value(&self) -> &Value {
        self.value.get_or_init(|| {
            let below = |json: &Json| match (self.levels, json) {
                (1.., Json::Array(_) | Json::Object(_)) => {
                    Value::from_object(LazyJson { json: json.clone(), levels: self.levels - 1, value: OnceLock::new() })
                }
                _ => python::from_json(json),
            };
            match &self.json {
                Json::Array(items) => Value::from(items.iter().map(below).collect::<Vec<_>>()),
                Json::Object(map) => {
                    Value::from_pairs(map.iter().map(|(key, value)| (Value::from(key.as_str()), below(value))))
                }
                scalar => python::from_json(scalar),
            }
        })
    }
}

impl Object for LazyJson {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.json {
            Json::Array(_) => ObjectRepr::Seq,
            _ => ObjectRepr::Map,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.value().as_object()?.get_value(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match &self.json {
            Json::Array(items) => Enumerator::Seq(items.len()),
            Json::Object(map) => Enumerator::Values(map.keys().map(|key| Value::from(key.as_str())).collect()),
            _ => Enumerator::Empty,
        }
    }
}

#[cfg(test)]
mod tests;
