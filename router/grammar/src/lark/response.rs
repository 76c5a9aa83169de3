//! Writes the grammar of `response_format` and `structured_outputs`.

use serde_json::Value;

use super::marker::Marking;
use super::{blanks, layout, literal, some_blanks, tags};
use crate::limits::{MAX_CLIENT_GRAMMAR_BYTES, MAX_SHORTEST_MATCH};
use crate::rules::{Response, RuleError};
use crate::schema::{Compiler, Dialect, Work, local};

const FIELD: &str = "response_format";

/// The whole text as an expression.
pub(super) fn write(work: &mut Work<'_>, response: &Response, marking: &Marking<'_>) -> Result<String, RuleError> {
    let any = serde_json::json!({"type": "object"});
    Ok(match response {
        Response::JsonObject => json(work, &any, FIELD)?,
        Response::JsonSchema { schema, .. } => json(work, schema, "response_format.json_schema.schema")?,
        Response::Regex(regex) => {
            sized("structured_outputs.regex", regex)?;
            not_too_long("structured_outputs.regex", regex)?;
            let regex = llguidance::regex_to_lark(regex, "");
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

pub(super) fn sized(field: &str, text: &str) -> Result<(), RuleError> {
    if text.len() > MAX_CLIENT_GRAMMAR_BYTES {
        let (found, limit) = (text.len(), MAX_CLIENT_GRAMMAR_BYTES);
        return Err(RuleError::TooLarge { field: field.into(), what: "its size in bytes", found, limit });
    }
    Ok(())
}

/// Rejects an expression whose shortest match is too long.
pub(super) fn not_too_long(field: &str, regex: &str) -> Result<(), RuleError> {
    // An expression that this parser rejects is left to llguidance.
    let shortest = regex_syntax::parse(regex).ok().and_then(|hir| hir.properties().minimum_len()).unwrap_or_default();
    if shortest > MAX_SHORTEST_MATCH {
        let what = "the length in bytes of its shortest match";
        return Err(RuleError::TooLarge { field: field.into(), what, found: shortest, limit: MAX_SHORTEST_MATCH });
    }
    Ok(())
}

/// A document and one of the strings that end it, if a number at its end could be continued by their first letter.
/// None: it could not.
pub(super) fn json_before(
    work: &mut Work<'_>,
    schema: &Value,
    field: &str,
    ends: &[String],
) -> Result<Option<String>, RuleError> {
    if !ends.iter().any(|end| end.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E'))) {
        return Ok(None);
    }
    let root = local(schema);
    let (numbers, others) = Compiler::new(work, &root, "", field.to_owned(), Dialect::Json).numbers_apart()?;
    if numbers.is_empty() {
        return Ok(None);
    }
    if numbers.iter().any(|number| number.starts_with('r')) {
        let problem = "a number with multipleOf cannot precede an end that begins with a digit, a point or an e";
        return Err(RuleError::invalid(field, problem));
    }
    let ends = format!("({})", ends.iter().map(|end| literal(end)).collect::<Vec<_>>().join(" | "));
    // One lexeme: only the whole text shows where the number ends.
    let mut all: Vec<String> =
        numbers.iter().map(|number| work.writer.terminal(&format!("{number} /{}/ {ends}", blanks()))).collect();
    if !others.is_empty() {
        let blanks = work.writer.regex(&some_blanks());
        all.push(format!("({}) {blanks}? {ends}", others.join(" | ")));
    }
    let lead = work.writer.regex(&layout());
    Ok(Some(format!("{lead}? ({})", all.join(" | "))))
}

pub(super) fn json(work: &mut Work<'_>, schema: &Value, field: &str) -> Result<String, RuleError> {
    let rule = Compiler::new(work, &local(schema), "", field.to_owned(), Dialect::Json).document()?;
    let lead = work.writer.regex(&layout());
    let blanks = work.writer.regex(&some_blanks());
    Ok(format!("{lead}? {rule} {blanks}?"))
}
