//! The codecs of JSON arguments, alone or inside an object that also has the name.

use super::json::{self, Fed, Json};
use super::{End, OpenCall, Progress, Trust};
use crate::event::Event;
use crate::format::{self, Codec};
use crate::scan::text;
use crate::schema::quoted;
use crate::unmarked::IGNORED_MEMBERS;

#[derive(Debug, PartialEq, Eq)]
enum Arguments {
    Missing,
    /// Reported as they are read.
    Streaming,
    /// Kept until they can be reported: the name is not known yet, or they do not begin like an object.
    Kept(Vec<u8>),
    /// A complete object that waits for the name.
    Ready(Vec<u8>),
    Sent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Id,
    Ignored,
    Other,
}

#[derive(Debug)]
pub(crate) struct Object {
    call: OpenCall,
    codec: Codec,
    json: Json,
    /// The id follows the arguments, so the call starts when the object is complete.
    late_id: bool,
    whole: bool,
    arguments: Arguments,
    /// Everything read until the call has started, including the header: the text of a malformed call.
    raw: Vec<u8>,
    /// Codec::Object: the current member from its key on, and the offset of its value.
    member: Vec<u8>,
    value_at: usize,
    kind: Option<Member>,
    /// Members that no event reports.
    others: Vec<String>,
    /// Ignored members since the beginning, or since the name.
    skipped: usize,
}

impl Object {
    pub fn new(call: OpenCall, codec: Codec, header: &str) -> Self {
        let late_id = match codec {
            Codec::Object { members, .. } => {
                let at = |found: fn(&format::Member) -> bool| members.iter().position(found);
                at(|m| m.id().is_some()) > at(|m| m.arguments().is_some())
            }
            _ => false,
        };
        Self {
            call,
            codec,
            json: Json::new(),
            late_id,
            whole: false,
            arguments: Arguments::Missing,
            raw: header.as_bytes().to_vec(),
            member: Vec::new(),
            value_at: 0,
            kind: None,
            others: Vec::new(),
            skipped: 0,
        }
    }

    /// Whether it is inside a JSON string, where markers do not count.
    pub fn in_string(&self) -> bool {
        self.json.in_string()
    }

    /// Whether only the header has been read.
    pub fn is_empty(&self) -> bool {
        self.json.depth() == 0 && self.arguments == Arguments::Missing
    }

    /// Whether more input can still turn the input so far into a call: without a marker, only if it has no other
    /// members and its name is, or begins, one of a declared tool.
    pub fn may_be_call(&self) -> bool {
        let Codec::Object { members, ignored } = self.codec else { return true };
        if self.call.trust != Trust::Name {
            return true;
        }
        let member = text(&self.member);
        let known = match self.kind {
            Some(Member::Other) => false,
            Some(Member::Name) => {
                let value = &member[self.value_at.min(member.len())..];
                self.tools_named(|name| serde_json::to_string(name).is_ok_and(|name| name.starts_with(value)))
            }
            Some(_) => true,
            None => {
                let named = |m: &format::Member| m.name().or(m.arguments()).or(m.id());
                let keys = members.iter().filter_map(named).flatten().chain(ignored.iter());
                keys.into_iter().any(|key| format!("\"{key}\":").starts_with(member.trim_end()))
            }
        };
        known && self.others.is_empty()
    }

    fn tools_named(&self, is: impl Fn(&str) -> bool) -> bool {
        self.call.tools.is_empty() || self.call.tools.iter().any(|tool| is(&tool.name))
    }

    /// Whether the name, and the id if needed, are known.
    fn may_start(&self) -> bool {
        let trusted = match self.call.trust {
            Trust::Marker => true,
            Trust::Letters => self.whole || self.call.declared().is_some(),
            Trust::Name => self.call.is_known(),
        };
        self.call.name.is_some() && trusted && (!self.late_id || self.whole || self.call.id.is_some())
    }

    pub fn feed(&mut self, b: u8, out: &mut Vec<Event>) -> Progress {
        let progress = match self.codec {
            Codec::Object { .. } | Codec::Keyed => self.feed_member(b, out),
            _ => self.feed_arguments(b, out),
        };
        if !self.call.started && progress != Progress::Bad {
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
            if self.call.trust == Trust::Name && self.arguments == Arguments::Missing && !self.is_plain(b) {
                return Progress::Bad;
            }
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
            // The key and the colon, but not the brace or comma before them.
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

    /// The kind of the member whose key has just been read.
    fn classify(&mut self) -> Member {
        let key = self.member.trim_ascii_end().strip_suffix(b":").and_then(json::string).unwrap_or_default();
        let (members, ignored) = match self.codec {
            Codec::Object { members, ignored } => (members, ignored),
            Codec::Keyed if self.call.name.is_none() && !key.trim().is_empty() => {
                self.call.set_name(key);
                return Member::Arguments;
            }
            _ => return Member::Other,
        };
        let is = |key: &str, kind: fn(&format::Member) -> Option<&'static [&'static str]>| {
            members.iter().filter_map(kind).any(|keys| keys.contains(&key))
        };
        let key = key.as_str();
        if is(key, format::Member::name) && self.call.name.is_none() {
            Member::Name
        } else if is(key, format::Member::arguments) && self.arguments == Arguments::Missing {
            Member::Arguments
        } else if is(key, format::Member::id) && self.call.id.is_none() {
            Member::Id
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
                        let written = member[self.value_at.min(member.len())..].trim_ascii();
                        let plain = written == quoted(&name).as_bytes();
                        self.call.set_name(name.trim().to_owned());
                        if self.call.trust == Trust::Name && !(plain && self.call.is_known()) {
                            return false;
                        }
                        self.skipped = 0;
                        self.send_ready(out);
                    }
                    None => self.others.push(text(member.trim_ascii())),
                }
            }
            Some(Member::Other) => self.others.push(text(member.trim_ascii())),
            Some(Member::Id) => match json::string(&member[self.value_at.min(member.len())..]) {
                Some(id) => {
                    self.call.id = Some(id);
                    self.send_ready(out);
                }
                // Some models write a number.
                None => {
                    let id = text(member[self.value_at.min(member.len())..].trim_ascii());
                    self.call.id = Some(id).filter(|id| id != "null");
                }
            },
            Some(Member::Ignored) => {
                self.skipped += 1;
                // As in a grammar, which knows a few simple values.
                return self.call.trust != Trust::Name
                    || self.arguments != Arguments::Missing
                    || !member.contains(&b'\\');
            }
            None => {}
        }
        true
    }

    /// Without a marker, only what a grammar can tell from text begins a call: the name, perhaps after and before a few
    /// members without meaning, and then an object of arguments. `b`: the first byte of the current member's value.
    fn is_plain(&self, b: u8) -> bool {
        let known = match self.kind {
            Some(Member::Name) => b == b'"',
            Some(Member::Ignored) => self.skipped < IGNORED_MEMBERS && (b == b'"' || b == b'n' || b.is_ascii_digit()),
            Some(Member::Arguments) => b == b'{' && self.call.name.is_some(),
            Some(Member::Id | Member::Other) | None => false,
        };
        known && !self.member.contains(&b'\\')
    }

    fn end_object(&mut self, out: &mut Vec<Event>) -> Progress {
        if self.call.name.is_none() {
            return Progress::Done;
        }
        let bare = !self.others.is_empty() || self.call.declared().is_none() && self.call.trust == Trust::Name;
        if self.call.trust != Trust::Marker && self.arguments == Arguments::Missing && bare {
            return Progress::Bad;
        }
        self.whole = true;
        if self.arguments == Arguments::Missing {
            self.arguments = Arguments::Ready(b"{}".to_vec());
        }
        self.send_ready(out);
        Progress::Done
    }

    /// Starts the arguments with byte `b`. False: they cannot start with it.
    fn begin_arguments(&mut self, b: u8, out: &mut Vec<Event>) -> bool {
        self.arguments = match b {
            b'{' if self.may_start() => {
                self.call.start(out);
                self.raw = Vec::new();
                Arguments::Streaming
            }
            b'{' | b'"' | b'n' => Arguments::Kept(Vec::new()),
            _ => return false,
        };
        true
    }

    fn push_argument(&mut self, b: u8, in_string: bool) {
        match &mut self.arguments {
            Arguments::Streaming => json::push_escaped(&mut self.call.delta, b, in_string),
            Arguments::Kept(kept) => json::push_escaped(kept, b, in_string),
            _ => {}
        }
    }

    /// Ends the arguments. False: they cannot be an object.
    fn end_arguments(&mut self, out: &mut Vec<Event>) -> bool {
        match std::mem::replace(&mut self.arguments, Arguments::Sent) {
            Arguments::Kept(kept) => {
                // Models also write the object as a JSON string, or null for an empty one.
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
        if !self.may_start() {
            return;
        }
        match std::mem::replace(&mut self.arguments, Arguments::Sent) {
            Arguments::Ready(object) => {
                self.call.start(out);
                self.raw = Vec::new();
                self.call.delta = object;
                self.flush(out);
            }
            other => self.arguments = other,
        }
    }

    /// Reports the collected argument text.
    pub fn flush(&mut self, out: &mut Vec<Event>) {
        self.call.flush(out);
    }

    /// Ends the body. Returns the text that did not become part of a call.
    pub fn end(mut self, end: End, out: &mut Vec<Event>) -> String {
        self.flush(out);
        if end == End::Marker && self.codec == Codec::Json && self.arguments == Arguments::Missing {
            // A named call with nothing between its markers has no arguments.
            self.arguments = Arguments::Ready(b"{}".to_vec());
            self.send_ready(out);
        }
        if !self.call.started {
            // The id will not follow any more.
            self.late_id = false;
            if self.may_start() {
                self.start_cut(end, out);
            }
        }
        if !self.call.started {
            return text(&self.raw);
        }
        // If the arguments are a complete object and only the text around them is broken, it is a call, unless the
        // output was cut.
        let complete = self.arguments == Arguments::Sent && end != End::Output;
        self.call.end(complete, out);
        if self.kind != Some(Member::Arguments) && !(end == End::Output && self.begins_arguments_key()) {
            let member = text(self.member.trim_ascii());
            if !member.is_empty() {
                self.others.push(member);
            }
        }
        self.others.join(", ")
    }

    /// Whether the cut member is the key of the arguments, or a prefix of it.
    fn begins_arguments_key(&self) -> bool {
        let Codec::Object { members, .. } = self.codec else { return false };
        let member = text(self.member.trim_ascii_end());
        members
            .iter()
            .filter_map(format::Member::arguments)
            .flatten()
            .any(|key| format!("\"{key}\":").starts_with(&member))
    }

    /// Starts a call whose body ended before the arguments, or with arguments that were kept.
    fn start_cut(&mut self, end: End, out: &mut Vec<Event>) {
        match std::mem::replace(&mut self.arguments, Arguments::Missing) {
            Arguments::Kept(kept) if kept.first() == Some(&b'{') => {
                self.call.start(out);
                self.call.delta = kept;
            }
            Arguments::Ready(object) => {
                self.call.start(out);
                self.call.delta = object;
                self.arguments = Arguments::Sent;
            }
            Arguments::Missing if end == End::Output => self.call.start(out),
            // Half of a string that would hold the object is unusable, so the call stays malformed.
            other => self.arguments = other,
        }
    }
}
