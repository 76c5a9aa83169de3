//! Writes the grammar of the whole output of a request: reasoning, text and calls, combined as the format allows. It
//! does not compile it.

mod call;
mod count;
mod entry;
mod marker;
mod parts;
mod prose;
mod response;
mod tags;

use crate::announced::sees_code;
use crate::budget::Budget;
use crate::code_blocks::TextPlace;
use crate::format::{CallIdStyle, CallPosition, Format, Markers, Region, Step, marker};
use crate::lark::{GrammarForm, HEADER, Writer, escape, layout};
use crate::limits::MAX_BLANKS;
use crate::rules::{PropertyOrder, Relaxation, Response, RuleError, Rules};
use crate::schema::Work;
use crate::unmarked::{OPENING_LAYOUT, bare_beginnings, bare_list};
use crate::vocab::Vocab;

pub(crate) use count::prefix as count_prefix;

use call::{CallError, Caller};
use count::Count;
use entry::CallEntry;
use marker::{GrammarPart, Marking, Missing, join};
use prose::{Exit, ExitKind};

/// A grammar as text.
pub(crate) struct Written {
    pub lark: String,
    /// Grammars that it refers to, by name.
    pub foreign: Vec<(String, String)>,
    pub relaxations: Vec<Relaxation>,
    /// As in [`Compiled::narrowed`](crate::Compiled::narrowed).
    pub narrowed: u64,
    pub first: First,
    /// Tools that may be called.
    pub callable: usize,
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

/// Writes the grammar of a request. `in_order`: members of objects come in the order of their schemas.
pub(crate) fn write(
    format: &'static Format,
    vocab: &Vocab,
    rules: &Rules,
    form: GrammarForm,
    in_order: bool,
    loose: bool,
    budget: &mut Budget,
) -> Result<Written, RuleError> {
    let mut writer = Writer::default();
    writer.form = form;
    let closes = matches!(rules.response, Some(Response::JsonSchema { strict: true, .. }));
    let in_order = in_order || rules.json.arguments == PropertyOrder::Schema;
    let mut work =
        Work { writer: &mut writer, relaxations: Vec::new(), loose, closes, in_order, narrowed: 0, nodes: 0, budget };
    let marking = Marking { format, vocab, form };
    let first = output(&marking, &mut work, rules).map_err(|e| match e {
        CallError::Rule(e) => e,
        CallError::Missing(Missing(marker)) => RuleError::Format {
            field: "tools",
            format: format.name,
            problem: format!("the model's tokenizer has no token {marker:?}"),
        },
    })?;
    let (relaxations, narrowed) = (work.relaxations, work.narrowed);
    // A mask contains whatever may be accepted, not only what a tokenizer would write.
    let lark = HEADER.to_owned() + writer.text();
    let callable = rules.callable().len();
    Ok(Written { lark, foreign: writer.foreign, relaxations, narrowed, first, callable })
}

/// The markers of reasoning in this vocabulary, each with its other spellings.
struct Thinking {
    open: Vec<Vec<GrammarPart>>,
    close: Vec<Vec<GrammarPart>>,
}

/// Names of the rules for what may follow.
#[derive(Clone)]
struct Places {
    /// Outside reasoning and calls.
    outside: String,
    /// The same after a call.
    after_call: String,
    /// In reasoning.
    inside: String,
}

struct Output<'a, 'w> {
    marking: &'a Marking<'a>,
    rules: &'a Rules,
    work: &'a mut Work<'w>,
    /// What follows the name of a parametric rule.
    pass: &'static str,
    /// Whether the request declares tools. If so, text must not look like a call, whether the call is allowed or not.
    tools: bool,
    must_call: bool,
    response: Option<String>,
    finish: String,
    /// Tokens that lead from text to reasoning, or mean nothing in text.
    strays: Vec<Exit>,
}

fn output<'a, 'w>(marking: &'a Marking<'a>, work: &'a mut Work<'w>, rules: &'a Rules) -> Result<First, CallError> {
    let format = marking.format;
    let tools = rules.callable();
    let may_call = !tools.is_empty();
    // Where markers may be letters, the number of a call that is only shown could not be told from the next one's.
    let numbered = format.markers == Markers::Special
        && (format.call.iter().any(|s| matches!(s, Step::Index | Step::Ordinal)) || format.ids == CallIdStyle::Ordinal);
    let count = (may_call && numbered).then(|| Count::new(work.writer));
    let response = match &rules.response {
        Some(r) => Some(response::write(work, r, rules, marking)?),
        None => None,
    };
    let finish = join(work.writer, &marking.plain(format.finish)?);
    let pass = if count.is_some() { "::_" } else { "" };
    let must_call = rules.must_call();
    let declared = !rules.tools.is_empty();
    let mut out =
        Output { marking, rules, work, pass, tools: declared, must_call, response, finish, strays: Vec::new() };
    // A model reasons by itself even where its template does not, but is not led to it.
    let reasons = marking.form == GrammarForm::Tolerant || rules.reasons || rules.start == Region::Reasoning;
    let thinking = match &format.reasoning {
        // A vocabulary without the markers has no reasoning.
        Some(r) if reasons => marking.variants(r.open).ok().zip(marking.variants(r.close).ok()),
        _ => None,
    };
    let thinking = thinking.map(|(open, close)| Thinking { open, close });

    let first = out.reserve();
    let goes_on = may_call && out.response.is_none() && rules.may_go_on() && !format.ends_with_call();
    // Once a demanded call was made, the rest of the output is free.
    let settled = if goes_on && must_call { Some(out.reserve()) } else { goes_on.then(|| first.clone()) };
    let caller = Caller { marking, count: count.as_ref(), alone: false };
    let entry = match may_call {
        true => Some(out.entry(&caller, settled.as_ref())?),
        false => None,
    };
    let mut fresh = out.places(&first, &entry, thinking.as_ref())?;
    out.after_opening(&entry)?;
    let start = match (&thinking, rules.start) {
        (Some(_), Region::Reasoning) => first.inside,
        _ => {
            // The prompt may have opened the text already.
            if format.text.is_needed() && (!format.text.close.is_empty() || !out.is_canonical()) {
                fresh.extend(out.text(&entry, true, TextPlace::Beginning)?);
            }
            match fresh.as_slice() {
                // llguidance's reader takes no parameter for a rule that is another rule.
                [one] if one.trim().ends_with("::_") && !one.trim().contains(' ') => {
                    one.trim().trim_end_matches("::_").to_owned()
                }
                _ => {
                    let main = out.work.writer.reserve();
                    out.define(&main, &fresh);
                    main
                }
            }
        }
    };
    if let Some(settled) = settled.filter(|_| must_call) {
        out.must_call = false;
        out.places(&settled, &entry, thinking.as_ref())?;
    }
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
    fn reserve(&mut self) -> Places {
        let sees_code = sees_code(self.marking.format);
        let w = &mut *self.work.writer;
        let outside = w.reserve();
        let after_call = if sees_code { w.reserve() } else { outside.clone() };
        Places { outside, after_call, inside: w.reserve() }
    }

    /// Writes what may follow calls that begin the output without a marker: others, free text, or the end.
    fn after_opening(&mut self, entry: &Option<CallEntry>) -> Result<(), CallError> {
        let Some(CallEntry { opened: Some(opened), opening, goes_on, .. }) = entry else { return Ok(()) };
        let must_call = std::mem::replace(&mut self.must_call, false);
        let mut all = opening.clone();
        if *goes_on {
            all.extend(self.text_after(entry, false, true, TextPlace::AfterCall)?);
        } else {
            // What closes a list and a code block.
            let close =
                self.work.writer.regex(r"([ \t\r\n]{0,8}\]|[ \t\r\n]{1,8})?```|[ \t\r\n]{0,8}\]|[ \t\r\n]{1,8}");
            all = vec![format!("{close}? {}", self.finish_or_nothing())];
        }
        self.must_call = must_call;
        self.define(opened, &all);
        Ok(())
    }

    fn finish_or_nothing(&self) -> String {
        if self.finish.is_empty() { "\"\"".to_owned() } else { self.finish.clone() }
    }

    fn is_canonical(&self) -> bool {
        self.marking.form == GrammarForm::Canonical
    }

    /// Whether text is neither forbidden nor bound by a response format.
    fn is_free(&self) -> bool {
        !self.must_call && self.response.is_none()
    }

    /// Writes the rules of these places. Returns what may begin an output.
    fn places(
        &mut self,
        places: &Places,
        entry: &Option<CallEntry>,
        thinking: Option<&Thinking>,
    ) -> Result<Vec<String>, CallError> {
        let format = self.marking.format;
        let Places { outside, after_call, inside } = places;
        let pass = self.pass;
        let free = self.is_free();
        self.strays = self.strays(places, thinking);
        let mut after = self.outside(entry, false, TextPlace::Beginning)?;
        let mut fresh = self.outside(entry, true, TextPlace::Beginning)?;
        if after_call != outside {
            let after = self.outside(entry, false, TextPlace::AfterCall)?;
            self.define(after_call, &after);
        }
        if let Some(preamble) = format.preamble.as_ref().filter(|_| entry.is_some() && free) {
            let open = join(self.work.writer, &self.marking.plain(preamble.open)?);
            let exits = self.exit(&self.marking.plain(preamble.close)?, &format!("{outside}{pass}"));
            let refused = self.call_beginnings();
            for body in self.prose(exits, None, &refused, None, TextPlace::Reasoning) {
                after.push(format!("{open} {body}"));
                fresh.push(format!("{open} {body}"));
            }
        }
        let Some(Thinking { open, close }) = thinking else {
            self.define(outside, &after);
            return Ok(fresh);
        };
        let lead = match (&self.rules.response, format.reasoning.as_ref().map_or("", |r| r.lead)) {
            (_, written) if self.is_canonical() => (!written.is_empty()).then(|| escape(written)),
            (None | Some(Response::JsonObject | Response::JsonSchema { .. }), _) => Some(layout()),
            // Other responses must not begin with a blank: a blank drawn by mistake would force reasoning.
            (Some(_), "") => None,
            (Some(_), written) => Some(escape(written)),
        };
        let lead: Vec<GrammarPart> = lead.map(GrammarPart::Maybe).into_iter().collect();
        for open in open {
            let open = join(self.work.writer, &[&lead[..], &open[..]].concat());
            fresh.push(format!("{open} {inside}{pass}"));
        }
        // Newlines after reasoning are layout if the models write them.
        let written = format.reasoning.as_ref().is_some_and(|r| !r.layout[2].is_empty());
        let newlines = match (written, self.is_canonical()) {
            (true, true) => Some(GrammarPart::Maybe(self.marking.form.layout())),
            (true, false) if self.response.is_some() => Some(GrammarPart::Maybe(format!(r"\n{{1,{MAX_BLANKS}}}"))),
            _ => None,
        };
        let newlines = join(self.work.writer, newlines.as_slice());
        let calls = entry.iter().flat_map(|entry| entry.exits.iter().filter(|exit| exit.is_marked()).cloned());
        // Calls first: llguidance's reader cannot use a rule with the next call's number while it reads that rule.
        let mut exits: Vec<Exit> = calls.collect();
        for close in close {
            exits.extend(self.exit(close, &format!("{newlines} {outside}{pass}")));
        }
        // A second beginning means nothing.
        for open in open.iter().filter(|open| matches!(open.as_slice(), [GrammarPart::Token(_), ..])) {
            exits.extend(self.exit(open, &format!("{inside}{pass}")));
        }
        let end = free.then_some("\"\"");
        let mut refused = self.call_beginnings();
        refused.anywhere.extend(close.iter().filter_map(|close| match close.as_slice() {
            [GrammarPart::Text(letters)] => Some(escape(letters)),
            _ => None,
        }));
        let body = self.prose(exits, end, &refused, None, TextPlace::Reasoning);
        self.define(inside, &body);
        // gpt-oss may reason again.
        let again = format.preamble.is_some();
        self.define(outside, if again { &fresh } else { &after });
        Ok(fresh)
    }

    /// Special tokens in free text that the parser does not report: those that begin and end reasoning, and a second
    /// end of calls.
    fn strays(&mut self, places: &Places, thinking: Option<&Thinking>) -> Vec<Exit> {
        let format = self.marking.format;
        if format.text.is_needed() {
            return Vec::new();
        }
        if self.is_canonical() {
            return Vec::new();
        }
        let Places { outside, inside, .. } = places;
        let pass = self.pass;
        let mut exits: Vec<Exit> = Vec::new();
        if let Some(Thinking { open, close }) = thinking {
            for (markers, next) in [(open, inside), (close, outside)] {
                for marker in markers {
                    if let [marker @ GrammarPart::Token(_), more @ ..] = marker.as_slice() {
                        let rest = format!("{} {next}{pass}", join(self.work.writer, more));
                        exits.push(Exit { marker: marker.clone(), rest, kind: ExitKind::Marker });
                    }
                }
            }
        }
        if self.tools && format.has_calls() && !sees_code(format) {
            let closing = [format.around_arguments().1, format.end].concat();
            let ids = closing.iter().filter_map(marker).filter_map(|m| self.marking.vocab.special_id(m));
            exits.extend(ids.map(|id| Exit {
                marker: GrammarPart::Token(id),
                rest: format!("{outside}{pass}"),
                kind: ExitKind::Marker,
            }));
        }
        exits.dedup_by(|a, b| a.marker == b.marker);
        exits
    }

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
                vec![Exit { marker: marker.clone(), rest, kind: ExitKind::Marker }]
            }
            None => Vec::new(),
        }
    }

    /// Inside the text. `fresh`: nothing precedes it.
    fn text(&mut self, entry: &Option<CallEntry>, fresh: bool, place: TextPlace) -> Result<Vec<String>, CallError> {
        let opens = fresh && self.marking.format.opens;
        self.text_after(entry, fresh, opens, place)
    }

    /// `opens`: calls may begin here without a marker.
    fn text_after(
        &mut self,
        entry: &Option<CallEntry>,
        fresh: bool,
        opens: bool,
        place: TextPlace,
    ) -> Result<Vec<String>, CallError> {
        let format = self.marking.format;
        let close = self.marking.plain(format.text.close)?;
        if !self.is_free() {
            return Ok(self.bound_text(&close, entry));
        }
        let end = if self.finish.is_empty() { "\"\"".to_owned() } else { self.finish.clone() };
        let mut exits = Vec::new();
        if !close.is_empty() {
            let mut after = vec![end.clone()];
            after.extend(entry.as_ref().map(|e| e.whole.clone()));
            let after = self.rule(&after);
            exits.extend(self.exit(&close, &after));
        }
        if !format.text.is_needed() || format.markers == Markers::Either {
            exits.extend(entry.iter().flat_map(|e| e.exits.iter().cloned()));
        }
        exits.extend(self.strays.iter().cloned());
        let refused = self.call_beginnings();
        // At the beginning these letters begin reasoning.
        let thinks = format.reasoning.as_ref().filter(|_| fresh && format.markers == Markers::Either);
        let thinks: Vec<String> = thinks.iter().flat_map(|r| r.open.iter().filter_map(marker)).map(escape).collect();
        let mut beginnings = thinks;
        if fresh && self.tools {
            let first =
                |head: &&[Step]| if let Some(Step::Lit(l)) = head.first() { Some(escape(l.trim())) } else { None };
            beginnings.extend(format.also.iter().filter_map(first));
            beginnings.dedup();
        }
        let names = self.tool_names();
        let lists = fresh && bare_list(format);
        if self.tools && (opens || lists) && !names.is_empty() {
            for begin in bare_beginnings(format, &names).whole() {
                beginnings.extend(opens.then(|| format!("{OPENING_LAYOUT}{begin}")));
                beginnings.extend(lists.then(|| format!(r"\[[ \t\r\n]*{begin}")));
            }
        }
        let not = (!beginnings.is_empty()).then(|| format!(r"[ \t\r\n]*({})(?s:.*)", beginnings.join("|")));
        let mut all = self.prose(exits, Some(&end), &refused, not.as_deref(), place);
        if format.text.is_needed() && !self.is_canonical() && end != "\"\"" {
            // Without the markers that end it.
            all.extend(self.prose(Vec::new(), Some("\"\""), &refused, not.as_deref(), place));
        }
        Ok(all)
    }

    /// Inside text that is not free: the response, or nothing before calls.
    fn bound_text(&mut self, close: &[GrammarPart], entry: &Option<CallEntry>) -> Vec<String> {
        let format = self.marking.format;
        let closed = join(self.work.writer, close);
        let response = self.response.as_ref().filter(|_| !self.must_call);
        let mut all: Vec<String> =
            response.map(|response| format!("{response} {closed} {}", self.finish)).into_iter().collect();
        if let Some(entry) = entry.as_ref().filter(|_| format.calls != CallPosition::InsteadOfText && !close.is_empty())
        {
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

    /// Where neither reasoning nor text is open. `fresh`: at the beginning of the output.
    fn outside(&mut self, entry: &Option<CallEntry>, fresh: bool, place: TextPlace) -> Result<Vec<String>, CallError> {
        let format = self.marking.format;
        let wrapped = format.text.is_needed();
        let mut open = self.marking.plain(format.text.open)?;
        if !self.is_free() && matches!(open.first(), Some(GrammarPart::Token(_))) {
            // A stray blank must not decide between the response and a call.
            open.insert(0, GrammarPart::Maybe(layout()));
        }
        let open = join(self.work.writer, &open);
        let mut all: Vec<String> = self.text(entry, fresh, place)?.into_iter().map(|t| format!("{open} {t}")).collect();
        all.extend(self.framed_response()?);
        if wrapped && self.is_free() {
            all.push(if self.finish.is_empty() { "\"\"".into() } else { self.finish.clone() });
        }
        if fresh && !wrapped {
            all.extend(entry.iter().flat_map(|e| e.lists.iter().cloned()));
            all.extend(entry.iter().flat_map(|e| e.opening.iter().cloned()));
        }
        // Free text leads to calls itself.
        if wrapped || !self.is_free() {
            all.extend(entry.as_ref().map(|e| e.whole.clone()));
        }
        Ok(all)
    }
}
