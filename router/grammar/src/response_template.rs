//! Derives formats from a checkpoint's `response_template` (transformers): regions of reasoning, text and calls, whose
//! ends are literals or patterns. A pattern is understood if it is a sequence of literals, blanks and named groups.

use regex_syntax::hir::{Hir, HirKind, Look};
use serde_json::{Map, Value, json};

use crate::format::Format;
use crate::load::FormatError;

/// The name of such a format.
pub const RESPONSE_TEMPLATE: &str = "response_template";

/// Why a template gives no format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseTemplateError {
    #[error("{field}: {problem}")]
    Field { field: String, problem: &'static str },
    #[error("the derived format is not usable: {0}")]
    Format(#[from] FormatError),
}

/// A part of a delimiter.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// Layout of which the template does not say what the model writes.
    Blank,
    Slot(String),
}

/// What models write where the template allows any layout: between the marks of a call, and around a value.
#[derive(Clone, Copy)]
struct Layout {
    structure: &'static str,
    value: &'static str,
    /// A tag that the beginning of a call opens and its end does not close is closed before the end: as a part of the
    /// arguments, it needs no mention in the template.
    closes: bool,
}

/// What models write around marks and values, likely ways first.
const BLANKS: [(&str, &str); 4] = [("\n", "\n"), ("", ""), ("\n", ""), ("", "\n")];

/// The formats that a response template describes: one per layout that it leaves open, likely ones first.
/// `is_token`: whether the tokenizer has an added token with this text.
pub fn from_response_template(
    template: &Value,
    is_token: &dyn Fn(&str) -> bool,
) -> Result<Vec<&'static Format>, ResponseTemplateError> {
    let mut all: Vec<&'static Format> = Vec::new();
    let layouts = [true, false].into_iter().flat_map(|closes| BLANKS.map(|blanks| (closes, blanks)));
    for (closes, (structure, value)) in layouts {
        let layout = Layout { structure, value, closes };
        let format = Format::from_json(&Derivation { is_token, layout }.format(template)?.to_string())?;
        if !all.iter().any(|known| std::ptr::eq(*known, format)) {
            all.push(format);
        }
    }
    Ok(all)
}

struct Derivation<'a> {
    is_token: &'a dyn Fn(&str) -> bool,
    layout: Layout,
}

type Fields = Map<String, Value>;

fn wrong(field: &str, problem: &'static str) -> ResponseTemplateError {
    ResponseTemplateError::Field { field: format!("response_template.{field}"), problem }
}

impl Derivation<'_> {
    fn format(&self, template: &Value) -> Result<Value, ResponseTemplateError> {
        if template.get("version").is_some_and(|version| *version != 1) {
            return Err(wrong("version", "must be 1"));
        }
        let fields = template.get("fields").and_then(Value::as_object);
        let fields = fields.ok_or_else(|| wrong("fields", "must be an object"))?;
        let mut format =
            json!({"name": RESPONSE_TEMPLATE, "models": ["models with a response_template"], "markers": "either"});
        if let Some((name, field)) =
            ["reasoning_content", "thinking", "reasoning"].iter().find_map(|n| fields.get_key_value(*n))
        {
            format["reasoning"] = self.reasoning(name, field)?;
        }
        if let Some(content) = fields.get("content").filter(|content| content.get("open").is_some()) {
            let open = self.delimiter("content", content, "open")?;
            format["text"] = json!({"open": self.steps(&open), "close": []});
        }
        if let Some(calls) = fields.get("tool_calls") {
            let calls = calls.as_object().ok_or_else(|| wrong("fields.tool_calls", "must be an object"))?;
            self.calls(calls, &mut format)?;
        }
        Ok(format)
    }

    fn reasoning(&self, name: &str, field: &Value) -> Result<Value, ResponseTemplateError> {
        let close = self.delimiter(name, field, "close")?;
        let open = match self.delimiter(name, field, "open") {
            Ok(open) => open,
            // The prompt begins it: the mark is the one that `</x>` ends.
            Err(error) => match close.as_slice() {
                [Part::Text(end), ..] if end.starts_with("</") => vec![Part::Text(end.replacen("</", "<", 1))],
                _ => return Err(error),
            },
        };
        let newlines = close.last() == Some(&Part::Blank);
        // The model's own layout is dropped on both sides, as `strip` of the text does.
        let layout = if newlines { ["\n", "\n", "\n\n"] } else { ["\n", "\n", ""] };
        let mut open = self.steps(&open);
        if let [_, .., Value::Object(last)] = open.as_mut_slice()
            && last.get("lit").is_some_and(|lit| lit == "\n")
        {
            open.pop();
        }
        let markers = |steps: Vec<Value>| {
            steps.into_iter().filter(|step| step.get("lit") != Some(&json!("\n"))).collect::<Vec<_>>()
        };
        Ok(json!({"open": open, "close": markers(self.steps(&close)), "layout": layout}))
    }

    fn calls(&self, field: &Fields, format: &mut Value) -> Result<(), ResponseTemplateError> {
        let whole = Value::Object(field.clone());
        let open = self.delimiter("tool_calls", &whole, "open")?;
        let close = self.delimiter("tool_calls", &whole, "close")?;
        let first = open.iter().find_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None });
        if !first.is_some_and(|text| text.starts_with(['<', '[']) || (self.is_token)(text)) {
            return Err(wrong("fields.tool_calls.open", "does not begin with a marker"));
        }
        let named = open.iter().any(|part| *part == Part::Slot("name".into()));
        let transform = field.get("transform").cloned().unwrap_or_default();
        let function = transform.get("function").cloned().unwrap_or_default();
        format["many"] = json!(field.get("repeats") == Some(&json!(true)) || field.get("transform_each").is_some());
        format["lead"] = json!(self.layout.structure);
        let args = field.get("content_args").cloned().unwrap_or_default();
        let codec = match field.get("content").and_then(Value::as_str) {
            Some("json") if named && function["arguments"] == "{content}" => self.json(&args)?,
            Some("json") if !named => {
                let (name, arguments) = member_names(&function)?;
                json!({"object": {"members": [{"name": name}, {"arguments": arguments}], "ignored": ["id", "type"]}})
            }
            Some("xml-inline") if named && function["arguments"] == "{content}" => self.tags(&args)?,
            Some("python-call-list") => {
                self.list(&open, &close, format);
                format["call"] = json!(["name", {"lit": "("}, {"args": "python"}, {"lit": ")"}]);
                return Ok(());
            }
            _ => return Err(wrong("fields.tool_calls.content", "is not one that calls can be derived from")),
        };
        let args = json!({"args": codec});
        if field.get("transform_each") == Some(&json!(true)) {
            self.list(&open, &close, format);
            format["call"] = json!([args]);
            return Ok(());
        }
        let blank = self.structure();
        let inner = matches!(field["content"].as_str(), Some("xml-inline")) || !named;
        let around = if inner { blank.clone() } else { Vec::new() };
        format["between"] = json!(blank);
        let after = if codec_is_tags(field) { Vec::new() } else { around.clone() };
        let mut opened = self.steps(&open);
        let mut closed = self.steps(&close);
        if let Some(end) = left_open(&opened, &closed).filter(|_| self.layout.closes) {
            closed = [vec![json!({"tok": end})], blank, closed].concat();
        }
        opened.extend(around);
        format["call"] = json!(joined([opened, vec![args], after, closed].concat()));
        Ok(())
    }

    /// Calls are the items of a list between two markers.
    fn list(&self, open: &[Part], close: &[Part], format: &mut Value) {
        format["begin"] = json!([self.steps(open), literal("[")].concat());
        format["end"] = json!([literal("]"), self.steps(close)].concat());
        format["between"] = json!(literal(", "));
    }

    /// The codec of arguments in JSON, or in a dialect of it.
    fn json(&self, args: &Value) -> Result<Value, ResponseTemplateError> {
        let Some(delimiters) = args.get("string_delims").and_then(Value::as_array) else { return Ok(json!("json")) };
        match delimiters.as_slice() {
            [one] if one[0] == one[1] && args.get("unquoted_keys") == Some(&json!(true)) => Ok(json!({"bare": one[0]})),
            _ => Err(wrong("fields.tool_calls.content_args", "has string_delims that no codec has")),
        }
    }

    /// The codec of tags for each argument.
    fn tags(&self, args: &Value) -> Result<Value, ResponseTemplateError> {
        let field = "fields.tool_calls.content_args.tag_pattern";
        let pattern =
            args.get("tag_pattern").and_then(Value::as_str).ok_or_else(|| wrong(field, "must be a pattern"))?;
        let parts = parts(pattern).ok_or_else(|| wrong(field, "is more than literals, blanks and groups"))?;
        let value = parts.iter().position(|part| *part == Part::Slot("value".into()));
        let value = value.ok_or_else(|| wrong(field, "must have a group `value`"))?;
        let mut steps = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            match part {
                Part::Slot(name) if name == "key" => steps.push(json!("key")),
                Part::Slot(name) if name == "value" => steps.push(json!("value")),
                Part::Slot(_) => return Err(wrong(field, "has a group that is neither `key` nor `value`")),
                Part::Blank if at + 1 == value || at == value + 1 => steps.extend(literal(self.layout.value)),
                Part::Blank => steps.extend(self.structure()),
                Part::Text(text) => steps.extend(self.split(text, at == 0 || at > value)),
            }
        }
        steps.extend(self.structure());
        Ok(json!({"params": joined(steps)}))
    }

    fn structure(&self) -> Vec<Value> {
        literal(self.layout.structure)
    }

    /// A region's beginning or end: a literal, the first of several, or a pattern.
    fn delimiter(&self, name: &str, field: &Value, which: &str) -> Result<Vec<Part>, ResponseTemplateError> {
        let key = || format!("fields.{name}.{which}");
        let first =
            |value: &Value| value.as_array().map_or(value.clone(), |all| all.first().cloned().unwrap_or_default());
        if let Some(text) = field.get(which).map(first) {
            let text = text.as_str().map(str::to_owned).filter(|text| !text.is_empty());
            return text.map(|text| vec![Part::Text(text)]).ok_or_else(|| wrong(&key(), "must be a text"));
        }
        let pattern = field.get(format!("{which}_pattern")).and_then(Value::as_str);
        let pattern = pattern.ok_or_else(|| wrong(&key(), "is missing"))?;
        let parts = parts(pattern).filter(|parts| parts.iter().any(|part| matches!(part, Part::Text(_))));
        parts.ok_or_else(|| wrong(&format!("{}_pattern", key()), "is more than literals, blanks and groups"))
    }

    fn steps(&self, parts: &[Part]) -> Vec<Value> {
        let mut steps = Vec::new();
        let first = parts.iter().position(|part| *part != Part::Blank).unwrap_or_default();
        for (at, part) in parts.iter().enumerate() {
            match part {
                // Around a whole delimiter, layout is not the call's.
                Part::Blank if at < first || at + 1 == parts.len() => {}
                Part::Blank => steps.extend(self.structure()),
                Part::Slot(name) => steps.push(json!(name)),
                Part::Text(text) => {
                    let after_slot = at > 0 && matches!(parts[at - 1], Part::Slot(_));
                    steps.extend(self.split(text, !after_slot));
                }
            }
        }
        steps
    }

    /// Added tokens are markers, and so is what looks like a tag; the rest is literal. `begins`: a marker must come
    /// first.
    fn split(&self, text: &str, begins: bool) -> Vec<Value> {
        let mut steps: Vec<Value> = Vec::new();
        let mut rest = text;
        let token = |text: &str| {
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            ends.map(|end| &text[..end]).find(|text| (self.is_token)(text)).map(str::len)
        };
        while !rest.is_empty() {
            let tag = rest.starts_with('<') || begins && steps.is_empty();
            if let Some(n) = token(rest) {
                steps.push(json!({"tok": &rest[..n]}));
                rest = &rest[n..];
                continue;
            }
            let next = rest.char_indices().skip(1).map(|(at, _)| at).find(|at| {
                let ahead = &rest[*at..];
                ahead.starts_with('<') || token(ahead).is_some() || tag && ahead.starts_with(['"', '\n'])
            });
            let (part, left) = rest.split_at(next.unwrap_or(rest.len()));
            steps.push(if tag { json!({"tok": part}) } else { json!({"lit": part}) });
            rest = left;
        }
        steps
    }
}

/// The steps with neighbouring literals in one.
fn joined(steps: Vec<Value>) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for step in steps {
        match (all.last_mut().and_then(|last| last.get_mut("lit")), step["lit"].as_str()) {
            (Some(Value::String(before)), Some(text)) => before.push_str(text),
            _ => all.push(step),
        }
    }
    all
}

/// The end of a tag with an attribute that the first steps open and the last do not close.
fn left_open(open: &[Value], close: &[Value]) -> Option<String> {
    let tags = open.iter().filter_map(|step| step["tok"].as_str()?.strip_prefix('<'));
    let tag = tags.rev().find(|tag| !tag.ends_with('>'))?;
    let end = format!("</{}>", tag.split(['=', ' ']).next()?);
    (!close.iter().any(|step| step["tok"] == end.as_str())).then_some(end)
}

fn codec_is_tags(field: &Fields) -> bool {
    field.get("content").is_some_and(|content| content == "xml-inline")
}

fn literal(text: &str) -> Vec<Value> {
    if text.is_empty() { Vec::new() } else { vec![json!({"lit": text})] }
}

/// The members of a call's object that hold its name and its arguments.
fn member_names(function: &Value) -> Result<(Vec<String>, Vec<String>), ResponseTemplateError> {
    if *function == "{content}" {
        return Ok((vec!["name".into()], vec!["arguments".into(), "parameters".into()]));
    }
    let of = |key: &str| {
        let slot = function[key].as_str()?.strip_prefix('{')?.strip_suffix('}')?;
        let slot = slot.strip_prefix("content.").unwrap_or(slot);
        (!slot.is_empty() && !slot.contains('.')).then(|| vec![slot.to_owned()])
    };
    let names = of("name").zip(of("arguments"));
    names.ok_or_else(|| wrong("fields.tool_calls.transform", "must name a member for `name` and one for `arguments`"))
}

/// The parts of a pattern. None: it is more than literals, blanks and named groups.
fn parts(pattern: &str) -> Option<Vec<Part>> {
    let hir = regex_syntax::parse(pattern).ok()?;
    let mut parts = Vec::new();
    push(&hir, &mut parts)?;
    parts.dedup_by(|a, b| *a == Part::Blank && *b == Part::Blank);
    Some(parts)
}

fn push(hir: &Hir, parts: &mut Vec<Part>) -> Option<()> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(Look::End | Look::Start) => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            match (text.trim().is_empty(), parts.last_mut()) {
                (true, _) => parts.push(Part::Blank),
                (false, Some(Part::Text(before))) => before.push_str(text),
                (false, _) => parts.push(Part::Text(text.to_owned())),
            }
        }
        HirKind::Concat(all) => all.iter().try_for_each(|one| push(one, parts))?,
        HirKind::Capture(group) => match &group.name {
            Some(name) => parts.push(Part::Slot(name.to_string())),
            None => push(&group.sub, parts)?,
        },
        HirKind::Repetition(repetition) if is_blank(&repetition.sub) => parts.push(Part::Blank),
        HirKind::Class(_) if is_blank(hir) => parts.push(Part::Blank),
        // The end of the output beside a delimiter.
        HirKind::Alternation(all) => {
            let ends = |one: &&Hir| matches!(one.kind(), HirKind::Look(_));
            let mut others = all.iter().filter(|one| !ends(one));
            let one = others.next()?;
            others.next().is_none().then(|| push(one, parts)).flatten()?;
        }
        HirKind::Look(_) | HirKind::Class(_) | HirKind::Repetition(_) => return None,
    }
    Some(())
}

/// Whether it matches blanks only.
fn is_blank(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => literal.0.iter().all(u8::is_ascii_whitespace),
        HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => {
            let blank = |c: char| c.is_whitespace();
            class.ranges().iter().all(|range| (range.start()..=range.end()).all(blank))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
