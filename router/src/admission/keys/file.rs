//! The file with API keys: its fields, and what is wrong with one. It counts nothing.

use std::collections::HashSet;

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use serde::Deserialize;

/// Maximum number of keys in one file: each adds labels to `/metrics`.
const KEYS: usize = 1024;
/// Maximum length of a key's name, in bytes.
const NAME_BYTES: usize = 64;
pub const HASH_BYTES: usize = 32;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    hash: String,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    max_in_flight: Option<u32>,
    #[serde(default)]
    priority: i64,
    #[serde(default)]
    share_prefix_cache: bool,
    expires: Option<toml::value::Datetime>,
    models: Option<Vec<String>>,
}

/// An entry of a valid file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    pub name: String,
    pub hash: [u8; HASH_BYTES],
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    pub max_in_flight: Option<u32>,
    pub priority: i64,
    pub share_prefix_cache: bool,
    pub expires: Option<DateTime<Utc>>,
    /// The only models that it may use, by their own names. None: all.
    pub models: Option<Vec<String>>,
}

/// Reads a file. Err: its first error.
pub fn read_key_file(bytes: &[u8]) -> Result<Vec<KeyEntry>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("is not UTF-8: {error}"))?;
    // The error must not quote the line: it could have a key in place of a hash.
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
        // For the same reason, the wrong value is cut off.
        let what = error.message().split(" \"").next().unwrap_or_default();
        format!("line {line}: {what}")
    })?;
    if file.key.is_empty() {
        return Err("must have at least one [[key]], got none".into());
    }
    if file.key.len() > KEYS {
        return Err(format!("must have at most {KEYS} keys, got {}", file.key.len()));
    }
    let (mut names, mut hashes) = (HashSet::new(), HashSet::new());
    let mut checked = Vec::new();
    for (i, entry) in file.key.into_iter().enumerate() {
        let entry = checked_entry(i, entry)?;
        let at = |field: &str| format!("key[{i}].{field}");
        if !names.insert(entry.name.clone()) {
            return Err(format!("{} must be unique: another key is named '{}', too", at("name"), entry.name));
        }
        if !hashes.insert(entry.hash) {
            return Err(format!("{} must be unique: another key has the same hash", at("hash")));
        }
        checked.push(entry);
    }
    Ok(checked)
}

fn checked_entry(i: usize, entry: Entry) -> Result<KeyEntry, String> {
    let at = |field: &str| format!("key[{i}].{field}");
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    if !(1..=NAME_BYTES).contains(&entry.name.len()) || !entry.name.bytes().all(plain) {
        let what = format!("must have 1 to {NAME_BYTES} letters, digits, dots, dashes or underscores");
        return Err(format!("{} {what}", at("name")));
    }
    let hash = parse_hash(&entry.hash).ok_or_else(|| {
        let what = "must be the SHA-256 of the key in 64 hexadecimal digits, as 'rein key create' writes it";
        format!("{} {what}", at("hash"))
    })?;
    let limits = [
        ("requests_per_minute", entry.requests_per_minute),
        ("tokens_per_minute", entry.tokens_per_minute),
        ("max_in_flight", entry.max_in_flight.map(u64::from)),
    ];
    if let Some((field, _)) = limits.iter().find(|(_, limit)| *limit == Some(0)) {
        return Err(format!("{} must be at least 1, got 0; leave it out for no limit", at(field)));
    }
    let expires = entry.expires.map(|time| time.to_string());
    let expires = expires.map(|time| {
        let what = format!("must be a date, or a time with its zone such as 2027-01-31T12:00:00Z, got {time}");
        instant(&time).ok_or_else(|| format!("{} {what}", at("expires")))
    });
    if entry.models.as_ref().is_some_and(|models| models.is_empty() || models.iter().any(String::is_empty)) {
        return Err(format!(
            "{} must have at least one name, and no empty one; leave it out for all models",
            at("models")
        ));
    }
    Ok(KeyEntry {
        name: entry.name,
        hash,
        requests_per_minute: entry.requests_per_minute,
        tokens_per_minute: entry.tokens_per_minute,
        max_in_flight: entry.max_in_flight,
        priority: entry.priority,
        share_prefix_cache: entry.share_prefix_cache,
        expires: expires.transpose()?,
        models: entry.models,
    })
}

/// A time, or the beginning of a day in UTC.
pub fn instant(text: &str) -> Option<DateTime<Utc>> {
    let day = || text.parse::<NaiveDate>().ok().map(|day| day.and_time(NaiveTime::MIN).and_utc());
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc()).or_else(day)
}

pub(super) fn parse_hash(text: &str) -> Option<[u8; HASH_BYTES]> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
    if digits.len() != 2 * HASH_BYTES {
        return None;
    }
    let mut hash = [0; HASH_BYTES];
    for (byte, pair) in hash.iter_mut().zip(digits.as_chunks::<2>().0) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(hash)
}
