//! One option of a command, as the generated pages show it.

use std::any::TypeId;

use clap::{Arg, ArgAction, Command};

/// Heading of the options without one.
const OTHER: &str = "Options";

/// What kind of value an option has in the config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    Boolean,
    Integer,
    Number,
    String,
    Strings,
}

impl ValueType {
    pub fn name(self) -> &'static str {
        match self {
            ValueType::Boolean => "boolean",
            ValueType::Integer => "integer",
            ValueType::Number => "number",
            ValueType::String => "string",
            ValueType::Strings => "list of strings",
        }
    }
}

pub struct CommandOption<'a> {
    arg: &'a Arg,
}

impl<'a> CommandOption<'a> {
    /// All options of a command that can be set: not `--help` and `--version`, and no hidden ones.
    pub fn all(command: &'a Command) -> Vec<Self> {
        let is_shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
        command.get_arguments().filter(is_shown).map(|arg| CommandOption { arg }).collect()
    }

    /// The options under their headings, in the order in which `--help` shows them.
    pub fn by_heading(command: &'a Command) -> Vec<(&'a str, Vec<Self>)> {
        let mut headings: Vec<(&str, Vec<Self>)> = Vec::new();
        for option in Self::all(command) {
            let heading = option.arg.get_help_heading().unwrap_or(OTHER);
            match headings.iter_mut().find(|(known, _)| *known == heading) {
                Some((_, options)) => options.push(option),
                None => headings.push((heading, vec![option])),
            }
        }
        headings
    }

    /// The config file's key; None for a positional argument.
    pub fn key(&self) -> Option<&'a str> {
        self.arg.get_long()
    }

    /// As in the usage line, such as `--tp <N>`.
    pub fn usage(&self) -> String {
        let names = self.arg.get_value_names().unwrap_or_default();
        let values: Vec<String> = names.iter().map(|name| format!("<{name}>")).collect();
        let values = if self.arg.get_action().takes_values() { values.join(" ") } else { String::new() };
        let values = values.as_str();
        match self.key() {
            Some(key) if values.is_empty() => format!("--{key}"),
            Some(key) => format!("--{key} {values}"),
            None => values.to_owned(),
        }
    }

    /// What the value is, in a word, such as `FILE`.
    pub fn value_name(&self) -> String {
        self.arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default()
    }

    pub fn environment(&self) -> Option<String> {
        self.arg.get_env().map(|name| name.to_string_lossy().into_owned())
    }

    /// The help text, without a default in brackets at its end.
    pub fn help(&self) -> String {
        self.split_help().0
    }

    /// The default value, or words that describe it; None if there is none.
    pub fn default(&self) -> Option<String> {
        self.default_value().map(|value| format!("`{value}`")).or(self.split_help().1)
    }

    /// The default value as it would be given on the command line.
    pub fn default_value(&self) -> Option<String> {
        let values = self.arg.get_default_values();
        let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
        (self.arg.get_action().takes_values() && !values.is_empty()).then(|| values.join(","))
    }

    pub fn is_required(&self) -> bool {
        self.arg.is_required_set()
    }

    /// The values that can be given, with what each means, if they are a fixed set.
    pub fn possible_values(&self) -> Vec<(String, Option<String>)> {
        let values = self.arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
        let described = |value: clap::builder::PossibleValue| {
            (value.get_name().to_owned(), value.get_help().map(ToString::to_string))
        };
        // Flags have the possible values true and false.
        if self.arg.get_action().takes_values() { values.map(described).collect() } else { Vec::new() }
    }

    pub fn value_type(&self) -> ValueType {
        let id = self.arg.get_value_parser().type_id();
        let is = |types: &[TypeId]| types.iter().any(|known| id == *known);
        match self.arg.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => ValueType::Boolean,
            _ if is(&[TypeId::of::<bool>()]) => ValueType::Boolean,
            _ if self.arg.get_value_delimiter().is_some() => ValueType::Strings,
            _ if is(&[TypeId::of::<f64>()]) => ValueType::Number,
            _ if is(&[TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>(), TypeId::of::<usize>()]) => {
                ValueType::Integer
            }
            _ => ValueType::String,
        }
    }

    fn split_help(&self) -> (String, Option<String>) {
        let help = self.arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        match help.split_once(" [default: ") {
            Some((before, rest)) => match rest.split_once(']') {
                Some((default, after)) => (format!("{before}{after}"), Some(default.to_owned())),
                None => (help, None),
            },
            None => (help, None),
        }
    }
}
