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
    pub calls: Vec<Call>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default)]
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub id: Option<String>,
    pub name: String,
    /// As sent, not parsed.
    pub arguments: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    pub kind: Kind,
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
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, call: None, tool: None, path: None, message: message.into() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
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

impl Kind {
    /// Whether a call with it counts as unsuccessful, as in the vendor verifier.
    pub fn fails_call(self) -> bool {
        matches!(self, Kind::UndeclaredTool | Kind::MissingName | Kind::InvalidJson | Kind::Schema)
    }

    pub fn name(self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Kind::UndeclaredTool => "a call of a tool that the request does not declare",
            Kind::MissingName => "a call without a name",
            Kind::InvalidJson => "arguments that are not JSON",
            Kind::Schema => "arguments that violate the tool's schema",
            Kind::WrongFinishReason => "a finish reason that does not fit the response",
            Kind::Truncated => "the length limit cut the response off inside or after a call",
            Kind::MissingId => "a call without an id",
            Kind::DuplicateId => "an id that another call of the conversation has",
            Kind::ArgumentsType => "arguments sent as an object, not as a string",
            Kind::StreamShape => "a stream that clients cannot put together by the rules of the API",
            Kind::StreamMismatch => "stream and non-stream differ at temperature 0",
            Kind::ToolChoice => "tool_choice was not honoured",
            Kind::ParallelCalls => "several calls although parallel_tool_calls is false",
            Kind::ResponseFormat => "content that violates response_format",
            Kind::LeakedMarkup => "tool markup of the model inside the content: a call that was lost",
            Kind::Expectation => "the sample expects another decision",
            Kind::PromptTokens => "usage.prompt_tokens differs from the sample's",
            Kind::SampleSchema => "a schema in the sample that cannot be used; not the endpoint's fault",
            Kind::HttpError => "no answer: connection or HTTP status",
            Kind::BrokenStream => "a stream that ended early or with an error",
            Kind::BadResponse => "a response that is none of this API",
            Kind::Timeout => "no answer in time",
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
