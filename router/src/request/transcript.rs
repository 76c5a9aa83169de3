//! From drawn tokens to typed events: one choice of one request.

mod calls;

use std::{collections::VecDeque, sync::Arc};

use rein_grammar::{Compiled, Event, Format, Parser, Piece, Region};
use rein_proto::v1::{self, chat_event};
use rein_text::{
    stop_strings::{Scanned, Stop, StopStrings},
    tokenize::{self, Detokenizer},
};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::{fleet::engine_stream::DrawnToken, request::model::ServedModel};
use calls::CallSoFar;
pub(crate) use calls::{CallReport, Outcome};

/// How the output is read.
pub enum Reader {
    /// As regions of a format.
    Regions { parser: Box<Parser>, skip_special_tokens: bool },
    /// As text.
    Plain { skip_special_tokens: bool },
}

/// What of the tokens the client wants to see.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenDetails {
    pub token_ids: bool,
    pub logprobs: bool,
    pub grammar: bool,
}

/// What a transcript is told when it begins.
pub struct Opening {
    pub index: u32,
    /// The request's.
    pub span: tracing::Span,
    pub reader: Reader,
    pub stops: StopStrings,
    /// Stops that are markers of calls, by marker: each ends the output behind the call that it is a part of.
    pub marker_stops: Vec<(&'static str, Stop)>,
    /// Stop strings count only beyond so many tokens, as stop tokens do.
    pub min_tokens: u32,
    /// Ids that end the output, and of them those that the request named.
    pub stop_ids: Vec<u32>,
    pub named_stop_ids: Vec<u32>,
    pub report: TokenDetails,
    /// What the output obeys: finished calls are held against their schemas once more.
    pub grammar: Option<Compiled>,
    /// The region that the prompt ends in, and whether in its middle: then nothing at the start of the output is
    /// layout.
    pub start: Region,
    pub resumed: bool,
    /// Calls the conversation made before, from which the format's own ids count on.
    pub calls_before: usize,
    pub prompt_tokens: u32,
    /// Prompt text as the beginning of the output, for `echo`.
    pub echo: String,
    /// The output continues a text, whose end decides how its first token is spelled.
    pub last_prompt_token: Option<u32>,
}

/// Reads one choice's tokens. Pure: no clock, no I/O.
pub struct Transcript {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) opening: Opening,
    detokenizer: Detokenizer,
    parsed: Vec<Event>,
    open: Option<Region>,
    in_reasoning: bool,
    /// Calls that the client can execute.
    calls: usize,
    call: Option<CallSoFar>,
    /// From which the format's own ids count, and by which the events do.
    begun_calls: usize,
    told_calls: u32,
    /// The last that was parsed is the end of a call.
    behind_call: bool,
    pub(crate) report: CallReport,
    /// Nothing more comes, and whether because of the length.
    over: bool,
    length: bool,
    /// The text so far, where the finished response is judged.
    response: Option<String>,
    /// Where and why the finished response is not what was asked for.
    pub(crate) invalid_response: Option<String>,
    pub(crate) grammar_report: Option<v1::GrammarReport>,
    /// Of the tokens so far, and of those that were judged with them.
    pub(crate) decisions: Vec<v1::Decision>,
    /// Of tokens that no event has reported yet.
    token_ids: Vec<u32>,
    logprobs: Vec<v1::TokenLogprob>,
    /// Where the next token begins in the text, and how much of the text is out; characters.
    next_offset: u32,
    told: u32,
    /// A stop string matched: there is no text beyond what is out.
    cut: bool,
    /// The echoed prompt is out. Like all content it is told once there is some output: the time of the first content
    /// is that of the first token.
    echoed: bool,
    pub(crate) completion_tokens: u32,
    reasoning_tokens: u32,
    pub(crate) cached_tokens: u32,
    stop_reason: String,
    stop_token: Option<u32>,
    events: VecDeque<v1::ChatEvent>,
}

/// Whether more tokens are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Continue,
    /// A stop string matched; the last event is `Done`.
    Ended,
}

impl Transcript {
    pub fn new(model: Arc<ServedModel>, opening: Opening) -> Self {
        let mut detokenizer = model.text.tokenizer.detokenizer();
        if let Some(id) = opening.last_prompt_token {
            detokenizer.push(id).for_each(drop);
        }
        let in_reasoning = opening.start == Region::Reasoning;
        let next_offset = opening.echo.chars().count() as u32;
        let response = opening.grammar.as_ref().is_some_and(Compiled::judges_response).then(String::new);
        let mut transcript = Transcript {
            model,
            opening,
            detokenizer,
            parsed: Vec::new(),
            open: None,
            in_reasoning,
            calls: 0,
            call: None,
            begun_calls: 0,
            told_calls: 0,
            behind_call: false,
            report: CallReport::default(),
            over: false,
            length: false,
            response,
            invalid_response: None,
            grammar_report: None,
            decisions: Vec::new(),
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            next_offset,
            told: 0,
            cut: false,
            echoed: false,
            completion_tokens: 0,
            reasoning_tokens: 0,
            cached_tokens: 0,
            stop_reason: String::new(),
            stop_token: None,
            events: VecDeque::new(),
        };
        if let Reader::Regions { parser, .. } = &mut transcript.opening.reader {
            parser.watch(transcript.opening.marker_stops.iter().map(|(marker, _)| *marker).collect());
        }
        if transcript.opening.resumed {
            transcript.resume();
        }
        transcript
    }

    /// Brings the parser into the middle of the region, as the prompt did.
    fn resume(&mut self) {
        if let Reader::Regions { parser, .. } = &mut self.opening.reader {
            parser.push(Piece::Bytes(b"x"), &mut self.parsed);
            self.parsed.clear();
            self.enter(self.opening.start);
        }
    }

    pub fn next_event(&mut self) -> Option<v1::ChatEvent> {
        self.events.pop_front()
    }

    pub fn usage(&self) -> v1::Usage {
        v1::Usage {
            prompt_tokens: self.opening.prompt_tokens,
            completion_tokens: self.completion_tokens,
            total_tokens: self.opening.prompt_tokens + self.completion_tokens,
            cached_tokens: self.cached_tokens,
            reasoning_tokens: self.reasoning_tokens,
        }
    }

    /// The logprobs of the echoed prompt.
    pub fn echo_logprobs(&mut self, mut logprobs: Vec<v1::TokenLogprob>) {
        place(&self.opening.echo, &mut logprobs);
        let first = self.events.front_mut().map_or(&mut self.logprobs, |event| &mut event.logprobs);
        first.splice(0..0, logprobs);
    }

    /// Whether the output is in reasoning, and at least so many tokens were.
    pub fn has_reasoned(&self, tokens: u32) -> bool {
        self.in_reasoning && self.reasoning_tokens >= tokens
    }

    pub fn push(&mut self, drawn: DrawnToken) -> Flow {
        self.completion_tokens += 1;
        if self.opening.report.token_ids {
            self.token_ids.push(drawn.id);
        }
        let ends = self.opening.stop_ids.contains(&drawn.id);
        let control = self.model.text.tokenizer.is_control(drawn.id);
        if let Some(logprob) = drawn.logprob.filter(|_| self.opening.report.logprobs) {
            let mut logprob = self.model.logprob(logprob);
            if let Reader::Plain { skip_special_tokens } = self.opening.reader {
                let shown = !(ends || control && skip_special_tokens);
                let bytes = if shown { logprob.token.as_slice() } else { &[] };
                logprob.text_offset = Some(self.next_offset.saturating_sub(within(bytes)));
                self.next_offset += characters(bytes);
            }
            self.logprobs.push(logprob);
        }
        if ends {
            if self.opening.named_stop_ids.contains(&drawn.id) {
                self.stop_reason = drawn.id.to_string();
                self.stop_token = Some(drawn.id);
            }
            return Flow::Continue;
        }
        for piece in self.detokenizer.push(drawn.id) {
            read(&mut self.opening.reader, self.model.format, control, piece, &mut self.parsed);
        }
        let flow = self.tell();
        self.reasoning_tokens += u32::from(self.in_reasoning);
        if flow == Flow::Ended { flow } else { self.stop_behind_call() }
    }

    /// Ends the output if a stop that is a marker of calls has come and its call is over.
    fn stop_behind_call(&mut self) -> Flow {
        let Reader::Regions { parser, .. } = &mut self.opening.reader else { return Flow::Continue };
        let passed = parser.passed().filter(|_| self.completion_tokens > self.opening.min_tokens);
        let stop = passed.and_then(|passed| self.opening.marker_stops.iter().find(|(marker, _)| *marker == passed));
        match stop {
            None => return Flow::Continue,
            Some((_, Stop::Token(id))) => {
                self.stop_reason = id.to_string();
                self.stop_token = Some(*id);
            }
            Some((_, Stop::Text(text))) => self.stop_reason.clone_from(text),
        }
        self.finish(false);
        Flow::Ended
    }

    /// The engine finished. Nothing may be pushed after this.
    pub fn finish(&mut self, length: bool) {
        let mut cut = false;
        if let Some(piece) = self.detokenizer.finish() {
            read(&mut self.opening.reader, self.model.format, false, piece, &mut self.parsed);
        }
        if let Reader::Regions { parser, .. } = &mut self.opening.reader {
            if length {
                parser.cut();
            }
            parser.finish(&mut self.parsed);
            cut = parser.awaits_call();
        }
        (self.over, self.length) = (true, length);
        if self.tell() == Flow::Ended {
            return;
        }
        if length && cut {
            self.keep_cut("", false);
        }
        self.flush_stops();
        self.done(match (length, self.calls) {
            (true, _) => v1::FinishReason::Length,
            (false, 0) => v1::FinishReason::Stop,
            (false, _) => v1::FinishReason::ToolCalls,
        });
    }

    /// A finished response is judged too, although it is out already.
    fn judge_response(&mut self) {
        let (Some(text), Some(grammar)) = (&self.response, &self.opening.grammar) else { return };
        if self.begun_calls > 0 || !self.report.malformed.is_empty() {
            return;
        }
        let quick = grammar.judges_quickly(None, text.len());
        if let Err(violation) = aside(quick, || grammar.validate_response(text)) {
            tracing::warn!(parent: &self.opening.span, %violation, "a finished response breaks what it was to obey");
            self.invalid_response = Some(violation.to_string());
        }
    }

    /// Turns what was parsed into events.
    fn tell(&mut self) -> Flow {
        let mut parsed = std::mem::take(&mut self.parsed);
        let mut flow = Flow::Continue;
        for event in parsed.drain(..) {
            flow = self.tell_one(event);
            if flow == Flow::Ended {
                break;
            }
        }
        parsed.clear();
        self.parsed = parsed;
        flow
    }

    fn tell_one(&mut self, event: Event) -> Flow {
        if !matches!(event, Event::Malformed(_)) {
            self.behind_call = false;
        }
        match event {
            Event::ReasoningStart => self.enter(Region::Reasoning),
            Event::TextStart => self.enter(Region::Text),
            Event::ReasoningDelta(text) | Event::TextDelta(text) => return self.tell_text(&text),
            Event::ReasoningEnd | Event::TextEnd => self.leave(),
            Event::ToolCallStart { name, .. } => {
                self.in_reasoning = false;
                self.begin_call(name);
            }
            Event::ArgumentsDelta { text, .. } => self.tell_arguments(text),
            Event::ToolCallEnd { complete, .. } => self.end_call(complete),
            Event::Malformed(text) => {
                self.in_reasoning = false;
                return self.tell_malformed(&text);
            }
        }
        Flow::Continue
    }

    fn enter(&mut self, region: Region) {
        self.in_reasoning = region == Region::Reasoning;
        self.emit(match region {
            Region::Reasoning => chat_event::Event::ReasoningStart(v1::RegionStart {}),
            Region::Text => chat_event::Event::TextStart(v1::RegionStart {}),
        });
        self.open = Some(region);
    }

    fn leave(&mut self) {
        self.flush_stops();
        self.in_reasoning = false;
        match self.open.take() {
            Some(Region::Reasoning) => self.emit(chat_event::Event::ReasoningEnd(v1::RegionEnd {})),
            Some(Region::Text) => self.emit(chat_event::Event::TextEnd(v1::RegionEnd {})),
            None => {}
        }
    }

    fn tell_text(&mut self, text: &str) -> Flow {
        let scanned = self.scan(text);
        self.cut = scanned.matched.is_some();
        self.emit_text(scanned.text);
        self.end_if(scanned.matched)
    }

    fn scan(&mut self, text: &str) -> Scanned {
        if self.completion_tokens <= self.opening.min_tokens {
            return Scanned { text: self.opening.stops.pass(text), matched: None };
        }
        self.opening.stops.push(text)
    }

    fn end_if(&mut self, matched: Option<String>) -> Flow {
        let Some(matched) = matched else { return Flow::Continue };
        self.leave();
        self.stop_reason = matched;
        self.done(if self.calls == 0 { v1::FinishReason::Stop } else { v1::FinishReason::ToolCalls });
        Flow::Ended
    }

    fn flush_stops(&mut self) {
        let held = self.opening.stops.flush();
        self.emit_text(held);
    }

    fn emit_text(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        self.emit(match self.open {
            Some(Region::Reasoning) => chat_event::Event::ReasoningDelta(v1::Delta { text }),
            Some(Region::Text) | None => chat_event::Event::TextDelta(v1::Delta { text }),
        });
    }

    fn done(&mut self, reason: v1::FinishReason) {
        self.warn_of_calls(reason);
        if reason != v1::FinishReason::Length {
            self.judge_response();
        }
        if !self.echoed && !self.opening.echo.is_empty() {
            self.emit(chat_event::Event::TextDelta(v1::Delta::default()));
        }
        let grammar = self.grammar_report.take().map(|report| {
            // A stop may have ended the output before the last token that was judged.
            self.decisions.truncate(self.completion_tokens as usize);
            v1::GrammarReport { decisions: std::mem::take(&mut self.decisions), ..report }
        });
        let done = v1::Done {
            finish_reason: reason.into(),
            usage: Some(self.usage()),
            stop_reason: std::mem::take(&mut self.stop_reason),
            stop_token: self.stop_token.take(),
            grammar,
            malformed: self.report.malformed.clone(),
            incomplete_tool_calls: self.report.incomplete.clone(),
            invalid_response: self.invalid_response.clone().unwrap_or_default(),
        };
        self.emit(chat_event::Event::Done(done));
    }

    fn emit(&mut self, mut event: chat_event::Event) {
        if let chat_event::Event::TextDelta(v1::Delta { text }) = &mut event {
            if let Some(response) = &mut self.response {
                response.push_str(text);
            }
            if !std::mem::replace(&mut self.echoed, true) {
                text.insert_str(0, &self.opening.echo);
            }
            self.told += text.chars().count() as u32;
        }
        if self.cut {
            for logprob in &mut self.logprobs {
                logprob.text_offset = logprob.text_offset.map(|offset| offset.min(self.told));
            }
        }
        self.events.push_back(v1::ChatEvent {
            choice: self.opening.index,
            token_ids: std::mem::take(&mut self.token_ids),
            logprobs: std::mem::take(&mut self.logprobs),
            event: Some(event),
        });
    }
}

/// Judges. What may take long leaves this thread's other tasks to another thread meanwhile.
fn aside<T>(quick: bool, judge: impl FnOnce() -> T) -> T {
    let several = |handle: Handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread;
    if quick || !Handle::try_current().is_ok_and(several) { judge() } else { tokio::task::block_in_place(judge) }
}

/// Where the tokens of a prompt begin in its text. Tokens that the text does not spell, such as a begin-of-sequence,
/// take no room; nor does the blank that some tokenizers put before the first word.
fn place(text: &str, tokens: &mut [v1::TokenLogprob]) {
    let (mut at, mut offset) = (0, 0);
    for token in tokens {
        let rest = &text.as_bytes()[at..];
        let spelled = [token.token.as_slice(), token.token.strip_prefix(b" ").unwrap_or_default()];
        let bytes = spelled.into_iter().find(|bytes| rest.starts_with(bytes)).unwrap_or_default();
        token.text_offset = Some(u32::saturating_sub(offset, within(bytes)));
        offset += characters(bytes);
        at += bytes.len();
    }
}

/// Characters that begin in these bytes.
fn characters(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|&&byte| !continues(byte)).count() as u32
}

/// 1 if these bytes begin inside a character, which began before them.
fn within(bytes: &[u8]) -> u32 {
    u32::from(bytes.first().is_some_and(|&byte| continues(byte)))
}

/// Not the first byte of a character in UTF-8.
fn continues(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// A piece of output, as the reader sees it. Added tokens that are neither control tokens nor markers are text.
fn read(
    reader: &mut Reader,
    format: &'static Format,
    control: bool,
    piece: tokenize::TokenPiece<'_>,
    parsed: &mut Vec<Event>,
) {
    match (reader, piece) {
        (Reader::Regions { parser, .. }, tokenize::TokenPiece::Bytes(bytes)) => {
            parser.push(Piece::Bytes(&bytes), parsed)
        }
        (Reader::Regions { parser, skip_special_tokens }, tokenize::TokenPiece::Special(text)) => {
            let hidden = control && *skip_special_tokens;
            let piece =
                if hidden || format.is_marker(text) { Piece::Special(text) } else { Piece::Bytes(text.as_bytes()) };
            parser.push(piece, parsed);
        }
        (Reader::Plain { .. }, tokenize::TokenPiece::Bytes(bytes)) => {
            parsed.push(Event::TextDelta(String::from_utf8_lossy(&bytes).into_owned()));
        }
        (Reader::Plain { skip_special_tokens }, tokenize::TokenPiece::Special(text)) => {
            if !(control && *skip_special_tokens) {
                parsed.push(Event::TextDelta(text.to_owned()));
            }
        }
    }
}
