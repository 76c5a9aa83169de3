//! Writes the grammar of one tool's call: the format's steps with the tool's name and schema.

use serde_json::{Value, json};

use super::count::Count;
use super::marker::{GrammarPart, Marking, Missing, after_name, join, lit};
use crate::codec::params::Shape;
use crate::codec::{code, python};
use crate::format::{CallIdStyle, Codec, Markers, Member, Step};
use crate::json_schema::local;
use crate::lark::{GrammarForm, Writer, escape, literal, some_blanks};
use crate::marks::{Lexicon, Mark};
use crate::rules::{Enforcement, RuleError};
use crate::schema::{Closer, Compiler, Dialect, Forbidden, Pattern, Work, quoted};
use crate::tools::Tool;
use crate::unmarked::{BareBeginning, bare_beginnings, ignored_members, keys, simple_member};
use crate::validate::accepts;

/// Names of undeclared arguments.
const ANY_KEY: &str = r#"[^\x00-\x20\x7f"'<>=\/\\|(){}\[\],:;]{1,64}"#;

pub(super) struct Caller<'a> {
    pub marking: &'a Marking<'a>,
    pub count: Option<&'a Count>,
    /// Arguments without the call around them.
    pub alone: bool,
}

/// Why a call cannot be written as a grammar.
pub(super) enum CallError {
    Missing(Missing),
    Rule(RuleError),
}

impl From<Missing> for CallError {
    fn from(e: Missing) -> Self {
        CallError::Missing(e)
    }
}

impl From<RuleError> for CallError {
    fn from(e: RuleError) -> Self {
        CallError::Rule(e)
    }
}

impl Caller<'_> {
    /// The pieces of a call of this tool.
    pub fn call(&self, work: &mut Work<'_>, tool: &Tool, enforced: Enforcement) -> Result<Vec<GrammarPart>, CallError> {
        self.written(work, tool, enforced, self.marking.format.call)
    }

    /// The pieces of the call with the format's other heads. `call`: with its own.
    pub fn other_heads(&self, tool: &Tool, call: &[GrammarPart]) -> Result<Vec<Vec<GrammarPart>>, CallError> {
        let marker = call.iter().rposition(|part| matches!(part, GrammarPart::Token(_)));
        let arguments = &call[marker.map_or(0, |at| at + 1)..];
        let head = |steps: &[Step]| {
            let mut parts = Vec::new();
            for (at, step) in steps.iter().enumerate() {
                match step {
                    Step::Name => parts.push(GrammarPart::Text(tool.name.clone())),
                    // In text, only the whole of it tells a call.
                    Step::Lit(l) if at == 0 => parts.push(GrammarPart::Regex(escape(l))),
                    step => parts.extend(self.marking.plain(std::slice::from_ref(step))?),
                }
            }
            parts.extend_from_slice(arguments);
            Ok(parts)
        };
        self.marking.format.also.iter().map(|steps| head(steps)).collect()
    }

    /// The pieces of a built-in call of this tool. None: it has none, or the schema could not be enforced in it.
    pub fn builtin(
        &self,
        work: &mut Work<'_>,
        tool: &Tool,
        enforced: Enforcement,
    ) -> Result<Option<Vec<GrammarPart>>, CallError> {
        let builtin = self.marking.format.builtins.iter().find(|b| b.names.contains(&tool.name.as_str()));
        let Some(builtin) = builtin else { return Ok(None) };
        let token = matches!(builtin.call, [Step::Tok(t), ..] if self.marking.vocab.special_id(t).is_some());
        let code = builtin.call.contains(&Step::Args(Codec::Code));
        let free = enforced != Enforcement::NamesAndArguments || takes_any_text(tool);
        if !token || code && !free {
            return Ok(None);
        }
        self.written(work, tool, enforced, builtin.call).map(Some)
    }

    /// The ways in which a call of this tool is written without a marker.
    pub fn bare(
        &self,
        work: &mut Work<'_>,
        tool: &Tool,
        enforced: Enforcement,
        call: &[GrammarPart],
    ) -> Result<Vec<Unmarked>, CallError> {
        let BareBeginning { lead, tails } = bare_beginnings(self.marking.format, &[&tool.name]);
        let unmarked = |(tail, rest)| Unmarked { lead: lead.clone(), tail, rest };
        let Codec::Object { members, ignored } = self.marking.format.codec() else {
            let rest = join(work.writer, after_name(&tool.name, call));
            return Ok(tails.into_iter().map(|tail| unmarked((tail, rest.clone()))).collect());
        };
        let schema = arguments_schema(tool, enforced);
        let field = format!("tools[{}].function.parameters", tool.name);
        let arguments = Compiler::new(work, &schema, &tool.name, field, Dialect::Json).document()?;
        let blanks = self.marking.form.blanks();
        let mut last = ignored_members(ignored, &blanks, |member| format!("{blanks},{blanks}{member}"));
        let ids: Vec<&str> = members.iter().filter_map(Member::id).flatten().copied().collect();
        if !ids.is_empty() {
            last.push_str(&format!("({blanks},{blanks}{})?", simple_member(&ids, &blanks)));
        }
        let last = work.writer.regex(&format!("{last}{blanks}\\}}{blanks}"));
        let blank = work.writer.regex(&some_blanks());
        let rests = [format!("{blank}? {arguments} {last}"), format!("{blank}?")];
        let most = if accepts(&schema, &json!({})) { 2 } else { 1 };
        Ok(tails.into_iter().zip(rests).take(most).map(unmarked).collect())
    }

    fn written(
        &self,
        work: &mut Work<'_>,
        tool: &Tool,
        enforced: Enforcement,
        steps: &'static [Step],
    ) -> Result<Vec<GrammarPart>, CallError> {
        let mut out = Vec::new();
        let gap = |steps: Option<&Step>| match steps {
            Some(Step::Args(Codec::Params(steps))) => self.gap(steps),
            _ => None,
        };
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Tok(_) | Step::Maybe(_) => {
                    let mut pieces = self.marking.plain(std::slice::from_ref(step))?;
                    let arguments = steps[..at].last();
                    if let (Some(gap), [GrammarPart::Text(text)]) = (gap(arguments), pieces.as_slice()) {
                        pieces = vec![with_gap(gap, text)];
                    }
                    // The arguments have the mark of this tag.
                    if let (Some(Step::Args(Codec::Elements(_))), [GrammarPart::Text(text)]) =
                        (arguments, pieces.as_mut_slice())
                        && let Some(tag) = self.marking.format.string_mark().and_then(|mark| text.strip_prefix(mark))
                    {
                        *text = tag.to_owned();
                    }
                    out.extend(pieces);
                }
                // Models omit what precedes the name.
                Step::Lit(l) if l.ends_with('.') && steps.get(at + 1) == Some(&Step::Name) => {
                    let word = l.rfind(['=', ' ']).map_or(0, |at| at + 1);
                    let optional = if self.marking.form == GrammarForm::Tolerant { "?" } else { "" };
                    let prefix = format!("{}({}){optional}", escape(&l[..word]), escape(&l[word..]));
                    out.push(GrammarPart::Regex(prefix));
                }
                Step::Lit(l) => out.push(lit(l, self.marking.form)),
                Step::Name => out.push(GrammarPart::Text(tool.name.clone())),
                Step::Index | Step::Ordinal => out.push(self.number()),
                Step::Id => out.push(self.id()),
                Step::Args(codec) => {
                    let field = format!("tools[{}].function.parameters", tool.name);
                    self.arguments(*codec, work, tool, field, enforced, &mut out)?;
                }
                Step::Key | Step::Value | Step::Type | Step::IsString => {}
            }
        }
        Ok(out)
    }

    fn number(&self) -> GrammarPart {
        match self.count {
            Some(count) => GrammarPart::Rule(format!("{}::_", count.digits)),
            None => GrammarPart::Regex("(0|[1-9][0-9]{0,3})".into()),
        }
    }

    fn id(&self) -> GrammarPart {
        match self.marking.format.ids {
            CallIdStyle::Ordinal => self.number(),
            _ => GrammarPart::Regex("[a-zA-Z0-9]{9}".into()),
        }
    }

    /// `field`: where the schema is in the request.
    pub fn arguments(
        &self,
        codec: Codec,
        work: &mut Work<'_>,
        tool: &Tool,
        field: String,
        enforced: Enforcement,
        out: &mut Vec<GrammarPart>,
    ) -> Result<(), CallError> {
        let names_only = enforced != Enforcement::NamesAndArguments;
        let dialect = match codec {
            Codec::Python => Dialect::Python,
            Codec::Bare(_) => Dialect::Bare(self.marking.format.string_mark().unwrap_or_default()),
            Codec::Elements(_) => Dialect::Elements(self.marking.format.string_mark().unwrap_or_default()),
            Codec::Tagged(tags) => Dialect::Tagged(tags),
            _ => Dialect::Json,
        };
        let schema = arguments_schema(tool, enforced);
        let mut compiler = Compiler::new(work, &schema, &tool.name, field, dialect);
        match codec {
            Codec::Elements(_) => out.push(GrammarPart::Rule(compiler.document()?)),
            Codec::Json | Codec::Bare(_) => {
                let rule = compiler.document()?;
                let blanks = self.marking.form.blanks();
                out.extend([GrammarPart::Regex(blanks.clone()), GrammarPart::Rule(rule), GrammarPart::Regex(blanks)]);
            }
            Codec::Object { members, ignored } => {
                let canonical = self.marking.form == GrammarForm::Canonical;
                let blanks = self.marking.form.blanks();
                let ignored = if canonical { &[][..] } else { ignored };
                // As a JSON writer lays it out.
                let space = if canonical { " ?".to_owned() } else { blanks.clone() };
                let arguments = compiler.document()?;
                // A call without arguments has none.
                let optional = members.len() > 1 && accepts(&schema, &json!({}));
                out.push(GrammarPart::Regex(blanks.clone()));
                let first = ignored_members(ignored, &blanks, |member| format!("{member}{blanks},{blanks}"));
                out.push(GrammarPart::Regex(format!("\\{{{blanks}{first}")));
                for (i, member) in members.iter().enumerate() {
                    let (Member::Name(names) | Member::Arguments(names) | Member::Id(names)) = member;
                    let mut key = format!("{}{blanks}:{space}", keys(names.iter()));
                    if i > 0 {
                        let between = ignored_members(ignored, &blanks, |member| format!("{blanks},{blanks}{member}"));
                        key = format!("{between}{blanks},{space}{key}");
                    }
                    match member {
                        Member::Arguments(_) if optional && i > 0 => {
                            let key = work.writer.regex(&key);
                            out.push(GrammarPart::Rule(work.writer.rule(&format!("({key} {arguments})?"))));
                            continue;
                        }
                        _ => out.push(GrammarPart::Regex(key)),
                    }
                    match member {
                        Member::Name(_) => out.push(GrammarPart::Text(quoted(&tool.name))),
                        Member::Arguments(_) => out.push(GrammarPart::Rule(arguments.clone())),
                        Member::Id(_) => {
                            out.extend([GrammarPart::Text("\"".into()), self.id(), GrammarPart::Text("\"".into())])
                        }
                    }
                }
                let last = ignored_members(ignored, &blanks, |member| format!("{blanks},{blanks}{member}"));
                out.extend([GrammarPart::Regex(format!("{last}{blanks}\\}}")), GrammarPart::Regex(blanks)]);
            }
            Codec::Keyed => {
                let blanks = self.marking.form.blanks();
                let space = if self.marking.form == GrammarForm::Canonical { " ?" } else { &blanks };
                let arguments = compiler.document()?;
                out.extend([
                    GrammarPart::Regex(format!("{blanks}\\{{{blanks}")),
                    GrammarPart::Text(quoted(&tool.name)),
                    GrammarPart::Regex(format!("{blanks}:{space}")),
                    GrammarPart::Rule(arguments),
                    GrammarPart::Regex(format!("{blanks}\\}}")),
                    GrammarPart::Regex(blanks),
                ]);
            }
            Codec::Params(steps) => {
                let before = steps.split(|s| *s == Step::Value).next().unwrap_or_default();
                let after = steps.get(before.len() + 1..).unwrap_or_default();
                let closer = self.closer(compiler.work, after)?;
                // Markers were found above or are found here; a format has either all or none.
                self.before(before, None, "")?;
                let gap = self.gap(steps);
                let spell = |w: &mut Writer, key: Option<&str>, kind: &str| {
                    let pieces = self.before(before, key, kind).expect("the markers were found above");
                    join(w, &gap.iter().cloned().chain(pieces).collect::<Vec<_>>())
                };
                let shape = Shape::of(steps);
                let pattern = Pattern {
                    before: &spell,
                    closer,
                    reads: &|key| shape.is_none_or(|shape| key.is_empty() || shape.reads(key)),
                    typed: before.contains(&Step::Type),
                    string_or_not: before.contains(&Step::IsString),
                };
                let rule = if names_only { compiler.any_arguments(&pattern) } else { compiler.arguments(&pattern)? };
                out.push(GrammarPart::Rule(rule));
            }
            Codec::Tagged(tags) => {
                let rule = if names_only {
                    compiler.any_tagged(tags)
                } else {
                    compiler.named(&|name| Some(name.to_owned()))?
                };
                out.push(GrammarPart::Rule(rule));
            }
            // Text that begins like another call is one.
            Codec::Code => {
                let other = r"[ \t\r\n]*(\{|[^ \t\r\n(]*\.call\()(?s:.*)";
                out.push(GrammarPart::Rule(compiler.work.writer.terminal(&format!("/(?s:.+)/ & ~/{other}/"))));
            }
            Codec::Python => {
                let rule = if names_only { compiler.any_keywords() } else { compiler.named(&python::keyword)? };
                out.push(GrammarPart::Rule(rule));
            }
        }
        Ok(())
    }

    /// The part before the value of the argument with this key, or of any argument.
    fn before(&self, steps: &[Step], key: Option<&str>, kind: &str) -> Result<Vec<GrammarPart>, Missing> {
        let mut out = Vec::new();
        for step in steps {
            match step {
                Step::Tok(_) | Step::Maybe(_) => out.extend(self.marking.plain(std::slice::from_ref(step))?),
                // Blanks before a raw value belong to it.
                Step::Lit(l) => out.push(GrammarPart::Text((*l).to_owned())),
                Step::Key => out.push(
                    key.map_or_else(|| GrammarPart::Regex(ANY_KEY.into()), |key| GrammarPart::Text(key.to_owned())),
                ),
                Step::Type => out.push(GrammarPart::Text(kind.to_owned())),
                Step::IsString => out.push(GrammarPart::Text((kind == "string").to_string())),
                _ => {}
            }
        }
        Ok(out)
    }

    fn closer(&self, work: &mut Work<'_>, after: &[Step]) -> Result<Closer, Missing> {
        let at = after.iter().position(|s| matches!(s, Step::Tok(_))).unwrap_or(after.len());
        let lead: String =
            after[..at].iter().filter_map(|s| if let Step::Lit(l) = s { Some(*l) } else { None }).collect();
        let Some(Step::Tok(text)) = after.get(at) else {
            return Ok(Closer {
                lead,
                marker: None,
                forbidden: None,
                rest: String::new(),
                whole: String::new(),
                empty: None,
                at_once: false,
            });
        };
        let mut rest = vec![self.marking.marker(text)?];
        let spelled = matches!(rest.first(), Some(GrammarPart::Text(_)));
        // After letters, blanks are part of the marker that follows: see `Self::gap`.
        if !spelled || self.alone {
            rest.extend(self.marking.plain(&after[at + 1..])?);
        }
        let forbidden = (self.marking.format.markers == Markers::Either).then(|| self.forbidden(text));
        let after = |lead: GrammarPart| [vec![lead], rest.clone()].concat();
        let whole = join(work.writer, &after(GrammarPart::Text(lead.clone())));
        let absent = after(GrammarPart::Regex(self.marking.form.blanks()));
        let tolerant = self.marking.form == GrammarForm::Tolerant && !self.alone;
        let empty = tolerant.then(|| join(work.writer, &absent));
        if spelled {
            rest.remove(0);
        }
        let rest = join(work.writer, &rest);
        let marker = spelled.then_some(*text);
        Ok(Closer { lead, marker, forbidden, rest, whole, empty, at_once: false })
    }

    /// What ends a raw value: its end marker before a marker of the call, and the call's last markers before another
    /// call. The parser reads it so.
    fn forbidden(&self, end: &'static str) -> Forbidden {
        const BLANKS: &str = r"[ \t\n\x0c\r]*";
        if self.alone {
            return Forbidden { marker: end, follows: None, ends: escape(end) };
        }
        let lex = Lexicon::new(self.marking.format);
        let letters = |wanted: &dyn Fn(Mark) -> bool| {
            let all: Vec<_> = lex.marks.iter().filter(|(mark, _)| wanted(*mark)).map(|(_, m)| escape(m)).collect();
            format!("({})", all.join("|"))
        };
        let marks = letters(&|mark| matches!(mark, Mark::Param | Mark::Close | Mark::End) || mark.enters_calls());
        let follows = format!("{BLANKS}{marks}");
        let mut ends = format!("{}{follows}", escape(end));
        if !lex.post.is_empty() {
            let closing = lex.post.iter().map(|m| escape(m)).collect::<Vec<_>>().join(BLANKS);
            let calls = letters(&|mark| mark == Mark::End || mark.enters_calls());
            ends = format!("{ends}|{closing}{BLANKS}{calls}");
        }
        Forbidden { marker: end, follows: Some(follows), ends }
    }

    /// The blanks between the end of a raw value, if its marker has letters, and the next marker. Both are one lexeme:
    /// the value goes on after letters that no marker follows, perhaps with blanks.
    fn gap(&self, steps: &[Step]) -> Option<GrammarPart> {
        let value = steps.iter().position(|step| *step == Step::Value)?;
        let after = &steps[value + 1..];
        let at = after.iter().position(|step| matches!(step, Step::Tok(_)))?;
        let Step::Tok(text) = after[at] else { return None };
        let spelled = !self.alone && matches!(self.marking.marker(text), Ok(GrammarPart::Text(_)));
        let blanks: String =
            after[at + 1..].iter().filter_map(|step| if let Step::Lit(l) = step { Some(*l) } else { None }).collect();
        match lit(&blanks, self.marking.form) {
            blanks @ (GrammarPart::Regex(_) | GrammarPart::Maybe(_)) if spelled => Some(blanks),
            _ => None,
        }
    }
}

/// A call without a marker: how it begins up to the name, and from there on, as regular expressions; and what follows.
pub(super) struct Unmarked {
    pub lead: String,
    pub tail: String,
    pub rest: String,
}

impl Unmarked {
    pub fn begin(&self) -> String {
        format!("{}{}", self.lead, self.tail)
    }
}

/// A marker with the blanks before it, as one part.
fn with_gap(gap: GrammarPart, marker: &str) -> GrammarPart {
    GrammarPart::Regex(match gap {
        GrammarPart::Maybe(blanks) => format!("({blanks})?{}", escape(marker)),
        GrammarPart::Regex(blanks) => format!("{blanks}{}", escape(marker)),
        _ => escape(marker),
    })
}

/// What the arguments must satisfy.
fn arguments_schema(tool: &Tool, enforced: Enforcement) -> Value {
    match (&tool.parameters, enforced) {
        (_, Enforcement::Off | Enforcement::Names) => json!({"type": "object", "additionalProperties": true}),
        (None | Some(Value::Null), _) => json!({"type": "object", "properties": {}}),
        (Some(schema), _) => local(schema).into_owned(),
    }
}

/// Whether the tool's only argument accepts any string, so that the schema has no further effect.
fn takes_any_text(tool: &Tool) -> bool {
    let Some(schema) = tool.parameters.as_ref().and_then(Value::as_object) else { return false };
    let Some(key) = code::key(tool.parameters.as_ref()) else { return false };
    let text = |value: Option<&Value>| {
        let value = value.and_then(Value::as_object);
        value.is_some_and(|v| {
            v.get("type") == Some(&json!("string"))
                && v.keys().all(|k| matches!(k.as_str(), "type" | "description" | "title" | "default" | "examples"))
        })
    };
    let known = |k: &String| {
        matches!(
            k.as_str(),
            "type" | "properties" | "required" | "additionalProperties" | "description" | "title" | "$schema"
        )
    };
    let only = |required: &Value| required.as_array().is_some_and(|all| all.iter().all(|name| *name == json!(key)));
    schema.keys().all(known)
        && schema.get("required").is_none_or(only)
        && text(schema.get("properties").and_then(|properties| properties.get(&key)))
}

/// Whether a name can be written where the format writes names.
pub(super) fn writable(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_control() || c == '"' || c == '\\') && !literal(name).is_empty()
}
