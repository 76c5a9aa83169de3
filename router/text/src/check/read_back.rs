//! Checks that the format parses what the template writes, and that its grammar accepts it: renders a call as history
//! and takes it as output.

use std::sync::Arc;

use rein_grammar::{
    Call, Event, Format, Grammars, Parser, ParserOptions, Region, RenderOptions, Rules, Turn as RenderedTurn, formats,
    from_response_template, render, render_text,
};
use serde_json::{Value as Json, json};

use super::{Outcome, Subject, arguments, broken, calling, fine, result, tool, user, warning};
use crate::model_text::ModelText;
use crate::pieces::pieces;
use crate::template::RenderInput;
use crate::tokenize::Encode;
use crate::tools::tool as declared;

/// Whether the template writes calls in another format than this one, or its grammar refuses them: why.
pub fn contradiction(text: &ModelText, format: &'static Format) -> Option<String> {
    let subject = Subject { text, template: text.template.as_ref()?, format };
    let call = json!({"city": CITY});
    let turn = written(&subject, std::slice::from_ref(&call), None).ok()?;
    let read = turn.read(&subject).ok()?;
    if read.is_empty() && turn.output.contains(CITY) && turn.output.contains(NAME) {
        return Some(format!("the template writes calls that {} does not read", format.name));
    }
    if read != [call] {
        return None;
    }
    // Without a grammar nothing is enforced.
    turn.refused(&subject, &grammar(&subject).ok()?).err()
}

/// The format whose parser and grammar take the calls that the template writes, other than this one.
pub fn fitting(text: &ModelText, refused: &'static Format) -> Option<&'static Format> {
    formats()
        .iter()
        .filter(|format| format.has_calls() && format.name != refused.name)
        .find(|format| takes_calls(text, format).is_some())
}

/// The format of the checkpoint's `response_template`, if it takes the calls that the chat template writes. Of several
/// layouts, the one in which that template writes them.
pub fn derived(text: &ModelText) -> Option<&'static Format> {
    let described = text.response_template.as_ref()?;
    let all = match from_response_template(described, &|name| text.has_special(name)) {
        Ok(all) => all,
        Err(error) => {
            tracing::warn!(model = text.name, %error, "no format can be derived from the model's response_template");
            return None;
        }
    };
    let call = Call { name: NAME.into(), arguments: json!({"city": CITY}).to_string() };
    let turn = RenderedTurn { calls: vec![call], ..RenderedTurn::default() };
    let mut taking = all.into_iter().filter_map(|format| Some((format, takes_calls(text, format)?)));
    let first = taking.next()?;
    let as_written = |(format, output): &(&'static Format, String)| {
        output.contains(&render_text(&render(format, &turn, RenderOptions::default())))
    };
    if as_written(&first) {
        return Some(first.0);
    }
    Some(taking.find(as_written).unwrap_or(first).0)
}

/// The first of two calls as the template writes it, if the format's parser and grammar take both.
fn takes_calls(text: &ModelText, format: &'static Format) -> Option<String> {
    let subject = Subject { text, template: text.template.as_ref()?, format };
    let grammar = grammar(&subject).ok()?;
    let mut outputs = Vec::new();
    for call in [json!({"city": CITY}), arguments()] {
        let turn = written(&subject, std::slice::from_ref(&call), None).ok()?;
        if turn.read(&subject).ok()? != [call] || turn.refused(&subject, &grammar).is_err() {
            return None;
        }
        outputs.push(turn.output);
    }
    outputs.into_iter().next()
}

const CITY: &str = "Paris";
const NAME: &str = "get_weather";

pub fn check(subject: &Subject<'_>) -> Outcome {
    if !subject.format.has_calls() {
        return broken("no format to parse calls with");
    }
    let grammar = match grammar(subject) {
        Ok(grammar) => grammar,
        Err(error) => return broken(format!("the format {} has no grammar here: {error}", subject.format.name)),
    };
    let simple = json!({"city": CITY});
    for (what, calls, text) in [
        ("a simple call", vec![simple.clone()], None),
        ("a call with arguments of several types", vec![arguments()], None),
        ("text and a call", vec![simple.clone()], Some("Let me look.")),
    ] {
        let turn = match written(subject, &calls, text) {
            Ok(turn) => turn,
            // Some models may not write text before a call.
            Err(_) if text.is_some() => continue,
            Err(error) => return broken(format!("the template rejects {what}: {error}")),
        };
        match turn.read(subject) {
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
            Err(error) => return broken(format!("the template rejects {what}: {error}")),
        }
        if let Err(error) = turn.refused(subject, &grammar) {
            return broken(format!("{what} that the template writes is refused: {error}"));
        }
    }
    let two = vec![simple, json!({"city": "Rome"})];
    if !subject.format.many {
        return fine("the format parses what the template writes, and its grammar accepts it");
    }
    match written(subject, &two, None).and_then(|turn| turn.read(subject)) {
        Ok(read) if read == two => {
            fine("the format parses what the template writes, including several calls, and its grammar accepts it")
        }
        Ok(read) => broken(format!(
            "the template writes two calls, but the format {} parses {}",
            subject.format.name,
            Json::from(read)
        )),
        Err(error) => warning(format!("the template rejects two calls in one message: {error}")),
    }
}

/// A turn as the template writes it, as if the model had drawn it.
struct Turn {
    output: String,
    start: Region,
}

/// Renders a turn with these calls.
fn written(subject: &Subject<'_>, calls: &[Json], text: Option<&str>) -> Result<Turn, String> {
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
    Ok(Turn { output: output.to_owned(), start })
}

fn grammar(subject: &Subject<'_>) -> Result<Grammars, String> {
    Ok(Grammars::new(subject.format, Arc::new(subject.text.vocabulary(subject.format)?)))
}

impl Turn {
    /// Its tokens up to the one that ends it.
    fn ids(&self, subject: &Subject<'_>) -> Result<Vec<u32>, String> {
        let mut ids =
            subject.text.tokenizer.encode(&self.output, Encode::TEMPLATED).map_err(|error| error.to_string())?;
        let end = ids.iter().position(|id| subject.text.stop_token_ids.contains(id)).unwrap_or(ids.len());
        ids.truncate(end);
        Ok(ids)
    }

    /// The arguments of the calls that the format finds in it.
    fn read(&self, subject: &Subject<'_>) -> Result<Vec<Json>, String> {
        let ids = self.ids(subject)?;
        let tools = declared(&tool()).into_iter().collect();
        let options = ParserOptions { start: self.start, tools, parse_tools: true };
        let mut parser = Parser::new(subject.format, options);
        let mut events = Vec::new();
        for piece in pieces(subject.format, &subject.text.tokenizer, &ids) {
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

    /// Fails with what the grammar refuses.
    fn refused(&self, subject: &Subject<'_>, grammars: &Grammars) -> Result<(), String> {
        let ids = self.ids(subject)?;
        let tools = declared(&tool()).into_iter().collect();
        let rules = Rules { tools, parallel: true, start: self.start, reasons: true, ..Rules::default() };
        let compiled = grammars.compile(&rules).map_err(|error| error.to_string())?;
        let Some(compiled) = compiled else { return Ok(()) };
        let mut matcher = compiled.matcher().map_err(|error| error.to_string())?;
        for (at, id) in ids.iter().enumerate() {
            if !matcher.accept(*id).map_err(|error| error.to_string())? {
                let text = |ids: &[u32]| String::from_utf8_lossy(&subject.text.tokenizer.decode(ids)).into_owned();
                return Err(format!(
                    "the grammar of {} takes {:?} and refuses {:?}",
                    subject.format.name,
                    text(&ids[..at]),
                    text(&ids[at..=at])
                ));
            }
        }
        Ok(())
    }
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
