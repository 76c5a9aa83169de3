//! What goes to standard error: log lines, why the process ends, panics. With REIN_LOG_FORMAT=json each is one object.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{self, Write};
use std::panic::PanicHookInfo;

use chrono::{SecondsFormat, Utc};
use serde_json::json;

use crate::terminal;

/// Libraries end some errors with a page of their manual, for people who write programs.
const MANUAL: &str = "https://docs.rs/";

pub fn is_json() -> bool {
    std::env::var("REIN_LOG_FORMAT").is_ok_and(|format| format == "json")
}

/// A line that no logger writes: the process ends, or a thread does.
pub fn error(message: impl Display) {
    let message = message.to_string();
    match is_json() {
        false => terminal::err(message),
        // As the logger's own lines.
        true => terminal::err(json!({
            "timestamp": Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true),
            "level": "ERROR", "fields": {"message": message}, "target": "rein",
        })),
    }
}

/// Panics are told like other errors.
pub fn tell_panics() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo| {
        let thread = std::thread::current();
        let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let what = text.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        // Empty unless RUST_BACKTRACE asks for one.
        let stack = Backtrace::capture();
        let stack = if stack.status() == BacktraceStatus::Captured { format!("\n{stack}") } else { String::new() };
        let name = thread.name().unwrap_or("unnamed");
        error(format_args!("a defect of rein: thread '{name}' panicked{place}: {what}{stack}"));
    }));
}

/// Writes log lines, without the pages of manuals in them.
#[derive(Debug, Clone, Copy)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) if text.contains(MANUAL) => io::stderr().write_all(without_manual(text).as_bytes())?,
            _ => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A text without links to manuals, and what led to them.
fn without_manual(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once(MANUAL) {
        out.push_str(before.trim_end().trim_end_matches(':'));
        let end = link.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ')' | ',')).unwrap_or(link.len());
        rest = &link[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests;
