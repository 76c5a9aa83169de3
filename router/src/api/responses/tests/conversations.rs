//! A conversation in items gives the messages that a chat would have.

use std::sync::Arc;

use rand::{Rng, SeedableRng, rngs::StdRng};
use rein_text::fields::Fields;
use serde_json::{Map, Value, json};

use super::super::{
    custom_input,
    items::{ConvertedInput, InputConverter},
    output,
    tools::{ToolTable, convert},
};
use crate::error::Error;

/// Random conversations that are compared.
const ROUNDS: usize = 10_000;

fn tools() -> Arc<ToolTable> {
    let tools = json!([
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "c"},
        {"type": "namespace", "name": "n",
         "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]},
    ]);
    let fields = Fields::within("", Map::from_iter([("tools".to_owned(), tools)]));
    fields.read(convert).map_err(|error: Error| error).unwrap().value.table.clone()
}

/// `sealed:TEXT` opens to the text.
fn open(sealed: &str) -> Option<String> {
    sealed.strip_prefix("sealed:").map(str::to_owned)
}

fn converted(tools: &ToolTable, items: &[Value]) -> Result<ConvertedInput, Error> {
    let mut converter = InputConverter::new(tools, &open);
    for (i, item) in items.iter().enumerate() {
        converter.item(&format!("input[{i}]"), item.clone(), &mut Fields::within("", Map::new()))?;
    }
    Ok(converter.finish())
}

fn text(rng: &mut StdRng) -> String {
    let texts = ["Hello", "é火🙂", "two\nlines", "{\"a\": 1}", " ", "<think>"];
    texts[rng.random_range(0..texts.len())].to_owned()
}

/// The same conversation twice.
#[derive(Default)]
struct Conversation {
    messages: Vec<Value>,
    items: Vec<Value>,
    calls: usize,
    responses: u128,
}

impl Conversation {
    fn say(&mut self, rng: &mut StdRng) {
        let role = ["user", "user", "system", "developer"][rng.random_range(0..4)];
        let text = text(rng);
        self.messages.push(json!({"role": role, "content": text}));
        let content = match rng.random_bool(0.5) {
            true => json!([{"type": "input_text", "text": text}]),
            false => text.into(),
        };
        self.items.push(json!({"role": role, "content": content}));
    }

    /// An answer with any of reasoning, text and calls, and the results of the calls.
    fn answer(&mut self, rng: &mut StdRng) {
        let (reasons, writes, calls) = (rng.random_bool(0.5), rng.random_bool(0.6), rng.random_range(0..4));
        let mut message = json!({"role": "assistant", "content": null});
        let own = rng.random_bool(0.5).then(|| format!("{:032x}", self.responses));
        self.responses += 1;
        let (mut items, mut results) = (Vec::new(), Vec::new());
        if reasons {
            let text = text(rng);
            items.push(match rng.random_bool(0.5) {
                true => json!({"type": "reasoning", "summary": [], "encrypted_content": format!("sealed:{text}")}),
                false => {
                    json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]})
                }
            });
            message["reasoning_content"] = text.into();
        }
        if writes {
            let mut whole = text(rng);
            items.push(
                json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": whole}]}),
            );
            if own.is_some() && rng.random_bool(0.3) {
                // The model wrote on after something that is no text.
                let more = text(rng);
                items.push(json!({"type": "message", "role": "assistant", "content": more}));
                whole.push_str(&more);
            }
            message["content"] = whole.into();
        }
        for _ in 0..calls {
            let (id, written) = (format!("call_{}", self.calls), text(rng));
            self.calls += 1;
            let namespace = rng.random_bool(0.5).then_some("n");
            let (kind, name, arguments) = match rng.random_bool(0.5) {
                true => ("custom_tool_call", "c", custom_input::arguments(&written)),
                false => ("function_call", "f", json!({"text": written}).to_string()),
            };
            let field = if kind == "function_call" { ("arguments", &arguments) } else { ("input", &written) };
            let mut item = json!({"type": kind, "call_id": id, "name": name, "status": "completed"});
            item[field.0] = field.1.as_str().into();
            item["namespace"] = namespace.into();
            items.push(item);
            let function = if namespace.is_some() { format!("n__{name}") } else { name.to_owned() };
            let call = json!({"id": id, "type": "function", "function": {"name": function, "arguments": arguments}});
            match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            }
            results.push((kind, id, text(rng)));
        }
        if items.is_empty() {
            return;
        }
        for (i, item) in items.iter_mut().enumerate() {
            item["id"] = own.as_ref().map(|own| format!("x_{own}_{i}")).into();
        }
        self.items.extend(items);
        self.messages.push(message);
        for (kind, id, text) in results {
            self.items.push(json!({"type": format!("{kind}_output"), "call_id": id, "output": text}));
            self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
        }
        // Two answers in a row are two messages only if something separates them.
        self.say(rng);
    }
}

#[test]
fn random_conversations_are_the_same_in_items_and_messages() {
    let (mut rng, tools) = (StdRng::seed_from_u64(25), tools());
    for round in 0..ROUNDS {
        let mut conversation = Conversation::default();
        for _ in 0..rng.random_range(1..6) {
            match rng.random_bool(0.3) {
                true => conversation.say(&mut rng),
                false => conversation.answer(&mut rng),
            }
        }
        let converted = converted(&tools, &conversation.items).unwrap();
        assert_eq!(converted.messages, conversation.messages, "round {round}: {:#?}", conversation.items);
        assert_eq!(converted.origins.len(), converted.messages.len());
    }
}

#[test]
fn items_of_several_answers_in_a_row_are_told_apart() {
    let tools = tools();
    let (a, b) = ("a".repeat(32), "b".repeat(32));
    let message = |id: &str, text: &str| json!({"type": "message", "id": id, "role": "assistant", "content": text});
    let call = |id: &str| json!({"type": "function_call", "id": id, "call_id": "c", "name": "f", "arguments": "{}"});
    let reasoning = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
    for (items, lengths) in [
        (vec![message("x", "1"), message("y", "2")], vec![1, 1]),
        (vec![message(&format!("msg_{a}_0"), "1"), message(&format!("msg_{a}_1"), "2")], vec![2]),
        (vec![message(&format!("msg_{a}_0"), "1"), message(&format!("msg_{b}_0"), "2")], vec![1, 1]),
        // Text after a call that has no result yet belongs to its answer.
        (vec![call("x"), message("y", "1")], vec![1]),
        (vec![call("x"), reasoning.clone(), call("y")], vec![0, 0]),
        (vec![reasoning.clone(), reasoning, message("y", "1")], vec![1]),
    ] {
        let messages = converted(&tools, &items).unwrap().messages;
        let found: Vec<usize> =
            messages.iter().map(|message| message["content"].as_str().map_or(0, str::len)).collect();
        assert_eq!(found, lengths, "{items:?}");
    }
}

#[test]
fn wrong_items_are_named() {
    let tools = tools();
    for (item, param) in [
        (json!(3), "input[0]"),
        (json!({"type": "image_generation"}), "input[0].type"),
        (json!({"role": "tool", "content": "x"}), "input[0].role"),
        (json!({"role": "user"}), "input[0].content"),
        (json!({"role": "user", "content": [{"type": "input_file"}]}), "input[0].content[0].type"),
        (json!({"role": "user", "content": [3]}), "input[0].content[0]"),
        (json!({"type": "function_call", "name": "f", "arguments": "{}"}), "input[0].call_id"),
        (json!({"type": "function_call", "call_id": "c", "arguments": "{}"}), "input[0].name"),
        (json!({"type": "custom_tool_call", "call_id": "c", "name": "f"}), "input[0].input"),
        (json!({"type": "function_call_output", "output": "x"}), "input[0].call_id"),
        (json!({"type": "function_call_output", "call_id": "c"}), "input[0].output"),
        (json!({"type": "reasoning", "content": [{"type": "reasoning_text"}]}), "input[0].content[0].text"),
    ] {
        let error = converted(&tools, std::slice::from_ref(&item)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{item}");
        assert!(error.message.contains(param), "{}", error.message);
    }
}

#[test]
fn an_items_id_names_its_response() {
    let kind = output::ItemKind::Message { text: String::new(), logprobs: Vec::new() };
    let response = format!("resp_{}", "0a".repeat(16));
    assert_eq!(output::response_id(&output::item_id(&response, &kind, 12)), Some(response));
    for foreign in ["", "msg_1", "msg_0123_0", "call_abc", "functions.f:0"] {
        assert_eq!(output::response_id(foreign), None);
    }
}
