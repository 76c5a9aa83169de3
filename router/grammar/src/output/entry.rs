//! Writes how text leads to calls, how calls follow each other, and what follows them.

use super::call::{CallError, Caller, Unmarked, writable};
use super::marker::{GrammarPart, after_name, join};
use super::prose::{Exit, ExitKind, beginnings};
use super::{Output, Places};
use crate::announced::{announcing, told_after, until_name, until_written_name};
use crate::code_blocks::TextPlace;
use crate::format::{CallPosition, Codec, Format, Step, marker};
use crate::lark::{GrammarForm, either, escape, layout};
use crate::rules::RuleError;
use crate::schema::quoted;
use crate::unmarked::{OPENING_LAYOUT, bare, bare_list, lead_is_sign};

/// Calls, ready to be inserted where the format has them.
pub(super) struct CallEntry {
    /// How text, and reasoning if they have a marker, lead to them.
    pub exits: Vec<Exit>,
    /// The same from its first byte on, after blanks.
    pub whole: String,
    /// Lists of calls without the marker before them, at the beginning of an output.
    pub lists: Vec<String>,
    /// Calls without a marker at the beginning of an output, and the rule for what follows each.
    pub opening: Vec<String>,
    pub opened: Option<String>,
    /// Text may follow calls.
    pub goes_on: bool,
}

/// The calls of all tools.
#[derive(Default)]
struct Calls<'t> {
    /// Each up to its last marker.
    heads: Vec<(&'t str, Vec<GrammarPart>)>,
    /// The last marker of each, which models omit before another one, and at the end.
    closing: Vec<GrammarPart>,
    builtins: Vec<Vec<GrammarPart>>,
    /// With other heads.
    others: Vec<Vec<GrammarPart>>,
    unmarked: Vec<Unmarked>,
}

/// What may follow a call, where its last marker or that of its section is missing.
struct Broken {
    in_section: String,
    alone: String,
}

impl<'a> Output<'a, '_> {
    /// The calls of an output, up to the next text. `settled`: what may follow; none: only the end.
    pub fn entry(&mut self, caller: &Caller<'_>, settled: Option<&Places>) -> Result<CallEntry, CallError> {
        let format = self.marking.format;
        if !format.has_calls() {
            let problem = "the model's format has no tool calls".to_owned();
            return Err(RuleError::Format { field: "tools", format: format.name, problem }.into());
        }
        let calls = self.calls(caller)?;
        let lenient = !self.is_canonical();
        let section = !format.end.is_empty();
        let finish = if self.finish.is_empty() { "\"\"".to_owned() } else { self.finish.clone() };
        let settles = match settled {
            Some(settled) => self.with_next_number(caller, &settled.after_call),
            None => finish.clone(),
        };
        let broken = (lenient && settled.is_some())
            .then(|| Broken { in_section: self.work.writer.reserve(), alone: self.work.writer.reserve() });
        let closing = join(self.work.writer, &calls.closing);
        // Arguments in JSON tell by themselves where they end.
        let tells = matches!(format.codec(), Codec::Json | Codec::Bare(_) | Codec::Keyed | Codec::Object { .. })
            || format.around_arguments().1.iter().filter(|s| matches!(s, Step::Tok(_))).count() > 1;
        let may_break = broken.as_ref().filter(|_| tells && !closing.is_empty() && !format.text.is_needed());
        let alone = match may_break {
            Some(broken) => {
                let broken = self.with_next_number(caller, &broken.alone);
                self.rule(&[format!("{closing} {settles}"), broken])
            }
            None => format!("{closing} {settles}"),
        };
        let tail = self.tail(caller, settled, &settles, broken.as_ref())?;
        let closed = if section && may_break.is_some() { format!("({closing})?") } else { closing };
        let between = self.marking.plain(format.between)?;
        let next: Vec<String> = calls
            .heads
            .iter()
            .map(|(_, head)| format!("{} {closed}", join(self.work.writer, &[&between[..], &head[..]].concat())))
            .collect();
        let many = format.many && self.rules.parallel && (section || settled.is_none());
        let after = match caller.count.filter(|_| many) {
            Some(count) => {
                let (after, again) = (self.work.writer.reserve(), self.work.writer.reserve());
                let next = self.rule(&next);
                self.work.writer.define_parametric(&again, &[format!("{next} {after}::_")]);
                let advance = count.advance(self.work.writer, &again);
                let tail = if tail.trim().is_empty() { "\"\"".to_owned() } else { tail };
                self.work.writer.define_parametric(&after, &[tail, format!("{advance}::_")]);
                format!("{closed} {after}::_")
            }
            None if many => format!("{closed} {}* {tail}", self.rule(&next)),
            // Without a section, text leads to the next call.
            None if settled.is_some() && !section => alone.clone(),
            None => format!("{closed} {tail}"),
        };

        let mut exits = Vec::new();
        for pieces in &calls.builtins {
            if let Some((marker, rest)) = pieces.split_first() {
                let rest = format!("{} {}", join(self.work.writer, rest), self.finish);
                exits.push(Exit { marker: marker.clone(), rest, kind: ExitKind::Marker });
            }
        }
        let (mut lists, mut opening, mut opened) = (Vec::new(), Vec::new(), None);
        if format.opens {
            let after = self.work.writer.reserve();
            for call in &calls.unmarked {
                let begin = self.work.writer.regex(&format!("{OPENING_LAYOUT}{}", call.begin()));
                opening.push(format!("{begin} {} {after}", call.rest));
            }
            opened = Some(after);
        }
        let begin = self.marking.plain(format.begin)?;
        let firsts = match bare(format) {
            Some(_) => {
                exits.extend(self.unmarked_exits(&calls.unmarked, &after));
                0
            }
            None => {
                if lenient && bare_list(format) {
                    let end: Vec<_> = format.end.iter().filter(|s| matches!(s, Step::Lit(_))).copied().collect();
                    let end = join(self.work.writer, &self.marking.plain(&end)?);
                    let next = self.rule(&next);
                    for call in &calls.unmarked {
                        let begin = format!(r"[ \t\r\n]*\[[ \t\r\n]*{}", call.begin());
                        let begin = self.work.writer.regex(&begin);
                        // With anything after it, the list is text.
                        let last = if self.must_call { &finish } else { &settles };
                        lists.push(format!("{begin} {} {next}* {end} {last}", call.rest));
                    }
                }
                let whole = calls.heads.iter().map(|(name, head)| (*name, [&begin[..], head].concat()));
                let firsts = self.marked_exits(&whole.collect::<Vec<_>>(), &after);
                let count = firsts.len();
                exits.extend(firsts);
                count
            }
        };
        let begins: Vec<Exit> = exits[exits.len() - firsts..].to_vec();
        if lenient && bare(format).is_none() {
            if !begin.is_empty() && matches!(format.call.first(), Some(Step::Tok(_))) {
                exits.extend(self.marked_exits(&calls.heads, &alone));
            }
            exits.extend(self.short_exits(&calls, &settles));
        }
        let blank = GrammarPart::Maybe(if lenient { layout() } else { String::new() });
        let mut whole: Vec<_> = exits
            .iter()
            .map(|exit| format!("{} {}", join(self.work.writer, &[blank.clone(), exit.marker.clone()]), exit.rest))
            .collect();
        whole.extend(calls.others.iter().map(|call| format!("{} {after}", join(self.work.writer, call))));
        let whole = self.rule(&whole);
        if let (Some(broken), Some(settled)) = (broken, settled) {
            let alone = if section { &exits } else { &begins };
            let alone = self.after_broken(alone, settled, &finish);
            self.define(&broken.alone, &alone);
            let in_section = self.after_broken(&begins, settled, &finish);
            self.define(&broken.in_section, &in_section);
        }
        Ok(CallEntry { exits, whole, lists, opening, opened, goes_on: settled.is_some() })
    }

    fn calls(&mut self, caller: &Caller<'_>) -> Result<Calls<'a>, CallError> {
        let (format, rules) = (self.marking.format, self.rules);
        let (_, after) = format.around_arguments();
        let closing = after.iter().rposition(|s| matches!(s, Step::Tok(_))).map_or(0, |at| after.len() - at);
        let mut calls = Calls::default();
        for tool in rules.callable() {
            if !writable(&tool.name) {
                let field = format!("tools[{}].function.name", tool.name);
                return Err(RuleError::invalid(field, "a name must consist of letters, digits, _, - and .").into());
            }
            let enforced = rules.enforced(tool);
            let mut head = caller.call(self.work, tool, enforced)?;
            if bare(format).is_some() || bare_list(format) || format.opens {
                calls.unmarked.extend(caller.bare(self.work, tool, enforced, &head)?);
            }
            calls.builtins.extend(caller.builtin(self.work, tool, enforced)?);
            calls.closing = head.split_off(head.len() - closing);
            if !self.is_canonical() {
                calls.others.extend(caller.other_heads(tool, &head)?);
            }
            calls.heads.push((tool.name.as_str(), head));
        }
        Ok(calls)
    }

    /// What follows the last call of a section, or of an output.
    fn tail(
        &mut self,
        caller: &Caller<'_>,
        settled: Option<&Places>,
        settles: &str,
        broken: Option<&Broken>,
    ) -> Result<String, CallError> {
        let format = self.marking.format;
        let last = format.end.iter().rposition(|s| matches!(s, Step::Tok(_)));
        if let (Some(broken), Some(last)) = (broken.filter(|_| !format.text.is_needed()), last) {
            let (begun, closed) = format.end.split_at(last);
            let begun = join(self.work.writer, &self.marking.plain(begun)?);
            let closed = join(self.work.writer, &self.marking.plain(closed)?);
            let broken = self.with_next_number(caller, &broken.in_section);
            let rest = self.rule(&[format!("{closed} {settles}"), broken]);
            return Ok(format!("{begun} {rest}"));
        }
        let mut end = self.marking.plain(format.end)?;
        // llguidance does not end two lexemes at one byte: what follows the sign is text.
        if let (Some(Step::Lit(sign)), true) = (format.end.first(), settled.is_some() && lead_is_sign(format)) {
            end[0] = GrammarPart::Regex(format!("{}{}", self.marking.form.blanks(), escape(sign.trim())));
        }
        if end.is_empty() && !format.between.is_empty() {
            end.push(GrammarPart::Regex(self.marking.form.blanks()));
        }
        let end = join(self.work.writer, &end);
        if settled.is_none() && format.calls == CallPosition::BeforeText && self.response.is_none() {
            let refused = self.call_beginnings();
            let text = self.prose(Vec::new(), Some(settles), &refused, None, TextPlace::AfterCall);
            return Ok(format!("{end} {}", either(&text)));
        }
        Ok(format!("{end} {settles}"))
    }

    /// The expression for a place after a call.
    fn with_next_number(&mut self, caller: &Caller<'_>, place: &str) -> String {
        match caller.count {
            Some(count) => format!("{}::_", count.advance(self.work.writer, place)),
            None => place.to_owned(),
        }
    }

    /// The way to calls that all begin with the same marker: as a token, and by its letters if those count too.
    fn marked_exits(&mut self, calls: &[(&str, Vec<GrammarPart>)], after: &str) -> Vec<Exit> {
        let Some(marker) = calls.first().and_then(|(_, call)| call.first()).cloned() else { return Vec::new() };
        let mut exits = Vec::new();
        let known = beginnings(&calls.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        for marker in self.marking.variants_of(&marker) {
            let GrammarPart::Text(letters) = &marker else {
                let rest: Vec<_> = calls.iter().map(|(_, call)| join(self.work.writer, &call[1..])).collect();
                let rest = format!("{} {after}", self.rule(&rest));
                exits.push(Exit { marker, rest, kind: ExitKind::Marker });
                continue;
            };
            // Up to the name the letters may be a mere mention.
            let mut begun: Vec<(String, Vec<String>)> = Vec::new();
            for (name, call) in calls {
                let written = until_written_name(self.marking.format, letters).filter(|_| !self.is_canonical());
                let told = told_after(self.marking.format, letters).map(|steps| steps + 1);
                let (before, mut rest) = split(name, call, told);
                let mut before = format!("{}{}", escape(letters), written.unwrap_or(before));
                let at_once = until_name(self.marking.format, letters).is_none();
                if at_once && rest.first() == Some(&GrammarPart::Text((*name).to_owned())) {
                    let begun = known.iter().find(|begun| name.starts_with(**begun)).unwrap_or(name);
                    before.push_str(&escape(begun));
                    rest[0] = GrammarPart::Text(name[begun.len()..].to_owned());
                }
                let rest = join(self.work.writer, &rest);
                match begun.iter_mut().find(|(known, _)| *known == before) {
                    Some((_, all)) => all.push(rest),
                    None => begun.push((before, vec![rest])),
                }
            }
            for (before, all) in begun {
                let rest = format!("{} {after}", self.rule(&all));
                let first = announcing(self.marking.format).first() == Some(&letters.as_str());
                let kind = if first { ExitKind::Announced } else { ExitKind::Later };
                exits.push(Exit { marker: GrammarPart::Regex(before), rest, kind });
            }
        }
        exits
    }

    /// The way to calls without a marker, and with one that models may write before them.
    fn unmarked_exits(&mut self, calls: &[Unmarked], after: &str) -> Vec<Exit> {
        let exit = |begin: String, rest: &str, kind| Exit {
            marker: GrammarPart::Regex(begin),
            rest: format!("{rest} {after}"),
            kind,
        };
        let Some(lead) = calls.first().map(|call| call.lead.clone()) else { return Vec::new() };
        let w = &mut *self.work.writer;
        let named: Vec<_> = calls.iter().map(|call| format!("{} {}", w.regex(&call.tail), call.rest)).collect();
        let mut exits = vec![exit(lead, &self.rule(&named), ExitKind::Lead)];
        let optional = self.marking.format.begin.first().and_then(marker);
        if let Some(id) = optional.and_then(|marker| self.marking.vocab.special_id(marker)) {
            let w = &mut *self.work.writer;
            let all: Vec<_> = calls.iter().map(|call| format!("{} {}", w.regex(&call.begin()), call.rest)).collect();
            let blank = w.regex(&layout());
            let rest = format!("{blank}? {} {after}", self.rule(&all));
            exits.push(Exit { marker: GrammarPart::Token(id), rest, kind: ExitKind::Marker });
        }
        exits
    }

    /// The way to calls without what precedes their second marker.
    fn short_exits(&mut self, calls: &Calls<'_>, after: &str) -> Vec<Exit> {
        let Some((from, until)) = short(self.marking.format) else { return Vec::new() };
        let mut exits = Vec::new();
        let short: Vec<(&str, Vec<GrammarPart>)> = calls
            .heads
            .iter()
            .map(|(name, head)| {
                let whole = [&head[..], &calls.closing[..]].concat();
                (*name, whole[from..whole.len() - until].to_vec())
            })
            .collect();
        let confirmed = self.marking.short_marker().is_some();
        if short.iter().all(|(_, call)| confirmed || matches!(call.first(), Some(GrammarPart::Token(_)))) {
            exits.extend(self.marked_exits(&short, after).into_iter().take(1));
        }
        for (name, call) in &short {
            let Some((lead, tail)) = self.marking.short_beginning(&[name]) else { continue };
            let begin = lead + &tail;
            let rest = [&[GrammarPart::Regex(GrammarForm::Tolerant.blanks())], after_name(name, call)].concat();
            let rest = format!("{} {after}", join(self.work.writer, &rest));
            exits.push(Exit { marker: GrammarPart::Regex(begin), rest, kind: ExitKind::Short });
        }
        exits
    }

    /// After a call without its last marker: another marker, or the end.
    fn after_broken(&mut self, exits: &[Exit], settled: &Places, finish: &str) -> Vec<String> {
        let mut all: Vec<Exit> = exits.iter().filter(|exit| exit.is_marked()).cloned().collect();
        let reasoning = self.marking.format.reasoning.as_ref();
        for open in reasoning.and_then(|r| self.marking.variants(r.open).ok()).unwrap_or_default() {
            if let [GrammarPart::Token(_), ..] = open.as_slice() {
                all.extend(self.exit(&open, &format!("{}{}", settled.inside, self.pass)));
            }
        }
        // Blanks before letters would be one lexeme with them, which conflicts with those that end the arguments.
        let blank = |marker: &GrammarPart| match marker {
            GrammarPart::Token(_) => layout(),
            _ => String::new(),
        };
        let mut all: Vec<String> = all
            .into_iter()
            .map(|exit| {
                let begin = [GrammarPart::Maybe(blank(&exit.marker)), exit.marker];
                format!("{} {}", join(self.work.writer, &begin), exit.rest)
            })
            .collect();
        all.push(finish.to_owned());
        all
    }
}

/// What precedes the name, or part `at`, in a call after its first marker, as a regular expression, and the rest.
fn split(name: &str, call: &[GrammarPart], at: Option<usize>) -> (String, Vec<GrammarPart>) {
    let quoted = GrammarPart::Text(quoted(name));
    let named = |part: &GrammarPart| *part == quoted || *part == GrammarPart::Text(name.to_owned());
    let at = at.or_else(|| call.iter().position(named)).unwrap_or(1);
    let letters = |part: &GrammarPart| match part {
        GrammarPart::Text(text) => escape(text),
        GrammarPart::Regex(regex) => regex.clone(),
        GrammarPart::Maybe(regex) => format!("({regex})?"),
        GrammarPart::Token(_) | GrammarPart::Rule(_) => String::new(),
    };
    let mut before: String = call[1..at].iter().map(letters).collect();
    let mut rest = call[at..].to_vec();
    if rest.first() == Some(&quoted) {
        before.push('"');
        rest[0] = GrammarPart::Text(format!("{name}\""));
    }
    (before, rest)
}

/// The part of a call that models write if they omit what precedes its second marker: the number of steps before it,
/// and after the first marker that ends the arguments.
fn short(format: &Format) -> Option<(usize, usize)> {
    let (before, after) = format.around_arguments();
    let from = before.iter().rposition(|s| matches!(s, Step::Tok(_)))?;
    let named = before.iter().position(|s| *s == Step::Name).is_none_or(|name| from < name);
    let until = after.iter().position(|s| matches!(s, Step::Tok(_))).map_or(0, |at| after.len() - at - 1);
    (from > 0 && named).then_some((from, until))
}
