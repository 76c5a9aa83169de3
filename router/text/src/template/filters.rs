//! Filters, tests and functions whose result in Jinja2 differs from that of minijinja.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::expression::{ADD, ATTRIBUTE, ITEM, MODULO, REPEAT, SLICE};
use super::lazy::LazyJson;
use super::methods::{capitalize, split_lines};
use super::operators;
use super::printf;
use super::python::{self, JsonDumpsOptions};
use super::rewrite::{ITERATE, VARIADIC};
use super::variadic::Variadic;
use super::views::{self, Generator};

/// Registers all of them.
pub(super) fn register(env: &mut Environment<'static>) {
    env.add_filter(ITERATE, iterate);
    env.add_filter("tojson", to_json);
    env.add_filter("trim", trim);
    env.add_filter("string", string);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("indent", indent);
    env.add_filter("items", items);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("list", list);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("title", title);
    env.add_filter("capitalize", |v: &Value| capitalize(&python::str_of(v)));
    env.add_filter("wordcount", |v: &Value| {
        python::str_of(v).split(|c: char| !is_word(c)).filter(|w| !w.is_empty()).count()
    });
    env.add_filter("center", center);
    env.add_filter("e", escape);
    env.add_filter("escape", escape);
    env.add_filter("forceescape", |v: &Value| Value::from_safe_string(escape_text(&python::str_of(v))));
    env.add_filter("truncate", truncate);
    env.add_filter("urlencode", url_encode);
    env.add_filter("format", format);
    env.add_filter("first", first);
    env.add_filter("last", last);
    env.add_filter("sort", sort);
    env.add_filter("dictsort", dict_sort);
    env.add_filter("wordwrap", word_wrap);
    env.add_filter("pprint", pretty);
    env.add_function(MODULO, operators::modulo);
    env.add_function(REPEAT, operators::repeat);
    env.add_function(ADD, operators::add);
    env.add_function(SLICE, operators::slice);
    env.add_function(ATTRIBUTE, views::attribute);
    env.add_function(ITEM, views::item);
    env.add_function("dict", dict);
    env.add_function(VARIADIC, Variadic::wrap);

    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_sequence);
    env.add_test("mapping", |v: &Value| v.kind() == ValueKind::Map && !views::is_namespace(v));
    env.add_test("number", |v: &Value| {
        matches!(v.kind(), ValueKind::Number | ValueKind::Bool) || python::number(v).is_some()
    });
    env.add_test("float", |v: &Value| python::as_float(v).is_some());
    env.add_test("integer", |v: &Value| v.is_integer() || python::number(v).is_some_and(|n| n.float.is_none()));
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain && python::number(v).is_none());
}

/// Arguments of a filter, by position or by name.
pub(super) struct FilterArguments<'a> {
    name: &'static str,
    positional: &'a [Value],
    kwargs: Kwargs,
}

impl<'a> FilterArguments<'a> {
    pub fn parse(name: &'static str, args: &'a [Value]) -> Result<Self, Error> {
        let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
        Ok(FilterArguments { name, positional, kwargs })
    }

    pub fn get(&self, index: usize, name: &str) -> Result<Option<Value>, Error> {
        match self.positional.get(index) {
            Some(value) => Ok(Some(value.clone())),
            None if self.kwargs.has(name) => self.kwargs.get(name).map(Some),
            None => Ok(None),
        }
    }

    pub fn truth(&self, index: usize, name: &str) -> Result<bool, Error> {
        Ok(self.get(index, name)?.is_some_and(|v| v.is_true()))
    }

    pub fn text(&self, index: usize, name: &str) -> Result<String, Error> {
        let value = self.get(index, name)?;
        value.map(|v| python::str_of(&v)).ok_or_else(|| invalid(format!("{}: argument {name} is missing", self.name)))
    }

    pub fn integer(&self, index: usize, name: &str) -> Result<Option<i64>, Error> {
        match self.get(index, name)? {
            Some(v) if !v.is_none() => i64::try_from(v).map(Some),
            _ => Ok(None),
        }
    }

    /// Rejects arguments that were not read.
    pub fn end(self, most: usize) -> Result<(), Error> {
        if self.positional.len() > most {
            return Err(invalid(format!("{} takes at most {most} arguments", self.name)));
        }
        self.kwargs.assert_all_used()
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

pub(super) fn iterate(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None => Err(invalid("'NoneType' object is not iterable")),
        ValueKind::String => Ok(chars(&value)),
        ValueKind::Iterable if value.len().is_none() => Ok(Value::from(value.try_iter()?.collect::<Vec<_>>())),
        _ => Ok(value),
    }
}

/// Converts positional arguments for a filter of the engine that takes them only by name.
pub(super) fn named(filter: &'static str, args: &[Value], names: &[&'static str]) -> Result<Kwargs, Error> {
    let call = FilterArguments::parse(filter, args)?;
    let mut found = Vec::new();
    for (i, name) in names.iter().enumerate() {
        found.extend(call.get(i, name)?.map(|value| (*name, value)));
    }
    call.end(names.len())?;
    Ok(Kwargs::from_iter(found))
}

fn sort(state: &State, value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let kwargs = named("sort", &args, &["reverse", "case_sensitive", "attribute"])?;
    minijinja::filters::sort(state, value, kwargs)
}

fn dict_sort(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    minijinja::filters::dictsort(value, named("dictsort", &args, &["case_sensitive", "by", "reverse"])?)
}

fn first(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None => iterate(value.clone()),
        _ => Ok(value.try_iter()?.next().unwrap_or_default()),
    }
}

fn last(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None => iterate(value.clone()),
        ValueKind::Iterable if value.len().is_none() => Err(invalid("'generator' object is not reversible")),
        _ => Ok(value.try_iter()?.last().unwrap_or_default()),
    }
}

/// Only values that fit on one line are supported; Python wraps longer ones.
fn pretty(value: &Value) -> Result<String, Error> {
    const WIDTH: usize = 80;
    fn sorted(value: &Value) -> Result<Value, Error> {
        Ok(match value.kind() {
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                keys.sort();
                let item = |key: Value| Ok((key.clone(), sorted(&value.get_item(&key)?)?));
                Value::from_pairs(keys.into_iter().map(item).collect::<Result<Vec<_>, Error>>()?)
            }
            ValueKind::Seq if !value.is_tuple() => {
                Value::from(value.try_iter()?.map(|item| sorted(&item)).collect::<Result<Vec<_>, Error>>()?)
            }
            _ => value.clone(),
        })
    }
    let mut out = String::new();
    python::write_repr(&mut out, &sorted(value)?);
    match out.chars().count() {
        0..=WIDTH => Ok(out),
        len => Err(invalid(format!("pprint: only values of up to {WIDTH} characters are supported, got {len}"))),
    }
}

/// Breaks lines only at spaces; text in which Python would break elsewhere is rejected.
fn word_wrap(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("wordwrap", &args)?;
    let width = usize::try_from(call.integer(0, "width")?.unwrap_or(79)).unwrap_or(1).max(1);
    let break_long = call.get(1, "break_long_words")?.is_none_or(|v| v.is_true());
    let wrap = call.get(2, "wrapstring")?.map_or_else(|| "\n".to_owned(), |v| python::str_of(&v));
    call.end(3)?;
    let text = python::str_of(value);
    let mut lines = Vec::new();
    for paragraph in split_lines(&text, false) {
        if paragraph.contains(['-', '\t']) || (break_long && paragraph.split(' ').any(|w| w.chars().count() > width)) {
            return Err(invalid("wordwrap: hyphens, tabs and words longer than the width are not supported"));
        }
        let (mut line, mut gap) = (String::new(), String::new());
        for word in paragraph.split(' ') {
            if word.is_empty() {
                gap.push(' ');
                continue;
            }
            if !line.is_empty() && line.chars().count() + gap.len() + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
                gap.clear();
            }
            line.push_str(&gap);
            line.push_str(word);
            gap = " ".to_owned();
        }
        lines.push(line);
    }
    Ok(lines.join(&wrap))
}

fn chars(text: &Value) -> Value {
    Value::from(text.as_str().unwrap_or_default().chars().map(|c| Value::from(c.to_string())).collect::<Vec<_>>())
}

/// The `tojson` of transformers: `json.dumps` with its arguments, but `ensure_ascii` is false by default.
fn to_json(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("tojson", &args)?;
    let mut dumps = JsonDumpsOptions {
        ensure_ascii: call.truth(0, "ensure_ascii")?,
        sort_keys: call.truth(3, "sort_keys")?,
        indent: match call.get(1, "indent")? {
            None => None,
            Some(v) if v.is_none() => None,
            Some(v) => match v.as_str() {
                Some(text) => Some(text.to_owned()),
                None => Some(" ".repeat(usize::try_from(i64::try_from(v)?).unwrap_or(0).min(64))),
            },
        },
        ..JsonDumpsOptions::default()
    };
    if dumps.indent.is_some() {
        dumps.item_separator = ",".into();
    }
    if let Some(separators) = call.get(2, "separators")?.filter(|v| !v.is_none()) {
        let pair: Vec<Value> = separators.try_iter()?.collect();
        let [item, key] = pair.as_slice() else {
            return Err(invalid("tojson: separators must be a pair of strings"));
        };
        dumps.item_separator = python::str_of(item);
        dumps.key_separator = python::str_of(key);
    }
    call.end(4)?;
    LazyJson::printed(value, &dumps, || dumps.dump(value))
}

fn trim(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("trim", &args)?;
    let chars = call.get(0, "chars")?.filter(|v| !v.is_none()).map(|v| python::str_of(&v));
    call.end(1)?;
    let text = python::str_of(value);
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => text.trim_matches(python::is_space),
    }
    .to_owned())
}

fn string(value: &Value) -> Value {
    match value.as_str() {
        Some(_) => value.clone(),
        None => Value::from(python::str_of(value)),
    }
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| invalid(format!("cannot calculate length of value of type {}", value.kind())))
}

/// Jinja2 appends a newline before splitting, so one trailing newline is kept.
fn indent(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("indent", &args)?;
    let unit = match call.get(0, "width")? {
        None => "    ".to_owned(),
        Some(v) => match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(v)?).unwrap_or(0).min(1024)),
        },
    };
    let (first, blank) = (call.truth(1, "first")?, call.truth(2, "blank")?);
    call.end(3)?;
    let text = python::str_of(value) + "\n";
    let mut out = String::with_capacity(text.len() + 64);
    for (i, line) in split_lines(&text, false).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            out.push_str(&unit);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => Generator::of(&minijinja::filters::items(value)?),
        _ => Err(invalid("Can only get item pairs from a mapping.")),
    }
}

fn default(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("default", &args)?;
    let other = call.get(0, "default_value")?.unwrap_or_else(|| Value::from(""));
    let boolean = call.truth(1, "boolean")?;
    call.end(2)?;
    Ok(if value.is_undefined() || (boolean && !value.is_true()) { other } else { value.clone() })
}

fn replace(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("replace", &args)?;
    let (old, new, count) = (call.text(0, "old")?, call.text(1, "new")?, call.integer(2, "count")?);
    call.end(3)?;
    let text = python::str_of(value);
    Ok(match count.and_then(|n| usize::try_from(n).ok()) {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    })
}

fn join(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("join", &args)?;
    let separator = call.get(0, "d")?.map(|v| python::str_of(&v)).unwrap_or_default();
    let attribute = call.get(1, "attribute")?.filter(|v| !v.is_none());
    call.end(2)?;
    let mut out = String::new();
    for (i, item) in iterate(value.clone())?.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(&separator);
        }
        let item = match &attribute {
            None => item,
            Some(path) => match path.as_str() {
                Some(path) => path.split('.').try_fold(item, |item, key| item.get_attr(key))?,
                None => item.get_item(path)?,
            },
        };
        out.push_str(&python::str_of(&item));
    }
    Ok(out)
}

fn list(value: Value) -> Result<Value, Error> {
    Ok(Value::from(iterate(value)?.try_iter()?.collect::<Vec<_>>()))
}

fn int(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("int", &args)?;
    let default = call.get(0, "default")?.unwrap_or_else(|| Value::from(0));
    let base = u32::try_from(call.integer(1, "base")?.unwrap_or(10)).unwrap_or(10);
    call.end(2)?;
    if let Some(text) = value.as_str() {
        let text = text.trim_matches(python::is_space);
        let digits = text.replace('_', "");
        let (base, digits) = radix(base, &digits);
        return Ok(match i128::from_str_radix(digits, base) {
            Ok(i) => i64::try_from(i).map_or_else(|_| Value::from(i), Value::from),
            // Jinja2 falls back to `int(float(value))`.
            Err(_) => digits.parse::<f64>().ok().filter(|x| x.is_finite()).map_or(default, |x| Value::from(x as i64)),
        });
    }
    Ok(match python::as_float(value) {
        Some(x) if x.is_finite() => i64::try_from(x as i128).map_or_else(|_| Value::from(x as i128), Value::from),
        Some(_) => default,
        None => match value.kind() {
            ValueKind::Bool => Value::from(i64::from(value.is_true())),
            ValueKind::Number => value.clone(),
            _ if python::number(value).is_some() => value.clone(),
            _ => default,
        },
    })
}

/// Removes a prefix that matches the base; base 0 takes the base from the prefix.
fn radix(base: u32, digits: &str) -> (u32, &str) {
    let lower = digits.to_ascii_lowercase();
    for (prefix, of) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if lower.starts_with(prefix) && (base == of || base == 0) {
            return (of, &digits[2..]);
        }
    }
    (if base == 0 { 10 } else { base.clamp(2, 36) }, digits)
}

fn float(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let call = FilterArguments::parse("float", &args)?;
    let default = call.get(0, "default")?.unwrap_or_else(|| Value::from(0.0));
    call.end(1)?;
    let parsed = match value.as_str() {
        Some(text) => text.trim_matches(python::is_space).parse().ok(),
        None => python::as_float(value).or_else(|| match value.kind() {
            ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
            ValueKind::Number => f64::try_from(value.clone()).ok(),
            _ => python::number(value).and_then(|n| n.text.parse().ok()),
        }),
    };
    Ok(parsed.map_or(default, python::from_float))
}

/// Uses Jinja2's word boundaries, which differ from those of `str.title`.
fn title(value: &Value) -> String {
    let mut start = true;
    let mut out = String::new();
    for c in python::str_of(value).chars() {
        if start {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        start = python::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

fn truncate(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    const LEEWAY: i64 = 5;
    let args = args.into_values();
    let call = FilterArguments::parse("truncate", &args)?;
    let length = call.integer(0, "length")?.unwrap_or(255);
    let kill_words = call.truth(1, "killwords")?;
    let end = call.get(2, "end")?.map_or_else(|| "...".to_owned(), |v| python::str_of(&v));
    let leeway = call.integer(3, "leeway")?.unwrap_or(LEEWAY);
    call.end(4)?;
    let text = python::str_of(value);
    let keep = usize::try_from(length - end.chars().count() as i64)
        .map_err(|_| invalid(format!("truncate: length {length} is shorter than its end {end:?}")))?;
    if text.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept: String = text.chars().take(keep).collect();
    let kept = if kill_words { kept.as_str() } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(kept, _)| kept) };
    Ok(format!("{kept}{end}"))
}

fn url_encode(value: &Value) -> String {
    let mut out = String::new();
    for byte in python::str_of(value).bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => out.push(byte as char),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn format(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (positional, kwargs): (&[Value], Kwargs) = from_args(&args)?;
    let named: Vec<(Value, Value)> =
        kwargs.args().map(|name| Ok((Value::from(name), kwargs.get(name)?))).collect::<Result<_, Error>>()?;
    let args = match named.is_empty() {
        true => Value::from(minijinja::value::Tuple::from(positional)),
        false => Value::from_pairs(named),
    };
    printf::format(&Value::from(python::str_of(value)), &args)
}

fn escape(value: &Value) -> Value {
    if value.is_safe() { value.clone() } else { Value::from_safe_string(escape_text(&python::str_of(value))) }
}

/// Escapes HTML with the same entities as MarkupSafe.
pub(super) fn escape_text(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Python's `dict`: takes a mapping or pairs, and keyword arguments.
fn dict(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (from, kwargs): (Option<Value>, Kwargs) = from_args(&args)?;
    let mut entries = Vec::new();
    if let Some(from) = from {
        for item in iterate(from.clone())?.try_iter()? {
            if from.kind() == ValueKind::Map {
                entries.push((item.clone(), from.get_item(&item)?));
            } else {
                let pair: Vec<Value> = item.try_iter()?.collect();
                let [key, value] = pair.as_slice() else {
                    return Err(invalid("dict() takes a mapping or pairs"));
                };
                entries.push((key.clone(), value.clone()));
            }
        }
    }
    for name in kwargs.args() {
        entries.push((Value::from(name), kwargs.get(name)?));
    }
    Ok(Value::from_pairs(entries))
}

fn center(value: &Value, width: Option<usize>) -> String {
    super::methods::pad(&python::str_of(value), width.unwrap_or(80), ' ', super::methods::Align::Center)
}

fn is_iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::None => false,
        ValueKind::Undefined | ValueKind::String => true,
        _ => value.try_iter().is_ok(),
    }
}

/// True for values that have a length and an index in Python. Slices are included: they are lazy in minijinja, but
/// lists in Python.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map => true,
        ValueKind::Iterable => value.len().is_some() && !views::is_view(value),
        _ => false,
    }
}
