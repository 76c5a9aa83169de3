//! The generated parts of the reference pages, in Markdown.

use std::fmt::Write;

use clap::Command;

use super::option::CommandOption;
use super::{SERVERS, shown_commands};

/// All commands with their options, for docs/reference/cli.md.
pub fn commands(command: &mut Command) -> String {
    let commands = shown_commands(command).map(|command| {
        let (name, about) = (command.get_name(), command.get_about().map(ToString::to_string).unwrap_or_default());
        format!("| [`rein {name}`](#rein-{name}) | {} |\n", sentence(&about))
    });
    let mut page = "| command | |\n|---|---|\n".to_owned();
    page.extend(commands);
    for command in shown_commands(command) {
        page += &section(command, "rein");
        let name = format!("rein {}", command.get_name());
        for inner in shown_commands(command) {
            page += &section(inner, &name);
        }
    }
    page
}

/// The keys of the config file, for docs/reference/config-file.md.
pub fn config_keys(command: &Command) -> String {
    let sections: Vec<String> = SERVERS.iter().filter_map(|name| command.find_subcommand(name)).map(keys).collect();
    sections.join("\n")
}

/// `parent`: the command's words before its own.
fn section(command: &mut Command, parent: &str) -> String {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let about: Vec<String> = about.split("\n\n").map(|paragraph| wrap(&sentence(paragraph))).collect();
    let mut out = format!("\n## {name}\n\n{}\n", about.join("\n\n"));
    let usage = command.render_usage().to_string();
    let _ = writeln!(out, "\n```text\n{}\n```", usage.trim_start_matches("Usage: ").trim_end());
    for (heading, options) in CommandOption::by_heading(command) {
        let _ = writeln!(out, "\n### {heading}\n\n| option | default | environment | meaning |\n|---|---|---|---|");
        for option in options {
            let environment = option.environment().map_or_else(String::new, |name| format!("`{name}`"));
            let _ = writeln!(
                out,
                "| `{}` | {} | {environment} | {} |",
                cell(&option.usage()),
                cell(&default(&option)),
                cell(&meaning(&option))
            );
        }
    }
    if let Some(examples) = command.get_after_help() {
        let _ = writeln!(out, "\n```text\n{}\n```", examples.to_string().trim_end());
    }
    out
}

fn keys(command: &Command) -> String {
    let name = command.get_name();
    let mut out = format!("### Keys of rein {name}\n\n| key | type | default |\n|---|---|---|\n");
    for option in CommandOption::all(command) {
        // `config` names the file itself.
        let Some(key) = option.key().filter(|key| *key != "config") else { continue };
        let _ = writeln!(out, "| `{key}` | {} | {} |", option.value_type().name(), cell(&default(&option)));
    }
    out
}

fn default(option: &CommandOption) -> String {
    match option.default() {
        Some(default) => default,
        None if option.is_required() => "required".into(),
        None => String::new(),
    }
}

/// The help text and the possible values.
fn meaning(option: &CommandOption) -> String {
    let mut text = sentence(&option.help());
    let values = option.possible_values();
    if !values.is_empty() {
        let value = |(name, help): &(String, Option<String>)| match help {
            Some(help) => format!("`{name}` ({})", lowercase(help)),
            None => format!("`{name}`"),
        };
        let _ = write!(text, " Values: {}.", values.iter().map(value).collect::<Vec<_>>().join(", "));
    }
    text
}

/// With a small first letter, unless the first word is a name.
fn lowercase(text: &str) -> String {
    if text.split(' ').next().is_some_and(|word| word.ends_with("'s")) {
        return text.to_owned();
    }
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// The text with a full stop at its end.
fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() || text.ends_with(['.', '!', '?', ':']) { text.to_owned() } else { format!("{text}.") }
}

/// In a table cell, `|` starts the next cell, and tags outside of code are HTML.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Longest line of prose.
const WIDTH: usize = 120;

fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().filter(|line| line.len() + 1 + word.len() <= WIDTH);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
