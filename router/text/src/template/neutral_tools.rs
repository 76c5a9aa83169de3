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
    /// Those, and one type for each parameter, which any template knows: of several types, the first but null.
    SingleTypes,
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
        if fill != Fill::Function {
            fill_properties(parameters, fill);
        }
    }
    tool
}

fn fill_properties(schema: &mut Map<String, Json>, fill: Fill) {
    let within = |schema: &mut Json| {
        if let Json::Object(schema) = schema {
            give(schema, "description", "".into());
            match fill {
                Fill::SingleTypes => {
                    let single = schema.get("type").map_or("string", single_type).to_owned();
                    schema.insert("type".into(), single.into());
                }
                _ => give(schema, "type", "any".into()),
            }
            fill_properties(schema, fill);
        }
    };
    if let Some(Json::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(within);
    }
    if let Some(items) = schema.get_mut("items") {
        within(items);
    }
}

fn single_type(kind: &Json) -> &str {
    let types = match kind {
        Json::Array(types) => types.as_slice(),
        one => std::slice::from_ref(one),
    };
    types.iter().filter_map(Json::as_str).find(|name| *name != "null").unwrap_or("string")
}

fn give(map: &mut Map<String, Json>, key: &str, value: Json) {
    if map.get(key).is_none_or(Json::is_null) {
        map.insert(key.into(), value);
    }
}
