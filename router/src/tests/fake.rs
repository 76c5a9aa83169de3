//! A scripted engine: it sends the tokens of each request's `script`, and records what it receives.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{Stream, StreamExt, stream};
use rein_proto::{internal::*, packed_ids};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use super::{CONTEXT, VOCAB};

/// What the engine does after the script.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Ending {
    #[default]
    Finish,
    /// Sends nothing more.
    Hang,
    /// Accepts the sequence and sends nothing, as if it computed the prompt.
    Prefill,
    Error,
    /// Closes the stream without Finish.
    Silence,
    /// Finishes with the reason Lost.
    Lost,
    /// Closes the stream with UNAVAILABLE, as a process that stops.
    Stopped,
}

#[derive(Default)]
pub(crate) struct State {
    starts: Mutex<Vec<Start>>,
    steers: watch::Sender<Vec<Steer>>,
    holds: watch::Sender<Vec<HoldRequest>>,
    open: watch::Sender<usize>,
    lost: AtomicBool,
    /// From now on, in place of the engine's own.
    batches: Mutex<Option<Vec<usize>>>,
}

#[derive(Clone, Default)]
pub struct Fake {
    pub ending: Ending,
    /// Tokens per message, in turn. Empty: 1.
    pub batches: Vec<usize>,
    pub refuse: Option<tonic::Code>,
    /// Above 0: it computes embeddings. Their first number is the number of tokens, the others count from 1.
    pub embedding_size: u32,
    /// It is of a release that takes no packed prompts.
    pub older: bool,
    pub(crate) state: Arc<State>,
}

impl Fake {
    pub fn ending(ending: Ending) -> Self {
        Fake { ending, ..Fake::default() }
    }

    pub fn starts(&self) -> Vec<Start> {
        self.state.starts.lock().unwrap().clone()
    }

    /// Waits until it was asked to hold blocks so often.
    pub async fn holds(&self, count: usize) -> Vec<HoldRequest> {
        self.state.holds.subscribe().wait_for(|holds| holds.len() >= count).await.unwrap().clone()
    }

    /// From now on, Stats fails.
    pub fn lose(&self) {
        self.state.lost.store(true, Ordering::Release);
    }

    /// From now on, sends this many tokens per message, in turn.
    pub fn set_batches(&self, batches: Vec<usize>) {
        *self.state.batches.lock().unwrap() = Some(batches);
    }

    /// Waits for this many steers and returns them.
    pub async fn steers(&self, count: usize) -> Vec<Steer> {
        self.state.steers.subscribe().wait_for(|steers| steers.len() >= count).await.unwrap().clone()
    }

    /// Waits until this many sequences are open.
    pub async fn open(&self, count: usize) {
        self.state.open.subscribe().wait_for(|open| *open == count).await.unwrap();
    }

    fn messages(&self, start: &Start) -> Vec<FromEngine> {
        let limits = start.limits.as_ref().unwrap();
        let wanted = |width: i32| width >= 0;
        let score = |position: usize, id: u32| {
            let top = (0..start.logprobs.max(start.prompt_logprobs).max(0) as u32)
                .map(|i| TopLogprob { id: (id + i) % 256, logprob: -0.5 - i as f32 });
            let logprob = (position > 0).then_some(-0.5);
            TokenLogprob { id, logprob, rank: 1, top: if position > 0 { top.collect() } else { Vec::new() } }
        };
        let prompt_logprobs = match wanted(start.prompt_logprobs) {
            true => start.prompt.iter().enumerate().map(|(i, &id)| score(i, id)).collect(),
            false => Vec::new(),
        };
        let numbers = if start.embed { self.embedding_size } else { 0 };
        let embedding = (0..numbers).map(|i| if i == 0 { start.prompt.len() as f32 } else { i as f32 }).collect();
        let prompt_tokens = start.prompt.len() as u32;
        let admitted = Admitted { prompt_tokens, cached_tokens: 3, prompt_logprobs, embedding };
        let mut messages = vec![from_engine::Kind::Admitted(admitted)];
        if start.hold {
            return messages.into_iter().map(|kind| FromEngine { kind: Some(kind) }).collect();
        }
        let stop = limits.stop_token_ids.first().copied();
        let full: Vec<u32> = start.script.iter().copied().chain(stop).collect();
        let end = full.iter().position(|id| limits.stop_token_ids.contains(id)).map_or(full.len(), |at| at + 1);
        let cut = end.min(limits.max_tokens as usize);
        let by_stop = cut == end && cut > 0 && limits.stop_token_ids.contains(&full[cut - 1]);
        let ids = if self.ending == Ending::Finish { &full[..cut] } else { &start.script[..] };
        let batches = self.state.batches.lock().unwrap().clone().unwrap_or_else(|| self.batches.clone());
        let mut sizes = batches.into_iter().chain([1]).cycle();
        let mut position = 0;
        while position < ids.len() {
            let next = ids.len().min(position + sizes.next().unwrap());
            let batch = ids[position..next].to_vec();
            let logprobs = match wanted(start.logprobs) {
                true => batch.iter().map(|&id| score(1, id)).collect(),
                false => Vec::new(),
            };
            messages.push(from_engine::Kind::Tokens(Tokens {
                epoch: 0,
                position: position as u32,
                ids: batch,
                logprobs,
            }));
            position = next;
        }
        let finish = |reason: FinishReason, error: &str| {
            let generated = ids.len() as u32;
            from_engine::Kind::Finish(Finish { epoch: 0, reason: reason.into(), generated, error: error.into() })
        };
        match self.ending {
            Ending::Finish if by_stop => messages.push(finish(FinishReason::Stop, "")),
            Ending::Finish => messages.push(finish(FinishReason::Length, "")),
            Ending::Error => messages.push(finish(FinishReason::Error, "secret cause")),
            Ending::Lost => messages.push(finish(FinishReason::Lost, "secret cause")),
            Ending::Hang | Ending::Prefill | Ending::Silence | Ending::Stopped => {}
        }
        messages.into_iter().map(|kind| FromEngine { kind: Some(kind) }).collect()
    }
}

/// Counts one open sequence until dropped.
struct Open(Arc<State>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

#[tonic::async_trait]
impl engine_server::Engine for Fake {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<FromEngine, Status>> + Send>>;
    type EventsStream = stream::Empty<Result<EngineEvents, Status>>;

    async fn generate(&self, request: Request<Streaming<ToEngine>>) -> Result<Response<Self::GenerateStream>, Status> {
        if let Some(code) = self.refuse {
            return Err(Status::new(code, "refused by the engine"));
        }
        let mut requests = request.into_inner();
        let Some(ToEngine { kind: Some(to_engine::Kind::Start(mut start)) }) = requests.message().await? else {
            return Err(Status::invalid_argument("the first message must be Start"));
        };
        if !start.packed_prompt.is_empty() {
            assert!(start.prompt.is_empty() && !self.older);
            start.prompt = packed_ids::unpack(&start.packed_prompt).unwrap();
        }
        self.state.open.send_modify(|open| *open += 1);
        let open = Open(self.state.clone());
        self.state.starts.lock().unwrap().push(start.clone());
        let hangs = matches!(self.ending, Ending::Hang | Ending::Prefill) || start.hold;
        let state = self.state.clone();
        let listen = async move {
            while let Ok(Some(message)) = requests.message().await {
                if let Some(to_engine::Kind::Steer(steer)) = message.kind {
                    state.steers.send_modify(|steers| steers.push(steer));
                }
            }
        };
        tokio::spawn(listen);
        let messages = if self.ending == Ending::Prefill { Vec::new() } else { self.messages(&start) };
        let messages = stream::iter(messages.into_iter().map(Ok));
        let end = (self.ending == Ending::Stopped).then(|| Err(Status::unavailable("secret cause")));
        let tail = if hangs { stream::pending().left_stream() } else { stream::iter(end).right_stream() };
        Ok(Response::new(messages.chain(tail).map(move |item| (item, &open).0).boxed()))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<EngineInfo>, Status> {
        if self.refuse == Some(tonic::Code::Unavailable) {
            return Err(Status::unavailable("not there"));
        }
        Ok(Response::new(EngineInfo {
            model: "bytes".into(),
            vocab_size: VOCAB,
            max_context: CONTEXT,
            block_size: 16,
            total_blocks: 128,
            max_sequences: 8,
            kind: "sim".into(),
            tensor_parallel: 1,
            max_queue: 8,
            embedding_size: self.embedding_size,
            takes_packed_prompt: !self.older,
            ..EngineInfo::default()
        }))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<EngineStats>, Status> {
        if self.state.lost.load(Ordering::Acquire) {
            return Err(Status::unavailable("the executor is lost"));
        }
        Ok(Response::new(EngineStats { running: 2, ..EngineStats::default() }))
    }
    async fn hold(&self, request: Request<HoldRequest>) -> Result<Response<HoldResponse>, Status> {
        self.state.holds.send_modify(|holds| holds.push(request.into_inner()));
        Ok(Response::new(HoldResponse {}))
    }

    async fn events(&self, _: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        Err(Status::unimplemented("this engine has no events"))
    }
}
