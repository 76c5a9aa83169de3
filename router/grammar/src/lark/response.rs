//! `response_format` and `structured_outputs`.

use serde_json::Value;

use super::marker::Marking;
use super::{escape, literal, some_blanks};
use crate::limits::MAX_CLIENT_GRAMMAR_BYTES;
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
            let regex = llguidance::regex_to_lark(regex, "");
            work.writer.regex(&regex)
        }
        Response::Choice(all) => {
            sized("structured_outputs.choice", &all.concat())?;
            if all.is_empty() || all.iter().any(String::is_empty) {
                return Err(RuleError::invalid(
                    "structured_outputs.choice",
                    "at least one choice, and none of them empty",
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
        Response::StructuralTag(tag) => structural_tag(work, tag, marking)?,
    })
}

fn sized(field: &str, text: &str) -> Result<(), RuleError> {
    if text.len() > MAX_CLIENT_GRAMMAR_BYTES {
        let (found, limit) = (text.len(), MAX_CLIENT_GRAMMAR_BYTES);
        return Err(RuleError::TooLarge { field: field.into(), what: "its size in bytes", found, limit });
    }
    Ok(())
}

fn json(work: &mut Work<'_>, schema: &Value, field: &str) -> Result<String, RuleError> {
    let rule = Compiler::new(work, &local(schema), "", field.to_owned(), Dialect::Json).document()?;
    let blanks = work.writer.regex(&some_blanks());
    Ok(format!("{blanks}? {rule} {blanks}?"))
}

/// Free text in which a trigger begins one of the structures.
fn structural_tag(work: &mut Work<'_>, tag: &Value, marking: &Marking<'_>) -> Result<String, RuleError> {
    const TAG: &str = "structured_outputs.structural_tag";
    let wrong = |problem: &str| RuleError::invalid(TAG, problem);
    let list = |key: &str| tag.get(key).and_then(Value::as_array).filter(|l| !l.is_empty());
    let (Some(structures), Some(triggers)) = (list("structures"), list("triggers")) else {
        return Err(wrong(
            "it has \"structures\" (a list of {\"begin\", \"schema\", \"end\"}) and \"triggers\" (a list of strings)",
        ));
    };
    sized(TAG, &tag.to_string())?;
    let triggers: Vec<&str> = triggers.iter().filter_map(Value::as_str).filter(|t| !t.is_empty()).collect();
    let mut refused: Vec<String> = triggers.iter().map(|t| escape(t)).collect();
    refused.extend(marking.spellings(None).iter().map(|m| escape(m)));
    let refused = format!("~/(?s:.*)({})(?s:.*)/", refused.join("|"));
    let mut parts = Vec::new();
    for trigger in &triggers {
        let mut bodies = Vec::new();
        for (i, structure) in structures.iter().enumerate() {
            let text = |key: &str| structure.get(key).and_then(Value::as_str).unwrap_or_default();
            let Some(rest) = text("begin").strip_prefix(trigger) else { continue };
            let schema = structure.get("schema").unwrap_or(&Value::Bool(true));
            let rule = json(work, schema, &format!("{TAG}.structures[{i}].schema"))?;
            bodies.push(format!("{} {rule} {}", literal(rest), literal(text("end"))));
        }
        if bodies.is_empty() {
            return Err(wrong(&format!("no structure begins with the trigger {trigger:?}")));
        }
        let upto = work.writer.lazy(&format!("(/(?s:.*)/ & {refused}) {}", literal(trigger)));
        parts.push(format!("{upto} ({})", bodies.join(" | ")));
    }
    let text = work.writer.terminal(&format!("/(?s:.+)/ & {refused}"));
    Ok(work.writer.rule(&format!("({})* {text}?", parts.join(" | "))))
}
