//! Moves system messages into the turns beside them, and joins neighbours of one side, for templates that reject them
//! at their place. It does not know templates.

use serde_json::{Value as Json, json};

/// Between a system message and the text beside it.
const SEPARATOR: &str = "\n\n";

/// Which system messages stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeptSystem {
    /// The first message, if it is one.
    First,
    None,
}

fn is_system(message: &Json) -> bool {
    matches!(message["role"].as_str(), Some("system" | "developer"))
}

/// Moves each other system message to the end of the user's turn before it, or else to the beginning of the one after
/// it. Where there is neither, it becomes a turn of the user. `None`: there is nothing to move.
pub(super) fn fold(messages: &[Json], kept: KeptSystem) -> Option<Vec<Json>> {
    let stays = |index: usize| index == 0 && kept == KeptSystem::First;
    if !messages.iter().enumerate().any(|(index, message)| is_system(message) && !stays(index)) {
        return None;
    }
    let mut out: Vec<Json> = Vec::with_capacity(messages.len());
    // The last message of `out` has only what was moved.
    let mut moved = false;
    for (index, message) in messages.iter().enumerate() {
        if is_system(message) && !stays(index) {
            match out.last_mut().filter(|last| last["role"] == "user" || is_system(last)) {
                Some(last) => join(&mut last["content"], &message["content"]),
                None => {
                    out.push(json!({"role": "user", "content": message["content"]}));
                    moved = true;
                }
            }
            continue;
        }
        let mut message = message.clone();
        if moved && message["role"] == "user" {
            let mut before = out.pop().map(|mut before| before["content"].take()).unwrap_or_default();
            join(&mut before, &message["content"]);
            message["content"] = before;
        }
        moved = false;
        out.push(message);
    }
    Some(out)
}

/// Joins turns that follow each other on one side: of the user, texts of the assistant, and what the user says after a
/// tool's result. `None`: there is nothing to join.
pub(super) fn join_neighbours(messages: &[Json]) -> Option<Vec<Json>> {
    let said = |message: &Json| ["tool_calls", "reasoning_content"].iter().all(|key| message[key].is_null());
    let mut out: Vec<Json> = Vec::with_capacity(messages.len());
    for message in messages {
        let joins = |last: &&mut Json| match (last["role"].as_str(), message["role"].as_str()) {
            (Some("user" | "tool"), Some("user")) => true,
            (Some("assistant"), Some("assistant")) => said(last) && said(message),
            _ => false,
        };
        match out.last_mut().filter(joins) {
            Some(last) => join(&mut last["content"], &message["content"]),
            None => out.push(message.clone()),
        }
    }
    (out.len() < messages.len()).then_some(out)
}

/// Appends content to other content: texts, or lists of parts.
fn join(to: &mut Json, content: &Json) {
    match (&mut *to, content) {
        (Json::String(to), Json::String(text)) => {
            to.push_str(SEPARATOR);
            to.push_str(text);
        }
        _ => {
            let mut parts = parts(to);
            parts.extend(self::parts(content));
            *to = Json::Array(parts);
        }
    }
}

fn parts(content: &Json) -> Vec<Json> {
    match content {
        Json::Array(parts) => parts.clone(),
        Json::Null => Vec::new(),
        other => vec![json!({"type": "text", "text": other})],
    }
}
