//! This server's own HTTP headers, which are metadata in gRPC.

use crate::limits;

/// The request's session, for routing.
pub const SESSION: &str = "x-rein-session";
/// Fields of the request that were ignored.
pub const IGNORED_FIELDS: &str = "x-rein-ignored-fields";
/// Schema parts of the request that the grammar does not enforce.
pub const RELAXED: &str = "x-rein-relaxed";

/// A header value with these names, separated by commas. Characters that a header cannot hold become `?`.
pub fn listed(names: &[String]) -> String {
    let plain = |name: &String| name.replace(|c: char| !c.is_ascii_graphic() || c == ',', "?");
    names.iter().take(limits::HEADER_NAMES).map(plain).collect::<Vec<_>>().join(",")
}
