//! Decodes the bodies of `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use rein_grammar::Response;
use rein_proto::v1;
use rein_text::fields::{AcceptedRange, Fields, ParsedBody, constraints, shared::SharedField};
use serde_json::Value;

use super::{
    conversation::{DecodedConversation, conversation},
    origins::FieldOrigins,
    refused::IN_MESSAGES,
    thinking::ThinkingSeal,
    tools::{self, DecodedTools},
};
use crate::{
    api::{openai, status::NO_THREADS},
    error::Error,
    request::job::{ChatJob, ExactValues, Generation, check_effort},
};

pub struct MessagesRequest {
    pub job: ChatJob,
    pub stream: bool,
    pub answer: AnswerOptions,
    pub origins: FieldOrigins,
}

/// What the answer depends on besides its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerOptions {
    pub max_tokens: u32,
    /// Thinking blocks have a signature, but no text.
    pub omit_thinking: bool,
}

/// Anthropic's range; other APIs allow up to 2.
const TEMPERATURE: AcceptedRange = AcceptedRange::between(0.0, 1.0);
/// Fields of Anthropic's API that cannot change the result. They are accepted and dropped.
const WITHOUT_EFFECT: [&str; 10] = [
    "cache_control",
    "context_management",
    "service_tier",
    "inference_geo",
    "speed",
    "diagnostics",
    "user_profile_id",
    "workspace_id",
    "betas",
    "anthropic_version",
];

/// Decodes the body of `/v1/messages`.
pub fn messages(
    body: &[u8],
    seal: &ThinkingSeal,
    known: &SharedField<Arc<DecodedTools>>,
) -> Result<ParsedBody<MessagesRequest>, Error> {
    decode(body, seal, known, true)
}

/// Decodes the body of `/v1/messages/count_tokens`, which needs no `max_tokens`.
pub fn count_tokens(
    body: &[u8],
    seal: &ThinkingSeal,
    known: &SharedField<Arc<DecodedTools>>,
) -> Result<ParsedBody<MessagesRequest>, Error> {
    decode(body, seal, known, false)
}

fn decode(
    body: &[u8],
    seal: &ThinkingSeal,
    known: &SharedField<Arc<DecodedTools>>,
    generates: bool,
) -> Result<ParsedBody<MessagesRequest>, Error> {
    let read = openai::body(body)?.read(|fields| read(fields, seal, known, generates))?;
    let (value, left_out) = read.value;
    // What the prompt does not contain is more telling than unknown fields.
    let ignored = left_out.into_iter().chain(read.ignored).collect();
    Ok(ParsedBody { value, bytes: read.bytes, ignored })
}

/// Also returns the paths of tools and blocks that the prompt does not contain.
fn read(
    fields: &mut Fields,
    seal: &ThinkingSeal,
    known: &SharedField<Arc<DecodedTools>>,
    generates: bool,
) -> Result<(MessagesRequest, Vec<String>), Error> {
    for name in WITHOUT_EFFECT {
        fields.take(name);
    }
    fields.refuse(openai::EVERYWHERE)?;
    fields.refuse(IN_MESSAGES)?;
    if fields.take("thread").is_some() {
        // Clients that find this code send the whole conversation from then on.
        let message = "'thread' is not supported: each request carries its whole conversation";
        return Err(Error { code: Some(NO_THREADS), ..Error::invalid("thread", message) });
    }
    let model = fields.string("model")?;
    let max_tokens = fields.integer("max_tokens", 1..=u32::MAX)?;
    if generates && max_tokens.is_none() {
        return Err(Error::missing("max_tokens", "the maximum number of tokens to generate"));
    }
    let plain = fields.array("messages")?.ok_or_else(|| Error::missing("messages", "an array of messages"))?;
    // Numbers occur in the inputs of calls only, which no check reads.
    let list = fields.exact_array("messages").unwrap_or(plain);
    let system = fields.take("system").filter(|system| system.as_str() != Some(""));
    let name = model.as_deref().unwrap_or_default();
    let DecodedConversation { messages, origins, mut left_out, tool_changes, continues } =
        conversation(system, list, seal, name)?;
    let decode = |fields: &mut Fields| tools::tools(fields, &tool_changes);
    let decoded = match tool_changes.is_empty() {
        true => known.read(fields, "tools", decode)?,
        false => decode(fields)?,
    };
    let (tool_choice, parallel_tool_calls) = tools::choice(fields, &decoded)?;
    left_out.extend(decoded.hosted.iter().map(|(name, at)| format!("{at}.{name}")));
    fields.extend_ignored(&decoded.ignored);
    let thinking = thinking(fields)?;
    let OutputConfig { effort, response } = output_config(fields)?;
    let template_kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
    let exact_kwargs = match fields.exact("chat_template_kwargs") {
        Some(Value::Object(map)) => Some(map),
        _ => None,
    };
    let stream = fields.bool("stream")?.unwrap_or(false);
    let generation = generation(fields, max_tokens, thinking.budget)?;
    let exact = exact_kwargs.map(|exact_kwargs| {
        Box::new(ExactValues { messages: None, documents: None, template_kwargs: Some(exact_kwargs) })
    });
    let job = ChatJob {
        model,
        messages,
        tools: decoded.tools.clone(),
        tool_choice,
        parallel_tool_calls,
        response,
        continue_final_message: continues,
        thinking: thinking.on,
        reasoning_effort: effort,
        template_kwargs,
        generation,
        exact,
        ..ChatJob::default()
    };
    let answer = AnswerOptions { max_tokens: max_tokens.unwrap_or_default(), omit_thinking: thinking.omitted };
    let origins = FieldOrigins { messages: origins, tools: decoded.origins.clone() };
    Ok((MessagesRequest { job, stream, answer, origins }, left_out))
}

fn generation(fields: &mut Fields, max_tokens: Option<u32>, budget: Option<u32>) -> Result<Generation, Error> {
    fields.number("temperature", TEMPERATURE)?;
    let stop = openai::strings("stop_sequences", fields.array("stop_sequences")?.unwrap_or_default())?;
    Ok(Generation {
        sampling: openai::sampling(fields)?,
        limits: v1::Limits {
            max_tokens,
            min_tokens: fields.integer("min_tokens", 0..=u32::MAX)?,
            stop,
            stop_token_ids: fields.ids("stop_token_ids")?.unwrap_or_default(),
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            include_stop: false,
        },
        cache_salt: fields.string("cache_salt")?,
        script: fields.ids("script")?.unwrap_or_default(),
        priority: fields.signed("priority")?,
        thinking_token_budget: budget,
        finish_structured: fields.bool("finish_structured")?.unwrap_or(false),
        truncate_prompt_tokens: openai::truncation(fields)?,
        session: session(fields)?,
        fit_max_tokens: true,
        report_prompt: true,
        ..Generation::default()
    })
}

/// The session, for routing: the user that `metadata` names.
fn session(fields: &mut Fields) -> Result<Option<String>, Error> {
    let Some(mut metadata) = fields.fields("metadata")? else { return Ok(None) };
    Ok(metadata.string("user_id")?.filter(|user| !user.is_empty()))
}

#[derive(Default)]
struct ThinkingField {
    on: Option<bool>,
    budget: Option<u32>,
    omitted: bool,
}

fn thinking(fields: &mut Fields) -> Result<ThinkingField, Error> {
    let Some(mut thinking) = fields.fields("thinking")? else { return Ok(ThinkingField::default()) };
    const KINDS: &str = "'enabled', 'adaptive' or 'disabled'";
    let on = match thinking.string("type")?.as_deref() {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        Some(other) => {
            let message = format!("'thinking.type' must be {KINDS}, got '{other}'");
            return Err(Error::invalid("thinking.type", message));
        }
        None => return Err(Error::missing("thinking.type", KINDS)),
    };
    let budget = thinking.integer("budget_tokens", 0..=u32::MAX)?.filter(|_| on);
    let omitted = match thinking.string("display")?.as_deref() {
        Some("omitted") => true,
        Some("summarized") | None => false,
        Some(other) => {
            let message = format!("'thinking.display' must be 'summarized' or 'omitted', got '{other}'");
            return Err(Error::invalid("thinking.display", message));
        }
    };
    fields.add_ignored(thinking);
    Ok(ThinkingField { on: Some(on), budget, omitted })
}

#[derive(Default)]
struct OutputConfig {
    effort: Option<String>,
    response: Option<Response>,
}

fn output_config(fields: &mut Fields) -> Result<OutputConfig, Error> {
    // The name of `output_config.format` in an older beta.
    let older = output_format(fields, "output_format")?;
    let Some(mut config) = fields.fields("output_config")? else {
        return Ok(OutputConfig { response: older, ..OutputConfig::default() });
    };
    let effort = config.string("effort")?;
    if let Some(effort) = &effort {
        check_effort("output_config.effort", effort)?;
    }
    let response = output_format(&mut config, "format")?;
    if response.is_some() && older.is_some() {
        let message = "'output_format' and 'output_config.format' cannot both be set";
        return Err(Error::invalid("output_format", message));
    }
    fields.add_ignored(config);
    Ok(OutputConfig { effort, response: response.or(older) })
}

/// `{"type": "json_schema", "schema"}`
fn output_format(fields: &mut Fields, name: &'static str) -> Result<Option<Response>, Error> {
    let at = fields.at(name);
    let Some(mut format) = fields.fields(name)? else { return Ok(None) };
    let kind = format.required("type", "'json_schema'")?;
    if kind != "json_schema" {
        let message = format!("'{at}.type' must be 'json_schema', got '{kind}'");
        return Err(Error::invalid(format!("{at}.type"), message));
    }
    let schema = constraints::schema(&mut format)?;
    fields.add_ignored(format);
    Ok(Some(Response::JsonSchema { schema, strict: false }))
}

/// Every field that a request may have, for tests of the documentation.
#[cfg(test)]
pub fn asked(body: Value) -> Vec<&'static str> {
    let seal = ThinkingSeal::new(&crate::seal::Seal::random(), None);
    openai::names_read(&body, |fields| read(fields, &seal, &SharedField::new(crate::limits::KNOWN_TOOLS_BYTES), true))
}
