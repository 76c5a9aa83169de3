//! What a parser tells.

/// One step of a parsed output. Regions open lazily: an empty region has no events. Starts and ends pair up, and at most
/// one region is open at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    ReasoningStart,
    ReasoningDelta(String),
    ReasoningEnd,
    TextStart,
    TextDelta(String),
    TextEnd,
    /// A call, its name whole. `index` counts the calls of this output from 0; `id` is the one on the wire, in the
    /// format's canonical spelling, where the format has ids.
    ToolCallStart {
        index: usize,
        id: Option<String>,
        name: String,
    },
    /// The next part of the call's arguments: the text of one JSON object.
    ArgumentsDelta {
        index: usize,
        text: String,
    },
    /// `complete`: the argument text is a whole JSON object. False: the output ended, or broke off, inside the call.
    ToolCallEnd {
        index: usize,
        complete: bool,
    },
    /// What stood where a call belongs and is none. Nothing is dropped.
    Malformed(String),
}
