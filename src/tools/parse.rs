//! `rein parse`: parses model output to events, or renders calls to text, with JSON lines as input and output. It needs
//! no server.
//!
//! An input line `{"text" | "token_ids", "tools", "chunks", "in_reasoning"}` gives `{"reasoning", "content",
//! "tool_calls", "incomplete_tool_calls", "events", "malformed"}`. `chunks` sets the size of the pieces that the parser
//! receives: `"all"` (the default), `"char"`, or a number of bytes. Token ids are parsed one by one. An invalid line
//! gives `{"error"}`, and the next line is read.
//!
//! With `--render`, a line `{"reasoning", "content", "tool_calls", "in_reasoning", "calls_before"}` gives `{"text"}`,
//! the text that a model of this format would generate.

use std::error::Error;
use std::path::Path;

use rein_grammar::{
    Call, Event, Format, OwnedPiece, Parser, ParserOptions, Piece, Region, RenderOptions, Tool, Turn, render,
    render_text,
};
use rein_text::pieces::pieces;
use rein_text::tokenize::{TokenizeError, Tokenizer};
use rein_text::tools::tool;
use serde_json::{Map, Value as Json, json};

use super::lines::{answer_lines, token_id};
use crate::args::ParseArgs;

pub fn run(args: &ParseArgs) -> Result<(), Box<dyn Error>> {
    let format = super::formats::named(&args.format)?;
    let (lines, out) = (std::io::stdin().lock(), std::io::stdout().lock());
    if args.render {
        answer_lines(lines, out, |line| render_line(format, line))?;
    } else {
        let source = ParseSource::new(format, args.tokenizer.as_deref())?;
        answer_lines(lines, out, |line| source.answer(line))?;
    }
    Ok(())
}

/// The format, and the tokenizer for lines with token ids.
#[derive(Debug)]
pub struct ParseSource {
    format: &'static Format,
    tokenizer: Option<Tokenizer>,
}

/// The pieces in which the parser receives the text.
enum Chunks {
    All,
    Char,
    Bytes(usize),
}

impl ParseSource {
    /// `tokenizer`: its directory; without it, lines must have text.
    pub fn new(format: &'static Format, tokenizer: Option<&Path>) -> Result<Self, TokenizeError> {
        Ok(ParseSource { format, tokenizer: tokenizer.map(Tokenizer::load).transpose()? })
    }

    /// Answers one input line.
    pub fn answer(&self, line: &str) -> Json {
        self.try_answer(line).unwrap_or_else(|error| json!({ "error": error }))
    }

    fn try_answer(&self, line: &str) -> Result<Json, String> {
        let request: Json = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
        let request = request.as_object().ok_or("a line must be a JSON object")?;
        let tools = tools(request)?;
        let start = start(request)?;
        let chunks = chunks(request)?;
        // Without a list of tools, all calls are parsed.
        let parse_tools = tools.as_ref().is_none_or(|t| !t.is_empty());
        let options = ParserOptions { start, tools: tools.unwrap_or_default().into(), parse_tools };
        let mut parser = Parser::new(self.format, options);
        let mut events = Vec::new();
        for piece in self.pieces(request)? {
            match &piece {
                OwnedPiece::Bytes(bytes) => {
                    for chunk in cut(bytes, &chunks) {
                        parser.push(Piece::Bytes(chunk), &mut events);
                    }
                }
                OwnedPiece::Special(_) => parser.push(piece.as_piece(), &mut events),
            }
        }
        parser.finish(&mut events);
        Ok(answer(self.format, &events))
    }

    fn pieces(&self, request: &Map<String, Json>) -> Result<Vec<OwnedPiece>, String> {
        if let Some(text) = request.get("text") {
            return Ok(self.format.split(text.as_str().ok_or("text must be a string")?));
        }
        let ids = request.get("token_ids").ok_or("a line needs text or token_ids")?;
        let ids = ids.as_array().ok_or("token_ids must be a list of token ids")?;
        let tokenizer = self.tokenizer.as_ref().ok_or("token_ids need a tokenizer; set --tokenizer")?;
        let ids: Vec<u32> = ids.iter().map(|id| token_id(id, tokenizer)).collect::<Result<_, _>>()?;
        Ok(pieces(self.format, tokenizer, &ids))
    }
}

/// Renders the turn in an input line to text.
pub fn render_line(format: &Format, line: &str) -> Json {
    let text = || -> Result<String, String> {
        let request: Json = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
        let request = request.as_object().ok_or("a line must be a JSON object")?;
        let string = |key: &str| match request.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("{key} must be a string")),
        };
        let calls = match request.get("tool_calls") {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Array(calls)) => calls.iter().enumerate().map(call).collect::<Result<_, _>>()?,
            Some(_) => return Err("tool_calls must be a list".into()),
        };
        if !calls.is_empty() && !format.has_calls() {
            return Err(format!("tool_calls: the format {} has no tool calls", format.name));
        }
        let turn = Turn { reasoning: string("reasoning")?, text: string("content")?.unwrap_or_default(), calls };
        let first_index = request.get("calls_before").and_then(Json::as_u64).unwrap_or(0) as usize;
        let options = RenderOptions { start: start(request)?, first_index, ..RenderOptions::default() };
        Ok(render_text(&render(format, &turn, options)))
    };
    text().map_or_else(|error| json!({ "error": error }), |text| json!({ "text": text }))
}

/// Parses `{"name", "arguments"}` or OpenAI's form. Arguments are an object or its JSON text.
fn call((i, call): (usize, &Json)) -> Result<Call, String> {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name").and_then(Json::as_str).ok_or_else(|| format!("tool_calls[{i}].name is missing"))?;
    let arguments = match function.get("arguments") {
        Some(Json::String(text)) => text.clone(),
        Some(object @ Json::Object(_)) => object.to_string(),
        _ => return Err(format!("tool_calls[{i}].arguments must be an object or its JSON text")),
    };
    Ok(Call { name: name.into(), arguments })
}

fn start(request: &Map<String, Json>) -> Result<Region, String> {
    match request.get("in_reasoning") {
        None | Some(Json::Null | Json::Bool(false)) => Ok(Region::Text),
        Some(Json::Bool(true)) => Ok(Region::Reasoning),
        Some(_) => Err("in_reasoning must be true or false".into()),
    }
}

fn tools(request: &Map<String, Json>) -> Result<Option<Vec<Tool>>, String> {
    match request.get("tools") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Array(tools)) => {
            let named = |(i, one)| tool(one).ok_or_else(|| format!("tools[{i}].function.name is missing"));
            tools.iter().enumerate().map(named).collect::<Result<_, _>>().map(Some)
        }
        Some(_) => Err("tools must be a list".into()),
    }
}

fn chunks(request: &Map<String, Json>) -> Result<Chunks, String> {
    let bytes = |n: &Json| n.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    match request.get("chunks") {
        None | Some(Json::Null) => Ok(Chunks::All),
        Some(Json::String(s)) if s == "all" => Ok(Chunks::All),
        Some(Json::String(s)) if s == "char" => Ok(Chunks::Char),
        Some(n) => bytes(n)
            .map(Chunks::Bytes)
            .ok_or_else(|| format!("chunks must be \"all\", \"char\" or a number of bytes, got {n}")),
    }
}

fn cut<'a>(bytes: &'a [u8], chunks: &Chunks) -> Vec<&'a [u8]> {
    match chunks {
        Chunks::All => vec![bytes],
        Chunks::Bytes(n) => bytes.chunks(*n).collect(),
        Chunks::Char => bytes.chunk_by(|_, next| next & 0xC0 == 0x80).collect(),
    }
}

fn answer(format: &Format, events: &[Event]) -> Json {
    let (mut reasoning, mut content) = (String::new(), String::new());
    let (mut calls, mut malformed, mut listed_events) = (Vec::new(), Vec::new(), Vec::new());
    for event in events {
        listed_events.push(match event {
            Event::ReasoningStart => json!({"type": "reasoning_start"}),
            Event::ReasoningEnd => json!({"type": "reasoning_end"}),
            Event::TextStart => json!({"type": "text_start"}),
            Event::TextEnd => json!({"type": "text_end"}),
            Event::ReasoningDelta(text) => {
                reasoning.push_str(text);
                json!({"type": "reasoning_delta", "text": text})
            }
            Event::TextDelta(text) => {
                content.push_str(text);
                json!({"type": "text_delta", "text": text})
            }
            Event::ToolCallStart { index, id, name } => {
                let native = id.clone().or_else(|| format.native_id(name, *index));
                let id = native.unwrap_or_else(|| format!("call_{index}"));
                calls.push((id.clone(), name, String::new(), false));
                json!({"type": "tool_call_start", "index": index, "id": id, "name": name})
            }
            Event::ArgumentsDelta { index, text } => {
                if let Some((.., arguments, _)) = calls.last_mut() {
                    arguments.push_str(text);
                }
                json!({"type": "arguments_delta", "index": index, "text": text})
            }
            Event::ToolCallEnd { index, complete } => {
                if let Some((.., whole)) = calls.last_mut() {
                    *whole = *complete;
                }
                json!({"type": "tool_call_end", "index": index, "complete": complete})
            }
            Event::Malformed(text) => {
                malformed.push(text);
                json!({"type": "malformed", "text": text})
            }
        });
    }
    let listed = |whole: bool| -> Vec<Json> {
        let calls = calls.iter().filter(|(.., complete)| *complete == whole);
        calls.map(|(id, name, arguments, _)| json!({"id": id, "name": name, "arguments": arguments})).collect()
    };
    json!({
        "reasoning": reasoning,
        "content": content,
        "tool_calls": listed(true),
        "incomplete_tool_calls": listed(false),
        "events": listed_events,
        "malformed": malformed,
    })
}

#[cfg(test)]
mod tests;
