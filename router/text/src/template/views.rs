//! Python objects that minijinja lacks: views of a dict, generators, and methods of a dict that are not called.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, State, Value};

use super::python;

/// Methods of a dict. In `x.name`, they take precedence over a key of the same name.
pub(super) const METHODS: [&str; 10] =
    ["items", "keys", "values", "get", "pop", "update", "copy", "clear", "setdefault", "popitem"];

/// The result of a filter that is a generator in Jinja2: it is true, has no length, and each item can be read once.
#[derive(Debug)]
pub(super) struct Generator(Arc<Mutex<std::vec::IntoIter<Value>>>);

impl Generator {
    pub fn wrap(items: Vec<Value>) -> Value {
        Value::from_object(Generator(Arc::new(Mutex::new(items.into_iter()))))
    }

    pub fn of(items: &Value) -> Result<Value, Error> {
        Ok(Self::wrap(items.try_iter()?.collect()))
    }
}

struct GeneratorItems(Arc<Mutex<std::vec::IntoIter<Value>>>);

impl Iterator for GeneratorItems {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(GeneratorItems(self.0.clone())))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// `keys()`, `values()` or `items()` of a dict.
#[derive(Debug)]
pub(super) struct View {
    name: &'static str,
    items: Vec<Value>,
}

impl View {
    pub fn wrap(dict: &Value, method: &str) -> Result<Value, Error> {
        let name = if method == "keys" {
            "dict_keys"
        } else if method == "values" {
            "dict_values"
        } else {
            "dict_items"
        };
        let item = |key: Value| {
            Ok(match name {
                "dict_keys" => key,
                "dict_values" => dict.get_item(&key)?,
                _ => {
                    let value = dict.get_item(&key)?;
                    Value::from(minijinja::value::Tuple::from([key, value]))
                }
            })
        };
        let items = dict.try_iter()?.map(item).collect::<Result<Vec<_>, Error>>()?;
        Ok(Value::from_object(View { name, items }))
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(self.items.clone().into_iter()))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = String::new();
        python::write_repr(&mut items, &Value::from(self.items.clone()));
        write!(f, "{}({items})", self.name)
    }
}

/// Whether the value is a view or a generator, which Python can neither index nor convert to JSON.
pub(super) fn is_view(value: &Value) -> bool {
    value.downcast_object_ref::<View>().is_some() || value.downcast_object_ref::<Generator>().is_some()
}

/// A method of a dict that was not called.
#[derive(Debug)]
struct Method {
    dict: Value,
    name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.dict.call_method(state, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}

/// Whether the value is a namespace. The engine's type is private, so it is recognized by its name.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Evaluates `value.name` for the names of `METHODS`.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map if !is_namespace(value) => {
            Ok(Value::from_object(Method { dict: value.clone(), name: name.to_owned() }))
        }
        _ => value.get_attr(name),
    }
}

/// Evaluates `value['name']` for the names of `METHODS`: without such a key, Jinja2 uses the attribute.
pub(super) fn item(value: &Value, name: &str) -> Result<Value, Error> {
    let found = value.get_item(&Value::from(name))?;
    if found.is_undefined() && value.kind() == ValueKind::Map && !is_namespace(value) {
        return attribute(value, name);
    }
    Ok(found)
}
