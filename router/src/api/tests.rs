//! A conversation is the same job whichever API a client sends it to.

use std::collections::HashMap;

use rand::{Rng, SeedableRng, rngs::StdRng};
use rein_grammar::ToolChoice;
use rein_text::call_ids;
use serde_json::{Map, Value, json};

use super::{
    anthropic::{self, ThinkingSeal},
    known_tools::KnownTools,
    openai, responses,
};
use crate::{
    request::job::ChatJob,
    seal::{Seal, SealContext, SealPurpose},
};

/// Random conversations that are compared.
const ROUNDS: usize = 10_000;
const NAMES: [&str; 3] = ["read", "write_file", "find"];

/// The same conversation three times: bodies of chats, responses and messages.
struct Triplet {
    chat: Value,
    responses: Value,
    messages: Value,
}

/// Arguments and schemas: nested, with all kinds of values.
fn value(rng: &mut StdRng, depth: u32) -> Value {
    match rng.random_range(0..if depth == 0 { 4 } else { 6 }) {
        0 => Value::Null,
        1 => rng.random::<bool>().into(),
        2 => rng.random::<i32>().into(),
        3 => ["", "a \"b\"", "é火🙂\n", "<think>", "{\"a\": 1}"][rng.random_range(0..5)].into(),
        4 => (0..rng.random_range(0..3)).map(|_| value(rng, depth - 1)).collect(),
        _ => (0..rng.random_range(0..3)).map(|i| (format!("k{i}"), value(rng, depth - 1))).collect(),
    }
}

fn schema(rng: &mut StdRng, depth: u32) -> Value {
    match rng.random_range(0..if depth == 0 { 3 } else { 5 }) {
        0 => json!({"type": "string", "description": "é \"text\""}),
        1 => json!({"type": "integer", "minimum": rng.random::<i16>()}),
        2 => json!({"enum": ["a", 1, null]}),
        3 => json!({"type": "array", "items": schema(rng, depth - 1)}),
        _ => json!({"type": "object", "properties": {"x": schema(rng, depth - 1), "y": schema(rng, depth - 1)},
            "required": ["x"], "additionalProperties": false}),
    }
}

fn text(rng: &mut StdRng) -> String {
    let texts = ["Hello", "é火🙂", "two\nlines", "{\"a\": 1}", "<|im_end|>", "x-anthropic"];
    texts[rng.random_range(0..texts.len())].to_owned()
}

/// An assistant's turn with any of reasoning, text and parallel calls, and the results of the calls.
fn turn(rng: &mut StdRng, seal: &ThinkingSeal, calls: &mut usize, triplet: &mut [Vec<Value>; 3]) {
    let [chat, items, messages] = triplet;
    let (mut message, mut blocks) = (json!({"role": "assistant", "content": null}), Vec::new());
    if rng.random_bool(0.5) {
        let reasoning = text(rng);
        let signature = anthropic::signed_thinking(seal, "m", &reasoning);
        blocks.push(json!({"type": "thinking", "thinking": reasoning, "signature": signature}));
        let part = json!([{"type": "reasoning_text", "text": reasoning}]);
        items.push(json!({"type": "reasoning", "summary": [], "content": part}));
        message["reasoning_content"] = reasoning.into();
    }
    let made = rng.random_range(0..4);
    if made == 0 || rng.random_bool(0.5) {
        let text = text(rng);
        blocks.push(json!({"type": "text", "text": text}));
        let part = json!([{"type": "output_text", "text": text}]);
        items.push(json!({"type": "message", "role": "assistant", "content": part}));
        message["content"] = text.into();
    }
    let (mut results, mut of_chat) = (Vec::new(), Vec::new());
    for _ in 0..made {
        let id = format!("functions.{}:{}", NAMES[rng.random_range(0..NAMES.len())], *calls);
        let name = id.split(['.', ':']).nth(1).unwrap().to_owned();
        *calls += 1;
        let input = json!({"v": value(rng, 3)});
        let arguments = input.to_string();
        let function = json!({"name": name, "arguments": arguments});
        of_chat.push(json!({"id": id, "type": "function", "function": function}));
        items.push(json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments}));
        blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
        results.push((id, text(rng)));
    }
    if !of_chat.is_empty() {
        message["tool_calls"] = of_chat.into();
    }
    chat.push(message);
    messages.push(json!({"role": "assistant", "content": blocks}));
    let mut blocks = Vec::new();
    for (id, output) in results {
        chat.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
        items.push(json!({"type": "function_call_output", "call_id": id, "output": output}));
        blocks.push(json!({"type": "tool_result", "tool_use_id": id, "content": output}));
    }
    let next = text(rng);
    chat.push(json!({"role": "user", "content": next}));
    items.push(json!({"role": "user", "content": [{"type": "input_text", "text": next}]}));
    blocks.push(json!({"type": "text", "text": next}));
    messages.push(json!({"role": "user", "content": blocks}));
}

fn triplet(rng: &mut StdRng, seal: &ThinkingSeal) -> Triplet {
    let first = text(rng);
    let mut conversation = [
        vec![json!({"role": "user", "content": first})],
        vec![json!({"role": "user", "content": first})],
        vec![json!({"role": "user", "content": first})],
    ];
    let mut calls = 0;
    for _ in 0..rng.random_range(0..5) {
        turn(rng, seal, &mut calls, &mut conversation);
    }
    let [mut chat, items, messages] = conversation;
    let mut triplet = Triplet {
        chat: json!({"model": "m", "max_tokens": 77}),
        responses: json!({"model": "m", "max_output_tokens": 77, "input": items}),
        messages: json!({"model": "m", "max_tokens": 77, "messages": messages}),
    };
    if rng.random_bool(0.5) {
        let system = text(rng);
        chat.insert(0, json!({"role": "system", "content": system}));
        triplet.responses["instructions"] = system.as_str().into();
        triplet.messages["system"] = match rng.random_bool(0.5) {
            true => system.into(),
            false => json!([{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]),
        };
    }
    triplet.chat["messages"] = chat.into();
    let mut everywhere = Map::new();
    for (name, value) in [("temperature", json!(0.5)), ("top_p", json!(0.25)), ("top_k", json!(7)), ("seed", json!(9))]
    {
        if rng.random_bool(0.5) {
            everywhere.insert(name.into(), value);
        }
    }
    for body in [&mut triplet.chat, &mut triplet.responses, &mut triplet.messages] {
        body.as_object_mut().unwrap().extend(everywhere.clone());
    }
    if rng.random_bool(0.3) {
        triplet.chat["reasoning_effort"] = "high".into();
        triplet.responses["reasoning"] = json!({"effort": "high"});
        triplet.messages["output_config"] = json!({"effort": "high"});
    }
    if rng.random_bool(0.8) {
        add_tools(rng, &mut triplet);
    }
    triplet
}

fn add_tools(rng: &mut StdRng, triplet: &mut Triplet) {
    let (mut of_chat, mut of_responses, mut of_messages) = (Vec::new(), Vec::new(), Vec::new());
    for name in NAMES {
        let parameters = json!({"type": "object", "properties": {"v": schema(rng, 3)}});
        let mut function = json!({"name": name, "description": "does it", "parameters": parameters});
        let mut tool = json!({"name": name, "description": "does it", "input_schema": parameters});
        if rng.random_bool(0.3) {
            function["strict"] = true.into();
            tool["strict"] = true.into();
        }
        let mut own = function.clone();
        own["type"] = "function".into();
        // Clients of this API always say it, so `false` is left out of the prompt.
        if own.get("strict").is_none() {
            own["strict"] = [json!(false), json!(null)][rng.random_range(0..2)].clone();
        }
        of_responses.push(own);
        of_chat.push(json!({"type": "function", "function": function}));
        of_messages.push(tool);
    }
    triplet.chat["tools"] = of_chat.into();
    triplet.responses["tools"] = of_responses.into();
    triplet.messages["tools"] = of_messages.into();
    let parallel = rng.random_bool(0.7);
    triplet.chat["parallel_tool_calls"] = parallel.into();
    triplet.responses["parallel_tool_calls"] = parallel.into();
    let choice = ["auto", "none", "required", "find"][rng.random_range(0..4)];
    (triplet.chat["tool_choice"], triplet.responses["tool_choice"], triplet.messages["tool_choice"]) = match choice {
        "find" => (
            json!({"type": "function", "function": {"name": "find"}}),
            json!({"type": "function", "name": "find"}),
            json!({"type": "tool", "name": "find"}),
        ),
        "required" => (choice.into(), choice.into(), json!({"type": "any"})),
        choice => (choice.into(), choice.into(), json!({"type": choice})),
    };
    if !parallel {
        triplet.messages["tool_choice"]["disable_parallel_tool_use"] = true.into();
    }
}

/// All of a job that reaches the prompt, the grammar or the engine. Neither the order of a message's fields nor the
/// form of a call's arguments matters to a template.
fn essence(mut job: ChatJob) -> impl PartialEq + std::fmt::Debug {
    let native = |name: &str, index: usize| Some(format!("functions.{name}:{index}"));
    let calls = call_ids::assign_native_ids(&mut job.messages, native);
    for call in job.messages.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten() {
        let slot = &mut call["function"]["arguments"];
        if let Some(parsed) = slot.as_str().and_then(|text| serde_json::from_str(text).ok()) {
            *slot = parsed;
        }
    }
    let map = |value: &Value| value.as_object().unwrap().clone().into_iter().collect::<HashMap<_, _>>();
    let messages: Vec<_> = job.messages.iter().map(map).collect();
    let rules = (job.tool_choice, job.parallel_tool_calls, job.response.is_none(), job.exact.is_none());
    let (sampling, limits) = (job.generation.sampling, job.generation.limits);
    let template = (job.thinking, job.reasoning_effort, job.template_kwargs, job.continue_final_message);
    (job.model, messages, calls, job.tools, rules, sampling, limits, template, job.documents)
}

#[test]
fn random_conversations_are_the_same_job_through_all_three_apis() {
    let mut rng = StdRng::seed_from_u64(2025);
    let seal = Seal::new(&[7; 32]);
    let thinking = ThinkingSeal::new(&seal, None);
    let context = SealContext { purpose: SealPurpose::Reasoning, model: "m", caller: None };
    let open = |sealed: &str| String::from_utf8(seal.open(context, sealed)?).ok();
    let (mut parallel, mut forced) = (0, 0);
    let known = KnownTools::default();
    for round in 0..ROUNDS {
        let Triplet { chat, responses, messages } = triplet(&mut rng, &thinking);
        let chat_job = openai::chat(chat.to_string().as_bytes(), &known.chat).unwrap().value.job;
        let read = responses::request(responses.to_string().as_bytes(), &known.responses).unwrap();
        let response_job = { read.value }.prepare(Vec::new(), 0, &open).unwrap().job;
        let messages_job =
            anthropic::messages(messages.to_string().as_bytes(), &thinking, &known.messages).unwrap().value.job;
        for job in [&chat_job, &response_job, &messages_job] {
            job.check().unwrap_or_else(|error| panic!("round {round}: {error} in {chat:#}"));
        }
        parallel += usize::from(chat.to_string().matches("functions.").count() > 4);
        forced += usize::from(!matches!(chat_job.tool_choice, ToolChoice::Auto | ToolChoice::None));
        let expected = essence(chat_job);
        assert_eq!(essence(response_job), expected, "round {round}: {responses:#}");
        assert_eq!(essence(messages_job), expected, "round {round}: {messages:#}");
    }
    assert!(parallel > ROUNDS / 5 && forced > ROUNDS / 5, "{parallel} {forced}");
}
