//! Runs a chat request: validates and renders the conversation, compiles the grammar, and generates regions.

use std::sync::Arc;

use rein_grammar::{CallValidator, Region, Rules, ToolChoice};
use rein_text::{
    call_ids, conversation,
    model_text::{ReasoningMarkers, RenderedPrompt},
    template::RenderInput,
    tools::tool,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    admission::keys,
    error::Error,
    fair::Requester,
    request::{
        delivery::ChatEvents,
        generate::{self, Defaults, Grammar, OutputMode, Plan, PlannedPrompt, RequestContext},
        job::ChatJob,
        model::{Bounds, ServedModel},
    },
};

const DEFAULTS: Defaults = Defaults { prompt: "messages", max_tokens: None };

fn check(model: &ServedModel, job: &ChatJob) -> Result<(), Error> {
    job.check()?;
    match model.format.letter_first {
        true => Ok(conversation::check_names_begin_with_letter(&job.tools, &job.messages)?),
        false => Ok(()),
    }
}

pub async fn render(
    model: &Arc<ServedModel>,
    mut job: ChatJob,
    requester: &Requester,
) -> Result<RenderedPrompt, Error> {
    let (bytes, deadline, caller) = (job.bytes, requester.deadline, requester.caller.clone());
    let render = move |model: &ServedModel| {
        check(model, &job)?;
        if let Some(name) = caller {
            job.generation.cache_salt = Some(keys::cache_salt(&name, job.generation.cache_salt.as_deref()));
        }
        model.render(&Conversation::new(model, job).input, model.bound(bytes, deadline, None))
    };
    model.run_text_work(bytes, requester, render).await
}

/// A chat job that is ready to generate.
struct Prepared {
    rules: Rules,
    plan: Plan,
    prompt: Vec<u32>,
    resumed: bool,
    skip_special_tokens: bool,
}

impl Prepared {
    fn new(model: &ServedModel, mut job: ChatJob, bounds: Bounds, deadline: Instant) -> Result<Self, Error> {
        check(model, &job)?;
        job.generation.check_vocabulary(bounds.vocab)?;
        let generation = std::mem::take(&mut job.generation);
        let skip_special_tokens = !job.show_special_tokens;
        let restrictions = generate::restrictions(&generation.sampling, model, bounds, deadline)?;
        let tools = match conversation::message_tools(&job.messages).next() {
            None => job.tools.callable().clone(),
            Some(_) => job.declared_tools().into_iter().filter_map(tool).collect(),
        };
        let mut rules = Rules {
            tools,
            choice: job.tool_choice.clone(),
            parallel: job.parallel_tool_calls,
            response: job.response.take(),
            enforcement: model.enforcement,
            json: model.json,
            blanks: model.blanks(job.blanks.take()),
            ..Rules::default()
        };
        let bound = model.bound(job.bytes, deadline, generation.max_prompt_tokens(bounds.context));
        job.generation.cache_salt = generation.cache_salt.clone();
        let Conversation { input, calls_before, resumed } = Conversation::new(model, job);
        let (resumed, begun) = resumed.unzip();
        let RenderedPrompt { prompt, mut ids, .. } = model.render(&input, bound)?;
        generate::truncate(&mut ids, &generation, bounds);
        let start = resumed.unwrap_or_else(|| model.format.start_after(&prompt));
        (rules.start, rules.calls_before) = (start, calls_before);
        if rules.response.is_some() && start == Region::Text {
            rules.begun = begun.unwrap_or_default();
        }
        rules.reasons = model.format.reasons(model.text.template_source(), &prompt);
        let mut plan = Plan::new(&generation, model, bounds, ids.len(), DEFAULTS, restrictions)?;
        if calls_tools(&rules) {
            plan.defer_marker_stops(model);
            if rules.must_call() {
                plan.ignore_reasoning_stops(model);
            }
        }
        Ok(Prepared { rules, plan, prompt: ids, resumed: resumed.is_some(), skip_special_tokens })
    }
}

/// Whether the answer may call tools.
fn calls_tools(rules: &Rules) -> bool {
    !rules.tools.is_empty() && rules.choice != ToolChoice::None
}

/// Returns the events, and descriptions of the schema parts that the grammar does not enforce.
pub async fn generate(
    mut context: RequestContext,
    model: Arc<ServedModel>,
    mut job: ChatJob,
) -> Result<(ChatEvents, Vec<String>), Error> {
    job.generation.cache_salt = context.cache_salt(job.generation.cache_salt.take());
    let (bounds, deadline) = (model.generation_bounds().await?, context.deadline);
    let bytes = job.bytes + job.generation.bad_words_bytes();
    let prepare = move |model: &ServedModel| Prepared::new(model, job, bounds, deadline);
    let Prepared { rules, plan, prompt, resumed, skip_special_tokens } =
        model.run_text_work(bytes, &context.requester(), prepare).await?;
    context.memory_charge = None;
    let parse_tools = calls_tools(&rules);
    let (start, calls_before, tools) = (rules.start, rules.calls_before, rules.tools.clone());
    let call_validator = CallValidator::new(&rules).map(Arc::new);
    let rules = Arc::new(rules);
    let began = Instant::now();
    let compiled = model.compile(rules.clone(), context.caller.as_ref(), context.deadline).await?;
    context.metrics.grammar.compile.observe(began.elapsed());
    if let Some(compiled) = compiled.as_ref().filter(|compiled| !compiled.begun().is_empty()) {
        compiled.matcher().map_err(|_| {
            let message =
                "the last message, which the answer continues, does not begin what the response format allows";
            Error::invalid("messages", message)
        })?;
    }
    let grammar = Grammar::new(compiled, &model);
    let relaxed = Grammar::relaxed(grammar.as_ref());
    let narrowed = grammar.as_ref().map_or(0, |grammar| grammar.compiled.narrowed());
    context.metrics.outcomes.count_narrowed(model.name(), narrowed);
    let output_mode = OutputMode::Regions {
        start,
        resumed,
        tools,
        parse_tools,
        calls_before,
        skip_special_tokens,
        grammar,
        call_validator,
    };
    let prompt = PlannedPrompt { tokens: prompt, echo: None, plan };
    let events = generate::generate(context, model, output_mode, vec![prompt]).await?;
    Ok((events, relaxed))
}

/// The template's input, and where in the conversation the answer begins.
struct Conversation {
    input: RenderInput,
    /// Calls in the conversation so far, from which the format's own ids continue.
    calls_before: usize,
    /// The region that the answer continues, and its text so far. None: the answer begins a region.
    resumed: Option<(Region, String)>,
}

impl Conversation {
    fn new(model: &ServedModel, mut job: ChatJob) -> Self {
        job.use_exact();
        let continues = job.continues();
        let (add_generation_prompt, kwargs) = (job.generation_prompt(), job.kwargs());
        let mut messages = job.messages;
        let calls_before =
            call_ids::assign_native_ids(&mut messages, |name, index| model.format.native_id(name, index));
        let last = messages.last_mut().and_then(Value::as_object_mut);
        if let Some(last) = last {
            conversation::CONTINUE_FIELDS.into_iter().for_each(|field| drop(last.shift_remove(field)));
        }
        let reasoning = model.reasoning_markers();
        let cache_salt = job.generation.cache_salt;
        let tools_must_show = !model.allow_dropped_tools && job.tool_choice != ToolChoice::None;
        Conversation {
            calls_before,
            resumed: messages.last().filter(|_| continues).and_then(|last| resumed(last, reasoning.as_ref())),
            input: RenderInput {
                add_generation_prompt,
                continue_final_message: continues,
                kwargs,
                tools: (!job.tools.is_empty()).then_some(job.tools),
                documents: job.documents,
                messages,
                tools_must_show,
                reasoning_open: reasoning.map(|markers| markers.open),
                cache_salt,
                ..RenderInput::default()
            },
        }
    }
}

/// The region in which a message ends, and its text: reasoning if it has no content yet. None: no region has begun.
fn resumed(message: &Value, reasoning: Option<&ReasoningMarkers>) -> Option<(Region, String)> {
    let content = match message.get("content") {
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        Some(Value::String(text)) => text.clone(),
        _ => String::new(),
    };
    let begun = |text: &str, region| (!text.trim().is_empty()).then(|| (region, text.to_owned()));
    if content.is_empty() {
        let reasoning = ["reasoning_content", "reasoning"].into_iter().find_map(|name| message.get(name)?.as_str());
        return begun(reasoning.unwrap_or_default(), Region::Reasoning);
    }
    let inner = reasoning.and_then(|markers| Some((content.trim_start().strip_prefix(&markers.open)?, &markers.close)));
    match inner.map(|(inner, close)| inner.split_once(close.as_str()).ok_or(inner)) {
        None => begun(&content, Region::Text),
        Some(Ok((_, text))) => begun(text, Region::Text),
        // After the opening marker alone, no region has begun: the parser still skips the layout after the marker.
        Some(Err(inner)) => begun(inner, Region::Reasoning),
    }
}
