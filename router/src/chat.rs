//! A chat request's way: render, encode, generate, read as regions.

use std::sync::Arc;

use rein_grammar::{Choice, Compiled, Relaxation, Rules, Tool, ToolDecl};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    conversation,
    error::Error,
    generate::{self, Call, ChatEvents, Defaults, Grammar, Plan, Reading, Sequence},
    job::ChatJob,
    model::Model,
    template::RenderInput,
    textmodel::Rendered,
};

const DEFAULTS: Defaults = Defaults { prompt: "messages", max_tokens: None };

pub async fn render(model: &Arc<Model>, job: ChatJob) -> Result<Rendered, Error> {
    job.check()?;
    model.render(input(job)).await
}

/// The events, and what of the request's schemas is not enforced to the letter, in words.
pub async fn generate(
    call: Call,
    model: Arc<Model>,
    mut job: ChatJob,
) -> Result<(ChatEvents, Vec<String>), Error> {
    job.check()?;
    let bounds = model.bounds().await?;
    job.generation.check_vocabulary(bounds.vocab)?;
    let generation = std::mem::take(&mut job.generation);
    let calls_before = conversation::calls_made(&job.messages);
    let tools = tools(&job.tools);
    let declarations: Vec<ToolDecl> = tools.iter().map(declaration).collect();
    let parse_tools = !tools.is_empty() && job.tool_choice != Choice::None;
    let mut rules = Rules {
        tools,
        choice: job.tool_choice.clone(),
        parallel: job.parallel_tool_calls,
        response: job.response.take(),
        calls_before,
        enforcement: model.enforcement,
        ..Rules::default()
    };
    let Rendered { prompt, ids, .. } = model.render(input(job)).await?;
    let seed = generation.sampling.seed.unwrap_or_else(rand::random);
    let plan = Plan::new(&generation, &model, bounds, ids.len(), DEFAULTS, seed)?;
    let start = model.format.start_after(&prompt);
    rules.start = start;
    let began = Instant::now();
    let compiled = model.compile(rules).await?;
    call.metrics.grammar.compile.observe(began.elapsed());
    let in_words = |one: &Relaxation| format!("{} {} {}", one.tool, one.path, one.keyword).trim().to_owned();
    let relaxed = compiled.iter().flat_map(Compiled::relaxations).map(in_words).collect();
    let grammar = compiled.map(|compiled| Grammar { compiled, always: model.mask_always });
    let reading = Reading::Regions { start, tools: declarations, parse_tools, calls_before, grammar };
    let events = generate::generate(call, model, reading, vec![Sequence { prompt: ids, echo: None, plan }]).await?;
    Ok((events, relaxed))
}

fn tools(tools: &[Value]) -> Vec<Tool> {
    tools.iter().filter_map(tool).collect()
}

/// A tool as the API declares it. None: it has no name.
pub(crate) fn tool(tool: &Value) -> Option<Tool> {
    let function = tool.get("function")?;
    Some(Tool {
        name: function.get("name")?.as_str()?.to_owned(),
        parameters: function.get("parameters").filter(|schema| !schema.is_null()).cloned(),
        strict: function.get("strict").and_then(Value::as_bool).unwrap_or(false),
    })
}

pub(crate) fn declaration(tool: &Tool) -> ToolDecl {
    ToolDecl { name: tool.name.clone(), parameters: tool.parameters.clone() }
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
