//! What holds at every endpoint that uses an engine: API keys, rates, priorities, deadlines, metrics, and the shape of
//! errors.

use serde_json::json;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::{
    fake::Ending,
    keys_and_queue::{KEY, OTHER, guarded, keyed, waiting},
    *,
};

/// The tokens of every answer: two of the script, and the stop token.
const GENERATED: usize = 3;

struct Endpoint {
    path: &'static str,
    /// The label `endpoint` of its metrics.
    name: &'static str,
    /// The request's fields besides `model`, `priority` and the text.
    body: fn() -> Value,
    /// The field with the text, and whether it is a conversation.
    text: (&'static str, bool),
    embeds: bool,
    /// The types of its errors: for a wrong key, a rate, a full queue, a deadline.
    errors: [&'static str; 4],
    full: u16,
}

const OPENAI: [&str; 4] = ["invalid_request_error", "rate_limit_error", "rate_limit_error", "timeout_error"];

const ENDPOINTS: [Endpoint; 5] = [
    Endpoint {
        path: "/v1/chat/completions",
        name: "chat",
        body: || json!({"script": bytes("ab")}),
        text: ("messages", true),
        embeds: false,
        errors: OPENAI,
        full: 429,
    },
    Endpoint {
        path: "/v1/completions",
        name: "completions",
        body: || json!({"script": bytes("ab")}),
        text: ("prompt", false),
        embeds: false,
        errors: OPENAI,
        full: 429,
    },
    Endpoint {
        path: "/v1/responses",
        name: "responses",
        body: || json!({"script": bytes("ab")}),
        text: ("input", false),
        embeds: false,
        errors: OPENAI,
        full: 429,
    },
    Endpoint {
        path: "/v1/messages",
        name: "messages",
        body: || json!({"script": bytes("ab"), "max_tokens": 9}),
        text: ("messages", true),
        embeds: false,
        errors: ["authentication_error", "rate_limit_error", "overloaded_error", "timeout_error"],
        full: 529,
    },
    Endpoint {
        path: "/v1/embeddings",
        name: "embeddings",
        body: || json!({}),
        text: ("input", false),
        embeds: true,
        errors: OPENAI,
        full: 429,
    },
];

impl Endpoint {
    fn fake(&self, ending: Ending) -> Fake {
        Fake { embedding_size: if self.embeds { 4 } else { 0 }, ..Fake::ending(ending) }
    }

    fn body(&self, text: &str) -> Value {
        let mut body = (self.body)();
        body["model"] = "bytes".into();
        body[self.text.0] = if self.text.1 { json!([{"role": "user", "content": text}]) } else { text.into() };
        body
    }

    async fn ask(&self, router: &TestRouter, key: &str, text: &str) -> Answer {
        Answer::of(router.send(keyed("POST", self.path, key, self.body(text))).await).await
    }

    /// Sends a request, and does not wait for its answer.
    fn send(&self, router: &TestRouter, key: &str, body: Value) -> JoinHandle<Answer> {
        let answer = router.router.http().oneshot(keyed("POST", self.path, key, body));
        tokio::spawn(async { Answer::of(answer.await.unwrap()).await })
    }

    /// Checks the status and the type of an error. `kind` is a place in `errors`.
    fn check_error(&self, answer: &Answer, status: u16, kind: usize) {
        let found = (answer.status.as_u16(), answer.json()["error"]["type"].clone());
        assert_eq!(found, (status, self.errors[kind].into()), "{}: {}", self.path, answer.text);
    }
}

async fn metric(router: &TestRouter, line: &str) {
    let metrics = router.get("/metrics").await.text;
    assert!(metrics.lines().any(|have| have == line), "{line}\n{metrics}");
}

#[tokio::test]
async fn every_endpoint_needs_a_key_and_charges_its_tokens() {
    for endpoint in &ENDPOINTS {
        let (_file, _, router) = guarded("", RouterConfig::default(), endpoint.fake(Ending::Finish));
        endpoint.check_error(&endpoint.ask(&router, "sk-wrong", "hello").await, 401, 0);
        assert!(router.fake.starts().is_empty());
        endpoint.ask(&router, KEY, "hello").await.ok();
        let prompt = router.fake.starts()[0].prompt.len();
        let generated = if endpoint.embeds { 0 } else { GENERATED };
        metric(&router, &format!("rein_key_tokens_total{{key=\"team-a\"}} {}", prompt + generated)).await;
        metric(&router, "rein_key_requests_total{key=\"team-a\"} 1").await;
        metric(&router, "rein_key_requests_total{key=\"team-b\"} 0").await;
        metric(&router, "rein_unauthenticated_total 1").await;
        let name = endpoint.name;
        metric(&router, &format!("rein_requests_total{{surface=\"http\",endpoint=\"{name}\",status=\"200\"}} 1")).await;
        metric(&router, &format!("rein_prompt_tokens_total {prompt}")).await;
        metric(&router, "rein_generation_duration_seconds_count 1").await;
        metric(&router, "rein_open_streams 0").await;
        metric(&router, "rein_requests_in_flight 0").await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_endpoint_keeps_to_the_rates_of_a_key() {
    for endpoint in &ENDPOINTS {
        for (limits, said, left) in [
            ("requests_per_minute = 1", "1 requests per minute", "x-ratelimit-remaining-requests"),
            ("tokens_per_minute = 4", "4 tokens per minute", "x-ratelimit-remaining-tokens"),
        ] {
            let (_file, _, router) = guarded(limits, RouterConfig::default(), endpoint.fake(Ending::Finish));
            endpoint.ask(&router, KEY, "hello").await.ok();
            let limited = endpoint.ask(&router, KEY, "hello").await;
            endpoint.check_error(&limited, 429, 1);
            assert!(limited.text.contains(said), "{}: {}", endpoint.path, limited.text);
            assert_eq!(limited.header(left), "0", "{}", endpoint.path);
            assert!(limited.header("retry-after").parse::<u64>().unwrap() > 0, "{}", endpoint.path);
            endpoint.ask(&router, OTHER, "hello").await.ok();
        }
    }
}

#[tokio::test]
async fn every_endpoint_counts_against_the_keys_requests_in_flight() {
    for endpoint in &ENDPOINTS {
        let fake = endpoint.fake(Ending::Prefill);
        let (_file, _, router) = guarded("max_in_flight = 1", RouterConfig::default(), fake);
        let open = endpoint.send(&router, KEY, endpoint.body("first"));
        router.fake.open(1).await;
        let second = endpoint.ask(&router, KEY, "second").await;
        endpoint.check_error(&second, 429, 1);
        assert!(second.text.contains("1 requests at once"), "{}: {}", endpoint.path, second.text);
        let other = endpoint.send(&router, OTHER, endpoint.body("other"));
        router.fake.open(2).await;
        open.abort();
        router.fake.open(1).await;
        let again = endpoint.send(&router, KEY, endpoint.body("again"));
        router.fake.open(2).await;
        again.abort();
        other.abort();
    }
}

#[tokio::test]
async fn every_endpoint_waits_by_priority_and_is_refused_when_the_queue_is_full() {
    for endpoint in &ENDPOINTS {
        let config = RouterConfig { max_in_flight: 1, max_queued: 2, ..RouterConfig::default() };
        let router = TestRouter::with(config, endpoint.fake(Ending::Prefill));
        let send = |text: &str, priority: i64| {
            let mut body = endpoint.body(text);
            body["priority"] = priority.into();
            endpoint.send(&router, "", body)
        };
        let first = send("first", 0);
        router.fake.open(1).await;
        let late = send("late", 5);
        waiting(&router, 1).await;
        let urgent = send("urgent", -5);
        waiting(&router, 2).await;
        let full = endpoint.ask(&router, "", "full").await;
        endpoint.check_error(&full, endpoint.full, 2);
        assert_eq!(full.header("retry-after"), "1", "{}", endpoint.path);
        let name = endpoint.name;
        let status = endpoint.full;
        let line = format!("rein_requests_total{{surface=\"http\",endpoint=\"{name}\",status=\"{status}\"}} 1");
        metric(&router, &line).await;
        for (ends, next) in [(first, "urgent"), (urgent, "late")] {
            let seen = router.fake.starts().len();
            ends.abort();
            while router.fake.starts().len() == seen {
                tokio::task::yield_now().await;
            }
            let prompt = &router.fake.starts()[seen].prompt;
            assert!(prompt.windows(next.len()).any(|part| part == bytes(next)), "{}: {next}", endpoint.path);
        }
        late.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn every_endpoint_ends_at_its_deadline() {
    for endpoint in &ENDPOINTS {
        let router = TestRouter::with(RouterConfig::default(), endpoint.fake(Ending::Prefill));
        let mut request = keyed("POST", endpoint.path, "", endpoint.body("hello"));
        request.headers_mut().insert("x-request-timeout", "0.5".parse().unwrap());
        endpoint.check_error(&Answer::of(router.send(request).await).await, 504, 3);
        router.fake.open(0).await;
        let name = endpoint.name;
        metric(&router, &format!("rein_requests_total{{surface=\"http\",endpoint=\"{name}\",status=\"504\"}} 1")).await;
        metric(&router, "rein_finished_total{model=\"bytes\",reason=\"deadline_exceeded\"} 1").await;
        metric(&router, "rein_requests_in_flight 0").await;
    }
}

#[tokio::test]
async fn a_key_with_few_slots_computes_fewer_embeddings_at_once() {
    let endpoint = &ENDPOINTS[4];
    let (_file, _, router) = guarded("max_in_flight = 2", RouterConfig::default(), endpoint.fake(Ending::Finish));
    let body = |inputs: usize| json!({"model": "bytes", "input": vec!["a"; inputs]});
    let answer = endpoint.send(&router, KEY, body(40)).await.unwrap().ok();
    assert_eq!(answer["data"].as_array().unwrap().len(), 40);
    let (_file, _, router) = guarded("max_in_flight = 2", RouterConfig::default(), endpoint.fake(Ending::Prefill));
    let open = endpoint.send(&router, KEY, body(40));
    router.fake.open(2).await;
    metric(&router, "rein_key_requests_in_flight{key=\"team-a\"} 2").await;
    metric(&router, "rein_in_flight_slots 2").await;
    endpoint.check_error(&endpoint.ask(&router, KEY, "more").await, 429, 1);
    assert_eq!(router.fake.starts().len(), 2);
    open.abort();
}
