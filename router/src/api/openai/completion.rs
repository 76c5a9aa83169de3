//! `/v1/completions`: decodes the request and encodes the chunks of a streamed answer.

use rein_proto::v1::{self, chat_event::Event};
use rein_text::fields::constraints::{self, TextConstraint};
use rein_text::fields::{self, Fields, ParsedBody};
use serde_json::Value;

use super::{
    DeliveryOptions,
    chunks::Chunks,
    common, refused,
    wire::{self, CompletionBody, CompletionChoice, CompletionLogprobs},
};
use crate::{
    error::Error,
    limits,
    request::job::{CompletionJob, Prompt},
};

pub struct CompletionRequest {
    pub job: CompletionJob,
    pub delivery: DeliveryOptions,
}

pub fn completion(body: &[u8]) -> Result<ParsedBody<CompletionRequest>, Error> {
    super::body(body)?.read(|fields| {
        let (job, delivery) = read(fields)?;
        Ok(CompletionRequest { job, delivery })
    })
}

fn read(fields: &mut Fields) -> Result<(CompletionJob, DeliveryOptions), Error> {
    let (mut generation, delivery) = common(fields)?;
    generation.logprobs = fields.integer("logprobs", 0..=limits::TOP_LOGPROBS)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    if generation.limits.max_tokens == Some(0) && !echo {
        return Err(Error::invalid(
            "max_tokens",
            "'max_tokens' must be at least 1, got 0; 0 is only allowed with 'echo'",
        ));
    }
    fields.refuse(refused::IN_COMPLETIONS)?;
    let TextConstraint { response, blanks } = constraints::response(fields)?;
    let prompts = prompts(fields, "prompt")?;
    let job = CompletionJob {
        model: fields.string("model")?,
        prompts,
        echo,
        add_special_tokens: fields.bool("add_special_tokens")?.unwrap_or(true),
        skip_special_tokens: fields.bool("skip_special_tokens")?.unwrap_or(true),
        response,
        blanks,
        generation,
    };
    Ok((job, delivery))
}

/// A string, a list of strings, token ids, or a list of lists of token ids.
pub(super) fn prompts(fields: &mut Fields, name: &'static str) -> Result<Vec<Prompt>, Error> {
    const SHAPES: &str = "a string, an array of strings, an array of token ids, or an array of arrays of token ids";
    if let Some(ids) = fields.only_ids(name) {
        return Ok(vec![Prompt::Ids(ids)]);
    }
    let items = match fields.take(name) {
        None => return Err(Error::missing(name, SHAPES)),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(Error::wrong_type(name, SHAPES, &other)),
    };
    if items.first().is_some_and(Value::is_number) {
        return Ok(vec![Prompt::Ids(fields::ids(name, &items)?)]);
    }
    let prompt = |(i, item)| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => Ok(Prompt::Ids(fields::ids(&format!("{name}[{i}]"), &ids)?)),
        other => Err(Error::wrong_type(&format!("{name}[{i}]"), "a string or an array of token ids", &other)),
    };
    items.into_iter().enumerate().map(prompt).collect()
}

/// Encodes an event as an SSE payload. None: OpenAI's API has no chunk for it.
pub fn encode(chunks: &mut Chunks, event: &v1::ChatEvent) -> Option<Vec<u8>> {
    chunks.observe(event);
    let (mut text, mut choice_end, mut ends) = ("", None, false);
    match event.event.as_ref()? {
        Event::TextDelta(delta) => text = &delta.text,
        Event::Done(done) => choice_end = Some(done),
        Event::Usage(_) if chunks.delivery.include_usage => ends = true,
        _ => return None,
    }
    let beginning = if ends { None } else { chunks.beginning(event.choice) }.unwrap_or_default();
    let choice = CompletionChoice {
        index: event.choice,
        text,
        logprobs: CompletionLogprobs::new(&event.logprobs),
        finish_reason: choice_end.map(|done| wire::finish_reason(done.finish_reason())),
        stop_reason: choice_end.and_then(wire::stop_reason),
        token_ids: chunks.token_ids.then_some(event.token_ids.as_slice()),
        prompt_token_ids: (!beginning.prompt_token_ids.is_empty()).then_some(&beginning.prompt_token_ids),
        prompt_logprobs: wire::prompt_logprobs(&beginning.prompt_logprobs),
        invalid_response: choice_end.map_or("", |done| &done.invalid_response),
        ended_early: choice_end.map_or("", |done| &done.ended_early),
        grammar_relaxed: choice_end.map_or("", |done| &done.grammar_relaxed),
    };
    let chunk = CompletionBody {
        id: &chunks.start.id,
        object: "text_completion",
        created: chunks.start.created,
        model: &chunks.start.model,
        system_fingerprint: &chunks.start.system_fingerprint,
        choices: Vec::from_iter((!ends).then_some(choice)),
        usage: chunks.usage(event),
    };
    Some(crate::api::to_json(&chunk))
}

/// Every field that a request may have, for tests of the documentation.
#[cfg(test)]
pub fn asked(body: Value) -> Vec<&'static str> {
    super::names_read(&body, read)
}
