//! Requests to jobs.

use std::collections::HashMap;

use rand::{Rng, SeedableRng, rngs::StdRng};
use rein_grammar::{Response, ToolChoice};
use rein_text::{call_ids, conversation::check_messages};

use super::*;
use crate::api::{
    anthropic::{origins::MessageOrigin, thinking::UnsignedThinking},
    openai,
};

fn conversation(messages: Value) -> Value {
    job(json!({"messages": messages})).messages.into()
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": "d", "input_schema": {"type": "object"}})
}

/// A thinking block with the signature that an answer would have.
fn thinking(text: &str, omitted: bool) -> Value {
    let mut thinking = UnsignedThinking::new(omitted);
    let shown = if thinking.push(text) { text } else { "" };
    json!({"type": "thinking", "thinking": shown, "signature": thinking.sign(&seal(), "m")})
}

#[test]
fn a_conversation_becomes_the_one_that_a_chat_client_would_send() {
    let messages = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [
            thinking("first the file", false),
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a/ß", "lines": [1, 2]}},
            {"type": "tool_use", "id": "toolu_2", "name": "ls", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
            {"type": "text", "text": "and now?", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_result", "tool_use_id": "toolu_1"},
        ]},
        {"role": "user", "content": "go on"},
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
    ]);
    let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let text = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(
        conversation(messages),
        json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "I look", "reasoning_content": "first the file", "tool_calls": [
                call("toolu_1", "read", json!({"path": "a/ß", "lines": [1, 2]})), call("toolu_2", "ls", json!({}))]},
            {"role": "tool", "tool_call_id": "toolu_2", "content": [text("x"), text("y")]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
            {"role": "user", "content": [text("and now?"), text("go on")]},
            {"role": "system", "content": "be brief"},
            {"role": "assistant", "content": "ab"},
            {"role": "user", "content": "c"},
        ])
    );
}

#[test]
fn system_texts_lose_the_billing_header_and_join_a_first_system_message() {
    let header = "x-anthropic-billing-header: cc_version=2.1.332.99f; cc_entrypoint=sdk-cli;";
    let system = json!([{"type": "text", "text": header}, {"type": "text", "text": "You are an agent."}]);
    let first = |more: Value| job(more).messages[0].clone();
    let plain = json!({"role": "system", "content": "You are an agent."});
    assert_eq!(first(json!({"system": system})), plain);
    assert_eq!(first(json!({"system": format!("{header}\nYou are an agent.")})), plain);
    assert_eq!(first(json!({"system": header})), json!({"role": "user", "content": "hi"}));
    assert_eq!(first(json!({"system": ""})), json!({"role": "user", "content": "hi"}));
    let joined = json!({"system": "a", "messages": [{"role": "system", "content": header}, {"role": "system", "content": "b"}, {"role": "user", "content": "q"}]});
    assert_eq!(
        job(joined).messages[0],
        json!({"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
    );
    // In a user's text it is text.
    let asked = json!({"messages": [{"role": "user", "content": header}]});
    assert_eq!(first(asked)["content"], header);
}

#[test]
fn failed_results_say_so() {
    let result = |content: Value| {
        let messages = json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": true}]},
        ]);
        conversation(messages)[2]["content"].clone()
    };
    assert_eq!(result(json!("no such file")), "Error: no such file");
    assert_eq!(result(json!("<tool_use_error>no</tool_use_error>")), "<tool_use_error>no</tool_use_error>");
    assert_eq!(result(json!([{"type": "text", "text": "exit code 1"}])), "Error: exit code 1");
    assert_eq!(result(Value::Null), "Error");
}

#[test]
fn thinking_comes_back_only_with_its_own_signature() {
    let reasoning = |blocks: Value| {
        let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": blocks}, {"role": "user", "content": "r"}]);
        let read = read(json!({"messages": messages})).unwrap();
        (read.value.job.messages[1]["reasoning_content"].clone(), read.ignored)
    };
    let text = json!({"type": "text", "text": "a"});
    assert_eq!(reasoning(json!([thinking("w1", false), thinking("w2", true), text])), (json!("w1w2"), vec![]));
    let mut changed = thinking("w", false);
    changed["thinking"] = "other".into();
    let foreign = json!({"type": "thinking", "thinking": "w", "signature": "EqQBCgIYAhIkYjE3"});
    let unsigned = json!({"type": "thinking", "thinking": "w"});
    let sealed = json!({"type": "redacted_thinking", "data": "x"});
    let mut shown = thinking("w", true);
    shown["thinking"] = "w".into();
    for block in [changed, foreign, unsigned, sealed, shown] {
        assert_eq!(reasoning(json!([block, text])), (Value::Null, vec!["messages[1].content[0]".to_owned()]));
    }
}

#[test]
fn parameters_reach_the_job() {
    let read = read(json!({
        "temperature": 1, "top_p": 0.5, "top_k": 5, "stop_sequences": ["x"], "seed": 3, "script": [1], "priority": -2,
        "thinking": {"type": "enabled", "budget_tokens": 7, "display": "omitted"},
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "metadata": {"user_id": "u"}, "stream": true, "chat_template_kwargs": {"a": 1},
        "cache_control": {"type": "ephemeral"}, "context_management": {"edits": []}, "service_tier": "auto",
        "mcp_servers": [{"url": "x"}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
        "tools": [
            {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}, "examples": [1]},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
    }));
    let ParsedBody { value, ignored, .. } = read.unwrap();
    let (job, generation) = (&value.job, &value.job.generation);
    assert!(value.stream && value.answer.omit_thinking && !job.parallel_tool_calls);
    assert_eq!((job.thinking, generation.thinking_token_budget), (Some(true), Some(7)));
    assert_eq!((job.reasoning_effort.as_deref(), generation.session.as_deref()), (Some("high"), Some("u")));
    assert_eq!((generation.sampling.temperature, generation.sampling.seed), (Some(1.0), Some(3)));
    assert_eq!(
        (generation.limits.max_tokens, generation.limits.stop.as_slice()),
        (Some(9), ["x".to_owned()].as_slice())
    );
    assert!(matches!(job.response, Some(Response::JsonSchema { strict: false, .. })));
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(*job.tools, [json!({"type": "function", "function": function})]);
    assert_eq!(ignored, ["tools[1].web_search", "mcp_servers", "tools[0].examples"]);
    for (kind, on) in [("adaptive", true), ("disabled", false)] {
        assert_eq!(super::job(json!({"thinking": {"type": kind}})).thinking, Some(on));
    }
    assert_eq!(super::job(json!({})).thinking, None);
}

#[test]
fn tool_choices_are_those_of_chats() {
    let choice = |choice: Value| job(json!({"tools": [tool("f"), tool("g")], "tool_choice": choice})).tool_choice;
    assert_eq!(choice(json!({"type": "auto"})), ToolChoice::Auto);
    assert_eq!(choice(json!({"type": "any"})), ToolChoice::Required);
    assert_eq!(choice(json!({"type": "none"})), ToolChoice::None);
    assert_eq!(choice(json!({"type": "tool", "name": "g"})), ToolChoice::Named("g".into()));
}

#[test]
fn tools_that_a_search_has_not_loaded_are_left_out() {
    let mut deferred = tool("late");
    deferred["defer_loading"] = true.into();
    let names = |messages: Value| -> Vec<Value> {
        let tools = json!([tool("search"), deferred]);
        job(json!({"messages": messages, "tools": tools}))
            .tools
            .iter()
            .map(|tool| tool["function"]["name"].clone())
            .collect()
    };
    assert_eq!(names(json!([{"role": "user", "content": "q"}])), ["search"]);
    let found = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "late"}]}]},
    ]);
    assert_eq!(names(found), ["search", "late"]);
    let change = |kind: &str, name: &str| json!({"type": kind, "tool": {"type": "tool_reference", "name": name}});
    let changed = |blocks: Value| json!([{"role": "user", "content": "q"}, {"role": "system", "content": blocks}]);
    assert_eq!(names(changed(json!([change("tool_addition", "late"), change("tool_removal", "search")]))), ["late"]);
    let back = json!([change("tool_removal", "search"), change("tool_addition", "search")]);
    assert_eq!(names(changed(back)), ["search"]);
    let inline = json!([{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {}}}]);
    assert_eq!(refused(json!({"messages": changed(inline)})).0, "messages[1].content[0].tool.type");
}

#[test]
fn a_system_message_may_be_for_one_turn() {
    let system = json!({"role": "system", "content": "now", "clear_at": "next_user_message"});
    let user = |text: &str| json!({"role": "user", "content": text});
    assert_eq!(conversation(json!([user("a"), system])).as_array().unwrap().len(), 2);
    let later = conversation(json!([user("a"), system, {"role": "assistant", "content": "b"}, user("c")]));
    assert_eq!(later, json!([user("a"), {"role": "assistant", "content": "b"}, user("c")]));
}

#[test]
fn wrong_fields_are_named_as_the_client_wrote_them() {
    let said = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let answered = |block: Value| json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [block]}]});
    for (more, param) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [7]}), "messages[0]"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": []}]}), "messages[0].content"),
        (said(json!({"type": "image", "source": {}})), "messages[0].content[0].type"),
        (said(json!({"type": "document", "source": {}})), "messages[0].content[0].type"),
        (said(json!({"type": "text"})), "messages[0].content[0].text"),
        (said(json!({"text": "x"})), "messages[0].content[0].type"),
        (said(json!({"type": "tool_result", "tool_use_id": "no"})), "messages[0].content[0].tool_use_id"),
        (answered(json!({"type": "tool_use", "id": "a", "name": "f", "input": {}})), "messages[1]"),
        (answered(json!({"type": "text", "text": ""})), "messages[1].content"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"system": 7}), "system"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
        (json!({"tools": [{"type": "function", "name": "f", "input_schema": {}}]}), "tools[0].type"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice.name"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice.type"),
        (
            json!({"tool_choice": {"type": "tool", "name": "web"}, "tools": [{"type": "web_search_20250305", "name": "web"}]}),
            "tool_choice.name",
        ),
        (json!({"thinking": {"type": "always"}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled", "display": "full"}}), "thinking.display"),
        (json!({"output_config": {"effort": "huge"}}), "output_config.effort"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
        (json!({"temperature": 1.5}), "temperature"),
        (json!({"stop_sequences": [1]}), "stop_sequences[0]"),
        (json!({"stop": ["x"]}), "stop"),
        (json!({"n": 2}), "n"),
        (json!({"mirostat": 1}), "mirostat"),
        (json!({"thread": {"type": "create"}}), "thread"),
    ] {
        let (found, message) = refused(more.clone());
        assert_eq!(found, param, "{more}: {message}");
        assert!(message.contains(param), "{more}: {message}");
    }
}

#[test]
fn later_errors_are_named_as_the_client_wrote_them() {
    let messages = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "t", "name": "bad name", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}, {"type": "text", "text": "b"}]},
    ]);
    let tools = json!([{"type": "bash_20250124", "name": "bash"}, tool("f"), tool("f")]);
    let value = read(json!({"system": "s", "messages": messages, "tools": tools})).unwrap().value;
    let renamed = |param: &str, message: &str| {
        let error = value.origins.rename(Error::invalid(param, message));
        (error.param.unwrap(), error.message)
    };
    let check = value.job.check().unwrap_err();
    assert_eq!(value.origins.rename(check).param.as_deref(), Some("messages[1].content[1].name"));
    for (from, to) in [
        ("messages[0].content", "system"),
        ("messages[1].content", "messages[0].content"),
        ("messages[3].tool_call_id", "messages[2].content[0].tool_use_id"),
        ("messages[4].content[0].text", "messages[2].content[1].text"),
        ("messages[2].tool_calls[0].function.arguments", "messages[1].content[1].input"),
        ("messages[9].content", "messages[9].content"),
        ("tools[0].function.parameters", "tools[1].input_schema"),
        ("tools[1].function.name", "tools[2].name"),
        ("tools[f].function.parameters", "tools[1].input_schema"),
        ("stop[3]", "stop_sequences[3]"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("reasoning_effort", "output_config.effort"),
    ] {
        let (param, message) = renamed(from, &format!("'{from}' is wrong, unlike xmessages[0] and {from}: '{from}'"));
        assert_eq!((param.as_str(), message), (to, format!("'{to}' is wrong, unlike xmessages[0] and {to}: '{to}'")));
    }
    let long = Error { code: Some("context_length_exceeded"), ..Error::invalid("messages", "the prompt has 9 tokens") };
    assert_eq!(value.origins.rename(long).message, "prompt is too long: the prompt has 9 tokens");
    assert_eq!(MessageOrigin::default().at, "");
}

#[test]
fn large_numbers_keep_their_digits() {
    let body = r#"{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"n": 123456789012345678901234567890, "x": 1.10}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object", "maximum": 123456789012345678901234567890}}]}"#;
    let read = messages(body.as_bytes(), &seal(), &KnownTools::default().messages).unwrap();
    let arguments = &read.value.job.messages[1]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments["n"], "\u{F0002}123456789012345678901234567890");
    assert_eq!(arguments["x"], "\u{F0002}1.10");
    let exact = read.value.job.tools.exact();
    assert!(
        exact[0]["function"]["parameters"]["maximum"].as_str().unwrap().ends_with("123456789012345678901234567890")
    );
}

/// A random conversation, as a chat client and as a client of this API would send it.
struct Twin {
    chat: Vec<Value>,
    own: Vec<Value>,
}

fn value(rng: &mut StdRng, depth: u32) -> Value {
    match rng.random_range(0..if depth == 0 { 4 } else { 6 }) {
        0 => Value::Null,
        1 => rng.random::<bool>().into(),
        2 => rng.random::<i32>().into(),
        3 => ["", "a \"b\"", "é火🙂\n", "x-anthropic-billing-header: no"][rng.random_range(0..4)].into(),
        4 => (0..rng.random_range(0..3)).map(|_| value(rng, depth - 1)).collect(),
        _ => (0..rng.random_range(0..3)).map(|i| (format!("k{i}"), value(rng, depth - 1))).collect(),
    }
}

fn twin(rng: &mut StdRng) -> Twin {
    let (mut chat, mut own) = (Vec::new(), Vec::new());
    let mut calls = 0;
    for turn in 0..rng.random_range(1..6) {
        let text = format!("question {turn}");
        chat.push(json!({"role": "user", "content": text}));
        own.push(match rng.random_bool(0.5) {
            true => json!({"role": "user", "content": text}),
            false => json!({"role": "user", "content": [{"type": "text", "text": text}]}),
        });
        for _ in 0..rng.random_range(0..3) {
            let (mut blocks, mut made, mut results, mut answers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let mut message = json!({"role": "assistant", "content": null});
            if rng.random_bool(0.5) {
                let reasoning = format!("thought {calls}");
                blocks.push(thinking(&reasoning, rng.random_bool(0.3)));
                message["reasoning_content"] = reasoning.into();
            }
            if rng.random_bool(0.5) {
                message["content"] = "text".into();
                blocks.extend([json!({"type": "text", "text": "te"}), json!({"type": "text", "text": "xt"})]);
            }
            for _ in 0..rng.random_range(1..4) {
                let (own_id, id) = (format!("toolu_{calls}"), format!("functions.f:{calls}"));
                calls += 1;
                let input = json!({"v": value(rng, 2)});
                let arguments = input.to_string();
                made.push(json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}));
                blocks.push(json!({"type": "tool_use", "id": own_id, "name": "f", "input": input}));
                answers.push(json!({"role": "tool", "tool_call_id": id, "content": "r"}));
                results.push(json!({"type": "tool_result", "tool_use_id": own_id, "content": "r"}));
            }
            // Results may come in any order.
            let last = results.len() - 1;
            answers.swap(0, last);
            results.swap(0, last);
            message["tool_calls"] = made.into();
            chat.push(message);
            chat.extend(answers);
            own.extend([json!({"role": "assistant", "content": blocks}), json!({"role": "user", "content": results})]);
        }
        chat.push(json!({"role": "assistant", "content": "answer"}));
        own.push(json!({"role": "assistant", "content": "answer"}));
    }
    chat.push(json!({"role": "user", "content": "last"}));
    own.push(json!({"role": "user", "content": "last"}));
    Twin { chat, own }
}

#[test]
fn random_conversations_are_the_same_job_as_in_a_chat() {
    let mut rng = StdRng::seed_from_u64(25);
    for _ in 0..10_000 {
        let Twin { chat, own } = twin(&mut rng);
        let body = json!({"model": "m", "messages": chat}).to_string();
        let mut expected = openai::chat(body.as_bytes(), &KnownTools::default().chat).unwrap().value.job.messages;
        let mut found = job(json!({"messages": own})).messages;
        check_messages(&found).unwrap();
        // Inside, both have the model's own ids.
        let native = |name: &str, index: usize| Some(format!("functions.{name}:{index}"));
        let count = call_ids::assign_native_ids(&mut expected, native);
        assert_eq!(call_ids::assign_native_ids(&mut found, native), count);
        // A chat has the arguments as text.
        for call in expected.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten() {
            let slot = &mut call["function"]["arguments"];
            *slot = serde_json::from_str(slot.as_str().unwrap()).unwrap();
        }
        // Order of the fields does not matter to a template.
        let sorted = |messages: &[Value]| -> Vec<HashMap<String, Value>> {
            messages.iter().map(|message| message.as_object().unwrap().clone().into_iter().collect()).collect()
        };
        assert_eq!(sorted(&found), sorted(&expected));
    }
}

#[test]
fn random_bodies_do_not_panic() {
    let mut rng = StdRng::seed_from_u64(26);
    let names = [
        "system",
        "messages",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "metadata",
        "stop_sequences",
        "max_tokens",
    ];
    for _ in 0..20_000 {
        let mut more = json!({});
        for name in names {
            if rng.random_bool(0.2) {
                more[name] = value(&mut rng, 3);
            }
        }
        if rng.random_bool(0.5) {
            let kinds = ["text", "thinking", "tool_use", "tool_result", "image", "x"];
            let mut block = json!({"type": kinds[rng.random_range(0..kinds.len())]});
            for name in ["text", "thinking", "signature", "id", "name", "input", "tool_use_id", "content"] {
                if rng.random_bool(0.4) {
                    block[name] = value(&mut rng, 2);
                }
            }
            let role = ["user", "assistant", "system"][rng.random_range(0..3)];
            more["messages"] = json!([{"role": role, "content": [block]}]);
        }
        let _ = read(more);
    }
}
