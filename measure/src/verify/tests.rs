//! Runs against a small endpoint in the test. The last message of a request selects its answer.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Json, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use clap::Parser;
use serde_json::{Value, json};

use super::compare::Comparison;
use super::record::{ProblemKind, Record, ResponseMode, Status};
use super::summary::{OutcomeCounts, Trigger};
use super::{Summary, VerifyError, VerifyOptions, store, verdict, verify};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: VerifyOptions,
}

fn options(args: &[&str]) -> VerifyOptions {
    Cli::try_parse_from([&["verify"], args].concat()).map(|c| c.options).unwrap_or_else(|e| panic!("{e}"))
}

#[derive(Default)]
struct Endpoint {
    /// Text and mode of each request.
    asked: Mutex<Vec<(String, bool)>>,
    bodies: Mutex<Vec<(HeaderMap, Value)>>,
    down: AtomicBool,
    ids: AtomicUsize,
}

const GOOD: &str = r#"{"city": "Paris"}"#;

impl Endpoint {
    fn call(&self, name: &str, arguments: &str) -> Value {
        let id = format!("call_{}", self.ids.fetch_add(1, Ordering::Relaxed));
        json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
    }

    /// The message and the finish reason that this text selects.
    fn message(&self, text: &str, stream: bool) -> (Value, Value) {
        let calls = |calls: Vec<Value>| (json!({ "content": null, "tool_calls": calls }), json!("tool_calls"));
        let good = || self.call("get_weather", GOOD);
        match text {
            "bad json" => calls(vec![self.call("get_weather", r#"{"city": "#)]),
            "undeclared" => calls(vec![good(), self.call("web_search", "{}")]),
            "schema" => calls(vec![self.call("get_weather", r#"{"city": 5, "x": 1}"#)]),
            "no parameters" => calls(vec![self.call("ping", "{}")]),
            "no object" => calls(vec![self.call("ping", "[]")]),
            "odd schema" => calls(vec![self.call("odd", r#"{"a": 1}"#)]),
            "stop" => (json!({ "content": "hello" }), json!("stop")),
            "stop with call" => (calls(vec![good()]).0, json!("stop")),
            "none with call" => (json!({ "content": "hello" }), json!("tool_calls")),
            "length" => (json!({ "tool_calls": [self.call("get_weather", r#"{"ci"#)] }), json!("length")),
            "no id" => {
                let mut call = good();
                call["id"] = json!(null);
                calls(vec![call])
            }
            "twice" => {
                let call = good();
                calls(vec![call.clone(), call])
            }
            "leak" => (json!({ "content": "Let me. <some_tool_call>{}" }), json!("stop")),
            "object" => {
                let mut call = good();
                call["function"]["arguments"] = json!({ "city": "Paris" });
                calls(vec![call])
            }
            "cut" if stream => (json!({ "tool_calls": [self.call("get_weather", r#"{"ci"#)] }), json!("length")),
            "cut" => (json!({ "content": "" }), json!("length")),
            "mismatch" if stream => calls(vec![self.call("get_weather", r#"{"city": "Rome"}"#)]),
            "spaces" if stream => calls(vec![self.call("get_weather", r#"{"city":"Paris"}"#)]),
            _ => calls(vec![good()]),
        }
    }
}

/// The events of a stream, with each call in two chunks.
fn stream(message: &Value, finish: &Value, usage: &Value, text: &str) -> String {
    let mut out = String::new();
    let mut event = |value: Value| out.push_str(&format!("data: {value}\n\n"));
    let mut delta = |delta: Value| event(json!({ "choices": [{ "index": 0, "delta": delta }] }));
    delta(json!({ "role": "assistant", "content": "" }));
    if let Some(content) = message["content"].as_str() {
        content.split_inclusive(' ').for_each(|part| delta(json!({ "content": part })));
    }
    for (index, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let mut first = call.clone();
        first["index"] = json!(if text == "indexes" { index + 1 } else { index });
        if let Some(arguments) = call["function"]["arguments"].as_str() {
            let (head, tail) = arguments.split_at(arguments.len() / 2);
            first["function"]["arguments"] = json!(head);
            let mut second = json!({ "index": first["index"], "function": { "arguments": tail } });
            if text == "named twice" {
                second["function"]["name"] = call["function"]["name"].clone();
            }
            delta(json!({ "tool_calls": [first] }));
            delta(json!({ "tool_calls": [second] }));
        } else {
            delta(json!({ "tool_calls": [first] }));
        }
    }
    match text {
        "broken" => return out,
        "error event" => event(json!({ "error": { "message": "engine is gone" } })),
        _ => event(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": finish }] })),
    }
    event(json!({ "choices": [], "usage": usage }));
    if text == "no done" { out } else { out + "data: [DONE]\n\n" }
}

async fn answer(State(endpoint): State<Arc<Endpoint>>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let text = messages.last().and_then(|m| m["content"].as_str()).unwrap_or_default().to_owned();
    let streams = body["stream"] == json!(true);
    let mut asked = endpoint.asked.lock().unwrap_or_else(|e| panic!("{e}"));
    let times = asked.iter().filter(|a| **a == (text.clone(), streams)).count();
    asked.push((text.clone(), streams));
    drop(asked);
    endpoint.bodies.lock().unwrap_or_else(|e| panic!("{e}")).push((headers, body));
    let status = |code: u16, text: &str| {
        let code = axum::http::StatusCode::from_u16(code).unwrap();
        (code, [("retry-after", "0")], json!({ "error": { "message": text } }).to_string()).into_response()
    };
    match text.as_str() {
        "busy" if times == 0 => return status(429, "queue is full"),
        "always busy" => return status(429, "queue is full"),
        "refused" => return status(400, "no such <thing>"),
        "recovers" if endpoint.down.load(Ordering::Relaxed) => return status(400, "down"),
        "nothing" => return Body::from("{}").into_response(),
        _ => {}
    }
    let (message, finish) = endpoint.message(&text, streams);
    let usage = json!({ "prompt_tokens": 20, "completion_tokens": 7 });
    if streams {
        return Body::from(stream(&message, &finish, &usage, &text)).into_response();
    }
    Json(json!({ "choices": [{ "message": message, "finish_reason": finish }], "usage": usage })).into_response()
}

/// A run's directory, removed with the test.
struct Bench {
    dir: PathBuf,
    url: String,
    endpoint: Arc<Endpoint>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

static BENCHES: AtomicUsize = AtomicUsize::new(0);

impl Bench {
    async fn new(texts: &[&str]) -> Self {
        let lines: Vec<Value> = texts.iter().map(|text| request(text)).collect();
        Self::of(&lines).await
    }

    async fn of(lines: &[Value]) -> Self {
        let number = BENCHES.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("rein-verify-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{e}"));
        let text: String = lines.iter().map(|l| format!("{l}\n")).collect();
        std::fs::write(dir.join("samples.jsonl"), text).unwrap_or_else(|e| panic!("{e}"));
        let endpoint = Arc::new(Endpoint::default());
        let app = Router::new().route("/v1/chat/completions", post(answer)).with_state(endpoint.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap_or_else(|e| panic!("{e}"));
        let url = format!("http://{}/v1", listener.local_addr().unwrap_or_else(|e| panic!("{e}")));
        tokio::spawn(async move { axum::serve(listener, app).await.ok() });
        Self { dir, url, endpoint }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn options(&self, args: &[&str]) -> VerifyOptions {
        let (samples, out) = (self.path("samples.jsonl"), self.path("out"));
        let fixed = ["--base-url", &self.url, "--model", "m", "--samples", &samples, "--out", &out];
        options(&[&fixed, args].concat())
    }

    async fn run(&self, args: &[&str]) -> Result<Summary, VerifyError> {
        verify(&self.options(args)).await
    }

    async fn summary(&self, args: &[&str]) -> Summary {
        self.run(args).await.unwrap_or_else(|e| panic!("{e}"))
    }

    fn records(&self) -> Vec<Record> {
        let text = std::fs::read_to_string(self.dir.join("out").join(store::RESULTS)).expect("results");
        text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }

    fn kinds(&self, sample: u64, mode: ResponseMode) -> Vec<ProblemKind> {
        let of = |r: &Record| r.sample == sample && r.mode == mode;
        self.records().iter().filter(|r| of(r)).flat_map(|r| &r.problems).map(|p| p.kind).collect()
    }

    fn asked(&self) -> usize {
        self.endpoint.asked.lock().unwrap_or_else(|e| panic!("{e}")).len()
    }
}

fn request(text: &str) -> Value {
    let tool = |name: &str, parameters: Value| {
        let mut function = json!({ "name": name });
        if !parameters.is_null() {
            function["parameters"] = parameters;
        }
        json!({ "type": "function", "function": function })
    };
    let weather = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"],
                          "additionalProperties": false });
    let tools = [tool("get_weather", weather), tool("ping", json!(null)), tool("odd", json!({ "type": "strin" }))];
    json!({ "messages": [{ "role": "user", "content": text }], "tools": tools, "temperature": 0 })
}

#[tokio::test]
async fn counts_are_those_of_the_vendor_verifier() {
    let texts =
        ["good", "bad json", "undeclared", "schema", "stop", "length", "stop with call", "none with call", "refused"];
    let bench = Bench::new(&texts).await;
    let summary = bench.summary(&["--stream", "never"]).await;
    let expected = OutcomeCounts {
        success_count: 8,
        failure_count: 1,
        finish_stop: 2,
        finish_tool_calls: 5,
        finish_others: 1,
        finish_others_detail: [("length".to_owned(), 1)].into(),
        successful_tool_call_count: 1,
        schema_validation_error_count: 4,
        schema_accuracy: Some(0.2),
    };
    assert_eq!(summary.total, expected);
    assert_eq!(summary.by_mode.get("non-stream"), Some(&expected));
    assert_eq!(summary.failures.get("http_400"), Some(&1));
    let json: Value = serde_json::from_str(&store::pretty(&summary)).unwrap();
    assert_eq!((&json["finish_tool_calls"], &json["problems"]["undeclared_tool"]), (&json!(5), &json!(1)));
}

#[tokio::test]
async fn problems_have_the_same_kind_streamed_and_unstreamed() {
    let cases: &[(&str, &[ProblemKind])] = &[
        ("good", &[]),
        ("bad json", &[ProblemKind::InvalidJson]),
        ("undeclared", &[ProblemKind::UndeclaredTool]),
        ("schema", &[ProblemKind::Schema, ProblemKind::Schema]),
        ("no parameters", &[]),
        ("no object", &[ProblemKind::Schema]),
        ("odd schema", &[ProblemKind::SampleSchema]),
        ("stop", &[]),
        ("stop with call", &[ProblemKind::WrongFinishReason]),
        ("none with call", &[ProblemKind::WrongFinishReason]),
        ("length", &[ProblemKind::Truncated]),
        ("no id", &[ProblemKind::MissingId]),
        ("twice", &[ProblemKind::DuplicateId]),
        ("leak", &[ProblemKind::LeakedMarkup]),
        ("object", &[ProblemKind::ArgumentsType]),
        ("refused", &[ProblemKind::HttpError]),
        ("nothing", &[ProblemKind::BadResponse]),
    ];
    let bench = Bench::new(&cases.iter().map(|(text, _)| *text).collect::<Vec<_>>()).await;
    let summary = bench.summary(&[]).await;
    for (index, (text, kinds)) in (1..).zip(cases) {
        for mode in [ResponseMode::NonStream, ResponseMode::Stream] {
            assert_eq!(bench.kinds(index, mode), *kinds, "{text}, {mode:?}");
        }
    }
    // An invalid schema and a missing one do not make a call unsuccessful.
    let good = bench.records().iter().filter(|r| r.successful_call()).map(|r| r.sample).collect::<Vec<_>>();
    assert_eq!(good, [1, 1, 5, 5, 7, 7, 12, 12, 13, 13, 15, 15]);
    assert_eq!(summary.stream_comparison.map(|c| (c.compared, c.mismatched)), Some((15, 0)));
    let schema = bench.records().into_iter().find(|r| r.sample == 4).unwrap_or_else(|| panic!("no record"));
    assert_eq!((schema.problems[0].path.as_deref(), schema.problems[0].call), (Some("/city"), Some(0)));
    assert!(schema.problems[1].message.contains("'x'"), "{:?}", schema.problems);
    assert!(bench.records().iter().all(|r| r.ttft_ms.is_some() == (r.mode == ResponseMode::Stream && r.answered())));
}

#[tokio::test]
async fn violations_of_the_stream_format_are_found() {
    let texts = ["broken", "error event", "no done", "named twice", "indexes", "mismatch", "spaces"];
    let bench = Bench::new(&texts).await;
    let summary = bench.summary(&[]).await;
    let expected: [&[ProblemKind]; 7] = [
        &[ProblemKind::BrokenStream],
        &[ProblemKind::BrokenStream],
        &[ProblemKind::StreamShape],
        &[ProblemKind::StreamShape],
        &[ProblemKind::StreamShape],
        &[ProblemKind::StreamMismatch],
        &[],
    ];
    for (index, kinds) in (1..).zip(expected) {
        assert_eq!(bench.kinds(index, ResponseMode::Stream), kinds, "{}", texts[index as usize - 1]);
        assert_eq!(bench.kinds(index, ResponseMode::NonStream), [], "{}", texts[index as usize - 1]);
    }
    assert_eq!(summary.stream_comparison.map(|c| (c.compared, c.mismatched)), Some((5, 1)));
    let failures: Vec<_> = summary.failures.iter().map(|(kind, n)| (kind.as_str(), *n)).collect();
    assert_eq!(failures, [("broken_stream", 1), ("error_event", 1)]);
    // A call that the length limit truncates is not compared.
    let cut = Bench::new(&["cut"]).await.summary(&[]).await;
    assert_eq!(cut.stream_comparison.map(|c| (c.compared, c.mismatched)), Some((1, 0)));
    // At other temperatures the answers may differ.
    let warm = Bench::new(&["mismatch"]).await;
    assert_eq!(warm.summary(&["--temperature", "0.6"]).await.stream_comparison, None);
}

#[tokio::test]
async fn a_busy_endpoint_is_retried_and_a_broken_stream_is_not() {
    let bench = Bench::new(&["busy", "always busy", "broken"]).await;
    let summary = bench.summary(&["--stream", "only", "--retries", "2"]).await;
    assert_eq!((summary.total.success_count, summary.total.failure_count), (1, 2));
    let attempts: Vec<_> = bench.records().iter().map(|r| (r.attempts, r.status)).collect();
    assert_eq!(attempts, [(2, Status::Ok), (3, Status::Failed), (1, Status::Failed)]);
}

#[tokio::test]
async fn an_interrupted_run_is_continued() {
    let bench = Bench::new(&["good", "recovers", "stop"]).await;
    bench.endpoint.down.store(true, Ordering::Relaxed);
    let first = bench.summary(&[]).await;
    assert_eq!((first.total.success_count, first.total.failure_count, bench.asked()), (4, 2, 6));
    // As after an interruption: one line is missing, and one is incomplete.
    let path = bench.dir.join("out").join(store::RESULTS);
    let text = std::fs::read_to_string(&path).expect("results");
    let lines: Vec<_> = text.lines().collect();
    let cut = lines[..4].join("\n") + "\n" + &lines[4][..lines[4].len() / 2];
    std::fs::write(&path, cut).unwrap_or_else(|e| panic!("{e}"));
    bench.endpoint.down.store(false, Ordering::Relaxed);
    let second = bench.summary(&[]).await;
    assert_eq!((second.total.success_count, second.total.failure_count), (6, 0));
    // The two failed requests, and the two lost results.
    assert_eq!(bench.asked(), 6 + 4);
    let order: Vec<_> = bench.records().iter().map(|r| (r.sample, r.mode)).collect();
    let expected: Vec<_> = (1..=3).flat_map(|s| [(s, ResponseMode::NonStream), (s, ResponseMode::Stream)]).collect();
    assert_eq!(order, expected);
    assert_eq!(bench.summary(&[]).await.total, second.total);
    assert_eq!(bench.asked(), 10, "a complete run sends no requests");
    // Other options use and keep the existing results.
    assert_eq!(bench.summary(&["--limit", "1", "--stream", "only"]).await.total.success_count, 1);
    assert_eq!((bench.asked(), bench.records().len()), (10, 6));
    assert_eq!(bench.summary(&["--resume", "false", "--limit", "2"]).await.total.success_count, 4);
    assert_eq!((bench.asked(), bench.records().len()), (14, 4));
}

#[tokio::test]
async fn results_of_another_run_are_not_mixed_in() {
    let bench = Bench::new(&["good"]).await;
    bench.summary(&[]).await;
    let other = bench.run(&["--temperature", "1"]).await.map(|_| ());
    assert!(other.as_ref().is_err_and(|e| e.to_string().contains("--temperature differs")), "{other:?}");
    std::fs::write(bench.dir.join("samples.jsonl"), request("stop").to_string()).unwrap_or_else(|e| panic!("{e}"));
    let other = bench.run(&[]).await.map(|_| ());
    assert!(other.as_ref().is_err_and(|e| e.to_string().contains("sample 1 has changed")), "{other:?}");
}

#[tokio::test]
async fn calls_are_compared_with_a_reference() {
    let bench = Bench::new(&["good", "stop", "schema", "leak", "refused"]).await;
    // Lines of the vendor verifier: another model, another order of members, and other call decisions.
    let row = |index: u64, text: &str, reason: &str| {
        let sample = request(text);
        let request = json!({ "tools": sample["tools"], "messages": sample["messages"], "model": "official", "temperature": 0.6 });
        json!({ "data_index": index, "request": request, "status": "success", "finish_reason": reason, "hash": "md5" })
    };
    let rows =
        [row(7, "good", "tool_calls"), row(8, "stop", "tool_calls"), row(9, "schema", "stop"), row(4, "leak", "stop")];
    let text: String = rows.iter().map(|r| format!("{r}\n")).collect();
    std::fs::write(bench.path("official.jsonl"), text).unwrap_or_else(|e| panic!("{e}"));
    let summary = bench.summary(&["--reference", &bench.path("official.jsonl"), "--stream", "never"]).await;
    let expected = Trigger {
        compared: 4,
        unmatched: 0,
        true_positive: 1,
        false_positive: 1,
        false_negative: 1,
        true_negative: 1,
        tool_call_precision: Some(0.5),
        tool_call_recall: Some(0.5),
        tool_call_f1: Some(0.5),
    };
    assert_eq!(summary.reference, Some(expected));
    // A run compared with itself.
    let again = bench.summary(&["--reference", &bench.path("out"), "--stream", "never"]).await;
    assert_eq!(again.reference.map(|t| (t.compared, t.tool_call_f1)), Some((4, Some(1.0))));
    // Lines with only a sample number.
    std::fs::write(bench.path("bare.jsonl"), "{\"data_index\": 2, \"finish_reason\": \"stop\"}\n")
        .unwrap_or_else(|e| panic!("{e}"));
    let bare = bench.summary(&["--reference", &bench.path("bare.jsonl"), "--stream", "never"]).await;
    assert_eq!(bare.reference.map(|t| (t.true_negative, t.unmatched)), Some((1, 3)));
}

#[tokio::test]
async fn expectations_of_samples_are_checked() {
    let with = |text: &str, more: Value| {
        let mut line = json!({ "request": request(text) });
        line.as_object_mut().unwrap_or_else(|| panic!("object")).extend(more.as_object().cloned().unwrap_or_default());
        line
    };
    let lines = [
        with("good", json!({ "prompt_tokens": 20, "expect": { "call": true, "tool": "get_weather" }, "tags": ["a"] })),
        with("good", json!({ "prompt_tokens": 17, "expect": { "call": true, "tool": "ping" }, "tags": ["a", "b"] })),
        with("stop", json!({ "expect": { "call": true } })),
        with("good", json!({ "expect": { "call": false } })),
    ];
    let bench = Bench::of(&lines).await;
    let summary = bench.summary(&["--stream", "never"]).await;
    let kinds: Vec<_> = (1..=4).map(|s| bench.kinds(s, ResponseMode::NonStream)).collect();
    let wrong = vec![ProblemKind::Expectation];
    assert_eq!(kinds, [vec![], vec![ProblemKind::Expectation, ProblemKind::PromptTokens], wrong.clone(), wrong]);
    let expected = summary.expected.clone().unwrap_or_default();
    assert_eq!((expected.true_positive, expected.false_positive, expected.false_negative), (2, 1, 1));
    let tokens = summary.prompt_tokens.clone().unwrap_or_else(|| panic!("no prompt tokens"));
    assert_eq!((tokens.compared, tokens.equal, tokens.largest_difference), (2, 1, 3));
    assert_eq!(
        summary.by_tag.iter().map(|(t, c)| (t.as_str(), c.success_count)).collect::<Vec<_>>(),
        [("a", 2), ("b", 1)]
    );
}

#[tokio::test]
async fn tool_choices_and_response_formats_are_checked() {
    let with = |text: &str, name: &str, value: Value| {
        let mut line = request(text);
        line[name] = value;
        line
    };
    let named = json!({ "type": "function", "function": { "name": "ping" } });
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "object" } } });
    let bench = Bench::of(&[
        with("good", "tool_choice", json!("none")),
        with("stop", "tool_choice", json!("required")),
        with("good", "tool_choice", named),
        with("undeclared", "parallel_tool_calls", json!(false)),
        with("stop", "response_format", schema),
        // Members that the API does not have are not sent.
        with("good", "notes", json!("mine")),
    ])
    .await;
    bench.summary(&["--stream", "never"]).await;
    let kinds: Vec<_> = (1..=6).map(|s| bench.kinds(s, ResponseMode::NonStream)).collect();
    let expected: [&[ProblemKind]; 6] = [
        &[ProblemKind::ToolChoice],
        &[ProblemKind::ToolChoice],
        &[ProblemKind::ToolChoice],
        &[ProblemKind::UndeclaredTool, ProblemKind::ParallelCalls],
        &[ProblemKind::ResponseFormat],
        &[],
    ];
    assert_eq!(kinds, expected);
    assert!(
        bench.endpoint.bodies.lock().unwrap_or_else(|e| panic!("{e}")).iter().all(|(_, b)| b.get("notes").is_none())
    );
}

#[tokio::test]
async fn options_are_sent_and_secrets_are_not_written_to_files() {
    let bench = Bench::new(&["good"]).await;
    let extra = ["--temperature", "0.25", "--max-tokens", "9", "--extra-body", r#"{"top_k": 3}"#];
    let secret = ["--api-key", "s3cret", "--header", "x-route: s3cret-too"];
    bench.summary(&[&extra[..], &secret[..]].concat()).await;
    let bodies = bench.endpoint.bodies.lock().unwrap_or_else(|e| panic!("{e}")).clone();
    for (headers, body) in &bodies {
        assert_eq!((&body["temperature"], &body["max_tokens"], &body["top_k"]), (&json!(0.25), &json!(9), &json!(3)));
        assert_eq!((&body["model"], headers["authorization"].to_str().ok()), (&json!("m"), Some("Bearer s3cret")));
        assert_eq!(headers["x-route"], "s3cret-too");
    }
    assert_eq!(bodies.iter().filter(|(_, b)| b["stream_options"]["include_usage"] == json!(true)).count(), 1);
    for name in [store::RUN, store::RESULTS, store::SUMMARY, store::REPORT] {
        let text = std::fs::read_to_string(bench.dir.join("out").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!text.is_empty() && !text.contains("s3cret"), "{name}");
    }
}

#[tokio::test]
async fn a_low_accuracy_gives_exit_code_3() {
    let bench = Bench::new(&["good", "schema"]).await;
    let code = async |args: &[&str]| {
        let summary = bench.summary(args).await;
        format!("{:?}", verdict(&bench.options(args), &summary))
    };
    let (fine, short) =
        (format!("{:?}", std::process::ExitCode::SUCCESS), format!("{:?}", std::process::ExitCode::from(3)));
    assert_eq!(code(&["--min-schema-accuracy", "0.5"]).await, fine);
    assert_eq!(code(&["--min-schema-accuracy", "0.51"]).await, short);
    let silent = Bench::new(&["stop"]).await;
    let summary = silent.summary(&[]).await;
    assert_eq!(format!("{:?}", verdict(&silent.options(&["--min-schema-accuracy", "0"]), &summary)), short);
    let refused = Bench::new(&["refused"]).await.run(&[]).await.map(|_| ());
    assert!(refused.as_ref().is_err_and(|e| e.to_string().contains("HTTP 400: no such <thing>")), "{refused:?}");
}

#[tokio::test]
async fn the_report_loads_nothing_and_escapes_its_texts() {
    let bench = Bench::new(&["good", "refused", "schema", "leak"]).await;
    bench.summary(&[]).await;
    let html = std::fs::read_to_string(bench.dir.join("out").join(store::REPORT)).expect("a report");
    for text in
        ["<svg", "prefers-color-scheme:dark", "schema accuracy", "leaked_markup", "no such &lt;thing&gt;", "/city"]
    {
        assert!(html.contains(text), "{text} is missing");
    }
    for text in ["<script", "<thing>", "<some_tool_call>", "src=", "href=", "url("] {
        assert!(!html.contains(text), "{text} must not be in the report");
    }
}

#[test]
fn runs_are_compared() {
    let dir = std::env::temp_dir().join(format!("rein-compare-{}", std::process::id()));
    let answer = |sample: u64, finish: &str, status: &str, problems: Value| {
        let calls =
            if finish == "tool_calls" { json!([{"id": "c", "name": "f", "arguments": "{}"}]) } else { json!([]) };
        json!({"sample": sample, "hash": format!("h{sample}"), "mode": "stream", "status": status, "attempts": 1, "latency_ms": 1.0,
            "finish_reason": finish, "calls": calls, "problems": problems})
        .to_string()
    };
    let wrong = json!([{"kind": "schema", "message": "no"}]);
    let write = |name: &str, temperature: f64, rows: &[String]| {
        let run = dir.join(name);
        std::fs::create_dir_all(&run).unwrap_or_else(|e| panic!("{e}"));
        let settings = json!({"base_url": "http://<x>", "model": "m", "temperature": temperature, "max_tokens": null, "extra_body": null});
        for (file, text) in [(store::RUN, settings.to_string()), (store::RESULTS, rows.join("\n"))] {
            std::fs::write(run.join(file), text).unwrap_or_else(|e| panic!("{e}"));
        }
        run
    };
    let none = || json!([]);
    let first =
        [answer(1, "tool_calls", "ok", none()), answer(2, "tool_calls", "ok", none()), answer(3, "stop", "ok", none())];
    let second = [
        answer(1, "tool_calls", "ok", wrong),
        answer(2, "stop", "ok", none()),
        answer(3, "tool_calls", "ok", none()),
        answer(4, "length", "ok", none()),
        answer(5, "stop", "failed", none()),
    ];
    let dirs = [write("bf16", 0.0, &first), write("int8", 0.5, &second)];
    let comparison = Comparison::load(&dirs).unwrap_or_else(|e| panic!("{e}"));
    let (a, b) = (&comparison.runs[0], &comparison.runs[1]);
    assert_eq!(
        (a.name.as_str(), a.success_rate, a.counts.schema_accuracy, &a.trigger),
        ("bf16", Some(1.0), Some(1.0), &None)
    );
    assert_eq!((b.success_rate, b.counts.schema_accuracy, b.counts.finish_others), (Some(0.8), Some(0.5), 1));
    let trigger = b.trigger.clone().unwrap_or_default();
    assert_eq!(
        (trigger.true_positive, trigger.false_positive, trigger.false_negative, trigger.unmatched),
        (1, 1, 1, 1)
    );
    assert_eq!((trigger.tool_call_f1, comparison.unmatched), (Some(0.5), 1));
    let table = comparison.table();
    for words in ["temperature 0.5", "80.00 %", "reference", "finish: tool_calls"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let page = comparison.write(&dir.join("out")).unwrap_or_else(|e| panic!("{e}"));
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(
        html.contains("int8")
            && html.contains("http://&lt;x&gt;")
            && !html.contains("<x>")
            && !html.contains("<script")
    );
    let missing = Comparison::load(&[dirs[0].clone(), dir.join("none")]).map(|_| ());
    assert!(missing.is_err_and(|e| e.to_string().starts_with("--compare: cannot read")));
    let _ = std::fs::remove_dir_all(dir);
}

#[tokio::test]
async fn errors_name_the_line_of_a_bad_sample() {
    let bench = Bench::new(&["good"]).await;
    for (line, text) in [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ("{\"messages\": []}", "`messages`"),
        ("{\"request\": 5}", "`request`"),
        ("{\"messages\": [{}], \"prompt_tokens\": \"x\"}", "`prompt_tokens`"),
    ] {
        std::fs::write(bench.dir.join("samples.jsonl"), format!("{}\n\n{line}\n", request("good")))
            .unwrap_or_else(|e| panic!("{e}"));
        let result = bench.run(&[]).await.map(|_| ());
        let named = result.as_ref().is_err_and(|e| e.to_string().contains("line 3") && e.to_string().contains(text));
        assert!(named, "{line}: {result:?}");
    }
}
