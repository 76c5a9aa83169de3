//! `/v1/chat/completions`: the request, and the chunks of a streamed answer.

use rein_grammar::Choice;
use rein_proto::v1::{self, chat_event::Event};
use serde_json::Value;

use super::{
    Body, Delivery, common, constraints,
    fields::Fields,
    wire::{
        ChatChoice, ChatChunk, ChatLogprobs, Delta, FunctionDelta, GrammarReport, ToolCall, ToolCallDelta, Usage,
        prompt_logprobs,
    },
};
use crate::{error::Error, job::ChatJob};

pub struct ChatRequest {
    pub job: ChatJob,
    pub delivery: Delivery,
    /// Fields that this server does not know.
    pub ignored: Vec<String>,
}

pub fn chat(mut body: Body<'_>) -> Result<ChatRequest, Error> {
    let mut fields = Fields::new(body.value.take())?;
    let (mut job, delivery) = read(&mut fields)?;
    job.exact = body.exact(&job);
    Ok(ChatRequest { job, delivery, ignored: fields.ignored() })
}

pub(super) fn read(fields: &mut Fields) -> Result<(ChatJob, Delivery), Error> {
    let (mut generation, delivery) = common(fields)?;
    if generation.limits.max_tokens == Some(0) {
        return Err(Error::invalid("max_tokens", "'max_tokens' must be at least 1, got 0"));
    }
    let logprobs = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(Error::invalid("top_logprobs", "'top_logprobs' may only be set when 'logprobs' is true"));
    }
    generation.logprobs = logprobs.then(|| top.unwrap_or(0));
    generation.return_grammar = fields.bool("return_grammar")?.unwrap_or(false);
    let conversation = conversation(fields)?;
    let tool_choice = constraints::tool_choice(fields)?.unwrap_or(Choice::Auto);
    let parallel_tool_calls = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let response = constraints::response(fields)?;
    let text_only = |value: &Value| value.as_array().is_some_and(|items| items.iter().all(|item| item == "text"));
    fields.only("modalities", text_only, "only text is generated")?;
    fields.only("audio", |_| false, "only text is generated")?;
    fields.only("functions", |_| false, "it is deprecated; use 'tools'")?;
    fields.only("function_call", |_| false, "it is deprecated; use 'tool_choice'")?;
    fields.only("web_search_options", |_| false, "this server searches nothing")?;
    fields.only("verbosity", |value| value == "medium", "models have no such setting; say it in the prompt")?;
    fields.only("chat_template", |_| false, "the model's own template is used")?;
    fields.only("echo", |value| *value == Value::Bool(false), "an answer does not repeat its prompt")?;
    fields.only("skip_special_tokens", |value| *value == Value::Bool(true), "control tokens are never text")?;
    fields.only("add_special_tokens", |value| *value == Value::Bool(false), "the template writes them")?;
    fields.only("mm_processor_kwargs", |_| false, "models are text only")?;
    Ok((ChatJob { generation, tool_choice, parallel_tool_calls, response, ..conversation }, delivery))
}

/// What a template is rendered from.
pub(super) fn conversation(fields: &mut Fields) -> Result<ChatJob, Error> {
    let messages = fields.array("messages")?;
    Ok(ChatJob {
        model: fields.string("model")?,
        messages: messages.ok_or_else(|| Error::missing("messages", "an array of messages"))?,
        tools: fields.array("tools")?.unwrap_or_default(),
        documents: fields.array("documents")?,
        add_generation_prompt: fields.bool("add_generation_prompt")?,
        continue_final_message: fields.bool("continue_final_message")?.unwrap_or(false),
        thinking: thinking(fields)?,
        reasoning_effort: fields.string("reasoning_effort")?,
        template_kwargs: fields.object("chat_template_kwargs")?.unwrap_or_default(),
        ..ChatJob::default()
    })
}

/// A boolean, or `{"type": "enabled" | "disabled"}`.
fn thinking(fields: &mut Fields) -> Result<Option<bool>, Error> {
    match fields.take("thinking") {
        None => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(on)),
        Some(Value::Object(map)) => {
            let mut object = Fields::within("thinking.", map);
            let on = match object.take("type").as_ref().and_then(Value::as_str) {
                Some("enabled") => true,
                Some("disabled") => false,
                _ => return Err(Error::invalid("thinking.type", "'thinking.type' must be 'enabled' or 'disabled'")),
            };
            fields.remember(object);
            Ok(Some(on))
        }
        Some(other) => Err(Error::wrong_type("thinking", "a boolean or an object with a type", &other)),
    }
}

/// One SSE payload. None: this event says nothing to an OpenAI client.
pub fn encode(event: &v1::ChatEvent, start: &v1::Started, delivery: Delivery, token_ids: bool) -> Option<Vec<u8>> {
    let mut delta = Delta::default();
    let mut choice_end = None;
    let mut prompt_ids = None;
    let mut prompt_scores = None;
    let mut calls = [ToolCallDelta::default()];
    match event.event.as_ref()? {
        Event::Start(started) => {
            delta.role = Some("assistant");
            delta.content = Some("");
            prompt_ids = (!started.prompt_token_ids.is_empty()).then_some(started.prompt_token_ids.as_slice());
            prompt_scores = prompt_logprobs(&started.prompt_logprobs);
        }
        Event::ReasoningDelta(text) if !delivery.hide_reasoning => {
            delta.reasoning_content = Some(&text.text);
            delta.reasoning = Some(&text.text);
        }
        Event::TextDelta(text) => delta.content = Some(&text.text),
        Event::ToolCallStart(call) => {
            calls[0] = ToolCallDelta {
                index: call.index,
                id: Some(&call.id),
                kind: Some("function"),
                function: FunctionDelta { name: Some(&call.name), arguments: "" },
            };
            delta.tool_calls = Some(&calls);
        }
        Event::ArgumentsDelta(arguments) => {
            calls[0].index = arguments.index;
            calls[0].function.arguments = &arguments.text;
            delta.tool_calls = Some(&calls);
        }
        Event::Done(done) => {
            delta.incomplete_tool_calls = done.incomplete_tool_calls.iter().map(ToolCall::from).collect();
            delta.malformed = &done.malformed;
            choice_end = Some(done);
        }
        Event::Usage(_) if !delivery.include_usage => return None,
        Event::Usage(_) => {}
        Event::ReasoningStart(_)
        | Event::ReasoningDelta(_)
        | Event::ReasoningEnd(_)
        | Event::TextStart(_)
        | Event::TextEnd(_)
        | Event::ToolCallEnd(_)
        | Event::Malformed(_) => {
            if event.token_ids.is_empty() && event.logprobs.is_empty() {
                return None;
            }
        }
    }
    let usage = match event.event.as_ref()? {
        Event::Usage(usage) => Some(usage.usage.as_ref().map(Usage::from)),
        _ => delivery.include_usage.then_some(None),
    };
    let choice = ChatChoice {
        index: event.choice,
        delta,
        logprobs: ChatLogprobs::new(&event.logprobs),
        finish_reason: choice_end.map(|done| super::wire::finish_reason(done.finish_reason())),
        stop_reason: choice_end.and_then(super::wire::stop_reason),
        token_ids: token_ids.then_some(event.token_ids.as_slice()),
        grammar: choice_end.and_then(|done| done.grammar.as_ref()).map(GrammarReport::from),
    };
    let chunk = ChatChunk {
        id: &start.id,
        object: "chat.completion.chunk",
        created: start.created,
        model: &start.model,
        choices: if matches!(event.event, Some(Event::Usage(_))) { &[] } else { std::slice::from_ref(&choice) },
        usage,
        prompt_token_ids: prompt_ids,
        prompt_logprobs: prompt_scores,
    };
    // Plain data with string keys always encodes.
    serde_json::to_vec(&chunk).ok()
}

/// For tests of the documentation: every field that a request may have.
#[cfg(test)]
pub fn asked(body: Value) -> Vec<&'static str> {
    let mut fields = Fields::new(body).unwrap();
    read(&mut fields).unwrap_or_else(|error| panic!("{error}"));
    fields.asked().to_vec()
}
