//! The calls of one choice: what is reported of them, when, and the outcome of each.

use rein_proto::v1::{self, chat_event};

use super::{Flow, Transcript, aside};

/// The call that is being read.
pub(super) struct CallSoFar {
    id: String,
    name: String,
    arguments: String,
    /// It is told when it is whole, since what has been sent cannot be taken back.
    held: bool,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Whole, and its schema accepts the arguments.
    Valid,
    /// The output ended inside it.
    Incomplete,
    /// It broke off, or could not be read at all.
    Malformed,
    /// Whole, and its schema refuses the arguments.
    Invalid,
}

impl Outcome {
    pub(crate) const ALL: [Outcome; 4] = [Outcome::Valid, Outcome::Incomplete, Outcome::Malformed, Outcome::Invalid];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Valid => "valid",
            Outcome::Incomplete => "incomplete",
            Outcome::Malformed => "malformed",
            Outcome::Invalid => "invalid",
        }
    }
}

/// How the calls of one choice came out.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallReport {
    /// By the place in [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Texts where a call belongs that are none.
    pub malformed: Vec<String>,
    /// Calls that must not be executed.
    pub incomplete: Vec<v1::ToolCall>,
}

impl CallReport {
    fn count(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }
}

impl Transcript {
    /// A call is told as it grows where the grammar makes sure that it comes out whole and valid. Without a grammar,
    /// and where the grammar is laxer than the tool's schema, it is told when it is whole.
    pub(super) fn begin_call(&mut self, name: String) {
        let grammar = self.opening.grammar.as_ref();
        let held = grammar.is_none_or(|grammar| grammar.relaxations().iter().any(|relaxation| relaxation.tool == name));
        let id = self.model.call_id(&name, self.opening.calls_before + self.begun_calls);
        self.begun_calls += 1;
        self.call = Some(CallSoFar { id, name, arguments: String::new(), held });
        if !held {
            self.tell_call_start();
        }
    }

    fn tell_call_start(&mut self) {
        let Some(call) = &self.call else { return };
        let index = self.told_calls;
        let start = v1::ToolCallStart { index, id: call.id.clone(), name: call.name.clone() };
        self.told_calls += 1;
        self.emit(chat_event::Event::ToolCallStart(start));
    }

    pub(super) fn tell_arguments(&mut self, text: String) {
        let Some(call) = &mut self.call else { return };
        call.arguments.push_str(&text);
        if !call.held {
            let index = self.told_calls.saturating_sub(1);
            self.emit(chat_event::Event::ArgumentsDelta(v1::ArgumentsDelta { index, text }));
        }
    }

    pub(super) fn end_call(&mut self, complete: bool) {
        let Some(call) = &self.call else { return };
        let (held, arguments) = (call.held, call.arguments.clone());
        let outcome = self.judge_call(complete);
        let valid = outcome == Outcome::Valid;
        self.report.count(outcome);
        if held && valid {
            self.tell_call_start();
            let index = self.told_calls.saturating_sub(1);
            self.emit(chat_event::Event::ArgumentsDelta(v1::ArgumentsDelta { index, text: arguments }));
        }
        if !held || valid {
            let index = self.told_calls.saturating_sub(1);
            self.emit(chat_event::Event::ToolCallEnd(v1::ToolCallEnd { index, complete: valid }));
        }
        self.calls += usize::from(valid);
        self.behind_call = true;
        let Some(CallSoFar { id, name, arguments, .. }) = self.call.take().filter(|_| !valid) else { return };
        self.report.incomplete.push(v1::ToolCall { id, name, arguments });
    }

    fn judge_call(&self, complete: bool) -> Outcome {
        let Some(call) = &self.call else { return Outcome::Malformed };
        if !complete {
            return if self.over { Outcome::Incomplete } else { Outcome::Malformed };
        }
        let Some(grammar) = &self.opening.grammar else { return Outcome::Valid };
        let quick = grammar.judges_quickly(Some(&call.name), call.arguments.len());
        match aside(quick, || grammar.validate(&call.name, &call.arguments)) {
            Ok(()) => Outcome::Valid,
            Err(violation) => {
                let (span, name) = (&self.opening.span, &call.name);
                tracing::info!(parent: span, %violation, name, "a finished call breaks its schema");
                Outcome::Invalid
            }
        }
    }

    /// Text where a call belongs that is none. It is searched for stop strings like text.
    pub(super) fn tell_malformed(&mut self, text: &str) -> Flow {
        let behind_call = std::mem::take(&mut self.behind_call);
        if self.over && self.length {
            self.keep_cut(text, behind_call);
            return Flow::Continue;
        }
        if !behind_call {
            self.report.count(Outcome::Malformed);
        }
        let scanned = self.scan(text);
        let mut text = scanned.text;
        if scanned.matched.is_none() {
            text.push_str(&self.opening.stops.flush());
        }
        if !text.is_empty() {
            self.report.malformed.push(text.clone());
            self.emit(chat_event::Event::Malformed(v1::Malformed { text }));
        }
        self.end_if(scanned.matched)
    }

    /// What the length cut off of a call: behind one that was told in part, the rest of it, else a call without a name.
    pub(super) fn keep_cut(&mut self, text: &str, behind_call: bool) {
        match self.report.incomplete.last_mut().filter(|_| behind_call) {
            Some(call) => call.arguments.push_str(text),
            None => {
                self.report.count(Outcome::Incomplete);
                self.report.incomplete.push(v1::ToolCall { arguments: text.to_owned(), ..v1::ToolCall::default() });
            }
        }
    }

    /// For whoever runs this: a client may not look at what it cannot execute.
    pub(super) fn warn_of_calls(&self, reason: v1::FinishReason) {
        let report = &self.report;
        if report.malformed.is_empty() && report.incomplete.is_empty() {
            return;
        }
        let names: Vec<&str> = report.incomplete.iter().map(|call| call.name.as_str()).collect();
        tracing::warn!(
            parent: &self.opening.span,
            choice = self.opening.index,
            finish_reason = reason.as_str_name(),
            incomplete = names.join(", "),
            malformed = report.malformed.len(),
            "the answer holds calls that are not whole"
        );
    }
}
