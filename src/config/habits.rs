//! Options of other servers that people type from habit: what they are in Rein.

use clap::error::{ContextKind, ContextValue};
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

/// The error for an option that another server has.
pub fn explain(error: &clap::Error, args: &[String]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    // Of `-tp 2`, clap names `-t`.
    let whole = args.iter().map(|arg| arg.split('=').next().unwrap_or(arg)).find(|arg| arg.starts_with(unknown));
    let names = [whole.unwrap_or(unknown), unknown];
    let habits: Habits = toml::from_str(OPTIONS).expect("a test reads the file");
    let has = |habit: &Habit, name: &str| habit.names.iter().any(|known| known.split(' ').next() == Some(name));
    let mut found =
        names.iter().flat_map(|name| habits.option.iter().filter(|habit| has(habit, name)).map(|h| (*name, h)));
    let (name, Habit { of, rein, .. }) = found.next()?;
    Some(format!("{name} is an option of {of}; in Rein: {}", plain(rein)))
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
