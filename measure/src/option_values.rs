//! Parsers for option values whose type alone does not make them valid.

pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s.is_finite() && s > 0.0 => Ok(s),
        _ => Err("must be a number greater than 0".into()),
    }
}

pub fn object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("must be a JSON object: {e}"))
}
