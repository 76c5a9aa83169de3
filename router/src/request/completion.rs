//! Runs a completion request: tokenizes the prompts and generates plain text.

use std::sync::Arc;

use futures::StreamExt;
use rein_proto::v1::{self, chat_event, complete_event};

use crate::{
    error::Error,
    limits,
    request::{
        delivery::ChatEvents,
        generate::{self, Defaults, Grammar, OutputMode, Plan, RequestContext, Sequence},
        job::{CompletionJob, Prompt, out_of_vocabulary},
        model::ServedModel,
    },
};

const DEFAULTS: Defaults = Defaults { prompt: "prompt", max_tokens: Some(limits::COMPLETION_TOKENS) };

/// Returns a chat's events with text only, without reasoning and calls, and descriptions of the schema parts that the
/// grammar does not enforce.
pub async fn generate(
    mut context: RequestContext,
    model: Arc<ServedModel>,
    job: CompletionJob,
) -> Result<(ChatEvents, Vec<String>), Error> {
    job.check()?;
    let bounds = model.bounds().await?;
    job.generation.check_vocabulary(bounds.vocab)?;
    let mut generation = job.generation;
    if job.echo && generation.prompt_logprobs.is_none() {
        generation.prompt_logprobs = generation.logprobs;
    }
    let seed = generation.sampling.seed.unwrap_or_else(rand::random);
    let mut sequences = Vec::with_capacity(job.prompts.len());
    let several = job.prompts.len() > 1;
    for (i, prompt) in job.prompts.into_iter().enumerate() {
        let (mut ids, mut text) = match prompt {
            Prompt::Text(text) => {
                let most = generation.max_prompt_tokens(bounds.context);
                let shown = job.echo.then(|| text.clone());
                let ids = model.encode(text, job.add_special_tokens, "prompt", context.deadline, most).await?;
                (ids, shown)
            }
            Prompt::Ids(ids) => (ids, None),
        };
        if let Some((at, &id)) = ids.iter().enumerate().find(|&(_, &id)| id >= bounds.vocab) {
            let param = if several { format!("prompt[{i}][{at}]") } else { format!("prompt[{at}]") };
            return Err(out_of_vocabulary(param, id, bounds.vocab));
        }
        let whole = ids.len();
        generate::truncate(&mut ids, &generation, bounds);
        if ids.len() < whole {
            text = None;
        }
        let plan = Plan::new(&generation, &model, bounds, ids.len(), DEFAULTS, seed)?;
        let echo = job.echo.then(|| text.unwrap_or_else(|| model.decode(&ids)));
        sequences.push(Sequence { prompt: ids, echo, plan });
    }
    context.memory_charge = None;
    let grammar = Grammar::new(model.compile_text(job.response, &context).await?, &model);
    let relaxed = Grammar::relaxed(grammar.as_ref());
    let output_mode = OutputMode::Plain { skip_special_tokens: job.skip_special_tokens, grammar };
    Ok((generate::generate(context, model, output_mode, sequences).await?, relaxed))
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
