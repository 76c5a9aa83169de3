//! Builds the output of a response from a chat's events, and writes the frames of a stream on the way. Both are made
//! from the same items, so a stream and an answer in one piece have the same ids, status and content.

mod object;

use std::{collections::HashMap, sync::Arc};

use rein_proto::v1::{self, chat_event::Event};
use serde_json::{Map, Value, json};

pub use object::{ResponseFrame, deleted, input_tokens};
use object::{ResponseObject, ResponseStatus};

use super::{
    custom_input::CustomInput,
    output::{self, ItemKind, ItemStatus, OutputItem, Part},
    tools::{CallKind, ToolTable},
};
use crate::error::{Error, ErrorKind};

/// What an answer needs of its request.
pub struct ResponseParameters {
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// The response is kept.
    pub stored: bool,
    /// What the answer repeats of the request.
    pub echo: Map<String, Value>,
    pub tools: Arc<ToolTable>,
    pub hide_reasoning: bool,
    pub token_ids: bool,
    /// Seals reasoning, if the client wants it sealed.
    pub seal: Option<ReasoningSealer>,
}

/// Seals reasoning, for `encrypted_content`.
pub type ReasoningSealer = Box<dyn Fn(&str) -> String + Send>;

/// Fields that the API does not have.
#[derive(Default)]
pub(super) struct ExtraFields {
    /// Texts in place of a call that could not be parsed.
    pub malformed: Vec<String>,
    /// Calls that the length limit cut off before their name.
    pub unnamed_calls: Vec<Value>,
    pub invalid_response: String,
    /// As in the proto.
    pub ended_early: String,
    pub grammar_relaxed: String,
    pub prompt_token_ids: Vec<u32>,
    pub token_ids: Vec<u32>,
}

pub struct ResponseBuilder {
    pub(super) parameters: ResponseParameters,
    pub(super) items: Vec<OutputItem>,
    pub(super) status: ResponseStatus,
    pub(super) failure: Option<Value>,
    pub(super) usage: Option<v1::Usage>,
    pub(super) own: ExtraFields,
    /// Number of frames so far.
    sequence: u64,
    begun: bool,
    /// The last item is reasoning or text, and more of it may come.
    open: bool,
    /// The region of the open item has ended. Whether the output was cut there is known with the next event.
    ended: bool,
    /// Items by the chat's index of their call.
    calls: HashMap<u32, usize>,
    custom: CustomInput,
    /// Logprobs of tokens that have added no text yet.
    logprobs: Vec<v1::TokenLogprob>,
}

/// Takes the frames of a stream. An answer in one piece has none.
pub type WriteFrame<'a> = dyn FnMut(&ResponseFrame<'_>) + 'a;

impl ResponseBuilder {
    pub fn new(parameters: ResponseParameters) -> Self {
        ResponseBuilder {
            parameters,
            items: Vec::new(),
            status: ResponseStatus::InProgress,
            failure: None,
            usage: None,
            own: ExtraFields::default(),
            sequence: 0,
            begun: false,
            open: false,
            ended: false,
            calls: HashMap::new(),
            custom: CustomInput::default(),
            logprobs: Vec::new(),
        }
    }

    pub fn id(&self) -> &str {
        &self.parameters.id
    }

    /// The response so far.
    pub fn object(&self) -> Vec<u8> {
        crate::api::to_json(&ResponseObject(self))
    }

    /// Whether the last frame has been written.
    pub fn is_final(&self) -> bool {
        self.status == ResponseStatus::Failed || self.usage.is_some()
    }

    pub fn event(&mut self, event: v1::ChatEvent, write: &mut WriteFrame<'_>) {
        self.begin(write);
        self.own.token_ids.extend(event.token_ids);
        match event.event {
            Some(Event::TextStart(_) | Event::TextDelta(_) | Event::TextEnd(_)) => self.logprobs.extend(event.logprobs),
            _ => self.logprobs.clear(),
        }
        match event.event {
            Some(Event::Start(start)) => self.own.prompt_token_ids = start.prompt_token_ids,
            Some(Event::ReasoningDelta(v1::Delta { text })) => self.add_reasoning(&text, write),
            Some(Event::TextDelta(v1::Delta { text })) => self.add_text(&text, write),
            Some(Event::ReasoningEnd(_)) => self.ended = true,
            Some(Event::TextEnd(_)) => self.end_text(),
            Some(Event::ToolCallStart(call)) => self.begin_call(call.index, call.id, &call.name, write),
            Some(Event::ArgumentsDelta(v1::ArgumentsDelta { index, text })) => self.add_arguments(index, &text, write),
            Some(Event::ToolCallEnd(v1::ToolCallEnd { index, complete })) => {
                let status = if complete { ItemStatus::Completed } else { ItemStatus::Incomplete };
                self.end_call(index, status, write);
            }
            Some(Event::Done(done)) => self.end_output(done, write),
            Some(Event::Usage(v1::UsageEvent { usage })) => self.end(usage, write),
            Some(Event::ReasoningStart(_) | Event::TextStart(_) | Event::Malformed(_)) | None => {}
        }
    }

    /// Ends the response with an error.
    pub fn fail(&mut self, error: &Error, write: &mut WriteFrame<'_>) {
        self.begin(write);
        self.close(ItemStatus::Incomplete, write);
        let code = match error.kind {
            ErrorKind::Full => "rate_limit_exceeded",
            ErrorKind::Invalid | ErrorKind::TooLarge => "invalid_prompt",
            _ => "server_error",
        };
        self.failure = Some(json!({"code": code, "message": error.message}));
        self.status = ResponseStatus::Failed;
        let frame = ResponseFrame {
            kind: "error",
            code: Some(error.code.unwrap_or(code)),
            message: Some(&error.message),
            param: Some(error.param.as_deref()),
            ..ResponseFrame::default()
        };
        send(&mut self.sequence, frame, write);
        self.send_response("response.failed", write);
    }

    fn begin(&mut self, write: &mut WriteFrame<'_>) {
        if !std::mem::replace(&mut self.begun, true) {
            self.send_response("response.created", write);
            self.send_response("response.in_progress", write);
        }
    }

    fn add_reasoning(&mut self, text: &str, write: &mut WriteFrame<'_>) {
        if self.parameters.hide_reasoning {
            return;
        }
        if !self.is_open(|kind| matches!(kind, ItemKind::Reasoning { .. })) {
            self.add_item(ItemKind::Reasoning { text: String::new(), sealed: None }, write);
            self.send_part("response.content_part.added", write);
        }
        if let Some(ItemKind::Reasoning { text: all, .. }) = self.items.last_mut().map(|item| &mut item.kind) {
            all.push_str(text);
        }
        self.send_delta("response.reasoning_text.delta", text, None, write);
    }

    fn add_text(&mut self, text: &str, write: &mut WriteFrame<'_>) {
        if text.is_empty() {
            return;
        }
        if !self.is_open(|kind| matches!(kind, ItemKind::Message { .. })) {
            self.add_item(ItemKind::Message { text: String::new(), logprobs: Vec::new() }, write);
            self.send_part("response.content_part.added", write);
        }
        let new = std::mem::take(&mut self.logprobs);
        let written = output::written(&new);
        if let Some(ItemKind::Message { text: all, logprobs }) = self.items.last_mut().map(|item| &mut item.kind) {
            all.push_str(text);
            logprobs.extend(new);
        }
        self.send_delta("response.output_text.delta", text, Some(written), write);
    }

    fn end_text(&mut self) {
        self.ended = true;
        if let Some(ItemKind::Message { logprobs, .. }) = self.items.last_mut().map(|item| &mut item.kind) {
            logprobs.append(&mut self.logprobs);
        }
    }

    fn is_open(&self, is_kind: impl Fn(&ItemKind) -> bool) -> bool {
        self.open && !self.ended && self.items.last().is_some_and(|item| is_kind(&item.kind))
    }

    /// Adds an item, after the open one is closed.
    fn add_item(&mut self, kind: ItemKind, write: &mut WriteFrame<'_>) {
        self.close(ItemStatus::Completed, write);
        self.open = kind.call_id().is_none();
        let id = output::item_id(&self.parameters.id, &kind, self.items.len());
        self.items.push(OutputItem { id, status: ItemStatus::InProgress, kind });
        self.send_item("response.output_item.added", self.items.len() - 1, write);
    }

    /// Closes the open item.
    fn close(&mut self, status: ItemStatus, write: &mut WriteFrame<'_>) {
        let open = std::mem::take(&mut self.open);
        self.ended = false;
        let Some(index) = self.items.len().checked_sub(1).filter(|_| open) else { return };
        let item = &mut self.items[index];
        let (kind, text, written) = match &mut item.kind {
            ItemKind::Reasoning { text, sealed } => {
                *sealed = self.parameters.seal.as_ref().map(|seal| seal(text));
                ("response.reasoning_text.done", &*text, None)
            }
            ItemKind::Message { text, logprobs } => {
                ("response.output_text.done", &*text, Some(output::written(logprobs)))
            }
            ItemKind::FunctionCall { .. } | ItemKind::CustomCall { .. } => return,
        };
        let frame = ResponseFrame {
            kind,
            item_id: Some(&item.id),
            output_index: Some(index),
            content_index: Some(0),
            text: Some(text),
            logprobs: written,
            ..ResponseFrame::default()
        };
        send(&mut self.sequence, frame, write);
        self.send_part("response.content_part.done", write);
        self.items[index].status = status;
        self.send_item("response.output_item.done", index, write);
    }

    fn begin_call(&mut self, index: u32, call_id: String, function: &str, write: &mut WriteFrame<'_>) {
        let tool = self.parameters.tools.called(function);
        let (namespace, name) = match tool {
            Some(tool) => (tool.namespace.clone(), tool.name.clone()),
            // Without enforcement, a model can call what nobody declared.
            None => (None, function.to_owned()),
        };
        let kind = match tool.map(|tool| tool.kind) {
            Some(CallKind::Custom) => ItemKind::CustomCall { call_id, name, namespace, input: String::new() },
            _ => ItemKind::FunctionCall { call_id, name, namespace, arguments: String::new() },
        };
        self.custom = CustomInput::default();
        self.add_item(kind, write);
        self.calls.insert(index, self.items.len() - 1);
    }

    fn add_arguments(&mut self, index: u32, text: &str, write: &mut WriteFrame<'_>) {
        let Some(&at) = self.calls.get(&index) else { return };
        let item = &mut self.items[at];
        let (kind, delta) = match &mut item.kind {
            ItemKind::FunctionCall { arguments, .. } => {
                arguments.push_str(text);
                ("response.function_call_arguments.delta", text)
            }
            ItemKind::CustomCall { input, .. } => {
                let delta = self.custom.push(text);
                input.push_str(delta);
                ("response.custom_tool_call_input.delta", delta)
            }
            ItemKind::Reasoning { .. } | ItemKind::Message { .. } => return,
        };
        if delta.is_empty() {
            return;
        }
        let frame = ResponseFrame {
            kind,
            item_id: Some(&item.id),
            output_index: Some(at),
            delta: Some(delta),
            ..ResponseFrame::default()
        };
        send(&mut self.sequence, frame, write);
    }

    fn end_call(&mut self, index: u32, status: ItemStatus, write: &mut WriteFrame<'_>) {
        let Some(&at) = self.calls.get(&index) else { return };
        let item = &mut self.items[at];
        item.status = status;
        let frame = ResponseFrame { item_id: Some(&item.id), output_index: Some(at), ..ResponseFrame::default() };
        let done = match &mut item.kind {
            ItemKind::FunctionCall { arguments, name, .. } => ResponseFrame {
                kind: "response.function_call_arguments.done",
                name: Some(name),
                arguments: Some(arguments),
                ..frame
            },
            ItemKind::CustomCall { input, .. } => {
                let rest = self.custom.finish();
                if !rest.is_empty() {
                    input.push_str(rest);
                    let frame = ResponseFrame {
                        kind: "response.custom_tool_call_input.delta",
                        item_id: Some(&item.id),
                        output_index: Some(at),
                        delta: Some(rest),
                        ..ResponseFrame::default()
                    };
                    send(&mut self.sequence, frame, write);
                }
                ResponseFrame { kind: "response.custom_tool_call_input.done", input: Some(input), ..frame }
            }
            ItemKind::Reasoning { .. } | ItemKind::Message { .. } => return,
        };
        send(&mut self.sequence, done, write);
        self.send_item("response.output_item.done", at, write);
    }

    /// Ends the last item, and adds the calls that were cut off before an event reported them.
    fn end_output(&mut self, done: v1::Done, write: &mut WriteFrame<'_>) {
        let cut = done.finish_reason() == v1::FinishReason::Length;
        self.close(if cut { ItemStatus::Incomplete } else { ItemStatus::Completed }, write);
        for call in done.incomplete_tool_calls {
            if call.name.is_empty() {
                self.own.unnamed_calls.push(json!({"arguments": call.arguments}));
                continue;
            }
            let reported = |item: &OutputItem| item.kind.call_id() == Some(&call.id);
            if !self.items.iter().any(reported) {
                // No index of the chat: the call ends here.
                let index = u32::MAX;
                self.begin_call(index, call.id, &call.name, write);
                self.add_arguments(index, &call.arguments, write);
                self.end_call(index, ItemStatus::Incomplete, write);
            }
        }
        self.own.malformed = done.malformed;
        self.own.invalid_response = done.invalid_response;
        self.own.ended_early = done.ended_early;
        self.own.grammar_relaxed = done.grammar_relaxed;
        self.status = if cut { ResponseStatus::Incomplete } else { ResponseStatus::Completed };
    }

    fn end(&mut self, usage: Option<v1::Usage>, write: &mut WriteFrame<'_>) {
        self.usage = usage;
        let kind = match self.status {
            ResponseStatus::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        self.send_response(kind, write);
    }

    fn send_response(&mut self, kind: &'static str, write: &mut WriteFrame<'_>) {
        let mut sequence = self.sequence;
        let response = Some(ResponseObject(self));
        send(&mut sequence, ResponseFrame { kind, response, ..ResponseFrame::default() }, write);
        self.sequence = sequence;
    }

    fn send_item(&mut self, kind: &'static str, index: usize, write: &mut WriteFrame<'_>) {
        let item = self.items.get(index);
        let frame = ResponseFrame { kind, output_index: Some(index), item, ..ResponseFrame::default() };
        send(&mut self.sequence, frame, write);
    }

    /// Sends the part of the last item.
    fn send_part(&mut self, kind: &'static str, write: &mut WriteFrame<'_>) {
        let Some(item) = self.items.last() else { return };
        let part = match &item.kind {
            ItemKind::Reasoning { text, .. } => Part::reasoning(text),
            ItemKind::Message { text, logprobs } => Part::text(text, logprobs),
            ItemKind::FunctionCall { .. } | ItemKind::CustomCall { .. } => return,
        };
        let frame = ResponseFrame {
            kind,
            item_id: Some(&item.id),
            output_index: Some(self.items.len() - 1),
            content_index: Some(0),
            part: Some(part),
            ..ResponseFrame::default()
        };
        send(&mut self.sequence, frame, write);
    }

    fn send_delta(
        &mut self,
        kind: &'static str,
        delta: &str,
        logprobs: Option<Vec<Value>>,
        write: &mut WriteFrame<'_>,
    ) {
        let Some(item) = self.items.last() else { return };
        let frame = ResponseFrame {
            kind,
            item_id: Some(&item.id),
            output_index: Some(self.items.len() - 1),
            content_index: Some(0),
            delta: Some(delta),
            logprobs,
            ..ResponseFrame::default()
        };
        send(&mut self.sequence, frame, write);
    }
}

/// Numbers a frame and passes it on.
fn send(sequence: &mut u64, frame: ResponseFrame<'_>, write: &mut WriteFrame<'_>) {
    write(&ResponseFrame { sequence_number: *sequence, ..frame });
    *sequence += 1;
}
