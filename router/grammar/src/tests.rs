//! Shared by the tests: a seeded generator, ways to split an output, and a canonical form of events.

mod closure;
mod cut;
mod detection;
pub mod enforce;
mod families;
mod fuzz;
mod heads;
mod heap;
mod lenient;
mod loading;
mod mutation;
mod newer_families;
mod properties;
mod templates;

use crate::{Event, Format, OwnedPiece, Parser, ParserOptions, Region, Tool};

/// Number of random cases of a test; the environment can raise it.
pub fn cases(usual: u64) -> u64 {
    std::env::var("REIN_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Whether ids of calls are on the wire.
pub fn wire_ids(format: &Format) -> bool {
    let member = |m: &crate::Member| m.id().is_some();
    format.ids == crate::CallIdStyle::Header
        || format.call.contains(&crate::Step::Id)
        || matches!(format.codec(), crate::Codec::Object { members, .. } if members.iter().any(member))
}

/// An output in which `«x»` is the special token `x` and everything else is text.
pub fn pieces(output: &str) -> Vec<OwnedPiece> {
    let mut out = Vec::new();
    for part in output.split_inclusive('»') {
        let (text, special) = match part.split_once('«') {
            Some((text, special)) => (text, Some(special.trim_end_matches('»'))),
            None => (part, None),
        };
        if !text.is_empty() {
            out.push(OwnedPiece::Bytes(text.as_bytes().to_vec()));
        }
        out.extend(special.map(|s| OwnedPiece::Special(s.to_owned())));
    }
    out
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Splits text pieces to lengths of 1 to `longest` bytes; special tokens stay whole.
pub fn cut(pieces: &[OwnedPiece], longest: usize, random: &mut Random) -> Vec<OwnedPiece> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            OwnedPiece::Special(_) => out.push(piece.clone()),
            OwnedPiece::Bytes(bytes) => {
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    let (head, tail) = rest.split_at((1 + random.below(longest)).min(rest.len()));
                    out.push(OwnedPiece::Bytes(head.to_vec()));
                    rest = tail;
                }
            }
        }
    }
    out
}

/// The same output split in several ways: as rendered (at markers), by byte, roughly by token, at random.
pub fn cuts(pieces: &[OwnedPiece], random: &mut Random) -> Vec<Vec<OwnedPiece>> {
    vec![pieces.to_vec(), cut(pieces, 1, random), cut(pieces, 5, random), cut(pieces, 60, random)]
}

pub fn options(start: Region, tools: &[&str]) -> ParserOptions {
    let tools =
        tools.iter().map(|name| Tool { name: (*name).to_owned(), parameters: None, ..Tool::default() }).collect();
    ParserOptions { start, tools, parse_tools: true }
}

pub fn parse(format: &'static Format, options: ParserOptions, pieces: &[OwnedPiece]) -> Vec<Event> {
    let mut parser = Parser::new(format, options);
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece.as_piece(), &mut events);
    }
    parser.finish(&mut events);
    fold(&events)
}

/// Joins adjacent deltas, and checks invariants of every list of events.
pub fn fold(events: &[Event]) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::new();
    for event in events {
        match (out.last_mut(), event) {
            (_, Event::TextDelta(s) | Event::ReasoningDelta(s) | Event::ArgumentsDelta { text: s, .. })
                if s.is_empty() =>
            {
                panic!("empty delta in {events:?}");
            }
            (Some(Event::TextDelta(a)), Event::TextDelta(b)) => a.push_str(b),
            (Some(Event::ReasoningDelta(a)), Event::ReasoningDelta(b)) => a.push_str(b),
            (Some(Event::ArgumentsDelta { text: a, .. }), Event::ArgumentsDelta { text: b, .. }) => a.push_str(b),
            _ => out.push(event.clone()),
        }
    }
    check_pairs(&out);
    out
}

/// Regions open and close alternately, calls are numbered, and a complete call's arguments are an object.
fn check_pairs(events: &[Event]) {
    let mut calls = 0;
    let mut iter = events.iter();
    while let Some(event) = iter.next() {
        match event {
            Event::ReasoningStart => {
                assert!(matches!(iter.next(), Some(Event::ReasoningDelta(_))), "{events:?}");
                assert_eq!(iter.next(), Some(&Event::ReasoningEnd), "{events:?}");
            }
            Event::TextStart => {
                assert!(matches!(iter.next(), Some(Event::TextDelta(_))), "{events:?}");
                assert_eq!(iter.next(), Some(&Event::TextEnd), "{events:?}");
            }
            Event::ToolCallStart { index, .. } => {
                assert_eq!(*index, calls, "{events:?}");
                calls += 1;
                let mut next = iter.next();
                let mut arguments = "";
                if let Some(Event::ArgumentsDelta { text, .. }) = next {
                    arguments = text;
                    next = iter.next();
                }
                let Some(Event::ToolCallEnd { complete, .. }) = next else { panic!("{events:?}") };
                let value = serde_json::from_str::<serde_json::Value>(arguments);
                assert_eq!(*complete, value.is_ok_and(|v| v.is_object()) && *complete, "{events:?}");
            }
            Event::Malformed(text) => assert!(!text.trim().is_empty()),
            other => panic!("{other:?} in {events:?}"),
        }
    }
}

/// A short form of events: `R(..)` reasoning, `T(..)` text, `C(name|id|arguments)` a call, `C?` an incomplete one,
/// `M(..)`.
pub fn short(events: &[Event]) -> String {
    let mut out = String::new();
    let (mut call, mut arguments) = (String::new(), String::new());
    for event in events {
        match event {
            Event::ReasoningDelta(s) => out.push_str(&format!("R({s})")),
            Event::TextDelta(s) => out.push_str(&format!("T({s})")),
            Event::ToolCallStart { id, name, .. } => call = format!("{name}|{}|", id.as_deref().unwrap_or("-")),
            Event::ArgumentsDelta { text, .. } => arguments.push_str(text),
            Event::ToolCallEnd { complete, .. } => {
                let mark = if *complete { "C" } else { "C?" };
                out.push_str(&format!("{mark}({call}{})", std::mem::take(&mut arguments)));
            }
            Event::Malformed(s) => out.push_str(&format!("M({s})")),
            _ => {}
        }
    }
    out
}
