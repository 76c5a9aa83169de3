//! Writes the grammar of `response_format` and `structured_outputs`.

use super::marker::Marking;
use super::parts::{check_regex, json, sized};
use super::tags;
use crate::lark::{client_regex, is_empty, literal};
use crate::rules::{Blanks, PropertyOrder, Response, RuleError, Rules};
use crate::schema::Work;

const FIELD: &str = "response_format";
const WHITESPACE: &str = "structured_outputs.whitespace_pattern";

/// The whole text as an expression.
pub(super) fn write(
    work: &mut Work<'_>,
    response: &Response,
    rules: &Rules,
    marking: &Marking<'_>,
) -> Result<String, RuleError> {
    let arguments = work.in_order;
    work.in_order |= rules.json.answers == PropertyOrder::Schema;
    work.writer.blanks = blanks(work, &rules.blanks)?;
    let written = text(work, response, marking);
    (work.in_order, work.writer.blanks) = (arguments, Blanks::Any);
    written
}

/// The blanks that the grammar takes. A client's expression must match blanks alone, or the answer would be no JSON.
fn blanks(work: &mut Work<'_>, asked: &Blanks) -> Result<Blanks, RuleError> {
    let Blanks::Pattern(pattern) = asked else { return Ok(asked.clone()) };
    sized(WHITESPACE, pattern)?;
    check_regex(WHITESPACE, pattern, work.budget)?;
    let regex = client_regex(pattern);
    let unread =
        |error: regex_syntax::Error| RuleError::invalid(WHITESPACE, format!("is no regular expression: {error}"));
    regex_syntax::parse(pattern).map_err(unread)?;
    if !is_empty(&format!(r"/{regex}/ & ~/[ \t\r\n]*/"), work.budget)? {
        return Err(RuleError::invalid(WHITESPACE, "must match spaces, tabs and line breaks alone"));
    }
    Ok(Blanks::Pattern(format!("({regex})")))
}

fn text(work: &mut Work<'_>, response: &Response, marking: &Marking<'_>) -> Result<String, RuleError> {
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
