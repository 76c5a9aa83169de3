//! What follows a part of a structural tag.

use serde_json::Value;

/// What ends free text.
#[derive(Clone)]
pub(super) enum Until {
    /// The end of the output.
    End,
    /// One of these strings, which the text must not contain.
    Strings(Vec<String>),
    /// A special token, which no text contains.
    Token,
    /// Something that cannot be distinguished from text, and the strings with which it may begin, as far as known.
    Unknown(Vec<String>),
}

/// What the rest of a sequence begins with; `until` follows the sequence.
pub(super) fn begins(node: &Value, rest: &[Value], until: &Until) -> Until {
    let string = |key: &str| match node.get(key).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Some(Until::Strings(vec![text.to_owned()])),
        _ => None,
    };
    let fixed = match node.get("type").and_then(Value::as_str) {
        Some("tag") if node.get("begin").is_some_and(Value::is_object) => Some(Until::Token),
        Some("token") => Some(Until::Token),
        Some("const_string") => string("value"),
        Some("tag") => string("begin"),
        _ => None,
    };
    fixed.unwrap_or_else(|| {
        let optional = |node: &&Value| node.get("type").and_then(Value::as_str).is_some_and(may_be_empty);
        let known = rest.iter().take_while(optional).count();
        let mut all: Vec<String> = rest.iter().take(known + 1).flat_map(openings).collect();
        if let (true, Until::Strings(ends) | Until::Unknown(ends)) = (known == rest.len(), until) {
            all.extend_from_slice(ends);
        }
        Until::Unknown(all)
    })
}

fn may_be_empty(kind: &str) -> bool {
    matches!(kind, "optional" | "star" | "tags_with_separator")
}

/// The strings with which a format may begin, as far as they are fixed.
pub(super) fn openings(node: &Value) -> Vec<String> {
    let nodes = |key: &str| node.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match node.get("type").and_then(Value::as_str) {
        Some("const_string") => node.get("value").and_then(Value::as_str).map(str::to_owned).into_iter().collect(),
        Some("tag") => node.get("begin").and_then(Value::as_str).map(str::to_owned).into_iter().collect(),
        Some("or") => nodes("elements").iter().flat_map(openings).collect(),
        Some("sequence") => nodes("elements").first().map(openings).unwrap_or_default(),
        Some("tags_with_separator") => nodes("tags").iter().flat_map(openings).collect(),
        Some("optional" | "star" | "plus" | "repeat") => node.get("content").map(openings).unwrap_or_default(),
        _ => Vec::new(),
    }
}
