//! The conversation, its settings, and the commands that change them. It does not print and sends nothing.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::tools;
use crate::args::AskArgs;

/// Settings of requests that /set takes.
const SETTINGS: [&str; 9] = [
    "frequency_penalty",
    "max_tokens",
    "min_p",
    "presence_penalty",
    "reasoning_effort",
    "seed",
    "temperature",
    "top_k",
    "top_p",
];

pub const HELP: &str = "\
/new                 begin a new conversation
/system [TEXT]       set the system message, or remove it
/tools [FILE]        show the tools, or read them from a file; `examples` for two examples, `off` for none
/set [NAME VALUE]    show the settings, or change one: temperature, max_tokens, seed, reasoning_effort, ...
/undo                take back the last question and its answer
/retry               ask the last question again
/reasoning           hide or show the reasoning
/save FILE           save the conversation as JSON
/load FILE           continue a saved conversation
/exit                leave, as Ctrl-D does
A line that ends in \\ goes on in the next one. Ctrl-C ends an answer.";

#[derive(Debug, Clone, Default)]
pub struct Conversation {
    system: Option<String>,
    pub messages: Vec<Value>,
    tools: Vec<Value>,
    settings: Map<String, Value>,
    pub hides_reasoning: bool,
}

/// What a line of the user asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum LineMeaning {
    /// Send the conversation.
    Ask,
    Say(String),
    Leave,
}

impl Conversation {
    pub fn new(args: &AskArgs, example_tools: bool) -> Result<Self, String> {
        let mut settings = args.extra.clone().unwrap_or_default();
        let given = [
            ("temperature", args.temperature.map(Value::from)),
            ("max_tokens", args.max_tokens.map(Value::from)),
            ("seed", args.seed.map(Value::from)),
        ];
        settings.extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        let tools = match &args.tools {
            Some(path) => tools::read(path).map_err(|error| format!("--tools: {error}"))?,
            None if example_tools => tools::examples(),
            None => Vec::new(),
        };
        Ok(Conversation { system: args.system.clone(), tools, settings, ..Conversation::default() })
    }

    pub fn add_user(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
    }

    pub fn add_result(&mut self, call: &super::answer::AskedCall, result: &str) {
        self.messages.push(json!({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result}));
    }

    /// The body of a request.
    pub fn request(&self, model: &str) -> Value {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.chain(self.messages.iter().cloned()).collect();
        let mut body = self.settings.clone();
        body.insert("model".into(), model.into());
        body.insert("messages".into(), messages.into());
        body.insert("stream".into(), true.into());
        body.insert("stream_options".into(), json!({"include_usage": true}));
        if !self.tools.is_empty() {
            body.insert("tools".into(), self.tools.clone().into());
        }
        body.into()
    }

    /// A line of the user: a command, or a question.
    pub fn read(&mut self, line: &str) -> LineMeaning {
        let Some(command) = line.strip_prefix('/') else {
            self.add_user(line);
            return LineMeaning::Ask;
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let said = match name {
            "exit" | "quit" | "bye" => return LineMeaning::Leave,
            "retry" => match self.cut_after_last_question() {
                true => return LineMeaning::Ask,
                false => Err("nothing was asked yet".into()),
            },
            "help" | "?" => Ok(HELP.into()),
            "new" | "clear" => {
                self.messages.clear();
                Ok("a new conversation".into())
            }
            "system" => {
                self.system = (!rest.is_empty()).then(|| rest.to_owned());
                Ok(if self.system.is_some() { "the system message is set" } else { "no system message" }.into())
            }
            "tools" => self.set_tools(rest),
            "set" => self.set(rest),
            "undo" => match self.cut_after_last_question() {
                true => {
                    self.messages.pop();
                    Ok(format!("taken back; {} messages", self.messages.len()))
                }
                false => Err("nothing was asked yet".into()),
            },
            "reasoning" => {
                self.hides_reasoning = !self.hides_reasoning;
                Ok(if self.hides_reasoning { "the reasoning is hidden" } else { "the reasoning is shown" }.into())
            }
            "save" => self.save(rest),
            "load" => self.load(rest),
            _ => Err(format!("there is no command /{name}; /help lists them")),
        };
        LineMeaning::Say(said.unwrap_or_else(|problem: String| problem))
    }

    /// Keeps the messages up to the last question. False: there is none.
    fn cut_after_last_question(&mut self) -> bool {
        let last = self.messages.iter().rposition(|message| message["role"] == "user");
        last.map(|at| self.messages.truncate(at + 1)).is_some()
    }

    fn set_tools(&mut self, what: &str) -> Result<String, String> {
        match what {
            "" => {}
            "off" => self.tools.clear(),
            "examples" => self.tools = tools::examples(),
            path => self.tools = tools::read(Path::new(path))?,
        }
        let names: Vec<&str> = self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        Ok(if names.is_empty() { "no tools".into() } else { format!("tools: {}", names.join(", ")) })
    }

    fn set(&mut self, what: &str) -> Result<String, String> {
        let Some((name, value)) = what.split_once(char::is_whitespace) else {
            return match what {
                "" if self.settings.is_empty() => Ok(format!("no settings; there are {}", SETTINGS.join(", "))),
                "" => Ok(Value::Object(self.settings.clone()).to_string()),
                name => match self.settings.remove(name) {
                    Some(_) => Ok(format!("{name} is the server's again")),
                    None => Err(format!("expected /set NAME VALUE; names are {}", SETTINGS.join(", "))),
                },
            };
        };
        if !SETTINGS.contains(&name) {
            return Err(format!("there is no setting {name}; there are {}", SETTINGS.join(", ")));
        }
        let value = value.trim();
        let value = match (name, serde_json::from_str::<Value>(value)) {
            ("reasoning_effort", _) => Value::from(value.trim_matches('"')),
            (_, Ok(number @ Value::Number(_))) => number,
            _ => return Err(format!("{name} is a number, got {value}")),
        };
        let shown = format!("{name} = {value}");
        self.settings.insert(name.to_owned(), value);
        Ok(shown)
    }

    fn save(&self, path: &str) -> Result<String, String> {
        if path.is_empty() {
            return Err("expected /save FILE".into());
        }
        let whole =
            json!({"system": self.system, "messages": self.messages, "tools": self.tools, "settings": self.settings});
        let text = serde_json::to_string_pretty(&whole).map_err(|error| error.to_string())? + "\n";
        fs::write(path, text).map_err(|error| format!("{path}: {error}"))?;
        Ok(format!("{} messages saved in {path}", self.messages.len()))
    }

    fn load(&mut self, path: &str) -> Result<String, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let saved: Value = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
        // Also a plain list of messages, as other programs save.
        let list = |value: &Value| value.as_array().cloned();
        let messages = list(&saved["messages"]).or_else(|| list(&saved));
        let messages = messages.ok_or_else(|| format!("{path}: has no messages"))?;
        if let Some(at) = messages.iter().position(|message| !message["role"].is_string()) {
            return Err(format!("{path}: entry {at} is no message: it has no role"));
        }
        self.messages = messages;
        self.system = saved["system"].as_str().map(str::to_owned);
        self.tools = list(&saved["tools"]).unwrap_or_default();
        self.settings = saved["settings"].as_object().cloned().unwrap_or_default();
        Ok(format!("{} messages of {path}", self.messages.len()))
    }
}

#[cfg(test)]
mod tests;
