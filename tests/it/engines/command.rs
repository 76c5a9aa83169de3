//! `rein router --engine`, as a process in front of stubs.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use rein_adapter::EngineDialect;
use serde_json::Value;

use super::super::process::{Response, demo_model, get, read_response, rein, request_with};
use super::{StubEngine, StubFault, faulty, greedy, no_fault, stub};

/// A router, and the address of its HTTP API.
struct Front {
    child: Child,
    http: SocketAddr,
}

impl Front {
    fn start(engines: &[&StubEngine]) -> Front {
        let mut command = rein();
        command.args(["router", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]).arg(demo_model());
        for engine in engines {
            command.args(["--engine", &format!("{}={}", engine.dialect.name(), engine.url)]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("rein starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let http = line.trim().strip_prefix("rein: http listening on http://").expect("an address");
        Front { http: http.parse().expect("an address"), child }
    }

    fn chat(&self, request: &Value) -> Response {
        read_response(request_with(self.http, "/v1/chat/completions", "", &request.to_string()))
    }

    fn metrics(&self) -> String {
        read_response(get(self.http, "/metrics")).body
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_serves_in_front_of_engines_without_a_cluster() {
    // The first engine breaks in the middle of the answer.
    let first = stub(EngineDialect::Vllm, faulty(2..usize::MAX, StubFault::Cut(1))).await;
    let second = stub(EngineDialect::LlamaServer, no_fault()).await;
    let seen = tokio::task::spawn_blocking(move || {
        let front = Front::start(&[&first, &second]);
        let answers: Vec<Response> = (0..4).map(|i| front.chat(&greedy(i))).collect();
        (answers, front.metrics(), first, second)
    });
    let (answers, metrics, first, second) = seen.await.expect("no panic");
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    let call = answers[0].json();
    assert!(call["choices"][0]["message"]["tool_calls"][0].is_object(), "{call}");
    assert!(first.requests().len() + second.requests().len() > 8);
    for engine in ["kind=\"vllm\"", "kind=\"llama-server\"", "why=\"masked\""] {
        assert!(metrics.contains(engine), "{engine} in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_ends_with_the_reason_why_an_engine_does_not_fit() {
    let tokenize = |probe: &str| probe.bytes().map(u32::from).collect();
    let other = StubEngine::start(EngineDialect::Vllm, 400, &[], tokenize, no_fault()).await;
    let wrong = tokio::task::spawn_blocking(move || {
        let engine = format!("vllm={}", other.url);
        let mut command = rein();
        command.args(["router", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--engine", &engine, "--model"]);
        let output = command.arg(demo_model()).output().expect("rein runs");
        drop(other);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    });
    let (success, error) = wrong.await.expect("no panic");
    assert!(!success && error.contains("is refused: its tokenizer differs"), "{error}");
}
