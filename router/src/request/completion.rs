//! Runs a completion request: tokenizes the prompts and generates plain text.

use std::sync::Arc;

use futures::StreamExt;
use rein_proto::v1::{self, chat_event, complete_event};
use tokio::time::Instant;

use crate::{
    error::Error,
    limits,
    request::{
        delivery::ChatEvents,
        generate::{self, Defaults, Grammar, OutputMode, Plan, PlannedPrompt, RequestContext},
        job::{CompletionJob, Prompt, out_of_vocabulary},
        model::{Bounds, ServedModel},
    },
};

const DEFAULTS: Defaults = Defaults { prompt: "prompt", max_tokens: Some(limits::COMPLETION_TOKENS) };

/// Tokenizes the prompts, and the bad words once for all of them.
fn planned_prompts(
    model: &ServedModel,
    job: CompletionJob,
    bounds: Bounds,
    deadline: Instant,
) -> Result<Vec<PlannedPrompt>, Error> {
    let CompletionJob { prompts, mut generation, echo, add_special_tokens, .. } = job;
    if echo && generation.prompt_logprobs.is_none() {
        generation.prompt_logprobs = generation.logprobs;
    }
    generation.sampling.seed.get_or_insert_with(rand::random);
    let restrictions = generate::restrictions(&generation.sampling, model, bounds, deadline)?;
    let several = prompts.len() > 1;
    let planned = |(i, prompt): (usize, Prompt)| {
        if Instant::now() >= deadline {
            return Err(Error::deadline());
        }
        let (mut prompt, mut text) = match prompt {
            Prompt::Text(text) => {
                let bound = model.bound(text.len(), deadline, generation.max_prompt_tokens(bounds.context));
                (model.encode_here(&text, add_special_tokens, "prompt", bound)?, Some(text))
            }
            Prompt::Ids(ids) => (ids, None),
        };
        if let Some((at, &id)) = prompt.iter().enumerate().find(|&(_, &id)| id >= bounds.vocab) {
            let param = if several { format!("prompt[{i}][{at}]") } else { format!("prompt[{at}]") };
            return Err(out_of_vocabulary(param, id, bounds.vocab));
        }
        let whole = prompt.len();
        generate::truncate(&mut prompt, &generation, bounds);
        if prompt.len() < whole {
            text = None;
        }
        let plan = Plan::new(&generation, model, bounds, prompt.len(), DEFAULTS, restrictions.clone())?;
        let echo = echo.then(|| text.unwrap_or_else(|| model.decode(&prompt)));
        Ok(PlannedPrompt { tokens: prompt, echo, plan })
    };
    prompts.into_iter().enumerate().map(planned).collect()
}

/// Returns a chat's events with text only, without reasoning and calls, and descriptions of the schema parts that the
/// grammar does not enforce.
pub async fn generate(
    mut context: RequestContext,
    model: Arc<ServedModel>,
    mut job: CompletionJob,
) -> Result<(ChatEvents, Vec<String>), Error> {
    job.check()?;
    job.generation.cache_salt = context.cache_salt(job.generation.cache_salt.take());
    let bounds = model.generation_bounds().await?;
    job.generation.check_vocabulary(bounds.vocab)?;
    let (bytes, deadline) = (job.text_bytes(), context.deadline);
    let (response, blanks) = (job.response.take(), job.blanks.take());
    let skip_special_tokens = job.skip_special_tokens;
    let prepare = move |model: &ServedModel| planned_prompts(model, job, bounds, deadline);
    let prompts = model.run_text_work(bytes, &context.requester(), prepare).await?;
    context.memory_charge = None;
    let compiled = model.compile_text(response, blanks, context.caller.as_ref(), context.deadline).await?;
    let grammar = Grammar::new(compiled, &model);
    let relaxed = Grammar::relaxed(grammar.as_ref());
    let output_mode = OutputMode::Plain { skip_special_tokens, grammar };
    Ok((generate::generate(context, model, output_mode, prompts).await?, relaxed))
}

/// Converts a chat event to an event of gRPC's `Complete`.
pub fn event(event: v1::ChatEvent) -> v1::CompleteEvent {
    use {chat_event::Event as From, complete_event::Event as To};
    let to = match event.event {
        Some(From::Start(start)) => To::Start(start),
        Some(From::Done(done)) => To::Done(done),
        Some(From::Usage(usage)) => To::Usage(usage),
        Some(From::TextDelta(delta)) => To::TextDelta(delta),
        // Plain output has no other events.
        _ => To::TextDelta(v1::Delta::default()),
    };
    v1::CompleteEvent { choice: event.choice, token_ids: event.token_ids, logprobs: event.logprobs, event: Some(to) }
}

/// Converts chat events to events of gRPC's `Complete`.
pub fn events(events: ChatEvents) -> impl futures::Stream<Item = Result<v1::CompleteEvent, Error>> {
    events.map(|item| item.map(event))
}
