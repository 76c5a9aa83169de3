//! A chat request's way: render, encode, generate, read as regions.

use std::sync::Arc;

use rein_grammar::ToolDecl;
use serde_json::Value;

use crate::{
    conversation,
    error::Error,
    generate::{self, Call, ChatEvents, Defaults, Plan, Reading, Sequence},
    job::{ChatJob, ToolChoice},
    model::Model,
    template::RenderInput,
    textmodel::Rendered,
};

const DEFAULTS: Defaults = Defaults { prompt: "messages", max_tokens: None };

pub async fn render(model: &Arc<Model>, job: ChatJob) -> Result<Rendered, Error> {
    job.check()?;
    model.render(input(job)).await
}

pub async fn generate(call: Call, model: Arc<Model>, mut job: ChatJob) -> Result<ChatEvents, Error> {
    job.check()?;
    let bounds = model.bounds().await?;
    job.generation.check_vocabulary(bounds.vocab)?;
    let generation = std::mem::take(&mut job.generation);
    let calls_before = conversation::calls_made(&job.messages);
    let tools = tool_declarations(&job.tools);
    let parse_tools = !tools.is_empty() && job.tool_choice == ToolChoice::Auto;
    let Rendered { prompt, ids, .. } = model.render(input(job)).await?;
    let seed = generation.sampling.seed.unwrap_or_else(rand::random);
    let plan = Plan::new(&generation, &model, bounds, ids.len(), DEFAULTS, seed)?;
    let start = model.format.start_after(&prompt);
    let reading = Reading::Regions { start, tools, parse_tools, calls_before };
    generate::generate(call, model, reading, vec![Sequence { prompt: ids, echo: None, plan }]).await
}

fn input(mut job: ChatJob) -> RenderInput {
    job.use_exact();
    RenderInput {
        add_generation_prompt: job.generation_prompt(),
        continue_final_message: job.continue_final_message,
        kwargs: job.kwargs(),
        tools: (!job.tools.is_empty()).then_some(job.tools),
        documents: job.documents,
        messages: job.messages,
        ..RenderInput::default()
    }
}

/// A tool as the API declares it. None: it has no name.
pub(crate) fn tool_declaration(tool: &Value) -> Option<ToolDecl> {
    let name = tool.pointer("/function/name")?.as_str()?.to_owned();
    Some(ToolDecl { name, parameters: tool.pointer("/function/parameters").cloned() })
}

fn tool_declarations(tools: &[Value]) -> Vec<ToolDecl> {
    tools.iter().filter_map(tool_declaration).collect()
}
