//! `rein key`: makes API keys, lists them, and removes them from the file that routers read.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use rand::TryRngCore;
use rand::rngs::OsRng;
use rein_router::admission::keys::{KeyEntry, instant, key_hash, read_key_file};

use crate::terminal;

/// Random bytes in a key.
const KEY_BYTES: usize = 32;
const ENTRY: &str = "[[key]]";

#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    pub what: KeyCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub enum KeyCommand {
    /// Make a key, show it once, and add its entry to the file
    Create(CreateKeyArgs),
    /// List the keys of a file
    List(ListKeysArgs),
    /// Remove a key from a file; routers refuse it within a second
    Revoke(RevokeKeyArgs),
}

#[derive(Debug, Clone, Args)]
pub struct CreateKeyArgs {
    /// Name of the key in logs and metrics
    #[arg(value_name = "NAME")]
    pub name: String,
    /// File of --api-keys; it is made if it is missing [default: the entry goes to standard output]
    #[arg(long, env = "REIN_API_KEYS", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// When it ends to be valid: a time such as 2027-01-31T12:00:00Z, a date, or a while such as 90d, 12h or 30m
    /// [default: never]
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    pub expires: Option<DateTime<Utc>>,
    /// Comma-separated names of the models that it may use [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = NonEmptyStringValueParser::new())]
    pub models: Vec<String>,
    /// Maximum number of requests per minute [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests_per_minute: Option<u64>,
    /// Maximum number of prompt and generated tokens per minute [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub tokens_per_minute: Option<u64>,
    /// Maximum number of requests in flight; each choice of a request counts [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_in_flight: Option<u32>,
    /// Priority of its requests in the queue; lower numbers come first
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    pub priority: i64,
    /// Share the cache of prompts' prefixes with the other keys that share it, which can then find out by the time of
    /// an answer whether a text was asked before
    #[arg(long)]
    pub share_prefix_cache: bool,
}

#[derive(Debug, Clone, Args)]
pub struct ListKeysArgs {
    /// File of --api-keys
    #[arg(long, env = "REIN_API_KEYS", value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct RevokeKeyArgs {
    /// Name of the key
    #[arg(value_name = "NAME")]
    pub name: String,
    /// File of --api-keys
    #[arg(long, env = "REIN_API_KEYS", value_name = "FILE")]
    pub file: PathBuf,
}

pub fn run(args: &KeyArgs) -> Result<(), Box<dyn Error>> {
    match &args.what {
        KeyCommand::Create(args) => create(args),
        KeyCommand::List(args) => list(args),
        KeyCommand::Revoke(args) => revoke(args),
    }
}

/// The entry goes to the file, and the key to standard output; without a file, the entry goes there, and the key to
/// standard error. The key is not stored anywhere.
fn create(args: &CreateKeyArgs) -> Result<(), Box<dyn Error>> {
    let mut bytes = [0; KEY_BYTES];
    OsRng.try_fill_bytes(&mut bytes)?;
    let key = bytes.iter().fold("sk-rein-".to_owned(), |mut key, byte| {
        let _ = write!(key, "{byte:02x}");
        key
    });
    let entry = entry(args, &key);
    // Validated with the server's parser, first alone: the error is about this entry.
    read_key_file(entry.as_bytes()).map_err(|what| what.replace("key[0].", ""))?;
    let Some(path) = &args.file else {
        // Printed first, because the key is not stored and cannot be shown again.
        writeln!(std::io::stderr(), "{key}")?;
        std::io::stdout().write_all(entry.as_bytes())?;
        return Ok(());
    };
    let before = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("{}: {error}", path.display()).into()),
    };
    let gap = if before.is_empty() || before.ends_with("\n\n") { "" } else { "\n" };
    let line_end = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    write(path, &format!("{before}{line_end}{gap}{entry}"))?;
    terminal::err(format_args!("the key of '{}' is in {}; it is shown once:", args.name, path.display()));
    writeln!(std::io::stdout(), "{key}")?;
    Ok(())
}

fn entry(args: &CreateKeyArgs, key: &str) -> String {
    let mut entry = format!("{ENTRY}\nname = {:?}\nhash = \"{}\"\n", args.name, key_hash(key));
    let limits = [
        ("requests_per_minute", args.requests_per_minute),
        ("tokens_per_minute", args.tokens_per_minute),
        ("max_in_flight", args.max_in_flight.map(u64::from)),
    ];
    for (field, limit) in limits {
        if let Some(limit) = limit {
            let _ = writeln!(entry, "{field} = {limit}");
        }
    }
    if args.priority != 0 {
        let _ = writeln!(entry, "priority = {}", args.priority);
    }
    if args.share_prefix_cache {
        entry.push_str("share_prefix_cache = true\n");
    }
    if let Some(expires) = args.expires {
        let _ = writeln!(entry, "expires = {}", shown(expires));
    }
    if !args.models.is_empty() {
        let _ = writeln!(entry, "models = {:?}", args.models);
    }
    entry
}

fn list(args: &ListKeysArgs) -> Result<(), Box<dyn Error>> {
    let now = Utc::now();
    let entries = read(&args.file)?;
    if args.json {
        let entry = |entry: &KeyEntry| {
            serde_json::json!({
                "name": entry.name, "expires": entry.expires.map(shown), "models": entry.models,
                "expired": is_expired(entry, now),
                "requests_per_minute": entry.requests_per_minute, "tokens_per_minute": entry.tokens_per_minute,
                "max_in_flight": entry.max_in_flight, "priority": entry.priority,
                "share_prefix_cache": entry.share_prefix_cache,
            })
        };
        terminal::out(serde_json::to_string_pretty(&entries.iter().map(entry).collect::<Vec<_>>())?);
        return Ok(());
    }
    let number = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
    let head = ["NAME", "EXPIRES", "MODELS", "REQ/MIN", "TOK/MIN", "IN FLIGHT", "PRIORITY"].map(str::to_owned);
    let row = |entry: &KeyEntry| {
        let past = if is_expired(entry, now) { " (expired)" } else { "" };
        [
            entry.name.clone(),
            entry.expires.map_or_else(|| "never".to_owned(), |time| shown(time) + past),
            entry.models.as_ref().map_or_else(|| "all".to_owned(), |models| models.join(",")),
            number(entry.requests_per_minute),
            number(entry.tokens_per_minute),
            number(entry.max_in_flight.map(u64::from)),
            entry.priority.to_string(),
        ]
    };
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(entries.iter().map(row)).collect();
    let widths: Vec<usize> = (0..7).map(|i| rows.iter().map(|row| row[i].len()).max().unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        terminal::out(cells.join("  ").trim_end());
    }
    Ok(())
}

fn revoke(args: &RevokeKeyArgs) -> Result<(), Box<dyn Error>> {
    let entries = read(&args.file)?;
    let path = args.file.display();
    if !entries.iter().any(|entry| entry.name == args.name) {
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        return Err(format!("{path}: has no key '{}'; there are {}", args.name, names.join(", ")).into());
    }
    if entries.len() == 1 {
        // Routers keep the last valid file, and with it this key.
        let how = "create another one first, or start the routers without --api-keys";
        return Err(
            format!("{path}: '{}' is the only key, and a file without keys is not valid: {how}", args.name).into()
        );
    }
    let text = fs::read_to_string(&args.file).map_err(|error| format!("{path}: {error}"))?;
    let left = without(&text, &args.name);
    let names = |entries: &[KeyEntry]| entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
    let rest: Vec<KeyEntry> = entries.into_iter().filter(|entry| entry.name != args.name).collect();
    if read_key_file(left.as_bytes()).map(|left| names(&left)) != Ok(names(&rest)) {
        return Err(
            format!("{path}: the entry of '{}' cannot be told from the others: remove it by hand", args.name).into()
        );
    }
    write(&args.file, &left)
}

/// The text without the entry of this name. Comments before the next entry stay.
fn without(text: &str, name: &str) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].trim() == ENTRY).collect();
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(lines.len());
        let is_it = lines[start..end].iter().any(|line| {
            let value = line.trim().strip_prefix("name").map(|rest| rest.trim_start().trim_start_matches('=').trim());
            value.is_some_and(|value| [format!("\"{name}\""), format!("'{name}'")].iter().any(|n| value.starts_with(n)))
        });
        if is_it {
            let is_field = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
            let fields = lines[start..end].iter().rposition(is_field).map_or(0, |last| last + 1);
            return lines[..start].iter().chain(&lines[start + fields..]).copied().collect();
        }
    }
    text.to_owned()
}

fn read(path: &Path) -> Result<Vec<KeyEntry>, Box<dyn Error>> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(read_key_file(&bytes).map_err(|what| format!("{}: {what}", path.display()))?)
}

/// Replaces the file at once, if its contents are valid; routers never read half of it.
fn write(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    read_key_file(text.as_bytes()).map_err(|what| format!("{}: {what}; the file is as it was", path.display()))?;
    let written = || {
        // A link stays one.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mode = fs::metadata(&path).map_or(0o600, |file| file.permissions().mode() & 0o777);
        let draft = path.with_extension(format!("toml.{}", std::process::id()));
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, &path)
    };
    written().map_err(|error| format!("{}: {error}", path.display()).into())
}

fn is_expired(entry: &KeyEntry, now: DateTime<Utc>) -> bool {
    entry.expires.is_some_and(|expires| expires <= now)
}

fn shown(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// A time, a date, or a while from now on.
fn expiry(text: &str) -> Result<DateTime<Utc>, String> {
    let expected =
        || "expected a time such as 2027-01-31T12:00:00Z, a date, or a while such as 90d, 12h or 30m".to_owned();
    let now = Utc::now();
    let unit = |letter, seconds: i64| {
        let number: i64 = text.strip_suffix(letter)?.parse().ok().filter(|number| *number > 0)?;
        now.checked_add_signed(TimeDelta::try_seconds(number.checked_mul(seconds)?)?)
    };
    let units = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];
    let later = units.into_iter().find_map(|(letter, seconds)| unit(letter, seconds));
    let time = later.or_else(|| instant(text)).ok_or_else(expected)?;
    match time > now {
        true => Ok(time),
        false => Err(format!("{text} is past")),
    }
}

#[cfg(test)]
mod tests;
