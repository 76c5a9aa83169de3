//! Wraps macros that read `varargs` and `kwargs`, which Jinja2 fills with the arguments that match no parameter.

use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, from_args};
use minijinja::{Error, State, Value};

/// A macro and the names of its declared parameters; `varargs` and `kwargs` were added after them.
#[derive(Debug)]
pub(super) struct Variadic {
    inner: Value,
    parameters: Vec<String>,
}

impl Variadic {
    pub fn wrap(inner: Value, parameters: Vec<String>) -> Value {
        Value::from_object(Variadic { inner, parameters })
    }
}

impl Object for Variadic {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (positional, named): (&[Value], Kwargs) = from_args(args)?;
        let (own, free) = positional.split_at(positional.len().min(self.parameters.len()));
        let (mut passed, mut rest) = (Vec::new(), Vec::new());
        for name in named.args() {
            let known = name == "caller" || self.parameters.iter().any(|parameter| parameter == name);
            let list = if known { &mut passed } else { &mut rest };
            list.push((name.to_owned(), named.get::<Value>(name)?));
        }
        passed.push(("varargs".into(), Value::from(minijinja::value::Tuple::from(free))));
        passed.push(("kwargs".into(), Value::from_pairs(rest)));
        let mut args = own.to_vec();
        args.push(Value::from(Kwargs::from_iter(passed)));
        self.inner.call(state, &args)
    }
}
