//! `rein accept`: reports how many tokens of an output a request's grammar accepts. It needs no engine.
//!
//! An input line is `{"tools", "tool_choice", "response_format", "structured_outputs", "parallel_tool_calls",
//! "in_reasoning", "calls_before", "token_ids" | "text"}`, with the fields of a chat request. Fields of the answer:
//!
//! - `accepted`, `total`: the number of tokens that the grammar accepts, and of all tokens.
//! - `complete`: whether the turn may end after the output.
//! - `relaxed`: the schema keywords, as `TOOL#PATH/KEYWORD`, that the grammar does not enforce. They are validated when
//!   a call is complete.
//! - `error`: why the next token is not accepted, or why the line is invalid.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use rein_grammar::{Enforcement, Format, Grammars, MatcherError, Region, Relaxation, Rules, Tool, Vocab};
use rein_text::fields::Fields;
use rein_text::fields::constraints::{self, TextConstraint};
use rein_text::model_text::special_tokens;
use rein_text::tokenize::{Encode, Tokenizer, read_json};
use serde_json::{Map, Value as Json, json};

use super::lines::{answer_lines, flag, token_id};
use crate::args::AcceptArgs;

pub fn run(args: &AcceptArgs) -> Result<(), Box<dyn Error>> {
    let source = AcceptSource::open(super::formats::named(&args.format)?, &args.tokenizer)?;
    answer_lines(std::io::stdin().lock(), std::io::stdout().lock(), |line| source.answer(line))?;
    Ok(())
}

/// The grammars of a format for a tokenizer.
#[derive(Debug)]
pub struct AcceptSource {
    tokenizer: Tokenizer,
    grammars: Grammars,
}

impl AcceptSource {
    /// `dir`: directory with the tokenizer.
    pub fn open(format: &'static Format, dir: &Path) -> Result<Self, Box<dyn Error>> {
        let tokenizer = Tokenizer::load(dir)?;
        let stops = stops(format, &tokenizer, dir)?;
        let words = (0..tokenizer.vocab_size() as u32).map(|id| {
            let bytes = tokenizer.token_bytes(id).map(|b| b.into_owned()).unwrap_or_default();
            let control = tokenizer.special(id).is_some_and(|text| format.is_control(text, tokenizer.is_control(id)));
            (bytes, control || stops.contains(&id))
        });
        let vocab = Vocab::new(words, &stops, None)?;
        Ok(Self { grammars: Grammars::new(format, Arc::new(vocab)), tokenizer })
    }

    /// Answers one input line.
    pub fn answer(&self, line: &str) -> Json {
        self.try_answer(line).unwrap_or_else(|error| verdict(0, &Json::Null, false, &[], Some(error)))
    }

    fn try_answer(&self, line: &str) -> Result<Json, String> {
        let request: Json = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
        let request = request.as_object().ok_or("a line must be a JSON object")?;
        let ids = match (request.get("token_ids"), request.get("text")) {
            (Some(Json::Array(ids)), _) => {
                ids.iter().map(|id| token_id(id, &self.tokenizer)).collect::<Result<Vec<_>, _>>()?
            }
            (None, Some(Json::String(text))) => {
                self.tokenizer.encode(text, Encode::TEMPLATED).map_err(|e| e.to_string())?
            }
            _ => return Err("a line needs token_ids (a list of token ids) or text (a string)".into()),
        };
        let total = ids.len();
        let Some(compiled) = self.grammars.compile(&rules(request)?).map_err(|e| e.to_string())? else {
            return Ok(verdict(total, &total.into(), true, &[], None));
        };
        let relaxed: Vec<String> = compiled.relaxations().iter().map(Relaxation::to_string).collect();
        let mut matcher = compiled.matcher().map_err(|e| e.to_string())?;
        for (accepted, id) in ids.iter().enumerate() {
            let error = match matcher.accept(*id) {
                Ok(true) => continue,
                // A grammar at its limit refuses every token.
                Ok(false) => match matcher.mask() {
                    Err(e @ MatcherError::Limit(_)) => e.to_string(),
                    _ => {
                        let bytes = self.tokenizer.token_bytes(*id).unwrap_or_default();
                        format!("token {id} ({:?}) is not allowed here", String::from_utf8_lossy(&bytes))
                    }
                },
                Err(e) => e.to_string(),
            };
            return Ok(verdict(accepted, &total.into(), false, &relaxed, Some(error)));
        }
        Ok(verdict(total, &total.into(), matcher.may_stop(), &relaxed, None))
    }
}

fn verdict(accepted: usize, total: &Json, complete: bool, relaxed: &[String], error: Option<String>) -> Json {
    json!({"accepted": accepted, "total": total, "complete": complete, "relaxed": relaxed, "error": error})
}

/// The tokens that end a turn, according to the tokenizer's directory and the format.
fn stops(format: &Format, tokenizer: &Tokenizer, dir: &Path) -> Result<Vec<u32>, Box<dyn Error>> {
    let config = read_json(&dir.join("tokenizer_config.json"))?;
    let named = special_tokens(dir, &config)?;
    let id = |text: &str| tokenizer.special_id(text);
    let mut stops: Vec<u32> = named.get("eos_token").and_then(Json::as_str).and_then(id).into_iter().collect();
    stops.extend(format.stops.iter().copied().filter_map(id));
    stops.extend(rein_grammar::turn_ends(|text| id(text).is_some()).filter_map(id));
    let generation = read_json(&dir.join("generation_config.json"))?;
    let ids = match generation.get("eos_token_id") {
        Some(Json::Array(ids)) => ids.clone(),
        Some(one) => vec![one.clone()],
        None => Vec::new(),
    };
    stops.extend(ids.iter().filter_map(Json::as_u64).map(|id| id as u32));
    stops.sort_unstable();
    stops.dedup();
    Ok(stops)
}

/// Translates the fields of a request to grammar rules.
fn rules(request: &Map<String, Json>) -> Result<Rules, String> {
    let tools = match request.get("tools") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(tools)) => tools.iter().map(tool).collect::<Result<_, _>>()?,
        Some(_) => return Err("tools must be a list".into()),
    };
    let mut fields = Fields::within("", request.clone());
    let TextConstraint { response, blanks } = constraints::response(&mut fields).map_err(|e| e.message)?;
    let calls_before = request.get("calls_before").and_then(Json::as_u64).unwrap_or(0) as usize;
    Ok(Rules {
        tools: tools.into(),
        choice: constraints::tool_choice(&mut fields).map_err(|e| e.message)?.unwrap_or_default(),
        parallel: flag(request, "parallel_tool_calls")?.unwrap_or(true),
        response,
        blanks: blanks.unwrap_or_default(),
        start: if flag(request, "in_reasoning")?.unwrap_or(false) { Region::Reasoning } else { Region::Text },
        calls_before,
        enforcement: Enforcement::NamesAndArguments,
        ..Rules::default()
    })
}

fn tool(tool: &Json) -> Result<Tool, String> {
    let function = tool.get("function").unwrap_or(tool);
    let name = function.get("name").and_then(Json::as_str).ok_or("tools: function.name must be a string")?;
    let strict = function.get("strict").and_then(Json::as_bool).unwrap_or(false);
    Ok(Tool::declared(name.into(), function.get("parameters").cloned(), strict))
}

#[cfg(test)]
mod tests;
