//! Parses calls: header and body.

use super::{Parser, State, framed, text};
use crate::codec::{Bare, Body, Elements, End, Object, OpenCall, Params, Progress, Python, Tagged, Trust};
use crate::event::Event;
use crate::format::{CallIdStyle, Codec, Step, marker};
use crate::header::{self, is_plausible, label, slots};
use crate::marks::{HeaderEnd, Mark};
use crate::scan::FRAME;

type Parts = [(&'static str, String)];

/// The contents of a header.
struct Named {
    name: String,
    id: Option<String>,
    /// Other text in the header, and what was read.
    junk: String,
    raw: String,
}

impl Parser {
    /// Reads text before the arguments. Returns the number of consumed bytes.
    pub(super) fn header_text(&mut self, s: &str, out: &mut Vec<Event>) -> usize {
        let State::Header(parts) = &mut self.state else { return 0 };
        let Some((tok, part)) = parts.last_mut() else { return 0 };
        let named = *tok == self.lex.name_mark;
        let end = match self.lex.header_end {
            HeaderEnd::Char(c) if named => {
                if part.is_empty() && s.trim_start().len() < s.len() {
                    return s.len() - s.trim_start().len();
                }
                s.find([c, '\n']).map(|n| (n, 1))
            }
            HeaderEnd::Brace => s.find('{').map(|n| (n, 0)),
            _ => None,
        };
        let Some((n, ended)) = end else {
            part.push_str(s);
            return s.len();
        };
        part.push_str(&s[..n]);
        self.end_header(out);
        n + ended
    }

    /// The header is complete.
    fn end_header(&mut self, out: &mut Vec<Event>) {
        let State::Header(parts) = std::mem::replace(&mut self.state, State::Prose) else { return };
        match self.read_header(&parts) {
            Some(named) => {
                self.malformed(&named.junk, out);
                self.begin_body(Some(named.name), named.id, &named.raw, out);
            }
            None => self.state = State::Gap(spelled(&parts)),
        }
    }

    fn read_header(&self, parts: &Parts) -> Option<Named> {
        let (pre, _) = self.format.around_arguments();
        let mut segments: Vec<(&'static str, &[Step])> = Vec::new();
        let mut rest = pre.get(1..).unwrap_or_default();
        let mut tok = "";
        loop {
            let n = rest.iter().position(|s| marker(s).is_some()).unwrap_or(rest.len());
            segments.push((tok, &rest[..n]));
            let Some(next) = rest.get(n).and_then(marker) else { break };
            tok = next;
            rest = &rest[n + 1..];
        }
        let (tok, steps) = segments.iter().copied().find(|(_, s)| s.contains(&Step::Name))?;
        let filled = |(_, text): &&(&'static str, String)| !text.trim().is_empty();
        let part = parts.iter().filter(filled).find(|(t, _)| *t == tok).or_else(|| parts.iter().rfind(filled))?;
        let declared = |name: &str| self.declares(name);
        let before = match steps.iter().take_while(|s| **s != Step::Name).last() {
            Some(Step::Lit(l)) => *l,
            _ => "",
        };
        let (name, index, mut junk) = if label(before).is_some() || before.trim().starts_with('"') {
            let read = slots(steps, &part.1);
            (read.name.filter(|n| is_plausible(n))?, None, read.rest)
        } else {
            let read = header::read(steps, &part.1, declared)?;
            // A number alone can only mean the only tool.
            match (&*self.tools, read.name.parse()) {
                ([only], Ok(index)) if read.index.is_none() && !declared(&read.name) => {
                    (only.name.clone(), Some(index), String::new())
                }
                _ => (read.name, read.index, String::new()),
            }
        };
        let id_tok = segments.iter().find(|(_, s)| s.contains(&Step::Id)).map(|(t, _)| *t);
        let id_part = parts.iter().filter(filled).find(|(t, _)| Some(*t) == id_tok);
        let id = match self.format.ids {
            CallIdStyle::Header => index.and_then(|i| self.format.native_id(&name, i)),
            _ => id_part.map(|(_, text)| text.trim().to_owned()),
        };
        let read = |p: &(&'static str, String)| std::ptr::eq(p, part) || id_part.is_some_and(|id| std::ptr::eq(p, id));
        let mut raw = String::new();
        for part in parts {
            let (tok, text) = part;
            let literals = segments.iter().filter(|(t, _)| t == tok).flat_map(|(_, s)| *s);
            let known = |s: &Step| matches!(s, Step::Lit(l) if l.trim() == text.trim());
            if read(part) || text.trim().is_empty() || literals.into_iter().any(known) {
                raw.push_str(text);
            } else {
                junk.push_str(text);
            }
        }
        Some(Named { name, id, junk, raw })
    }

    /// Begins a call that a head has named.
    pub(super) fn begin_block(&mut self, head: &str, out: &mut Vec<Event>) {
        let phrase = self.lex.blocks.as_ref().and_then(|b| b.call());
        let steps = phrase.map(|p| p.steps).unwrap_or_default();
        let read = slots(steps, head);
        let Some(name) = read.name.filter(|n| is_plausible(n)) else {
            self.state = State::Gap(head.to_owned());
            return;
        };
        let junk = self.unknown_words(&read.rest);
        self.malformed(&junk, out);
        let before = steps.iter().take_while(|s| **s != Step::Name).last();
        let (key, prefix) = if let Some(Step::Lit(l)) = before { label(l).unwrap_or_default() } else { ("", "") };
        let prefixed = format!("{prefix}{name}");
        let name = if !self.declares(&name) && self.declares(&prefixed) { prefixed } else { name };
        let header = format!("{key}{name} ");
        self.begin_body(Some(name), None, &header, out);
    }

    pub(super) fn mark_in_header(&mut self, mark: Mark, tok: &'static str, head: Option<&str>, out: &mut Vec<Event>) {
        let State::Header(parts) = &mut self.state else { return };
        match mark {
            Mark::Ignored => {}
            Mark::Argument | Mark::Inner if self.lex.header_end == HeaderEnd::Mark(tok) => self.end_header(out),
            Mark::Argument | Mark::Inner => parts.push((tok, String::new())),
            _ => {
                let parts = std::mem::take(parts);
                if self.lex.shape.is_some() && mark != Mark::Open {
                    self.state = State::Header(parts);
                    self.end_header(out);
                } else {
                    self.recover(&parts, End::Marker, out);
                }
                self.take_mark(mark, tok, false, head, out);
            }
        }
    }

    pub(super) fn begin_body(&mut self, name: Option<String>, id: Option<String>, header: &str, out: &mut Vec<Event>) {
        self.doubt(header);
        let body = self.body(name, id, header, out);
        self.state = State::Body(Box::new(body));
    }

    /// Begins the arguments after a name, in a format that has both in one object.
    pub(super) fn begin_arguments_of(&mut self, name: &str, out: &mut Vec<Event>) {
        let call = self.call(Some(name.trim().to_owned()), None);
        self.state = State::Body(Box::new(Body::Object(Object::new(call, Codec::Json, name))));
        self.confirm(out);
    }

    /// A marker that follows a header was read, but not the one before the header.
    pub(super) fn names_call(&mut self, header: &str, out: &mut Vec<Event>) -> bool {
        let named = self.read_header(&[(self.lex.name_mark, header.to_owned())]);
        let Some(named) = named.filter(|n| n.junk.is_empty() && self.declares(&n.name)) else { return false };
        self.begin_body(Some(named.name), named.id, &named.raw, out);
        true
    }

    pub(super) fn call(&self, name: Option<String>, id: Option<String>) -> OpenCall {
        let trust = match &self.trial {
            Some(trial) if trial.explicit => Trust::Letters,
            Some(_) => Trust::Name,
            None => Trust::Marker,
        };
        let tools = self.tools.clone();
        let mut call = OpenCall { index: self.calls, name: None, id, tools, trust, started: false, delta: Vec::new() };
        if let Some(name) = name {
            call.set_name(name);
        }
        call
    }

    fn body(&self, name: Option<String>, id: Option<String>, header: &str, out: &mut Vec<Event>) -> Body {
        let call = self.call(name, id);
        match (self.format.codec(), self.lex.shape) {
            (Codec::Params(_), Some(shape)) => Body::Params(Params::new(call, shape, out)),
            (Codec::Python, _) => Body::Python(Python::new(call, header)),
            (Codec::Bare(_), _) => Body::Bare(Bare::new(call, header, self.format.string_mark().unwrap_or_default())),
            (Codec::Elements(_), _) => {
                Body::Elements(Elements::new(call, self.format.string_mark().unwrap_or_default(), out))
            }
            (Codec::Tagged(tags), _) => Body::Tagged(Tagged::new(call, tags, out)),
            (codec, _) => Body::Object(Object::new(call, codec, header)),
        }
    }

    /// Another marker, or the end, was read in place of the one between header and arguments: perhaps only that one is
    /// missing.
    pub(super) fn recover(&mut self, parts: &Parts, end: End, out: &mut Vec<Event>) {
        let raw = spelled(parts);
        self.state = State::Gap(raw.clone());
        if !matches!(self.format.codec(), Codec::Json | Codec::Bare(_)) {
            return;
        }
        let Some((name, arguments)) = raw.find('{').map(|at| raw.split_at(at)) else { return };
        let mut left = name.len();
        let before: Vec<(&'static str, String)> = parts
            .iter()
            .map(|(tok, text)| {
                let n = left.min(text.len());
                left -= n;
                (*tok, text[..n].to_owned())
            })
            .collect();
        let Some(named) = self.read_header(&before) else { return };
        self.malformed(&named.junk, out);
        let mut body = self.body(Some(named.name), named.id, &named.raw, out);
        for (i, &b) in arguments.as_bytes().iter().enumerate() {
            self.work += 1;
            match body.feed(b, out) {
                Progress::More => {}
                Progress::Done => return self.end_body(body, End::Whole, &arguments[i + 1..], out),
                Progress::Bad => return self.end_body(body, End::Broken, &text(&arguments.as_bytes()[i..]), out),
            }
        }
        self.end_body(body, end, "", out);
    }

    /// Reads a body byte by byte.
    pub(super) fn advance_body(&mut self, last: bool, out: &mut Vec<Event>) -> bool {
        let State::Body(body) = &mut self.state else { return false };
        let rest = self.input.rest();
        let mut told = Vec::new();
        let mut n = 0;
        let mut left = None;
        while n < rest.len() {
            self.work += 1;
            if rest[n] == FRAME {
                break;
            }
            match body.feed(rest[n], &mut told) {
                Progress::More => n += 1,
                Progress::Done => {
                    n += 1;
                    left = Some(End::Whole);
                    break;
                }
                Progress::Bad => {
                    left = Some(End::Broken);
                    break;
                }
            }
        }
        if let Some(trial) = &mut self.trial {
            trial.raw.push_str(&text(&rest[..n]));
        }
        if !told.is_empty() {
            self.confirm(out);
            out.append(&mut told);
        }
        if let Some(end) = left {
            let ends = matches!(self.format.codec(), Codec::Elements(_) | Codec::Tagged(_));
            let tag = self.lex.post.last().copied().filter(|_| ends);
            self.leave_body(n, end, out);
            // These arguments end with the call's own marker.
            if let (Some(tag), End::Whole) = (tag, end) {
                self.mark_in_gap(Mark::Close, tag, None, out);
            }
            return true;
        }
        let rest = self.input.rest();
        if n == rest.len() {
            self.input.consume(n);
            return false;
        }
        self.token_in_body(n, last, out)
    }

    /// A special token, `n` bytes ahead.
    fn token_in_body(&mut self, n: usize, last: bool, out: &mut Vec<Event>) -> bool {
        let State::Body(body) = &mut self.state else { return false };
        let rest = self.input.rest();
        let Some((name, len)) = framed(&rest[n..]) else { return false };
        self.work += len as u64;
        let mark = self.lex.mark(name);
        let opens = self.lex.blocks.as_ref().is_some_and(|b| b.openers.contains(&name));
        if !body.in_string() {
            let passes = match mark {
                Some(Mark::Argument | Mark::Ignored) => true,
                Some(Mark::Inner) => body.is_empty(),
                Some(_) => false,
                None => !opens && !self.format.stops.contains(&name),
            };
            if passes {
                self.input.consume(n + len);
                return true;
            }
            // The marker stays in the buffer: it ends the call, and decides what follows.
            return self.leave_body(n, End::Marker, out);
        }
        // No marker counts inside a string, but a string that the model forgot to close must not swallow later calls:
        // an end marker followed by another marker ends the call.
        if opens {
            return self.leave_body(n, End::Marker, out);
        }
        if mark == Some(Mark::Close) {
            let next = &rest[n + len..];
            if next.is_empty() && !last {
                body.flush(out);
                self.input.consume(n);
                return false;
            }
            let structural = |m: Mark| matches!(m, Mark::Open | Mark::End | Mark::Begin);
            let followed = framed(next).and_then(|(name, _)| self.lex.mark(name));
            if next.is_empty() || followed.is_some_and(structural) {
                return self.leave_body(n, End::Marker, out);
            }
        }
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        let mut told = Vec::new();
        for b in name.bytes() {
            if body.feed(b, &mut told) == Progress::Bad {
                return self.leave_body(n, End::Broken, out);
            }
        }
        if let Some(trial) = &mut self.trial {
            trial.raw.push_str(&text(&rest[..n]));
            trial.raw.push_str(&name);
        }
        if !told.is_empty() {
            self.confirm(out);
            out.append(&mut told);
        }
        self.input.consume(n + len);
        true
    }

    pub(super) fn leave_body(&mut self, consumed: usize, end: End, out: &mut Vec<Event>) -> bool {
        self.input.consume(consumed);
        if let State::Body(body) = std::mem::replace(&mut self.state, State::Prose) {
            self.end_body(*body, end, "", out);
        }
        true
    }

    pub(super) fn end_body(&mut self, body: Body, end: End, rest: &str, out: &mut Vec<Event>) {
        self.announced &= end == End::Output;
        let mut told = Vec::new();
        let mut junk = body.end(end, &mut told);
        if !told.is_empty() {
            self.confirm(out);
        }
        if matches!(told.last(), Some(Event::ToolCallEnd { .. })) {
            self.calls += 1;
            self.announced = false;
            self.broken = end == End::Broken;
        }
        out.append(&mut told);
        junk.push_str(rest);
        if self.opening && junk.is_empty() && end == End::Whole {
            return self.opened(out);
        }
        self.opening = false;
        self.state = State::Gap(junk);
        if self.trial.is_some() {
            self.release(out);
        }
    }

    /// A mark inside raw arguments, or one that ends the body early.
    pub(super) fn mark_in_body(&mut self, mark: Mark, tok: &'static str, head: Option<&str>, out: &mut Vec<Event>) {
        let State::Body(body) = &mut self.state else { return };
        if let Body::Params(params) = &mut **body {
            match mark {
                Mark::Param => return params.open(head),
                Mark::ParamInner => return params.inner(tok),
                Mark::ParamEnd => return params.end_value(),
                Mark::Argument | Mark::Ignored => return,
                _ => params.end_value(),
            }
        }
        let end = if mark == Mark::Close { End::Whole } else { End::Marker };
        self.leave_body(0, end, out);
        self.take_mark(mark, tok, false, head, out);
    }
}

fn spelled(parts: &Parts) -> String {
    parts.iter().map(|(_, text)| text.as_str()).collect()
}
