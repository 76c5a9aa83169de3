//! Parts that responses and structural tags share: JSON documents, and limits of what clients send.

use serde_json::Value;

use crate::budget::Budget;
use crate::json_schema::{folded_characters, local};
use crate::lark::{GrammarForm, layout, literal, some_blanks};
use crate::limits::{FOLDS_PER_STEP, MAX_CLIENT_GRAMMAR_BYTES, MAX_REGEX_FOLDS, MAX_SHORTEST_MATCH};
use crate::rules::{Blanks, RuleError};
use crate::schema::{Compiler, Dialect, Work};

/// Rejects a text of a client that is too long.
pub(super) fn sized(field: &str, text: &str) -> Result<(), RuleError> {
    if text.len() > MAX_CLIENT_GRAMMAR_BYTES {
        let (found, limit) = (text.len(), MAX_CLIENT_GRAMMAR_BYTES);
        return Err(RuleError::TooLarge { field: field.into(), what: "its size in bytes", found, limit });
    }
    Ok(())
}

/// Rejects an expression that costs too much to read, or whose shortest match is too long.
pub(super) fn check_regex(field: &str, regex: &str, budget: &mut Budget) -> Result<(), RuleError> {
    let folds = folded_characters(regex, false);
    if folds > MAX_REGEX_FOLDS {
        let what = "the number of characters in its case-insensitive classes";
        let found = usize::try_from(folds).unwrap_or(usize::MAX);
        return Err(RuleError::TooLarge { field: field.into(), what, found, limit: MAX_REGEX_FOLDS as usize });
    }
    budget.spend(folds / FOLDS_PER_STEP)?;
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
        let problem = "after a number with multipleOf, the end must not begin with a digit, '.', 'e' or 'E'";
        return Err(RuleError::invalid(field, problem));
    }
    let ends = format!("({})", ends.iter().map(|end| literal(end)).collect::<Vec<_>>().join(" | "));
    let any = work.writer.blanks == Blanks::Any;
    let blanks = if any { format!("/{}/", GrammarForm::Tolerant.blanks()) } else { String::new() };
    // One lexeme: only the whole text shows where the number ends.
    let mut all: Vec<String> =
        numbers.iter().map(|number| work.writer.terminal(&format!("{number} {blanks} {ends}"))).collect();
    if !others.is_empty() {
        let blanks = if any { work.writer.regex(&some_blanks()) + "?" } else { String::new() };
        all.push(format!("({}) {blanks} {ends}", others.join(" | ")));
    }
    let lead = work.writer.regex(&layout());
    Ok(Some(format!("{lead}? ({})", all.join(" | "))))
}

/// A JSON document that satisfies the schema, as an expression.
pub(super) fn json(work: &mut Work<'_>, schema: &Value, field: &str) -> Result<String, RuleError> {
    let rule = Compiler::new(work, &local(schema), "", field.to_owned(), Dialect::Json).document()?;
    if work.writer.form == GrammarForm::Canonical {
        return Ok(rule);
    }
    let lead = work.writer.regex(&layout());
    if work.writer.blanks != Blanks::Any {
        return Ok(format!("{lead}? {rule}"));
    }
    let blanks = work.writer.regex(&some_blanks());
    Ok(format!("{lead}? {rule} {blanks}?"))
}
