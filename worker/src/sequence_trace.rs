//! Traces and logs of a sequence: one span while the engine has it, with a child for each stage. The engine thread
//! opens and closes them at events that it handles anyway; tokens cost nothing. It does not know the scheduler.

use rein_proto::internal::{FinishReason, FromEngine, Start, from_engine};
use rein_proto::trace_context;
use tonic::metadata::MetadataMap;
use tracing::{Span, field::Empty, info_span};

/// The part of the span that the caller names.
pub fn sequence(metadata: &MetadataMap) -> Span {
    let span = info_span!(
        parent: None,
        "sequence",
        otel.kind = "server",
        otel.status_code = Empty,
        request_id = Empty,
        trace_id = Empty,
        prompt_tokens = Empty,
        resumed_tokens = Empty,
        cached_tokens = Empty,
        generated_tokens = Empty,
        finish_reason = Empty,
    );
    trace_context::adopt_call(&span, metadata);
    span
}

pub fn describe(span: &Span, start: &Start) {
    span.record("request_id", start.request_id.as_str());
    span.record("prompt_tokens", start.prompt.len());
    span.record("resumed_tokens", start.resume.len());
}

/// Ends the sequence's spans when dropped.
#[derive(Debug)]
pub struct Stages {
    sequence: Span,
    stage: Span,
}

impl Stages {
    /// The sequence waits for a slot.
    pub fn new(sequence: Span) -> Self {
        let stage = info_span!(parent: &sequence, "queue");
        Stages { sequence, stage }
    }

    /// Whether the end of the queueing stage must be recorded.
    pub fn traced(&self) -> bool {
        !self.stage.is_disabled()
    }

    /// The sequence has a slot, and its prompt is being computed.
    pub fn begin_prefill(&mut self) {
        self.turn(|sequence| info_span!(parent: sequence, "prefill"));
    }

    /// Ends one stage before the next begins.
    fn turn(&mut self, next: impl FnOnce(&Span) -> Span) {
        self.stage = Span::none();
        self.stage = next(&self.sequence);
    }

    pub fn record_message(&mut self, message: &FromEngine) {
        match &message.kind {
            Some(from_engine::Kind::Admitted(admitted)) => {
                self.sequence.record("cached_tokens", admitted.cached_tokens);
                self.turn(|sequence| info_span!(parent: sequence, "decode"));
                tracing::debug!(parent: &self.sequence, "admitted");
            }
            Some(from_engine::Kind::Finish(finish)) => {
                self.sequence.record("generated_tokens", finish.generated);
                self.sequence.record("finish_reason", reason(finish.reason()));
                if matches!(finish.reason(), FinishReason::Error | FinishReason::Lost) {
                    self.sequence.record("otel.status_code", "ERROR");
                    tracing::warn!(parent: &self.sequence, error = finish.error, "the sequence ended with an error");
                }
            }
            Some(from_engine::Kind::Tokens(_)) | None => {}
        }
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        tracing::debug!(parent: &self.sequence, "the sequence ended");
    }
}

fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Steered => "steered",
        FinishReason::Error => "error",
        FinishReason::Lost => "lost",
        FinishReason::Unspecified => "none",
    }
}
