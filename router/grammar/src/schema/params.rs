//! Grammars of arguments that are written one by one: as raw text between markers, or as Python keywords.

use serde_json::{Value, json};

use super::constants::{excluded, values};
use super::members::{Layout, MemberRule};
use super::object::{declared, with_patterns};
use super::spelled::Quotes;
use super::text::TextConstraints;
use super::{Compiler, Dialect, Schema};
use crate::json_schema::{is_type, types};
use crate::lark::{Writer, either, escape, literal};
use crate::limits::MAX_MAP_MEMBERS;
use crate::rules::RuleError;

/// The name of a Python keyword argument.
const KEYWORD: &str = r"([A-Za-z_]|[^\x00-\x7f])([A-Za-z0-9_]|[^\x00-\x7f]){0,63}";

/// What ends a raw value.
#[derive(Debug, Clone)]
pub(crate) struct Closer {
    /// Between the value and the marker.
    pub lead: String,
    /// The marker's letters. None: it is a special token.
    pub marker: Option<&'static str>,
    /// What the value must not contain, because it would end there.
    pub forbidden: Option<Forbidden>,
    /// From the marker on (after it, if it has letters), as an expression.
    pub rest: String,
    /// `lead`, marker and the rest, for a value that is JSON.
    pub whole: String,
    /// The same after no value. None: such a value is not written.
    pub empty: Option<String>,
    /// The value's lexeme ends with the marker at once: a token may follow.
    pub at_once: bool,
}

/// What ends a value within it.
#[derive(Debug, Clone)]
pub(crate) struct Forbidden {
    /// The letters of the end marker.
    pub marker: &'static str,
    /// What follows the marker if it ends the value, as a regular expression. None: it always ends it.
    pub follows: Option<String>,
    /// A regular expression for all that ends the value.
    pub ends: String,
}

impl Closer {
    /// The letters that follow the value.
    fn end(&self) -> String {
        format!("{}{}", self.lead, self.marker.unwrap_or_default())
    }
}

/// How one argument is written.
pub(crate) struct Pattern<'p> {
    /// The part before the value as an expression, given the key (None: any key) and the value's JSON type.
    pub before: &'p dyn Fn(&mut Writer, Option<&str>, &str) -> String,
    pub closer: Closer,
    /// Whether an argument with this key is read back.
    pub reads: &'p dyn Fn(&str) -> bool,
    /// The text before the value distinguishes types.
    pub typed: bool,
    /// It distinguishes strings from everything else.
    pub string_or_not: bool,
}

/// What a raw string may be.
pub(super) enum Text {
    Free,
    Constants(Vec<String>),
    Constrained(TextConstraints),
    /// The reference to its grammar.
    Grammar(String),
    /// Terminals of other values than strings.
    Scalars(Vec<String>),
    /// One of these.
    AnyOf(Vec<Text>),
}

impl Text {
    /// As an expression of terminals.
    fn expression(&self) -> String {
        match self {
            Text::Free | Text::Grammar(_) => "/(?s:.*)/".to_owned(),
            Text::Constants(all) => all.iter().map(|text| literal(text)).collect::<Vec<_>>().join(" | "),
            Text::Constrained(constraints) => constraints.expression(Quotes::Raw),
            Text::Scalars(all) => all.join(" | "),
            Text::AnyOf(all) => {
                let all: Vec<_> = all.iter().map(|text| format!("({})", text.expression())).collect();
                format!("({})", all.join(" | "))
            }
        }
    }

    fn takes_empty(&self) -> bool {
        match self {
            Text::Free | Text::Grammar(_) => true,
            Text::Constants(all) => all.iter().any(String::is_empty),
            Text::Constrained(constraints) => constraints.takes_empty(),
            Text::Scalars(_) => false,
            Text::AnyOf(all) => all.iter().any(Text::takes_empty),
        }
    }
}

impl Compiler<'_, '_, '_> {
    /// The properties of the object as arguments between markers.
    pub fn arguments(&mut self, pattern: &Pattern<'_>) -> Result<String, RuleError> {
        self.each_object(&mut |this, flat| {
            let mut members = Vec::new();
            let other = match this.rest(flat) {
                // The name may be a declared one: only validation can tell.
                Some(rest) => this.argument(None, &rest, false, pattern)?,
                None => None,
            };
            for (name, schema, required) in declared(flat) {
                // The format cannot write this name.
                if !(pattern.reads)(&name) {
                    let path = format!("/properties/{name}");
                    if required {
                        return Err(this.refuse(&path, "properties", "the model's tool format cannot write this name"));
                    }
                    this.relax("", &format!("properties/{name}"));
                    continue;
                }
                match this.argument(Some(&name), &with_patterns(flat, &name, schema), required, pattern)? {
                    Some(rule) => members.push(MemberRule { rule, required }),
                    None if required => return Ok(None),
                    None => {}
                }
            }
            Ok(Some((members, other)))
        })
    }

    /// What undeclared properties may be, if the schema constrains them, which is then a relaxation.
    fn rest(&mut self, flat: &Schema) -> Option<Value> {
        const SPEAK: &[&str] = &["additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"];
        for key in ["patternProperties", "propertyNames"] {
            if flat.contains_key(key) {
                self.relax("", key);
            }
        }
        let rest = flat.get("additionalProperties").or_else(|| flat.get("unevaluatedProperties"));
        let rest = match rest.cloned() {
            _ if flat.contains_key("patternProperties") => Value::Bool(true),
            Some(rest) => rest,
            None => Value::Bool(!flat.contains_key("properties") && SPEAK.iter().any(|k| flat.contains_key(*k))),
        };
        if rest == Value::Bool(false) {
            return None;
        }
        self.relax("", "additionalProperties");
        Some(rest)
    }

    /// The properties of the object as Python keywords or as elements; one that cannot be spelled so cannot be written.
    pub fn named(&mut self, spell: &dyn Fn(&str) -> Option<String>) -> Result<String, RuleError> {
        self.each_object(&mut |this, flat| {
            let mut members = Vec::new();
            for (name, schema, required) in declared(flat) {
                let path = format!("/properties/{name}");
                match (this.value(&with_patterns(flat, &name, schema), &path)?, spell(&name)) {
                    (Some(value), Some(key)) => {
                        let rule = match this.nests() {
                            true => this.member(&name, &value),
                            false => format!("{} {value}", literal(&format!("{key}="))),
                        };
                        members.push(MemberRule { rule, required });
                    }
                    (Some(_), None) if required => {
                        return Err(this.refuse(&path, "properties", "the name cannot be a Python keyword argument"));
                    }
                    (None, _) if required => return Ok(None),
                    _ => {}
                }
            }
            let other = match this.rest(flat) {
                Some(rest) => this.value(&rest, "/additionalProperties")?,
                None => None,
            };
            let taken: Vec<String> = declared(flat).into_iter().map(|(name, ..)| name).collect();
            let other = other.map(|value| {
                let key = match this.nests() {
                    true => this.other_key(&taken),
                    false => this.other_keyword(&taken),
                };
                format!("{key} {value}")
            });
            Ok(Some((members, other)))
        })
    }

    /// Any keyword but these.
    fn other_keyword(&mut self, taken: &[String]) -> String {
        let taken: Vec<_> = taken.iter().map(|name| literal(name)).collect();
        let but = if taken.is_empty() { String::new() } else { format!(" & ~({})", taken.join(" | ")) };
        self.w().terminal(&format!("(/{KEYWORD}/{but}) \"=\""))
    }

    /// One sequence per way to satisfy the root.
    #[allow(clippy::type_complexity)]
    fn each_object(
        &mut self,
        members: &mut dyn FnMut(&mut Self, &Schema) -> Result<Option<(Vec<MemberRule>, Option<String>)>, RuleError>,
    ) -> Result<String, RuleError> {
        let nothing = Schema::new();
        let root = self.root.as_object().unwrap_or(&nothing);
        let comma = if self.dialect == Dialect::Python { self.comma() } else { String::new() };
        let mut all = Vec::new();
        for flat in self.ways(root, "")? {
            self.unsupported(&flat, "");
            let types = types(&flat);
            if !types.is_empty() && !types.contains(&"object") {
                continue;
            }
            for key in ["minProperties", "maxProperties", "const", "enum"] {
                if flat.contains_key(key) {
                    self.relax("", key);
                }
            }
            if let Some((members, other)) = members(self, &flat)? {
                let other = other.map(|rule| self.w().rule(&rule));
                let (others, in_order) = (MAX_MAP_MEMBERS, self.work.in_order);
                let (comma, close, min, max) = (comma.clone(), String::new(), 0, usize::MAX);
                let layout = Layout { comma, close, min, max, other, others, in_order };
                let body = self.sequence(members, layout);
                let body = if body.is_empty() { "\"\"".to_owned() } else { body };
                all.push(self.w().rule(&body));
            }
        }
        all.dedup();
        if all.is_empty() {
            return Err(self.refuse("", "type", "no object satisfies the schema"));
        }
        Ok(either(&all))
    }

    /// An argument with this key, or with any key.
    fn argument(
        &mut self,
        key: Option<&str>,
        schema: &Value,
        required: bool,
        pattern: &Pattern<'_>,
    ) -> Result<Option<String>, RuleError> {
        let path = key.map_or_else(|| "/additionalProperties".to_owned(), |key| format!("/properties/{key}"));
        let flats = match schema {
            Value::Bool(false) => return Ok(None),
            Value::Object(map) => self.ways(map, &path)?,
            _ => vec![Schema::new()],
        };
        let (mut texts, mut others) = self.kinds(&flats, &pattern.closer, &path)?;
        let closer = &pattern.closer;
        let told_apart = pattern.typed || pattern.string_or_not;
        // No value at all: an argument that is absent, if it cannot be an empty string.
        let absent = closer.empty.clone().filter(|_| texts.is_empty() && !others.is_empty() && !required);
        let bound = texts.iter().any(|text| matches!(text, Text::Constrained(_)))
            && !texts.iter().any(|text| matches!(text, Text::Grammar(_)));
        if !told_apart && !others.is_empty() && bound {
            // One lexeme tells them apart, which a list or an object is not.
            match others.iter().all(|(_, rule)| rule.starts_with(['T', '"'])) {
                true => texts.push(Text::Scalars(others.drain(..).map(|(_, rule)| rule).collect())),
                false => {
                    for flat in &flats {
                        let keywords = ["minLength", "maxLength", "pattern", "format"];
                        keywords.iter().filter(|key| flat.contains_key(**key)).for_each(|key| self.relax(&path, key));
                    }
                    texts = vec![Text::Free];
                }
            }
        }
        let free = texts.iter().any(|t| matches!(t, Text::Free));
        let texts: Vec<String> = match (free, texts.iter().any(|text| matches!(text, Text::Scalars(_)))) {
            (true, _) => vec![self.raw(&Text::Free, closer)],
            (false, true) => vec![self.raw(&Text::AnyOf(texts), closer)],
            (false, false) => texts.iter().map(|t| self.raw(t, closer)).collect(),
        };
        let others = others.into_iter().map(|(kind, rule)| (kind, format!("{rule} {}", closer.whole)));
        let mut all = Vec::new();
        if told_apart {
            if !texts.is_empty() {
                all.push(format!("{} {}", (pattern.before)(self.work.writer, key, "string"), either(&texts)));
            }
            let others: Vec<(&str, String)> = others.collect();
            let kind = others.first().map(|(kind, _)| *kind);
            for (kind, rule) in others.into_iter().chain(kind.zip(absent)) {
                all.push(format!("{} {rule}", (pattern.before)(self.work.writer, key, kind)));
            }
        } else {
            // Free text matches anything, so nothing else can be distinguished from it.
            let values: Vec<_> = match free {
                true => texts,
                false => texts.into_iter().chain(others.map(|(_, rule)| rule)).chain(absent).collect(),
            };
            // Without a group, which would be a symbol more.
            let before = (pattern.before)(self.work.writer, key, "");
            all.extend(values.iter().map(|value| format!("{before} {value}")));
        }
        if all.is_empty() {
            return Ok(None);
        }
        let body = all.join(" | ");
        Ok(Some(self.w().rule(&body)))
    }

    /// What a raw value may be: as a string, and as each other type.
    #[allow(clippy::type_complexity)]
    pub(super) fn kinds(
        &mut self,
        flats: &[Schema],
        closer: &Closer,
        path: &str,
    ) -> Result<(Vec<Text>, Vec<(&'static str, String)>), RuleError> {
        let (mut texts, mut others): (Vec<Text>, Vec<(&'static str, String)>) = (Vec::new(), Vec::new());
        for flat in flats {
            self.unsupported(flat, path);
            if let Some(allowed) = values(flat) {
                let (strings, rest): (Vec<_>, Vec<_>) = allowed.into_iter().partition(Value::is_string);
                // A string that contains the letters that end it cannot be written.
                let writable = |s: &&str| !closer.forbidden.as_ref().is_some_and(|no| s.contains(no.marker));
                let strings: Vec<_> =
                    strings.iter().filter_map(Value::as_str).filter(writable).map(str::to_owned).collect();
                if !strings.is_empty() {
                    texts.push(Text::Constants(strings));
                }
                for value in rest {
                    let rules = self.constants(std::slice::from_ref(&value), path)?;
                    others.extend(rules.into_iter().map(|rule| (type_of(&value), rule)));
                }
                continue;
            }
            let mut types = types(flat);
            if types.is_empty() {
                types = vec!["string", "number", "boolean", "null", "object", "array"];
            }
            for kind in types {
                if kind == "string" {
                    texts.extend(self.text(flat, path, closer)?);
                    continue;
                }
                let mut one = flat.clone();
                one.insert("type".into(), json!(kind));
                let excluded = excluded(flat);
                let banned: Vec<&Value> = excluded.iter().filter(|value| is_type(value, kind)).collect();
                let rule = match (kind, one.len()) {
                    ("object", 1) => Some(self.any_object()),
                    ("array", 1) => Some(self.any_array()),
                    // As terminals.
                    ("null", _) => banned.is_empty().then(|| self.null()),
                    ("boolean", _) => self.boolean(&banned),
                    // The value itself would be this one again.
                    _ if self.nests() => self.flat(&one, path)?.pop(),
                    _ => self.value(&Value::Object(one), path)?,
                };
                others.extend(rule.map(|rule| (written_type(kind), rule)));
            }
        }
        Ok((texts, others))
    }

    /// What a string's schema requires of its raw text. None: nothing satisfies it.
    fn text(&mut self, flat: &Schema, path: &str, closer: &Closer) -> Result<Option<Text>, RuleError> {
        if let Some(grammar) = self.raw_grammar(flat, path, &closer.end())? {
            return Ok(Some(Text::Grammar(grammar)));
        }
        let Some(constraints) = self.texts(flat, path)? else { return Ok(None) };
        let constraints = self.excluding(constraints, excluded(flat).iter().filter_map(Value::as_str), path)?;
        Ok(Some(if constraints.is_free() { Text::Free } else { Text::Constrained(constraints) }))
    }

    /// Any raw string and everything up to the next argument. It may hold its own end marker, which ends it only
    /// before a marker of the call: after each other one it goes on.
    fn raw_text(&mut self, closer: &Closer, ends: &str, follows: &str) -> String {
        let end = literal(&closer.end());
        let ends = self.w().regex(&format!("(?s:.*)({ends})(?s:.*)"));
        let follows = self.w().regex(&format!("{follows}(?s:.*)"));
        let first = self.w().lazy(&format!("(/(?s:.*)/ & ~{ends}) {end}"));
        let more = self.w().lazy(&format!("(/(?s:.*)/ & ~{ends} & ~{follows}) {end}"));
        format!("{first} {more}* {}", closer.rest)
    }

    /// A raw string and everything up to the next argument.
    pub(super) fn raw(&mut self, text: &Text, closer: &Closer) -> String {
        if let (Text::Free, Some(_), Some(Forbidden { follows: Some(follows), ends, .. })) =
            (text, closer.marker, &closer.forbidden)
        {
            return self.raw_text(closer, ends, follows);
        }
        let end = closer.end();
        let suffix = if end.is_empty() { String::new() } else { format!(" {}", literal(&end)) };
        let body = match text {
            Text::Grammar(grammar) => return format!("{grammar}{suffix} {}", closer.rest),
            Text::Constants(all) => all.iter().map(|s| literal(&format!("{s}{end}"))).collect::<Vec<_>>().join(" | "),
            Text::Free | Text::Constrained(_) | Text::Scalars(_) | Text::AnyOf(_) => {
                let mut all = vec![text.expression()];
                // The length of a text that its end marker divides could not be counted.
                all.extend(closer.forbidden.as_ref().map(|no| match (text, closer.marker) {
                    (Text::Free, None) => format!("~/(?s:.*)({})(?s:.*)/", no.ends),
                    _ => format!("~/(?s:.*){}(?s:.*)/", escape(no.marker)),
                }));
                format!("({}){suffix}", all.join(" & "))
            }
        };
        if body == "\"\"" {
            return closer.rest.clone();
        }
        let lexeme = if closer.at_once { self.w().lazy(&body) } else { self.w().terminal(&body) };
        // A lexeme cannot be empty, but a value can.
        let lexeme = if end.is_empty() && text.takes_empty() { format!("{lexeme}?") } else { lexeme };
        format!("{lexeme} {}", closer.rest)
    }

    /// Any arguments: names are enforced, arguments are not.
    pub fn any_arguments(&mut self, pattern: &Pattern<'_>) -> String {
        let free = self.raw(&Text::Free, &pattern.closer);
        let whole = pattern.closer.whole.clone();
        let mut all = Vec::new();
        if pattern.typed || pattern.string_or_not {
            all.push(format!("{} {free}", (pattern.before)(self.work.writer, None, "string")));
            let (object, array, number) = (self.any_object(), self.any_array(), self.any_number());
            let (boolean, null) = (self.boolean(&[]).unwrap_or_default(), self.null());
            for (kind, rule) in
                [("object", object), ("array", array), ("number", number), ("boolean", boolean), ("null", null)]
            {
                all.push(format!("{} {rule} {whole}", (pattern.before)(self.work.writer, None, kind)));
            }
        } else {
            all.push(format!("{} {free}", (pattern.before)(self.work.writer, None, "")));
        }
        let one = self.w().rule(&all.join(" | "));
        format!("{one}*")
    }

    /// Any Python keywords.
    pub fn any_keywords(&mut self) -> String {
        let (value, comma) = (self.any(), self.comma());
        let key = self.w().regex(&format!("{KEYWORD}="));
        self.w().rule(&format!("({key} {value} ({comma} {key} {value})*)?"))
    }
}

/// As formats name it that write the type beside the value.
fn written_type(kind: &str) -> &'static str {
    match kind {
        "object" => "object",
        "array" => "array",
        "boolean" => "boolean",
        "null" => "null",
        _ => "number",
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
