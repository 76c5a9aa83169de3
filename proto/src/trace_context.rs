//! Carries a span's W3C trace context in headers. Only the process knows OpenTelemetry: it installs the functions once;
//! until then spans have no context. A span that takes part has a field `trace_id`.

use std::sync::OnceLock;

use tonic::metadata::{AsciiMetadataKey, MetadataMap};
use tracing::Span;

/// Returns the value of a header.
pub type Get<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    Text(String),
    Texts(Vec<String>),
    Integer(i64),
    Number(f64),
    Flag(bool),
}

#[derive(Debug, Clone, Copy)]
pub struct Propagation {
    /// The headers that identify this span.
    pub headers: fn(&Span) -> Vec<(String, String)>,
    /// Makes the span, which has not been entered yet, a child of the span in the headers. Returns the trace id.
    pub adopt: for<'a> fn(&Span, Get<'a>) -> Option<String>,
    /// Sets an attribute of the span in traces, which log lines do not show.
    pub attribute: fn(&Span, &'static str, AttributeValue),
}

static PROPAGATION: OnceLock<Propagation> = OnceLock::new();

/// Installs the functions for the process. Further calls are ignored.
pub fn install(propagation: Propagation) {
    let _ = PROPAGATION.set(propagation);
}

/// Makes the call a part of this span.
pub fn inject(span: &Span, metadata: &mut MetadataMap) {
    let Some(propagation) = PROPAGATION.get() else { return };
    for (name, value) in (propagation.headers)(span) {
        if let (Ok(name), Ok(value)) = (AsciiMetadataKey::from_bytes(name.as_bytes()), value.parse()) {
            metadata.insert(name, value);
        }
    }
}

/// Makes the span a child of the caller's, if the headers have one.
pub fn adopt<'a>(span: &Span, get: Get<'a>) {
    if let Some(propagation) = PROPAGATION.get()
        && let Some(trace) = (propagation.adopt)(span, get)
    {
        span.record("trace_id", trace);
    }
}

/// Sets an attribute that only traces have.
pub fn set(span: &Span, name: &'static str, value: AttributeValue) {
    if let Some(propagation) = PROPAGATION.get() {
        (propagation.attribute)(span, name, value);
    }
}

/// As [`adopt`], with a call's metadata.
pub fn adopt_call(span: &Span, metadata: &MetadataMap) {
    adopt(span, &|name| metadata.get(name)?.to_str().ok());
}
