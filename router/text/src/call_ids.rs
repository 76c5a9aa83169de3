//! Call ids of a conversation, before a template sees them.
//!
//! Clients bring ids of their own, of other servers, or none. A model was trained on its format's ids, numbered over
//! the conversation, so every call gets its own again, and every result the id of the call that it answers.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

/// A result that answers no call of the conversation may bring a native id of a call that the client cut off. Numbers
/// beyond this are no count of calls.
const MAX_COUNT: usize = 1 << 20;

/// Rewrites the calls' ids to what `native(name, index)` gives, if the format has ids, in step with the results', and
/// names the tool in each result. Returns the index of the next call.
///
/// A result belongs to the call of its id: of several, to one that has no result yet, and then to the latest. Results
/// without an id, or with an id that no call has, belong to the calls of the turn that no id names: by the tool's name
/// where they have it, else in order. A result that answers no call stays as it is, where the format can tell its id
/// from the others'.
pub fn native_ids(messages: &mut [Value], native: impl Fn(&str, usize) -> Option<String>) -> usize {
    let mut calls = Calls::default();
    let mut next = 0;
    let mut at = 0;
    while at < messages.len() {
        if is_result(&messages[at]) {
            let end = messages[at..].iter().position(|m| !is_result(m)).map_or(messages.len(), |n| at + n);
            for (message, call) in (at..end).zip(calls.answered_by(&messages[at..end])) {
                match call {
                    Some(call) => calls.tell(call, &mut messages[message]),
                    None => orphan(&mut messages[message], &native, &mut next),
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

/// A string field; absent and null are empty.
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The result of a call that the conversation does not have.
fn orphan(result: &mut Value, native: &impl Fn(&str, usize) -> Option<String>, next: &mut usize) {
    let Some(any) = native("", *next) else { return };
    if native("x", *next).is_some_and(|id| id == any) {
        // Templates of such formats take no other ids, and any of theirs could be that of a call.
        if let Some(result) = result.as_object_mut() {
            result.insert("tool_call_id".into(), any.into());
        }
        *next += 1;
        return;
    }
    let Some((name, index)) = parse(text(result, "tool_call_id"), native) else { return };
    if index < *next {
        let id = native(name, *next);
        if let (Some(id), Some(result)) = (id, result.as_object_mut()) {
            result.insert("tool_call_id".into(), id.into());
        }
    }
    // The calls that follow count on from it.
    *next = index.max(*next) + 1;
}

/// Name and index of a native id that holds both.
fn parse<'a>(id: &'a str, native: &impl Fn(&str, usize) -> Option<String>) -> Option<(&'a str, usize)> {
    let digits = id.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let index = id[digits..].parse().ok().filter(|index| *index < MAX_COUNT)?;
    // What surrounds the name is the same for all names.
    let nameless = native("", index)?;
    let before = nameless.bytes().zip(id.bytes()).take_while(|(a, b)| a == b).count();
    let name = id.get(before..id.len().checked_sub(nameless.len() - before)?)?;
    native(name, index).filter(|native| native == id).map(|_| (name, index))
}

#[derive(Default)]
struct Calls {
    made: Vec<Made>,
    /// Calls without a result, by what is known of them, grouped by turn.
    waiting: HashMap<Key, Vec<Group>>,
    latest: HashMap<String, usize>,
    turn: usize,
}

struct Made {
    name: String,
    old: String,
    new: Option<String>,
    answered: bool,
}

struct Group {
    turn: usize,
    calls: VecDeque<usize>,
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Id(String),
    IdAndName(String, String),
    /// Whatever its id.
    Name(String),
    Any,
    /// Of a call without an id.
    Unnumbered,
    UnnumberedName(String),
}

impl Calls {
    fn add(&mut self, old: String, name: String, new: Option<String>) {
        let call = self.made.len();
        let mut keys = vec![Key::Name(name.clone()), Key::Any];
        if old.is_empty() {
            keys.extend([Key::Unnumbered, Key::UnnumberedName(name.clone())]);
        } else {
            keys.extend([Key::Id(old.clone()), Key::IdAndName(old.clone(), name.clone())]);
            self.latest.insert(old.clone(), call);
        }
        for key in keys {
            let groups = self.waiting.entry(key).or_default();
            match groups.last_mut() {
                Some(group) if group.turn == self.turn => group.calls.push_back(call),
                _ => groups.push(Group { turn: self.turn, calls: VecDeque::from([call]) }),
            }
        }
        self.made.push(Made { name, old, new, answered: false });
    }

    /// The calls that a run of results answers. Ids go first, so that a result without one takes nobody's place.
    fn answered_by(&mut self, results: &[Value]) -> Vec<Option<usize>> {
        let mut answered = vec![None; results.len()];
        for (found, result) in answered.iter_mut().zip(results) {
            *found = self.by_id(text(result, "tool_call_id"), text(result, "name"));
        }
        for named in [true, false] {
            for (found, result) in answered.iter_mut().zip(results) {
                let (id, name) = (text(result, "tool_call_id"), text(result, "name"));
                if found.is_some() || name.is_empty() == named {
                    continue;
                }
                let key = match (id.is_empty(), named) {
                    (true, true) => Key::Name(name.into()),
                    (true, false) => Key::Any,
                    (false, true) => Key::UnnumberedName(name.into()),
                    (false, false) => Key::Unnumbered,
                };
                *found = self.take(&key, true);
            }
        }
        answered
    }

    fn by_id(&mut self, id: &str, name: &str) -> Option<usize> {
        if id.is_empty() {
            return None;
        }
        let named = self.take(&Key::IdAndName(id.into(), name.into()), false);
        named.or_else(|| self.take(&Key::Id(id.into()), false)).or_else(|| self.latest.get(id).copied())
    }

    /// The first call without a result of the latest turn that has one.
    fn take(&mut self, key: &Key, of_this_turn: bool) -> Option<usize> {
        let groups = self.waiting.get_mut(key)?;
        while let Some(group) = groups.last_mut() {
            if of_this_turn && group.turn != self.turn {
                return None;
            }
            while let Some(call) = group.calls.pop_front() {
                if !std::mem::replace(&mut self.made[call].answered, true) {
                    return Some(call);
                }
            }
            groups.pop();
        }
        None
    }

    fn tell(&self, call: usize, result: &mut Value) {
        let Made { name, old, new, .. } = &self.made[call];
        let (has_id, has_name) = (!text(result, "tool_call_id").is_empty(), !text(result, "name").is_empty());
        let Some(result) = result.as_object_mut() else { return };
        let id = new.as_ref().or((!has_id && !old.is_empty()).then_some(old));
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
