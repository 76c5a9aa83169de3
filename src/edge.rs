//! What a router lets in: keys, requests at once, requests in line.

use std::path::PathBuf;

use clap::Args;
use rein_router::keys::ApiKeys;
use rein_router::reread::FileError;
use rein_router::{RouterConfig, limits};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admission")]
pub struct EdgeArgs {
    /// File of the API keys that may ask (TOML, see `rein key`); without it everybody may
    #[arg(long, env = "REIN_API_KEYS", value_name = "FILE")]
    pub api_keys: Option<PathBuf>,
    /// Requests that are answered at once; more wait for their turn
    #[arg(long, env = "REIN_MAX_IN_FLIGHT", default_value_t = limits::IN_FLIGHT, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_in_flight: u32,
    /// Requests that may wait for their turn before others are refused with 429
    #[arg(long, env = "REIN_MAX_QUEUED", default_value_t = limits::QUEUED, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub max_queued: u32,
}

impl EdgeArgs {
    pub fn config(&self) -> Result<RouterConfig, FileError> {
        let open = |path: &PathBuf| ApiKeys::open("--api-keys", path.clone());
        Ok(RouterConfig {
            max_in_flight: self.max_in_flight,
            max_queued: self.max_queued,
            keys: self.api_keys.as_ref().map(open).transpose()?,
            ..RouterConfig::default()
        })
    }
}
