//! Gives tools the members that a template cannot render without.

use serde_json::{Map, Value as Json, json};

use crate::tools;

/// What is given to tools that lack it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// Description and parameters of the function.
    Function,
    /// Those, and descriptions and types of the parameters at any depth.
    Parameters,
}

/// The tools with neutral values for what they lack, and with schemas as their authors meant them.
pub(super) fn filled(tools: &[Json], fill: Fill) -> Vec<Json> {
    tools.iter().map(|tool| filled_tool(tool.clone(), fill)).collect()
}

fn filled_tool(mut tool: Json, fill: Fill) -> Json {
    let meant = tools::tool(&tool).and_then(|tool| tool.parameters);
    let Json::Object(map) = &mut tool else { return tool };
    give(map, "type", "function".into());
    let Some(Json::Object(function)) = map.get_mut("function") else { return tool };
    give(function, "description", "".into());
    function.insert("parameters".into(), meant.unwrap_or_else(|| json!({})));
    if let Some(Json::Object(parameters)) = function.get_mut("parameters") {
        give(parameters, "type", "object".into());
        give(parameters, "properties", json!({}));
        give(parameters, "required", json!([]));
        if fill == Fill::Parameters {
            fill_properties(parameters);
        }
    }
    tool
}

fn fill_properties(schema: &mut Map<String, Json>) {
    let within = |schema: &mut Json| {
        if let Json::Object(schema) = schema {
            give(schema, "description", "".into());
            give(schema, "type", "any".into());
            fill_properties(schema);
        }
    };
    if let Some(Json::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(within);
    }
    if let Some(items) = schema.get_mut("items") {
        within(items);
    }
}

fn give(map: &mut Map<String, Json>, key: &str, value: Json) {
    if map.get(key).is_none_or(Json::is_null) {
        map.insert(key.into(), value);
    }
}
