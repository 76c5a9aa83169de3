//! Tools of a chat: those of a file, whose results the user writes, and two examples that this program runs.

use std::path::Path;

use chrono::{FixedOffset, Utc};
use rand::Rng;
use serde_json::{Map, Value, json};

/// Most dice of a throw, and most sides of one.
const MOST_DICE: u64 = 100;
const MOST_SIDES: u64 = 1_000_000;

/// Reads an array of tools, or of their functions.
pub fn read(path: &Path) -> Result<Vec<Value>, String> {
    let named = |what: String| format!("{}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    let tools: Vec<Map<String, Value>> =
        serde_json::from_str(&text).map_err(|error| named(format!("expected an array of tools ({error})")))?;
    let whole = |(i, tool): (usize, Map<String, Value>)| {
        let tool = if tool.contains_key("function") {
            Value::Object(tool)
        } else {
            json!({"type": "function", "function": tool})
        };
        match tool["function"]["name"].is_string() {
            true => Ok(tool),
            false => Err(named(format!("tool {i} has no name"))),
        }
    };
    tools.into_iter().enumerate().map(whole).collect()
}

/// The two examples.
pub fn examples() -> Vec<Value> {
    let tool = |name: &str, description: &str, properties: Value, required: Value| {
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
    };
    vec![
        tool(
            "current_time",
            "The date and the time now",
            json!({"utc_offset_hours": {"type": "integer", "minimum": -12, "maximum": 14, "description": "0 is UTC"}}),
            json!([]),
        ),
        tool(
            "roll_dice",
            "Throw dice and tell what they show",
            json!({
                "count": {"type": "integer", "minimum": 1, "maximum": MOST_DICE},
                "sides": {"type": "integer", "minimum": 2, "maximum": MOST_SIDES, "description": "6 for usual dice"},
            }),
            json!(["count", "sides"]),
        ),
    ]
}

/// What an example returns. None: it is no example.
pub fn run_example(name: &str, arguments: &str) -> Option<String> {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or(Value::Null);
    let result = match name {
        "current_time" => {
            let hours = arguments["utc_offset_hours"].as_i64().unwrap_or(0).clamp(-12, 14) as i32;
            let offset = FixedOffset::east_opt(hours * 3600)?;
            json!({"time": Utc::now().with_timezone(&offset).format("%A, %Y-%m-%dT%H:%M:%S%:z").to_string()})
        }
        "roll_dice" => {
            let count = arguments["count"].as_u64().unwrap_or(1).clamp(1, MOST_DICE);
            let sides = arguments["sides"].as_u64().unwrap_or(6).clamp(2, MOST_SIDES);
            let shown: Vec<u64> = (0..count).map(|_| rand::rng().random_range(1..=sides)).collect();
            json!({"dice": shown, "sum": shown.iter().sum::<u64>()})
        }
        _ => return None,
    };
    Some(result.to_string())
}
