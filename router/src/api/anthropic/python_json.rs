//! Writes JSON as Python's `json.dumps` does, with a blank after each comma and colon. Models are trained on calls in
//! this form, so the arguments of a past call cost the tokens that the model itself would write.

use rein_text::template::lossless;
use serde_json::Value;

/// Marked numbers (see `template::lossless`) are written as the client wrote them.
pub fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_text(key, out);
                out.push_str(": ");
                write(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write(item, out);
            }
            out.push(']');
        }
        Value::String(text) => match lossless::literal(text) {
            Some(number) => out.push_str(number),
            None => write_text(text, out),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => out.push_str(&value.to_string()),
    }
}

fn write_text(text: &str, out: &mut String) {
    // Encoding a string cannot fail.
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}
