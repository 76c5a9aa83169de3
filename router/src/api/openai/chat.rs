//! `/v1/chat/completions`: decodes the request and encodes the chunks of a streamed answer.

use rein_grammar::ToolChoice;
use rein_proto::v1::{self, chat_event::Event};
use rein_text::fields::constraints::{self, TextConstraint};
use rein_text::fields::{Fields, ParsedBody, shared::SharedField};
use rein_text::tools::ToolSet;
use serde_json::Value;

use super::{
    DeliveryOptions,
    chunks::Chunks,
    common,
    reasoning::{self, ReasoningFields},
    refused,
    wire::{
        ChatChoice, ChatChunk, ChatLogprobs, Delta, FunctionDelta, GrammarReport, ToolCall, ToolCallDelta,
        prompt_logprobs,
    },
};
use crate::{
    error::Error,
    limits,
    request::job::{ChatJob, Generation},
};

pub struct ChatRequest {
    pub job: ChatJob,
    pub delivery: DeliveryOptions,
}

pub fn chat(body: &[u8], known: &SharedField<ToolSet>) -> Result<ParsedBody<ChatRequest>, Error> {
    super::body(body)?.read(|fields| {
        let (mut job, delivery) = read(fields, known)?;
        job.exact = super::exact(fields);
        Ok(ChatRequest { job, delivery })
    })
}

fn read(fields: &mut Fields, known: &SharedField<ToolSet>) -> Result<(ChatJob, DeliveryOptions), Error> {
    let (mut generation, mut delivery) = common(fields)?;
    if generation.limits.max_tokens == Some(0) {
        return Err(Error::invalid("max_tokens", "'max_tokens' must be at least 1, got 0"));
    }
    let logprobs = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=limits::TOP_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(Error::invalid("top_logprobs", "'top_logprobs' may only be set when 'logprobs' is true"));
    }
    generation.logprobs = logprobs.then(|| top.unwrap_or(0));
    generation.return_grammar = fields.bool("return_grammar")?.unwrap_or(false);
    generation.return_decisions = fields.bool("return_decisions")?.unwrap_or(false);
    let (conversation, hide) = conversation(fields, known)?;
    delivery.hide_reasoning |= hide;
    generation.thinking_token_budget = conversation.generation.thinking_token_budget;
    let tool_choice = constraints::tool_choice(fields)?.unwrap_or(ToolChoice::Auto);
    let parallel_tool_calls = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let TextConstraint { response, blanks } = constraints::response(fields)?;
    let text_only = |value: &Value| value.as_array().is_some_and(|items| items.iter().all(|item| item == "text"));
    fields.require("modalities", text_only, "only text is generated")?;
    let show_special_tokens = fields.bool("skip_special_tokens")? == Some(false);
    fields.require("add_special_tokens", |value| *value == Value::Bool(false), "the template writes them")?;
    fields.refuse(refused::IN_CONVERSATIONS)?;
    fields.refuse(refused::IN_CHATS)?;
    let job =
        ChatJob { generation, tool_choice, parallel_tool_calls, response, blanks, show_special_tokens, ..conversation };
    Ok((job, delivery))
}

/// Decodes the fields from which a template is rendered. Also returns whether reasoning is hidden from the client.
pub(super) fn conversation(fields: &mut Fields, known: &SharedField<ToolSet>) -> Result<(ChatJob, bool), Error> {
    let messages = fields.array("messages")?;
    let ReasoningFields { on, effort, budget, hide } = reasoning::read(fields)?;
    let job = ChatJob {
        model: fields.string("model")?,
        messages: messages.ok_or_else(|| Error::missing("messages", "an array of messages"))?,
        tools: known.read(fields, "tools", tools)?,
        documents: fields.array("documents")?,
        add_generation_prompt: fields.bool("add_generation_prompt")?,
        continue_final_message: fields.bool("continue_final_message")?.unwrap_or(false),
        thinking: on,
        reasoning_effort: effort,
        template_kwargs: fields.object("chat_template_kwargs")?.unwrap_or_default(),
        generation: Generation { thinking_token_budget: budget, ..Generation::default() },
        ..ChatJob::default()
    };
    Ok((job, hide))
}

fn tools(fields: &mut Fields) -> Result<ToolSet, Error> {
    let declared = fields.array("tools")?.unwrap_or_default();
    Ok(ToolSet::new(declared, fields.exact_array("tools")))
}

/// Encodes an event as an SSE payload. None: OpenAI's API has no chunk for it.
pub fn encode(chunks: &mut Chunks, event: &v1::ChatEvent) -> Option<Vec<u8>> {
    chunks.observe(event);
    let mut delta = Delta::default();
    let mut choice_end = None;
    let mut calls = [ToolCallDelta::default()];
    match event.event.as_ref()? {
        Event::ReasoningDelta(text) if !chunks.delivery.hide_reasoning => {
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
        Event::Usage(_) if !chunks.delivery.include_usage => return None,
        Event::Usage(_) => {}
        Event::Start(_) => return None,
        Event::ReasoningStart(_)
        | Event::ReasoningDelta(_)
        | Event::ReasoningEnd(_)
        | Event::TextStart(_)
        | Event::TextEnd(_)
        | Event::ToolCallEnd(_)
        | Event::Malformed(_) => {
            if !chunks.has_token_details(event) {
                return None;
            }
        }
    }
    let ends = matches!(event.event, Some(Event::Usage(_)));
    let beginning = if ends { None } else { chunks.beginning(event.choice) };
    if beginning.is_some() {
        delta.role = Some("assistant");
        delta.content.get_or_insert("");
    }
    let beginning = beginning.unwrap_or_default();
    let choice = ChatChoice {
        index: event.choice,
        delta,
        logprobs: ChatLogprobs::new(&event.logprobs),
        finish_reason: choice_end.map(|done| super::wire::finish_reason(done.finish_reason())),
        stop_reason: choice_end.and_then(super::wire::stop_reason),
        token_ids: chunks.token_ids.then_some(event.token_ids.as_slice()),
        grammar: choice_end.and_then(|done| done.grammar.as_ref()).map(GrammarReport::from),
        invalid_response: choice_end.map_or("", |done| &done.invalid_response),
        ended_early: choice_end.map_or("", |done| &done.ended_early),
        grammar_relaxed: choice_end.map_or("", |done| &done.grammar_relaxed),
    };
    let chunk = ChatChunk {
        id: &chunks.start.id,
        object: "chat.completion.chunk",
        created: chunks.start.created,
        model: &chunks.start.model,
        system_fingerprint: &chunks.start.system_fingerprint,
        choices: if ends { &[] } else { std::slice::from_ref(&choice) },
        usage: chunks.usage(event),
        prompt_token_ids: (!beginning.prompt_token_ids.is_empty()).then_some(&beginning.prompt_token_ids),
        prompt_logprobs: prompt_logprobs(&beginning.prompt_logprobs),
    };
    Some(crate::api::to_json(&chunk))
}

/// Every field that a request may have, for tests of the documentation.
#[cfg(test)]
pub fn asked(body: Value) -> Vec<&'static str> {
    super::names_read(&body, |fields| read(fields, &SharedField::new(limits::KNOWN_TOOLS_BYTES)))
}
