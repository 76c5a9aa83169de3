//! A codec that takes the rest of the output as the tool's only argument.

use serde_json::Value;

use super::json::push_escaped;
use super::{End, OpenCall, Progress};
use crate::event::Event;
use crate::json_schema::declared;

/// The argument's name if the schema has none.
const KEY: &str = "code";

/// The argument of a tool with a single string argument. None: the tool takes others.
pub(crate) fn key(parameters: Option<&Value>) -> Option<String> {
    let names = declared(parameters);
    match names.as_slice() {
        [] => Some(KEY.to_owned()),
        [only] => Some(only.clone()),
        _ => names.into_iter().find(|name| name == KEY),
    }
}

#[derive(Debug)]
pub(crate) struct Code {
    call: OpenCall,
}

impl Code {
    pub fn new(mut call: OpenCall, out: &mut Vec<Event>) -> Self {
        let key = key(call.declared().and_then(|tool| tool.parameters.as_ref()));
        call.start(out);
        call.delta = format!("{{{}: \"", Value::from(key.as_deref().unwrap_or(KEY))).into_bytes();
        Self { call }
    }

    pub fn feed(&mut self, b: u8) -> Progress {
        if matches!(b, b'"' | b'\\') {
            self.call.delta.push(b'\\');
        }
        push_escaped(&mut self.call.delta, b, true);
        Progress::More
    }

    pub fn flush(&mut self, out: &mut Vec<Event>) {
        self.call.flush(out);
    }

    pub fn end(mut self, end: End, out: &mut Vec<Event>) -> String {
        let complete = end != End::Output;
        if complete {
            self.call.delta.extend_from_slice(b"\"}");
        }
        self.call.end(complete, out);
        String::new()
    }
}
