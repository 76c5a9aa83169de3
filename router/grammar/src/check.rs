//! Rejects rules that no grammar can enforce. It does not compile them.

use std::collections::HashSet;

use crate::limits::{MAX_NAME_BYTES, MAX_SCHEMAS_BYTES};
use crate::rules::{Enforcement, Relaxation, Response, RuleError, Rules, ToolChoice};
use crate::{schema, validate};

/// A strict schema must be enforced completely.
pub(crate) fn strictly(rules: &Rules, relaxations: &[Relaxation]) -> Result<(), RuleError> {
    let strict_response = matches!(rules.response, Some(Response::JsonSchema { strict: true, .. }));
    let strict = |tool: &str| match tool {
        "" => strict_response,
        name => rules.tools.iter().any(|t| t.strict && t.name == name),
    };
    let field = |tool: &str| match tool {
        "" => "response_format.json_schema.schema".into(),
        name => format!("tools[{name}].function.parameters"),
    };
    match relaxations.iter().find(|r| strict(&r.tool)) {
        None => Ok(()),
        Some(relaxation) => Err(relaxation.refused(field(&relaxation.tool), "the schema is strict")),
    }
}

/// Rejects what can be rejected without compiling.
pub(crate) fn check(rules: &Rules, max_tools: usize) -> Result<(), RuleError> {
    if rules.tools.len() > max_tools {
        let (found, limit) = (rules.tools.len(), max_tools);
        return Err(RuleError::TooLarge { field: "tools".into(), what: "the number of tools", found, limit });
    }
    let mut names = HashSet::new();
    let mut bytes = 0;
    for tool in &rules.tools {
        let field = format!("tools[{}].function", tool.name);
        if tool.name.is_empty() || tool.name.len() > MAX_NAME_BYTES {
            return Err(RuleError::invalid(field, format!("a name must have 1 to {MAX_NAME_BYTES} bytes")));
        }
        if !names.insert(&tool.name) {
            return Err(RuleError::invalid(field, "two tools have this name; names must be unique"));
        }
        let wanted = rules.enforced(tool) == Enforcement::NamesAndArguments;
        if let Some(parameters) = tool.parameters.as_ref().filter(|p| wanted && !p.is_null()) {
            let field = field + ".parameters";
            bytes += schema::check(parameters, &field)?;
            validate::check(parameters, &field)?;
        }
    }
    if let Some(Response::JsonSchema { schema, .. }) = &rules.response {
        bytes += schema::check(schema, "response_format.json_schema.schema")?;
        validate::check(schema, "response_format.json_schema.schema")?;
    }
    if bytes > MAX_SCHEMAS_BYTES {
        let (found, limit) = (bytes, MAX_SCHEMAS_BYTES);
        return Err(RuleError::TooLarge {
            field: "tools".into(),
            what: "the size of all schemas in bytes",
            found,
            limit,
        });
    }
    let unknown = |name: &String| !names.contains(name);
    match &rules.choice {
        ToolChoice::Named(name) if unknown(name) => {
            Err(RuleError::invalid("tool_choice", format!("no tool {name:?} is declared")))
        }
        ToolChoice::Allowed { names, .. } if names.iter().any(unknown) => {
            Err(RuleError::invalid("tool_choice", "allows a tool that is not declared"))
        }
        _ if rules.must_call() && rules.callable().is_empty() => {
            Err(RuleError::invalid("tool_choice", "requires a call, but no tool can be called"))
        }
        _ => Ok(()),
    }
}
