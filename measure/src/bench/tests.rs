//! Benchmarks of a small endpoint in the test, whose answers are known.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use clap::Parser;
use futures::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::prompt::BenchRequests;
use super::report::BenchReport;
use super::{BenchError, BenchOptions, measure};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: BenchOptions,
}

fn options(args: &[&str]) -> BenchOptions {
    Cli::try_parse_from([&["bench"], args].concat()).map(|c| c.options).unwrap_or_else(|e| panic!("{e}"))
}

/// What the endpoint does with request number `n`.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Usage,
    NoUsage,
    /// Every second request fails with status 429.
    Busy,
    /// The stream ends without a finish reason.
    Breaks,
    /// An error event inside the stream.
    ErrorEvent,
    Tools,
    /// One call in each answer, whose result must come back; half of each prompt is cached.
    Agents,
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// The answer, with each byte in its own frame.
fn frames(parts: Vec<Bytes>) -> Body {
    StreamBody::new(stream::iter(parts.into_iter().map(|p| Ok(Frame::data(p))))).boxed_unsync()
}

async fn answer(mode: Mode, n: usize, request: Request<Incoming>) -> Response<Body> {
    let status = |code: u16, text: String| {
        let mut response = Response::new(frames(vec![Bytes::from(text)]));
        *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
        response
    };
    if request.uri().path() == "/v1/models" {
        return status(200, json!({ "data": [{ "id": "tiny" }] }).to_string());
    }
    let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let text = body["messages"][0]["content"].as_str().or(body["prompt"].as_str()).unwrap_or_default();
    let words = text.split(' ').count() as u64 + 10;
    let tokens = body["max_tokens"].as_u64().unwrap_or(0);
    let usage = json!({ "prompt_tokens": words, "completion_tokens": tokens });
    if let Mode::Agents = mode {
        return agent_turn(&body, n)
            .unwrap_or_else(|why| status(400, json!({ "error": { "message": why } }).to_string()));
    }
    if let (Mode::Busy, 0) = (mode, n % 2) {
        return status(429, json!({ "error": { "message": "queue is full" } }).to_string());
    }
    if body["stream"] != json!(true) {
        let choice = json!({ "message": { "content": "a b" }, "text": "a b", "finish_reason": "length" });
        return status(200, json!({ "choices": [choice], "usage": usage }).to_string());
    }
    let mut out = String::from(": hello\r\n\r\n");
    let mut event = |value: Value| out.push_str(&format!("data: {value}\n\n"));
    event(json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] }));
    if let Mode::Tools = mode {
        let call = |f: Value| json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "function": f }] } }] });
        event(call(json!({ "name": "find", "arguments": "" })));
        event(call(json!({ "arguments": "{}" })));
    }
    for _ in 0..tokens {
        event(json!({ "choices": [{ "delta": { "content": "x" }, "text": "x", "finish_reason": null }] }));
    }
    match mode {
        Mode::Breaks => {}
        Mode::ErrorEvent => event(json!({ "error": { "message": "engine is gone" } })),
        _ => event(json!({ "choices": [{ "delta": {}, "finish_reason": "length" }] })),
    }
    if !matches!(mode, Mode::NoUsage) {
        event(json!({ "choices": [], "usage": usage }));
    }
    if !matches!(mode, Mode::Breaks | Mode::ErrorEvent) {
        out.push_str("data: [DONE]\n\n");
    }
    // Split inside an event.
    Response::new(frames(out.into_bytes().chunks(37).map(Bytes::copy_from_slice).collect()))
}

/// Calls a tool, once the result of the call before is there.
fn agent_turn(body: &Value, n: usize) -> Result<Response<Body>, String> {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    if let [.., call, result] = &messages[2..] {
        let id = &call["tool_calls"][0]["id"];
        if !id.is_string() || result["tool_call_id"] != *id || call["tool_calls"][0]["function"]["arguments"] != "{}" {
            return Err(format!("{result} does not answer {call}"));
        }
    }
    if body["tools"].as_array().map_or(0, Vec::len) != 4 || body["tool_choice"] != "required" {
        return Err("four tools, one of which is called".into());
    }
    let words = |message: &Value| message["content"].as_str().map_or(0, |text| text.split(' ').count());
    let prompt = messages.iter().map(words).sum::<usize>() + 40;
    let usage = json!({ "prompt_tokens": prompt, "completion_tokens": 20, "prompt_tokens_details": { "cached_tokens": prompt / 2 } });
    let call = |call: Value| json!({ "choices": [{ "delta": { "tool_calls": [call] } }] });
    let events = [
        call(json!({ "index": 0, "id": format!("call_{n}"), "function": { "name": "find", "arguments": "{" } })),
        call(json!({ "index": 0, "function": { "arguments": "}" } })),
        json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }),
        json!({ "choices": [], "usage": usage }),
    ];
    let out: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    Ok(Response::new(frames(vec![Bytes::from(out + "data: [DONE]\n\n")])))
}

/// Serves on a free port. Returns the base URL and a counter of connections.
async fn serve(mode: Mode) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap_or_else(|e| panic!("{e}"));
    let url = format!("http://{}/v1", listener.local_addr().unwrap_or_else(|e| panic!("{e}")));
    let connections = Arc::new(AtomicUsize::new(0));
    let (requests, counted) = (Arc::new(AtomicUsize::new(0)), connections.clone());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let requests = requests.clone();
            let service = service_fn(move |request| {
                let n = requests.fetch_add(1, Ordering::Relaxed);
                async move { Ok::<_, Infallible>(answer(mode, n, request).await) }
            });
            tokio::spawn(
                async move { http1::Builder::new().serve_connection(TokioIo::new(socket), service).await.ok() },
            );
        }
    });
    (url, connections)
}

async fn bench(mode: Mode, args: &[&str]) -> (Result<(), BenchError>, BenchReport, usize) {
    let (url, connections) = serve(mode).await;
    let options = options(&[&["--base-url", &url], args].concat());
    let mut report = BenchReport::default();
    let result = measure(&options, &mut report).await;
    (result, report, connections.load(Ordering::Relaxed))
}

#[tokio::test]
async fn tokens_of_a_stream_are_counted_by_the_endpoints_usage() {
    let args = ["--concurrency", "1,3", "--requests", "6", "--output-tokens", "5", "--prompt-tokens", "40"];
    let (result, report, connections) = bench(Mode::Usage, &args).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(report.levels.len(), 2);
    for level in &report.levels {
        assert_eq!((level.answered, level.errors.len(), level.tokens_by), (6, 0, "usage"));
        assert_eq!(level.output_tokens, 30);
        // The warm-up measured that the template adds ten tokens.
        assert_eq!(level.prompt_tokens, 6 * 40);
        assert!(level.ttft_ms.is_some() && level.itl_ms.is_some() && level.tpot_ms.is_some());
        assert!(level.ttft_ms.is_some_and(|t| t.p50 <= level.e2e_ms.max));
    }
    // One connection to list the models, one for the warm-up, and one per client.
    assert_eq!(connections, 1 + 1 + 1 + 3);
    let table = report.table();
    for text in
        ["chat of tiny", "concurrency", "output tokens/s", "time to first token, ms p50", "inter-token latency, ms p50"]
    {
        assert!(table.contains(text), "{text} is missing in\n{table}");
    }
    // The server sends an answer in one piece.
    assert!(table.contains("tokens arrive at once, so most inter-token latencies are 0"), "{table}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["levels"][1]["concurrency"], json!(3));
    assert_eq!(json["target"]["model"], json!("tiny"));
}

#[tokio::test]
async fn without_usage_the_report_says_that_chunks_are_counted() {
    let (result, report, _) = bench(Mode::NoUsage, &["--model", "m", "--requests", "2", "--output-tokens", "7"]).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!((report.levels[0].output_tokens, report.levels[0].tokens_by), (14, "chunks"));
    assert!(report.table().contains("counted as chunks"));
}

#[tokio::test]
async fn failures_are_counted_by_kind() {
    let (result, report, _) = bench(Mode::Busy, &["--model", "m", "--requests", "6", "--warmup", "0"]).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(report.levels[0].errors.get("http_429"), Some(&3));
    assert_eq!(report.levels[0].answered, 3);
    for (mode, text) in [(Mode::Breaks, "ended early"), (Mode::ErrorEvent, "engine is gone")] {
        let (result, ..) = bench(mode, &["--model", "m", "--requests", "2"]).await;
        assert!(result.as_ref().is_err_and(|e| e.to_string().contains(text)), "{result:?}");
        let (result, ..) = bench(mode, &["--model", "m", "--requests", "2", "--warmup", "0"]).await;
        assert!(result.as_ref().is_err_and(|e| e.to_string().contains(text)), "{result:?}");
    }
}

#[tokio::test]
async fn whole_answers_prompt_ids_tools_and_durations_are_measured() {
    let (result, report, _) =
        bench(Mode::Usage, &["--stream", "false", "--requests", "2", "--output-tokens", "3"]).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!((report.levels[0].output_tokens, report.levels[0].ttft_ms), (6, None));
    let ids = ["--endpoint", "completions", "--prompt-ids", "500", "--requests", "2", "--output-tokens", "3"];
    let (result, report, _) = bench(Mode::Usage, &ids).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(report.levels[0].output_tokens, 6);
    let (result, report, _) = bench(Mode::Tools, &["--tools", "4", "--requests", "2", "--output-tokens", "3"]).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(report.levels[0].tool_calls, 2);
    let (result, report, _) = bench(Mode::Usage, &["--duration", "0.05", "--output-tokens", "3"]).await;
    assert!(result.is_ok(), "{result:?}");
    assert!(report.levels[0].answered > 0 && report.levels[0].seconds >= 0.05);
}

#[tokio::test]
async fn agents_come_back_with_the_results_of_their_calls() {
    let trace =
        ["--trace", "agents", "--sessions", "3", "--turns", "5", "--trace-tokens", "1000", "--tool-time", "0.01"];
    let (result, report, _) = bench(Mode::Agents, &trace).await;
    assert!(result.is_ok(), "{result:?}");
    let agents = report.agents.as_ref().expect("a trace");
    assert_eq!((agents.answered, agents.failed, agents.tool_calls), (15, 0, 15), "{agents:?}");
    let last = agents.prompt_tokens as f64 / 3.0;
    assert!((2700.0..3300.0).contains(&last), "200, 400, ... tokens: {agents:?}");
    let again = (agents.known_tokens - (agents.cached_tokens - agents.prompt_tokens / 30)) as f64;
    let (told, want) = (agents.recomputed.expect("known"), again / agents.known_tokens as f64);
    assert!((told - want).abs() < 0.02, "{told}, {want}: {agents:?}");
    assert!(report.table().contains("15 of 15"), "{}", report.table());
    let (result, report, _) = bench(Mode::Usage, &trace).await;
    let error = report.agents.map(|agents| (agents.answered, agents.failed, agents.tool_calls));
    assert_eq!((result.is_ok(), error), (true, Some((15, 0, 0))), "answers without calls");
    let (result, ..) = bench(Mode::ErrorEvent, &trace).await;
    assert!(result.is_err_and(|error| error.to_string().contains("engine is gone")));
}

#[tokio::test]
async fn errors_name_a_bad_target() {
    for (url, text) in [
        ("https://127.0.0.1:1/v1", "cannot connect"),
        ("ftp://x", "must start with http://"),
        ("nothing", "must start with http://"),
        ("http://127.0.0.1:1/v1", "cannot connect"),
    ] {
        let result = measure(&options(&["--base-url", url]), &mut BenchReport::default()).await;
        assert!(result.as_ref().is_err_and(|e| e.to_string().contains(text)), "{url}: {result:?}");
    }
    let result = measure(&options(&["--prompt-ids", "9"]), &mut BenchReport::default()).await;
    assert!(result.is_err_and(|e| e.to_string().contains("--endpoint completions")));
}

#[test]
fn prompts_differ_unless_a_prefix_is_shared() {
    let text = |work: &BenchRequests, n| {
        let body: Value = serde_json::from_slice(&work.body(n)).unwrap();
        body["messages"][0]["content"].as_str().unwrap_or_default().to_owned()
    };
    let work = BenchRequests::new(&options(&["--prompt-tokens", "50"]), "m");
    assert_eq!(text(&work, 1).split(' ').count(), 50);
    assert_eq!(text(&work, 1), text(&work, 1));
    assert_ne!(text(&work, 1)[..40], text(&work, 2)[..40]);
    let work = BenchRequests::new(&options(&["--prompt-tokens", "50", "--shared-prefix", "30"]), "m");
    let (a, b) = (text(&work, 1), text(&work, 2));
    let common = a.split(' ').zip(b.split(' ')).take_while(|(a, b)| a == b).count();
    assert!((30..34).contains(&common), "{common}");
    let body: Value = serde_json::from_slice(&BenchRequests::new(&options(&["--tools", "9"]), "m").body(0)).unwrap();
    let names: std::collections::BTreeSet<_> =
        body["tools"].as_array().into_iter().flatten().map(|t| t["function"]["name"].to_string()).collect();
    assert_eq!(names.len(), 9);
    let extra = options(&["--extra", r#"{"min_p": 0.1, "max_tokens": 3}"#]);
    let body: Value = serde_json::from_slice(&BenchRequests::new(&extra, "m").body(0)).unwrap();
    assert_eq!((&body["min_p"], &body["max_tokens"]), (&json!(0.1), &json!(3)));
}
