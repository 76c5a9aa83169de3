//! Variations of a sample that endpoints handle wrongly in practice: histories, ids, contents, tool choices. It knows
//! no schemas.

use serde_json::{Value, json};

use super::schemas::RandomSource;

/// The parts of a sample that a trap may change.
pub struct SampleDraft {
    pub tools: Vec<Value>,
    /// The messages before the last user message.
    pub history: Vec<Value>,
    /// The tool to call.
    pub target: String,
    pub example: Value,
    /// The content of the last user message.
    pub question: Value,
    /// Other members of the request.
    pub extra: Vec<(&'static str, Value)>,
    pub expect_call: bool,
}

/// A trap: its tag and the function that applies it.
pub type Trap = (&'static str, fn(&mut SampleDraft, &mut RandomSource));

pub const TRAPS: &[Trap] = &[
    ("plain", |_, _| {}),
    ("undeclared_in_history", undeclared),
    ("foreign_ids", foreign_ids),
    ("empty_content", |draft, source| past_call(draft, source, json!(""))),
    ("null_content", |draft, source| past_call(draft, source, Value::Null)),
    ("parallel_history", parallel_history),
    ("result_parts", result_parts),
    ("system_messages", system_messages),
    ("choice_required", |draft, _| draft.extra.push(("tool_choice", json!("required")))),
    ("choice_named", |draft, _| {
        let choice = json!({ "type": "function", "function": { "name": draft.target } });
        draft.extra.push(("tool_choice", choice));
    }),
    ("choice_none", |draft, _| {
        draft.extra.push(("tool_choice", json!("none")));
        draft.expect_call = false;
    }),
    ("one_at_a_time", |draft, _| draft.extra.push(("parallel_tool_calls", json!(false)))),
    ("many_tools", many_tools),
    ("no_tool_fits", |draft, source| {
        let talk = ["Hello, how are you?", "Thank you, that is all.", "Say something nice about the sea."];
        draft.question = json!(source.pick(&talk));
        draft.expect_call = false;
    }),
    ("long_name", |draft, source| {
        let name = format!("{}-{}", "mcp__server__", source.hex(48));
        rename(draft, &name);
    }),
    ("unicode_history", unicode_history),
];

/// Number of tools with the trap `many_tools`.
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

/// Adds a finished turn that calls the target.
fn past_call(draft: &mut SampleDraft, source: &mut RandomSource, content: Value) {
    let id = format!("call_{}", source.hex(24));
    draft.history.extend([
        user("Do it once before."),
        assistant(content, vec![call(&id, &draft.target, &draft.example)]),
        result(&id, json!("{\"ok\": true}")),
        answer("Done."),
    ]);
}

/// Adds calls of tools that the request does not declare. Models tend to imitate them.
fn undeclared(draft: &mut SampleDraft, source: &mut RandomSource) {
    for (at, name) in ["web_search", "img_gen", "web_search"].into_iter().enumerate() {
        let id = format!("functions.{name}:{at}");
        let arguments = json!({ "query": source.word() });
        draft.history.extend([
            user("Look it up."),
            assistant(json!(""), vec![call(&id, name, &arguments)]),
            result(&id, json!("Nothing found.")),
        ]);
    }
    draft.history.push(answer("I found nothing."));
}

/// Adds calls with the id formats of other vendors.
fn foreign_ids(draft: &mut SampleDraft, source: &mut RandomSource) {
    let ids = [
        format!("call_{}", source.hex(24)),
        format!("toolu_{}", source.hex(20)),
        format!("{}-0000-4000-8000-{}", source.hex(8), source.hex(12)),
        format!("{}:7", draft.target),
        "0".to_owned(),
    ];
    for id in ids {
        let calls = vec![call(&id, &draft.target, &draft.example)];
        draft.history.extend([user("Once more."), assistant(json!(""), calls), result(&id, json!("ok"))]);
    }
    draft.history.push(answer("Each time it worked."));
}

/// Adds a message with several calls. Their results are in another order.
fn parallel_history(draft: &mut SampleDraft, source: &mut RandomSource) {
    let ids: Vec<String> = (0..3).map(|_| format!("call_{}", source.hex(9))).collect();
    let calls = ids.iter().map(|id| call(id, &draft.target, &draft.example)).collect();
    draft.history.extend([user("Three at once, please."), assistant(Value::Null, calls)]);
    draft.history.extend(ids.iter().rev().map(|id| result(id, json!(format!("result of {id}")))));
    draft.history.push(answer("All three are done."));
}

fn result_parts(draft: &mut SampleDraft, source: &mut RandomSource) {
    let id = format!("call_{}", source.hex(24));
    let parts = json!([{ "type": "text", "text": "first part" }, { "type": "text", "text": " and second" }]);
    draft.history.extend([
        user("Do it in parts."),
        assistant(json!(""), vec![call(&id, &draft.target, &draft.example)]),
        result(&id, parts),
        answer("Both parts came."),
    ]);
    draft.question = json!([{ "type": "text", "text": draft.question }]);
}

fn system_messages(draft: &mut SampleDraft, _: &mut RandomSource) {
    let system = |text: &str| json!({ "role": "system", "content": text });
    draft.history.insert(0, system("You are terse. Use tools when they fit."));
    draft.history.extend([user("Hi."), answer("Hello."), system("The user has confirmed everything.")]);
}

fn many_tools(draft: &mut SampleDraft, source: &mut RandomSource) {
    while draft.tools.len() < MANY {
        let at = draft.tools.len();
        let name = format!("{}_{}_{at}", source.word(), source.word());
        let properties = json!({ source.word(): { "type": "string" }, "limit": { "type": "integer" } });
        let parameters = json!({ "type": "object", "properties": properties });
        let function = json!({ "name": name, "description": "One of many.", "parameters": parameters });
        draft.tools.push(json!({ "type": "function", "function": function }));
    }
}

/// Adds unusual characters to the messages, arguments and results of the history.
fn unicode_history(draft: &mut SampleDraft, source: &mut RandomSource) {
    let id = format!("call_{}", source.hex(24));
    let odd = "Zwölf Boxkämpfer \u{200d}👩‍👩‍👧 \u{202b}שלום\u{202c} \\ \" \n\t<|end|> {{ x }} ﷽";
    draft.history.extend([
        user(odd),
        assistant(json!(odd), vec![call(&id, &draft.target, &draft.example)]),
        result(&id, json!(json!({ "text": odd }).to_string())),
        answer(odd),
    ]);
}

fn rename(draft: &mut SampleDraft, name: &str) {
    for tool in &mut draft.tools {
        if tool["function"]["name"] == json!(draft.target) {
            tool["function"]["name"] = json!(name);
        }
    }
    if let Value::String(text) = &mut draft.question {
        *text = text.replace(&draft.target, name);
    }
    draft.target = name.to_owned();
}
