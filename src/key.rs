//! `rein key`: makes an API key and its entry for the key file.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;

use clap::Args;
use rand::TryRngCore;
use rand::rngs::OsRng;
use rein_router::admission::keys::key_hash;

/// Random bytes in a key.
const KEY_BYTES: usize = 32;

#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// Name of the key in logs and metrics
    #[arg(long, value_name = "NAME")]
    pub name: String,
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

/// Prints the entry on standard output, for `>> keys.toml`, and the key on standard error. The key is not stored
/// anywhere.
pub fn run(args: &KeyArgs) -> Result<(), Box<dyn Error>> {
    let mut bytes = [0; KEY_BYTES];
    OsRng.try_fill_bytes(&mut bytes)?;
    let key = bytes.iter().fold("sk-rein-".to_owned(), |mut key, byte| {
        let _ = write!(key, "{byte:02x}");
        key
    });
    let entry = entry(args, &key);
    // Validates the entry with the server's parser.
    rein_router::admission::keys::check_key_file(&entry).map_err(|what| format!("--name: {what}"))?;
    // Printed first, because the key is not stored and cannot be shown again.
    writeln!(std::io::stderr(), "{key}")?;
    std::io::stdout().write_all(entry.as_bytes())?;
    Ok(())
}

fn entry(args: &KeyArgs, key: &str) -> String {
    let mut entry = format!("[[key]]\nname = {:?}\nhash = \"{}\"\n", args.name, key_hash(key));
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
    entry
}
