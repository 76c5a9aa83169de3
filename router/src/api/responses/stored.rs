//! What is kept of a response: the object that the client got, and the input with the history that it continues.

use serde_json::{Map, Value, json};

use super::output;
use crate::error::Error;

/// Items that a page has if the client does not say how many.
const PAGE_ITEMS: usize = 20;
const MAX_PAGE_ITEMS: usize = 100;

/// The items of a conversation as they are kept.
pub type StoredItems = Vec<Value>;

/// A reference to an item of a stored response.
#[derive(Debug, PartialEq, Eq)]
pub struct ItemReference {
    /// Index in the input.
    pub index: usize,
    pub item: String,
    pub response: Option<String>,
}

/// The references among the items of a request.
pub fn referenced(items: &[Value]) -> Vec<ItemReference> {
    let reference = |(index, item): (usize, &Value)| {
        let kind = item.get("type").and_then(Value::as_str);
        let bare = kind.is_none() && item.get("role").is_none() && item.get("content").is_none();
        if !(kind == Some("item_reference") || bare) {
            return None;
        }
        let item = item.get("id")?.as_str()?.to_owned();
        Some(ItemReference { index, response: output::response_id(&item), item })
    };
    items.iter().enumerate().filter_map(reference).collect()
}

/// The items in the form in which they are shown: each with an id, a type and its content as parts.
pub fn input_items(response: &str, items: StoredItems) -> StoredItems {
    let shown = |(index, item): (usize, Value)| {
        let Value::Object(mut item) = item else { return item };
        let kind = match item.get("type").and_then(Value::as_str) {
            Some(kind) => kind.to_owned(),
            None => "message".to_owned(),
        };
        let prefix = match kind.as_str() {
            "message" => "msg",
            "reasoning" => "rs",
            "function_call" => "fc",
            "function_call_output" => "fco",
            "custom_tool_call" => "ctc",
            _ => "ctco",
        };
        let own_id = item.get("id").and_then(Value::as_str).map(str::to_owned);
        let made = || format!("{prefix}_{}_in{index}", response.trim_start_matches("resp_"));
        let mut whole = Map::new();
        whole.insert("id".into(), own_id.unwrap_or_else(made).into());
        whole.insert("type".into(), kind.as_str().into());
        if kind == "message" {
            parts(&mut item);
        }
        whole.extend(
            item.into_iter().filter(|(name, value)| !["id", "type"].contains(&name.as_str()) && !value.is_null()),
        );
        whole.entry("status").or_insert_with(|| "completed".into());
        Value::Object(whole)
    };
    items.into_iter().enumerate().map(shown).collect()
}

/// Makes the content of a message a list of parts.
fn parts(message: &mut Map<String, Value>) {
    let written = message.get("role").and_then(Value::as_str) == Some("assistant");
    let kind = if written { "output_text" } else { "input_text" };
    let Some(content) = message.get_mut("content") else { return };
    if let Value::String(text) = content {
        *content = json!([{"type": kind, "text": text}]);
    }
    for part in content.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        if part.get("type").is_some_and(|kind| kind == "text") {
            part.insert("type".into(), kind.into());
        }
        if written {
            part.entry("annotations").or_insert_with(|| json!([]));
        }
    }
}

/// Which items of a list the client wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub limit: usize,
    /// The id of the last item of the page before.
    pub after: Option<String>,
    pub oldest_first: bool,
}

impl Page {
    /// The page that a query asks for.
    pub fn of_query<'a>(query: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self, Error> {
        let mut page = Page { limit: PAGE_ITEMS, after: None, oldest_first: false };
        for (name, value) in query {
            match name {
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_PAGE_ITEMS).contains(limit));
                    page.limit = limit.ok_or_else(|| {
                        let message = format!("'limit' must be between 1 and {MAX_PAGE_ITEMS}, got {value}");
                        Error::invalid("limit", message)
                    })?;
                }
                "after" => page.after = Some(value.to_owned()),
                "order" => {
                    page.oldest_first = match value {
                        "asc" => true,
                        "desc" => false,
                        other => {
                            let message = format!("'order' must be 'asc' or 'desc', got '{other}'");
                            return Err(Error::invalid("order", message));
                        }
                    };
                }
                _ => {}
            }
        }
        Ok(page)
    }
}

/// One page of a list of items.
pub fn page(mut items: StoredItems, page: &Page) -> Result<Value, Error> {
    let id = |item: &Value| item.get("id").and_then(Value::as_str).map(str::to_owned);
    if !page.oldest_first {
        items.reverse();
    }
    if let Some(after) = &page.after {
        let at = items.iter().position(|item| id(item).as_ref() == Some(after)).ok_or_else(|| {
            Error::invalid("after", format!("'after' must be the id of an item of this response, got '{after}'"))
        })?;
        items.drain(..=at);
    }
    let has_more = items.len() > page.limit;
    items.truncate(page.limit);
    let ends = [items.first(), items.last()].map(|item| item.and_then(id).unwrap_or_default());
    let [first_id, last_id] = ends;
    Ok(json!({"object": "list", "data": items, "first_id": first_id, "last_id": last_id, "has_more": has_more}))
}
