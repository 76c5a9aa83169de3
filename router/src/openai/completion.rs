//! `/v1/completions`: the request, and the chunks of a streamed answer.

use rein_proto::v1::{self, chat_event::Event};
use serde_json::Value;

use super::{
    Body, Delivery, common, constraints,
    fields::{self, Fields},
    wire::{self, CompletionBody, CompletionChoice, CompletionLogprobs, Usage},
};
use crate::{
    error::Error,
    job::{CompletionJob, Prompt},
};

pub struct CompletionRequest {
    pub job: CompletionJob,
    pub delivery: Delivery,
    /// Fields that this server does not know.
    pub ignored: Vec<String>,
}

pub fn completion(body: Body<'_>) -> Result<CompletionRequest, Error> {
    let mut fields = Fields::new(body.value)?;
    let (job, delivery) = read(&mut fields)?;
    Ok(CompletionRequest { job, delivery, ignored: fields.ignored() })
}

fn read(fields: &mut Fields) -> Result<(CompletionJob, Delivery), Error> {
    let (mut generation, delivery) = common(fields)?;
    generation.logprobs = fields.integer("logprobs", 0)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    if generation.limits.max_tokens == Some(0) && !echo {
        return Err(Error::invalid("max_tokens", "'max_tokens' must be at least 1, got 0; 0 works with 'echo' only"));
    }
    fields.only("suffix", |value| *value == Value::String(String::new()), "no model here fills in the middle")?;
    let response = constraints::response(fields)?;
    let prompts = prompts(fields.take("prompt"))?;
    let job = CompletionJob {
        model: fields.string("model")?,
        prompts,
        echo,
        add_special_tokens: fields.bool("add_special_tokens")?.unwrap_or(true),
        skip_special_tokens: fields.bool("skip_special_tokens")?.unwrap_or(true),
        response,
        generation,
    };
    Ok((job, delivery))
}

/// A string, a list of strings, token ids, or a list of lists of token ids.
fn prompts(value: Option<Value>) -> Result<Vec<Prompt>, Error> {
    const SHAPES: &str = "a string, an array of strings, an array of token ids, or an array of arrays of token ids";
    let items = match value {
        None => return Err(Error::missing("prompt", SHAPES)),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(Error::wrong_type("prompt", SHAPES, &other)),
    };
    if items.first().is_some_and(Value::is_number) {
        return Ok(vec![Prompt::Ids(fields::ids("prompt", &items)?)]);
    }
    let prompt = |(i, item)| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => Ok(Prompt::Ids(fields::ids(&format!("prompt[{i}]"), &ids)?)),
        other => Err(Error::wrong_type(&format!("prompt[{i}]"), "a string or an array of token ids", &other)),
    };
    items.into_iter().enumerate().map(prompt).collect()
}

/// One SSE payload. None: this event says nothing to an OpenAI client.
pub fn encode(event: &v1::ChatEvent, start: &v1::Started, delivery: Delivery, token_ids: bool) -> Option<Vec<u8>> {
    let mut choice = CompletionChoice {
        index: event.choice,
        text: "",
        logprobs: CompletionLogprobs::new(&event.logprobs),
        finish_reason: None,
        stop_reason: None,
        token_ids: token_ids.then_some(event.token_ids.as_slice()),
        prompt_token_ids: None,
        prompt_logprobs: None,
    };
    let mut usage = delivery.include_usage.then_some(None);
    let mut choices = 1;
    match event.event.as_ref()? {
        Event::TextDelta(delta) => choice.text = &delta.text,
        Event::Done(done) => {
            choice.finish_reason = Some(wire::finish_reason(done.finish_reason()));
            choice.stop_reason = wire::stop_reason(done);
        }
        // OpenAI's chunks begin with text; the prompt's own data is the only reason for one before it.
        Event::Start(started) if started.prompt_token_ids.is_empty() && started.prompt_logprobs.is_empty() => {
            return None;
        }
        Event::Start(started) => {
            choice.prompt_token_ids = token_ids.then_some(started.prompt_token_ids.as_slice());
            choice.prompt_logprobs = wire::prompt_logprobs(&started.prompt_logprobs);
        }
        Event::Usage(total) if delivery.include_usage => {
            usage = Some(total.usage.as_ref().map(Usage::from));
            choices = 0;
        }
        _ => return None,
    }
    let chunk = CompletionBody {
        id: &start.id,
        object: "text_completion",
        created: start.created,
        model: &start.model,
        choices: Vec::from_iter((choices > 0).then_some(choice)),
        usage,
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
