//! Headers, or metadata, of this server's own.

use crate::limits;

/// Names the request's session.
pub const SESSION: &str = "x-rein-session";
/// Fields of the request that nothing reads.
pub const IGNORED_FIELDS: &str = "x-rein-ignored-fields";
/// Where the grammar is laxer than a schema of the request.
pub const RELAXED: &str = "x-rein-relaxed";

/// Names for a header, which holds no control characters and in which a comma separates.
pub fn listed(names: &[String]) -> String {
    let plain = |name: &String| name.replace(|c: char| !c.is_ascii_graphic() || c == ',', "?");
    names.iter().take(limits::HEADER_NAMES).map(plain).collect::<Vec<_>>().join(",")
}
