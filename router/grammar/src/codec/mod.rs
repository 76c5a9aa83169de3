//! How arguments are written: read as they grow, told as the text of one JSON object.

pub(crate) mod code;
pub(crate) mod json;
pub(crate) mod object;
pub(crate) mod params;
pub(crate) mod python;
pub(crate) mod types;

use std::sync::Arc;

use crate::event::Event;
use crate::parse::ToolDecl;

pub(crate) use code::Code;
pub(crate) use object::Object;
pub(crate) use params::Params;
pub(crate) use python::Python;

/// What some formats write before a tool's name.
const FOREIGN_PREFIX: &str = "functions.";

/// What reading a byte led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    /// The body ended with this byte.
    Done,
    /// The byte does not belong to a body and was not taken.
    Bad,
}

/// Why a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Whole,
    /// A marker cut it short.
    Marker,
    /// A byte came that does not belong.
    Broken,
    /// The output ended.
    Output,
}

/// What makes a body a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// A marker that is nothing else.
    Marker,
    /// Letters that mean nothing else when a whole body follows.
    Letters,
    /// Nothing but that it names a declared tool.
    Name,
}

#[derive(Debug)]
pub(crate) enum Body {
    Object(Object),
    Params(Params),
    Python(Python),
    Code(Code),
}

impl Body {
    /// Inside a string, where no marker counts.
    pub fn in_string(&self) -> bool {
        match self {
            Body::Object(b) => b.in_string(),
            Body::Python(b) => b.in_string(),
            Body::Params(_) | Body::Code(_) => false,
        }
    }

    /// Nothing of the arguments has come.
    pub fn is_empty(&self) -> bool {
        match self {
            Body::Object(b) => b.is_empty(),
            Body::Params(_) | Body::Python(_) | Body::Code(_) => false,
        }
    }

    /// Takes a byte. Params are read by marks, not here.
    pub fn feed(&mut self, b: u8, out: &mut Vec<Event>) -> Progress {
        match self {
            Body::Object(body) => body.feed(b, out),
            Body::Python(body) => body.feed(b, out),
            Body::Code(body) => body.feed(b),
            Body::Params(_) => Progress::Bad,
        }
    }

    pub fn flush(&mut self, out: &mut Vec<Event>) {
        match self {
            Body::Object(b) => b.flush(out),
            Body::Python(b) => b.flush(out),
            Body::Params(b) => b.flush(out),
            Body::Code(b) => b.flush(out),
        }
    }

    /// The body has ended. Returns the text that did not become part of a call.
    pub fn end(self, end: End, out: &mut Vec<Event>) -> String {
        match self {
            Body::Object(b) => b.end(end, out),
            Body::Python(b) => b.end(end, out),
            Body::Params(b) => b.end(end, out),
            Body::Code(b) => b.end(end, out),
        }
    }
}

/// A call that is being told.
#[derive(Debug)]
pub(crate) struct Call {
    pub index: usize,
    pub name: Option<String>,
    pub id: Option<String>,
    pub tools: Arc<[ToolDecl]>,
    pub trust: Trust,
    /// `ToolCallStart` is out.
    pub started: bool,
    /// Argument text that was read since the last delta.
    pub delta: Vec<u8>,
}

impl Call {
    /// Some models write the prefix of another format's names.
    pub fn set_name(&mut self, name: String) {
        let declares = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        let bare = name.strip_prefix(FOREIGN_PREFIX).filter(|bare| !declares(&name) && declares(bare));
        self.name = Some(bare.map(str::to_owned).unwrap_or(name));
    }

    pub fn declared(&self) -> Option<&ToolDecl> {
        let name = self.name.as_deref()?;
        self.tools.iter().find(|t| t.name == name)
    }

    /// Whether its name alone tells that it is a call: it is declared, or nobody said what is.
    pub fn is_known(&self) -> bool {
        self.name.is_some() && self.tools.is_empty() || self.declared().is_some()
    }

    pub fn start(&mut self, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.started, true) {
            let name = self.name.clone().unwrap_or_default();
            out.push(Event::ToolCallStart { index: self.index, id: self.id.take(), name });
        }
    }

    /// Sends the argument text that has gathered.
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
