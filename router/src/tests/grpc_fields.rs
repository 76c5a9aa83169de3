//! gRPC request fields mean what the HTTP fields of the same name mean.

use std::collections::BTreeSet;

use prost::Message;
use rein_proto::v1::{self, response_format::Kind, tool_choice::Mode};
use serde_json::json;

use super::{
    grpc::{client, events, request},
    *,
};
use crate::api::{grpc, known_tools::KnownTools, openai};

type Set<T> = fn(&mut T);

fn sampling(request: &mut v1::ChatRequest) -> &mut v1::Sampling {
    request.sampling.get_or_insert_default()
}

fn of_limits(request: &mut v1::ChatRequest) -> &mut v1::Limits {
    request.limits.get_or_insert_default()
}

fn constrained(kind: Kind) -> Option<v1::ResponseFormat> {
    Some(v1::ResponseFormat { kind: Some(kind), whitespace_pattern: None })
}

/// The fields that a row sets, and a gRPC and an HTTP request of the same meaning.
const NUMBERS: &str = r#"{"type":"object","properties":{"a":{"enum":[1.5,12345678901234567890]}}}"#;

fn chat_rows() -> Vec<(&'static str, Set<v1::ChatRequest>, Value)> {
    vec![
        ("temperature", |r| sampling(r).temperature = Some(0.5), json!({"temperature": 0.5})),
        ("top_p", |r| sampling(r).top_p = Some(0.5), json!({"top_p": 0.5})),
        ("top_k", |r| sampling(r).top_k = Some(3), json!({"top_k": 3})),
        ("min_p", |r| sampling(r).min_p = Some(0.5), json!({"min_p": 0.5})),
        ("repetition_penalty", |r| sampling(r).repetition_penalty = Some(1.5), json!({"repetition_penalty": 1.5})),
        ("presence_penalty", |r| sampling(r).presence_penalty = Some(0.5), json!({"presence_penalty": 0.5})),
        ("frequency_penalty", |r| sampling(r).frequency_penalty = Some(0.5), json!({"frequency_penalty": 0.5})),
        ("logit_bias", |r| sampling(r).logit_bias = [(7, 1.5)].into(), json!({"logit_bias": {"7": 1.5}})),
        ("seed", |r| sampling(r).seed = Some(9), json!({"seed": 9})),
        ("allowed_token_ids", |r| sampling(r).allowed_token_ids = vec![1, 2], json!({"allowed_token_ids": [1, 2]})),
        ("bad_words", |r| sampling(r).bad_words = vec!["x".into()], json!({"bad_words": ["x"]})),
        ("max_tokens", |r| of_limits(r).max_tokens = Some(5), json!({"max_tokens": 5})),
        ("min_tokens", |r| of_limits(r).min_tokens = Some(2), json!({"min_tokens": 2})),
        ("stop", |r| of_limits(r).stop = vec!["x".into()], json!({"stop": ["x"]})),
        ("stop_token_ids", |r| of_limits(r).stop_token_ids = vec![3], json!({"stop_token_ids": [3]})),
        ("ignore_eos", |r| of_limits(r).ignore_eos = true, json!({"ignore_eos": true})),
        ("include_stop", |r| of_limits(r).include_stop = true, json!({"include_stop_str_in_output": true})),
        ("tools", |r| r.tools = vec![tool()], json!({"tools": [http_tool()]})),
        (
            // A number has its value in the grammar, and its text in the prompt.
            "tools",
            |r| r.tools = vec![v1::Tool { parameters_json: Some(NUMBERS.into()), ..tool() }],
            {
                let mut tool = http_tool();
                tool["function"]["parameters"] = serde_json::from_str(NUMBERS).unwrap();
                json!({"tools": [tool]})
            },
        ),
        (
            "tool_choice",
            |r| r.tool_choice = Some(v1::ToolChoice { mode: Mode::Named.into(), name: "f".into(), names: vec![] }),
            json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ),
        (
            "tool_choice",
            |r| {
                let (mode, names) = (Mode::Required.into(), vec!["f".into(), "g".into()]);
                r.tool_choice = Some(v1::ToolChoice { mode, name: String::new(), names });
            },
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                {"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]}}}),
        ),
        ("parallel_tool_calls", |r| r.parallel_tool_calls = Some(false), json!({"parallel_tool_calls": false})),
        ("top_logprobs", |r| r.top_logprobs = Some(2), json!({"logprobs": true, "top_logprobs": 2})),
        ("prompt_logprobs", |r| r.prompt_logprobs = Some(1), json!({"prompt_logprobs": 1})),
        ("thinking", |r| r.thinking = Some(true), json!({"thinking": true})),
        ("reasoning_effort", |r| r.reasoning_effort = Some("low".into()), json!({"reasoning_effort": "low"})),
        ("thinking_token_budget", |r| r.thinking_token_budget = Some(4), json!({"thinking_token_budget": 4})),
        (
            "finish_structured",
            |r| (r.finish_structured, r.response_format) = (true, constrained(Kind::JsonObject(true))),
            json!({"finish_structured": true, "response_format": {"type": "json_object"}}),
        ),
        ("truncate_prompt_tokens", |r| r.truncate_prompt_tokens = Some(4), json!({"truncate_prompt_tokens": 4})),
        ("truncate_prompt_tokens", |r| r.truncate_prompt_tokens = Some(-1), json!({"truncate_prompt_tokens": -1})),
        ("skip_special_tokens", |r| r.skip_special_tokens = Some(false), json!({"skip_special_tokens": false})),
        (
            "chat_template_kwargs_json",
            |r| r.chat_template_kwargs_json = Some("{\"k\": [1]}".into()),
            json!({"chat_template_kwargs": {"k": [1]}}),
        ),
        ("add_generation_prompt", |r| r.add_generation_prompt = Some(false), json!({"add_generation_prompt": false})),
        ("continue_final_message", |r| r.continue_final_message = Some(true), json!({"continue_final_message": true})),
        ("return_token_ids", |r| r.return_token_ids = true, json!({"return_token_ids": true})),
        ("return_grammar", |r| r.return_grammar = true, json!({"return_grammar": true})),
        ("return_decisions", |r| r.return_decisions = true, json!({"return_decisions": true})),
        ("cache_salt", |r| r.cache_salt = Some("s".into()), json!({"cache_salt": "s"})),
        ("n", |r| r.n = Some(3), json!({"n": 3})),
        ("user", |r| r.user = Some("u".into()), json!({"user": "u"})),
        ("priority", |r| r.priority = Some(-3), json!({"priority": -3})),
        ("script", |r| r.script = vec![97], json!({"script": [97]})),
        (
            "response_format",
            |r| r.response_format = constrained(Kind::JsonObject(true)),
            json!({"response_format": {"type": "json_object"}}),
        ),
        (
            "response_format",
            |r| {
                let schema_json = "{\"type\": \"integer\", \"maximum\": 2.5}".into();
                r.response_format =
                    constrained(Kind::JsonSchema(v1::response_format::JsonSchema { schema_json, strict: true }));
            },
            json!({"response_format": {"type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "integer", "maximum": 2.5}, "strict": true}}}),
        ),
        (
            "response_format",
            |r| r.response_format = constrained(Kind::Regex("a+".into())),
            json!({"structured_outputs": {"regex": "a+"}}),
        ),
        (
            "response_format",
            |r| {
                let options = vec!["a".into(), "b".into()];
                r.response_format = constrained(Kind::Choice(v1::response_format::Choice { options }));
            },
            json!({"structured_outputs": {"choice": ["a", "b"]}}),
        ),
        (
            "response_format",
            |r| r.response_format = constrained(Kind::Lark("start: \"a\"".into())),
            json!({"structured_outputs": {"grammar": "start: \"a\""}}),
        ),
        (
            "response_format",
            |r| {
                r.response_format =
                    constrained(Kind::StructuralTagJson("{\"format\": {\"type\": \"any_text\"}}".into()))
            },
            json!({"structured_outputs": {"structural_tag": {"format": {"type": "any_text"}}}}),
        ),
    ]
}

fn tool() -> v1::Tool {
    v1::Tool {
        name: "f".into(),
        description: Some("d".into()),
        parameters_json: Some("{\"type\": \"object\"}".into()),
        strict: Some(true),
    }
}

fn http_tool() -> Value {
    json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true}})
}

fn completion_rows() -> Vec<(&'static str, Set<v1::CompleteRequest>, Value)> {
    vec![
        ("logprobs", |r| r.logprobs = Some(2), json!({"logprobs": 2})),
        ("echo", |r| r.echo = true, json!({"echo": true})),
        ("return_token_ids", |r| r.return_token_ids = true, json!({"return_token_ids": true})),
        ("cache_salt", |r| r.cache_salt = Some("s".into()), json!({"cache_salt": "s"})),
        ("n", |r| r.n = Some(3), json!({"n": 3})),
        ("script", |r| r.script = vec![97], json!({"script": [97]})),
        ("prompt_logprobs", |r| r.prompt_logprobs = Some(1), json!({"prompt_logprobs": 1})),
        ("add_special_tokens", |r| r.add_special_tokens = Some(false), json!({"add_special_tokens": false})),
        ("skip_special_tokens", |r| r.skip_special_tokens = Some(false), json!({"skip_special_tokens": false})),
        ("priority", |r| r.priority = Some(2), json!({"priority": 2})),
        (
            "finish_structured",
            |r| (r.finish_structured, r.response_format) = (true, constrained(Kind::JsonObject(true))),
            json!({"finish_structured": true, "response_format": {"type": "json_object"}}),
        ),
        ("truncate_prompt_tokens", |r| r.truncate_prompt_tokens = Some(4), json!({"truncate_prompt_tokens": 4})),
        (
            "response_format",
            |r| r.response_format = constrained(Kind::Regex("a+".into())),
            json!({"structured_outputs": {"regex": "a+"}}),
        ),
        (
            "sampling",
            |r| r.sampling = Some(v1::Sampling { bad_words: vec!["x".into()], ..v1::Sampling::default() }),
            json!({"bad_words": ["x"]}),
        ),
        (
            "limits",
            |r| r.limits = Some(v1::Limits { min_tokens: Some(2), ..v1::Limits::default() }),
            json!({"min_tokens": 2}),
        ),
        (
            "token_ids",
            |r| r.prompt = Some(v1::complete_request::Prompt::TokenIds(v1::TokenIds { ids: vec![5] })),
            json!({"prompt": [5]}),
        ),
    ]
}

/// The names of a message's fields in inference.proto.
fn fields(message: &str) -> BTreeSet<String> {
    let files = prost_types::FileDescriptorSet::decode(rein_proto::DESCRIPTORS).unwrap().file;
    let messages = files.iter().filter(|file| file.package() == "rein.v1").flat_map(|file| &file.message_type);
    let found = messages.into_iter().find(|known| known.name() == message).unwrap();
    found.field.iter().map(|field| field.name().to_owned()).collect()
}

#[test]
fn every_chat_field_means_the_same_on_both_surfaces() {
    let default = format!("{:?}", grpc::request::chat(0, request(&[])).unwrap());
    for (name, set, more) in chat_rows() {
        let mut asked = request(&[]);
        set(&mut asked);
        let over_grpc = format!("{:?}", grpc::request::chat(0, asked).unwrap());
        let body = chat_request(&[], more).to_string();
        let over_http = format!("{:?}", openai::chat(body.as_bytes(), &KnownTools::default().chat).unwrap().value.job);
        assert_eq!(over_grpc, over_http, "{name}");
        assert_ne!(over_grpc, default, "{name}");
    }
    let tested: BTreeSet<String> = chat_rows().iter().map(|(name, ..)| (*name).to_owned()).collect();
    let nested = ["model", "messages", "sampling", "limits"].map(str::to_owned);
    let all = ["ChatRequest", "Sampling", "Limits"].iter().flat_map(|message| fields(message));
    let missing: Vec<String> = all.filter(|name| !tested.contains(name) && !nested.contains(name)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}

#[test]
fn every_completion_field_means_the_same_on_both_surfaces() {
    let asked = || v1::CompleteRequest {
        model: "bytes".into(),
        prompt: Some(v1::complete_request::Prompt::Text("a".into())),
        ..v1::CompleteRequest::default()
    };
    let default = format!("{:?}", grpc::request::complete(asked()).unwrap());
    for (name, set, more) in completion_rows() {
        let mut request = asked();
        set(&mut request);
        let over_grpc = format!("{:?}", grpc::request::complete(request).unwrap());
        let mut body = json!({"model": "bytes", "prompt": "a"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let over_http = format!("{:?}", openai::completion(body.to_string().as_bytes()).unwrap().value.job);
        assert_eq!(over_grpc, over_http, "{name}");
        assert_ne!(over_grpc, default, "{name}");
    }
    let tested: BTreeSet<&str> = completion_rows().iter().map(|(name, ..)| *name).collect();
    let missing: Vec<String> = fields("CompleteRequest")
        .into_iter()
        .filter(|name| !tested.contains(name.as_str()) && !["model", "text"].contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}

#[tokio::test]
async fn errors_of_invalid_values_equal_those_over_http() {
    let router = TestRouter::new();
    for (set, more) in [
        ((|r| r.truncate_prompt_tokens = Some(0)) as Set<v1::ChatRequest>, json!({"truncate_prompt_tokens": 0})),
        (|r| r.truncate_prompt_tokens = Some(-2), json!({"truncate_prompt_tokens": -2})),
        (|r| sampling(r).allowed_token_ids = vec![9999], json!({"allowed_token_ids": [9999]})),
        (|r| sampling(r).bad_words = vec![String::new()], json!({"bad_words": [""]})),
        (|r| of_limits(r).stop_token_ids = vec![9999], json!({"stop_token_ids": [9999]})),
        (|r| r.top_logprobs = Some(999), json!({"logprobs": true, "top_logprobs": 999})),
        (|r| r.response_format = constrained(Kind::Regex("(".into())), json!({"structured_outputs": {"regex": "("}})),
        (
            |r| r.response_format = constrained(Kind::Lark("start: start".into())),
            json!({"structured_outputs": {"grammar": "start: start"}}),
        ),
    ] {
        let mut asked = request(&[]);
        set(&mut asked);
        let status = client(&router).chat(asked).await.map(|_| ()).unwrap_err();
        let error = router.chat(&[], more.clone()).await.json()["error"].clone();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{more}");
        assert_eq!(status.message(), error["message"], "{more}");
        assert_eq!(status.metadata().get("rein-param").unwrap().to_str().unwrap(), error["param"], "{more}");
    }
    assert!(router.fake.starts().is_empty());
}

#[tokio::test]
async fn done_has_the_grammar_report_if_requested() {
    let router = TestRouter::new();
    for asked in [true, false] {
        let response_format = constrained(Kind::Choice(v1::response_format::Choice { options: vec!["yes".into()] }));
        let request = v1::ChatRequest { response_format, return_grammar: asked, ..request(&bytes("yes")) };
        let reports: Vec<_> = events(&router, request)
            .await
            .into_iter()
            .filter_map(|event| match event.event {
                Some(v1::chat_event::Event::Done(done)) => Some(done.grammar),
                _ => None,
            })
            .collect();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].as_ref().is_some_and(|report| report.checked > 0), asked, "{reports:?}");
        assert_eq!(reports[0].is_some(), asked);
    }
}

#[tokio::test]
async fn done_has_the_decisions_if_requested() {
    let router = TestRouter::new();
    for asked in [true, false] {
        let response_format = constrained(Kind::Choice(v1::response_format::Choice { options: vec!["yes".into()] }));
        let request = v1::ChatRequest {
            response_format,
            return_grammar: true,
            return_decisions: asked,
            return_token_ids: true,
            ..request(&bytes("yes"))
        };
        let (mut ids, mut decided) = (Vec::new(), Vec::new());
        for event in events(&router, request).await {
            ids.extend(event.token_ids);
            if let Some(v1::chat_event::Event::Done(done)) = event.event {
                decided.extend(done.grammar.unwrap().decisions);
            }
        }
        if !asked {
            assert_eq!(decided, []);
            continue;
        }
        assert!(!ids.is_empty());
        assert_eq!(decided.iter().map(|decision| decision.id).collect::<Vec<_>>(), ids);
        assert!(decided.iter().all(|decision| decision.kind() != v1::DecisionKind::Unspecified));
        assert_eq!(decided[0].token, b"y");
    }
}
