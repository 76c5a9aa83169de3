//! `rein serve` as a process: listeners, draining, recovery.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::json;

use super::process::{Server, demo_model, read_response, rein};

fn chat(content: &str, max_tokens: u32) -> serde_json::Value {
    json!({"model": "demo", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": 0})
}

#[test]
fn serves_the_demo_model_and_stops_on_sigterm() {
    let server = Server::start(&[]);
    assert_eq!(server.request("GET", "/health", "").status, 200);
    assert_eq!(server.request("GET", "/ready", "").status, 200);
    let answer = server.post("/v1/chat/completions", chat("hello", 24));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.head.to_lowercase().contains("\r\nx-request-id: "), "{answer:?}");
    std::net::TcpStream::connect(server.grpc).expect("gRPC listens");
    let answer = answer.json();
    let message = &answer["choices"][0]["message"];
    assert!(message["content"].as_str().is_some_and(|c| !c.is_empty()), "{answer}");
    assert!(answer["usage"]["completion_tokens"].as_u64().is_some_and(|n| n > 0), "{answer}");
    let base = format!("http://{}", server.http);
    server.signal("TERM");
    let (status, rest) = server.wait();
    assert!(status.success(), "{status}");
    assert!(rest.contains("rein: stopped"), "{rest:?}");
    let expected = [
        ("model", "(DeepseekV3ForCausalLM)"),
        ("format", "kimi_k2"),
        ("weights", "bf16, "),
        ("context", "4096 tokens"),
        ("API", &format!("{base}/v1")),
        ("playground", &format!("{base}/")),
        ("metrics", &format!("{base}/metrics")),
    ];
    for (label, value) in expected {
        let row = rest.lines().find(|line| line.trim_start().starts_with(label));
        assert!(row.is_some_and(|row| row.contains(value)), "{label}: {value} in {rest}");
    }
}

#[test]
fn the_log_shows_loading_progress_and_warns_of_an_open_listener() {
    let start = |address: &str| {
        let mut command = rein();
        command.env("REIN_LOG", "info").args(["serve", "--http", address, "--grpc", "0", "--model"]).arg(demo_model());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("rein starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it listens");
        child.kill().expect("it runs");
        let output = child.wait_with_output().expect("ends");
        (line, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (line, log) = start("0");
    assert!(line.starts_with("rein: http listening on http://127.0.0.1:"), "{line}");
    assert!(log.contains("weights loaded: 10.4 MiB in "), "{log}");
    assert!(!log.contains("without an API key"), "{log}");
    let (_, log) = start(":0");
    let warning = log.lines().find(|line| line.contains("WARN")).unwrap_or_default();
    assert!(warning.contains("--http: 0.0.0.0:") && warning.contains("without an API key"), "{log}");
}

#[test]
fn tensor_parallel_ranks_give_the_same_greedy_answer() {
    let request = chat("What is the weather in Paris?", 32);
    let answers: Vec<serde_json::Value> = ["1", "2"]
        .iter()
        .map(|tp| {
            let server = Server::start(&["--tp", tp, "--dtype", "f32"]);
            server.post("/v1/chat/completions", request.clone()).json()["choices"].clone()
        })
        .collect();
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn an_open_stream_finishes_while_draining_and_new_requests_are_rejected() {
    let server = Server::start(&["--engine", "sim", "--sim-step-us", "20000"]);
    let mut request = chat("count", 60);
    request["stream"] = json!(true);
    request["ignore_eos"] = json!(true);
    let mut stream = server.send("POST", "/v1/chat/completions", &request.to_string());
    // The first byte shows that the request is admitted.
    let mut first = [0u8; 1];
    stream.read_exact(&mut first).expect("the stream begins");
    server.signal("TERM");
    // The listener stays open while draining, so that clients get a reason.
    let refused = loop {
        let answer = server.post("/v1/chat/completions", chat("too late", 1));
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!(refused.status, 503, "{refused:?}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream ends");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let (status, _) = server.wait();
    assert!(status.success());
}

#[test]
fn requests_open_at_the_end_of_the_drain_time_end_with_an_error() {
    let server = Server::start(&["--engine", "sim", "--sim-step-us", "20000", "--drain-seconds", "0"]);
    let mut request = chat("count", 3000);
    request["ignore_eos"] = json!(true);
    let whole = server.send("POST", "/v1/chat/completions", &request.to_string());
    request["stream"] = json!(true);
    let mut stream = server.send("POST", "/v1/chat/completions", &request.to_string());
    let mut first = [0u8; 1];
    stream.read_exact(&mut first).expect("the stream begins");
    server.signal("TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream ends");
    assert!(rest.contains("\"error\":{") && !rest.contains("[DONE]"), "{rest}");
    let whole = read_response(whole);
    assert_eq!(whole.status, 503, "{whole:?}");
    let (status, _) = server.wait();
    assert!(status.success());
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    let server = Server::start(&["--engine", "sim", "--sim-step-us", "5000", "--max-sequences", "1"]);
    let mut request = chat("leave", 4000);
    request["stream"] = json!(true);
    request["ignore_eos"] = json!(true);
    let mut stream = server.send("POST", "/v1/chat/completions", &request.to_string());
    let mut first = [0u8; 1];
    stream.read_exact(&mut first).expect("the stream begins");
    drop(stream);
    // 4,000 steps of 5 ms would take 20 s; the only slot must be free long before.
    let started = std::time::Instant::now();
    let answer = read_response(server.send("POST", "/v1/chat/completions", &chat("next", 4).to_string()));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(started.elapsed().as_secs() < 10, "the slot was not freed: {:?}", started.elapsed());
}

#[test]
fn bad_requests_leave_the_server_serving() {
    let server = Server::start(&["--engine", "sim"]);
    let cases = [
        ("{", "body"),
        (r#"{"model":"demo","messages":[]}"#, "messages"),
        (r#"{"model":"demo","messages":[{"role":"wizard","content":"x"}]}"#, "messages"),
        (r#"{"model":"demo","messages":[{"role":"user","content":"x"}],"temperature":-1}"#, "temperature"),
        (r#"{"model":"demo","messages":[{"role":"user","content":"x"}],"max_tokens":100000000}"#, "messages"),
    ];
    for (body, names) in cases {
        let answer = server.request("POST", "/v1/chat/completions", body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        let error = &answer.json()["error"];
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{answer:?}");
        assert!(names == "body" || error["param"].as_str().is_some_and(|p| p.starts_with(names)), "{body}: {error}");
    }
    assert_eq!(server.post("/v1/chat/completions", chat("still there?", 4)).status, 200);
}
