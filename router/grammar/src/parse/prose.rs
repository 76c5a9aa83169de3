//! Parses reasoning and text.

use std::borrow::Cow;

use super::{Cause, List, Parser, State, Trial};
use crate::code_blocks::{CodeBlocks, TextPlace};
use crate::codec::json::Json;
use crate::event::Event;
use crate::format::Region;
use crate::marks::{Mark, Phrase};

/// Length limit of text between blocks that is kept because a head may begin with it.
const LONGEST_LEAD_IN: usize = 256;

impl Parser {
    /// Reads text where no call is open. Returns the number of consumed bytes.
    pub(super) fn prose_text(&mut self, s: &str, out: &mut Vec<Event>) -> usize {
        if self.region == Region::Text {
            if !self.open {
                if self.may_open() {
                    self.state = State::Opening(String::new());
                    return 0;
                }
                if let Some(n) = self.parse_tools.then(|| self.bare_call(s, out)).flatten() {
                    return n;
                }
                if !self.wrapped && self.keep_lead_in(s, out) {
                    return s.len();
                }
            }
            if self.parse_tools {
                return self.text_before_call(s, out);
            }
        }
        self.prose(s, out);
        s.len()
    }

    /// Reads text up to where a call may begin; if that is at once, tries a call.
    fn text_before_call(&mut self, s: &str, out: &mut Vec<Event>) -> usize {
        let before = self.lex.bare.and_then(|bare| s.find(bare)).unwrap_or(s.len());
        if before == 0 {
            self.try_call();
        } else {
            self.prose(&s[..before], out);
        }
        before
    }

    fn try_call(&mut self) {
        self.trial = Some(Trial { raw: String::new(), explicit: false, marked: false });
        self.state = State::Gap(String::new());
    }

    /// The text starts like a call without a marker.
    fn bare_call(&mut self, s: &str, out: &mut Vec<Event>) -> Option<usize> {
        let body = s.trim_start();
        let blanks = s.len() - body.len();
        let first = body.chars().next();
        let list = self.lex.bare_list && !self.tried && first == Some('[');
        if !list && (first.is_none() || first != self.lex.bare) {
            return None;
        }
        if blanks > 0 {
            self.prose(&s[..blanks], out);
        } else if list {
            self.state = State::List(List { raw: Vec::new(), json: Json::new(), done: false, checked: false });
        } else {
            self.try_call();
        }
        Some(blanks)
    }

    /// Between blocks, the attribute that names a tool may precede the marker of the block.
    fn keep_lead_in(&mut self, s: &str, out: &mut Vec<Event>) -> bool {
        let Some(label) = self.lex.blocks.as_ref().and_then(|b| b.call()).and_then(|p| p.label()) else { return false };
        self.lead_in.push_str(s);
        let known = self.lex.blocks.iter().flat_map(|b| &b.phrases).flat_map(Phrase::words);
        let known: Vec<&str> = known.collect();
        let mut words = self.lead_in.split_inclusive(char::is_whitespace).map(str::trim).filter(|w| !w.is_empty());
        let ended = self.lead_in.ends_with(char::is_whitespace);
        let last = words.clone().next_back();
        // After the attribute, anything may be a part of the head.
        let addressed = words.clone().any(|word| word.starts_with(label));
        let begins = words.all(|word| match Some(word) == last && !ended {
            true => label.starts_with(word) || known.iter().any(|known| known.starts_with(word)),
            false => known.contains(&word),
        });
        let heads = self.lead_in.split_whitespace().take_while(|word| !word.starts_with(label));
        let may_be = match addressed {
            true => heads.clone().all(|word| known.contains(&word)),
            false => begins && self.lead_in.len() < LONGEST_LEAD_IN,
        };
        if !may_be {
            self.flush_lead_in(out);
        }
        true
    }

    pub(super) fn flush_lead_in(&mut self, out: &mut Vec<Event>) {
        let text = std::mem::take(&mut self.lead_in);
        if !text.is_empty() {
            self.prose(&text, out);
        }
    }

    pub(super) fn mark_in_prose(
        &mut self,
        mark: Mark,
        tok: &'static str,
        spelled: bool,
        head: Option<&str>,
        out: &mut Vec<Event>,
    ) {
        if matches!(mark, Mark::Think | Mark::EndThink) {
            self.code = None;
        }
        match (mark, self.region) {
            (Mark::Begin | Mark::Open | Mark::Inner, region) => {
                if self.lex.doubtful {
                    let raw = if spelled { tok.to_owned() } else { String::new() };
                    self.trial = Some(Trial { raw, explicit: true, marked: !spelled });
                } else {
                    self.end_prose(Cause::Call, out);
                    self.reasoning_left_open |= region == Region::Reasoning;
                    self.region = Region::Text;
                }
                self.mark_in_gap(mark, tok, head, out);
            }
            (Mark::Think, Region::Text) => {
                self.end_prose(Cause::Marker, out);
                self.region = Region::Reasoning;
                self.title = self.lex.title;
            }
            (Mark::EndThink, Region::Reasoning) => {
                self.end_prose(Cause::Marker, out);
                self.region = Region::Text;
                self.wrapped = false;
                self.trim_text = self.trims(2);
            }
            (Mark::EndThink, Region::Text) if self.lex.blocks.is_some() => {
                self.end_prose(Cause::Marker, out);
                self.wrapped = false;
            }
            (Mark::EndThink, Region::Text) => self.close_left_reasoning(),
            (Mark::TextOpen, _) => {
                self.end_prose(Cause::Marker, out);
                self.region = Region::Text;
                self.wrapped = true;
            }
            (Mark::TextClose, Region::Text) => {
                self.end_prose(Cause::Marker, out);
                self.wrapped = false;
                self.trim_text |= !self.format.text.is_needed();
            }
            // Stray marks: a second start of the reasoning, or the end of a section or call that is not open.
            _ => self.drop_head(head.unwrap_or_default(), out),
        }
        self.pristine = false;
    }

    /// The end marker of reasoning that a call had ended.
    fn close_left_reasoning(&mut self) {
        if std::mem::take(&mut self.reasoning_left_open) && !self.open {
            self.held.clear();
            self.trim_text = self.trims(2);
        }
    }

    /// Whether newlines are layout: after the start of the reasoning, before its end, after its end.
    fn trims(&self, place: usize) -> bool {
        self.format.reasoning.as_ref().is_some_and(|r| !r.layout[place].is_empty())
    }

    /// Reports text of the current region, without the layout around it.
    pub(super) fn prose(&mut self, s: &str, out: &mut Vec<Event>) {
        if self.lex.sees_code {
            let place = self.place();
            self.code.get_or_insert_with(|| CodeBlocks::new(place)).feed(s);
        }
        let blank = [' ', '\t', '\n', '\r'];
        let reasoning = self.region == Region::Reasoning;
        let titled = self.without_title(s);
        let mut s = titled.as_ref();
        if !self.open {
            if reasoning && self.trims(0) || !reasoning && self.trim_text && self.held.is_empty() {
                s = s.trim_start_matches('\n');
            }
            if !reasoning {
                let body = s.trim_start_matches(blank);
                self.held.push_str(&s[..s.len() - body.len()]);
                s = body;
            }
            // Newlines that may be layout before the end do not begin reasoning.
            if reasoning && self.trims(1) && s.trim_end_matches('\n').is_empty() {
                self.held.push_str(s);
                return;
            }
            if s.is_empty() {
                return;
            }
            self.open = true;
            self.pristine = false;
            self.trim_text = false;
            out.push(if reasoning { Event::ReasoningStart } else { Event::TextStart });
        }
        let may_trail = if reasoning { self.trims(1) } else { self.parse_tools && !self.format.lead.is_empty() };
        let body = if may_trail { s.trim_end_matches('\n') } else { s };
        if !body.is_empty() {
            let delta = std::mem::take(&mut self.held);
            // The result of one piece is reported at once.
            let told = out.get_mut(self.told..).and_then(<[Event]>::last_mut);
            match told {
                Some(Event::ReasoningDelta(text)) if reasoning => text.extend([&delta, body]),
                Some(Event::TextDelta(text)) if !reasoning => text.extend([&delta, body]),
                _ if reasoning => out.push(Event::ReasoningDelta(delta + body)),
                _ => out.push(Event::TextDelta(delta + body)),
            }
        }
        self.held.push_str(&s[body.len()..]);
    }

    /// Reasoning without the literal that follows its marker.
    fn without_title<'s>(&mut self, s: &'s str) -> Cow<'s, str> {
        let left = std::mem::take(&mut self.title);
        if left.is_empty() || self.region != Region::Reasoning {
            return Cow::Borrowed(s);
        }
        if let Some(rest) = left.strip_prefix(s) {
            self.title = rest;
            return Cow::Borrowed("");
        }
        match s.strip_prefix(left) {
            Some(rest) => Cow::Borrowed(rest),
            None => Cow::Owned(self.lex.title[..self.lex.title.len() - left.len()].to_owned() + s),
        }
    }

    fn place(&self) -> TextPlace {
        match self.region {
            Region::Reasoning => TextPlace::Reasoning,
            Region::Text if self.after_call => TextPlace::AfterCall,
            Region::Text => TextPlace::Beginning,
        }
    }

    /// Whether a call may begin at the end of the prose.
    pub(super) fn is_outside_code(&self) -> bool {
        self.code.as_ref().is_none_or(CodeBlocks::is_outside)
    }

    pub(super) fn end_prose(&mut self, cause: Cause, out: &mut Vec<Event>) {
        (self.code, self.after_call) = (None, cause == Cause::Call);
        let mut held = std::mem::take(&mut self.held);
        if self.region == Region::Reasoning {
            if std::mem::take(&mut self.open) {
                out.push(Event::ReasoningEnd);
            }
            return;
        }
        if !self.open {
            // Blanks alone are layout, unless there is nothing else.
            if cause != Cause::Output || self.tried || held.is_empty() {
                return;
            }
            out.push(Event::TextStart);
        } else if cause == Cause::Call {
            // Models write less of it than templates do.
            let lead = self.format.lead;
            let n = (0..=lead.len()).rev().find(|n| lead.get(..*n).is_some_and(|l| held.ends_with(l))).unwrap_or(0);
            held.truncate(held.len() - n);
        }
        self.open = false;
        if !held.is_empty() {
            out.push(Event::TextDelta(held));
        }
        out.push(Event::TextEnd);
    }
}
