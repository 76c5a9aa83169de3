//! Decodes protobuf requests into jobs.

use rein_grammar::{Blanks, Response, ToolChoice};
use rein_proto::v1;
use rein_text::fields::json;
use rein_text::template::lossless;
use rein_text::tools::ToolSet;
use serde_json::{Map, Value, json};

use crate::{
    error::Error,
    request::job::{ChatJob, CompletionJob, EmbedJob, ExactValues, Generation, Prompt, Truncation},
};

/// `bytes` is the size of the message.
pub fn chat(bytes: usize, request: v1::ChatRequest) -> Result<ChatJob, Error> {
    // Templates print numbers as the client wrote them; grammars read their values.
    let in_messages = request.messages.iter().any(|message| message.tools.iter().any(needs_exact));
    let exact_messages = in_messages.then(|| messages(request.messages.clone(), Numbers::Exact)).transpose()?;
    let in_tools = request.tools.iter().any(needs_exact);
    let exact_tools = in_tools.then(|| tools(request.tools.clone(), Numbers::Exact)).transpose()?;
    let (response, blanks) = response(request.response_format)?;
    Ok(ChatJob {
        model: Some(request.model),
        messages: messages(request.messages, Numbers::Plain)?,
        tools: ToolSet::new(tools(request.tools, Numbers::Plain)?, exact_tools),
        tool_choice: tool_choice(request.tool_choice)?,
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        response,
        blanks,
        documents: None,
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message.unwrap_or(false),
        thinking: request.thinking,
        reasoning_effort: request.reasoning_effort,
        template_kwargs: match request.chat_template_kwargs_json {
            Some(text) => object("chat_template_kwargs_json", &text, Numbers::Exact)?,
            None => Map::new(),
        },
        generation: Generation {
            sampling: request.sampling.unwrap_or_default(),
            limits: request.limits.unwrap_or_default(),
            n: request.n,
            logprobs: request.top_logprobs,
            prompt_logprobs: request.prompt_logprobs,
            return_token_ids: request.return_token_ids,
            cache_salt: request.cache_salt,
            session: request.user.filter(|user| !user.is_empty()),
            fit_max_tokens: false,
            report_prompt: false,
            script: request.script,
            max_tokens_param: None,
            return_grammar: request.return_grammar,
            return_decisions: request.return_decisions,
            priority: request.priority,
            thinking_token_budget: request.thinking_token_budget,
            finish_structured: request.finish_structured,
            truncate_prompt_tokens: truncation(request.truncate_prompt_tokens)?,
        },
        show_special_tokens: request.skip_special_tokens == Some(false),
        bytes,
        exact: exact_messages
            .map(|messages| Box::new(ExactValues { messages: Some(messages), documents: None, template_kwargs: None })),
    })
}

pub fn embed(request: v1::EmbedRequest) -> Result<EmbedJob, Error> {
    let input = |(i, input): (usize, v1::EmbedInput)| match input.input {
        Some(v1::embed_input::Input::Text(text)) => Ok(Prompt::Text(text)),
        Some(v1::embed_input::Input::TokenIds(v1::TokenIds { ids })) => Ok(Prompt::Ids(ids)),
        None => Err(Error::missing(&format!("input[{i}]"), "either 'text' or 'token_ids'")),
    };
    let job = EmbedJob {
        model: Some(request.model),
        inputs: request.input.into_iter().enumerate().map(input).collect::<Result<_, _>>()?,
        dimensions: request.dimensions,
        add_special_tokens: request.add_special_tokens.unwrap_or(true),
        cache_salt: request.cache_salt,
        priority: request.priority,
        session: request.user.filter(|user| !user.is_empty()),
    };
    job.check().map(|()| job)
}

/// The format of the text, and the blanks in it if it is JSON.
fn response(format: Option<v1::ResponseFormat>) -> Result<(Option<Response>, Option<Blanks>), Error> {
    use v1::response_format::Kind as Format;
    let Some(format) = format else { return Ok((None, None)) };
    let blanks = format.whitespace_pattern.filter(|pattern| !pattern.is_empty()).map(Blanks::Pattern);
    let response = match format.kind {
        None | Some(Format::JsonObject(false)) => None,
        Some(Format::JsonObject(true)) => Some(Response::JsonObject),
        Some(Format::JsonSchema(schema)) => Some(Response::JsonSchema {
            schema: object("response_format.json_schema.schema_json", &schema.schema_json, Numbers::Plain)?.into(),
            strict: schema.strict,
        }),
        Some(Format::Regex(regex)) => Some(Response::Regex(regex)),
        Some(Format::Choice(choice)) if choice.options.is_empty() => {
            let message = "'response_format.choice.options' must have at least one string, got none";
            return Err(Error::invalid("response_format.choice.options", message));
        }
        Some(Format::Choice(choice)) => Some(Response::Choice(choice.options)),
        Some(Format::Lark(grammar)) => Some(Response::Lark(grammar)),
        Some(Format::StructuralTagJson(text)) => {
            Some(Response::StructuralTag(object("response_format.structural_tag_json", &text, Numbers::Plain)?.into()))
        }
    };
    Ok((response, blanks))
}

pub fn complete(request: v1::CompleteRequest) -> Result<CompletionJob, Error> {
    let prompt = match request.prompt {
        Some(v1::complete_request::Prompt::Text(text)) => Prompt::Text(text),
        Some(v1::complete_request::Prompt::TokenIds(v1::TokenIds { ids })) => Prompt::Ids(ids),
        None => return Err(Error::missing("prompt", "either 'text' or 'token_ids'")),
    };
    let (response, blanks) = response(request.response_format)?;
    Ok(CompletionJob {
        model: Some(request.model),
        prompts: vec![prompt],
        echo: request.echo,
        add_special_tokens: request.add_special_tokens.unwrap_or(true),
        skip_special_tokens: request.skip_special_tokens.unwrap_or(true),
        response,
        blanks,
        generation: Generation {
            sampling: request.sampling.unwrap_or_default(),
            limits: request.limits.unwrap_or_default(),
            n: request.n,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            return_token_ids: request.return_token_ids,
            cache_salt: request.cache_salt,
            session: None,
            fit_max_tokens: false,
            report_prompt: false,
            script: request.script,
            max_tokens_param: None,
            return_grammar: false,
            return_decisions: false,
            priority: request.priority,
            thinking_token_budget: None,
            finish_structured: request.finish_structured,
            truncate_prompt_tokens: truncation(request.truncate_prompt_tokens)?,
        },
    })
}

fn truncation(tokens: Option<i32>) -> Result<Option<Truncation>, Error> {
    tokens.map(|tokens| Truncation::new(tokens.into()).ok_or_else(|| Truncation::invalid(tokens))).transpose()
}

fn tool_choice(choice: Option<v1::ToolChoice>) -> Result<ToolChoice, Error> {
    use v1::tool_choice::Mode;
    let Some(choice) = choice else { return Ok(ToolChoice::Auto) };
    let allowed = |required| ToolChoice::Allowed { names: choice.names.clone(), required };
    match Mode::try_from(choice.mode) {
        Ok(Mode::Unspecified | Mode::Auto) if choice.names.is_empty() => Ok(ToolChoice::Auto),
        Ok(Mode::Unspecified | Mode::Auto) => Ok(allowed(false)),
        Ok(Mode::None) => Ok(ToolChoice::None),
        Ok(Mode::Required) if choice.names.is_empty() => Ok(ToolChoice::Required),
        Ok(Mode::Required) => Ok(allowed(true)),
        Ok(Mode::Named) if choice.name.is_empty() => Err(Error::missing("tool_choice.name", "a declared tool's name")),
        Ok(Mode::Named) => Ok(ToolChoice::Named(choice.name)),
        Err(unknown) => Err(Error::invalid(
            "tool_choice",
            format!("'tool_choice' must have a mode of ToolChoice.Mode, got {}", unknown.0),
        )),
    }
}

/// How numbers of JSON texts are kept.
#[derive(Clone, Copy)]
enum Numbers {
    Plain,
    /// As in `template::lossless`.
    Exact,
}

/// Whether a tool has a number that prints differently than its value.
fn needs_exact(tool: &v1::Tool) -> bool {
    tool.parameters_json.as_deref().is_some_and(|text| lossless::marked(text).is_some())
}

fn messages(messages: Vec<v1::Message>, numbers: Numbers) -> Result<Vec<Value>, Error> {
    messages.into_iter().enumerate().map(|(i, message)| self::message(i, message, numbers)).collect()
}

fn tools(tools: Vec<v1::Tool>, numbers: Numbers) -> Result<Vec<Value>, Error> {
    tools.into_iter().enumerate().map(|(i, tool)| self::tool(&format!("tools[{i}]"), tool, numbers)).collect()
}

/// Converts a message to OpenAI's format, which templates read.
fn message(i: usize, message: v1::Message, numbers: Numbers) -> Result<Value, Error> {
    let mut map = Map::new();
    map.insert("role".into(), message.role.into());
    if message.content.is_some() && !message.parts.is_empty() {
        let at = format!("messages[{i}].parts");
        return Err(Error::invalid(&*at, format!("'{at}' may not be set together with 'content'")));
    }
    if let Some(content) = message.content {
        map.insert("content".into(), content.into());
    } else if !message.parts.is_empty() {
        let part = |part: v1::ContentPart| json!({"type": part.r#type, "text": part.text});
        map.insert("content".into(), message.parts.into_iter().map(part).collect());
    }
    for (name, value) in [
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning_content", message.reasoning_content),
    ] {
        if let Some(value) = value {
            map.insert(name.into(), value.into());
        }
    }
    if !message.tools.is_empty() {
        let at = format!("messages[{i}].tools");
        let tools = message.tools.into_iter().enumerate();
        let tools = tools.map(|(j, tool)| self::tool(&format!("{at}[{j}]"), tool, numbers));
        map.insert("tools".into(), tools.collect::<Result<_, _>>()?);
    }
    if !message.tool_calls.is_empty() {
        let call = |call: v1::ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        map.insert("tool_calls".into(), message.tool_calls.into_iter().map(call).collect());
    }
    Ok(Value::Object(map))
}

fn tool(at: &str, tool: v1::Tool, numbers: Numbers) -> Result<Value, Error> {
    let mut function = Map::new();
    function.insert("name".into(), tool.name.into());
    if let Some(description) = tool.description {
        function.insert("description".into(), description.into());
    }
    if let Some(text) = tool.parameters_json {
        function.insert("parameters".into(), object(&format!("{at}.parameters_json"), &text, numbers)?.into());
    }
    if let Some(strict) = tool.strict {
        function.insert("strict".into(), strict.into());
    }
    Ok(json!({"type": "function", "function": function}))
}

fn object(at: &str, text: &str, numbers: Numbers) -> Result<Map<String, Value>, Error> {
    let marked = match numbers {
        Numbers::Plain => None,
        Numbers::Exact => lossless::marked(text),
    };
    match json::document(at, marked.as_deref().unwrap_or(text))? {
        Value::Object(map) => Ok(map),
        other => Err(Error::wrong_type(at, "a JSON object as text", &other)),
    }
}
