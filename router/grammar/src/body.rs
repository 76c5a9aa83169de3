//! The JSON part of a call, read as it grows.

use crate::event::Event;
use crate::format::{self, Codec};
use crate::json::{self, Fed, Json};
use crate::scan::text;

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

#[derive(Debug, PartialEq, Eq)]
enum Arguments {
    Missing,
    /// Going out as they come.
    Streaming,
    /// Kept until they can go out: the name is not known yet, or they are not an object at first sight.
    Kept(Vec<u8>),
    /// An object, complete, that waits for the name.
    Ready(Vec<u8>),
    Sent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Ignored,
    Other,
}

#[derive(Debug)]
pub(crate) struct Body {
    codec: Codec,
    json: Json,
    name: Option<String>,
    id: Option<String>,
    index: usize,
    /// `ToolCallStart` is out.
    started: bool,
    arguments: Arguments,
    /// Everything read, header included, until the call has started: the text of a malformed call.
    raw: Vec<u8>,
    /// Codec::Object: the current member, from its key on, and where its value starts in it.
    member: Vec<u8>,
    value_at: usize,
    kind: Option<Member>,
    /// Members that no event can tell.
    others: Vec<String>,
    /// Argument text that was read since the last delta.
    delta: Vec<u8>,
}

impl Body {
    pub fn new(codec: Codec, index: usize, header: &str, name: Option<String>, id: Option<String>) -> Self {
        Self {
            codec,
            json: Json::new(),
            name,
            id,
            index,
            started: false,
            arguments: Arguments::Missing,
            raw: header.as_bytes().to_vec(),
            member: Vec::new(),
            value_at: 0,
            kind: None,
            others: Vec::new(),
            delta: Vec::new(),
        }
    }

    /// Inside a JSON string, where no marker counts.
    pub fn in_string(&self) -> bool {
        self.json.in_string()
    }

    pub fn feed(&mut self, b: u8, out: &mut Vec<Event>) -> Progress {
        let progress = match self.codec {
            Codec::Json => self.feed_arguments(b, out),
            Codec::Object { .. } => self.feed_member(b, out),
            Codec::Params(_) | Codec::Python => Progress::Bad,
        };
        if !self.started && progress != Progress::Bad {
            self.raw.push(b);
        }
        progress
    }

    fn feed_arguments(&mut self, b: u8, out: &mut Vec<Event>) -> Progress {
        if self.arguments == Arguments::Missing {
            if b.is_ascii_whitespace() {
                return Progress::More;
            }
            if !self.begin_arguments(b, out) {
                return Progress::Bad;
            }
        }
        let in_string = self.json.in_string();
        let fed = self.json.feed(b);
        if fed == Fed::Bad {
            return Progress::Bad;
        }
        self.push_argument(b, in_string);
        if fed == Fed::More {
            return Progress::More;
        }
        if self.end_arguments(out) { Progress::Done } else { Progress::Bad }
    }

    fn feed_member(&mut self, b: u8, out: &mut Vec<Event>) -> Progress {
        let depth = self.json.depth();
        let (was_key, was_value, in_string) = (self.json.in_key(), self.json.wants_value(), self.json.in_string());
        if depth == 0 && !b.is_ascii_whitespace() && b != b'{' {
            return Progress::Bad;
        }
        if depth == 1 && was_value && !b.is_ascii_whitespace() {
            self.kind = Some(self.classify());
            self.value_at = self.member.len();
            if self.kind == Some(Member::Arguments) && !self.begin_arguments(b, out) {
                return Progress::Bad;
            }
        }
        let fed = self.json.feed(b);
        if fed == Fed::Bad {
            return Progress::Bad;
        }
        if self.json.number_ended && depth == 1 && self.kind.is_some() && !self.end_member(out) {
            return Progress::Bad;
        }
        match self.kind {
            Some(Member::Arguments) => self.push_argument(b, in_string),
            Some(_) => self.member.push(b),
            // The key and the colon; not the brace or comma before it.
            None if depth == 1 && (self.json.in_key() || was_key || !self.member.is_empty()) && fed == Fed::More => {
                self.member.push(b);
            }
            None => {}
        }
        if self.json.depth() == 1 && self.json.after_value() && self.kind.is_some() && !self.end_member(out) {
            return Progress::Bad;
        }
        if fed == Fed::Done { self.end_object(out) } else { Progress::More }
    }

    /// What the member is whose key has just been read.
    fn classify(&self) -> Member {
        let Codec::Object { members, ignored } = self.codec else { return Member::Other };
        let is = |key: &str, kind: fn(&format::Member) -> Option<&'static [&'static str]>| {
            members.iter().filter_map(kind).any(|keys| keys.contains(&key))
        };
        let key = self.member.trim_ascii_end().strip_suffix(b":").and_then(json::string).unwrap_or_default();
        let key = key.as_str();
        if is(key, format::Member::name) && self.name.is_none() {
            Member::Name
        } else if is(key, format::Member::arguments) && self.arguments == Arguments::Missing {
            Member::Arguments
        } else if ignored.contains(&key) {
            Member::Ignored
        } else {
            Member::Other
        }
    }

    fn end_member(&mut self, out: &mut Vec<Event>) -> bool {
        let kind = self.kind.take();
        let member = std::mem::take(&mut self.member);
        match kind {
            Some(Member::Arguments) => return self.end_arguments(out),
            Some(Member::Name) => {
                let name = json::string(&member[self.value_at.min(member.len())..]);
                match name.filter(|n| !n.trim().is_empty()) {
                    Some(name) => {
                        self.name = Some(name.trim().to_owned());
                        self.send_ready(out);
                    }
                    None => self.others.push(text(member.trim_ascii())),
                }
            }
            Some(Member::Other) => self.others.push(text(member.trim_ascii())),
            Some(Member::Ignored) | None => {}
        }
        true
    }

    fn end_object(&mut self, out: &mut Vec<Event>) -> Progress {
        if self.name.is_none() {
            return Progress::Done;
        }
        if self.arguments == Arguments::Missing {
            self.arguments = Arguments::Ready(b"{}".to_vec());
        }
        self.send_ready(out);
        Progress::Done
    }

    /// The value of the arguments starts with `b`. False: they cannot start so.
    fn begin_arguments(&mut self, b: u8, out: &mut Vec<Event>) -> bool {
        self.arguments = match b {
            b'{' if self.name.is_some() => {
                self.start(out);
                Arguments::Streaming
            }
            b'{' | b'"' | b'n' => Arguments::Kept(Vec::new()),
            _ => return false,
        };
        true
    }

    fn push_argument(&mut self, b: u8, in_string: bool) {
        match &mut self.arguments {
            Arguments::Streaming => json::push_escaped(&mut self.delta, b, in_string),
            Arguments::Kept(kept) => json::push_escaped(kept, b, in_string),
            _ => {}
        }
    }

    /// The value of the arguments is whole. False: it is nothing that could be an object.
    fn end_arguments(&mut self, out: &mut Vec<Event>) -> bool {
        match std::mem::replace(&mut self.arguments, Arguments::Sent) {
            Arguments::Kept(kept) => {
                // Models also write the object as a JSON string, or null for none.
                let object = match kept.first() {
                    Some(b'"') => json::string(&kept).and_then(|s| match s.trim() {
                        "" => Some(b"{}".to_vec()),
                        s => json::object(s.as_bytes()),
                    }),
                    Some(b'n') => Some(b"{}".to_vec()),
                    _ => Some(kept),
                };
                let Some(object) = object else {
                    self.arguments = Arguments::Missing;
                    return false;
                };
                self.arguments = Arguments::Ready(object);
                self.send_ready(out);
            }
            Arguments::Streaming => self.flush(out),
            other => self.arguments = other,
        }
        true
    }

    fn send_ready(&mut self, out: &mut Vec<Event>) {
        if self.name.is_none() {
            return;
        }
        match std::mem::replace(&mut self.arguments, Arguments::Sent) {
            Arguments::Ready(object) => {
                self.start(out);
                self.delta = object;
                self.flush(out);
            }
            other => self.arguments = other,
        }
    }

    fn start(&mut self, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.started, true) {
            let name = self.name.clone().unwrap_or_default();
            out.push(Event::ToolCallStart { index: self.index, id: self.id.take(), name });
            self.raw = Vec::new();
        }
    }

    /// Sends the argument text that has gathered.
    pub fn flush(&mut self, out: &mut Vec<Event>) {
        if !self.delta.is_empty() {
            let delta = std::mem::take(&mut self.delta);
            out.push(Event::ArgumentsDelta { index: self.index, text: text(&delta) });
        }
    }

    /// The body has ended. Returns the text that did not become part of a call.
    pub fn end(mut self, end: End, out: &mut Vec<Event>) -> String {
        self.flush(out);
        if end == End::Marker && self.codec == Codec::Json && self.arguments == Arguments::Missing {
            // Nothing between the markers of a named call: no arguments are meant.
            self.arguments = Arguments::Ready(b"{}".to_vec());
            self.send_ready(out);
        }
        if end == End::Output && !self.started && self.name.is_some() {
            self.start_cut(out);
        }
        if !self.started {
            return text(&self.raw);
        }
        // When the arguments are an object and only what is around them broke, it is still a call, unless more was to come.
        let complete = self.arguments == Arguments::Sent && end != End::Output;
        out.push(Event::ToolCallEnd { index: self.index, complete });
        if self.kind != Some(Member::Arguments) && !(end == End::Output && self.begins_arguments_key()) {
            let member = text(self.member.trim_ascii());
            if !member.is_empty() {
                self.others.push(member);
            }
        }
        self.others.join(", ")
    }

    /// The member that was cut is the key of the arguments, or a part of it.
    fn begins_arguments_key(&self) -> bool {
        let Codec::Object { members, .. } = self.codec else { return false };
        let member = text(self.member.trim_ascii_end());
        members
            .iter()
            .filter_map(format::Member::arguments)
            .flatten()
            .any(|key| format!("\"{key}\":").starts_with(&member))
    }

    /// The output ended between the name and the arguments, or inside arguments that were kept.
    fn start_cut(&mut self, out: &mut Vec<Event>) {
        let kept = std::mem::replace(&mut self.arguments, Arguments::Missing);
        match kept {
            Arguments::Kept(kept) if kept.first() == Some(&b'{') => {
                self.start(out);
                self.delta = kept;
                self.flush(out);
            }
            Arguments::Missing => self.start(out),
            // A string that was to hold the object: half of it is none, so the call stays malformed.
            other => self.arguments = other,
        }
    }
}
