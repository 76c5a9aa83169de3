//! What is kept of one response: a line of results.jsonl.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    NonStream,
    Stream,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::NonStream => "non-stream",
            Mode::Stream => "stream",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// No answer; a resumed run asks again.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Line of the samples file, from 1.
    pub sample: u64,
    /// Of what the sample asks, without model and sampling parameters: the same in runs that can be compared.
    pub hash: String,
    pub mode: Mode,
    pub status: Status,
    /// Why there is no answer, by the kinds that `rein bench` counts too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    pub attempts: u32,
    /// Of the last attempt.
    pub latency_ms: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    pub finish_reason: Option<String>,
    #[serde(default)]
    pub calls: Vec<RecordedCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenCounts>,
    #[serde(default)]
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedCall {
    pub id: Option<String>,
    pub name: String,
    /// As sent, not parsed.
    pub arguments: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    pub kind: ProblemKind,
    /// Which call of the response, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// JSON pointer into the arguments or the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub message: String,
}

impl Problem {
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self { kind, call: None, tool: None, path: None, message: message.into() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    UndeclaredTool,
    MissingName,
    InvalidJson,
    Schema,
    WrongFinishReason,
    Truncated,
    MissingId,
    DuplicateId,
    ArgumentsType,
    StreamShape,
    StreamMismatch,
    ToolChoice,
    ParallelCalls,
    ResponseFormat,
    LeakedMarkup,
    Expectation,
    PromptTokens,
    SampleSchema,
    HttpError,
    BrokenStream,
    BadResponse,
    Timeout,
}

impl ProblemKind {
    /// Whether a call with it counts as unsuccessful, as in the vendor verifier.
    pub fn fails_call(self) -> bool {
        matches!(
            self,
            ProblemKind::UndeclaredTool | ProblemKind::MissingName | ProblemKind::InvalidJson | ProblemKind::Schema
        )
    }

    pub fn name(self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    }

    pub fn meaning(self) -> &'static str {
        match self {
            ProblemKind::UndeclaredTool => "a call of a tool that the request does not declare",
            ProblemKind::MissingName => "a call without a name",
            ProblemKind::InvalidJson => "arguments that are not JSON",
            ProblemKind::Schema => "arguments that violate the tool's schema",
            ProblemKind::WrongFinishReason => "a finish reason that does not fit the response",
            ProblemKind::Truncated => "the length limit cut the response off inside or after a call",
            ProblemKind::MissingId => "a call without an id",
            ProblemKind::DuplicateId => "an id that another call of the conversation has",
            ProblemKind::ArgumentsType => "arguments sent as an object, not as a string",
            ProblemKind::StreamShape => "a stream that clients cannot put together by the rules of the API",
            ProblemKind::StreamMismatch => "stream and non-stream differ at temperature 0",
            ProblemKind::ToolChoice => "tool_choice was not honoured",
            ProblemKind::ParallelCalls => "several calls although parallel_tool_calls is false",
            ProblemKind::ResponseFormat => "content that violates response_format",
            ProblemKind::LeakedMarkup => "tool markup of the model inside the content: a call that was lost",
            ProblemKind::Expectation => "the sample expects another decision",
            ProblemKind::PromptTokens => "usage.prompt_tokens differs from the sample's",
            ProblemKind::SampleSchema => "a schema in the sample that cannot be used; not the endpoint's fault",
            ProblemKind::HttpError => "no answer: connection or HTTP status",
            ProblemKind::BrokenStream => "a stream that ended early or with an error",
            ProblemKind::BadResponse => "a response that is none of this API",
            ProblemKind::Timeout => "no answer in time",
        }
    }
}

impl Record {
    pub fn answered(&self) -> bool {
        self.status == Status::Ok
    }

    /// What the metrics call a tool call: by finish reason alone.
    pub fn triggered(&self) -> bool {
        self.answered() && self.finish_reason.as_deref() == Some("tool_calls")
    }

    /// A finished tool call of declared tools with arguments that satisfy their schemas.
    pub fn successful_call(&self) -> bool {
        self.triggered() && !self.calls.is_empty() && !self.problems.iter().any(|p| p.kind.fails_call())
    }
}
