//! Rewrites the call ids of a conversation to those of the model's format, before the template renders it.
//!
//! Clients send their own ids, ids of other servers, or none. A model was trained on the ids of its format, which are
//! numbered over the conversation. So each call gets such an id, and each result gets the id of the call it answers.
//! This module knows no format: the caller passes a function that makes an id.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

/// Largest index that is read from a native id. A result may have the native id of a call that the client cut off; a
/// number above this limit is not the index of a call.
const MAX_INDEX: usize = 1 << 20;

/// Replaces the ids of calls and results by `native(name, index)`, which is `None` for a format without ids. Adds the
/// tool's name to each result that has none. Returns the index of the next call.
///
/// How a result is matched to a call:
/// - A result with the id of a call belongs to that call. When several calls share the id, it belongs to the first one
///   of the latest turn without a result, preferably of the same tool; else to the latest call.
/// - Other results belong to calls of the latest turn that no result has matched: to one of the same tool when the
///   result names a tool, else in order. A result with an unknown id matches only calls that have no id.
/// - A result that matches no call gets a new id when its own could equal that of a call; otherwise it keeps its id.
pub fn assign_native_ids(messages: &mut [Value], native: impl Fn(&str, usize) -> Option<String>) -> usize {
    let mut calls = CallIndex::default();
    let mut next = 0;
    let mut at = 0;
    while at < messages.len() {
        if is_result(&messages[at]) {
            let end = messages[at..].iter().position(|m| !is_result(m)).map_or(messages.len(), |n| at + n);
            for (message, call) in (at..end).zip(calls.match_results(&messages[at..end])) {
                match call {
                    Some(call) => calls.write_to_result(call, &mut messages[message]),
                    None => rewrite_orphan(&mut messages[message], &native, &mut next),
                }
            }
            at = end;
            continue;
        }
        let made = messages[at].get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.turn += usize::from(made.as_ref().is_some_and(|made| !made.is_empty()));
        for call in made.into_iter().flatten() {
            let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let old = text(call, "id").to_owned();
            let new = native(&name, next);
            if let (Some(id), Some(call)) = (&new, call.as_object_mut()) {
                call.insert("id".into(), id.as_str().into());
            }
            calls.add(old, name, new);
            next += 1;
        }
        at += 1;
    }
    next
}

fn is_result(message: &Value) -> bool {
    message.get("role").is_some_and(|role| role == "tool")
}

/// The value of a string field; empty when the field is absent or null.
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Rewrites the id of a result whose call is not in the conversation.
fn rewrite_orphan(result: &mut Value, native: &impl Fn(&str, usize) -> Option<String>, next: &mut usize) {
    let Some(any) = native("", *next) else { return };
    if native("x", *next).is_some_and(|id| id == any) {
        // Ids without the tool's name: templates of such formats accept no other ids, and the id could equal that of a
        // call.
        if let Some(result) = result.as_object_mut() {
            result.insert("tool_call_id".into(), any.into());
        }
        *next += 1;
        return;
    }
    let Some((name, index)) = parse_native_id(text(result, "tool_call_id"), native) else { return };
    if index < *next {
        let id = native(name, *next);
        if let (Some(id), Some(result)) = (id, result.as_object_mut()) {
            result.insert("tool_call_id".into(), id.into());
        }
    }
    // Later calls are numbered after it.
    *next = index.max(*next) + 1;
}

/// Name and index of a native id that contains both.
fn parse_native_id<'a>(id: &'a str, native: &impl Fn(&str, usize) -> Option<String>) -> Option<(&'a str, usize)> {
    let digits = id.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let index = id[digits..].parse().ok().filter(|index| *index < MAX_INDEX)?;
    // The text around the name is the same for all names.
    let nameless = native("", index)?;
    let before = nameless.bytes().zip(id.bytes()).take_while(|(a, b)| a == b).count();
    let name = id.get(before..id.len().checked_sub(nameless.len() - before)?)?;
    native(name, index).filter(|native| native == id).map(|_| (name, index))
}

/// The calls seen so far, and which of them have a result.
#[derive(Default)]
struct CallIndex {
    calls: Vec<PastCall>,
    /// Calls without a result, by what a result can name them with, grouped by turn.
    unanswered: HashMap<MatchKey, Vec<TurnCalls>>,
    /// The latest call of each id.
    latest: HashMap<String, usize>,
    turn: usize,
}

struct PastCall {
    name: String,
    old_id: String,
    new_id: Option<String>,
    answered: bool,
}

struct TurnCalls {
    turn: usize,
    calls: VecDeque<usize>,
}

/// What a result knows of its call.
#[derive(PartialEq, Eq, Hash)]
enum MatchKey {
    Id(String),
    IdAndName(String, String),
    /// The tool's name; the call may have an id.
    Name(String),
    /// Nothing: matches every call.
    Any,
    /// Matches every call without an id.
    NoId,
    /// The tool's name; the call has no id.
    NameNoId(String),
}

impl CallIndex {
    fn add(&mut self, old_id: String, name: String, new_id: Option<String>) {
        let call = self.calls.len();
        let mut keys = vec![MatchKey::Name(name.clone()), MatchKey::Any];
        if old_id.is_empty() {
            keys.extend([MatchKey::NoId, MatchKey::NameNoId(name.clone())]);
        } else {
            keys.extend([MatchKey::Id(old_id.clone()), MatchKey::IdAndName(old_id.clone(), name.clone())]);
            self.latest.insert(old_id.clone(), call);
        }
        for key in keys {
            let groups = self.unanswered.entry(key).or_default();
            match groups.last_mut() {
                Some(group) if group.turn == self.turn => group.calls.push_back(call),
                _ => groups.push(TurnCalls { turn: self.turn, calls: VecDeque::from([call]) }),
            }
        }
        self.calls.push(PastCall { name, old_id, new_id, answered: false });
    }

    /// The call that each of these consecutive results answers. Results with an id are matched first, so that a result
    /// without one cannot take their call.
    fn match_results(&mut self, results: &[Value]) -> Vec<Option<usize>> {
        let mut answered = vec![None; results.len()];
        for (found, result) in answered.iter_mut().zip(results) {
            *found = self.take_by_id(text(result, "tool_call_id"), text(result, "name"));
        }
        for named in [true, false] {
            for (found, result) in answered.iter_mut().zip(results) {
                let (id, name) = (text(result, "tool_call_id"), text(result, "name"));
                if found.is_some() || name.is_empty() == named {
                    continue;
                }
                let key = match (id.is_empty(), named) {
                    (true, true) => MatchKey::Name(name.into()),
                    (true, false) => MatchKey::Any,
                    (false, true) => MatchKey::NameNoId(name.into()),
                    (false, false) => MatchKey::NoId,
                };
                *found = self.take_unanswered(&key, true);
            }
        }
        answered
    }

    fn take_by_id(&mut self, id: &str, name: &str) -> Option<usize> {
        if id.is_empty() {
            return None;
        }
        let named = self.take_unanswered(&MatchKey::IdAndName(id.into(), name.into()), false);
        named.or_else(|| self.take_unanswered(&MatchKey::Id(id.into()), false)).or_else(|| self.latest.get(id).copied())
    }

    /// The first unanswered call with this key, in the latest turn that has one; it then counts as answered.
    fn take_unanswered(&mut self, key: &MatchKey, of_this_turn: bool) -> Option<usize> {
        let groups = self.unanswered.get_mut(key)?;
        while let Some(group) = groups.last_mut() {
            if of_this_turn && group.turn != self.turn {
                return None;
            }
            while let Some(call) = group.calls.pop_front() {
                if !std::mem::replace(&mut self.calls[call].answered, true) {
                    return Some(call);
                }
            }
            groups.pop();
        }
        None
    }

    /// Writes the id and the tool's name of a call into its result.
    fn write_to_result(&self, call: usize, result: &mut Value) {
        let PastCall { name, old_id, new_id, .. } = &self.calls[call];
        let (has_id, has_name) = (!text(result, "tool_call_id").is_empty(), !text(result, "name").is_empty());
        let Some(result) = result.as_object_mut() else { return };
        let id = new_id.as_ref().or((!has_id && !old_id.is_empty()).then_some(old_id));
        if let Some(id) = id {
            result.insert("tool_call_id".into(), id.as_str().into());
        }
        if !has_name {
            result.insert("name".into(), name.as_str().into());
        }
    }
}

#[cfg(test)]
mod tests;
