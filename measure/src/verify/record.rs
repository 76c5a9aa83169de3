//! The record of one response: a line of results.jsonl.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResponseMode {
    NonStream,
    Stream,
}

impl ResponseMode {
    pub fn name(self) -> &'static str {
        match self {
            ResponseMode::NonStream => "non-stream",
            ResponseMode::Stream => "stream",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// No answer; a resumed run sends the request again.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Line number in the samples file, from 1.
    pub sample: u64,
    /// Hash of the request without model and sampling parameters. It is equal in runs that can be compared.
    pub hash: String,
    pub mode: ResponseMode,
    pub status: Status,
    /// The kind of failure, with the names of `rein bench`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    pub attempts: u32,
    /// Latency of the last attempt.
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
    /// The text as received.
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
    /// Index of the call in the response, from 0.
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
    /// Whether a call with this problem counts as unsuccessful. As in the vendor verifier.
    pub fn fails_call(self) -> bool {
        matches!(
            self,
            ProblemKind::UndeclaredTool | ProblemKind::MissingName | ProblemKind::InvalidJson | ProblemKind::Schema
        )
    }

    pub fn name(self) -> String {
        let value = serde_json::to_value(self).expect("a kind is a name");
        value.as_str().expect("a kind is a name").to_owned()
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
            ProblemKind::DuplicateId => "an id that another call of the conversation also has",
            ProblemKind::ArgumentsType => "arguments sent as an object, not as a string",
            ProblemKind::StreamShape => "a stream that does not follow the rules of the API",
            ProblemKind::StreamMismatch => "the streamed and unstreamed answers differ at temperature 0",
            ProblemKind::ToolChoice => "the response does not follow tool_choice",
            ProblemKind::ParallelCalls => "several calls although parallel_tool_calls is false",
            ProblemKind::ResponseFormat => "content that violates response_format",
            ProblemKind::LeakedMarkup => "tool-call markup in the content: a call was not parsed",
            ProblemKind::Expectation => "the sample expects another call decision",
            ProblemKind::PromptTokens => "usage.prompt_tokens differs from the sample's",
            ProblemKind::SampleSchema => "a schema in the sample does not compile; not the endpoint's fault",
            ProblemKind::HttpError => "no answer: the connection failed or the HTTP status was not 200",
            ProblemKind::BrokenStream => "a stream that ended early or with an error",
            ProblemKind::BadResponse => "a response that is not valid in this API",
            ProblemKind::Timeout => "no answer in time",
        }
    }
}

impl Record {
    pub fn answered(&self) -> bool {
        self.status == Status::Ok
    }

    /// Whether the response counts as a tool call in the metrics, which use the finish reason alone.
    pub fn triggered(&self) -> bool {
        self.answered() && self.finish_reason.as_deref() == Some("tool_calls")
    }

    /// Whether all calls name declared tools and have arguments that satisfy their schemas.
    pub fn successful_call(&self) -> bool {
        self.triggered() && !self.calls.is_empty() && !self.problems.iter().any(|p| p.kind.fails_call())
    }
}
