//! Lists and dicts of a conversation that become template values when the template reads them. Most templates only
//! print tools as JSON, which needs no values.

use std::sync::{Arc, OnceLock};

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};
use serde_json::Value as Json;

use super::python::{self, JsonDumpsOptions};

/// Levels of the list of tools that are lazy: the list and each tool. A level that is read copies the ones below it.
const LEVELS: usize = 2;

#[derive(Debug)]
pub(super) struct LazyJson {
    json: Json,
    levels: usize,
    value: OnceLock<Value>,
    /// Its JSON, as it was printed first. A template prints tools in one way.
    printed: OnceLock<(JsonDumpsOptions, Value)>,
}

impl LazyJson {
    pub fn list(items: &[Json]) -> Value {
        Self::value_of(Json::Array(items.to_vec()), LEVELS - 1)
    }

    fn value_of(json: Json, levels: usize) -> Value {
        Value::from_object(LazyJson { json, levels, value: OnceLock::new(), printed: OnceLock::new() })
    }

    /// What a value is made of, if it is lazy.
    pub fn of(value: &Value) -> Option<&Json> {
        value.downcast_object_ref::<LazyJson>().map(|lazy| &lazy.json)
    }

    /// The JSON that `print` writes of the value with these options, kept if the value is lazy.
    pub fn printed(
        value: &Value,
        options: &JsonDumpsOptions,
        print: impl Fn() -> Result<String, Error>,
    ) -> Result<Value, Error> {
        let Some(lazy) = value.downcast_object_ref::<LazyJson>() else { return print().map(Value::from) };
        match lazy.printed.get() {
            Some((same, text)) if same == options => Ok(text.clone()),
            Some(_) => print().map(Value::from),
            None => {
                let text = Value::from(print()?);
                let _ = lazy.printed.set((options.clone(), text.clone()));
                Ok(text)
            }
        }
    }

    fn value(&self) -> &Value {
        self.value.get_or_init(|| {
            let below = |json: &Json| match (self.levels, json) {
                (1.., Json::Array(_) | Json::Object(_)) => LazyJson::value_of(json.clone(), self.levels - 1),
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
