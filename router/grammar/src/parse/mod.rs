//! The streaming parser: a state machine over the input buffer that consumes what it has understood, so that each byte
//! is examined a bounded number of times. Everything it knows about a format is compiled from the table ([`Lexicon`]).

mod buffer_start;
mod builtin;
mod call;
mod foreign_calls;
mod gap;
mod head;
mod opening;
mod prose;

use crate::code_blocks::CodeBlocks;
use crate::codec::json::Json;
use crate::codec::{Body, End};
use crate::event::Event;
use crate::format::{Format, Markers, Region, Step};
use crate::header::is_plausible;
use crate::marks::{Lexicon, Mark};
use crate::scan::{Input, Piece, framed, text};
use crate::tools::{Tool, Tools};

/// Text consumed at once where the state may change inside it.
const CHUNK: usize = 256;

/// Bytes read at once: the buffer and each event stay small however long a piece is.
const MOST_AT_ONCE: usize = 32 << 10;

#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// Where the output starts: see [`Format::start_after`].
    pub start: Region,
    pub tools: Tools,
    /// False if the request declares no tools: tool markers that are special tokens are dropped, spelled ones are text.
    pub parse_tools: bool,
}

/// Without declarations, every name is accepted.
fn callable(tools: &[Tool], name: &str) -> bool {
    if tools.is_empty() { is_plausible(name) } else { tools.iter().any(|t| t.name == name) }
}

/// What is at the start of the buffer.
enum BufferStart {
    Mark(Mark, &'static str, usize),
    /// A special token that is not a mark here.
    Special(usize),
    /// Could become a marker: wait.
    Partial,
    Other,
}

#[derive(Debug)]
enum State {
    Prose,
    /// Before the arguments of a call: the text after each marker.
    Header(Vec<(&'static str, String)>),
    Body(Box<Body>),
    /// After a body, or in a section outside any call.
    Gap(String),
    /// A list without its marker: calls only if all of it is.
    List(List),
    /// Layout before or after calls that begin the output without a marker.
    Opening(String),
}

#[derive(Debug)]
struct List {
    raw: Vec<u8>,
    json: Json,
    done: bool,
    /// Its first item calls a declared tool.
    checked: bool,
}

/// Words between two markers that together tell what begins or ends.
#[derive(Debug, Default)]
struct Head {
    opener: Option<&'static str>,
    text: String,
    /// Words after an earlier marker of the same kind, which this one replaces.
    earlier: Vec<String>,
    /// It tells how the arguments are written, so it belongs to a call.
    typed: bool,
}

/// Something that looks like a call and may turn out to be text.
#[derive(Debug)]
struct Trial {
    raw: String,
    /// A marker was read.
    explicit: bool,
    /// It was a special token, which is never text: what follows is a call or malformed.
    marked: bool,
}

#[derive(Debug)]
pub struct Parser {
    format: &'static Format,
    lex: Lexicon,
    tools: Tools,
    parse_tools: bool,
    input: Input,
    state: State,
    head: Option<Head>,
    trial: Option<Trial>,
    /// The region of `State::Prose`.
    region: Region,
    /// Inside the markers around text.
    wrapped: bool,
    /// The region has an event already.
    open: bool,
    /// Blanks that may turn out to be layout.
    held: String,
    /// Text between blocks that may be the beginning of a head.
    lead_in: String,
    /// What is left of the literal after the marker that begins reasoning.
    title: &'static str,
    /// Newlines at the start of the next text are layout.
    trim_text: bool,
    /// The code in the prose so far. None: its region has none yet.
    code: Option<CodeBlocks>,
    /// A call was the last thing before the prose.
    after_call: bool,
    /// Only blanks were read so far.
    pristine: bool,
    /// Inside the tool section.
    section: bool,
    /// Inside the list of calls.
    bracket: bool,
    /// The call began with its second marker.
    short: bool,
    /// A call ended the reasoning, so its end marker may still come.
    reasoning_left_open: bool,
    calls: usize,
    /// The call began the output without a marker.
    opening: bool,
    /// A call was tried.
    tried: bool,
    /// A marker announced a call, and nothing of it was read.
    announced: bool,
    /// A call became invalid, and the text up to the next beginning belongs to it.
    broken: bool,
    /// The output ended because of its length.
    cut: bool,
    /// Markers that the caller waits for, and the one that was read: see [`Parser::passed`].
    watched: Vec<&'static str>,
    passed: Option<Passed>,
    /// Number of events before this piece.
    told: usize,
    work: u64,
}

/// A watched marker that was read.
#[derive(Debug, Clone, Copy)]
struct Passed {
    marker: &'static str,
    /// It closes a call or a section.
    closes: bool,
    /// Number of calls reported before it.
    calls: usize,
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
        Self {
            format,
            lex: Lexicon::new(format),
            tools: options.tools,
            parse_tools: options.parse_tools,
            input: Input::default(),
            state: State::Prose,
            head: None,
            trial: None,
            region: options.start,
            wrapped: false,
            open: false,
            held: String::new(),
            lead_in: String::new(),
            title: "",
            trim_text: false,
            code: None,
            after_call: false,
            pristine: true,
            section: false,
            bracket: false,
            short: false,
            reasoning_left_open: false,
            calls: 0,
            opening: false,
            tried: false,
            announced: false,
            broken: false,
            cut: false,
            watched: Vec::new(),
            passed: None,
            told: 0,
            work: 0,
        }
    }

    /// Reads the next piece of output and appends the resulting events.
    pub fn push(&mut self, piece: Piece<'_>, out: &mut Vec<Event>) {
        self.told = out.len();
        match piece {
            Piece::Bytes(b) => {
                for part in b.chunks(MOST_AT_ONCE) {
                    self.input.push_bytes(part);
                    self.run(false, out);
                }
                return;
            }
            Piece::Special(s) if self.is_spelled(s) => {
                self.input.flush_partial();
                self.input.push_bytes(s.as_bytes());
            }
            Piece::Special(s) => self.input.push_special(s),
        }
        self.run(false, out);
    }

    /// Ends the output: reports what was held and closes what is open. The parser cannot be used afterwards.
    pub fn finish(&mut self, out: &mut Vec<Event>) {
        self.told = out.len();
        if self.cut {
            self.cut_marker(out);
        }
        self.input.flush_partial();
        self.run(true, out);
        if let State::List(_) = self.state {
            self.end_list(out);
            self.run(true, out);
        }
        if let Some(head) = self.head.take()
            && !(self.cut && matches!(self.state, State::Body(_)))
        {
            self.give_up_head(&head, out);
        }
        if self.cut && self.may_be_call() {
            // Released, it is the rest of a call.
            (self.announced, self.broken) = (true, true);
        }
        match std::mem::replace(&mut self.state, State::Prose) {
            State::Prose | State::List(_) => {}
            State::Opening(raw) => self.end_opening(&raw, true, out),
            State::Header(header) => self.recover(&header, End::Output, out),
            State::Body(body) => {
                let whole = matches!(*body, Body::Code(_)) && !self.cut;
                self.end_body(*body, if whole { End::Whole } else { End::Output }, "", out);
            }
            gap @ State::Gap(_) => self.state = gap,
        }
        if self.trial.is_some() {
            self.release(out);
        }
        match std::mem::replace(&mut self.state, State::Prose) {
            State::Gap(junk) => self.malformed(&junk, out),
            _ => {
                self.flush_lead_in(out);
                self.end_prose(Cause::Output, out);
            }
        }
    }

    /// Must be called before [`Parser::finish`] if the output was cut. Text that more output could have turned into a
    /// call is then an incomplete or malformed call, never text.
    pub fn cut(&mut self) {
        self.cut = true;
    }

    /// Whether more input can still turn the tentative text into a call.
    fn may_be_call(&self) -> bool {
        self.trial.is_some()
            && match &self.state {
                State::Body(body) => body.may_be_call(),
                _ => true,
            }
    }

    /// The output was cut inside letters that may begin the marker of a call.
    fn cut_marker(&mut self, out: &mut Vec<Event>) {
        let outside = match self.state {
            State::Gap(_) => self.trial.is_none(),
            _ => self.in_prose(Region::Text) && self.is_outside_code(),
        };
        // A piece of a character or of a marker is no part of an argument.
        if let State::Body(body) = &mut self.state {
            self.input.drop_partial();
            if let Body::Elements(elements) = &mut **body {
                elements.cut();
            }
            let raw = matches!(**body, Body::Params(_)) && self.head.is_none();
            if raw && self.is_piece_of_marker(self.input.rest()) {
                self.input.clear();
            }
            return;
        }
        let held = self.input.held();
        if !outside || self.head.is_some() || !self.parse_tools {
            return;
        }
        let closes = |mark| matches!(mark, Mark::Close | Mark::End);
        let begins = self.begins_marker(&held, Mark::enters_calls);
        if matches!(self.state, State::Gap(_)) && self.begins_marker(&held, closes) {
            self.announced |= begins && self.calls == 0;
            return self.input.clear();
        }
        if !begins {
            let wraps = |mark| matches!(mark, Mark::TextOpen | Mark::TextClose);
            if self.format.text.is_needed() && self.begins_marker(&held, wraps) {
                self.input.clear();
            }
            return;
        }
        self.input.clear();
        self.announced = true;
        match &mut self.state {
            State::Gap(junk) => junk.push_str(&text(&held)),
            _ => {
                self.flush_lead_in(out);
                self.confirm_gap(out);
                self.state = State::Gap(text(&held));
            }
        }
    }

    /// Waits for markers of calls: see [`Parser::passed`].
    pub fn watch(&mut self, markers: Vec<&'static str>) {
        self.watched = markers;
    }

    /// The first watched marker, reported once, after the call that it belongs to has ended.
    pub fn passed(&mut self) -> Option<&'static str> {
        let passed = self.passed?;
        let open = self.head.is_some() || self.trial.is_some();
        let over = match self.state {
            State::Prose | State::Opening(_) => true,
            State::Gap(_) => passed.closes || self.calls > passed.calls,
            State::Header(_) | State::Body(_) | State::List(_) => false,
        };
        if open || !over {
            return None;
        }
        self.passed = None;
        Some(passed.marker)
    }

    pub(super) fn note(&mut self, name: &str, closes: bool) {
        if let (None, Some(marker)) = (self.passed, self.watched.iter().find(|w| **w == name)) {
            self.passed = Some(Passed { marker, closes, calls: self.calls });
        }
    }

    /// Number of calls reported so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Whether the output ended, or currently is, after a marker that announces a call of which nothing was read.
    pub fn awaits_call(&self) -> bool {
        self.announced
    }

    /// Bytes examined or moved so far, counted each time: the parser's cost without a clock.
    pub fn work(&self) -> u64 {
        self.work + self.input.moved()
    }

    /// In formats whose tool markers count by their letters, it makes no difference that the tokenizer has them, or
    /// parts of them, as one token.
    fn is_spelled(&self, s: &str) -> bool {
        let within = |step: &Step| matches!(step, Step::Tok(t) if t.contains(s));
        self.format.markers == Markers::Either && self.format.call_steps().any(within)
    }

    /// Whether a call of this name needs no marker.
    fn is_callable(&self, name: &str) -> bool {
        callable(&self.tools, name)
    }

    fn declares(&self, name: &str) -> bool {
        self.tools.iter().any(|t| t.name == name)
    }

    fn run(&mut self, last: bool, out: &mut Vec<Event>) {
        while !self.input.rest().is_empty() && self.advance(last, out) {}
        if let State::Body(body) = &mut self.state {
            body.flush(out);
        }
    }

    /// Consumes some input. False: more input is needed.
    fn advance(&mut self, last: bool, out: &mut Vec<Event>) -> bool {
        if self.head.is_none() {
            match &self.state {
                State::Body(body) if !matches!(**body, Body::Params(_)) => return self.advance_body(last, out),
                State::List(_) => return self.advance_list(out),
                State::Opening(_) => return self.advance_opening(last, out),
                _ => {}
            }
        }
        let n = self.plain_prefix();
        if n > 0 {
            self.take_text(n, out);
            return true;
        }
        match self.buffer_start(last) {
            BufferStart::Partial => return false,
            BufferStart::Special(n) => self.take_special(n, out),
            BufferStart::Mark(mark, tok, n) => {
                let spelled = framed(self.input.rest()).is_none();
                self.input.consume(n);
                self.take_mark(mark, tok, spelled, None, out);
            }
            // The first byte of something that is not a marker. Markers start with ASCII, so it is a whole character.
            BufferStart::Other => self.take_text(1, out),
        }
        true
    }

    /// Length of the text at the start of the buffer in which no marker begins.
    fn plain_prefix(&mut self) -> usize {
        let rest = self.input.rest();
        let whole = match &self.state {
            State::Prose => self.open,
            State::Body(_) => true,
            _ => false,
        };
        let most = if whole { rest.len() } else { rest.len().min(CHUNK) };
        // Up to the next place where a call may begin, so that the rest is not examined again at each of them.
        let bare = match &self.state {
            State::Gap(_) => Some('{'),
            _ => self.lex.bare.filter(|_| self.parse_tools && self.in_prose(Region::Text)),
        };
        let ends = |at: usize, b: u8| self.lex.leads[usize::from(b)] || (at > 0 && Some(char::from(b)) == bare);
        let mut n = rest[..most].iter().enumerate().position(|(at, b)| ends(at, *b)).unwrap_or(most);
        while n < rest.len() && rest[n] & 0xC0 == 0x80 {
            n -= 1;
        }
        self.work += n as u64 + 1;
        n
    }

    /// Consumes up to `n` bytes of text.
    fn take_text(&mut self, n: usize, out: &mut Vec<Event>) {
        let s = text(&self.input.rest()[..n]);
        let used = if let Some(head) = &mut self.head {
            head.text.push_str(&s);
            n
        } else {
            match &mut self.state {
                State::Prose => self.prose_text(&s, out),
                State::Header(_) => self.header_text(&s, out),
                State::Gap(_) => self.gap_text(&s, out),
                State::Body(body) => {
                    if let Body::Params(params) = &mut **body {
                        params.text(&s);
                    }
                    n
                }
                State::List(_) | State::Opening(_) => n,
            }
        };
        self.input.consume(used);
        self.work += used as u64 + 1;
    }

    fn take_mark(&mut self, mark: Mark, tok: &'static str, spelled: bool, head: Option<&str>, out: &mut Vec<Event>) {
        self.note(tok, matches!(mark, Mark::Close | Mark::End));
        if let Some(unfinished) = self.head.take() {
            self.give_up_head(&unfinished, out);
        }
        match &mut self.state {
            State::Prose | State::List(_) | State::Opening(_) => {
                self.flush_lead_in(out);
                self.mark_in_prose(mark, tok, spelled, head, out);
            }
            State::Header(_) => self.mark_in_header(mark, tok, head, out),
            State::Gap(_) if self.trial.is_some() && mark != Mark::Ignored => {
                self.release(out);
                self.take_mark(mark, tok, spelled, head, out);
            }
            State::Gap(junk) => {
                let junk = std::mem::take(junk);
                if mark == Mark::Argument && self.names_call(&junk, out) {
                    return;
                }
                self.malformed(&junk, out);
                if self.lex.doubtful && mark.enters_calls() {
                    self.state = State::Prose;
                    self.mark_in_prose(mark, tok, spelled, head, out);
                } else {
                    self.mark_in_gap(mark, tok, head, out);
                }
            }
            State::Body(_) => self.mark_in_body(mark, tok, head, out),
        }
    }

    /// Reports text in place of a call. Blanks and literals there are layout.
    fn malformed(&mut self, junk: &str, out: &mut Vec<Event>) {
        if !self.lex.without_layout(junk).is_empty() {
            self.announced = false;
            if self.read_foreign_calls(junk, out) {
                return;
            }
            out.push(Event::Malformed(junk.to_owned()));
        }
    }

    /// Something that looked like a call is text, or the rest of an invalid call.
    fn release(&mut self, out: &mut Vec<Event>) {
        if let Some(trial) = self.trial.take() {
            if trial.marked || self.broken {
                self.confirm_gap(out);
                self.broken = true;
                self.state = State::Gap(trial.raw);
                return;
            }
            self.state = State::Prose;
            (self.section, self.bracket) = (false, false);
            self.prose(&trial.raw, out);
        }
    }

    /// Ends open text.
    fn confirm_gap(&mut self, out: &mut Vec<Event>) {
        self.tried = true;
        self.end_prose(Cause::Call, out);
    }

    /// Something that looked like a call is one.
    fn confirm(&mut self, out: &mut Vec<Event>) {
        if self.trial.take().is_some() {
            self.confirm_gap(out);
        }
    }
}
