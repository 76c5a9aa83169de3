//! Options of other servers that people type from habit: what they are in Rein.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde::Deserialize;

const OPTIONS: &str = include_str!("habits.toml");

#[derive(Deserialize)]
struct Habits {
    option: Vec<Habit>,
}

#[derive(Deserialize)]
struct Habit {
    /// The server.
    of: String,
    names: Vec<String>,
    /// What it is in Rein, in Markdown.
    rein: String,
}

/// Commands that other servers have as well.
const SERVERS: [&str; 4] = ["serve", "router", "worker", "adapter"];

/// The error for options that other servers have: all of this command line.
pub fn explain(command: &clap::Command, error: &clap::Error, args: &[String]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let words: Vec<&str> = args.iter().skip(1).map(|arg| arg.split('=').next().unwrap_or(arg)).collect();
    let sub = words.iter().find_map(|word| command.find_subcommand(word));
    if sub.is_some_and(|sub| !SERVERS.contains(&sub.get_name())) {
        return None;
    }
    let habits: Habits = toml::from_str(OPTIONS).expect("a test reads the file");
    let habit = |name: &str| {
        let has = |habit: &&Habit| habit.names.iter().any(|known| known.split(' ').next() == Some(name));
        habits.option.iter().find(has)
    };
    let is_own = |name: &str| {
        let long = |arg: &clap::Arg| name.strip_prefix("--").is_some_and(|name| arg.get_long() == Some(name));
        // Those of the program itself stand before the command or after it.
        command.get_arguments().chain(sub.iter().flat_map(|sub| sub.get_arguments())).any(long)
    };
    // Of `-tp 2`, clap names `-t`.
    let mut foreign: Vec<&str> = words.iter().copied().filter(|word| word.starts_with('-') && !is_own(word)).collect();
    if !foreign.iter().any(|word| word.starts_with(unknown.as_str())) {
        foreign.push(unknown);
    }
    let explained = foreign.into_iter().filter_map(|name| {
        let Habit { of, rein, .. } = habit(name)?;
        Some(format!("{name} is an option of {of}; in Rein: {}", plain(rein)))
    });
    let mut explained: Vec<String> = explained.collect();
    if sub.is_none() && !explained.is_empty() {
        explained =
            vec!["options follow a command, such as `rein serve MODEL`; `rein --help` lists the commands".into()];
    }
    (!explained.is_empty()).then(|| explained.join("\n"))
}

/// The text of Markdown: without code marks and the targets of links.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once("](") {
        text.push_str(&before.replacen('[', "", 1));
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    text.replace('`', "")
}

#[cfg(test)]
mod tests;
