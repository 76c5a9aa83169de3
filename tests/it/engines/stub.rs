//! A server with the HTTP interface of vLLM, llama-server or SGLang. Its greedy tokens are those of the simulator with
//! the same seed: a hash of all tokens before. It can break its answers as engines do, and as they should not.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::stream::{self, StreamExt};
use http::StatusCode;
use http_body_util::BodyExt;
use rein_adapter::EngineDialect;
use rein_proto::splitmix::mix_both;
use serde_json::{Value, json};
use tokio::sync::watch;

/// How an answer is broken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StubFault {
    /// The connection is cut after this many tokens.
    Cut(usize),
    /// An error event, and a clean end of the answer.
    ErrorInside(usize),
    /// A clean end without a finish reason.
    NoReason(usize),
    Status(u16),
    /// The head and nothing else.
    Silent,
    /// Not even the head.
    NoHead,
    /// A byte now and then.
    Drips,
    /// The mask is ignored.
    Ignores,
    /// This id in place of the first.
    Draws(u32),
    /// Frames without tokens, without an end.
    Endless,
    /// An event, or a document, without an end.
    Huge,
    /// More tokens than asked for.
    TooMany,
}

type Tokenize = dyn Fn(&str) -> Vec<u32> + Send + Sync;

/// Which fault the request with this number has, from 0.
pub type FaultPlan = Arc<dyn Fn(usize) -> Option<StubFault> + Send + Sync>;

pub struct StubEngine {
    pub url: String,
    pub dialect: EngineDialect,
    state: Arc<StubState>,
    server: tokio::task::JoinHandle<()>,
    restart: watch::Sender<bool>,
}

struct StubState {
    dialect: EngineDialect,
    vocab: u32,
    eog: Vec<u32>,
    tokenize: Box<Tokenize>,
    faults: FaultPlan,
    asked: AtomicUsize,
    healthy: AtomicBool,
    /// Another engine answers at this address.
    other: AtomicBool,
    requests: Mutex<Vec<Value>>,
}

/// What a request asks for, whatever its form.
struct Asked {
    prompt: Vec<u32>,
    most: usize,
    allow: HashSet<u32>,
    exclude: HashSet<u32>,
    stops: Vec<u32>,
    streams: bool,
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().map(Vec::as_slice).unwrap_or_default();
    ids.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

impl StubState {
    fn asked(&self, body: &Value) -> Asked {
        let mut exclude = HashSet::new();
        let mut raised = HashSet::new();
        let mut bias = |id: u32, bias: f64| {
            if bias <= -100.0 {
                exclude.insert(id);
            }
            if bias >= 100.0 {
                raised.insert(id);
            }
        };
        let by_name = |value: &Value, bias: &mut dyn FnMut(u32, f64)| {
            for (id, value) in value.as_object().into_iter().flatten() {
                bias(id.parse().expect("an id"), value.as_f64().expect("a bias"));
            }
        };
        let number = |value: &Value| value.as_u64().expect("a number") as usize;
        match self.dialect {
            EngineDialect::Vllm => {
                by_name(&body["logit_bias"], &mut bias);
                let allow = ids(&body["allowed_token_ids"]).into_iter().collect();
                let (prompt, stops) = (ids(&body["prompt"]), ids(&body["stop_token_ids"]));
                let streams = body["stream"].as_bool().expect("stream");
                Asked { prompt, most: number(&body["max_tokens"]), allow, exclude, stops, streams }
            }
            EngineDialect::LlamaServer => {
                for entry in body["logit_bias"].as_array().expect("biases") {
                    bias(entry[0].as_u64().expect("an id") as u32, entry[1].as_f64().unwrap_or(-100.0));
                }
                let prompt = ids(&body["prompt"]);
                let stops = self.eog.clone();
                Asked { prompt, most: number(&body["n_predict"]), allow: raised, exclude, stops, streams: false }
            }
            EngineDialect::Sglang => {
                let params = &body["sampling_params"];
                by_name(&params["logit_bias"], &mut bias);
                let (prompt, stops) = (ids(&body["input_ids"]), ids(&params["stop_token_ids"]));
                let streams = body["stream"].as_bool().expect("stream");
                Asked { prompt, most: number(&params["max_new_tokens"]), allow: raised, exclude, stops, streams }
            }
        }
    }

    /// The tokens, and whether the last one is a stop token.
    fn draw(&self, asked: &Asked, fault: Option<StubFault>) -> (Vec<u32>, bool) {
        let mut state = asked.prompt.iter().fold(mix_both(3, u64::MAX), |state, id| mix_both(state, u64::from(*id)));
        let mut drawn = Vec::new();
        let most = asked.most + if fault == Some(StubFault::TooMany) { 3 } else { 0 };
        while drawn.len() < most {
            let allowed = |id: &u32| {
                let listed = asked.allow.is_empty() || asked.allow.contains(id);
                fault == Some(StubFault::Ignores) || listed && !asked.exclude.contains(id)
            };
            let first = (state % u64::from(self.vocab)) as u32;
            let id = (first..self.vocab).chain(0..first).find(allowed).expect("an allowed token");
            let id = match fault {
                Some(StubFault::Draws(other)) if drawn.is_empty() => other,
                _ => id,
            };
            state = mix_both(state, u64::from(id));
            drawn.push(id);
            if asked.stops.contains(&id) {
                return (drawn, true);
            }
        }
        (drawn, false)
    }

    /// One event of a stream, or the whole answer. `all`: the tokens so far; `new`: how many of them are new.
    fn frame(&self, all: &[u32], new: usize, end: Option<(bool, u32)>) -> Value {
        let last = &all[all.len() - new..];
        let kind = end.map(|(stop, _)| if stop { "stop" } else { "length" });
        let matched = end.filter(|(stop, _)| *stop).map(|(_, id)| id);
        let model = if self.other.load(Ordering::SeqCst) { "other" } else { "demo" };
        match self.dialect {
            EngineDialect::Vllm => json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": model,
                "choices": [{"index": 0, "text": "", "logprobs": null, "finish_reason": kind, "stop_reason": matched,
                "token_ids": last, "prompt_token_ids": null}], "usage": null}),
            EngineDialect::LlamaServer => {
                json!({"index": 0, "content": "", "tokens": all, "stop": true, "model": model,
                "stop_type": end.map(|(stop, _)| if stop { "eos" } else { "limit" }), "timings": {"cache_n": 1}})
            }
            EngineDialect::Sglang => json!({"text": "", "output_ids": all, "meta_info": {"id": "1",
                "completion_tokens": all.len(), "prompt_tokens": 1, "cached_tokens": 1,
                "finish_reason": kind.map(|kind| json!({"type": kind, "matched": matched}))}}),
        }
    }

    fn answer(&self, body: Value) -> Response {
        let fault = (self.faults)(self.asked.fetch_add(1, Ordering::SeqCst));
        let asked = self.asked(&body);
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(body);
        if let Some(StubFault::Status(code)) = fault {
            let status = StatusCode::from_u16(code).expect("a status");
            return (status, json!({"error": {"message": "the stub refuses", "code": code}}).to_string())
                .into_response();
        }
        let (drawn, stop) = self.draw(&asked, fault);
        let end = Some((stop, drawn.last().copied().unwrap_or_default()));
        let event = |value: &Value| format!("data: {value}\n\n");
        let error = json!({"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}});
        let mut parts: Vec<Result<Bytes, std::io::Error>> = Vec::new();
        let cut = || Err(std::io::Error::other("cut"));
        match (asked.streams, fault) {
            (_, Some(StubFault::Silent)) => {
                return Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>()).into_response();
            }
            (_, Some(StubFault::Drips)) => {
                let text = self.frame(&drawn, drawn.len(), None).to_string();
                let bytes = ["data: ", &text].concat().into_bytes();
                let drip = stream::iter(bytes).then(async |byte| {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Ok::<_, std::io::Error>(Bytes::from(vec![byte]))
                });
                return Body::from_stream(drip).into_response();
            }
            (true, Some(StubFault::Endless)) => {
                let empty = self.frame(&[], 0, None);
                let line = Bytes::from(event(&empty));
                return Body::from_stream(stream::repeat_with(move || Ok::<_, std::io::Error>(line.clone())))
                    .into_response();
            }
            (_, Some(StubFault::Huge | StubFault::Endless)) => {
                let start = if asked.streams { "data: {\"x\":\"" } else { "{\"x\":\"" };
                let more = Bytes::from(vec![b'x'; 1 << 16]);
                let body = stream::once(async move { Ok(Bytes::from(start)) });
                let body = body.chain(stream::repeat_with(move || Ok::<_, std::io::Error>(more.clone())));
                return Body::from_stream(body).into_response();
            }
            (false, Some(StubFault::Cut(_))) => {
                let text = self.frame(&drawn, drawn.len(), end).to_string();
                parts.extend([Ok(Bytes::from(text[..text.len() / 2].to_owned())), cut()]);
            }
            (false, Some(StubFault::ErrorInside(_))) => parts.push(Ok(error.to_string().into())),
            (false, Some(StubFault::NoReason(_))) => parts.push(Ok("{}".into())),
            (false, _) => parts.push(Ok(self.frame(&drawn, drawn.len(), end).to_string().into())),
            (true, _) => {
                // Two tokens an event, in pieces that end anywhere.
                let stops_after = match fault {
                    Some(StubFault::Cut(n) | StubFault::ErrorInside(n) | StubFault::NoReason(n)) => n,
                    _ => usize::MAX,
                };
                let mut sent = 0;
                while sent < drawn.len() && sent < stops_after {
                    let new = 2.min(drawn.len() - sent).min(stops_after - sent);
                    sent += new;
                    let end = end.filter(|_| sent == drawn.len());
                    let text = event(&self.frame(&drawn[..sent], new, end));
                    parts.extend(text.as_bytes().chunks(37).map(|piece| Ok(Bytes::copy_from_slice(piece))));
                }
                let broken = sent < drawn.len() || stops_after <= sent;
                match fault {
                    Some(StubFault::Cut(_)) if broken => parts.extend([Ok(Bytes::from("data: {\"cho")), cut()]),
                    Some(StubFault::ErrorInside(_)) if broken => parts.push(Ok(event(&error).into())),
                    _ => {}
                }
                if !matches!(fault, Some(StubFault::Cut(_))) {
                    parts.push(Ok("data: [DONE]\n\n".into()));
                }
            }
        }
        Body::from_stream(stream::iter(parts)).into_response()
    }
}

impl StubEngine {
    pub async fn start(
        dialect: EngineDialect,
        vocab: usize,
        eog: &[u32],
        tokenize: impl Fn(&str) -> Vec<u32> + Send + Sync + 'static,
        faults: FaultPlan,
    ) -> Self {
        let state = Arc::new(StubState {
            dialect,
            vocab: vocab as u32,
            eog: eog.to_vec(),
            tokenize: Box::new(tokenize),
            faults,
            asked: AtomicUsize::new(0),
            healthy: AtomicBool::new(true),
            other: AtomicBool::new(false),
            requests: Mutex::default(),
        });
        async fn draw(State(state): State<Arc<StubState>>, body: Bytes) -> Response {
            if (state.faults)(state.asked.load(Ordering::SeqCst)) == Some(StubFault::NoHead) {
                state.asked.fetch_add(1, Ordering::SeqCst);
                return std::future::pending().await;
            }
            state.answer(serde_json::from_slice(&body).expect("JSON"))
        }
        async fn ids_of(State(state): State<Arc<StubState>>, body: Bytes) -> Response {
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            let text = body["prompt"].as_str().or(body["content"].as_str()).expect("a text");
            let mut tokens = (state.tokenize)(text);
            if state.other.load(Ordering::SeqCst) {
                tokens.reverse();
            }
            json!({"tokens": tokens}).to_string().into_response()
        }
        async fn health(State(state): State<Arc<StubState>>) -> StatusCode {
            match state.healthy.load(Ordering::SeqCst) {
                true => StatusCode::OK,
                false => StatusCode::SERVICE_UNAVAILABLE,
            }
        }
        let page = |value: Value| get(move || async move { value.to_string() });
        let metrics =
            "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",num_gpu_blocks=\"4096\"} 1\n";
        let app = axum::Router::new()
            .route(dialect.path(), post(draw))
            .route("/tokenize", post(ids_of))
            .route("/health", get(health))
            .route("/v1/models", page(json!({"data": [{"id": "demo", "max_model_len": 8192}]})))
            .route("/version", page(json!({"version": "0.11.0"})))
            .route("/props", page(json!({"default_generation_settings": {"n_ctx": 8192}, "total_slots": 8})))
            .route("/get_server_info", page(json!({"version": "0.5.3", "page_size": 16})))
            .route("/metrics", get(move || async move { metrics }))
            .with_state(state.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let restart = watch::Sender::new(false);
        let server = {
            let restart = restart.clone();
            tokio::spawn(async move {
                let mut listener = listener;
                loop {
                    let mut asked = restart.subscribe();
                    let ended = async move { drop(asked.wait_for(|asked| *asked).await) };
                    let served = axum::serve(listener, app.clone()).with_graceful_shutdown(ended).await;
                    served.expect("the server runs");
                    listener = tokio::net::TcpListener::bind(address).await.expect("the same port");
                    restart.send_replace(false);
                }
            })
        };
        StubEngine { url: format!("http://{address}"), dialect, state, server, restart }
    }

    /// Another engine, with another tokenizer, answers from now on, or the same one again. `restarts`: it closes the
    /// connections.
    pub async fn replace(&self, other: bool, restarts: bool) {
        if restarts {
            self.restart.send_replace(true);
            self.restart.subscribe().wait_for(|asked| !asked).await.expect("the sender is here");
        }
        self.state.other.store(other, Ordering::SeqCst);
    }

    /// The text of the answer to a request for tokens.
    pub async fn text_of_answer(&self, request: Value) -> String {
        let body = self.state.answer(request).into_body().collect().await.expect("no fault").to_bytes();
        String::from_utf8(body.to_vec()).expect("text")
    }

    /// Requests for tokens so far.
    pub fn requests(&self) -> Vec<Value> {
        self.state.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its health is 503 from now on.
    pub fn fail_health(&self) {
        self.state.healthy.store(false, Ordering::SeqCst);
    }
}

impl Drop for StubEngine {
    fn drop(&mut self) {
        self.server.abort();
    }
}
