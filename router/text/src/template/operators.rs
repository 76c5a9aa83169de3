//! Implements operators that minijinja lacks or evaluates differently from Python.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use super::filters::{escape_text, invalid};
use super::{printf, python};

/// Longest text or list that `*` may produce.
const MAX_REPEATED: usize = super::MAX_PROMPT_BYTES;

/// `a % b`: formats if `a` is a string, else the remainder.
pub(super) fn modulo(a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        return printf::format(a, b);
    }
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        let rest = a.checked_rem(b).ok_or_else(|| invalid("integer modulo by zero"))?;
        return Ok(from_integer(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }));
    }
    match (number(a), number(b)) {
        (Some(_), Some(0.0)) => Err(invalid("float modulo by zero")),
        (Some(a), Some(b)) => {
            let rest = a % b;
            Ok(python::from_float(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
        }
        _ => Err(unsupported("%", a, b)),
    }
}

/// `a * b`, where one operand is a text or a list.
pub(super) fn repeat(a: &Value, b: &Value) -> Result<Value, Error> {
    let (what, times) = if integer(a).is_some() { (b, a) } else { (a, b) };
    let times = integer(times).ok_or_else(|| unsupported("*", a, b))?;
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let check = |len: usize| match len.checked_mul(times) {
        Some(n) if n <= MAX_REPEATED => Ok(()),
        _ => Err(invalid(format!("the result of * may have at most {MAX_REPEATED} items"))),
    };
    if let Some(text) = what.as_str() {
        check(text.len())?;
        return Ok(Value::from(text.repeat(times)));
    }
    if !is_list(what) {
        return Err(unsupported("*", a, b));
    }
    let items: Vec<Value> = what.try_iter()?.collect();
    check(items.len())?;
    Ok(list_like(what, items.iter().cycle().take(items.len() * times).cloned().collect()))
}

/// `a + b` in a template that marks text as safe: if one operand is safe, the other one is escaped.
pub(super) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        if !a.is_safe() && !b.is_safe() {
            return Ok(Value::from(format!("{x}{y}")));
        }
        let safe = |value: &Value, text: &str| if value.is_safe() { text.to_owned() } else { escape_text(text) };
        return Ok(Value::from_safe_string(safe(a, x) + &safe(b, y)));
    }
    if let (Some(x), Some(y)) = (integer(a), integer(b)) {
        return x.checked_add(y).map(from_integer).ok_or_else(|| invalid("the sum is too large"));
    }
    if let (Some(x), Some(y)) = (number(a), number(b)) {
        return Ok(python::from_float(x + y));
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        return Ok(list_like(a, a.try_iter()?.chain(b.try_iter()?).collect()));
    }
    Err(unsupported("+", a, b))
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound = |v: &Value| match (v.is_none(), i64::try_from(v.clone())) {
        (true, _) => Ok(None),
        (_, Ok(i)) => Ok(Some(i)),
        _ => Err(invalid("slice indices must be integers or None")),
    };
    let step = bound(step)?.unwrap_or(1);
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    if value.as_str().is_none() && !is_list(value) {
        return Err(invalid(format!("a value of type {} cannot be sliced", value.kind())));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let len = items.len() as i64;
    let (lowest, highest) = if step < 0 { (-1, len - 1) } else { (0, len) };
    let place = |at: Option<i64>, default: i64| match at {
        None => default,
        Some(at) if at < 0 => at.saturating_add(len).max(lowest),
        Some(at) => at.min(highest),
    };
    let (first, last) = if step < 0 { (highest, lowest) } else { (lowest, highest) };
    let (mut at, stop) = (place(bound(start)?, first), place(bound(stop)?, last));
    let mut taken = Vec::new();
    while if step < 0 { at > stop } else { at < stop } {
        taken.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
        at = at.saturating_add(step);
    }
    Ok(match value.as_str() {
        Some(_) => Value::from(taken.iter().filter_map(Value::as_str).collect::<String>()),
        None => list_like(value, taken),
    })
}

/// Whether the value is a list in Python. Slices are included, which are lazy in the engine.
fn is_list(value: &Value) -> bool {
    let lazy = || value.kind() == ValueKind::Iterable && value.len().is_some() && !super::views::is_view(value);
    value.kind() == ValueKind::Seq || lazy()
}

/// A tuple if `value` is one, else a list.
fn list_like(value: &Value, items: Vec<Value>) -> Value {
    if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
}

fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    python::as_float(value).or_else(|| integer(value).map(|i| i as f64))
}

fn from_integer(i: i128) -> Value {
    i64::try_from(i).map_or_else(|_| Value::from(i), Value::from)
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    invalid(format!("unsupported operands for {operator}: {} and {}", a.kind(), b.kind()))
}
