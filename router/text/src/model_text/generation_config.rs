//! Reads the sampling defaults and EOS tokens of `generation_config.json`, when the model is loaded.

use serde_json::Value as Json;

use super::GenerationDefaults;

/// An invalid key of the file, and the message that says what would be valid.
pub(super) type Wrong = (&'static str, String);

/// Keys that would change the result but are not supported, with the value that has no effect. Null and empty lists
/// have no effect either.
const UNSUPPORTED: [(&str, f64); 28] = [
    ("no_repeat_ngram_size", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("diversity_penalty", 0.0),
    ("penalty_alpha", 0.0),
    ("num_beams", 1.0),
    ("num_beam_groups", 1.0),
    ("length_penalty", 1.0),
    ("exponential_decay_length_penalty", 0.0),
    ("typical_p", 1.0),
    ("top_h", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("guidance_scale", 1.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("max_time", f64::INFINITY),
    ("stop_strings", f64::NAN),
    ("bad_words_ids", f64::NAN),
    ("suppress_tokens", f64::NAN),
    ("begin_suppress_tokens", f64::NAN),
    ("forced_bos_token_id", f64::NAN),
    ("forced_eos_token_id", f64::NAN),
    ("sequence_bias", f64::NAN),
    ("watermarking_config", f64::NAN),
    ("dola_layers", f64::NAN),
];

/// Reads the defaults; null stands for a missing file.
pub(super) fn defaults(config: &Json) -> Result<GenerationDefaults, Wrong> {
    if !config.is_null() && !config.is_object() {
        return Err(("generation_config.json", "must be a JSON object".into()));
    }
    let number = |key, allowed: fn(f64) -> bool, expected: &str| float(config, key, allowed, expected);
    let do_sample = match present(config, "do_sample") {
        None => None,
        Some(Json::Bool(on)) => Some(*on),
        Some(other) => return Err(wrong("do_sample", "true or false", other)),
    };
    let top_k = match present(config, "top_k") {
        None => None,
        Some(value) => match value.as_i64() {
            Some(-1) => Some(0),
            Some(k) if u32::try_from(k).is_ok() => Some(k as u32),
            _ => return Err(wrong("top_k", "an integer of at least 0 (0 or -1 turns it off)", value)),
        },
    };
    let max_new_tokens = match present(config, "max_new_tokens") {
        None => None,
        Some(value) => match value.as_u64().map(|n| u32::try_from(n).unwrap_or(u32::MAX)) {
            Some(n) if n > 0 => Some(n),
            _ => return Err(wrong("max_new_tokens", "an integer of at least 1", value)),
        },
    };
    Ok(GenerationDefaults {
        temperature: number("temperature", |x| x >= 0.0, "a number of at least 0")?,
        top_p: number("top_p", |x| x > 0.0 && x <= 1.0, "a number above 0 and at most 1")?,
        top_k,
        min_p: number("min_p", |x| (0.0..=1.0).contains(&x), "a number between 0 and 1")?,
        repetition_penalty: number("repetition_penalty", |x| x > 0.0, "a number above 0")?,
        max_new_tokens,
        do_sample,
    })
}

/// Unsupported keys whose value would change the result.
pub(super) fn unsupported_keys(config: &Json) -> Vec<&'static str> {
    let has_effect = |&&(key, neutral): &&(&'static str, f64)| match present(config, key) {
        None | Some(Json::Bool(false)) => false,
        Some(Json::Array(items)) => !items.is_empty(),
        Some(Json::Object(items)) => !items.is_empty(),
        Some(value) => value.as_f64() != Some(neutral),
    };
    UNSUPPORTED.iter().filter(has_effect).map(|&(key, _)| key).collect()
}

/// Token ids given as a number or a list of numbers.
pub(super) fn eos_ids(config: &Json) -> Result<Vec<u32>, Wrong> {
    let id = |value: &Json| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong("eos_token_id", "a token id or a list of token ids", value))
    };
    match present(config, "eos_token_id") {
        None => Ok(Vec::new()),
        Some(Json::Array(list)) => list.iter().map(id).collect(),
        Some(one) => id(one).map(|id| vec![id]),
    }
}

fn float(config: &Json, key: &'static str, allowed: fn(f64) -> bool, expected: &str) -> Result<Option<f32>, Wrong> {
    let Some(value) = present(config, key) else { return Ok(None) };
    // The engine uses 32-bit floats, in which larger numbers are infinite.
    match value.as_f64().map(|x| x as f32) {
        Some(x) if x.is_finite() && allowed(f64::from(x)) => Ok(Some(x)),
        _ => Err(wrong(key, expected, value)),
    }
}

fn present<'a>(config: &'a Json, key: &str) -> Option<&'a Json> {
    config.get(key).filter(|value| !value.is_null())
}

fn wrong(key: &'static str, expected: &str, got: &Json) -> Wrong {
    let mut got = got.to_string();
    if got.chars().count() > 80 {
        got = got.chars().take(80).chain("...".chars()).collect();
    }
    (key, format!("must be {expected}, got {got}"))
}

#[cfg(test)]
mod tests;
