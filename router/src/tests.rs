//! The router as its clients see it, with a scripted engine.

mod bad_input;
mod calls;
mod chat;
mod completions;
mod compressed;
mod control_tokens;
mod conversations;
mod cuts;
mod description;
mod embeddings;
mod endpoints;
pub(crate) mod fake;
mod fields;
mod grpc;
mod grpc_fields;
mod held_values;
mod history;
mod hostile;
mod ignored_inputs;
mod keys_and_queue;
mod lifecycle;
mod messages;
#[path = "../../tests/metrics_reference.rs"]
mod metrics_reference;
#[path = "../text/src/tests/model_dir.rs"]
mod model_dir;
mod odd_schemas;
mod pool;
mod prefill;
mod random;
mod responses;
mod sealed;

use std::{collections::HashMap, path::PathBuf, sync::atomic::AtomicU32};

use axum::{body::Body, response::Response};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use rein_grammar::Enforcement;
use rein_text::model_text::{ModelOverrides, ModelText};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{ModelEntry, ModelPolicy, Router, RouterConfig, transport};
use fake::Fake;
use model_dir::{CONTEXT, model_dir};
use rein_proto::internal::engine_server::EngineServer;

/// Ids below 256 are bytes.
const END: u32 = 256;
const THINK: u32 = 257;
const END_THINK: u32 = 258;
const SECTION: u32 = 259;
const END_SECTION: u32 = 260;
const CALL: u32 = 261;
const ARGUMENTS: u32 = 262;
const END_CALL: u32 = 263;
const CONTROL: u32 = 264;
const EXTRA: u32 = 265;
const VOCAB: u32 = 266;

const TEMPLATE: &str = "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
    {% if add_generation_prompt %}assistant: {% if thinking %}<think>{% endif %}{% endif %}";

fn entry(template: &str, fake: &Fake) -> ModelEntry {
    let dir = model_dir(template);
    let text =
        ModelText::load(&dir, &ModelOverrides { name: Some("bytes".into()), ..ModelOverrides::default() }).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    ModelEntry {
        text,
        engine: transport(EngineServer::new(fake.clone())),
        kind: String::new(),
        loras: Vec::new(),
        policy: ModelPolicy { enforcement: Enforcement::Off, ..ModelPolicy::default() },
    }
}

/// A router over one scripted engine, serving the model "bytes".
struct TestRouter {
    router: Router,
    fake: Fake,
}

impl TestRouter {
    fn new() -> Self {
        TestRouter::with(RouterConfig::default(), Fake::default())
    }

    fn with(config: RouterConfig, fake: Fake) -> Self {
        TestRouter::of(TEMPLATE, config, fake)
    }

    fn of(template: &str, config: RouterConfig, fake: Fake) -> Self {
        let entry = entry(template, &fake);
        TestRouter { router: Router::new(config, vec![entry]).unwrap(), fake }
    }

    /// With the server's default enforcement. The engine must write what the grammar accepts.
    fn enforcing() -> Self {
        let fake = Fake::default();
        let entry = ModelEntry { policy: ModelPolicy::default(), ..entry(TEMPLATE, &fake) };
        TestRouter { router: Router::new(RouterConfig::default(), vec![entry]).unwrap(), fake }
    }

    /// With this policy, but enforcement off.
    fn with_policy(template: &str, policy: ModelPolicy) -> Self {
        let fake = Fake::default();
        let policy = ModelPolicy { enforcement: Enforcement::Off, ..policy };
        let entry = ModelEntry { policy, ..entry(template, &fake) };
        TestRouter { router: Router::new(RouterConfig::default(), vec![entry]).unwrap(), fake }
    }

    async fn send(&self, request: Request<Body>) -> Response {
        self.router.http().oneshot(request).await.unwrap()
    }

    async fn post_bytes(&self, path: &str, body: impl Into<Body>) -> Answer {
        let request = Request::post(path).header("content-type", "application/json").body(body.into()).unwrap();
        Answer::of(self.send(request).await).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_bytes(path, body.to_string()).await
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::of(self.send(Request::get(path).body(Body::empty()).unwrap()).await).await
    }

    /// A chat with one user message; `more` adds to the request.
    async fn chat(&self, script: &[u32], more: Value) -> Answer {
        self.post("/v1/chat/completions", chat_request(script, more)).await
    }

    async fn stream(&self, script: &[u32], more: Value) -> Vec<Value> {
        let mut request = chat_request(script, more);
        request["stream"] = true.into();
        let answer = self.post("/v1/chat/completions", request).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        answer.payloads()
    }
}

fn chat_request(script: &[u32], more: Value) -> Value {
    let mut request = json!({"model": "bytes", "messages": [{"role": "user", "content": "hi"}], "script": script});
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    async fn of(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    /// The JSON of an answer with status 200.
    fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        self.json()
    }

    /// The payloads of an event stream that ends with `[DONE]`.
    fn payloads(&self) -> Vec<Value> {
        let body = self.text.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("no [DONE]: {}", self.text));
        let body = body.strip_prefix(": admitted\n\n").unwrap_or_else(|| panic!("no beginning: {}", self.text));
        let payload = |block: &str| serde_json::from_str(block.strip_prefix("data: ").unwrap()).unwrap();
        body.split_terminator("\n\n").map(payload).collect()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }
}

/// The bytes of a text as token ids.
fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// A tool call as the model writes it.
fn call(header: &str, arguments: &str) -> Vec<u32> {
    [&[CALL], bytes(header).as_slice(), &[ARGUMENTS], bytes(arguments).as_slice(), &[END_CALL]].concat()
}

fn tools(names: &[&str]) -> Value {
    let tool = |name: &&str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    names.iter().map(tool).collect()
}

/// Joins the chunks of a stream to one message per choice, in the same form as [`unfold`].
fn join(chunks: &[Value]) -> Vec<Value> {
    let mut choices: HashMap<u64, Value> = HashMap::new();
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let joined = choices.entry(choice["index"].as_u64().unwrap()).or_insert_with(|| {
            json!({"content": "", "reasoning": "", "calls": [], "logprobs": [], "token_ids": [], "finish": null,
                   "stop": null})
        });
        let append = |to: &mut Value, text: &Value| {
            *to = format!("{}{}", to.as_str().unwrap(), text.as_str().unwrap_or_default()).into();
        };
        let delta = &choice["delta"];
        assert_eq!(delta["reasoning"], delta["reasoning_content"]);
        append(&mut joined["content"], &delta["content"]);
        append(&mut joined["reasoning"], &delta["reasoning_content"]);
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let calls = joined["calls"].as_array_mut().unwrap();
            let index = part["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert_eq!(part["type"], "function");
                calls.push(json!({"id": part["id"], "name": part["function"]["name"], "arguments": ""}));
            } else {
                assert!(part.get("id").is_none(), "{part}");
            }
            append(&mut calls[index]["arguments"], &part["function"]["arguments"]);
        }
        for (from, to) in [(&choice["logprobs"]["content"], "logprobs"), (&choice["token_ids"], "token_ids")] {
            let items = from.as_array().cloned().unwrap_or_default();
            joined[to].as_array_mut().unwrap().extend(items);
        }
        if !choice["finish_reason"].is_null() {
            assert!(joined["finish"].is_null(), "a choice finishes once");
            joined["finish"] = choice["finish_reason"].clone();
            joined["malformed"] = delta["malformed"].clone();
            joined["incomplete"] = delta["incomplete_tool_calls"].clone();
            joined["stop"] = choice["stop_reason"].clone();
        }
    }
    (0..choices.len() as u64).map(|index| choices.remove(&index).unwrap()).collect()
}

/// The messages of an answer that is not streamed, in the same form as [`join`].
fn unfold(body: &Value) -> Vec<Value> {
    let choice = |choice: &Value| {
        let message = &choice["message"];
        assert_eq!(message["reasoning"], message["reasoning_content"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let call = |call: &Value| {
            assert_eq!(call["type"], "function");
            json!({"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]})
        };
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let calls: Vec<Value> = list(&message["tool_calls"]).iter().map(call).collect();
        json!({
            "content": text(&message["content"]), "reasoning": text(&message["reasoning"]), "calls": calls,
            "logprobs": list(&choice["logprobs"]["content"]), "token_ids": list(&choice["token_ids"]),
            "finish": choice["finish_reason"], "stop": choice["stop_reason"],
            "malformed": message["malformed"], "incomplete": message["incomplete_tool_calls"],
        })
    };
    body["choices"].as_array().unwrap().iter().map(choice).collect()
}
