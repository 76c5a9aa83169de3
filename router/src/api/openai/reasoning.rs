//! Decodes the reasoning fields of several APIs: whether the model reasons, how much, and whether the client sees it.

use std::fmt::Display;

use rein_text::fields::Fields;
use serde_json::Value;

use crate::error::Error;

#[derive(Debug, Default, PartialEq)]
pub struct ReasoningFields {
    pub on: Option<bool>,
    pub effort: Option<String>,
    /// Maximum number of reasoning tokens.
    pub budget: Option<u32>,
    pub hide: bool,
}

/// The value of fields that mean the same. Fields with different values are an error.
fn agreed<T: PartialEq + Display>(
    values: impl IntoIterator<Item = (&'static str, Option<T>)>,
) -> Result<Option<T>, Error> {
    let mut found: Option<(&str, T)> = None;
    for (name, value) in values {
        match (&found, value) {
            (_, None) => {}
            (None, Some(value)) => found = Some((name, value)),
            (Some((first, known)), Some(value)) if *known != value => {
                return Err(Error::invalid(
                    name,
                    format!("'{name}' is {value}, but '{first}' is {known}: both must be equal"),
                ));
            }
            (Some(_), Some(_)) => {}
        }
    }
    Ok(found.map(|(_, value)| value))
}

/// `thinking` (Kimi, DeepSeek, GLM, Anthropic), `enable_thinking` and `thinking_budget` (Qwen), `reasoning_effort`
/// (OpenAI), `reasoning` (OpenRouter), `thinking_token_budget` (vLLM), `thinking_budget_tokens` (llama.cpp).
pub fn read(fields: &mut Fields) -> Result<ReasoningFields, Error> {
    let (thinking, its_budget) = thinking(fields)?;
    let mut object =
        fields.fields("reasoning")?.unwrap_or_else(|| Fields::within("reasoning.", serde_json::Map::new()));
    let on = agreed([
        ("thinking", thinking),
        ("enable_thinking", fields.bool("enable_thinking")?),
        ("reasoning.enabled", object.bool("enabled")?),
    ])?;
    let effort = agreed([
        ("reasoning_effort", fields.string("reasoning_effort")?),
        ("reasoning.effort", object.string("effort")?),
    ])?;
    let budget = agreed([
        ("thinking_token_budget", fields.limit("thinking_token_budget")?),
        ("thinking_budget", fields.limit("thinking_budget")?),
        ("thinking_budget_tokens", fields.limit("thinking_budget_tokens")?),
        ("thinking.budget_tokens", its_budget),
        ("reasoning.max_tokens", object.limit("max_tokens")?),
    ])?;
    let hide = object.bool("exclude")?.unwrap_or(false);
    fields.add_ignored(object);
    Ok(ReasoningFields { on, effort, budget, hide })
}

/// A boolean, or `{"type": "enabled" | "disabled", "budget_tokens"}`.
fn thinking(fields: &mut Fields) -> Result<(Option<bool>, Option<u32>), Error> {
    match fields.take("thinking") {
        None => Ok((None, None)),
        Some(Value::Bool(on)) => Ok((Some(on), None)),
        Some(Value::Object(map)) => {
            // Kimi's `keep`, what of past reasoning stays in the prompt: alone, it turns reasoning on.
            let keeps = map.get("keep").is_some_and(|keep| !keep.is_null());
            let mut object = Fields::within("thinking.", map);
            let kind = object.take("type");
            let on = match kind.as_ref().and_then(Value::as_str) {
                Some("enabled") => true,
                Some("disabled") => false,
                None if kind.is_none() && keeps => true,
                _ => return Err(Error::invalid("thinking.type", "'thinking.type' must be 'enabled' or 'disabled'")),
            };
            let budget = object.limit("budget_tokens")?;
            fields.add_ignored(object);
            Ok((Some(on), budget))
        }
        Some(other) => Err(Error::wrong_type("thinking", "a boolean or an object with a type", &other)),
    }
}

#[cfg(test)]
mod tests;
