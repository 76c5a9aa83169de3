//! This server's own HTTP headers, which are metadata in gRPC.

use crate::limits;

/// The request's session, for routing.
pub const SESSION: &str = "x-rein-session";
/// Fields of the request that were ignored.
pub const IGNORED_FIELDS: &str = "x-rein-ignored-fields";
/// Schema parts of the request that the grammar does not enforce.
pub const RELAXED: &str = "x-rein-relaxed";

/// A header value with these names, separated by commas: the first of them, cut. Characters that a header cannot hold
/// become `?`.
pub fn listed(names: &[String]) -> String {
    joined(names, ",", |c| !c.is_ascii_graphic() || c == ',')
}

/// A header value with these sentences.
pub fn told(sentences: &[String]) -> String {
    joined(sentences, "; ", |c| !c.is_ascii_graphic() && c != ' ')
}

fn joined(texts: &[String], between: &str, refused: impl Fn(char) -> bool) -> String {
    let plain = |text: &String| -> String {
        let held = text.chars().map(|c| if refused(c) { '?' } else { c });
        held.take(limits::HEADER_NAME_BYTES).collect()
    };
    texts.iter().take(limits::HEADER_NAMES).map(plain).collect::<Vec<_>>().join(between)
}
