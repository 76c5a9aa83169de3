//! Parses calls without a marker at the beginning of an output, in formats whose models write them: objects that name a
//! declared tool, with nothing around them but blanks, commas, brackets and the fences of code blocks.

use super::{Cause, Parser, State, Trial};
use crate::event::Event;
use crate::scan::{FRAME, text};
use crate::unmarked::{OPENING_FENCE, is_opening_layout};

/// Length limit of layout before a call.
const LONGEST_LAYOUT: usize = 256;

impl Parser {
    /// Whether the output may begin with calls here.
    pub(super) fn may_open(&self) -> bool {
        self.format.opens && self.parse_tools && self.pristine && !self.wrapped
    }

    /// Reads layout up to the next call, or up to what shows that none begins. False: more input is needed.
    pub(super) fn advance_opening(&mut self, last: bool, out: &mut Vec<Event>) -> bool {
        // From the beginning: a fence and its word may come in parts.
        let State::Opening(raw) = &self.state else { return false };
        let known = raw.len();
        let most = self.input.rest().len().min(2 * LONGEST_LAYOUT);
        let whole = [raw.as_bytes(), &self.input.rest()[..most]].concat();
        let mut n = 0;
        while n <= LONGEST_LAYOUT {
            let left = &whole[n..];
            n += match left.first() {
                Some(b) if is_opening_layout(*b) => 1,
                Some(_) if left.starts_with(OPENING_FENCE.as_bytes()) => {
                    let word = left[OPENING_FENCE.len()..].iter();
                    OPENING_FENCE.len() + word.take_while(|b| b.is_ascii_alphabetic() || **b == b'_').count()
                }
                _ => break,
            };
        }
        // What is decided was examined before.
        n = n.max(known);
        let left = &whole[n..];
        let undecided = left.is_empty() || OPENING_FENCE.as_bytes().starts_with(left);
        let begins = left.first() == Some(&b'{') && n <= LONGEST_LAYOUT;
        let marked = left.first() == Some(&FRAME);
        let raw = text(&whole[..n]);
        self.work += n as u64 + 1;
        self.input.consume(n - known);
        if undecided && n <= LONGEST_LAYOUT && !last {
            self.state = State::Opening(raw);
            return false;
        }
        self.state = State::Prose;
        if begins {
            self.trial = Some(Trial { raw, explicit: false, marked: false });
            self.opening = true;
            self.begin_body(None, None, "", out);
        } else {
            self.end_opening(&raw, marked, out);
        }
        true
    }

    /// No call follows. After calls, the end of the last line and of a code block are layout.
    pub(super) fn end_opening(&mut self, raw: &str, marked: bool, out: &mut Vec<Event>) {
        (self.pristine, self.opening) = (false, false);
        let rest = if self.calls > 0 { after_calls(raw) } else { raw };
        if marked && rest.trim().is_empty() {
            return;
        }
        self.prose(rest, out);
    }

    /// A call without a marker has ended, or turned out to be text.
    pub(super) fn opened(&mut self, out: &mut Vec<Event>) {
        if self.trial.is_some() {
            self.opening = false;
            return self.release(out);
        }
        self.end_prose(Cause::Call, out);
        self.state = State::Opening(String::new());
    }
}

/// What is left of text after calls without the layout that closes them: brackets, a fence, and one line break.
fn after_calls(raw: &str) -> &str {
    let closed = raw.trim_start_matches(|c: char| c.is_whitespace() || c == ']');
    match closed.strip_prefix(OPENING_FENCE) {
        // The fence of another block has a word.
        Some(rest) if !rest.starts_with(|c: char| c.is_ascii_alphabetic()) => rest.trim_start_matches('\n'),
        _ => closed,
    }
}
