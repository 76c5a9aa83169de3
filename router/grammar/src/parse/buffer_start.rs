//! Finds the marker, if any, at the start of the buffer.

use super::{BufferStart, Parser, State};
use crate::codec::{Body, Params};
use crate::format::{Markers, Region};
use crate::limits::{MAX_BLANKS, MAX_INDENT};
use crate::marks::{Follow, Mark, follow};
use crate::scan::{FRAME, framed};

/// Blanks allowed between a spelled call marker and what confirms it: as many as the grammar allows around a literal
/// and before the arguments.
const MARKER_GAP: usize = 3 * (MAX_BLANKS + 2 + MAX_INDENT);
/// Blanks allowed between the markers that end a raw value and what surrounds them.
const STRUCTURE_GAP: usize = 64;
/// Length limit of an argument's name, with the rest of its marker, for it to end a value without an end marker.
const LONGEST_KEY: usize = 128;
/// Length limit of a misspelled marker.
const LONGEST_TAG: usize = 64;

impl Parser {
    /// Finds what begins at the start of the buffer, where a marker could begin.
    pub(super) fn buffer_start(&mut self, last: bool) -> BufferStart {
        let rest = self.input.rest();
        if let Some((name, n)) = framed(rest) {
            self.work += n as u64;
            return match self.lex.marks.iter().find(|(_, m)| *m == name) {
                Some((mark, tok)) if self.counts(*mark, false) => BufferStart::Mark(*mark, tok, n),
                _ => BufferStart::Special(n),
            };
        }
        if self.format.markers == Markers::Special {
            return BufferStart::Other;
        }
        let mut partial = false;
        let mut found: Option<(Mark, &'static str)> = None;
        let mut work = 0;
        for &(mark, m) in &self.lex.marks {
            if !self.counts(mark, true) {
                continue;
            }
            let common = m.bytes().zip(rest).take_while(|(a, b)| a == *b).count();
            work += common as u64 + 1;
            if common == m.len() {
                work += (STRUCTURE_GAP + LONGEST_KEY) as u64;
                match self.confirmed(mark, m, &rest[m.len()..], last) {
                    Some(true) if found.is_none_or(|(_, f)| f.len() < m.len()) => found = Some((mark, m)),
                    Some(_) => {}
                    None => partial = true,
                }
            } else if common == rest.len() {
                partial = true;
            }
        }
        let seen = match found {
            Some((mark, m)) => BufferStart::Mark(mark, m, m.len()),
            None if partial && !last => BufferStart::Partial,
            None => self.misspelt(rest, last),
        };
        self.work += work;
        seen
    }

    /// A misspelled marker of the section, recognized by the prefix that all its markers share.
    fn misspelt(&self, rest: &[u8], last: bool) -> BufferStart {
        let Some(namespace) = &self.lex.namespace else { return BufferStart::Other };
        let outside = matches!(self.state, State::Gap(_)) || self.in_prose(Region::Text);
        if !outside || !self.parse_tools {
            return BufferStart::Other;
        }
        for (mark, prefix) in [(Mark::Begin, &namespace[0]), (Mark::End, &namespace[1])] {
            if prefix.as_bytes().starts_with(rest) && !last {
                return BufferStart::Partial;
            }
            let Some(tag) = rest.strip_prefix(prefix.as_bytes()) else { continue };
            let name =
                tag.iter().take(LONGEST_TAG).take_while(|b| b.is_ascii_alphabetic() || b"_- ".contains(b)).count();
            match tag.get(name) {
                Some(b'>') => return BufferStart::Mark(mark, "", prefix.len() + name + 1),
                None if name < LONGEST_TAG && !last => return BufferStart::Partial,
                _ => {}
            }
        }
        BufferStart::Other
    }

    /// Whether the text is a part of the letters of such a marker, or follows them undecided.
    pub(super) fn begins_marker(&self, rest: &[u8], is: impl Fn(Mark) -> bool) -> bool {
        let begins = |m: &str| m.as_bytes().starts_with(rest) || rest.starts_with(m.as_bytes());
        let spelled = self.format.markers != Markers::Special && !rest.is_empty() && framed(rest).is_none();
        spelled && self.lex.marks.iter().any(|(mark, m)| is(*mark) && self.counts(*mark, true) && begins(m))
    }

    /// Whether the text is a part of the letters of a marker that counts here.
    pub(super) fn is_piece_of_marker(&self, rest: &[u8]) -> bool {
        let piece = |m: &str| m.as_bytes().starts_with(rest);
        let spelled = self.format.markers != Markers::Special && !rest.is_empty();
        spelled && self.lex.marks.iter().any(|(mark, m)| self.counts(*mark, true) && piece(m))
    }

    pub(super) fn in_prose(&self, region: Region) -> bool {
        matches!(self.state, State::Prose) && self.region == region
    }

    fn params(&self) -> Option<&Params> {
        match &self.state {
            State::Body(body) => match &**body {
                Body::Params(params) => Some(params),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether a marker has a meaning in the current state. A special token is never text; letters are text if they
    /// have no meaning as a marker.
    fn counts(&self, mark: Mark, spelled: bool) -> bool {
        if self.head.is_some() && spelled {
            return false;
        }
        if let Some(params) = self.params() {
            return match mark {
                Mark::Begin | Mark::Open | Mark::Inner => !(spelled && params.in_value()),
                _ => mark.is_tool() || !(spelled || params.in_value()),
            };
        }
        let prose = matches!(self.state, State::Prose);
        match mark {
            Mark::Think | Mark::EndThink if !spelled => true,
            Mark::Think => prose && self.pristine,
            Mark::EndThink => self.in_prose(Region::Reasoning) || (prose && self.reasoning_left_open),
            Mark::TextOpen if spelled && !self.format.text.is_needed() => {
                self.in_prose(Region::Text) && !self.open && !self.wrapped
            }
            Mark::TextClose if spelled && !self.format.text.is_needed() => self.in_prose(Region::Text) && self.wrapped,
            Mark::TextOpen | Mark::TextClose => true,
            _ if !self.parse_tools => false,
            // A stray end marker right after a call.
            Mark::Close | Mark::End if spelled && prose => self.tried && !self.open && self.region == Region::Text,
            Mark::Param | Mark::ParamInner | Mark::ParamEnd | Mark::Argument if spelled => {
                matches!(self.state, State::Header(_))
            }
            _ => true,
        }
    }

    /// Whether letters that spell a marker are meant as one. None: wait.
    fn confirmed(&self, mark: Mark, tok: &'static str, after: &[u8], last: bool) -> Option<bool> {
        if let Some(params) = self.params()
            && params.in_value()
        {
            return self.ends_value(params, mark, tok, after, last);
        }
        // Inside reasoning, a marker may be a mere mention; a call's second marker may be anywhere.
        if mark == Mark::TextClose && !self.format.text.is_needed() {
            return self.structural(after, last, Mark::enters_calls);
        }
        let doubt = mark == Mark::Inner && matches!(self.state, State::Prose) || self.in_prose(Region::Reasoning);
        if mark.enters_calls() && doubt {
            self.follows(follow(self.format, mark, tok), after, last)
        } else {
            Some(true)
        }
    }

    fn follows(&self, follow: Follow, after: &[u8], last: bool) -> Option<bool> {
        let blanks = after.iter().take(MARKER_GAP).take_while(|b| b.is_ascii_whitespace()).count();
        let rest = &after[blanks..];
        if rest.is_empty() && blanks < MARKER_GAP {
            return if last { Some(false) } else { None };
        }
        let text = |t: &str| match t.as_bytes() {
            t if rest.starts_with(t) => Some(true),
            t if t.starts_with(rest) && !last => None,
            _ => Some(false),
        };
        match follow {
            Follow::Any => Some(true),
            Follow::Text(t) => text(t),
            Follow::Name => {
                let quoted = rest.strip_prefix(b"\"").or_else(|| rest.strip_prefix(b"'")).unwrap_or(rest);
                if self.tools.is_empty() {
                    let word = |b: &&u8| b.is_ascii_alphanumeric() || b"_-./:".contains(b);
                    let n = quoted.iter().take(LONGEST_TAG).take_while(word).count();
                    return match quoted.get(n) {
                        Some(b) => Some(n > 0 && b">\"'\n({<".contains(b)),
                        None => {
                            if last {
                                Some(n > 0)
                            } else {
                                None
                            }
                        }
                    };
                }
                let mut partial = false;
                for tool in self.tools.iter() {
                    let name = tool.name.as_bytes();
                    partial |= name.starts_with(quoted);
                    let Some(rest) = quoted.strip_prefix(name) else { continue };
                    let rest = rest.strip_prefix(b"\"").or_else(|| rest.strip_prefix(b"'")).unwrap_or(rest);
                    match rest.trim_ascii_start().first() {
                        Some(end) if b">({<".contains(end) || rest.starts_with(b"\n") => return Some(true),
                        Some(_) => {}
                        None => partial = true,
                    }
                }
                if partial && !last { None } else { Some(false) }
            }
        }
    }

    /// A raw value may contain the letters of markers. They end it only in certain places: an argument's end before
    /// another structural marker or at the end; the call's end, if the argument's was omitted, before anything that may
    /// follow a call; another argument's start if the schema has that argument.
    fn ends_value(&self, params: &Params, mark: Mark, tok: &'static str, after: &[u8], last: bool) -> Option<bool> {
        match mark {
            Mark::ParamEnd => {
                let ok = |m: Mark| matches!(m, Mark::Param | Mark::Close | Mark::End) || m.enters_calls();
                self.structural(after, last, ok)
            }
            Mark::Close => {
                let mut after = after;
                let at = self.lex.post.iter().position(|t| *t == tok)?;
                for next in &self.lex.post[at + 1..] {
                    let blanks = after.iter().take(STRUCTURE_GAP).take_while(|b| b.is_ascii_whitespace()).count();
                    let rest = &after[blanks..];
                    match rest.strip_prefix(next.as_bytes()) {
                        Some(rest) => after = rest,
                        None if next.as_bytes().starts_with(rest) => return last.then_some(true),
                        None => return Some(false),
                    }
                }
                self.structural(after, last, |m| m == Mark::End || m.enters_calls())
            }
            Mark::End => self.structural(after, last, |_| false),
            Mark::Param => {
                let shape = self.lex.shape?;
                let most = &after[..after.len().min(LONGEST_KEY)];
                let head = String::from_utf8_lossy(most);
                let end = match shape.key_mark {
                    Some(mark) => head.find(mark),
                    None => shape.key_end(&head),
                };
                match end {
                    Some(n) => Some(params.expects(&head[..n])),
                    None if most.len() < LONGEST_KEY && !last => None,
                    None => Some(false),
                }
            }
            _ => Some(false),
        }
    }

    /// Whether only blanks precede one of these markers, a special token, or the end.
    fn structural(&self, after: &[u8], last: bool, ok: impl Fn(Mark) -> bool) -> Option<bool> {
        let blanks = after.iter().take(STRUCTURE_GAP).take_while(|b| b.is_ascii_whitespace()).count();
        let rest = &after[blanks..];
        match rest.first() {
            None => return last.then_some(true),
            Some(&FRAME) => return Some(true),
            Some(_) => {}
        }
        let mut marks = self.lex.marks.iter().filter(|(m, _)| ok(*m)).map(|(_, m)| m.as_bytes());
        if marks.clone().any(|m| rest.starts_with(m)) {
            return Some(true);
        }
        if marks.any(|m| m.starts_with(rest)) { last.then_some(true) } else { Some(false) }
    }
}
