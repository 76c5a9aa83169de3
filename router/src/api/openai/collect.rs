//! Collects the events of an answer that is not streamed into one response body.

use rein_proto::v1::{self, chat_event::Event};

use super::{
    DeliveryOptions,
    wire::{
        self, ChatBody, ChatBodyChoice, ChatLogprobs, CompletionBody, CompletionChoice, CompletionLogprobs,
        GrammarReport, Message, ToolCall, Usage,
    },
};

#[derive(Default)]
struct Choice {
    start: v1::Started,
    content: String,
    reasoning: String,
    calls: Vec<v1::ToolCall>,
    /// Indices of calls that must not be executed.
    incomplete: Vec<u32>,
    token_ids: Vec<u32>,
    logprobs: Vec<v1::TokenLogprob>,
    done: v1::Done,
}

#[derive(Default)]
struct Answer {
    choices: Vec<Choice>,
    usage: v1::Usage,
}

fn collect(events: Vec<v1::ChatEvent>) -> Answer {
    let mut answer = Answer::default();
    for event in events {
        if let Some(Event::Usage(v1::UsageEvent { usage: Some(usage) })) = event.event {
            answer.usage = usage;
            continue;
        }
        let index = event.choice as usize;
        if answer.choices.len() <= index {
            answer.choices.resize_with(index + 1, Choice::default);
        }
        let choice = &mut answer.choices[index];
        choice.token_ids.extend(event.token_ids);
        choice.logprobs.extend(event.logprobs);
        match event.event {
            Some(Event::Start(start)) => choice.start = start,
            Some(Event::ReasoningDelta(delta)) => choice.reasoning.push_str(&delta.text),
            Some(Event::TextDelta(delta)) => choice.content.push_str(&delta.text),
            Some(Event::ToolCallStart(call)) => {
                choice.calls.push(v1::ToolCall { id: call.id, name: call.name, arguments: String::new() });
            }
            Some(Event::ArgumentsDelta(delta)) => {
                if let Some(call) = choice.calls.get_mut(delta.index as usize) {
                    call.arguments.push_str(&delta.text);
                }
            }
            Some(Event::ToolCallEnd(end)) if !end.complete => choice.incomplete.push(end.index),
            Some(Event::Done(done)) => choice.done = done,
            Some(
                Event::ReasoningStart(_)
                | Event::ReasoningEnd(_)
                | Event::TextStart(_)
                | Event::TextEnd(_)
                | Event::ToolCallEnd(_)
                | Event::Malformed(_)
                | Event::Usage(_),
            )
            | None => {}
        }
    }
    answer
}

/// The response body of a chat that is not streamed.
pub fn chat_body(events: Vec<v1::ChatEvent>, delivery: DeliveryOptions, token_ids: bool) -> Vec<u8> {
    let answer = collect(events);
    let first = answer.choices.first().map(|choice| &choice.start);
    let choice = |(index, choice)| {
        let Choice { content, reasoning, calls, incomplete, token_ids: ids, logprobs, done, .. }: &Choice = choice;
        let finished = (0..).zip(calls).filter(|(index, _)| !incomplete.contains(index));
        let finished: Vec<_> = finished.map(|(_, call)| ToolCall::from(call)).collect();
        let reasoning = (!reasoning.is_empty() && !delivery.hide_reasoning).then_some(reasoning.as_str());
        ChatBodyChoice {
            index,
            message: Message {
                role: "assistant",
                content: (!content.is_empty() || finished.is_empty()).then_some(content),
                refusal: None,
                reasoning_content: reasoning,
                reasoning,
                tool_calls: finished,
                incomplete_tool_calls: done.incomplete_tool_calls.iter().map(ToolCall::from).collect(),
                malformed: &done.malformed,
            },
            logprobs: ChatLogprobs::new(logprobs),
            finish_reason: wire::finish_reason(done.finish_reason()),
            stop_reason: wire::stop_reason(done),
            token_ids: token_ids.then_some(ids),
            grammar: done.grammar.as_ref().map(GrammarReport::from),
            invalid_response: &done.invalid_response,
            ended_early: &done.ended_early,
            grammar_relaxed: &done.grammar_relaxed,
        }
    };
    let body = ChatBody {
        id: first.map_or("", |start| &start.id),
        object: "chat.completion",
        created: first.map_or(0, |start| start.created),
        model: first.map_or("", |start| &start.model),
        system_fingerprint: first.map_or("", |start| &start.system_fingerprint),
        choices: (0..).zip(&answer.choices).map(choice).collect(),
        usage: Usage::from(&answer.usage),
        prompt_token_ids: first.filter(|_| token_ids).map(|start| start.prompt_token_ids.as_slice()),
        prompt_logprobs: first.and_then(|start| wire::prompt_logprobs(&start.prompt_logprobs)),
    };
    crate::api::to_json(&body)
}

/// The response body of a completion that is not streamed.
pub fn completion_body(events: Vec<v1::ChatEvent>, token_ids: bool) -> Vec<u8> {
    let answer = collect(events);
    let first = answer.choices.first().map(|choice| &choice.start);
    let choice = |(index, choice)| {
        let Choice { start, content, token_ids: ids, logprobs, done, .. }: &Choice = choice;
        CompletionChoice {
            index,
            text: content,
            logprobs: CompletionLogprobs::new(logprobs),
            finish_reason: Some(wire::finish_reason(done.finish_reason())),
            stop_reason: wire::stop_reason(done),
            token_ids: token_ids.then_some(ids),
            prompt_token_ids: (!start.prompt_token_ids.is_empty()).then_some(&start.prompt_token_ids),
            prompt_logprobs: wire::prompt_logprobs(&start.prompt_logprobs),
            invalid_response: &done.invalid_response,
            ended_early: &done.ended_early,
            grammar_relaxed: &done.grammar_relaxed,
        }
    };
    let body = CompletionBody {
        id: first.map_or("", |start| &start.id),
        object: "text_completion",
        created: first.map_or(0, |start| start.created),
        model: first.map_or("", |start| &start.model),
        system_fingerprint: first.map_or("", |start| &start.system_fingerprint),
        choices: (0..).zip(&answer.choices).map(choice).collect(),
        usage: Some(Some(Usage::from(&answer.usage))),
    };
    crate::api::to_json(&body)
}
