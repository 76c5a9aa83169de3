//! Parses the text between calls: what opens the next one, and what ends them.

use serde_json::Value;

use super::{Cause, List, Parser, State, Trial, callable};
use crate::codec::json::Fed;
use crate::codec::{Object, OpenCall, Progress, Trust};
use crate::event::Event;
use crate::format::{CallPosition, Codec, Markers, Member};
use crate::header::is_plausible;
use crate::marks::{Inline, Mark};
use crate::scan::{FRAME, framed, text};
use crate::tools::Tools;

/// Length limit of a name for a call without a marker.
pub(super) const LONGEST_NAME: usize = 256;

impl Parser {
    pub(super) fn mark_in_gap(&mut self, mark: Mark, tok: &'static str, head: Option<&str>, out: &mut Vec<Event>) {
        self.announced = mark.enters_calls() && self.trial.is_none();
        self.broken &= !mark.enters_calls();
        match mark {
            Mark::Begin => {
                self.section = true;
                self.bracket = tok.ends_with('[');
                self.tried |= self.trial.is_none();
                self.state = State::Gap(String::new());
            }
            Mark::Open | Mark::Inner => {
                self.tried |= self.trial.is_none();
                self.short = mark == Mark::Inner;
                match head {
                    Some(head) => self.begin_block(head, out),
                    None if self.lex.names_in_header => {
                        let tok = if self.short { tok } else { "" };
                        self.state = State::Header(vec![(tok, String::new())]);
                    }
                    None => self.begin_body(None, None, "", out),
                }
            }
            Mark::Close if self.section || (!self.short && self.lex.post.last() != Some(&tok) && !tok.is_empty()) => {
                self.state = State::Gap(String::new());
            }
            Mark::Argument | Mark::Param | Mark::ParamInner | Mark::ParamEnd | Mark::Ignored => {
                // An argument outside any call.
                self.state = State::Gap(head.map(|head| head.trim().to_owned() + " ").unwrap_or_default());
            }
            Mark::Close | Mark::End | Mark::Think | Mark::EndThink | Mark::TextOpen | Mark::TextClose => {
                self.leave_section();
                if matches!(mark, Mark::Think | Mark::TextOpen) {
                    self.mark_in_prose(mark, tok, false, None, out);
                }
            }
        }
    }

    fn leave_section(&mut self) {
        (self.announced, self.broken) = (false, false);
        (self.section, self.bracket, self.short) = (false, false, false);
        self.state = State::Prose;
        self.tried = true;
        self.trim_text |= self.format.calls == CallPosition::BeforeText;
    }

    /// Reads text between calls. Returns the number of consumed bytes.
    pub(super) fn gap_text(&mut self, s: &str, out: &mut Vec<Event>) -> usize {
        for (i, c) in s.char_indices() {
            let next = i + c.len_utf8();
            if let Some(taken) = self.builtin_text(c, out) {
                if matches!(self.state, State::Gap(_)) {
                    continue;
                }
                return i + taken;
            }
            let State::Gap(junk) = &mut self.state else { return i };
            let list = self.lex.closer.is_some() && self.bracket;
            if list && Some(c) == self.lex.closer {
                let junk = std::mem::take(junk);
                if let Some(trial) = &mut self.trial {
                    trial.raw.push(c);
                    self.release(out);
                    return next;
                }
                self.malformed(&junk, out);
                self.leave_section();
                return next;
            }
            match self.lex.inline {
                Some(Inline::Object) if c == '{' => {
                    let junk = std::mem::take(junk);
                    if self.trial.is_some() && !self.lex.without_layout(&junk).is_empty() {
                        self.release(out);
                        return i;
                    }
                    if self.trial.is_none() && self.declares(junk.trim()) {
                        self.begin_arguments_of(&junk, out);
                    } else {
                        self.malformed(&junk, out);
                        self.begin_body(None, None, "", out);
                    }
                    return i;
                }
                // Some models put several calls between one pair of markers.
                None if c == '{'
                    && self.tried
                    && self.trial.is_none()
                    && !self.lex.open_ended
                    && matches!(self.format.codec(), Codec::Object { .. } | Codec::Keyed)
                    && junk.chars().all(|c| c.is_whitespace() || c == ',') =>
                {
                    junk.clear();
                    self.begin_body(None, None, "", out);
                    return i;
                }
                // Names are short: longer text is not searched again at every bracket.
                Some(Inline::Name) if c == '(' && junk.len() <= LONGEST_NAME => {
                    let header = std::mem::take(junk) + "(";
                    if let Some(trial) = &mut self.trial {
                        trial.raw.push(c);
                    }
                    self.begin_named(&header, out);
                    return next;
                }
                _ => {}
            }
            let layout = c.is_whitespace() || self.lex.layout.iter().any(|l| l.starts_with(c));
            self.bracket |= c == '[' && junk.len() < LONGEST_NAME && self.lex.without_layout(junk).is_empty();
            if self.trial.is_some() {
                if !layout && !self.may_name(c) {
                    self.release(out);
                    return i;
                }
                if let (Some(trial), State::Gap(junk)) = (&mut self.trial, &mut self.state) {
                    trial.raw.push(c);
                    junk.push(c);
                }
                continue;
            }
            // After a special token there is no text until a call was read.
            let unanswered = self.announced && self.format.markers == Markers::Special;
            let over = self.lex.open_ended && !self.bracket && !self.broken && !unanswered;
            if !layout && over && self.lex.inline != Some(Inline::Name) {
                let junk = std::mem::take(junk);
                self.malformed(&junk, out);
                self.leave_section();
                return i;
            }
            junk.push(c);
        }
        s.len()
    }

    /// Whether the name of a call without a marker may continue with `c`.
    fn may_name(&self, c: char) -> bool {
        let (State::Gap(junk), Some(Inline::Name)) = (&self.state, self.lex.inline) else { return false };
        if junk.len() > LONGEST_NAME {
            return false;
        }
        let mut name = self.lex.without_layout(junk).to_owned();
        name.push(c);
        let explicit = self.trial.as_ref().is_some_and(|t| t.explicit);
        let any = explicit || self.tools.is_empty();
        if any { is_plausible(&name) } else { self.tools.iter().any(|t| t.name.starts_with(&name)) }
    }

    /// `NAME(`.
    fn begin_named(&mut self, header: &str, out: &mut Vec<Event>) {
        let name = self.lex.without_layout(header.trim_end_matches('(')).to_owned();
        let known = self.trial.as_ref().is_none_or(|t| t.explicit) || self.is_callable(&name);
        if is_plausible(&name) && known {
            self.tried |= self.trial.is_none();
            self.begin_body(Some(name), None, header, out);
        } else if self.trial.is_some() {
            self.release(out);
        } else {
            self.state = State::Gap(header.to_owned());
        }
    }

    /// In a format whose markers may be literal text, each body is on trial.
    pub(super) fn doubt(&mut self, header: &str) {
        if self.lex.doubtful && self.trial.is_none() {
            self.trial = Some(Trial { raw: header.to_owned(), explicit: self.lex.bare.is_none(), marked: false });
        }
    }

    /// Reads a list without a marker.
    pub(super) fn advance_list(&mut self, out: &mut Vec<Event>) -> bool {
        let names = self.name_keys();
        let State::List(list) = &mut self.state else { return false };
        let rest = self.input.rest();
        let mut n = 0;
        let mut is_list = true;
        while n < rest.len() && is_list {
            let b = rest[n];
            if b == FRAME {
                let Some((name, len)) = framed(&rest[n..]) else { return false };
                if self.lex.mark(name).is_some() {
                    is_list = false;
                } else {
                    n += len;
                }
                continue;
            }
            is_list = if list.done { b.is_ascii_whitespace() } else { list.json.feed(b) != Fed::Bad };
            if !is_list {
                break;
            }
            list.raw.push(b);
            n += 1;
            list.done |= list.json.depth() == 0;
            if !list.checked && list.json.depth() <= 1 && (list.json.after_value() || list.done) {
                let mut first = list.raw.clone();
                if !list.done {
                    first.push(b']');
                }
                list.checked = true;
                is_list = calls_only(&first, &names, |name| callable(&self.tools, name))
                    && begins_call(&list.raw, self.format.codec(), &self.tools, self.calls);
            }
        }
        self.work += n as u64 + 1;
        let raw = if is_list { None } else { Some(std::mem::take(&mut list.raw)) };
        self.input.consume(n);
        if let Some(raw) = raw {
            self.state = State::Prose;
            self.prose(&text(&raw), out);
            return true;
        }
        false
    }

    /// The output ended after a list without a marker.
    pub(super) fn end_list(&mut self, out: &mut Vec<Event>) {
        let State::List(list) = std::mem::replace(&mut self.state, State::Prose) else { return };
        self.work += list.raw.len() as u64;
        let whole = list.done && calls_only(&list.raw, &self.name_keys(), |name| self.is_callable(name));
        if !whole && !self.is_cut_list(&list) {
            return self.prose(&text(&list.raw), out);
        }
        self.end_prose(Cause::Call, out);
        self.tried = true;
        self.section = true;
        self.announced = !whole;
        self.state = State::Gap(String::new());
        self.input.push_bytes(&list.raw);
    }

    /// Whether the output was cut inside a list that more output could have turned into a list of calls.
    fn is_cut_list(&self, list: &List) -> bool {
        if !self.cut || list.done {
            return false;
        }
        if list.checked {
            return true;
        }
        begins_call(&list.raw, self.format.codec(), &self.tools, self.calls)
    }

    fn name_keys(&self) -> Vec<&'static str> {
        match self.format.codec() {
            Codec::Object { members, .. } => members.iter().filter_map(Member::name).flatten().copied().collect(),
            _ => Vec::new(),
        }
    }
}

/// Whether the first item of a list is, or may become, a call as the grammar knows them without a marker.
fn begins_call(list: &[u8], codec: Codec, tools: &Tools, index: usize) -> bool {
    let item = list.trim_ascii_start().get(1..).unwrap_or_default();
    let (tools, trust) = (tools.clone(), Trust::Name);
    let call = OpenCall { index, name: None, id: None, tools, trust, started: false, delta: Vec::new() };
    let mut body = Object::new(call, codec, "");
    for b in item.trim_ascii_start() {
        match body.feed(*b, &mut Vec::new()) {
            Progress::More => {}
            Progress::Done => return true,
            Progress::Bad => return false,
        }
    }
    body.may_be_call()
}

/// Whether the text is a list of at least one object, each of which names a declared tool.
fn calls_only(list: &[u8], keys: &[&str], declared: impl Fn(&str) -> bool) -> bool {
    let Ok(items) = serde_json::from_slice::<Vec<Value>>(list) else { return false };
    let named = |item: &Value| keys.iter().any(|k| item.get(*k).and_then(Value::as_str).is_some_and(&declared));
    !items.is_empty() && items.iter().all(named)
}
