//! Reads the fields that constrain the output: `tool_choice` and `response_format` of OpenAI, `structured_outputs` of
//! vLLM, and their older names. It knows no grammar.

use rein_grammar::{Blanks, Response, ToolChoice};
use serde_json::{Map, Value};

use super::{Fields, json};
use crate::InvalidRequest;

pub fn tool_choice(fields: &mut Fields) -> Result<Option<ToolChoice>, InvalidRequest> {
    let value = match fields.take("tool_choice") {
        None => return Ok(None),
        Some(value) => value,
    };
    let map = match value {
        Value::String(choice) => {
            return match choice.as_str() {
                "auto" => Ok(Some(ToolChoice::Auto)),
                "none" => Ok(Some(ToolChoice::None)),
                "required" | "any" => Ok(Some(ToolChoice::Required)),
                other => {
                    let message =
                        format!("'tool_choice' must be 'auto', 'none', 'required' or an object, got '{other}'");
                    Err(InvalidRequest::invalid("tool_choice", message))
                }
            };
        }
        Value::Object(map) => map,
        other => return Err(InvalidRequest::wrong_type("tool_choice", "a string or an object", &other)),
    };
    let mut choice = Fields::within("tool_choice.", map);
    let kind = choice.string("type")?;
    let chosen = match kind.as_deref() {
        Some("function") => ToolChoice::Named(function_name(&mut choice)?),
        Some("allowed_tools") => allowed_tools(&mut choice)?,
        Some(other) => {
            let message = format!("'tool_choice.type' must be 'function' or 'allowed_tools', got '{other}'");
            return Err(InvalidRequest::invalid("tool_choice.type", message));
        }
        None => return Err(InvalidRequest::missing("tool_choice.type", "'function' or 'allowed_tools'")),
    };
    fields.add_ignored(choice);
    Ok(Some(chosen))
}

/// Reads `{"function": {"name"}}`, or `{"name"}` as in the Responses API.
fn function_name(choice: &mut Fields) -> Result<String, InvalidRequest> {
    let missing = || InvalidRequest::missing("tool_choice.function.name", "the name of a declared tool");
    match choice.fields("function")? {
        Some(mut function) => {
            let name = function.string("name")?.ok_or_else(missing);
            choice.add_ignored(function);
            name
        }
        None => choice.string("name")?.ok_or_else(missing),
    }
}

/// Reads `{"allowed_tools": {"mode", "tools": [{"type": "function", "function": {"name"}}]}}`, or `mode` and `tools` at
/// the top level.
fn allowed_tools(choice: &mut Fields) -> Result<ToolChoice, InvalidRequest> {
    let inner = choice.fields("allowed_tools")?;
    let nested = inner.is_some();
    let mut list = inner.unwrap_or_else(|| std::mem::replace(choice, Fields::within("tool_choice.", Map::new())));
    let required = match list.string("mode")?.as_deref() {
        Some("auto") | None => false,
        Some("required") => true,
        Some(other) => {
            let at = list.at("mode");
            return Err(InvalidRequest::invalid(&*at, format!("'{at}' must be 'auto' or 'required', got '{other}'")));
        }
    };
    let at = list.at("tools");
    let tools = list.array("tools")?.ok_or_else(|| InvalidRequest::missing(&at, "an array of tools"))?;
    if tools.is_empty() {
        return Err(InvalidRequest::invalid(&*at, format!("'{at}' must name at least one tool")));
    }
    let name = |(i, tool): (usize, &Value)| {
        let name = tool.pointer("/function/name").or_else(|| tool.get("name")).and_then(Value::as_str);
        name.map(str::to_owned)
            .ok_or_else(|| InvalidRequest::missing(&format!("{at}[{i}].function.name"), "a tool's name"))
    };
    let names = tools.iter().enumerate().map(name).collect::<Result<_, _>>()?;
    if nested {
        choice.add_ignored(list);
    } else {
        *choice = list;
    }
    Ok(ToolChoice::Allowed { names, required })
}

/// The constraint on the text.
#[derive(Debug, Default)]
pub struct TextConstraint {
    pub response: Option<Response>,
    /// Blanks between the tokens of JSON. None: the server's choice.
    pub blanks: Option<Blanks>,
}

/// Reads the constraint on the text. At most one field may set one.
pub fn response(fields: &mut Fields) -> Result<TextConstraint, InvalidRequest> {
    let mut found: Vec<(&str, Response)> = Vec::new();
    found.extend(response_format(fields)?.map(|response| ("response_format", response)));
    let (structured, nested) = structured_outputs(fields)?;
    found.extend(structured.map(|response| ("structured_outputs", response)));
    let guided = text(fields, "guided_whitespace_pattern")?.map(Blanks::Pattern);
    found.extend(constraints(fields, &FLAT)?);
    found.extend(constraints(fields, &GUIDED)?);
    if let [(first, _), (second, _), ..] = found.as_slice() {
        return Err(InvalidRequest::invalid(*second, format!("'{second}' and '{first}' cannot both be set")));
    }
    Ok(TextConstraint { response: found.pop().map(|(_, response)| response), blanks: nested.or(guided) })
}

/// The names of the fields that contain a constraint, which differ between APIs.
struct FieldNames {
    json: &'static str,
    regex: &'static str,
    choice: Option<&'static str>,
    grammar: Option<&'static str>,
    structural_tag: Option<&'static str>,
}

/// Fields of `structured_outputs`.
const NESTED: FieldNames = FieldNames {
    json: "json",
    regex: "regex",
    choice: Some("choice"),
    grammar: Some("grammar"),
    structural_tag: Some("structural_tag"),
};
/// Fields of older vLLM releases.
const GUIDED: FieldNames = FieldNames {
    json: "guided_json",
    regex: "guided_regex",
    choice: Some("guided_choice"),
    grammar: Some("guided_grammar"),
    structural_tag: None,
};
/// Fields of SGLang, llama.cpp and older vLLM releases.
const FLAT: FieldNames = FieldNames {
    json: "json_schema",
    regex: "regex",
    choice: None,
    grammar: None,
    structural_tag: Some("structural_tag"),
};

fn constraints(fields: &mut Fields, names: &FieldNames) -> Result<Vec<(&'static str, Response)>, InvalidRequest> {
    let mut found = Vec::new();
    if let Some(schema) = json(fields, names.json, "a JSON Schema")? {
        found.push((names.json, Response::JsonSchema { schema, strict: false }));
    }
    found.extend(text(fields, names.regex)?.map(|regex| (names.regex, Response::Regex(regex))));
    if let Some(name) = names.choice
        && let Some(items) = fields.array(name)?
    {
        let at = fields.at(name);
        if items.is_empty() {
            return Err(InvalidRequest::invalid(&*at, format!("'{at}' must have at least one string")));
        }
        let string = |(i, item): (usize, Value)| match item {
            Value::String(text) => Ok(text),
            other => Err(InvalidRequest::wrong_type(&format!("{at}[{i}]"), "a string", &other)),
        };
        let choices = items.into_iter().enumerate().map(string).collect::<Result<_, _>>()?;
        found.push((name, Response::Choice(choices)));
    }
    if let Some(name) = names.grammar {
        found.extend(text(fields, name)?.map(|grammar| (name, Response::Lark(grammar))));
    }
    if let Some(name) = names.structural_tag {
        found.extend(json(fields, name, "an object")?.map(|tag| (name, Response::StructuralTag(tag))));
    }
    Ok(found)
}

/// Reads a string; an empty one counts as absent.
fn text(fields: &mut Fields, name: &'static str) -> Result<Option<String>, InvalidRequest> {
    Ok(fields.string(name)?.filter(|text| !text.is_empty()))
}

/// Reads an object, given as JSON or as a string that contains JSON.
fn json(fields: &mut Fields, name: &'static str, expected: &str) -> Result<Option<Value>, InvalidRequest> {
    let at = fields.at(name);
    let value = match fields.take(name) {
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => json::document(&at, &text)?,
        Some(value) => value,
        None => return Ok(None),
    };
    match value {
        Value::Object(_) => Ok(Some(value)),
        other => Err(InvalidRequest::wrong_type(&at, expected, &other)),
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Response>, InvalidRequest> {
    let Some(mut format) = fields.fields("response_format")? else { return Ok(None) };
    let kind = format.string("type")?;
    let response = match kind.as_deref() {
        Some("text") => None,
        // llama.cpp and Together take a schema here.
        Some("json_object") => Some(match format.object("schema")? {
            Some(schema) => Response::JsonSchema { schema: Value::Object(schema), strict: false },
            None => Response::JsonObject,
        }),
        Some("json_schema") => {
            let what = "an object with name and schema";
            let mut described = format
                .fields("json_schema")?
                .ok_or_else(|| InvalidRequest::missing("response_format.json_schema", what))?;
            if described.string("name")?.is_none_or(|name| name.is_empty()) {
                return Err(InvalidRequest::missing("response_format.json_schema.name", "a name for the schema"));
            }
            described.string("description")?;
            let strict = described.bool("strict")?.unwrap_or(false);
            let response = Response::JsonSchema { schema: schema(&mut described)?, strict };
            format.add_ignored(described);
            Some(response)
        }
        Some("structural_tag") => {
            let rest = format.rest();
            return Ok(Some(Response::StructuralTag(Value::Object(rest))));
        }
        Some("grammar") => {
            let grammar = format.string("grammar")?;
            Some(Response::Lark(
                grammar.ok_or_else(|| InvalidRequest::missing("response_format.grammar", "a Lark grammar"))?,
            ))
        }
        Some(other) => {
            let message = format!(
                "'response_format.type' must be 'text', 'json_object', 'json_schema', 'structural_tag' or 'grammar', got '{other}'"
            );
            return Err(InvalidRequest::invalid("response_format.type", message));
        }
        None => {
            return Err(InvalidRequest::missing(
                "response_format.type",
                "one of 'text', 'json_object', 'json_schema', 'structural_tag', 'grammar'",
            ));
        }
    };
    fields.add_ignored(format);
    Ok(response)
}

/// Reads the field `schema`.
pub fn schema(fields: &mut Fields) -> Result<Value, InvalidRequest> {
    let at = fields.at("schema");
    match fields.take("schema") {
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(schema),
        Some(other) => Err(InvalidRequest::wrong_type(&at, "a JSON Schema", &other)),
        None => Err(InvalidRequest::missing(&at, "a JSON Schema")),
    }
}

fn structured_outputs(fields: &mut Fields) -> Result<(Option<Response>, Option<Blanks>), InvalidRequest> {
    let Some(mut object) = fields.fields("structured_outputs")? else { return Ok((None, None)) };
    let mut found: Vec<Response> =
        constraints(&mut object, &NESTED)?.into_iter().map(|(_, response)| response).collect();
    if object.bool("json_object")? == Some(true) {
        found.push(Response::JsonObject);
    }
    // The grammar library is the server's choice.
    object.take("disable_fallback");
    let few = object.bool("disable_any_whitespace")?.filter(|few| *few).map(|_| Blanks::Few);
    let blanks = text(&mut object, "whitespace_pattern")?.map(Blanks::Pattern).or(few);
    let why = "set 'additionalProperties' to false in the schema";
    object.require("disable_additional_properties", |value| *value == Value::Bool(false), why)?;
    fields.add_ignored(object);
    match found.pop() {
        Some(response) if found.is_empty() => Ok((Some(response), blanks)),
        only => {
            let set = if only.is_none() { "must set" } else { "may set only" };
            let message = format!(
                "'structured_outputs' {set} one of json, json_object, regex, choice, grammar and structural_tag"
            );
            Err(InvalidRequest::invalid("structured_outputs", message))
        }
    }
}
