//! The events that a parser reports. They do not depend on the format.

/// One event of a parsed output. Regions open lazily: an empty region has no events. Starts and ends are paired, and at
/// most one region is open at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    ReasoningStart,
    ReasoningDelta(String),
    ReasoningEnd,
    TextStart,
    TextDelta(String),
    TextEnd,
    /// A call with its complete name. `index` counts the calls of this output from 0. `id` is the one on the wire, in
    /// the format's canonical spelling, if the format has ids.
    ToolCallStart {
        index: usize,
        id: Option<String>,
        name: String,
    },
    /// The next part of the call's arguments: text of one JSON object.
    ArgumentsDelta {
        index: usize,
        text: String,
    },
    /// `complete`: the argument text is a whole JSON object. False: the output ended, or became invalid, inside the
    /// call.
    ToolCallEnd {
        index: usize,
        complete: bool,
    },
    /// Text in place of a call that is not a call. No text is dropped.
    Malformed(String),
}
