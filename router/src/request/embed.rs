//! Runs an embedding request: tokenizes the inputs, and asks engines for the hidden state of each one's last token. It
//! must not know HTTP, gRPC or status codes.

use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use rein_proto::{
    internal::{self, Start},
    protocol, v1,
};
use tokio::{sync::watch, time::Instant};
use tracing::Instrument;

use crate::{
    admission::keys::{self, ApiCaller},
    client_state::ClientState,
    error::Error,
    fleet::{
        engine_stream::{EngineOutput, EngineStream, SequenceContext, Spans},
        pool::EngineRequest,
        route,
    },
    limits,
    memory::MemoryCharge,
    request::{
        generate::{RequestContext, UnfinishedChoices},
        job::{EmbedJob, Prompt, out_of_vocabulary},
        model::{Bounds, ServedModel},
    },
};

/// Bytes that a number of an embedding takes while the answer is written: the number and its text.
const NUMBER_BYTES: usize = 16;
/// The least length of a vector, so that none is divided by zero; as in torch.
const LEAST_LENGTH: f64 = 1e-12;

/// The vectors of an answer, in the order of the inputs.
pub struct Embeddings {
    pub vectors: Vec<Vec<f32>>,
    pub usage: v1::Usage,
    /// The memory that is charged for the vectors.
    pub charge: MemoryCharge,
}

impl Embeddings {
    /// Bytes of the vectors.
    pub fn bytes(&self) -> usize {
        self.vectors.iter().map(|vector| size_of_val(vector.as_slice())).sum()
    }
}

/// An embedding request from its tokenized inputs to its end. Its drop records metrics, trace and log.
struct Running<'a> {
    context: &'a RequestContext,
    unfinished: UnfinishedChoices,
    usage: v1::Usage,
    ended: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let RequestContext { metrics, trace, began, caller, .. } = self.context;
        metrics.open_streams.dec();
        metrics.duration.observe(began.elapsed());
        if !self.ended {
            metrics.abandoned.inc();
        }
        trace.record_end(&self.usage, None);
        let (seconds, key) = (began.elapsed().as_secs_f64(), caller.as_ref().map(ApiCaller::name));
        tracing::info!(parent: &trace.span, seconds, key, abandoned = !self.ended, "the request ended");
    }
}

/// The in-flight slots of a request: the inputs that are computed at once. A key with a small `max_in_flight` computes
/// fewer at once.
pub fn slots(job: &EmbedJob, caller: Option<&ApiCaller>) -> usize {
    let most = caller.map_or(limits::EMBEDDINGS_AT_ONCE, |caller| caller.max_in_flight() as usize);
    job.inputs.len().min(limits::EMBEDDINGS_AT_ONCE).min(most)
}

/// `charge`: for the vectors.
pub async fn run(
    context: &mut RequestContext,
    model: Arc<ServedModel>,
    job: EmbedJob,
    mut charge: MemoryCharge,
) -> Result<Embeddings, Error> {
    job.check()?;
    let (bounds, size) = model.embedding_bounds().await?;
    let dimensions = dimensions(job.dimensions, size)?;
    let numbers = job.inputs.len() * dimensions;
    if numbers > limits::EMBEDDING_NUMBERS {
        let message = format!(
            "'input' may ask for at most {} numbers in one answer, got {} embeddings of {dimensions} numbers",
            limits::EMBEDDING_NUMBERS,
            job.inputs.len(),
        );
        return Err(Error::invalid("input", message));
    }
    let at_once = slots(&job, context.caller.as_ref());
    charge.resize(numbers * NUMBER_BYTES, context.deadline).await?;
    let (bytes, deadline, salt) =
        (job.text_bytes(), context.deadline, context.cache_salt(job.cache_salt.clone()).unwrap_or_default());
    let tokenize = move |model: &ServedModel| tokenized(model, job, bounds, deadline);
    let prompts = model.run_text_work(bytes, &context.requester(), tokenize).await?;
    context.memory_charge = None;

    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u32).sum();
    if let Some(caller) = &context.caller {
        caller.charge(u64::from(prompt_tokens), Instant::now());
    }
    context.metrics.open_streams.inc();
    let context = &*context;
    let mut running = Running {
        unfinished: UnfinishedChoices::new(context.metrics.clone(), model.name(), prompts.len() as u32),
        context,
        usage: v1::Usage { prompt_tokens, total_tokens: prompt_tokens, ..v1::Usage::default() },
        ended: false,
    };
    // The client gets one answer, so it has nothing to read before.
    let (_client, reading) = watch::channel(ClientState::Reading);
    let sequence = |(index, prompt)| {
        let start = model.named_start(start(context, index, prompt, &salt));
        Sequence { context, model: &model, client: reading.clone(), start }.embed()
    };
    let sequences: Vec<BoxFuture<'_, _>> = prompts.into_iter().enumerate().map(sequence).collect();
    let embedded = stream::iter(sequences).buffered(at_once);
    let admitted: Result<Vec<internal::Admitted>, Error> = embedded.try_collect().await;
    running.ended = true;
    let admitted = admitted.inspect_err(|error| {
        context.trace.record_failure();
        running.unfinished.failed(error);
    });
    let admitted = admitted.map_err(|error| context.permit.with_retry_after(error))?;
    let mut vectors = Vec::with_capacity(admitted.len());
    for admitted in admitted {
        running.unfinished.finished(v1::FinishReason::Stop);
        running.usage.cached_tokens += admitted.cached_tokens;
        let mut vector = admitted.embedding;
        vector.truncate(dimensions);
        normalize(&mut vector);
        if !vector.iter().all(|number| number.is_finite()) {
            return Err(Error::internal("the engine returned an embedding that is not finite", "NaN or infinity"));
        }
        vectors.push(vector);
    }
    Ok(Embeddings { vectors, usage: running.usage, charge })
}

/// The number of numbers that each embedding of the answer has; `size` is the model's.
fn dimensions(wanted: Option<u32>, size: usize) -> Result<usize, Error> {
    match wanted.map(|wanted| wanted as usize) {
        None => Ok(size),
        Some(wanted) if (1..=size).contains(&wanted) => Ok(wanted),
        Some(wanted) => {
            let message =
                format!("'dimensions' must be between 1 and {size}, the size of this model's embeddings, got {wanted}");
            Err(Error::invalid("dimensions", message))
        }
    }
}

fn tokenized(model: &ServedModel, job: EmbedJob, bounds: Bounds, deadline: Instant) -> Result<Vec<Vec<u32>>, Error> {
    let several = job.inputs.len() > 1;
    let context = bounds.context as usize;
    let tokens = |(i, input): (usize, Prompt)| {
        if Instant::now() >= deadline {
            return Err(Error::deadline());
        }
        let at = if several { format!("input[{i}]") } else { "input".to_owned() };
        let tokens = match input {
            Prompt::Text(text) => {
                let bound = model.bound(text.len(), deadline, Some(context));
                model.encode_here(&text, job.add_special_tokens, &at, bound)?
            }
            Prompt::Ids(ids) => ids,
        };
        if let Some((place, &id)) = tokens.iter().enumerate().find(|&(_, &id)| id >= bounds.vocab) {
            return Err(out_of_vocabulary(format!("{at}[{place}]"), id, bounds.vocab));
        }
        if tokens.is_empty() {
            return Err(Error::invalid(&*at, format!("'{at}' must have at least one token")));
        }
        if tokens.len() > context {
            let message = format!("'{at}' has {} tokens, but this model's context is {context} tokens", tokens.len());
            return Err(Error { code: Some("context_length_exceeded"), ..Error::invalid(&*at, message) });
        }
        Ok(tokens)
    };
    job.inputs.into_iter().enumerate().map(tokens).collect()
}

fn start(context: &RequestContext, index: usize, prompt: Vec<u32>, salt: &str) -> Start {
    Start {
        request_id: format!("{}-{index}", context.trace.id),
        prompt,
        sampling: Some(internal::Sampling { top_p: 1.0, repetition_penalty: 1.0, ..internal::Sampling::default() }),
        limits: Some(internal::Limits { max_tokens: 1, ..internal::Limits::default() }),
        cache_salt: salt.to_owned(),
        logprobs: -1,
        prompt_logprobs: -1,
        protocol: protocol::NUMBER,
        version: protocol::VERSION.into(),
        caller: keys::caller_name(context.caller.as_ref()).map_or(0, |name| route::key(&name)),
        embed: true,
        ..Start::default()
    }
}

/// One input on an engine.
struct Sequence<'a> {
    context: &'a RequestContext,
    model: &'a ServedModel,
    client: watch::Receiver<ClientState>,
    start: Start,
}

impl<'a> Sequence<'a> {
    /// Returns when an engine has computed the prompt. When the engine is lost, another one computes it. (Boxed because
    /// the compiler cannot infer that the stream of these futures is `Send`.)
    fn embed(self) -> BoxFuture<'a, Result<internal::Admitted, Error>> {
        self.embedded().boxed()
    }

    async fn embedded(self) -> Result<internal::Admitted, Error> {
        let Sequence { context, model, client, start } = self;
        let wanted = EngineRequest {
            salt: &start.cache_salt,
            lora: start.lora_digest,
            tokens: &start.prompt,
            session: context.session,
            kind: None,
            refused: &[],
        };
        let (until, queue) = (Instant::now() + limits::ENGINE_WAIT, context.trace.queue_span());
        let lease = model.pool.lease(&wanted, until, context.deadline).instrument(queue.clone()).await?;
        let common = SequenceContext {
            pool: model.pool.clone(),
            session: context.session,
            deadline: context.deadline,
            metrics: context.fleet_metrics.clone(),
            retry_budget: context.retry_budget.clone(),
            client,
        };
        let spans = Spans { span: context.trace.span.clone(), queue };
        let mut engine = EngineStream::open(common, lease, start, spans).await?;
        let missing = |cause: &str| Error::internal("the engine did not return an embedding", cause);
        match engine.next_output().await? {
            EngineOutput::Admitted(admitted) if !admitted.embedding.is_empty() => {
                context.metrics.prompt_tokens.inc_by(admitted.prompt_tokens.into());
                context.metrics.cached_tokens.inc_by(admitted.cached_tokens.into());
                Ok(admitted)
            }
            EngineOutput::Finish(finish) => Err(missing(&finish.error)),
            EngineOutput::Admitted(_) | EngineOutput::Tokens(_) => Err(missing("it generates")),
        }
    }
}

/// Divides by the length, so that it becomes 1.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt().max(LEAST_LENGTH);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}
