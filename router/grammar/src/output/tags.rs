//! Writes the grammar of structural tags: a tree of formats as defined by xgrammar and accepted by vLLM, and the older
//! list of structures.

mod fields;
mod until;

use serde_json::{Value, json};

use super::call::{CallError, Caller};
use super::marker::{Marking, Missing, join};
use super::parts::{check_regex, json, json_before, sized};
use crate::by_name;
use crate::lark::{client_regex, escape, literal};
use crate::limits::{MAX_SCHEMA_DEPTH, MAX_TAG_REPEAT};
use crate::rules::{Enforcement, RuleError};
use crate::schema::Work;
use crate::tools::Tool;
use fields::{flag, list, member, string, strings};
use until::{Until, begins, openings};

const FIELD: &str = "structural_tag";
/// The outermost object. The name is no type of a format.
const WHOLE: &str = "structural tag";
/// The same, of the older list.
const LIST: &str = "structural tag with structures";
/// Styles of a schema's object, and the format that writes arguments in that style.
const STYLES: &[(&str, &str)] = &[
    ("qwen_xml", "qwen3_coder"),
    ("minimax_xml", "minimax_m2"),
    ("deepseek_xml", "deepseek_v3_2"),
    ("glm_xml", "glm47"),
];

/// The fields of each type of format.
const FIELDS: &[(&str, &[&str])] = &[
    ("const_string", &["value"]),
    ("json_schema", &["json_schema", "style"]),
    ("qwen_xml_parameter", &["json_schema", "style"]),
    ("regex", &["pattern", "excludes"]),
    ("grammar", &["grammar"]),
    ("any_text", &["excludes"]),
    ("sequence", &["elements"]),
    ("or", &["elements"]),
    ("optional", &["content"]),
    ("star", &["content"]),
    ("plus", &["content"]),
    ("repeat", &["min", "max", "content"]),
    ("tag", &["begin", "content", "end"]),
    ("triggered_tags", &["triggers", "tags", "at_least_one", "stop_after_first", "excludes"]),
    ("token_triggered_tags", &["trigger_tokens", "tags", "at_least_one", "stop_after_first", "exclude_tokens"]),
    ("any_tokens", &["exclude_tokens"]),
    ("dispatch", &["rules", "loop", "excludes"]),
    ("tags_with_separator", &["tags", "separator", "at_least_one", "stop_after_first"]),
    ("token", &["token"]),
    (WHOLE, &["format"]),
    // Of the older list.
    (LIST, &["structures", "triggers"]),
    ("structure", &["begin", "schema", "end"]),
];

/// A format as an expression.
struct Part {
    expression: String,
    /// The expression includes the string that ends it.
    closed: bool,
}

impl Part {
    fn open(expression: String) -> Self {
        Part { expression, closed: false }
    }
}

enum Begin {
    String(String),
    Token(u32),
}

/// What begins or ends a tag.
enum Edge {
    Strings(Vec<String>),
    Token(u32),
}

/// What begins a structure within free text, and what follows it.
struct Trigger {
    begin: Begin,
    bodies: Vec<String>,
}

/// How often structures may occur, and what the free text around them must not contain.
struct Around {
    at_least_one: bool,
    stop_after_first: bool,
    excludes: Vec<String>,
}

/// The whole text as an expression.
pub(super) fn write(work: &mut Work<'_>, tag: &Value, marking: &Marking<'_>) -> Result<String, RuleError> {
    sized(FIELD, &tag.to_string())?;
    let mut tags = Tags { work, marking, depth: 0 };
    known(tag, FIELD, if tag.get("format").is_some() { WHOLE } else { LIST })?;
    let part = match tag.get("format") {
        Some(format) => tags.format(format, &format!("{FIELD}.format"), &Until::End)?,
        None => tags.format(&older(tag)?, FIELD, &Until::End)?,
    };
    Ok(part.expression)
}

/// Converts `{"structures": [{"begin", "schema", "end"}], "triggers": [..]}` to the current form.
fn older(tag: &Value) -> Result<Value, RuleError> {
    let (Some(structures), Some(triggers)) = (tag.get("structures").and_then(Value::as_array), tag.get("triggers"))
    else {
        let problem = "it has a \"format\", or \"structures\" (a list of {\"begin\", \"schema\", \"end\"}) and \"triggers\" \
                       (a list of strings)";
        return Err(RuleError::invalid(FIELD, problem));
    };
    for (i, structure) in structures.iter().enumerate() {
        known(structure, &format!("{FIELD}.structures[{i}]"), "structure")?;
    }
    let tags = structures.iter().map(|s| {
        let schema = s.get("schema").cloned().unwrap_or(Value::Bool(true));
        let content = json!({"type": "json_schema", "json_schema": schema});
        json!({"type": "tag", "begin": s.get("begin"), "content": content, "end": s.get("end").cloned().unwrap_or("".into())})
    });
    Ok(json!({"type": "triggered_tags", "triggers": triggers, "tags": tags.collect::<Vec<_>>()}))
}

struct Tags<'a, 'b, 'w> {
    work: &'a mut Work<'w>,
    marking: &'a Marking<'b>,
    depth: usize,
}

impl Tags<'_, '_, '_> {
    fn format(&mut self, node: &Value, path: &str, until: &Until) -> Result<Part, RuleError> {
        if self.depth == MAX_SCHEMA_DEPTH {
            let (found, limit) = (self.depth + 1, MAX_SCHEMA_DEPTH);
            return Err(RuleError::TooLarge { field: path.into(), what: "its nesting", found, limit });
        }
        self.depth += 1;
        let part = self.kind(node, path, until);
        self.depth -= 1;
        part
    }

    /// The content that a schema describes, in the style that the node names.
    fn schema(&mut self, node: &Value, path: &str, plain: &str, until: &Until) -> Result<Part, RuleError> {
        let (schema, field) = (member(node, path, "json_schema")?, format!("{path}.json_schema"));
        crate::schema::check(schema, &field)?;
        crate::validate::check(schema, &field)?;
        let style = node.get("style").map_or(Some(plain), Value::as_str);
        if let (Some("json"), Until::Strings(ends) | Until::Unknown(ends)) = (style, until)
            && let Some(expression) = json_before(self.work, schema, &field, ends)?
        {
            return match until {
                Until::Strings(_) => Ok(Part { expression, closed: true }),
                _ => Err(RuleError::invalid(
                    field,
                    "a number may continue with a digit, '.', 'e' or 'E': what follows it must not begin with one, or \
                     be a fixed string or the begin of a tag",
                )),
            };
        }
        Ok(Part::open(match style {
            Some("json") => json(self.work, schema, &field)?,
            style => self.styled(style, schema, field, path)?,
        }))
    }

    /// An object, written as a family of models writes a call's arguments.
    fn styled(&mut self, style: Option<&str>, schema: &Value, field: String, path: &str) -> Result<String, RuleError> {
        let family = STYLES.iter().find(|(name, _)| Some(*name) == style).and_then(|(_, format)| by_name(format));
        let Some(format) = family else {
            let known: Vec<_> = STYLES.iter().map(|(name, _)| *name).collect();
            let problem = format!("must be one of \"json\", \"{}\"", known.join("\", \""));
            return Err(RuleError::invalid(format!("{path}.style"), problem));
        };
        let marking = Marking { format, vocab: self.marking.vocab, form: self.marking.form };
        let caller = Caller { marking: &marking, count: None, alone: true };
        let tool = Tool { name: String::new(), parameters: Some(schema.clone()), strict: true, ..Tool::default() };
        let mut pieces = Vec::new();
        let all = Enforcement::NamesAndArguments;
        caller.arguments(format.codec(), self.work, &tool, field, all, &mut pieces).map_err(|error| match error {
            CallError::Rule(error) => error,
            CallError::Missing(Missing(marker)) => {
                RuleError::invalid(format!("{path}.style"), format!("the tokenizer lacks {marker:?}"))
            }
        })?;
        Ok(join(self.work.writer, &pieces))
    }

    fn kind(&mut self, node: &Value, path: &str, until: &Until) -> Result<Part, RuleError> {
        let kind = string(node, path, "type")?;
        known(node, path, kind)?;
        Ok(match kind {
            "const_string" => Part::open(literal(string(node, path, "value")?)),
            // The second is an older name of the style.
            kind @ ("json_schema" | "qwen_xml_parameter") => {
                let known = self.work.relaxations.len();
                let part = self.schema(node, path, if kind == "json_schema" { "json" } else { "qwen_xml" }, until)?;
                if let Some(relaxation) = self.work.relaxations.get(known) {
                    return Err(relaxation.refused(format!("{path}.json_schema"), "nothing validates a tag's content"));
                }
                part
            }
            "regex" => {
                self.none(node, path, "excludes")?;
                let pattern = string(node, path, "pattern")?;
                check_regex(&format!("{path}.pattern"), pattern, self.work.budget)?;
                let pattern = client_regex(pattern);
                match until {
                    // One lexeme: the text might continue with the first letter of its end.
                    Until::Strings(_) => {
                        let body = format!("/{pattern}/ {}", self.ends(until));
                        Part { expression: self.work.writer.terminal(&body), closed: true }
                    }
                    _ => Part::open(self.work.writer.regex(&pattern)),
                }
            }
            "grammar" => {
                let name = format!("tag{}", self.work.writer.foreign.len());
                self.work.writer.foreign.push((name.clone(), string(node, path, "grammar")?.to_owned()));
                Part::open(format!("@{name}"))
            }
            "any_text" => self.text(&strings(node, path, "excludes")?.unwrap_or_default(), path, until)?,
            "sequence" => self.sequence(node, path, until)?,
            "or" => self.or(node, path, until)?,
            "optional" => {
                let content = self.format(member(node, path, "content")?, &format!("{path}.content"), until)?;
                let nothing = if content.closed { self.ends(until) } else { "\"\"".into() };
                Part { expression: format!("({} | {nothing})", content.expression), closed: content.closed }
            }
            "star" => Part::open(format!("({})*", self.content(node, path)?)),
            "plus" => Part::open(format!("({})+", self.content(node, path)?)),
            "repeat" => {
                let times = |key: &str| node.get(key).and_then(Value::as_i64);
                let content = self.content(node, path)?;
                let count = match (times("min"), times("max")) {
                    (Some(min @ 0..), Some(-1)) if min <= MAX_TAG_REPEAT => format!("{{{min},}}"),
                    (Some(min @ 0..), Some(max)) if min <= max && max <= MAX_TAG_REPEAT => format!("{{{min},{max}}}"),
                    _ => {
                        let problem = format!("min and max must be from 0 to {MAX_TAG_REPEAT}; max may be -1");
                        return Err(RuleError::invalid(path, problem));
                    }
                };
                let once = self.work.writer.rule(&content);
                Part::open(format!("{once}{count}"))
            }
            "tag" => self.tag(node, path, until, false)?,
            "triggered_tags" => self.triggered(node, path, until)?,
            "token_triggered_tags" => self.token_triggered(node, path, until)?,
            // Special tokens are not text, so excluding them changes nothing.
            "any_tokens" => {
                self.tokens(node, path, "exclude_tokens")?;
                self.text(&[], path, until)?
            }
            "dispatch" => self.dispatch(node, path, until)?,
            "tags_with_separator" => Part::open(self.separated(node, path)?),
            "token" => Part::open(format!("<[{}]>", self.token(node, path)?)),
            other => {
                let problem = format!(
                    "it is none of const_string, json_schema, regex, grammar, any_text, sequence, or, optional, star, plus, \
                     repeat, tag, triggered_tags, tags_with_separator, dispatch, token, any_tokens and token_triggered_tags: \
                     {other:?}"
                );
                return Err(RuleError::invalid(format!("{path}.type"), problem));
            }
        })
    }

    /// Free text without these strings and the model's own markers.
    fn without(&self, excludes: &[String]) -> String {
        let mut refused: Vec<String> = excludes.iter().map(|e| escape(e)).collect();
        refused.extend(self.marking.letters().iter().map(|m| escape(m)));
        match refused.is_empty() {
            true => String::new(),
            false => format!(" & ~/(?s:.*)({})(?s:.*)/", refused.join("|")),
        }
    }

    fn text(&mut self, excludes: &[String], path: &str, until: &Until) -> Result<Part, RuleError> {
        let without = self.without(excludes);
        match until {
            Until::End | Until::Token => {
                let text = self.work.writer.terminal(&format!("/(?s:.+)/{without}"));
                Ok(Part::open(format!("{text}?")))
            }
            Until::Strings(ends) => Ok(Part { expression: self.upto(&without, ends), closed: true }),
            Until::Unknown(_) => {
                let problem =
                    "free text must come last, or be followed by a fixed string, the begin of a tag or a token";
                Err(RuleError::invalid(path, problem))
            }
        }
    }

    /// Text up to and including the first of these.
    fn upto(&mut self, without: &str, ends: &[String]) -> String {
        let ends: Vec<String> = ends.iter().map(|e| literal(e)).collect();
        self.work.writer.lazy(&format!("(/(?s:.*)/{without}) ({})", ends.join(" | ")))
    }

    fn ends(&self, until: &Until) -> String {
        match until {
            Until::Strings(ends) => format!("({})", ends.iter().map(|e| literal(e)).collect::<Vec<_>>().join(" | ")),
            _ => "\"\"".into(),
        }
    }

    /// The content of something that may repeat: free text may not.
    fn content(&mut self, node: &Value, path: &str) -> Result<String, RuleError> {
        let content = member(node, path, "content")?;
        Ok(self.format(content, &format!("{path}.content"), &Until::Unknown(openings(content)))?.expression)
    }

    fn sequence(&mut self, node: &Value, path: &str, until: &Until) -> Result<Part, RuleError> {
        let elements = list(node, path, "elements")?;
        let mut all = Vec::new();
        // The string that begins this element was the end of the previous one.
        let mut begun = false;
        for (i, element) in elements.iter().enumerate() {
            let here = format!("{path}.elements[{i}]");
            let next = match elements.get(i + 1) {
                None => until.clone(),
                Some(next) => begins(next, &elements[i + 1..], until),
            };
            let part = match element.get("type").and_then(Value::as_str) {
                Some("const_string") if begun => Part::open(String::new()),
                Some("tag") if begun => self.tag(element, &here, &next, true)?,
                _ => self.format(element, &here, &next)?,
            };
            begun = part.closed;
            all.push(part.expression);
        }
        Ok(Part { expression: format!("({})", all.join(" ")), closed: begun })
    }

    fn or(&mut self, node: &Value, path: &str, until: &Until) -> Result<Part, RuleError> {
        let elements = list(node, path, "elements")?;
        let parts: Vec<Part> = elements
            .iter()
            .enumerate()
            .map(|(i, element)| self.format(element, &format!("{path}.elements[{i}]"), until))
            .collect::<Result<_, _>>()?;
        let closed = parts.iter().any(|part| part.closed);
        let ends = self.ends(until);
        let all: Vec<String> = parts
            .into_iter()
            .map(|part| if closed && !part.closed { format!("{} {ends}", part.expression) } else { part.expression })
            .collect();
        Ok(Part { expression: format!("({})", all.join(" | ")), closed })
    }

    /// `begun`: the string that begins it was read already.
    fn tag(&mut self, node: &Value, path: &str, until: &Until, begun: bool) -> Result<Part, RuleError> {
        known(node, path, "tag")?;
        let begin = match self.edge(node, path, "begin")? {
            _ if begun => String::new(),
            Edge::Token(id) => format!("<[{id}]>"),
            Edge::Strings(all) => match <[String; 1]>::try_from(all) {
                Ok([one]) => literal(&one),
                Err(_) => return Err(RuleError::invalid(format!("{path}.begin"), "must be one string or a token")),
            },
        };
        let content = |tags: &mut Self, until: &Until| {
            tags.format(member(node, path, "content")?, &format!("{path}.content"), until)
        };
        let part = match self.edge(node, path, "end")? {
            Edge::Token(id) => {
                let content = content(self, &Until::Token)?;
                Part::open(format!("{begin} {} <[{id}]>", content.expression))
            }
            Edge::Strings(ends) if ends.iter().all(String::is_empty) => {
                let content = content(self, until)?;
                Part { expression: format!("{begin} {}", content.expression), closed: content.closed }
            }
            Edge::Strings(ends) => {
                let ends = Until::Strings(ends);
                let content = content(self, &ends)?;
                let end = if content.closed { String::new() } else { self.ends(&ends) };
                Part::open(format!("{begin} {} {end}", content.expression))
            }
        };
        Ok(Part { expression: self.work.writer.rule(&part.expression), closed: part.closed })
    }

    fn edge(&self, node: &Value, path: &str, key: &str) -> Result<Edge, RuleError> {
        let value = member(node, path, key)?;
        match value {
            Value::String(text) => Ok(Edge::Strings(vec![text.clone()])),
            Value::Array(_) => Ok(Edge::Strings(strings(node, path, key)?.unwrap_or_default())),
            other => self.token(other, &format!("{path}.{key}")).map(Edge::Token),
        }
    }

    /// `{"type": "token", "token": id or text}`.
    fn token(&self, node: &Value, path: &str) -> Result<u32, RuleError> {
        self.special(node.get("token")).ok_or_else(|| {
            RuleError::invalid(
                path,
                "must be a string, or {\"type\": \"token\", \"token\": a special token's id or text}",
            )
        })
    }

    fn special(&self, token: Option<&Value>) -> Option<u32> {
        match token {
            Some(Value::String(text)) => self.marking.vocab.special_id(text),
            Some(id) => {
                id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| self.marking.vocab.is_special(id))
            }
            None => None,
        }
    }

    fn tokens(&self, node: &Value, path: &str, key: &str) -> Result<Vec<u32>, RuleError> {
        let Some(value) = node.get(key).filter(|v| !v.is_null()) else { return Ok(Vec::new()) };
        let all = value.as_array().and_then(|all| all.iter().map(|token| self.special(Some(token))).collect());
        all.ok_or_else(|| {
            RuleError::invalid(format!("{path}.{key}"), "must be a list of special tokens, by id or text")
        })
    }

    fn triggered(&mut self, node: &Value, path: &str, until: &Until) -> Result<Part, RuleError> {
        let triggers = strings(node, path, "triggers")?.unwrap_or_default();
        let tags = list(node, path, "tags")?;
        if triggers.is_empty() || triggers.iter().any(String::is_empty) {
            return Err(RuleError::invalid(
                format!("{path}.triggers"),
                "must have at least one string, and none may be empty",
            ));
        }
        let mut bodies: Vec<Vec<String>> = triggers.iter().map(|_| Vec::new()).collect();
        for (i, tag) in tags.iter().enumerate() {
            let here = format!("{path}.tags[{i}]");
            let begin = string(tag, &here, "begin")?;
            let Some((at, rest)) =
                triggers.iter().enumerate().find_map(|(i, t)| Some((i, begin.strip_prefix(t.as_str())?)))
            else {
                return Err(RuleError::invalid(format!("{here}.begin"), "must begin with one of the triggers"));
            };
            let body = self.tag(tag, &here, &Until::Unknown(Vec::new()), true)?;
            bodies[at].push(format!("{} {}", literal(rest), body.expression));
        }
        if let Some(at) = bodies.iter().position(Vec::is_empty) {
            let problem = format!("no tag begins with the trigger {:?}", triggers[at]);
            return Err(RuleError::invalid(format!("{path}.triggers"), problem));
        }
        let begins = triggers.into_iter().map(Begin::String);
        let all: Vec<_> = begins.zip(bodies).map(|(begin, bodies)| Trigger { begin, bodies }).collect();
        let excludes = strings(node, path, "excludes")?.unwrap_or_default();
        self.amid(&all, &around(node, path, excludes)?, path, until)
    }

    fn token_triggered(&mut self, node: &Value, path: &str, until: &Until) -> Result<Part, RuleError> {
        let triggers = self.tokens(node, path, "trigger_tokens")?;
        self.tokens(node, path, "exclude_tokens")?;
        let mut all: Vec<Trigger> = Vec::new();
        for (i, tag) in list(node, path, "tags")?.iter().enumerate() {
            let here = format!("{path}.tags[{i}]");
            let id = match self.edge(tag, &here, "begin")? {
                Edge::Token(id) if triggers.contains(&id) => id,
                _ => return Err(RuleError::invalid(format!("{here}.begin"), "must be one of the trigger tokens")),
            };
            let body = self.tag(tag, &here, &Until::Unknown(Vec::new()), true)?.expression;
            match all.iter_mut().find(|t| matches!(t.begin, Begin::Token(known) if known == id)) {
                Some(trigger) => trigger.bodies.push(body),
                None => all.push(Trigger { begin: Begin::Token(id), bodies: vec![body] }),
            }
        }
        self.amid(&all, &around(node, path, Vec::new())?, path, until)
    }

    fn dispatch(&mut self, node: &Value, path: &str, until: &Until) -> Result<Part, RuleError> {
        let rules = list(node, path, "rules")?;
        let mut all = Vec::new();
        for (i, rule) in rules.iter().enumerate() {
            let here = format!("{path}.rules[{i}]");
            let (Some(text), Some(format)) = (rule.get(0).and_then(Value::as_str), rule.get(1)) else {
                return Err(RuleError::invalid(here, "must be a list of a string and a format"));
            };
            let body = self.format(format, &format!("{here}[1]"), &Until::Unknown(Vec::new()))?.expression;
            all.push(Trigger { begin: Begin::String(text.to_owned()), bodies: vec![body] });
        }
        let around = Around {
            at_least_one: false,
            stop_after_first: !flag(node, path, "loop", true)?,
            excludes: strings(node, path, "excludes")?.unwrap_or_default(),
        };
        self.amid(&all, &around, path, until)
    }

    /// Free text in which a trigger begins one of its structures.
    fn amid(&mut self, triggers: &[Trigger], around: &Around, path: &str, until: &Until) -> Result<Part, RuleError> {
        let string = |t: &Trigger| if let Begin::String(text) = &t.begin { Some(text.clone()) } else { None };
        let mut excludes: Vec<String> = triggers.iter().filter_map(string).collect();
        excludes.extend(around.excludes.iter().cloned());
        if let Until::Strings(ends) = until {
            excludes.extend(ends.iter().cloned());
        }
        let without = self.without(&excludes);
        let (mut begun, mut within) = (Vec::new(), Vec::new());
        for Trigger { begin, bodies } in triggers {
            let body = self.work.writer.rule(&bodies.join(" | "));
            match begin {
                Begin::String(text) => {
                    begun.push(format!("{} {body}", literal(text)));
                    within.push(format!("{} {body}", self.upto(&without, std::slice::from_ref(text))));
                }
                Begin::Token(id) => {
                    let text = self.text(&excludes, path, &Until::Token)?.expression;
                    begun.push(format!("<[{id}]> {body}"));
                    within.push(format!("{text} <[{id}]> {body}"));
                }
            }
        }
        let (begun, within) = (begun.join(" | "), within.join(" | "));
        // An end that the text excludes anyway is not part of it; it ends the text.
        let rest = match until {
            Until::Strings(ends) => {
                let others: Vec<String> = excludes.iter().filter(|e| !ends.contains(e)).cloned().collect();
                self.text(&others, path, until)?
            }
            _ => self.text(&excludes, path, until)?,
        };
        let ends = self.ends(until);
        let (tail, text) = (&ends, &rest.expression);
        let expression = match (around.at_least_one, around.stop_after_first) {
            (false, false) => format!("(({within})* {text})"),
            (true, false) => format!("(({begun}) ({within})* {text})"),
            (false, true) => format!("(({within}) {tail} | {text})"),
            (true, true) => format!("(({begun}) {tail})"),
        };
        Ok(Part { expression, closed: rest.closed })
    }

    fn separated(&mut self, node: &Value, path: &str) -> Result<String, RuleError> {
        let tags = list(node, path, "tags")?;
        let separator = string(node, path, "separator")?;
        let next = Until::Unknown(vec![separator.to_owned()]);
        let tags: Vec<String> = tags
            .iter()
            .enumerate()
            .map(|(i, tag)| Ok(self.tag(tag, &format!("{path}.tags[{i}]"), &next, false)?.expression))
            .collect::<Result<_, RuleError>>()?;
        let one = self.work.writer.rule(&tags.join(" | "));
        let separator = literal(separator);
        let all = match flag(node, path, "stop_after_first", false)? {
            true => one,
            false => format!("{one} ({separator} {one})*"),
        };
        Ok(if flag(node, path, "at_least_one", false)? { format!("({all})") } else { format!("({all})?") })
    }

    fn none(&self, node: &Value, path: &str, key: &str) -> Result<(), RuleError> {
        match strings(node, path, key)? {
            Some(all) if !all.is_empty() => Err(RuleError::invalid(format!("{path}.{key}"), "is not supported here")),
            _ => Ok(()),
        }
    }
}

fn around(node: &Value, path: &str, excludes: Vec<String>) -> Result<Around, RuleError> {
    let at_least_one = flag(node, path, "at_least_one", false)?;
    let stop_after_first = flag(node, path, "stop_after_first", false)?;
    Ok(Around { at_least_one, stop_after_first, excludes })
}

/// A field that is not enforced is rejected rather than ignored.
fn known(node: &Value, path: &str, kind: &str) -> Result<(), RuleError> {
    let Some((_, fields)) = FIELDS.iter().find(|(name, _)| *name == kind) else { return Ok(()) };
    let unknown =
        |(key, value): &(&String, &Value)| *key != "type" && !value.is_null() && !fields.contains(&key.as_str());
    match node.as_object().and_then(|members| members.iter().find(unknown)) {
        None => Ok(()),
        Some((key, _)) => {
            let problem = format!("is not supported here; a {kind} has {}", fields.join(", "));
            Err(RuleError::invalid(format!("{path}.{key}"), problem))
        }
    }
}
