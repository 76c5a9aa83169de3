//! Encodes the events of an answer as the events of a message stream.

use std::collections::HashMap;

use rein_proto::v1::{self, chat_event::Event};
use serde::Serialize;
use serde_json::json;

use super::{
    origins::FieldOrigins,
    request::AnswerOptions,
    thinking::{ThinkingSeal, UnsignedThinking},
    wire::{MessageEnd, MessageHead, MessageUsage, call_id},
};
use crate::{
    api::{
        frames::{EncodeFrames, write_event},
        status,
    },
    error::Error,
};

pub struct MessageFrames {
    options: AnswerOptions,
    seal: ThinkingSeal,
    origins: FieldOrigins,
    request_id: Option<String>,
    model: String,
    /// The block that is being sent.
    open: Option<OpenBlock>,
    /// Blocks that are finished.
    blocks: u32,
    /// The ids of calls as clients know them, by the model's own.
    call_ids: HashMap<String, String>,
}

enum OpenBlock {
    Text,
    Thinking(Box<UnsignedThinking>),
    ToolUse,
}

#[derive(Serialize)]
struct BlockStart<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    index: u32,
    content_block: BlockBeginning<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum BlockBeginning<'a> {
    Text { text: &'static str },
    Thinking { thinking: &'static str, signature: &'static str },
    ToolUse { id: &'a str, name: &'a str, input: EmptyInput },
}

/// `{}`
#[derive(Serialize)]
struct EmptyInput {}

#[derive(Serialize)]
struct BlockDelta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    index: u32,
    delta: Delta<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

#[derive(Serialize)]
struct MessageDelta {
    #[serde(rename = "type")]
    kind: &'static str,
    delta: MessageEnd,
    usage: MessageUsage,
}

impl MessageFrames {
    /// `request_id` is repeated in errors.
    pub fn new(
        options: AnswerOptions,
        seal: ThinkingSeal,
        origins: FieldOrigins,
        model: &str,
        request_id: Option<String>,
    ) -> Self {
        MessageFrames {
            options,
            seal,
            origins,
            request_id,
            model: model.to_owned(),
            open: None,
            blocks: 0,
            call_ids: HashMap::new(),
        }
    }

    fn begin(&mut self, block: OpenBlock, content_block: BlockBeginning<'_>, out: &mut Vec<u8>) {
        self.close(out);
        self.open = Some(block);
        write(
            "content_block_start",
            &BlockStart { kind: "content_block_start", index: self.blocks, content_block },
            out,
        );
    }

    fn delta(&self, delta: Delta<'_>, out: &mut Vec<u8>) {
        write("content_block_delta", &BlockDelta { kind: "content_block_delta", index: self.blocks, delta }, out);
    }

    /// Ends the open block, if there is one.
    fn close(&mut self, out: &mut Vec<u8>) {
        match self.open.take() {
            None => return,
            Some(OpenBlock::Text | OpenBlock::ToolUse) => {}
            Some(OpenBlock::Thinking(thinking)) => {
                let signature = thinking.sign(&self.seal, &self.model);
                self.delta(Delta::Signature { signature: &signature }, out);
            }
        }
        write("content_block_stop", &json!({"type": "content_block_stop", "index": self.blocks}), out);
        self.blocks += 1;
    }

    fn thinking(&mut self, text: &str, out: &mut Vec<u8>) {
        if !matches!(self.open, Some(OpenBlock::Thinking(_))) {
            let block = OpenBlock::Thinking(Box::new(UnsignedThinking::new(self.options.omit_thinking)));
            self.begin(block, BlockBeginning::Thinking { thinking: "", signature: "" }, out);
        }
        if let Some(OpenBlock::Thinking(thinking)) = &mut self.open
            && thinking.push(text)
        {
            self.delta(Delta::Thinking { thinking: text }, out);
        }
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) {
        if !matches!(self.open, Some(OpenBlock::Text)) {
            self.begin(OpenBlock::Text, BlockBeginning::Text { text: "" }, out);
        }
        self.delta(Delta::Text { text }, out);
    }
}

impl EncodeFrames for MessageFrames {
    fn event(&mut self, event: v1::ChatEvent, out: &mut Vec<u8>) {
        match event.event {
            Some(Event::Start(start)) => {
                let message =
                    MessageHead::new(&start, Vec::<()>::new(), MessageEnd::default(), start.usage.unwrap_or_default());
                write("message_start", &json!({"type": "message_start", "message": message}), out);
            }
            Some(Event::ReasoningDelta(delta)) if !delta.text.is_empty() => self.thinking(&delta.text, out),
            Some(Event::TextDelta(delta)) if !delta.text.is_empty() => self.text(&delta.text, out),
            Some(Event::ToolCallStart(call)) => {
                let id = call_id();
                let block = BlockBeginning::ToolUse { id: &id, name: &call.name, input: EmptyInput {} };
                self.begin(OpenBlock::ToolUse, block, out);
                self.call_ids.insert(call.id, id);
            }
            Some(Event::ArgumentsDelta(delta)) if !delta.text.is_empty() => {
                self.delta(Delta::InputJson { partial_json: &delta.text }, out);
            }
            Some(Event::ReasoningEnd(_) | Event::TextEnd(_) | Event::ToolCallEnd(_)) => self.close(out),
            Some(Event::Done(done)) => {
                self.close(out);
                let usage = done.usage.unwrap_or_default().into();
                let known = std::mem::take(&mut self.call_ids);
                let id = |own: &str| known.get(own).cloned().unwrap_or_else(call_id);
                let delta = MessageEnd::new(done, self.options, id);
                write("message_delta", &MessageDelta { kind: "message_delta", delta, usage }, out);
            }
            Some(
                Event::ReasoningStart(_)
                | Event::ReasoningDelta(_)
                | Event::TextStart(_)
                | Event::TextDelta(_)
                | Event::ArgumentsDelta(_)
                | Event::Malformed(_)
                | Event::Usage(_),
            )
            | None => {}
        }
    }

    fn error(&mut self, error: &Error, out: &mut Vec<u8>) {
        let error = self.origins.rename(error.clone());
        write("error", &status::anthropic_body(&error, self.request_id.as_deref()), out);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        write("message_stop", &json!({"type": "message_stop"}), out);
    }

    fn silence(&mut self, out: &mut Vec<u8>) {
        write("ping", &json!({"type": "ping"}), out);
    }
}

fn write(name: &str, payload: &impl Serialize, out: &mut Vec<u8>) {
    write_event(name, &crate::api::to_json(payload), out);
}
