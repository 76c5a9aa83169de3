//! Traces and logs of real processes: one trace per request, from the caller's span through the router's to the
//! engine's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as Any};
use rein_proto::v1::{CompleteRequest, complete_request, inference_client::InferenceClient};
use serde_json::{Value, json};
use tonic::transport::server::TcpIncoming;

use super::process::{Server, demo_model, read_response, rein, request_with};

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[derive(Debug, Clone)]
struct Span {
    service: String,
    pid: String,
    name: String,
    trace: String,
    id: String,
    parent: String,
    /// `tracestate`.
    state: String,
    /// Start and end.
    time: (u64, u64),
    attributes: BTreeMap<String, String>,
}

/// Accepts traces like an OpenTelemetry collector.
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

struct Taking(Arc<Mutex<Vec<Span>>>);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(list: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Any| match value {
        Any::StringValue(text) => text,
        Any::IntValue(number) => number.to_string(),
        Any::BoolValue(truth) => truth.to_string(),
        other => format!("{other:?}"),
    };
    list.into_iter().filter_map(|pair| Some((pair.key, text(pair.value?.value?)))).collect()
}

#[tonic::async_trait]
impl TraceService for Taking {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let mut spans = self.0.lock().unwrap();
        for of_process in request.into_inner().resource_spans {
            let process = attributes(of_process.resource.unwrap_or_default().attributes);
            for span in of_process.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                spans.push(Span {
                    service: process["service.name"].clone(),
                    pid: process["process.pid"].clone(),
                    name: span.name,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    state: span.trace_state,
                    time: (span.start_time_unix_nano, span.end_time_unix_nano),
                    attributes: attributes(span.attributes),
                });
            }
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let spans = Arc::new(Mutex::new(Vec::new()));
        let incoming = {
            let _within = runtime.enter();
            TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let address = incoming.local_addr().unwrap();
        let service = TraceServiceServer::new(Taking(spans.clone()));
        runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Collector { spans, address, _runtime: runtime }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of the caller's trace, after the processes have ended.
    fn spans(&self) -> Vec<Span> {
        self.spans_of(TRACE)
    }

    fn spans_of(&self, trace: &str) -> Vec<Span> {
        self.spans.lock().unwrap().iter().filter(|span| span.trace == trace).cloned().collect()
    }
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// The only span with this name.
fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

fn chat(max_tokens: u32) -> Value {
    let tool =
        json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}});
    json!({
        "model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": max_tokens,
        "temperature": 0, "ignore_eos": true, "tools": [tool],
    })
}

/// A log file that is deleted with the test.
struct Log(PathBuf);

impl Log {
    fn new(name: &str) -> (Self, File) {
        let path = std::env::temp_dir().join(format!("rein-telemetry-{}-{name}.log", std::process::id()));
        let file = File::create(&path).unwrap();
        (Log(path), file)
    }

    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_request_is_one_trace_within_the_callers() {
    let collector = Collector::start();
    let server = Server::start(&["--engine", "sim", "--otlp-endpoint", &collector.endpoint()]);
    let headers = format!("traceparent: {CALLER}\r\nx-request-id: mine-7\r\n");
    let answer = read_response(request_with(server.http, "/v1/chat/completions", &headers, &chat(8).to_string()));
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    server.signal("TERM");
    assert!(server.wait().0.success());

    let spans = collector.spans();
    let request = one(&spans, "request");
    assert_eq!((request.parent.as_str(), request.service.as_str()), (PARENT, "rein"));
    let expected = [
        ("request_id", id.as_str()),
        ("client_request_id", "mine-7"),
        ("model", "demo"),
        ("surface", "http"),
        ("endpoint", "chat"),
        ("stream", "false"),
        ("status", "200"),
        ("finish_reason", "length"),
        ("completion_tokens", "8"),
    ];
    for (name, value) in expected {
        assert_eq!(request.attributes.get(name).map(String::as_str), Some(value), "{name}: {request:?}");
    }
    for name in ["template", "tokenize", "grammar"] {
        assert_eq!(one(&spans, name).parent, request.id, "{name}");
    }
    let sequence = one(&spans, "sequence");
    assert_eq!(sequence.parent, request.id);
    assert_eq!(sequence.attributes["request_id"], format!("{id}-0"));
    assert_eq!(sequence.attributes["generated_tokens"], "8");
    for name in ["prefill", "decode"] {
        assert_eq!(one(&spans, name).parent, sequence.id, "{name}");
    }
    let mut queues: Vec<&str> = named(&spans, "queue").iter().map(|span| span.parent.as_str()).collect();
    let mut parents = [request.id.as_str(), sequence.id.as_str()];
    queues.sort_unstable();
    parents.sort_unstable();
    assert_eq!(queues, parents, "one for an engine, one for a slot");
    let (prefill, decode) = (one(&spans, "prefill").time, one(&spans, "decode").time);
    // The engine frees the sequence a little after the router has finished.
    assert!(request.time.0 <= prefill.0 && prefill.1 <= decode.0 && decode.0 <= request.time.1, "{spans:#?}");
}

#[test]
fn requests_of_every_api_are_one_trace_each() {
    let collector = Collector::start();
    let messages = json!([{"role": "user", "content": "hello"}]);
    let requests = [
        ("generate", "completions", "/v1/completions", json!({"prompt": "hello", "max_tokens": 8}), 1),
        ("generate", "responses", "/v1/responses", json!({"input": "hello", "max_output_tokens": 8}), 1),
        ("generate", "messages", "/v1/messages", json!({"messages": messages, "max_tokens": 8}), 1),
        ("embed", "embeddings", "/v1/embeddings", json!({"input": ["hello", "you"]}), 2),
    ];
    for task in ["generate", "embed"] {
        let server = Server::start(&["--engine", "sim", "--task", task, "--otlp-endpoint", &collector.endpoint()]);
        for (number, (_, _, path, body, _)) in requests.iter().enumerate().filter(|(_, request)| request.0 == task) {
            let mut body = body.clone();
            body["model"] = "demo".into();
            let headers = format!("traceparent: 00-{:032x}-{PARENT}-01\r\n", number + 1);
            let answer = read_response(request_with(server.http, path, &headers, &body.to_string()));
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
        }
        server.signal("TERM");
        assert!(server.wait().0.success());
    }
    for (number, (_, endpoint, path, _, sequences)) in requests.into_iter().enumerate() {
        let spans = collector.spans_of(&format!("{:032x}", number + 1));
        let request = one(&spans, "request");
        assert_eq!((request.parent.as_str(), request.attributes["status"].as_str()), (PARENT, "200"), "{path}");
        for (name, value) in [("endpoint", endpoint), ("model", "demo"), ("surface", "http"), ("stream", "false")] {
            assert_eq!(request.attributes[name], value, "{path}: {request:?}");
        }
        assert!(request.attributes["prompt_tokens"].parse::<u32>().unwrap() > 0, "{path}: {request:?}");
        // As OpenTelemetry's semantic conventions name them.
        let operation = match endpoint {
            "completions" => "text_completion",
            "embeddings" => "embeddings",
            _ => "chat",
        };
        for (name, value) in [
            ("gen_ai.operation.name", operation),
            ("gen_ai.provider.name", "rein"),
            ("gen_ai.request.model", "demo"),
            ("gen_ai.response.model", "demo"),
            ("gen_ai.request.stream", "false"),
            ("gen_ai.usage.input_tokens", request.attributes["prompt_tokens"].as_str()),
            ("gen_ai.usage.output_tokens", request.attributes["completion_tokens"].as_str()),
        ] {
            assert_eq!(request.attributes.get(name).map(String::as_str), Some(value), "{path}: {name}: {request:?}");
        }
        if endpoint != "embeddings" {
            assert_eq!(request.attributes["gen_ai.request.max_tokens"], "8", "{path}: {request:?}");
            assert!(request.attributes["gen_ai.response.finish_reasons"].contains("length"), "{path}: {request:?}");
        }
        // One for each text.
        let tokenized = named(&spans, "tokenize");
        assert!(tokenized.len() == sequences && tokenized.iter().all(|span| span.parent == request.id), "{spans:#?}");
        let found = named(&spans, "sequence");
        assert!(found.len() == sequences && found.iter().all(|span| span.parent == request.id), "{path}: {spans:#?}");
        assert_eq!(named(&spans, "prefill").len(), sequences, "{path}");
    }
}

#[test]
fn grpc_calls_are_part_of_traces() {
    let collector = Collector::start();
    let server = Server::start(&["--engine", "sim", "--otlp-endpoint", &collector.endpoint()]);
    let address = format!("http://{}", server.grpc);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = InferenceClient::connect(address).await.unwrap();
        let prompt = Some(complete_request::Prompt::Text("hello".into()));
        let mut request = tonic::Request::new(CompleteRequest { model: "demo".into(), prompt, ..Default::default() });
        request.metadata_mut().insert("traceparent", CALLER.parse().unwrap());
        let mut events = client.complete(request).await.unwrap().into_inner();
        while events.message().await.unwrap().is_some() {}
    });
    server.signal("TERM");
    assert!(server.wait().0.success());

    let spans = collector.spans();
    let request = one(&spans, "request");
    assert_eq!((request.parent.as_str(), request.attributes["surface"].as_str()), (PARENT, "grpc"));
    assert_eq!(
        (one(&spans, "tokenize").parent.as_str(), request.attributes["endpoint"].as_str()),
        (request.id.as_str(), "complete")
    );
    assert_eq!(one(&spans, "sequence").parent, request.id);
}

#[test]
fn logs_name_the_request() {
    let (log, file) = Log::new("serve");
    let mut command = rein();
    command.env("REIN_LOG", "info,rein_worker=debug").env("REIN_LOG_FORMAT", "json").stderr(file);
    let server = Server::of(command, &["--engine", "sim"]);
    // Without a collector, the caller's trace is still passed to the engine.
    let headers = format!("traceparent: {CALLER}\r\n");
    let answer = read_response(request_with(server.http, "/v1/chat/completions", &headers, &chat(4).to_string()));
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert!(answer.head.to_lowercase().contains(&format!("x-request-id: {id}\r\n").to_lowercase()), "{answer:?}");
    server.signal("TERM");
    assert!(server.wait().0.success());

    let lines = log.lines();
    let line = |message: &str| {
        let found = lines.iter().find(|line| line["fields"]["message"] == message);
        found.unwrap_or_else(|| panic!("no line {message:?}: {lines:#?}"))
    };
    let over = line("the request ended");
    assert_eq!((&over["span"]["request_id"], &over["span"]["completion_tokens"]), (&json!(id), &json!(4)), "{over}");
    let admitted = line("admitted");
    assert_eq!(admitted["span"]["request_id"], json!(format!("{id}-0")));
    assert_eq!((&over["span"]["trace_id"], &admitted["span"]["trace_id"]), (&json!(TRACE), &json!(TRACE)));
}

#[test]
fn an_invalid_collector_is_reported_and_an_absent_one_is_tolerated() {
    let model = demo_model();
    let model = model.to_str().unwrap();
    let serve = ["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--engine", "sim", "--model", model];
    let wrong = rein().args(serve).args(["--otlp-endpoint", "no url"]).output().unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--otlp-endpoint"), "{wrong:?}");
    let mut half = rein();
    let half = half.args(serve).args(["--otlp-endpoint", "http://127.0.0.1:1"]).env("OTEL_TRACES_SAMPLER_ARG", "half");
    let half = half.output().unwrap();
    assert!(
        String::from_utf8_lossy(&half.stderr).contains("OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1"),
        "{half:?}"
    );

    // Nothing listens there.
    let server = Server::start(&["--engine", "sim", "--otlp-endpoint", "http://127.0.0.1:1"]);
    assert_eq!(server.post("/v1/chat/completions", chat(4)).status, 200);
    server.signal("TERM");
    assert!(server.wait().0.success());
}

/// The processes of a cluster; they end with the test.
struct Cluster {
    endpoint: String,
    etcd: String,
    data: PathBuf,
    processes: BTreeMap<String, Child>,
}

impl Cluster {
    fn start(collector: &Collector) -> Self {
        let [client, peer] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [client, peer] = [client, peer].map(|socket| format!("http://{}", socket.local_addr().unwrap()));
        let data = std::env::temp_dir().join(format!("rein-telemetry-etcd-{}", std::process::id()));
        let mut cluster =
            Cluster { endpoint: collector.endpoint(), etcd: client.clone(), data, processes: BTreeMap::new() };
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir").arg(&cluster.data).args(["--log-level", "error", "--unsafe-no-fsync"]);
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("default={peer}")]);
        let etcd = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        cluster.processes.insert("etcd".into(), etcd.expect("etcd is installed (make test installs it)"));
        cluster
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = rein();
        command.args(args).env("REIN_ETCD", &self.etcd).env("REIN_CLUSTER", "telemetry");
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &self.endpoint);
        command
    }

    /// Returns its first line of output.
    fn run(&mut self, name: &str, log: Option<File>, args: &[&str]) -> String {
        let mut command = self.command(args);
        if let Some(log) = log {
            command.env("REIN_LOG", "info").env("REIN_LOG_FORMAT", "json").stderr(log);
        }
        let mut child = command.args(["--id", name]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        self.processes.insert(name.into(), child);
        line
    }

    /// The group that each worker serves, by name.
    fn groups(&self) -> BTreeMap<String, String> {
        let output = self.command(&["status", "--json"]).stderr(Stdio::null()).output().unwrap();
        // It prints none before etcd answers.
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let workers = status["workers"].as_object().cloned().unwrap_or_default();
        let group = |(name, worker): (String, Value)| Some((worker["group"].as_str()?.to_owned(), name));
        workers.into_iter().filter_map(group).collect()
    }

    fn end(&mut self, name: &str) {
        let mut child = self.processes.remove(name).unwrap();
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        let mut rest = String::new();
        child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert!(child.wait().unwrap().success(), "{name}: {rest}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.processes.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

#[test]
fn a_trace_spans_processes_and_shows_a_lost_worker() {
    let collector = Collector::start();
    let (log, file) = Log::new("router");
    let mut cluster = Cluster::start(&collector);
    let model = demo_model();
    cluster.run("controller", None, &["controller"]);
    for name in ["left", "right"] {
        let worker = ["worker", "--engine", "sim", "--sim-step-us", "20000", "--model", model.to_str().unwrap()];
        cluster.run(name, None, &worker);
    }
    let line = cluster.run("router", Some(file), &["router", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    let http: SocketAddr = line.trim().strip_prefix("rein: http listening on http://").unwrap().parse().unwrap();
    let get = |path: &str| read_response(super::process::get(http, path));
    while cluster.groups().len() < 2 || !get("/metrics").body.contains("standing=\"serving\"} 2") {}

    let mut request = chat(200);
    request["stream"] = json!(true);
    let headers = format!("traceparent: {CALLER}\r\ntracestate: theirs=7\r\n");
    let mut stream = BufReader::new(request_with(http, "/v1/chat/completions", &headers, &request.to_string()));
    let mut line = String::new();
    // The second event comes with the first token.
    while line.matches("\ndata: ").count() < 3 {
        assert!(stream.read_line(&mut line).unwrap() > 0, "{line}");
    }
    let groups = cluster.groups();
    let metrics = get("/metrics").body;
    let busy = |(group, _): &(&String, &String)| {
        metrics.contains(&format!("rein_engine_running_sequences{{model=\"demo\",engine=\"{group}\"}} 1"))
    };
    let (_, victim) = groups.iter().find(busy).unwrap_or_else(|| panic!("{groups:?} {metrics}"));
    let survivor = groups.values().find(|name| *name != victim).unwrap().clone();
    cluster.processes.get_mut(victim).unwrap().kill().unwrap();
    stream.read_to_string(&mut line).unwrap();
    assert!(line.contains("data: [DONE]"), "{line}");
    assert!(get("/metrics").body.contains("rein_resumed_total 1"));
    let pid = cluster.processes[&survivor].id().to_string();
    cluster.end("router");
    cluster.end(&survivor);

    let spans = collector.spans();
    let (request, resume) = (one(&spans, "request"), one(&spans, "resume"));
    assert_eq!((request.parent.as_str(), request.service.as_str()), (PARENT, "rein-router"));
    assert_eq!(resume.parent, request.id);
    let accepted: u32 = resume.attributes["accepted"].parse().unwrap();
    assert!(accepted > 0 && !resume.attributes["reason"].is_empty(), "{resume:?}");
    // The other process's spans were lost with it.
    let sequence = one(&spans, "sequence");
    assert_eq!((&sequence.parent, &sequence.pid), (&resume.id, &pid));
    assert!([request, resume, sequence].iter().all(|span| span.state == "theirs=7"), "{spans:#?}");
    assert_eq!(
        (sequence.service.as_str(), &sequence.attributes["resumed_tokens"]),
        ("rein-worker", &accepted.to_string())
    );
    assert_eq!(one(&spans, "decode").parent, sequence.id);

    let id = &request.attributes["request_id"];
    let lines = log.lines();
    let lost = lines.iter().find(|line| line["fields"]["message"] == "lost the engine; resuming");
    assert_eq!(lost.map(|line| &line["fields"]["error"]), Some(&json!(resume.attributes["reason"])));
    for message in ["lost the engine; resuming", "the request ended"] {
        let line = lines.iter().find(|line| line["fields"]["message"] == message);
        assert_eq!(line.map(|line| &line["span"]["request_id"]), Some(&json!(id)), "{message}: {lines:#?}");
    }
}
