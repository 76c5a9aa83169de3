//! The codecs of arguments: each reads arguments incrementally and reports them as the text of one JSON object. Codecs
//! do not know markers.

pub(crate) mod bare;
pub(crate) mod code;
pub(crate) mod elements;
pub(crate) mod json;
pub(crate) mod object;
pub(crate) mod params;
pub(crate) mod python;
pub(crate) mod tagged;

use crate::event::Event;
use crate::tools::{Tool, Tools};

pub(crate) use bare::Bare;
pub(crate) use code::Code;
pub(crate) use elements::Elements;
pub(crate) use object::Object;
pub(crate) use params::Params;
pub(crate) use python::Python;
pub(crate) use tagged::Tagged;

/// A prefix that some models write before a tool's name.
const FOREIGN_PREFIX: &str = "functions.";

/// The result of reading a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    /// The body ended with this byte.
    Done,
    /// The byte does not belong to the body and was not consumed.
    Bad,
}

/// Why a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Whole,
    /// A marker ended it early.
    Marker,
    /// An invalid byte ended it.
    Broken,
    /// The output ended.
    Output,
}

/// Why a body counts as a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// A marker that has no other meaning.
    Marker,
    /// Letters that have no other meaning if a complete body follows.
    Letters,
    /// Only that it names a declared tool.
    Name,
}

#[derive(Debug)]
pub(crate) enum Body {
    Object(Object),
    Params(Params),
    Python(Python),
    Bare(Bare),
    Elements(Elements),
    Tagged(Tagged),
    Code(Code),
}

impl Body {
    /// Whether it is inside a string, where markers do not count.
    pub fn in_string(&self) -> bool {
        match self {
            Body::Object(b) => b.in_string(),
            Body::Python(b) => b.in_string(),
            Body::Bare(b) => b.in_string(),
            Body::Elements(b) => b.in_value(),
            Body::Tagged(b) => b.in_value(),
            Body::Params(_) | Body::Code(_) => false,
        }
    }

    /// Whether nothing of the arguments has been read.
    pub fn is_empty(&self) -> bool {
        match self {
            Body::Object(b) => b.is_empty(),
            Body::Params(_) | Body::Python(_) | Body::Bare(_) => false,
            Body::Elements(_) | Body::Tagged(_) | Body::Code(_) => false,
        }
    }

    /// Whether more input can still turn the input so far into a call.
    pub fn may_be_call(&self) -> bool {
        match self {
            Body::Object(b) => b.may_be_call(),
            Body::Python(_) | Body::Bare(_) | Body::Elements(_) | Body::Tagged(_) => true,
            Body::Params(_) | Body::Code(_) => true,
        }
    }

    /// Consumes a byte. Params are read by marks, not here.
    pub fn feed(&mut self, b: u8, out: &mut Vec<Event>) -> Progress {
        match self {
            Body::Object(body) => body.feed(b, out),
            Body::Python(body) => body.feed(b, out),
            Body::Bare(body) => body.feed(b, out),
            Body::Elements(body) => body.feed(b),
            Body::Tagged(body) => body.feed(b),
            Body::Code(body) => body.feed(b),
            Body::Params(_) => Progress::Bad,
        }
    }

    pub fn flush(&mut self, out: &mut Vec<Event>) {
        match self {
            Body::Object(b) => b.flush(out),
            Body::Python(b) => b.flush(out),
            Body::Bare(b) => b.flush(out),
            Body::Elements(b) => b.flush(out),
            Body::Tagged(b) => b.flush(out),
            Body::Params(b) => b.flush(out),
            Body::Code(b) => b.flush(out),
        }
    }

    /// Ends the body. Returns the text that did not become part of a call.
    pub fn end(self, end: End, out: &mut Vec<Event>) -> String {
        match self {
            Body::Object(b) => b.end(end, out),
            Body::Python(b) => b.end(end, out),
            Body::Bare(b) => b.end(end, out),
            Body::Elements(b) => b.end(end, out),
            Body::Tagged(b) => b.end(end, out),
            Body::Params(b) => b.end(end, out),
            Body::Code(b) => b.end(end, out),
        }
    }
}

/// A call that is being reported.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub index: usize,
    pub name: Option<String>,
    pub id: Option<String>,
    pub tools: Tools,
    pub trust: Trust,
    /// `ToolCallStart` has been reported.
    pub started: bool,
    /// Argument text read since the last delta.
    pub delta: Vec<u8>,
}

impl OpenCall {
    /// Sets the name, without the prefix of another format that some models write.
    pub fn set_name(&mut self, name: String) {
        let declares = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        let bare = name.strip_prefix(FOREIGN_PREFIX).filter(|bare| !declares(&name) && declares(bare));
        self.name = Some(bare.map(str::to_owned).unwrap_or(name));
    }

    pub fn declared(&self) -> Option<&Tool> {
        let name = self.name.as_deref()?;
        self.tools.iter().find(|t| t.name == name)
    }

    /// Whether the name alone shows that it is a call: it is declared, or there is no declaration.
    pub fn is_known(&self) -> bool {
        self.name.is_some() && self.tools.is_empty() || self.declared().is_some()
    }

    pub fn start(&mut self, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.started, true) {
            let name = self.name.clone().unwrap_or_default();
            out.push(Event::ToolCallStart { index: self.index, id: self.id.take(), name });
        }
    }

    /// Reports the collected argument text.
    pub fn flush(&mut self, out: &mut Vec<Event>) {
        if !self.delta.is_empty() {
            let delta = std::mem::take(&mut self.delta);
            out.push(Event::ArgumentsDelta { index: self.index, text: crate::scan::text(&delta) });
        }
    }

    pub fn end(&mut self, complete: bool, out: &mut Vec<Event>) {
        self.flush(out);
        out.push(Event::ToolCallEnd { index: self.index, complete });
    }
}

/// For tests of codecs.
#[cfg(test)]
impl OpenCall {
    pub fn of_f(tools: Tools) -> Self {
        let (name, trust) = (Some("f".into()), Trust::Marker);
        Self { index: 0, name, id: None, tools, trust, started: false, delta: Vec::new() }
    }
}

/// The text of all arguments.
#[cfg(test)]
pub(crate) fn arguments_of(events: Vec<Event>) -> String {
    let text = |event| if let Event::ArgumentsDelta { text, .. } = event { Some(text) } else { None };
    events.into_iter().filter_map(text).collect()
}
