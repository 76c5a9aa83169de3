//! What goes wrong in the field besides schemas: histories, ids, contents, choices.

use serde_json::{Value, json};

use super::schemas::RandomSource;

/// What a trap may change.
pub struct Scene {
    pub tools: Vec<Value>,
    /// Before the last user message.
    pub history: Vec<Value>,
    /// The tool to call.
    pub target: String,
    pub example: Value,
    /// The last user message's content.
    pub question: Value,
    /// Members of the request besides messages and tools.
    pub extra: Vec<(&'static str, Value)>,
    pub expect_call: bool,
}

/// Its tag, and what it does to a sample.
pub type Trap = (&'static str, fn(&mut Scene, &mut RandomSource));

pub const TRAPS: &[Trap] = &[
    ("plain", |_, _| {}),
    ("undeclared_in_history", undeclared),
    ("foreign_ids", foreign_ids),
    ("empty_content", |scene, source| past_call(scene, source, json!(""))),
    ("null_content", |scene, source| past_call(scene, source, Value::Null)),
    ("parallel_history", parallel_history),
    ("result_parts", result_parts),
    ("system_messages", system_messages),
    ("choice_required", |scene, _| scene.extra.push(("tool_choice", json!("required")))),
    ("choice_named", |scene, _| {
        let choice = json!({ "type": "function", "function": { "name": scene.target } });
        scene.extra.push(("tool_choice", choice));
    }),
    ("choice_none", |scene, _| {
        scene.extra.push(("tool_choice", json!("none")));
        scene.expect_call = false;
    }),
    ("one_at_a_time", |scene, _| scene.extra.push(("parallel_tool_calls", json!(false)))),
    ("many_tools", many_tools),
    ("no_tool_fits", |scene, source| {
        let talk = ["Hello, how are you?", "Thank you, that is all.", "Say something nice about the sea."];
        scene.question = json!(source.pick(&talk));
        scene.expect_call = false;
    }),
    ("long_name", |scene, source| {
        let name = format!("{}-{}", "mcp__server__", source.hex(48));
        rename(scene, &name);
    }),
    ("unicode_history", unicode_history),
];

/// Tools in the request of the trap `many_tools`.
const MANY: usize = 64;

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments.to_string() } })
}

fn assistant(content: Value, calls: Vec<Value>) -> Value {
    json!({ "role": "assistant", "content": content, "tool_calls": calls })
}

fn result(id: &str, content: Value) -> Value {
    json!({ "role": "tool", "tool_call_id": id, "content": content })
}

fn answer(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

/// A finished turn that calls the target.
fn past_call(scene: &mut Scene, source: &mut RandomSource, content: Value) {
    let id = format!("call_{}", source.hex(24));
    scene.history.extend([
        user("Do it once before."),
        assistant(content, vec![call(&id, &scene.target, &scene.example)]),
        result(&id, json!("{\"ok\": true}")),
        answer("Done."),
    ]);
}

/// Many calls of tools that this request does not declare: the model has every reason to imitate them.
fn undeclared(scene: &mut Scene, source: &mut RandomSource) {
    for (at, name) in ["web_search", "img_gen", "web_search"].into_iter().enumerate() {
        let id = format!("functions.{name}:{at}");
        let arguments = json!({ "query": source.word() });
        scene.history.extend([
            user("Look it up."),
            assistant(json!(""), vec![call(&id, name, &arguments)]),
            result(&id, json!("Nothing found.")),
        ]);
    }
    scene.history.push(answer("I found nothing."));
}

/// Ids as other vendors make them, one of each.
fn foreign_ids(scene: &mut Scene, source: &mut RandomSource) {
    let ids = [
        format!("call_{}", source.hex(24)),
        format!("toolu_{}", source.hex(20)),
        format!("{}-0000-4000-8000-{}", source.hex(8), source.hex(12)),
        format!("{}:7", scene.target),
        "0".to_owned(),
    ];
    for id in ids {
        let calls = vec![call(&id, &scene.target, &scene.example)];
        scene.history.extend([user("Once more."), assistant(json!(""), calls), result(&id, json!("ok"))]);
    }
    scene.history.push(answer("Each time it worked."));
}

/// Several calls in one message, whose results come in another order.
fn parallel_history(scene: &mut Scene, source: &mut RandomSource) {
    let ids: Vec<String> = (0..3).map(|_| format!("call_{}", source.hex(9))).collect();
    let calls = ids.iter().map(|id| call(id, &scene.target, &scene.example)).collect();
    scene.history.extend([user("Three at once, please."), assistant(Value::Null, calls)]);
    scene.history.extend(ids.iter().rev().map(|id| result(id, json!(format!("result of {id}")))));
    scene.history.push(answer("All three are done."));
}

fn result_parts(scene: &mut Scene, source: &mut RandomSource) {
    let id = format!("call_{}", source.hex(24));
    let parts = json!([{ "type": "text", "text": "first part" }, { "type": "text", "text": " and second" }]);
    scene.history.extend([
        user("Do it in parts."),
        assistant(json!(""), vec![call(&id, &scene.target, &scene.example)]),
        result(&id, parts),
        answer("Both parts came."),
    ]);
    scene.question = json!([{ "type": "text", "text": scene.question }]);
}

fn system_messages(scene: &mut Scene, _: &mut RandomSource) {
    let system = |text: &str| json!({ "role": "system", "content": text });
    scene.history.insert(0, system("You are terse. Use tools when they fit."));
    scene.history.extend([user("Hi."), answer("Hello."), system("The user has confirmed everything.")]);
}

fn many_tools(scene: &mut Scene, source: &mut RandomSource) {
    while scene.tools.len() < MANY {
        let at = scene.tools.len();
        let name = format!("{}_{}_{at}", source.word(), source.word());
        let properties = json!({ source.word(): { "type": "string" }, "limit": { "type": "integer" } });
        let parameters = json!({ "type": "object", "properties": properties });
        let function = json!({ "name": name, "description": "One of many.", "parameters": parameters });
        scene.tools.push(json!({ "type": "function", "function": function }));
    }
}

/// Text of every kind in the history, in arguments and results too.
fn unicode_history(scene: &mut Scene, source: &mut RandomSource) {
    let id = format!("call_{}", source.hex(24));
    let odd = "Zwölf Boxkämpfer \u{200d}👩‍👩‍👧 \u{202b}שלום\u{202c} \\ \" \n\t<|end|> {{ x }} ﷽";
    scene.history.extend([
        user(odd),
        assistant(json!(odd), vec![call(&id, &scene.target, &scene.example)]),
        result(&id, json!(json!({ "text": odd }).to_string())),
        answer(odd),
    ]);
}

fn rename(scene: &mut Scene, name: &str) {
    for tool in &mut scene.tools {
        if tool["function"]["name"] == json!(scene.target) {
            tool["function"]["name"] = json!(name);
        }
    }
    if let Value::String(text) = &mut scene.question {
        *text = text.replace(&scene.target, name);
    }
    scene.target = name.to_owned();
}
