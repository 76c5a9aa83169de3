//! The streaming parser: a state machine over the input buffer that consumes what it has understood, so that no byte is
//! looked at more than a bounded number of times.

use crate::body::{Body, End, Progress};
use crate::event::Event;
use crate::format::{Format, Markers, Region, Step};
use crate::header;
use crate::scan::{FRAME, Input, Piece, framed, text};

/// Blanks that may stand between a spelled call marker and its `{` for it to count inside reasoning.
const MARKER_GAP: usize = 8;

/// A declared tool. The name decides how a header that could be read in two ways is split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolDecl {
    pub name: String,
}

#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// Where the output starts: see [`Format::start_after`].
    pub start: Region,
    pub tools: Vec<ToolDecl>,
    /// False when the request declares no tools: tool markers that are special tokens vanish, spelled ones are text.
    pub parse_tools: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Think,
    EndThink,
    Begin,
    End,
    Open,
    Argument,
    Close,
}

/// What stands at the start of the buffer.
enum Seen {
    Mark(Mark, usize),
    /// A special token that means nothing to the format.
    Special(usize),
    /// Could become a marker: wait.
    Partial,
    Other,
}

#[derive(Debug)]
enum State {
    Prose,
    /// Between a call's first two markers.
    Header(String),
    Body(Box<Body>),
    /// After a body, or in a section outside any call.
    Gap(String),
}

#[derive(Debug)]
pub struct Parser {
    format: &'static Format,
    options: ParserOptions,
    marks: Vec<(Mark, &'static str)>,
    /// The bytes that a marker, or a special token, may start with.
    leads: [bool; 256],
    input: Input,
    state: State,
    /// The region of `State::Prose`.
    region: Region,
    /// The region has an event already.
    open: bool,
    /// Blanks that may turn out to be layout.
    held: String,
    /// Newlines at the start of the next text are layout.
    trim_text: bool,
    /// Nothing but blanks came so far.
    pristine: bool,
    /// Inside the tool section.
    section: bool,
    /// A call ended the reasoning, so that its end marker may still come.
    reasoning_left_open: bool,
    calls: usize,
    /// A call was tried.
    tried: bool,
    work: u64,
}

/// What ends a region of prose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Call,
    Marker,
    Output,
}

impl Parser {
    pub fn new(format: &'static Format, options: ParserOptions) -> Self {
        let mut marks = Vec::new();
        let tok = |s: &Step| if let Step::Tok(t) = s { Some(*t) } else { None };
        let first = |steps: &[Step]| steps.iter().find_map(tok);
        if let Some(r) = &format.reasoning {
            marks.extend(first(r.open).map(|t| (Mark::Think, t)));
            marks.extend(first(r.close).map(|t| (Mark::EndThink, t)));
        }
        marks.extend(first(format.begin).map(|t| (Mark::Begin, t)));
        marks.extend(first(format.end).map(|t| (Mark::End, t)));
        let toks: Vec<_> = format.call.iter().filter_map(tok).collect();
        marks.extend(toks.first().map(|t| (Mark::Open, *t)));
        if !format.header().is_empty() {
            marks.extend(toks.get(1).map(|t| (Mark::Argument, *t)));
        }
        let body = format.call.iter().position(|s| matches!(s, Step::Args(_))).unwrap_or(format.call.len());
        marks.extend(first(&format.call[body..]).map(|t| (Mark::Close, t)));
        let mut leads = [false; 256];
        leads[usize::from(FRAME)] = true;
        if format.markers == Markers::Either {
            for lead in marks.iter().filter_map(|(_, m)| m.as_bytes().first()) {
                leads[usize::from(*lead)] = true;
            }
        }
        Self {
            format,
            marks,
            leads,
            input: Input::default(),
            state: State::Prose,
            region: options.start,
            options,
            open: false,
            held: String::new(),
            trim_text: false,
            pristine: true,
            section: false,
            reasoning_left_open: false,
            calls: 0,
            tried: false,
            work: 0,
        }
    }

    /// Takes the next piece of output and appends what it settles.
    pub fn push(&mut self, piece: Piece<'_>, out: &mut Vec<Event>) {
        match piece {
            Piece::Bytes(b) => self.input.push_bytes(b),
            Piece::Special(s) if self.is_spelled_tool_marker(s) => {
                self.input.flush_partial();
                self.input.push_bytes(s.as_bytes());
            }
            Piece::Special(s) => self.input.push_special(s),
        }
        self.run(false, out);
    }

    /// The output has ended: releases what was held and closes what is open. The parser is spent afterwards.
    pub fn finish(&mut self, out: &mut Vec<Event>) {
        self.input.flush_partial();
        self.run(true, out);
        match std::mem::replace(&mut self.state, State::Prose) {
            State::Prose => self.end_prose(Cause::Output, out),
            State::Header(junk) | State::Gap(junk) => malformed(&junk, out),
            State::Body(body) => {
                let junk = body.end(End::Output, out);
                malformed(&junk, out);
            }
        }
    }

    /// Calls told so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Bytes looked at or moved so far, counting each time: what the parser costs, without a clock.
    pub fn work(&self) -> u64 {
        self.work + self.input.moved()
    }

    /// Where the letters of a tool marker count, it makes no difference that the tokenizer has it as one token.
    fn is_spelled_tool_marker(&self, s: &str) -> bool {
        self.format.markers == Markers::Either && self.format.marker_texts().any(|m| m == s)
    }

    fn run(&mut self, last: bool, out: &mut Vec<Event>) {
        while !self.input.rest().is_empty() && self.advance(last, out) {}
        if let State::Body(body) = &mut self.state {
            body.flush(out);
        }
    }

    /// Consumes some input. False: nothing more can be told before more comes.
    fn advance(&mut self, last: bool, out: &mut Vec<Event>) -> bool {
        if let State::Body(_) = self.state {
            return self.advance_body(last, out);
        }
        let n = self.plain_prefix();
        if n > 0 {
            self.take_text(n, out);
            return true;
        }
        match self.seen(last) {
            Seen::Partial => return false,
            Seen::Special(n) => self.input.consume(n),
            Seen::Mark(mark, n) => self.take_mark(mark, n, out),
            // The first byte of what is no marker; markers start with ASCII, so it is a whole character.
            Seen::Other => self.take_text(1, out),
        }
        true
    }

    /// The length of the text at the start of the buffer in which no marker begins.
    fn plain_prefix(&mut self) -> usize {
        let rest = self.input.rest();
        let n = rest.iter().position(|&b| self.leads[usize::from(b)]).unwrap_or(rest.len());
        self.work += n as u64 + 1;
        n
    }

    /// Reads what begins at the start of the buffer, where a marker could.
    fn seen(&mut self, last: bool) -> Seen {
        let rest = self.input.rest();
        if let Some((name, n)) = framed(rest) {
            self.work += n as u64;
            return match self.marks.iter().find(|(_, m)| *m == name) {
                Some((mark, _)) if self.counts(*mark, false) => Seen::Mark(*mark, n),
                _ => Seen::Special(n),
            };
        }
        if self.format.markers == Markers::Special {
            return Seen::Other;
        }
        let mut partial = false;
        let mut found = None;
        for &(mark, m) in &self.marks {
            if !self.counts(mark, true) {
                continue;
            }
            self.work += m.len().min(rest.len()) as u64;
            if rest.starts_with(m.as_bytes()) {
                match self.confirmed(mark, &rest[m.len()..], last) {
                    Some(true) => found = Some((mark, m.len())),
                    Some(false) => {}
                    None => partial = true,
                }
            } else if m.as_bytes().starts_with(rest) {
                partial = true;
            }
        }
        match found {
            Some((mark, n)) => Seen::Mark(mark, n),
            None if partial && !last => Seen::Partial,
            None => Seen::Other,
        }
    }

    /// Inside reasoning a spelled call marker may be a mere mention: there it counts when a body follows it. None: wait.
    fn confirmed(&self, mark: Mark, after: &[u8], last: bool) -> Option<bool> {
        if mark != Mark::Open || !self.in_prose(Region::Reasoning) {
            return Some(true);
        }
        match after.iter().take(MARKER_GAP).find(|b| !b.is_ascii_whitespace()) {
            Some(b) => Some(*b == b'{'),
            None if after.len() < MARKER_GAP && !last => None,
            None => Some(false),
        }
    }

    fn in_prose(&self, region: Region) -> bool {
        matches!(self.state, State::Prose) && self.region == region
    }

    /// Whether a marker means something where we are. A special token is never text, wherever it stands; letters are, where
    /// they make no sense as a marker.
    fn counts(&self, mark: Mark, spelled: bool) -> bool {
        let prose = matches!(self.state, State::Prose);
        match mark {
            Mark::Think | Mark::EndThink if !spelled => true,
            Mark::Think => prose && self.pristine,
            Mark::EndThink => self.in_prose(Region::Reasoning) || (prose && self.reasoning_left_open),
            _ if !self.options.parse_tools => false,
            // A stray end marker right after a call.
            Mark::Close if spelled && prose => self.tried && !self.open && self.region == Region::Text,
            _ => true,
        }
    }

    fn take_mark(&mut self, mark: Mark, n: usize, out: &mut Vec<Event>) {
        match &mut self.state {
            State::Prose => {
                self.input.consume(n);
                self.mark_in_prose(mark, out);
            }
            State::Header(header) => {
                let header = std::mem::take(header);
                if mark == Mark::Argument {
                    self.input.consume(n);
                    self.begin_body(&header);
                } else {
                    self.recover(&header, out);
                }
            }
            State::Gap(junk) => {
                malformed(&std::mem::take(junk), out);
                self.input.consume(n);
                self.mark_in_gap(mark, out);
            }
            State::Body(_) => {}
        }
    }

    fn mark_in_prose(&mut self, mark: Mark, out: &mut Vec<Event>) {
        match (mark, self.region) {
            (Mark::Begin | Mark::Open, region) => {
                self.end_prose(Cause::Call, out);
                self.reasoning_left_open |= region == Region::Reasoning;
                self.region = Region::Text;
                self.mark_in_gap(mark, out);
            }
            (Mark::Think, Region::Text) => {
                self.end_prose(Cause::Marker, out);
                self.region = Region::Reasoning;
            }
            (Mark::EndThink, Region::Reasoning) => {
                self.end_prose(Cause::Marker, out);
                self.region = Region::Text;
                self.trim_text = self.trims();
            }
            (Mark::EndThink, Region::Text) => self.close_left_reasoning(),
            // Strays: a second start of the reasoning, the end of a section or call that is not open.
            _ => {}
        }
        self.pristine = false;
    }

    /// The end marker of a reasoning that a call had ended.
    fn close_left_reasoning(&mut self) {
        if std::mem::take(&mut self.reasoning_left_open) && !self.open {
            self.held.clear();
            self.trim_text = self.trims();
        }
    }

    fn mark_in_gap(&mut self, mark: Mark, out: &mut Vec<Event>) {
        match mark {
            Mark::Begin => {
                self.section = true;
                self.state = State::Gap(String::new());
            }
            Mark::Open if self.format.header().is_empty() => {
                self.tried = true;
                let body = Body::new(self.format.codec(), self.calls, "", None, None);
                self.state = State::Body(Box::new(body));
            }
            Mark::Open => {
                self.tried = true;
                self.state = State::Header(String::new());
            }
            Mark::Close if self.section => self.state = State::Gap(String::new()),
            Mark::Argument => {}
            Mark::Close | Mark::End | Mark::Think | Mark::EndThink => {
                self.section = false;
                self.state = State::Prose;
                self.tried = true;
                if mark == Mark::Think {
                    self.mark_in_prose(mark, out);
                }
            }
        }
    }

    /// Consumes `n` bytes of text.
    fn take_text(&mut self, n: usize, out: &mut Vec<Event>) {
        let s = text(&self.input.rest()[..n]);
        self.input.consume(n);
        self.work += n as u64;
        match &mut self.state {
            State::Header(t) | State::Gap(t) => t.push_str(&s),
            State::Prose => self.prose(&s, out),
            State::Body(_) => {}
        }
    }

    /// The header is whole.
    fn begin_body(&mut self, header: &str) {
        match self.read_header(header) {
            Some((name, id)) => {
                let body = Body::new(self.format.codec(), self.calls, header, Some(name), id);
                self.state = State::Body(Box::new(body));
            }
            None => self.state = State::Gap(header.to_owned()),
        }
    }

    fn read_header(&self, header: &str) -> Option<(String, Option<String>)> {
        let declared = |name: &str| self.options.tools.iter().any(|t| t.name == name);
        let read = header::read(self.format.header(), header, declared)?;
        let id = read.index.and_then(|i| self.format.native_id(&read.name, i));
        Some((read.name, id))
    }

    /// Another marker came where the one between header and arguments belongs: perhaps only that one is missing.
    fn recover(&mut self, header: &str, out: &mut Vec<Event>) {
        let split = header.find('{').map(|at| header.split_at(at));
        let Some((name, arguments)) = split else {
            self.state = State::Gap(header.to_owned());
            return;
        };
        let Some((name, id)) = self.read_header(name) else {
            self.state = State::Gap(header.to_owned());
            return;
        };
        let mut body = Body::new(self.format.codec(), self.calls, header, Some(name), id);
        for (i, &b) in arguments.as_bytes().iter().enumerate() {
            self.work += 1;
            match body.feed(b, out) {
                Progress::More => {}
                Progress::Done => return self.end_body(body, End::Whole, &arguments[i + 1..], out),
                Progress::Bad => return self.end_body(body, End::Broken, &text(&arguments.as_bytes()[i..]), out),
            }
        }
        self.end_body(body, End::Marker, "", out);
    }

    fn advance_body(&mut self, last: bool, out: &mut Vec<Event>) -> bool {
        let State::Body(body) = &mut self.state else { return false };
        let rest = self.input.rest();
        let mut n = 0;
        while n < rest.len() {
            self.work += 1;
            if rest[n] == FRAME {
                break;
            }
            match body.feed(rest[n], out) {
                Progress::More => n += 1,
                Progress::Done => return self.leave_body(n + 1, End::Whole, out),
                Progress::Bad => return self.leave_body(n, End::Broken, out),
            }
        }
        if n == rest.len() {
            self.input.consume(n);
            return false;
        }
        let Some((name, len)) = framed(&rest[n..]) else { return false };
        self.work += len as u64;
        let mark = self.marks.iter().find(|(_, m)| *m == name).map(|(mark, _)| *mark);
        if !body.in_string() {
            return match mark {
                // Left in the buffer: it ends the call and says what comes next.
                Some(m) if m != Mark::Argument => self.leave_body(n, End::Marker, out),
                _ => {
                    self.input.consume(n + len);
                    true
                }
            };
        }
        // No marker counts inside a string, but a string that the model forgot to close must not swallow the calls behind
        // it: an end marker that another marker follows ends the call.
        if mark == Some(Mark::Close) {
            let next = &rest[n + len..];
            if next.is_empty() && !last {
                body.flush(out);
                self.input.consume(n);
                return false;
            }
            let structural = |m: Mark| matches!(m, Mark::Open | Mark::End | Mark::Begin);
            let followed = framed(next).and_then(|(name, _)| self.marks.iter().find(|(_, m)| *m == name));
            if next.is_empty() || followed.is_some_and(|(m, _)| structural(*m)) {
                return self.leave_body(n, End::Marker, out);
            }
        }
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        for b in name.bytes() {
            if body.feed(b, out) == Progress::Bad {
                return self.leave_body(n, End::Broken, out);
            }
        }
        self.input.consume(n + len);
        true
    }

    fn leave_body(&mut self, consumed: usize, end: End, out: &mut Vec<Event>) -> bool {
        self.input.consume(consumed);
        if let State::Body(body) = std::mem::replace(&mut self.state, State::Prose) {
            self.end_body(*body, end, "", out);
        }
        true
    }

    fn end_body(&mut self, body: Body, end: End, rest: &str, out: &mut Vec<Event>) {
        let before = out.len();
        let mut junk = body.end(end, out);
        if matches!(out[before..].last(), Some(Event::ToolCallEnd { .. })) {
            self.calls += 1;
        }
        junk.push_str(rest);
        self.state = State::Gap(junk);
    }

    fn trims(&self) -> bool {
        self.format.reasoning.as_ref().is_some_and(|r| !r.layout[0].is_empty())
    }

    /// Text of the region we are in, without the layout around it.
    fn prose(&mut self, s: &str, out: &mut Vec<Event>) {
        let blank = [' ', '\t', '\n', '\r'];
        let reasoning = self.region == Region::Reasoning;
        let mut s = s;
        if !self.open {
            if reasoning && self.trims() || !reasoning && self.trim_text && self.held.is_empty() {
                s = s.trim_start_matches('\n');
            }
            if !reasoning {
                let body = s.trim_start_matches(blank);
                self.held.push_str(&s[..s.len() - body.len()]);
                s = body;
            }
            if s.is_empty() {
                return;
            }
            self.open = true;
            self.pristine = false;
            self.trim_text = false;
            out.push(if reasoning { Event::ReasoningStart } else { Event::TextStart });
        }
        let may_trail = if reasoning { self.trims() } else { self.options.parse_tools && !self.format.lead.is_empty() };
        let body = if may_trail { s.trim_end_matches('\n') } else { s };
        if !body.is_empty() {
            let mut delta = std::mem::take(&mut self.held);
            delta.push_str(body);
            out.push(if reasoning { Event::ReasoningDelta(delta) } else { Event::TextDelta(delta) });
        }
        self.held.push_str(&s[body.len()..]);
    }

    fn end_prose(&mut self, cause: Cause, out: &mut Vec<Event>) {
        let mut held = std::mem::take(&mut self.held);
        if self.region == Region::Reasoning {
            if std::mem::take(&mut self.open) {
                out.push(Event::ReasoningEnd);
            }
            return;
        }
        if !self.open {
            // Blanks alone are layout, unless they are all that there is.
            if cause != Cause::Output || self.tried || held.is_empty() {
                return;
            }
            out.push(Event::TextStart);
        } else if cause == Cause::Call
            && let Some(n) = held.strip_suffix(self.format.lead).map(str::len)
        {
            held.truncate(n);
        }
        self.open = false;
        if !held.is_empty() {
            out.push(Event::TextDelta(held));
        }
        out.push(Event::TextEnd);
    }
}

/// Tells text that stood where a call belongs. Blanks there are layout.
fn malformed(junk: &str, out: &mut Vec<Event>) {
    if !junk.trim().is_empty() {
        out.push(Event::Malformed(junk.to_owned()));
    }
}
