//! A completion's way: encode, generate, read as text.

use std::sync::Arc;

use futures::StreamExt;
use rein_proto::v1::{self, chat_event, complete_event};

use crate::{
    error::Error,
    limits,
    request::{
        delivery::ChatEvents,
        generate::{self, Defaults, Grammar, Plan, Reading, RequestContext, Sequence},
        job::{CompletionJob, Prompt, out_of_vocabulary},
        model::ServedModel,
    },
};

const DEFAULTS: Defaults = Defaults { prompt: "prompt", max_tokens: Some(limits::COMPLETION_TOKENS) };

/// The events are a chat's without regions, reasoning and calls. With them, what of the schema is not enforced, in
/// words.
pub async fn generate(
    mut call: RequestContext,
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
                let most = generation.fits(bounds.context);
                let shown = job.echo.then(|| text.clone());
                let ids = model.encode(text, job.add_special_tokens, "prompt", call.deadline, most).await?;
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
    call.held = None;
    let grammar = Grammar::new(model.compile_text(job.response, &call).await?, &model);
    let relaxed = Grammar::relaxed(grammar.as_ref());
    let reading = Reading::Plain { skip_special_tokens: job.skip_special_tokens, grammar };
    Ok((generate::generate(call, model, reading, sequences).await?, relaxed))
}

/// The same event as gRPC's `Complete` tells it.
pub fn event(event: v1::ChatEvent) -> v1::CompleteEvent {
    use {chat_event::Event as From, complete_event::Event as To};
    let to = match event.event {
        Some(From::Start(start)) => To::Start(start),
        Some(From::Done(done)) => To::Done(done),
        Some(From::Usage(usage)) => To::Usage(usage),
        Some(From::TextDelta(delta)) => To::TextDelta(delta),
        // A plain reader has no other events.
        _ => To::TextDelta(v1::Delta::default()),
    };
    v1::CompleteEvent { choice: event.choice, token_ids: event.token_ids, logprobs: event.logprobs, event: Some(to) }
}

/// The events as gRPC's `Complete` tells them.
pub fn events(events: ChatEvents) -> impl futures::Stream<Item = Result<v1::CompleteEvent, Error>> {
    events.map(|item| item.map(event))
}
