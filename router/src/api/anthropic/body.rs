//! Collects the events of an answer that is not streamed into one message.

use rein_proto::v1::{self, chat_event::Event};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    request::AnswerOptions,
    thinking::{ThinkingSeal, UnsignedThinking},
    wire::{IncompleteToolUse, MessageEnd, MessageHead, call_id},
};

/// A content block.
enum Block {
    Text(String),
    Thinking(String),
    ToolUse(ToolUse),
}

struct ToolUse {
    /// The id by which the client knows the call, and the model's own.
    id: String,
    own: String,
    name: String,
    input: String,
    complete: bool,
}

/// The body of an answer that is not streamed.
pub fn message_body(events: Vec<v1::ChatEvent>, options: AnswerOptions, seal: &ThinkingSeal) -> Vec<u8> {
    let (mut start, mut done, mut blocks) = (v1::Started::default(), v1::Done::default(), Vec::new());
    // Whether the last block goes on.
    let mut open = false;
    for event in events {
        match event.event {
            Some(Event::Start(started)) => start = started,
            Some(Event::ReasoningDelta(delta)) if !delta.text.is_empty() => match blocks.last_mut().filter(|_| open) {
                Some(Block::Thinking(text)) => text.push_str(&delta.text),
                _ => {
                    blocks.push(Block::Thinking(delta.text));
                    open = true;
                }
            },
            Some(Event::TextDelta(delta)) if !delta.text.is_empty() => match blocks.last_mut().filter(|_| open) {
                Some(Block::Text(text)) => text.push_str(&delta.text),
                _ => {
                    blocks.push(Block::Text(delta.text));
                    open = true;
                }
            },
            Some(Event::ToolCallStart(call)) => {
                let v1::ToolCallStart { id: own, name, .. } = call;
                let call = ToolUse { id: call_id(), own, name, input: String::new(), complete: false };
                blocks.push(Block::ToolUse(call));
                open = true;
            }
            Some(Event::ArgumentsDelta(delta)) => {
                if let Some(Block::ToolUse(call)) = blocks.last_mut() {
                    call.input.push_str(&delta.text);
                }
            }
            Some(Event::ToolCallEnd(end)) => {
                if let Some(Block::ToolUse(call)) = blocks.last_mut() {
                    call.complete = end.complete;
                }
                open = false;
            }
            Some(Event::ReasoningEnd(_) | Event::TextEnd(_)) => open = false,
            Some(Event::Done(ended)) => done = ended,
            Some(
                Event::ReasoningStart(_)
                | Event::ReasoningDelta(_)
                | Event::TextStart(_)
                | Event::TextDelta(_)
                | Event::Malformed(_)
                | Event::Usage(_),
            )
            | None => {}
        }
    }
    let usage = done.usage.unwrap_or_default();
    let known = |own: &str| {
        let call = blocks.iter().find_map(|block| match block {
            Block::ToolUse(call) if call.own == own => Some(call.id.clone()),
            _ => None,
        });
        call.unwrap_or_else(call_id)
    };
    let mut end = MessageEnd::new(done, options, known);
    let content: Vec<WrittenBlock> =
        blocks.into_iter().filter_map(|block| written(block, options, seal, &start.model, &mut end)).collect();
    crate::api::to_json(&MessageHead::new(&start, content, end, usage))
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WrittenBlock {
    Text { text: String },
    Thinking { thinking: String, signature: String },
    // The input as the model wrote it, with all digits of its numbers.
    ToolUse { id: String, name: String, input: Box<RawValue> },
}

/// The block as the client gets it. None: the client must not see it, because the call must not be executed.
fn written(
    block: Block,
    options: AnswerOptions,
    seal: &ThinkingSeal,
    model: &str,
    end: &mut MessageEnd,
) -> Option<WrittenBlock> {
    match block {
        Block::Text(text) => Some(WrittenBlock::Text { text }),
        Block::Thinking(text) => {
            let mut thinking = UnsignedThinking::new(options.omit_thinking);
            let shown = if thinking.push(&text) { text } else { String::new() };
            Some(WrittenBlock::Thinking { thinking: shown, signature: thinking.sign(seal, model) })
        }
        Block::ToolUse(ToolUse { complete: false, .. }) => None,
        Block::ToolUse(ToolUse { id, name, input, .. }) => match serde_json::from_str::<Box<RawValue>>(&input) {
            Ok(input) if input.get().starts_with('{') => Some(WrittenBlock::ToolUse { id, name, input }),
            _ => {
                end.incomplete_tool_calls.push(IncompleteToolUse { id, name, partial_json: input });
                None
            }
        },
    }
}
