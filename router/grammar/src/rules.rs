//! What a request requires of the output. It does not know how that is enforced.

use std::borrow::Cow;

use serde_json::Value;

use crate::format::Region;
use crate::json_schema::{Mended, mended};
use crate::tools::{Tool, Tools};

/// What to enforce for one request.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub tools: Tools,
    pub choice: ToolChoice,
    /// More than one call per turn, if the format supports that.
    pub parallel: bool,
    pub response: Option<Response>,
    /// Where the output starts: see [`Format::start_after`](crate::Format::start_after).
    pub start: Region,
    /// Number of calls earlier in the conversation, for formats that number them.
    pub calls_before: usize,
    /// Text with which the response has begun already: the answer continues it, and both together are judged.
    pub begun: String,
    pub enforcement: Enforcement,
    /// The model's template has reasoning, and the request leaves it on: what replaces a refused draw may begin it. See
    /// [`Compiled::canonical`](crate::Compiled::canonical).
    pub reasons: bool,
    pub json: JsonStyle,
    /// Of the answer.
    pub blanks: Blanks,
}

/// How JSON is written where its schema leaves a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonStyle {
    pub answers: PropertyOrder,
    pub arguments: PropertyOrder,
}

impl Default for JsonStyle {
    /// People put a property before another one so that the model thinks before it answers (OpenAI and vLLM keep the
    /// order). In which order a model writes arguments is its habit.
    fn default() -> Self {
        JsonStyle { answers: PropertyOrder::Schema, arguments: PropertyOrder::Any }
    }
}

/// The order in which objects have their properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropertyOrder {
    /// That of the schema. Objects whose number of properties is bounded may have any.
    Schema,
    Any,
}

/// Blanks between the tokens of an answer in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Blanks {
    /// A run of them, or a line break with indentation.
    #[default]
    Any,
    /// At most a space after a comma or a colon.
    Few,
    /// What this regular expression matches, at each place where blanks may be.
    Pattern(String),
}

/// `tool_choice`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
    Allowed {
        names: Vec<String>,
        required: bool,
    },
}

/// `response_format` and `structured_outputs`.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    JsonObject,
    JsonSchema {
        schema: Value,
        strict: bool,
    },
    Regex(String),
    Choice(Vec<String>),
    Lark(String),
    /// `{"format": {..}}`, or `{"structures": [{"begin", "schema", "end"}], "triggers": [..]}`.
    StructuralTag(Value),
}

/// How much of a call is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Enforcement {
    /// Only what the request asks for: a tool choice other than auto, strict tools, a response format.
    Off,
    /// Declared names; arguments are any JSON object.
    Names,
    #[default]
    NamesAndArguments,
}

/// Why a request cannot be served: an error of the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("{field}: {problem}")]
    Invalid { field: String, problem: String },
    #[error("{field}: the schema's \"{keyword}\" at {path} cannot be enforced: {reason}")]
    Unenforceable { field: String, path: String, keyword: String, reason: String },
    #[error("{field}: {what} is {found}; the limit is {limit}")]
    TooLarge { field: String, what: &'static str, found: usize, limit: usize },
    #[error("{field}: {problem}")]
    TooCostly { field: String, problem: String },
    /// A first attempt took too long, or the caller has gone.
    #[error("the compilation was abandoned")]
    Unfinished,
    /// The model's format does not support the request.
    #[error("{field}: {problem} (the model's tool format is {format})")]
    Format { field: &'static str, format: &'static str, problem: String },
}

impl RuleError {
    /// Whether less to enforce could help: the tools' grammar is too large.
    pub(crate) fn is_of_size(&self) -> bool {
        matches!(self, RuleError::TooLarge { .. } | RuleError::TooCostly { .. })
    }

    pub(crate) fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        RuleError::Invalid { field: field.into(), problem: problem.into() }
    }
}

/// A part of a schema that the grammar does not enforce. Complete arguments are still validated against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relaxation {
    /// The tool; empty for the response.
    pub tool: String,
    /// JSON pointer to the schema with the keyword.
    pub path: String,
    pub keyword: String,
    pub cause: Cause,
}

/// Why a part of a schema is not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The grammar cannot express it.
    NoMeans,
    /// It would take too much work, at compile time or per token.
    Cost,
    /// It has no meaning: the schema is enforced, and validated, without it.
    Mended,
}

impl Relaxation {
    /// The error where the grammar has to enforce everything, because of `demand`.
    pub(crate) fn refused(&self, field: String, demand: &str) -> RuleError {
        let reason = match self.cause {
            Cause::NoMeans | Cause::Mended => "the grammar cannot enforce this keyword",
            Cause::Cost => "this part would take more work than one request may cause; split it into simpler ones",
        };
        let path = if self.path.is_empty() { "the root".into() } else { self.path.clone() };
        RuleError::Unenforceable {
            field,
            path,
            keyword: self.keyword.clone(),
            reason: format!("{demand}, and {reason}"),
        }
    }

    pub(crate) fn names_same(&self, other: &Self) -> bool {
        (&self.tool, &self.path, &self.keyword) == (&other.tool, &other.path, &other.keyword)
    }
}

impl std::fmt::Display for Relaxation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}/{}", self.tool, self.path, self.keyword)
    }
}

/// Complete arguments (or a response) that violate their schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {path:?}: {message}")]
pub struct Violation {
    /// JSON pointer into the instance.
    pub path: String,
    pub message: String,
}

impl Rules {
    /// The rules with the response's schema as it was meant, unless it is strict, and what is relaxed in all schemas.
    pub(crate) fn meant(&self) -> (Cow<'_, Rules>, Vec<Relaxation>) {
        let mut relaxations = Vec::new();
        let mut relax = |tool: &str, pointers: Vec<String>| {
            relaxations.extend(pointers.into_iter().map(|pointer| {
                let (path, keyword) = pointer.rsplit_once('/').unwrap_or_default();
                Relaxation { tool: tool.into(), path: path.into(), keyword: keyword.into(), cause: Cause::Mended }
            }));
        };
        for tool in self.tools.iter().filter(|tool| self.enforced(tool) == Enforcement::NamesAndArguments) {
            relax(&tool.name, tool.mended.clone());
        }
        let Some(Response::JsonSchema { schema, strict: false }) = &self.response else {
            return (Cow::Borrowed(self), relaxations);
        };
        let Mended { schema, relaxed } = mended(schema.clone());
        relax("", relaxed);
        let response = Some(Response::JsonSchema { schema, strict: false });
        (Cow::Owned(Rules { response, ..self.clone() }), relaxations)
    }

    /// The tools that may be called.
    pub(crate) fn callable(&self) -> Vec<&Tool> {
        let allowed = |t: &&Tool| match &self.choice {
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::None => false,
            ToolChoice::Named(name) => t.name == *name,
            ToolChoice::Allowed { names, .. } => names.contains(&t.name),
        };
        self.tools.iter().filter(allowed).collect()
    }

    /// Whether a turn without a call is rejected.
    pub fn must_call(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { required: true, .. })
    }

    /// Whether text and further calls may follow a call.
    pub(crate) fn may_go_on(&self) -> bool {
        self.parallel && !matches!(self.choice, ToolChoice::Named(_))
    }

    /// Whether the choice of tools has a rule that free text could violate.
    pub fn binds(&self) -> bool {
        let policy = self.enforcement != Enforcement::Off || self.tools.iter().any(|t| t.strict);
        self.response.is_some() || (!self.tools.is_empty() && (policy || self.choice != ToolChoice::Auto))
    }

    /// What is enforced of a tool's calls.
    pub(crate) fn enforced(&self, tool: &Tool) -> Enforcement {
        if tool.strict { Enforcement::NamesAndArguments } else { self.enforcement.max(Enforcement::Names) }
    }
}
