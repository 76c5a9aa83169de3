//! Writes the grammar of `response_format` and `structured_outputs`.

use super::marker::Marking;
use super::parts::{check_regex, json, sized};
use super::tags;
use crate::lark::{client_regex, literal};
use crate::rules::{Response, RuleError};
use crate::schema::Work;

const FIELD: &str = "response_format";

/// The whole text as an expression.
pub(super) fn write(work: &mut Work<'_>, response: &Response, marking: &Marking<'_>) -> Result<String, RuleError> {
    let any = serde_json::json!({"type": "object"});
    Ok(match response {
        Response::JsonObject => json(work, &any, FIELD)?,
        Response::JsonSchema { schema, .. } => json(work, schema, "response_format.json_schema.schema")?,
        Response::Regex(regex) => {
            sized("structured_outputs.regex", regex)?;
            check_regex("structured_outputs.regex", regex, work.budget)?;
            let regex = client_regex(regex);
            work.writer.regex(&regex)
        }
        Response::Choice(all) => {
            sized("structured_outputs.choice", &all.concat())?;
            if all.is_empty() || all.iter().any(String::is_empty) {
                return Err(RuleError::invalid(
                    "structured_outputs.choice",
                    "must have at least one choice, and none may be empty",
                ));
            }
            let all: Vec<_> = all.iter().map(|c| literal(c)).collect();
            work.writer.terminal(&all.join(" | "))
        }
        Response::Lark(grammar) => {
            sized("structured_outputs.grammar", grammar)?;
            work.writer.foreign.push(("response".into(), grammar.clone()));
            "@response".into()
        }
        Response::StructuralTag(tag) => tags::write(work, tag, marking)?,
    })
}
