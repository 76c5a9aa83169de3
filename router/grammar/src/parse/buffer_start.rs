//! Finds the marker, if any, at the start of the buffer.

use super::{BufferStart, Parser, State};
use crate::announced::{begins, has_header, is_before_name, until_bare_name};
use crate::code_blocks::CodeBlocks;
use crate::codec::{Body, Params};
use crate::format::{Markers, Region, marker};
use crate::marks::Mark;
use crate::scan::{FRAME, framed};

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
        let gap = matches!(self.state, State::Gap(_));
        let outside = gap || self.in_prose(Region::Text) && self.is_outside_code();
        if !outside || !self.parse_tools {
            return BufferStart::Other;
        }
        // As `counts`.
        let is_after_call = gap || self.tried && !self.open;
        for (mark, prefix) in [(Mark::Begin, &namespace[0]), (Mark::End, &namespace[1])] {
            if mark == Mark::End && !is_after_call {
                continue;
            }
            if prefix.as_bytes().starts_with(rest) && !last {
                return BufferStart::Partial;
            }
            let Some(tag) = rest.strip_prefix(prefix.as_bytes()) else { continue };
            let name =
                tag.iter().take(LONGEST_TAG).take_while(|b| b.is_ascii_alphabetic() || b"_- ".contains(b)).count();
            match tag.get(name) {
                Some(b'>') => {
                    let n = prefix.len() + name + 1;
                    // As it is written: text that the grammar does not know.
                    let begins = match self.format.begin.first().and_then(marker) {
                        Some(tok) if mark == Mark::Begin && !gap => begins(self.format, tok, &rest[n..], true),
                        _ => Some(true),
                    };
                    match begins.or(last.then_some(self.cut)) {
                        Some(true) => return BufferStart::Mark(mark, "", n),
                        Some(false) => {}
                        None => return BufferStart::Partial,
                    }
                }
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
            return if params.in_json_string() { Some(false) } else { self.ends_value(params, mark, tok, after, last) };
        }
        if mark == Mark::TextClose && !self.format.text.is_needed() {
            return self.structural(after, last, Mark::enters_calls);
        }
        // In prose, a marker may be a mere mention.
        if !mark.enters_calls() || !matches!(self.state, State::Prose) {
            return Some(true);
        }
        if !self.is_outside_code() {
            return Some(false);
        }
        // In a code block that may enclose calls, the grammar takes text for anything else.
        let as_written = self.code.as_ref().is_some_and(CodeBlocks::is_enclosing);
        let begins = match (mark, has_header(self.format, tok)) {
            (Mark::Inner, _) if is_before_name(self.format, tok) => self.names(after),
            (_, false) if as_written && !self.tools.is_empty() => self.begins_name(tok, after),
            _ => begins(self.format, tok, after, as_written),
        };
        // What more output could have made a call is a call.
        begins.or(last.then_some(self.cut))
    }

    /// Whether the name of a tool follows: a declared one, if there are any. None: more of it must be known.
    fn names(&self, after: &[u8]) -> Option<bool> {
        let unquoted = |text: &'_ [u8]| text.strip_prefix(b"\"").or_else(|| text.strip_prefix(b"'")).map_or(0, |_| 1);
        let quoted = &after[unquoted(after)..];
        if self.tools.is_empty() {
            let word = |b: &&u8| b.is_ascii_alphanumeric() || b"_-./:".contains(b);
            let n = quoted.iter().take(LONGEST_TAG).take_while(word).count();
            return quoted.get(n).map(|end| n > 0 && b">\"'\n".contains(end));
        }
        let mut partial = false;
        for tool in self.tools.iter() {
            let name = tool.name.as_bytes();
            partial |= name.starts_with(quoted);
            let Some(rest) = quoted.strip_prefix(name) else { continue };
            match rest[unquoted(rest)..].iter().find(|b| !b" \t".contains(b)) {
                Some(b'>' | b'\n') => return Some(true),
                Some(_) => {}
                None => partial = true,
            }
        }
        (!partial).then_some(false)
    }

    /// Whether the text begins with the name of a tool. None: more of it must be known.
    fn begins_name(&self, tok: &str, after: &[u8]) -> Option<bool> {
        let blanks = !until_bare_name(self.format, tok).is_empty();
        let after = if blanks { after.trim_ascii_start() } else { after };
        let mut names = self.tools.iter().map(|tool| tool.name.as_bytes());
        match names.clone().any(|name| after.starts_with(name)) {
            true => Some(true),
            false => (!names.any(|name| name.starts_with(after))).then_some(false),
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
