//! Writes the grammar of the whole output of a request: reasoning, text and calls, combined as the format allows. It
//! does not compile it.

mod call;
mod count;
mod marker;
mod parts;
mod response;
mod tags;

use crate::budget::Budget;
use crate::format::{CallIdStyle, CallPosition, Codec, Format, Region, Step};
use crate::lark::{HEADER, SOME_TEXT, Writer, blanks, either, escape, layout, literal};
use crate::limits::MAX_BLANKS;
use crate::rules::{Relaxation, Response, RuleError, Rules};
use crate::schema::Work;
use crate::vocab::Vocab;

pub(crate) use count::prefix as count_prefix;

use call::{CallError, Caller, writable};
use count::Count;
use marker::{GrammarPart, Marking, Missing, join};

/// A grammar as text.
pub(crate) struct Written {
    pub lark: String,
    /// Grammars that it refers to, by name.
    pub foreign: Vec<(String, String)>,
    pub relaxations: Vec<Relaxation>,
    pub first: First,
}

/// What the grammar reads before any output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    Nothing,
    /// The number of the first call, in the conversation.
    Conversation,
    /// The number of the first call, in this turn.
    Turn,
}

/// Writes the grammar of a request.
pub(crate) fn write(
    format: &'static Format,
    vocab: &Vocab,
    rules: &Rules,
    loose: bool,
    budget: &mut Budget,
) -> Result<Written, RuleError> {
    let mut writer = Writer::default();
    let mut work = Work { writer: &mut writer, relaxations: Vec::new(), loose, nodes: 0, budget };
    let marking = Marking { format, vocab };
    let first = output(&marking, &mut work, rules).map_err(|e| match e {
        CallError::Rule(e) => e,
        CallError::Missing(Missing(marker)) => RuleError::Format {
            field: "tools",
            format: format.name,
            problem: format!("the model's tokenizer has no token {marker:?}"),
        },
    })?;
    let relaxations = work.relaxations;
    // A mask contains whatever may be accepted, not only what a tokenizer would write.
    let lark = HEADER.to_owned() + writer.text();
    Ok(Written { lark, foreign: writer.foreign, relaxations, first })
}

/// How prose ends: a marker, and what follows it.
#[derive(Clone)]
struct Exit {
    marker: GrammarPart,
    rest: String,
}

/// Calls, ready to be inserted where the format has them.
struct Entry {
    /// The marker that begins them, if any, and what follows it.
    exit: Option<Exit>,
    /// The same from its first byte on, after blanks.
    whole: String,
}

struct Output<'a, 'w> {
    marking: &'a Marking<'a>,
    work: &'a mut Work<'w>,
    /// What follows the name of a parametric rule.
    pass: &'static str,
    /// Whether the request declares tools. If so, text must not look like a call, whether the call is allowed or not.
    tools: bool,
    must_call: bool,
    response: Option<String>,
    finish: String,
}

fn output(marking: &Marking<'_>, work: &mut Work<'_>, rules: &Rules) -> Result<First, CallError> {
    let format = marking.format;
    let tools = rules.callable();
    let may_call = !tools.is_empty();
    let numbered =
        format.call.iter().any(|s| matches!(s, Step::Index | Step::Ordinal)) || format.ids == CallIdStyle::Ordinal;
    let count = (may_call && numbered).then(|| Count::new(work.writer));
    let response = match &rules.response {
        Some(r) => Some(response::write(work, r, marking)?),
        None => None,
    };
    let finish = join(work.writer, &marking.plain(format.finish)?);
    let pass = if count.is_some() { "::_" } else { "" };
    let must_call = rules.must_call();
    let declared = !rules.tools.is_empty();
    let mut out = Output { marking, work, pass, tools: declared, must_call, response, finish };

    let caller = Caller { marking, count: count.as_ref() };
    let entry = match may_call {
        true => Some(out.entry(&caller, rules)?),
        false => None,
    };
    let reasoning = match &format.reasoning {
        // A vocabulary without the markers has no reasoning.
        Some(r) => marking.plain(r.open).ok().zip(marking.plain(r.close).ok()),
        None => None,
    };
    // What may follow reasoning; gpt-oss may reason again.
    let outside = out.work.writer.reserve();
    let inside = out.work.writer.reserve();
    let mut after = out.outside(&entry)?;
    let again = format.preamble.is_some();
    let free = !must_call && out.response.is_none();
    if let Some(preamble) = format.preamble.as_ref().filter(|_| may_call && free) {
        let open = join(out.work.writer, &marking.plain(preamble.open)?);
        let exits = out.exit(&marking.plain(preamble.close)?, &format!("{outside}{pass}"));
        for body in out.prose(exits, None, None) {
            after.push(format!("{open} {body}"));
        }
    }
    let mut fresh = after.clone();
    if let Some((open, close)) = &reasoning {
        let lead = match (&rules.response, format.reasoning.as_ref().map_or("", |r| r.lead)) {
            (None | Some(Response::JsonObject | Response::JsonSchema { .. }), _) => Some(layout()),
            // Other responses must not begin with a blank: a blank drawn by mistake would force reasoning.
            (Some(_), "") => None,
            (Some(_), written) => Some(escape(written)),
        };
        let pieces: Vec<GrammarPart> = lead.map(GrammarPart::Maybe).into_iter().chain(open.iter().cloned()).collect();
        let open = join(out.work.writer, &pieces);
        fresh.push(format!("{open} {inside}{pass}"));
        // Newlines after reasoning are layout if the models write them.
        let written = format.reasoning.as_ref().is_some_and(|r| !r.layout[2].is_empty());
        let newlines =
            (written && out.response.is_some()).then(|| GrammarPart::Maybe(format!(r"\n{{1,{MAX_BLANKS}}}")));
        let newlines = join(out.work.writer, newlines.as_slice());
        let mut exits = out.exit(close, &format!("{newlines} {outside}{pass}"));
        exits.extend(entry.as_ref().and_then(|e| e.exit.clone()));
        let end = free.then_some("\"\"");
        let body = out.prose(exits, end, None);
        out.define(&inside, &body);
        out.define(&outside, if again { &fresh } else { &after });
    }
    let start = match (&reasoning, rules.start) {
        (Some(_), Region::Reasoning) => inside,
        _ => {
            // The prompt may have opened the text already.
            if format.text.is_needed() && !format.text.close.is_empty() {
                fresh.extend(out.text(&entry)?);
            }
            let main = out.work.writer.reserve();
            out.define(&main, &fresh);
            main
        }
    };
    let start = match &count {
        Some(count) => count.start(out.work.writer, &start, &marking.vocab.digits()),
        None => start,
    };
    out.work.writer.define("start", &start);
    let in_turn = format.call.contains(&Step::Ordinal);
    Ok(match count {
        None => First::Nothing,
        Some(_) if in_turn => First::Turn,
        Some(_) => First::Conversation,
    })
}

impl Output<'_, '_> {
    fn define(&mut self, name: &str, alternatives: &[String]) {
        if self.pass.is_empty() {
            self.work.writer.define(name, &alternatives.join("|"));
        } else {
            self.work.writer.define_parametric(name, alternatives);
        }
    }

    /// A rule with these alternatives, as an expression.
    fn rule(&mut self, alternatives: &[String]) -> String {
        if alternatives.iter().any(|a| a.contains("::_")) {
            let name = self.work.writer.reserve();
            self.work.writer.define_parametric(&name, alternatives);
            format!("{name}::_")
        } else {
            self.work.writer.rule(&alternatives.join("|"))
        }
    }

    fn exit(&mut self, pieces: &[GrammarPart], next: &str) -> Vec<Exit> {
        match pieces.split_first() {
            Some((marker, rest)) => {
                let rest = format!("{} {next}", join(self.work.writer, rest));
                vec![Exit { marker: marker.clone(), rest }]
            }
            None => Vec::new(),
        }
    }

    /// Free text up to one of the exits, or to the end, after which `end` follows. The text must not look like `not`.
    fn prose(&mut self, exits: Vec<Exit>, end: Option<&str>, not: Option<&str>) -> Vec<String> {
        let spelled: Vec<String> = self.marking.spellings(None).iter().map(|m| escape(m)).collect();
        let mut refused: Vec<String> = Vec::new();
        if !spelled.is_empty() {
            refused.push(format!("~/(?s:.*)({})(?s:.*)/", spelled.join("|")));
        }
        refused.extend(not.map(|not| format!("~/{not}/")));
        let body = |any: &str| [vec![any.to_owned()], refused.clone()].concat().join(" & ");
        let w = &mut *self.work.writer;
        let text = w.terminal(&body(&format!("/{SOME_TEXT}/")));
        let mut all: Vec<String> = end.map(|end| format!("{text}? {end}")).into_iter().collect();
        for Exit { marker, rest } in exits {
            all.push(match marker {
                GrammarPart::Token(id) => format!("{text}? <[{id}]> {rest}"),
                GrammarPart::Text(letters) => {
                    let upto = w.lazy(&format!("({}) {}", body("/(?s:.*)/"), literal(&letters)));
                    format!("{upto} {rest}")
                }
                other => format!("{text}? {} {rest}", join(w, &[other])),
            });
        }
        all
    }

    /// Inside the text.
    fn text(&mut self, entry: &Option<Entry>) -> Result<Vec<String>, CallError> {
        let format = self.marking.format;
        let close = self.marking.plain(format.text.close)?;
        if self.must_call || self.response.is_some() {
            return Ok(self.bound_text(&close, entry));
        }
        let end = if self.finish.is_empty() { "\"\"".to_owned() } else { self.finish.clone() };
        let mut exits = Vec::new();
        if !close.is_empty() {
            let mut after = vec![end.clone()];
            if format.calls == CallPosition::AfterText {
                after.extend(entry.as_ref().map(|e| e.whole.clone()));
            }
            let after = self.rule(&after);
            exits.extend(self.exit(&close, &after));
        } else if format.calls == CallPosition::AfterText && !format.text.is_needed() {
            exits.extend(entry.as_ref().and_then(|e| e.exit.clone()));
        }
        let not = self.unlike_calls();
        Ok(self.prose(exits, Some(&end), not.as_deref()))
    }

    /// Inside text that is not free: the response, or nothing before calls.
    fn bound_text(&mut self, close: &[GrammarPart], entry: &Option<Entry>) -> Vec<String> {
        let format = self.marking.format;
        let closed = join(self.work.writer, close);
        let response = self.response.as_ref().filter(|_| !self.must_call);
        let mut all: Vec<String> =
            response.map(|response| format!("{response} {closed} {}", self.finish)).into_iter().collect();
        if let Some(entry) = entry.as_ref().filter(|_| format.calls == CallPosition::AfterText && !close.is_empty()) {
            let empty = join(self.work.writer, &[GrammarPart::Maybe(layout())]);
            all.push(format!("{empty} {closed} {}", entry.whole));
        }
        all
    }

    /// The response between markers that the format leaves to the model.
    fn framed_response(&mut self) -> Result<Option<String>, CallError> {
        let text = &self.marking.format.text;
        let (Some(response), [Step::Maybe(open), ..], [Step::Maybe(close), ..]) =
            (self.response.as_ref().filter(|_| !self.must_call), text.open, text.close)
        else {
            return Ok(None);
        };
        let blank = GrammarPart::Maybe(layout());
        let (open, close) = (self.marking.plain(&[Step::Tok(open)])?, self.marking.plain(&[Step::Tok(close)])?);
        let open =
            join(self.work.writer, &[std::slice::from_ref(&blank), &open, std::slice::from_ref(&blank)].concat());
        let close = join(self.work.writer, &[std::slice::from_ref(&blank), &close].concat());
        Ok(Some(format!("{open} {response} {close} {}", self.finish)))
    }

    /// Where neither reasoning nor text is open.
    fn outside(&mut self, entry: &Option<Entry>) -> Result<Vec<String>, CallError> {
        let format = self.marking.format;
        let wrapped = format.text.is_needed();
        let free = !self.must_call && self.response.is_none();
        let mut open = self.marking.plain(format.text.open)?;
        if !free && matches!(open.first(), Some(GrammarPart::Token(_))) {
            // A stray blank must not decide between the response and a call.
            open.insert(0, GrammarPart::Maybe(layout()));
        }
        let open = join(self.work.writer, &open);
        let mut all: Vec<String> = self.text(entry)?.into_iter().map(|t| format!("{open} {t}")).collect();
        all.extend(self.framed_response()?);
        if wrapped && free {
            all.push(if self.finish.is_empty() { "\"\"".into() } else { self.finish.clone() });
        }
        let inline = format.calls == CallPosition::AfterText && !wrapped && free;
        if !inline {
            all.extend(entry.as_ref().map(|e| e.whole.clone()));
        }
        Ok(all)
    }

    /// Without a marker for calls: what text must not begin with.
    fn unlike_calls(&self) -> Option<String> {
        const GAP: &str = r"[ \t\r\n]*";
        let format = self.marking.format;
        let marked = format.begin.iter().chain(format.call).any(|s| matches!(s, Step::Tok(_)));
        if marked || !self.tools {
            return None;
        }
        let mut regex = String::from(GAP);
        for step in format.begin.iter().chain(format.call) {
            match step {
                Step::Lit(l) => {
                    for c in l.chars().filter(|c| !c.is_whitespace()) {
                        regex.push_str(&escape(&c.to_string()));
                        regex.push_str(GAP);
                    }
                }
                Step::Name => regex.push_str(&format!(r"[A-Za-z_][A-Za-z0-9_.\-]*{GAP}")),
                Step::Args(Codec::Json | Codec::Object { .. }) => regex.push_str(r"\{"),
                _ => {}
            }
            if matches!(step, Step::Args(_)) {
                break;
            }
        }
        Some(regex + "(?s:.*)")
    }

    /// One rule for the calls of all tools if they begin with the same special token: no lexeme extends across it, so
    /// the rule can follow any text.
    fn share(&mut self, calls: &mut Vec<Vec<GrammarPart>>) {
        let Some([marker @ GrammarPart::Token(_), ..]) = calls.first().map(Vec::as_slice) else { return };
        if calls.iter().any(|call| call.first() != Some(marker)) {
            return;
        }
        let marker = marker.clone();
        let bodies: Vec<String> = calls.iter().map(|call| join(self.work.writer, &call[1..])).collect();
        *calls = vec![vec![marker, GrammarPart::Rule(self.rule(&bodies))]];
    }

    /// All calls of the turn.
    fn entry(&mut self, caller: &Caller<'_>, rules: &Rules) -> Result<Entry, CallError> {
        let format = self.marking.format;
        if !format.has_calls() {
            let problem = "the model's format has no tool calls".to_owned();
            return Err(RuleError::Format { field: "tools", format: format.name, problem }.into());
        }
        let begin = self.marking.plain(format.begin)?;
        let between = self.marking.plain(format.between)?;
        let mut end = self.marking.plain(format.end)?;
        if end.is_empty() && !between.is_empty() {
            end.push(GrammarPart::Regex(blanks()));
        }
        let mut tail = join(self.work.writer, &end);
        if format.calls == CallPosition::BeforeText && self.response.is_none() {
            let finish = if self.finish.is_empty() { "\"\"".to_owned() } else { self.finish.clone() };
            let text = self.prose(Vec::new(), Some(&finish), None);
            tail = format!("{tail} {}", either(&text));
        } else {
            tail = format!("{tail} {}", self.finish);
        }
        let (mut calls, mut builtins) = (Vec::new(), Vec::new());
        for tool in rules.callable() {
            if !writable(&tool.name) {
                let field = format!("tools[{}].function.name", tool.name);
                return Err(RuleError::invalid(field, "a name must consist of letters, digits, _, - and .").into());
            }
            calls.push(caller.call(self.work, tool, rules.enforced(tool))?);
            builtins.extend(caller.builtin(self.work, tool, rules.enforced(tool))?);
        }
        self.share(&mut calls);
        let (mut whole, mut rest, mut next) = (Vec::new(), Vec::new(), Vec::new());
        for pieces in builtins {
            let blank = [GrammarPart::Maybe(layout())];
            whole.push(join(self.work.writer, &[&blank[..], &pieces[..]].concat()));
        }
        let mut marker = None;
        for pieces in &calls {
            let w = &mut *self.work.writer;
            let first: Vec<_> = begin.iter().chain(pieces).cloned().collect();
            let blank = [GrammarPart::Maybe(layout())];
            whole.push(join(w, &[&blank[..], &first[..]].concat()));
            next.push(join(w, &[&between[..], &pieces[..]].concat()));
            rest.push(join(w, first.get(1..).unwrap_or_default()));
            marker = first.first().cloned();
        }
        let marked = matches!(format.begin.first().or(format.call.first()), Some(Step::Tok(_)));
        let many = format.many && rules.parallel;
        let after = match caller.count.filter(|_| many) {
            Some(count) => {
                let after = self.work.writer.reserve();
                let again = self.work.writer.reserve();
                let next = self.rule(&next);
                self.work.writer.define_parametric(&again, &[format!("{next} {after}::_")]);
                let advance = count.advance(self.work.writer, &again);
                let tail = if tail.trim().is_empty() { "\"\"".to_owned() } else { tail };
                self.work.writer.define_parametric(&after, &[tail, format!("{advance}::_")]);
                format!("{after}::_")
            }
            None if many => format!("({})* {tail}", next.join(" | ")),
            None => tail,
        };
        let rest = self.rule(&rest);
        let exit = marker.filter(|_| marked).map(|marker| Exit { marker, rest: format!("{rest} {after}") });
        let whole = self.rule(&whole);
        Ok(Entry { exit, whole: format!("{whole} {after}") })
    }
}
