//! Converts the tools of a request to functions that a model can call, and finds the tool that a call names.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use rein_grammar::LARK_KEYWORD;
use rein_text::{fields::Fields, tools::ToolSet};
use serde_json::{Map, Value, json};

use super::origins::ToolOrigin;
use crate::error::Error;

/// The only parameter of the function that stands for a custom tool.
pub const INPUT: &str = "input";
/// Between namespace and name in the name of a function.
const SEPARATOR: &str = "__";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    Function,
    /// The call has a free text in place of arguments.
    Custom,
}

/// A tool that the client declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredTool {
    pub namespace: Option<String>,
    pub name: String,
    pub kind: CallKind,
    /// The name of its function, which the model calls.
    pub function: String,
    /// Its path in the request.
    pub path: String,
}

/// The tools of a request, by the client's names and by the names of their functions.
#[derive(Debug, Default)]
pub struct ToolTable {
    tools: Vec<DeclaredTool>,
    by_function: HashMap<String, usize>,
    by_name: HashMap<(Option<String>, String), usize>,
}

impl ToolTable {
    /// The tool whose function a model called.
    pub fn called(&self, function: &str) -> Option<&DeclaredTool> {
        self.tools.get(*self.by_function.get(function)?)
    }

    pub fn declared(&self, namespace: Option<&str>, name: &str) -> Option<&DeclaredTool> {
        // The key's owner is needed by the map; calls in a history are few compared with their text.
        self.tools.get(*self.by_name.get(&(namespace.map(str::to_owned), name.to_owned()))?)
    }

    /// The tools of a namespace.
    pub fn within<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a DeclaredTool> {
        self.tools.iter().filter(move |tool| tool.namespace.as_deref() == Some(namespace))
    }

    /// The name of the function for a tool in the history, which need not be declared any more.
    pub fn function_name(&self, namespace: Option<&str>, name: &str) -> String {
        match self.declared(namespace, name) {
            Some(tool) => tool.function.clone(),
            None => joined(namespace, name),
        }
    }

    /// The tool of each function.
    pub fn origins(&self) -> impl Iterator<Item = ToolOrigin> {
        self.tools.iter().map(|tool| ToolOrigin {
            path: tool.path.clone(),
            function: tool.function.clone(),
            is_custom: tool.kind == CallKind::Custom,
        })
    }

    /// Gives each function its name: the tool's own, or namespace and name joined. Joined names that are taken get a
    /// number, in the order of the request.
    fn name_functions(&mut self) {
        let mut taken: HashSet<String> =
            self.tools.iter().filter(|tool| tool.namespace.is_none()).map(|tool| tool.name.clone()).collect();
        let mut known: HashSet<(String, String)> = HashSet::new();
        for tool in &mut self.tools {
            let Some(namespace) = &tool.namespace else {
                tool.function.clone_from(&tool.name);
                continue;
            };
            let base = joined(Some(namespace), &tool.name);
            tool.function.clone_from(&base);
            // A tool that is declared twice keeps its name, so that the conversation's check reports it.
            if !known.insert((namespace.clone(), tool.name.clone())) {
                continue;
            }
            let mut number = 2_u32;
            while !taken.insert(tool.function.clone()) {
                tool.function = format!("{base}{SEPARATOR}{number}");
                number += 1;
            }
        }
        for (at, tool) in self.tools.iter().enumerate() {
            self.by_function.entry(tool.function.clone()).or_insert(at);
            self.by_name.entry((tool.namespace.clone(), tool.name.clone())).or_insert(at);
        }
    }
}

/// The name of a namespaced function. Characters that function names cannot have become `_`.
fn joined(namespace: Option<&str>, name: &str) -> String {
    let Some(namespace) = namespace else { return name.to_owned() };
    let plain = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c), "_");
    format!("{}{SEPARATOR}{}", plain(namespace), plain(name))
}

/// The tools of a request, and the functions that they become.
#[derive(Debug, Default)]
pub struct ConvertedTools {
    pub given: Vec<Value>,
    pub functions: ToolSet,
    pub table: Arc<ToolTable>,
    /// Fields that were not read, and tools that only OpenAI's servers can run, by path and type.
    pub ignored: Vec<String>,
}

/// Converts the tools of a request.
pub fn convert(fields: &mut Fields) -> Result<Arc<ConvertedTools>, Error> {
    let given = fields.array("tools")?.unwrap_or_default();
    let Conversion { functions, table, hosted, mut ignored } = Conversion::of(given.clone())?;
    let hosted = hosted.into_iter().map(|name| (name, Value::Bool(true)));
    ignored.extend(Fields::within("", hosted.collect()).into_ignored());
    let exact = fields.exact_array("tools").map(Conversion::of).transpose()?;
    let functions = ToolSet::new(functions, exact.map(|exact| exact.functions));
    Ok(Arc::new(ConvertedTools { given, functions, table: Arc::new(table), ignored }))
}

#[derive(Default)]
struct Conversion {
    /// In the format of chats.
    functions: Vec<Value>,
    table: ToolTable,
    /// Tools that only OpenAI's servers can run, by path and type.
    hosted: Vec<String>,
    ignored: Vec<String>,
}

impl Conversion {
    fn of(tools: Vec<Value>) -> Result<Self, Error> {
        let mut converted = Conversion::default();
        for (i, tool) in tools.into_iter().enumerate() {
            converted.add(&format!("tools[{i}]"), tool, None)?;
        }
        converted.table.name_functions();
        for (function, tool) in converted.functions.iter_mut().zip(&converted.table.tools) {
            if let Some(name) = function.pointer_mut("/function/name") {
                *name = tool.function.as_str().into();
            }
        }
        Ok(converted)
    }

    fn add(&mut self, path: &str, tool: Value, namespace: Option<&str>) -> Result<(), Error> {
        let Value::Object(map) = tool else { return Err(Error::wrong_type(path, "an object", &tool)) };
        let mut fields = Fields::within(&format!("{path}."), map);
        let kind = fields.required("type", "the type of the tool, such as 'function'")?;
        match (kind.as_str(), namespace) {
            ("function", _) => self.add_function(path, &mut fields, namespace)?,
            ("custom", _) => self.add_custom(path, &mut fields, namespace)?,
            ("namespace", None) => return self.add_namespace(path, fields),
            (_, None) => {
                self.hosted.push(format!("{path}:{kind}"));
                return Ok(());
            }
            (other, Some(_)) => {
                let at = fields.at("type");
                let message = format!("'{at}' must be 'function' or 'custom' in a namespace, got '{other}'");
                return Err(Error::invalid(at, message));
            }
        }
        self.ignored.extend(fields.into_ignored());
        Ok(())
    }

    fn add_function(&mut self, path: &str, fields: &mut Fields, namespace: Option<&str>) -> Result<(), Error> {
        let name = fields.required("name", "the function's name")?;
        let mut function = Map::new();
        function.insert("name".into(), name.as_str().into());
        for field in ["description", "parameters", "strict"] {
            // The conversation's check validates their types. Clients of this API always say `strict: false`, which
            // prompts of chats do not have.
            let value = fields.take(field).filter(|value| *value != Value::Bool(false));
            function.extend(value.map(|value| (field.to_owned(), value)));
        }
        self.declare(path, name, namespace, CallKind::Function, function);
        Ok(())
    }

    fn add_custom(&mut self, path: &str, fields: &mut Fields, namespace: Option<&str>) -> Result<(), Error> {
        let name = fields.required("name", "the tool's name")?;
        let mut input = Map::from_iter([("type".to_owned(), "string".into())]);
        let mut strict = false;
        if let Some(mut format) = fields.fields("format")? {
            input.extend(constraint(&mut format)?);
            strict = input.len() > 1;
            fields.add_ignored(format);
        }
        let mut function = Map::new();
        function.insert("name".into(), name.as_str().into());
        function.extend(fields.take("description").map(|text| ("description".to_owned(), text)));
        let schema = json!({
            "type": "object",
            "properties": {INPUT: input},
            "required": [INPUT],
            "additionalProperties": false,
        });
        function.insert("parameters".into(), schema);
        if strict {
            // A format that cannot be enforced is an error.
            function.insert("strict".into(), true.into());
        }
        self.declare(path, name, namespace, CallKind::Custom, function);
        Ok(())
    }

    fn add_namespace(&mut self, path: &str, mut fields: Fields) -> Result<(), Error> {
        let name = fields.required("name", "the namespace's name")?;
        let description = fields.string("description")?.unwrap_or_default();
        let tools = fields.array("tools")?;
        let tools = tools.ok_or_else(|| Error::missing(&fields.at("tools"), "an array of functions"))?;
        let first = self.functions.len();
        for (i, tool) in tools.into_iter().enumerate() {
            self.add(&format!("{path}.tools[{i}]"), tool, Some(&name))?;
        }
        // Models have no namespaces: the first function's description carries what the namespace says.
        if let Some(function) = self.functions.get_mut(first).filter(|_| !description.is_empty())
            && let Some(function) = function.get_mut("function").and_then(Value::as_object_mut)
        {
            let all = format!("All functions named {}...: {description}", joined(Some(&name), ""));
            let text = match function.get("description").and_then(Value::as_str) {
                Some(own) if !own.is_empty() => format!("{own}\n\n{all}"),
                _ => all,
            };
            function.insert("description".into(), text.into());
        }
        self.ignored.extend(fields.into_ignored());
        Ok(())
    }

    fn declare(
        &mut self,
        path: &str,
        name: String,
        namespace: Option<&str>,
        kind: CallKind,
        function: Map<String, Value>,
    ) {
        self.functions.push(json!({"type": "function", "function": function}));
        let namespace = namespace.map(str::to_owned);
        self.table.tools.push(DeclaredTool { namespace, name, kind, function: String::new(), path: path.to_owned() });
    }
}

/// The keyword with which a schema enforces a custom tool's format.
fn constraint(format: &mut Fields) -> Result<Option<(String, Value)>, Error> {
    match format.required("type", "'text' or 'grammar'")?.as_str() {
        "text" => Ok(None),
        "grammar" => {
            let syntax = format.required("syntax", "'lark' or 'regex'")?;
            let definition = format.required("definition", "the grammar's text")?;
            match syntax.as_str() {
                "regex" => Ok(Some(("pattern".into(), format!("^(?:{definition})$").into()))),
                "lark" => Ok(Some((LARK_KEYWORD.into(), definition.into()))),
                other => {
                    let at = format.at("syntax");
                    Err(Error::invalid(&*at, format!("'{at}' must be 'lark' or 'regex', got '{other}'")))
                }
            }
        }
        other => {
            let at = format.at("type");
            Err(Error::invalid(&*at, format!("'{at}' must be 'text' or 'grammar', got '{other}'")))
        }
    }
}
