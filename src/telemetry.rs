use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Logs go to standard error; standard output belongs to a command's results. `REIN_LOG=debug` shows more,
/// `REIN_LOG_FORMAT=json` writes one JSON object per line.
pub fn init() {
    let filter = EnvFilter::try_from_env("REIN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if std::env::var("REIN_LOG_FORMAT").is_ok_and(|f| f == "json") { log.json().init() } else { log.init() }
}
