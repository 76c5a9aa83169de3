//! The tool calls of one choice: which events they become, when, and the outcome of each.

use rein_grammar::{Format, Held, HeldPart};
use rein_proto::v1::{self, chat_event};

use super::{Flow, Transcript, run_validation};
use crate::limits;

/// Why an answer ends that repeats one call.
const REPEATED_CALLS: &str = "repeated_calls";

/// The call that is being parsed.
pub(super) struct CurrentCall {
    id: String,
    name: String,
    arguments: String,
    /// What goes out only when it is complete and valid, because sent events cannot be taken back.
    held: Held,
    /// A held value is invalid: nothing more goes out.
    broken: bool,
}

impl CurrentCall {
    fn is_buffered(&self) -> bool {
        matches!(self.held, Held::Whole)
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// Complete, and its arguments satisfy the schema.
    Valid,
    /// The output ended inside it.
    Incomplete,
    /// It broke off before its end, or could not be parsed.
    Malformed,
    /// Complete, but it names no declared tool or its arguments violate the schema.
    Invalid,
}

impl CallOutcome {
    pub(crate) const ALL: [CallOutcome; 4] =
        [CallOutcome::Valid, CallOutcome::Incomplete, CallOutcome::Malformed, CallOutcome::Invalid];

    pub(crate) fn name(self) -> &'static str {
        match self {
            CallOutcome::Valid => "valid",
            CallOutcome::Incomplete => "incomplete",
            CallOutcome::Malformed => "malformed",
            CallOutcome::Invalid => "invalid",
        }
    }
}

/// The outcomes of the calls of one choice.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallReport {
    /// Number of calls per outcome, in the order of [`CallOutcome::ALL`].
    pub outcomes: [u64; CallOutcome::ALL.len()],
    /// Invalid calls that were not delivered. Without enforcement, invalid calls are.
    pub withheld: u64,
    /// Texts in place of a call that could not be parsed.
    pub malformed: Vec<String>,
    /// Calls that must not be executed.
    pub incomplete: Vec<v1::ToolCall>,
    /// A tool that the text calls in a form that the model's format does not read, and a format that does.
    pub lookalike: Option<(String, Option<&'static Format>)>,
    /// The model wrote a tool's result itself, with the marker of its template.
    pub own_result: bool,
}

impl CallReport {
    fn count(&mut self, outcome: CallOutcome) {
        self.outcomes[outcome as usize] += 1;
    }
}

impl Transcript {
    /// A call is streamed as far as the grammar guarantees that its arguments satisfy the schema; values that it does
    /// not enforce completely, when they are complete. Without a grammar, the call is emitted when it is complete.
    pub(super) fn begin_call(&mut self, name: String) {
        let held = self.options.grammar.as_ref().map_or(Held::Whole, |grammar| grammar.held(&name));
        let id = self.model.call_id(&name, self.options.calls_before + self.started_calls);
        self.started_calls += 1;
        let call = CurrentCall { id, name, arguments: String::new(), held, broken: false };
        let buffered = call.is_buffered();
        self.call = Some(call);
        if !buffered {
            self.emit_call_start();
        }
    }

    fn emit_call_start(&mut self) {
        let Some(call) = &self.call else { return };
        let index = self.reported_calls;
        let start = v1::ToolCallStart { index, id: call.id.clone(), name: call.name.clone() };
        self.reported_calls += 1;
        self.emit(chat_event::Event::ToolCallStart(start));
    }

    pub(super) fn push_arguments(&mut self, text: String) {
        let Some(call) = &mut self.call else { return };
        call.arguments.push_str(&text);
        if call.broken {
            return;
        }
        let released = match &mut call.held {
            Held::Nothing => text,
            Held::Whole => return,
            Held::Values(values) => {
                let parts = values.push(&text);
                self.validated(parts)
            }
        };
        if !released.is_empty() {
            let index = self.reported_calls.saturating_sub(1);
            self.emit(chat_event::Event::ArgumentsDelta(v1::ArgumentsDelta { index, text: released }));
        }
    }

    /// The parts up to the first invalid value.
    fn validated(&mut self, parts: Vec<HeldPart>) -> String {
        let mut released = String::new();
        let (Some(call), Some(grammar)) = (&mut self.call, &self.options.grammar) else { return released };
        for part in parts {
            match part {
                HeldPart::Text(text) => released.push_str(&text),
                HeldPart::Value { text, schemas } => {
                    let quick = grammar.validates_quickly(Some(&call.name), text.len());
                    let result = run_validation(quick, || grammar.validate_value(&call.name, &schemas, &text));
                    if let Err(violation) = result {
                        let (span, name) = (&self.options.span, &call.name);
                        tracing::info!(parent: span, %violation, name, "a value of a tool call violates its schema");
                        call.broken = true;
                        return released;
                    }
                    released.push_str(&text);
                }
            }
        }
        released
    }

    pub(super) fn end_call(&mut self, complete: bool) -> Flow {
        let Some(call) = &self.call else { return Flow::Continue };
        let (buffered, arguments) = (call.is_buffered(), call.arguments.clone());
        let outcome = self.validate_call(complete);
        let valid = outcome == CallOutcome::Valid;
        self.report.withheld += u64::from(outcome == CallOutcome::Invalid);
        self.report.count(if valid { self.validate_unenforced_call() } else { outcome });
        if buffered && valid {
            self.emit_call_start();
            let index = self.reported_calls.saturating_sub(1);
            self.emit(chat_event::Event::ArgumentsDelta(v1::ArgumentsDelta { index, text: arguments }));
        }
        if !buffered || valid {
            let index = self.reported_calls.saturating_sub(1);
            self.emit(chat_event::Event::ToolCallEnd(v1::ToolCallEnd { index, complete: valid }));
        }
        self.calls += usize::from(valid);
        self.after_call = true;
        let Some(CurrentCall { id, name, arguments, .. }) = self.call.take() else { return Flow::Continue };
        if !valid {
            self.report.incomplete.push(v1::ToolCall { id, name, arguments });
            return Flow::Continue;
        }
        self.end_repetition(name, arguments)
    }

    /// Ends an answer that does nothing but repeat a call.
    fn end_repetition(&mut self, name: String, arguments: String) -> Flow {
        let equal = self.last_call.as_ref().is_some_and(|last| last.0 == name && last.1 == arguments);
        self.equal_calls = if equal { self.equal_calls + 1 } else { 1 };
        if self.equal_calls < limits::EQUAL_CALLS {
            self.last_call = Some((name, arguments));
            return Flow::Continue;
        }
        let (span, calls) = (&self.options.span, self.equal_calls);
        tracing::warn!(parent: span, name, calls, "the answer repeats one call; it ends here");
        self.ended_early = Some(REPEATED_CALLS);
        self.emit_done(v1::FinishReason::ToolCalls);
        Flow::Ended
    }

    fn validate_call(&self, complete: bool) -> CallOutcome {
        let Some(call) = &self.call else { return CallOutcome::Malformed };
        if !complete {
            return if self.finished { CallOutcome::Incomplete } else { CallOutcome::Malformed };
        }
        let Some(grammar) = &self.options.grammar else { return CallOutcome::Valid };
        if call.broken {
            return CallOutcome::Invalid;
        }
        let quick = grammar.validates_quickly(Some(&call.name), call.arguments.len());
        match run_validation(quick, || grammar.validate(&call.name, &call.arguments)) {
            Ok(()) => CallOutcome::Valid,
            Err(violation) => {
                let (span, name) = (&self.options.span, &call.name);
                tracing::info!(parent: span, %violation, name, "a finished tool call violates its schema");
                CallOutcome::Invalid
            }
        }
    }

    /// The outcome of a valid call whose arguments are not enforced: it is delivered in any case.
    fn validate_unenforced_call(&self) -> CallOutcome {
        let (Some(call), Some(validator)) = (&self.call, &self.options.call_validator) else {
            return CallOutcome::Valid;
        };
        let quick = validator.validates_quickly(&call.name, call.arguments.len());
        match run_validation(quick, || validator.validate(&call.name, &call.arguments)) {
            Ok(()) => CallOutcome::Valid,
            Err(violation) => {
                let (span, name) = (&self.options.span, &call.name);
                tracing::debug!(parent: span, %violation, name, "a call that is not enforced violates its schema");
                CallOutcome::Invalid
            }
        }
    }

    /// Handles text in place of a call that could not be parsed. It is searched for stop strings, like other text.
    pub(super) fn push_malformed(&mut self, text: &str) -> Flow {
        let after_call = std::mem::take(&mut self.after_call);
        if self.finished && self.by_length {
            self.record_truncated_call(text, after_call);
            return Flow::Continue;
        }
        if !after_call {
            self.report.count(CallOutcome::Malformed);
        }
        let scanned = self.scan(text);
        let mut text = scanned.text;
        if scanned.matched.is_none() {
            text.push_str(&self.options.stops.flush());
        }
        if !text.is_empty() {
            self.report.malformed.push(text.clone());
            self.emit(chat_event::Event::Malformed(v1::Malformed { text }));
        }
        self.end_at_stop(scanned.matched)
    }

    /// Records the text of a call that the length limit cut off: the rest of the last call, or a call without a name.
    pub(super) fn record_truncated_call(&mut self, text: &str, after_call: bool) {
        match self.report.incomplete.last_mut().filter(|_| after_call) {
            Some(call) => call.arguments.push_str(text),
            None => {
                self.report.count(CallOutcome::Incomplete);
                self.report.incomplete.push(v1::ToolCall { arguments: text.to_owned(), ..v1::ToolCall::default() });
            }
        }
    }

    /// Logs calls that cannot be executed: their loss would go unnoticed if the client ignores them.
    pub(super) fn warn_about_calls(&self, reason: v1::FinishReason) {
        let report = &self.report;
        if report.malformed.is_empty() && report.incomplete.is_empty() {
            return;
        }
        let names: Vec<&str> = report.incomplete.iter().map(|call| call.name.as_str()).collect();
        tracing::warn!(
            parent: &self.options.span,
            choice = self.options.index,
            finish_reason = reason.as_str_name(),
            incomplete = names.join(", "),
            malformed = report.malformed.len(),
            "the answer has incomplete or malformed tool calls"
        );
    }
}
