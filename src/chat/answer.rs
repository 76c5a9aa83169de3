//! One answer: the stream of a chat completion, told piece by piece, and what it adds up to.

use bytes::Bytes;
use rein_measure::client::{Failure, ReusedConnection, error_text, read_events};
use serde::Deserialize;
use serde_json::{Value, json};

use super::server::ModelServer;

/// A piece of an answer, as it arrives.
pub enum AnswerPiece<'a> {
    Reasoning(&'a str),
    Text(&'a str),
    /// A call begins.
    Call(&'a str),
    Arguments(&'a str),
}

#[derive(Debug, Default)]
pub struct Answer {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<AskedCall>,
    pub finish_reason: Option<String>,
    pub tokens: Option<u64>,
    /// What the server says of the request beside its answer, one sentence each.
    pub remarks: Vec<String>,
}

/// Headers in which Rein names what it does not do, and what they say.
const REMARKS: [(&str, &str); 2] =
    [("x-rein-relaxed", "not enforced"), ("x-rein-ignored-fields", "ignored by the server or the model's template")];

#[derive(Debug, Clone, Default)]
pub struct AskedCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionDelta>,
}

#[derive(Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

impl Answer {
    /// Sends a request and tells each piece of the answer. What has arrived stays in `self` if this future is dropped.
    pub async fn receive(
        &mut self,
        server: &ModelServer,
        request: &Value,
        mut tell: impl FnMut(AnswerPiece<'_>),
    ) -> Result<(), String> {
        let mut connection = ReusedConnection::new(&server.endpoint);
        let (mut problem, mut remarks) = (None, Vec::new());
        let read = connection.ask("/chat/completions", Bytes::from(request.to_string()), async |response, start| {
            remarks.extend(REMARKS.iter().filter_map(|(header, says)| {
                let named = response.header(header).filter(|named| !named.is_empty())?;
                Some(format!("{says}: {}", named.replace(',', ", ")))
            }));
            read_events(response, start, |data, _| match serde_json::from_slice::<Chunk>(data) {
                Ok(Chunk { error: Some(_), .. }) => problem = Some(error_text(data)),
                Ok(chunk) => self.add(chunk, &mut tell),
                Err(error) => problem = Some(format!("a chunk is not understood: {error}")),
            })
            .await
        });
        let ended = read.await.map_err(|failure: Failure| failure.to_string());
        self.remarks = remarks;
        match (problem, ended) {
            (Some(problem), _) | (None, Err(problem)) => Err(problem),
            (None, Ok(false)) if self.finish_reason.is_none() => Err("the stream ended before the answer did".into()),
            (None, Ok(_)) => Ok(()),
        }
    }

    fn add(&mut self, chunk: Chunk, tell: &mut impl FnMut(AnswerPiece<'_>)) {
        self.tokens = chunk.usage.and_then(|usage| usage.completion_tokens).or(self.tokens);
        let Some(choice) = chunk.choices.into_iter().next() else { return };
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let delta = choice.delta;
        if let Some(text) = filled(delta.reasoning_content).or(filled(delta.reasoning)) {
            tell(AnswerPiece::Reasoning(&text));
            self.reasoning.push_str(&text);
        }
        if let Some(text) = filled(delta.content) {
            tell(AnswerPiece::Text(&text));
            self.text.push_str(&text);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            let named = call.function.as_ref().and_then(|function| filled(function.name.clone()));
            let index = call.index.unwrap_or(self.calls.len().saturating_sub(usize::from(named.is_none())));
            if index >= self.calls.len() {
                self.calls.push(AskedCall::default());
            }
            let Some(known) = self.calls.get_mut(index) else { continue };
            known.id.push_str(&call.id.unwrap_or_default());
            if let Some(name) = named {
                tell(AnswerPiece::Call(&name));
                known.name = name;
            }
            if let Some(arguments) = filled(call.function.and_then(|function| function.arguments)) {
                tell(AnswerPiece::Arguments(&arguments));
                known.arguments.push_str(&arguments);
            }
        }
        self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
    }

    /// The message of the history.
    pub fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |call: &AskedCall| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}
