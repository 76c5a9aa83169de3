//! Turns the tokens of one choice into typed events. It must not do I/O or read the clock.

mod calls;
mod response;

use std::{collections::VecDeque, sync::Arc};

use rein_grammar::{
    CallValidator, Compiled, Event, Format, MAX_LOOKALIKE_BYTES, Parser, Piece, Region, Tools, lookalike,
};
use rein_proto::v1::{self, chat_event};
use rein_text::{
    stop_strings::{Scanned, Stop, StopStrings},
    tokenize::{self, Detokenizer},
};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::{fleet::engine_stream::DrawnToken, request::model::ServedModel};
use calls::CurrentCall;
pub(crate) use calls::{CallOutcome, CallReport};
use response::{REPEATED_TEXT, ResponseText};

/// Why an answer ends whose grammar met a limit.
const GRAMMAR_LIMIT: &str = "grammar_limit";

/// How the output is parsed.
pub enum Reader {
    /// As the regions of a format.
    Regions { parser: Box<Parser>, skip_special_tokens: bool },
    /// As plain text.
    Plain { skip_special_tokens: bool },
}

/// Which details of the tokens the client requested.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenDetails {
    pub token_ids: bool,
    pub logprobs: bool,
    pub grammar: bool,
}

/// What a transcript needs to begin.
pub struct TranscriptOptions {
    pub index: u32,
    /// The request's span, for logs.
    pub span: tracing::Span,
    pub reader: Reader,
    pub stops: StopStrings,
    /// Stops that are markers of calls, by marker: each ends the output after the call that contains it.
    pub marker_stops: Vec<(&'static str, Stop)>,
    /// Stop strings are ignored in the first `min_tokens` tokens, as stop tokens are.
    pub min_tokens: u32,
    /// Ids that end the output, and those of them that the request named.
    pub stop_ids: Vec<u32>,
    pub named_stop_ids: Vec<u32>,
    pub report: TokenDetails,
    /// Validates finished calls and responses once more.
    pub grammar: Option<Compiled>,
    /// Validates finished calls whose arguments are not enforced, for the metrics.
    pub call_validator: Option<Arc<CallValidator>>,
    /// The declared tools, if the answer may call them.
    pub tools: Tools,
    /// The region in which the prompt ends, and whether in its middle: then the output does not start with layout.
    pub start: Region,
    pub resumed: bool,
    /// Calls in the conversation so far, from which the format's own ids continue.
    pub calls_before: usize,
    pub prompt_tokens: u32,
    /// The prompt's text, if the output begins with it (`echo`).
    pub echo: String,
    /// The detokenizer needs it, because the token before decides how the first token is spelled.
    pub last_prompt_token: Option<u32>,
}

/// The output of one choice so far.
pub struct Transcript {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) options: TranscriptOptions,
    detokenizer: Detokenizer,
    parsed: Vec<Event>,
    open: Option<Region>,
    in_reasoning: bool,
    /// Calls that the client can execute.
    calls: usize,
    call: Option<CurrentCall>,
    /// The last valid call, and how many equal ones in a row it ends.
    last_call: Option<(String, String)>,
    equal_calls: u32,
    /// Calls that have begun, which number the format's own ids, and calls that events have reported.
    started_calls: usize,
    reported_calls: u32,
    /// The last parsed event was the end of a call.
    after_call: bool,
    pub(crate) report: CallReport,
    /// The output is complete, and whether the length limit ended it.
    finished: bool,
    by_length: bool,
    /// How it ended.
    done: Option<v1::FinishReason>,
    /// The text so far. None: the finished response needs no validation, and is not JSON.
    response: Option<ResponseText>,
    /// Why the answer ends, or is led to its end, before the model would end it.
    ended_early: Option<&'static str>,
    /// The beginning of the text, where calls are looked for that the format does not read. None: there are no tools.
    said: Option<String>,
    /// Where and why the finished response violates its format.
    pub(crate) invalid_response: Option<String>,
    pub(crate) grammar_report: Option<v1::GrammarReport>,
    /// The limit that the grammar met. Empty: none.
    pub(crate) grammar_relaxed: String,
    /// The grammar's decisions. They may be ahead of the transcript: tokens are checked in batches.
    pub(crate) decisions: Vec<v1::Decision>,
    /// Ids and logprobs of tokens that no event has reported yet.
    token_ids: Vec<u32>,
    logprobs: Vec<v1::TokenLogprob>,
    /// Where the next token begins in the text, and how much text was emitted, in characters.
    next_offset: u32,
    emitted: u32,
    /// A stop string matched: the text ends with what was emitted.
    stopped: bool,
    /// The echoed prompt was emitted. It goes out with the first output, so that the first content does not come before
    /// the first token.
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
    /// A stop ended the output; the last event is `Done`.
    Ended,
}

impl Transcript {
    pub fn new(model: Arc<ServedModel>, options: TranscriptOptions) -> Self {
        let mut detokenizer = model.text.tokenizer.detokenizer();
        if let Some(id) = options.last_prompt_token {
            detokenizer.push(id).for_each(drop);
        }
        let in_reasoning = options.start == Region::Reasoning;
        let next_offset = options.echo.chars().count() as u32;
        let collects = |grammar: &Compiled| grammar.validates_response() || grammar.answers_json();
        let response = options.grammar.as_ref().filter(|grammar| collects(grammar)).map(|grammar| {
            let mut response = ResponseText::default();
            response.push(grammar.begun());
            response
        });
        let mut transcript = Transcript {
            model,
            options,
            detokenizer,
            parsed: Vec::new(),
            open: None,
            in_reasoning,
            calls: 0,
            call: None,
            last_call: None,
            equal_calls: 0,
            started_calls: 0,
            reported_calls: 0,
            after_call: false,
            report: CallReport::default(),
            finished: false,
            by_length: false,
            done: None,
            response,
            ended_early: None,
            said: None,
            invalid_response: None,
            grammar_report: None,
            grammar_relaxed: String::new(),
            decisions: Vec::new(),
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            next_offset,
            emitted: 0,
            stopped: false,
            echoed: false,
            completion_tokens: 0,
            reasoning_tokens: 0,
            cached_tokens: 0,
            stop_reason: String::new(),
            stop_token: None,
            events: VecDeque::new(),
        };
        if !transcript.options.tools.is_empty() {
            transcript.said = Some(String::new());
        }
        if let Reader::Regions { parser, .. } = &mut transcript.options.reader {
            parser.watch(transcript.options.marker_stops.iter().map(|(marker, _)| *marker).collect());
        }
        if transcript.options.resumed {
            transcript.resume();
        }
        transcript
    }

    /// Moves the parser into the middle of the region in which the prompt ends.
    fn resume(&mut self) {
        if let Reader::Regions { parser, .. } = &mut self.options.reader {
            parser.push(Piece::Bytes(b"x"), &mut self.parsed);
            self.parsed.clear();
            self.begin_region(self.options.start);
        }
    }

    pub fn next_event(&mut self) -> Option<v1::ChatEvent> {
        self.events.pop_front()
    }

    pub fn usage(&self) -> v1::Usage {
        v1::Usage {
            prompt_tokens: self.options.prompt_tokens,
            completion_tokens: self.completion_tokens,
            total_tokens: self.options.prompt_tokens + self.completion_tokens,
            cached_tokens: self.cached_tokens,
            reasoning_tokens: self.reasoning_tokens,
        }
    }

    /// Adds the logprobs of the echoed prompt.
    pub fn echo_logprobs(&mut self, mut logprobs: Vec<v1::TokenLogprob>) {
        set_text_offsets(&self.options.echo, &mut logprobs);
        let first = self.events.front_mut().map_or(&mut self.logprobs, |event| &mut event.logprobs);
        first.splice(0..0, logprobs);
    }

    /// Whether the output is in reasoning and has at least this many reasoning tokens.
    pub fn has_reasoned(&self, tokens: u32) -> bool {
        self.in_reasoning && self.reasoning_tokens >= tokens
    }

    /// Whether a JSON answer is to be led to its end. `most`: most tokens of an answer that is to be finished within
    /// them.
    pub fn leads_to_end(&mut self, most: Option<u32>) -> bool {
        let tokens = self.completion_tokens;
        let response = self.response.as_mut().filter(|_| !self.in_reasoning && self.call.is_none());
        self.ended_early = response.and_then(|response| response.leads_to_end(tokens, most));
        if self.ended_early == Some(REPEATED_TEXT) {
            tracing::warn!(parent: &self.options.span, "the answer repeats one text; it is led to its end");
        }
        self.ended_early.is_some()
    }

    /// The output ends here, as if it had reached its length.
    pub fn ended_by_grammar(&mut self, limit: &str) {
        tracing::warn!(parent: &self.options.span, limit, "the grammar of this request met a limit; the answer ends here");
        self.ended_early = Some(GRAMMAR_LIMIT);
    }

    /// Whether the client wrote the grammar, whose limits are its errors then.
    pub fn follows_clients_grammar(&self) -> bool {
        self.options.grammar.as_ref().is_some_and(Compiled::is_clients_grammar)
    }

    pub fn is_ended_by_grammar(&self) -> bool {
        self.ended_early == Some(GRAMMAR_LIMIT)
    }

    pub fn push(&mut self, drawn: DrawnToken) -> Flow {
        self.completion_tokens += 1;
        if self.options.report.token_ids {
            self.token_ids.push(drawn.id);
        }
        let ends = self.options.stop_ids.contains(&drawn.id);
        let control = self.model.text.tokenizer.is_control(drawn.id);
        if let Some(logprob) = drawn.logprob.filter(|_| self.options.report.logprobs) {
            let mut logprob = self.model.logprob(logprob);
            if let Reader::Plain { skip_special_tokens } = self.options.reader {
                let shown = !(ends || control && skip_special_tokens);
                let bytes = if shown { logprob.token.as_slice() } else { &[] };
                logprob.text_offset = Some(self.next_offset.saturating_sub(starts_inside_character(bytes)));
                self.next_offset += count_characters(bytes);
            }
            self.logprobs.push(logprob);
        }
        if ends {
            if self.options.named_stop_ids.contains(&drawn.id) {
                self.stop_reason = drawn.id.to_string();
                self.stop_token = Some(drawn.id);
            }
            return Flow::Continue;
        }
        if let (Some(marker), Some(name)) = (&self.model.result_marker, self.model.text.tokenizer.special(drawn.id)) {
            self.report.own_result |= marker == name && !self.options.tools.is_empty();
        }
        for piece in self.detokenizer.push(drawn.id) {
            parse_piece(&mut self.options.reader, self.model.format, control, piece, &mut self.parsed);
        }
        let flow = self.emit_parsed();
        self.reasoning_tokens += u32::from(self.in_reasoning);
        if flow == Flow::Ended { flow } else { self.stop_after_call() }
    }

    /// Ends the output if the parser has passed a marker that is a stop, and the marker's call has ended.
    fn stop_after_call(&mut self) -> Flow {
        let Reader::Regions { parser, .. } = &mut self.options.reader else { return Flow::Continue };
        let passed = parser.passed().filter(|_| self.completion_tokens > self.options.min_tokens);
        let stop = passed.and_then(|passed| self.options.marker_stops.iter().find(|(marker, _)| *marker == passed));
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

    /// Completes the output. No token may be pushed after this.
    pub fn finish(&mut self, length: bool) {
        let mut in_call = false;
        if let Some(piece) = self.detokenizer.finish() {
            parse_piece(&mut self.options.reader, self.model.format, false, piece, &mut self.parsed);
        }
        if let Reader::Regions { parser, .. } = &mut self.options.reader {
            if length {
                parser.cut();
            }
            parser.finish(&mut self.parsed);
            in_call = parser.awaits_call();
        }
        (self.finished, self.by_length) = (true, length);
        if self.emit_parsed() == Flow::Ended {
            return;
        }
        if length && in_call {
            self.record_truncated_call("", false);
        }
        self.flush_stops();
        self.emit_done(match (length, self.calls) {
            (true, _) => v1::FinishReason::Length,
            (false, 0) => v1::FinishReason::Stop,
            (false, _) => v1::FinishReason::ToolCalls,
        });
    }

    /// Validates the finished response. It was streamed already, so a violation is only reported.
    fn check_response(&mut self) {
        let (Some(ResponseText { text, .. }), Some(grammar)) = (&self.response, &self.options.grammar) else { return };
        if self.started_calls > 0 || !self.report.malformed.is_empty() {
            return;
        }
        let quick = grammar.validates_quickly(None, text.len());
        if let Err(violation) = run_validation(quick, || grammar.validate_response(text)) {
            tracing::warn!(
                parent: &self.options.span,
                %violation,
                "a finished response violates its schema, choices or regular expression"
            );
            self.invalid_response = Some(violation.to_string());
        }
    }

    /// Turns parsed events into the choice's events.
    fn emit_parsed(&mut self) -> Flow {
        let mut parsed = std::mem::take(&mut self.parsed);
        let mut flow = Flow::Continue;
        for event in parsed.drain(..) {
            flow = self.emit_parsed_event(event);
            if flow == Flow::Ended {
                break;
            }
        }
        parsed.clear();
        self.parsed = parsed;
        flow
    }

    fn emit_parsed_event(&mut self, event: Event) -> Flow {
        if !matches!(event, Event::Malformed(_)) {
            self.after_call = false;
        }
        match event {
            Event::ReasoningStart => self.begin_region(Region::Reasoning),
            Event::TextStart => self.begin_region(Region::Text),
            Event::ReasoningDelta(text) | Event::TextDelta(text) => return self.push_text(&text),
            Event::ReasoningEnd | Event::TextEnd => self.end_region(),
            Event::ToolCallStart { name, .. } => {
                self.in_reasoning = false;
                self.begin_call(name);
            }
            Event::ArgumentsDelta { text, .. } => self.push_arguments(text),
            Event::ToolCallEnd { complete, .. } => return self.end_call(complete),
            Event::Malformed(text) => {
                self.in_reasoning = false;
                return self.push_malformed(&text);
            }
        }
        Flow::Continue
    }

    fn begin_region(&mut self, region: Region) {
        self.in_reasoning = region == Region::Reasoning;
        self.emit(match region {
            Region::Reasoning => chat_event::Event::ReasoningStart(v1::RegionStart {}),
            Region::Text => chat_event::Event::TextStart(v1::RegionStart {}),
        });
        self.open = Some(region);
    }

    fn end_region(&mut self) {
        self.flush_stops();
        self.in_reasoning = false;
        match self.open.take() {
            Some(Region::Reasoning) => self.emit(chat_event::Event::ReasoningEnd(v1::RegionEnd {})),
            Some(Region::Text) => self.emit(chat_event::Event::TextEnd(v1::RegionEnd {})),
            None => {}
        }
    }

    fn push_text(&mut self, text: &str) -> Flow {
        let scanned = self.scan(text);
        self.stopped = scanned.matched.is_some();
        self.emit_text(scanned.text);
        self.end_at_stop(scanned.matched)
    }

    fn scan(&mut self, text: &str) -> Scanned {
        if self.completion_tokens <= self.options.min_tokens {
            return Scanned { text: self.options.stops.pass(text), matched: None };
        }
        self.options.stops.push(text)
    }

    fn end_at_stop(&mut self, matched: Option<String>) -> Flow {
        let Some(matched) = matched else { return Flow::Continue };
        self.end_region();
        self.stop_reason = matched;
        self.emit_done(if self.calls == 0 { v1::FinishReason::Stop } else { v1::FinishReason::ToolCalls });
        Flow::Ended
    }

    fn flush_stops(&mut self) {
        let held = self.options.stops.flush();
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

    /// Whether it has ended in tool calls, so that its conversation goes on with their results.
    pub fn ends_in_calls(&self) -> bool {
        self.done == Some(v1::FinishReason::ToolCalls)
    }

    fn emit_done(&mut self, reason: v1::FinishReason) {
        self.done = Some(reason);
        self.warn_about_calls(reason);
        if let Some(said) = self.said.take() {
            self.report.lookalike = lookalike(&said, &self.options.tools);
            self.report.own_result |= self.model.result_marker.as_ref().is_some_and(|marker| said.contains(marker));
        }
        if reason != v1::FinishReason::Length {
            self.check_response();
        }
        if !self.echoed && !self.options.echo.is_empty() {
            self.emit(chat_event::Event::TextDelta(v1::Delta::default()));
        }
        let grammar = self.grammar_report.take().map(|report| {
            // A stop may have ended the output before the last token that was checked.
            self.decisions.truncate(self.completion_tokens as usize);
            v1::GrammarReport { decisions: std::mem::take(&mut self.decisions), ..report }
        });
        let told = |why: &&str| reason != v1::FinishReason::Length || *why == GRAMMAR_LIMIT;
        let done = v1::Done {
            finish_reason: reason.into(),
            usage: Some(self.usage()),
            stop_reason: std::mem::take(&mut self.stop_reason),
            stop_token: self.stop_token.take(),
            grammar,
            malformed: self.report.malformed.clone(),
            incomplete_tool_calls: self.report.incomplete.clone(),
            invalid_response: self.invalid_response.clone().unwrap_or_default(),
            ended_early: self.ended_early.filter(told).unwrap_or_default().to_owned(),
            grammar_relaxed: std::mem::take(&mut self.grammar_relaxed),
        };
        self.emit(chat_event::Event::Done(done));
    }

    fn emit(&mut self, mut event: chat_event::Event) {
        if let chat_event::Event::TextDelta(v1::Delta { text }) = &mut event {
            if let Some(response) = &mut self.response {
                response.push(text);
            }
            if let Some(said) = self.said.as_mut().filter(|said| said.len() <= MAX_LOOKALIKE_BYTES) {
                said.push_str(text);
            }
            if !std::mem::replace(&mut self.echoed, true) {
                text.insert_str(0, &self.options.echo);
            }
            self.emitted += text.chars().count() as u32;
        }
        if self.stopped {
            for logprob in &mut self.logprobs {
                logprob.text_offset = logprob.text_offset.map(|offset| offset.min(self.emitted));
            }
        }
        self.events.push_back(v1::ChatEvent {
            choice: self.options.index,
            token_ids: std::mem::take(&mut self.token_ids),
            logprobs: std::mem::take(&mut self.logprobs),
            event: Some(event),
        });
    }
}

/// Runs a validation. If it may be slow, the runtime first moves this thread's other tasks to another thread.
fn run_validation<T>(quick: bool, validation: impl FnOnce() -> T) -> T {
    let several = |handle: Handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread;
    if quick || !Handle::try_current().is_ok_and(several) {
        validation()
    } else {
        tokio::task::block_in_place(validation)
    }
}

/// Sets where the tokens of a prompt begin in its text. Tokens that the text does not spell, such as BOS, have no
/// width; nor does the space that some tokenizers put before the first word.
fn set_text_offsets(text: &str, tokens: &mut [v1::TokenLogprob]) {
    let (mut at, mut offset) = (0, 0);
    for token in tokens {
        let rest = &text.as_bytes()[at..];
        let spelled = [token.token.as_slice(), token.token.strip_prefix(b" ").unwrap_or_default()];
        let bytes = spelled.into_iter().find(|bytes| rest.starts_with(bytes)).unwrap_or_default();
        token.text_offset = Some(u32::saturating_sub(offset, starts_inside_character(bytes)));
        offset += count_characters(bytes);
        at += bytes.len();
    }
}

/// Number of characters that begin in these bytes.
fn count_characters(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|&&byte| !is_continuation_byte(byte)).count() as u32
}

/// 1 if these bytes begin in the middle of a character, else 0.
fn starts_inside_character(bytes: &[u8]) -> u32 {
    u32::from(bytes.first().is_some_and(|&byte| is_continuation_byte(byte)))
}

/// Whether the byte is not the first one of a UTF-8 character.
fn is_continuation_byte(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// Parses one piece of output. Added tokens that are neither control tokens nor markers are text.
fn parse_piece(
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
