//! How a span's W3C trace context travels in headers. What knows OpenTelemetry is the process, not its crates: it says once
//! how; until then a span has no context. A span that takes part has a field `trace_id`.

use std::sync::OnceLock;

use tonic::metadata::{AsciiMetadataKey, MetadataMap};
use tracing::Span;

/// A header's value by its name.
pub type Get<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

#[derive(Debug, Clone, Copy)]
pub struct Propagation {
    /// The headers that say which span this is.
    pub headers: fn(&Span) -> Vec<(String, String)>,
    /// Makes the span, which nobody has entered yet, a child of the one that the headers name; the id of their trace.
    pub adopt: for<'a> fn(&Span, Get<'a>) -> Option<String>,
}

static PROPAGATION: OnceLock<Propagation> = OnceLock::new();

/// For the process; what is said later does not count.
pub fn install(propagation: Propagation) {
    let _ = PROPAGATION.set(propagation);
}

/// The call is part of this span.
pub fn inject(span: &Span, metadata: &mut MetadataMap) {
    let Some(propagation) = PROPAGATION.get() else { return };
    for (name, value) in (propagation.headers)(span) {
        if let (Ok(name), Ok(value)) = (AsciiMetadataKey::from_bytes(name.as_bytes()), value.parse()) {
            metadata.insert(name, value);
        }
    }
}

/// The span is part of the caller's, if that says one.
pub fn adopt<'a>(span: &Span, get: Get<'a>) {
    if let Some(propagation) = PROPAGATION.get()
        && let Some(trace) = (propagation.adopt)(span, get)
    {
        span.record("trace_id", trace);
    }
}

/// As [`adopt`], from a call's metadata.
pub fn adopt_call(span: &Span, metadata: &MetadataMap) {
    adopt(span, &|name| metadata.get(name)?.to_str().ok());
}
