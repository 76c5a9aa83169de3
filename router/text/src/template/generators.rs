//! Filters that are generators in Jinja2. Those that apply a filter or a test to each item check the CPU time of the
//! render.

use std::borrow::Cow;
use std::time::Duration;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::cpu_time::CpuTimer;
use super::filters::{iterate, named};
use super::views::Generator;

/// `most`: the limit on CPU time of a render.
pub(super) fn register(env: &mut Environment<'static>, most: Duration) {
    let source = move |state: &mut State, value: Value| {
        // As in Jinja2, a false value counts as empty.
        let items = if value.is_true() { iterate(value)?.try_iter()?.collect() } else { Vec::new() };
        Ok::<_, Error>(CpuTimer::of(state, most).checking(items))
    };
    type Args = Rest<ValueOrKwargs>;
    type Name = Option<String>;
    env.add_filter("map", move |state: &mut State, value: Value, args: Args| {
        let items = source(state, value)?;
        minijinja::filters::map(state, items, args).map(Generator::wrap)
    });
    env.add_filter("select", move |state: &mut State, value: Value, test: Name, args: Args| {
        let items = source(state, value)?;
        minijinja::filters::select(state, items, test.map(Cow::Owned), args).map(Generator::wrap)
    });
    env.add_filter("reject", move |state: &mut State, value: Value, test: Name, args: Args| {
        let items = source(state, value)?;
        minijinja::filters::reject(state, items, test.map(Cow::Owned), args).map(Generator::wrap)
    });
    env.add_filter("selectattr", move |state: &mut State, value: Value, attr: String, test: Name, args: Args| {
        let items = source(state, value)?;
        let selected = minijinja::filters::selectattr(state, items, attr.into(), test.map(Cow::Owned), args);
        selected.map(Generator::wrap)
    });
    env.add_filter("rejectattr", move |state: &mut State, value: Value, attr: String, test: Name, args: Args| {
        let items = source(state, value)?;
        let selected = minijinja::filters::rejectattr(state, items, attr.into(), test.map(Cow::Owned), args);
        selected.map(Generator::wrap)
    });
    env.add_filter("batch", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        Generator::of(&minijinja::filters::batch(state, value, count, fill)?)
    });
    env.add_filter("slice", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        Generator::of(&minijinja::filters::slice(state, value, count, fill)?)
    });
    env.add_filter("unique", |state: &State, value: Value, args: Args| {
        let args = args.into_values();
        let kwargs = named("unique", &args, &["case_sensitive", "attribute"])?;
        Generator::of(&minijinja::filters::unique(state, value, kwargs)?)
    });
    env.add_filter("reverse", |value: &Value| match value.kind() {
        ValueKind::String | ValueKind::Undefined => minijinja::filters::reverse(value),
        _ => Generator::of(&minijinja::filters::reverse(value)?),
    });
}
