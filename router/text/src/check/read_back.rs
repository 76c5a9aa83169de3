//! Checks that the format parses what the template writes: renders a call as history and parses it as output.

use rein_grammar::{Event, Parser, ParserOptions, Region};
use serde_json::{Value as Json, json};

use super::{Outcome, Subject, arguments, broken, calling, fine, result, tool, user, warning};
use crate::pieces::pieces;
use crate::template::RenderInput;
use crate::tokenize::Encode;
use crate::tools::tool as declared;

pub fn check(subject: &Subject<'_>) -> Outcome {
    if !subject.format.has_calls() {
        return broken("no format to parse calls with");
    }
    let simple = json!({"city": "Paris"});
    for (what, calls, text) in [
        ("a simple call", vec![simple.clone()], None),
        ("a call with arguments of several types", vec![arguments()], None),
        ("text and a call", vec![simple.clone()], Some("Let me look.")),
    ] {
        match read(subject, &calls, text) {
            Ok(read) if read == calls => {}
            Ok(read) if read.is_empty() => {
                return broken(format!(
                    "the format {} does not detect {what} that the template writes",
                    subject.format.name
                ));
            }
            Ok(read) => {
                return broken(format!("the format {} parses {what} as {}", subject.format.name, Json::from(read)));
            }
            // Some models may not write text before a call.
            Err(_) if text.is_some() => {}
            Err(error) => return broken(format!("the template rejects {what}: {error}")),
        }
    }
    let two = vec![simple, json!({"city": "Rome"})];
    match read(subject, &two, None) {
        _ if !subject.format.many => fine("the format parses what the template writes"),
        Ok(read) if read == two => fine("the format parses what the template writes, including several calls"),
        Ok(read) => broken(format!(
            "the template writes two calls, but the format {} parses {}",
            subject.format.name,
            Json::from(read)
        )),
        Err(error) => warning(format!("the template rejects two calls in one message: {error}")),
    }
}

/// Renders a turn with these calls and returns the arguments of the calls that the format finds in it.
fn read(subject: &Subject<'_>, calls: &[Json], text: Option<&str>) -> Result<Vec<Json>, String> {
    let mut call = calling(calls);
    if let Some(text) = text {
        call["content"] = text.into();
    }
    let results: Vec<Json> = (0..calls.len()).map(result).collect();
    let whole = |messages: Vec<Json>| {
        subject.render(&RenderInput { add_generation_prompt: false, ..subject.input(messages, true) })
    };
    // Some templates require results after calls.
    let written = whole(vec![user(), call.clone()]).or_else(|_| whole([vec![user(), call], results].concat()))?;
    let prompt = subject.render(&subject.input(vec![user()], true))?;
    let (output, start) = match written.strip_prefix(&prompt) {
        Some(output) => (output, subject.format.start_after(&prompt)),
        // The generation prompt contains what the history does not, such as the start of reasoning.
        None => (&written[turn_start(&prompt, &written)..], Region::Text),
    };
    let tokenizer = &subject.text.tokenizer;
    let mut ids = tokenizer.encode(output, Encode::TEMPLATED).map_err(|error| error.to_string())?;
    let end = ids.iter().position(|id| subject.text.stop_token_ids.contains(id)).unwrap_or(ids.len());
    ids.truncate(end);
    let tools = declared(&tool()).into_iter().collect();
    let mut parser = Parser::new(subject.format, ParserOptions { start, tools, parse_tools: true });
    let mut events = Vec::new();
    for piece in pieces(subject.format, tokenizer, &ids) {
        parser.push(piece.as_piece(), &mut events);
    }
    parser.finish(&mut events);
    let mut found = Vec::new();
    let mut arguments = String::new();
    for event in events {
        match event {
            Event::ToolCallStart { .. } => arguments.clear(),
            Event::ArgumentsDelta { text, .. } => arguments.push_str(&text),
            Event::ToolCallEnd { complete: true, .. } => {
                found.push(serde_json::from_str(&arguments).unwrap_or_else(|_| Json::from(arguments.as_str())))
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Where the two prompts start to differ, moved back to the end of a line or marker.
fn turn_start(prompt: &str, written: &str) -> usize {
    let common = prompt
        .char_indices()
        .zip(written.chars())
        .find(|((_, a), b)| a != b)
        .map_or(prompt.len().min(written.len()), |((at, _), _)| at);
    written[..common].rfind(['\n', '>', ']']).map_or(0, |at| at + 1)
}
