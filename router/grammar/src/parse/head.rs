//! Parses heads: words between two markers that together tell what begins or ends.

use super::{Cause, Head, Parser, State};
use crate::codec::{Body, End, Progress};
use crate::event::Event;
use crate::format::{Region, Step};
use crate::header::slots;
use crate::marks::{Mark, Phrase};
use crate::scan::framed;

impl Parser {
    /// A special token that is not a mark: part of a head, or nothing. Inside a raw value it counts as its letters.
    pub(super) fn take_special(&mut self, n: usize, out: &mut Vec<Event>) {
        let Some((name, _)) = framed(self.input.rest()) else { return };
        let name = name.to_owned();
        self.input.consume(n);
        self.note(&name, false);
        if let Some(blocks) = &self.lex.blocks {
            if let Some(opener) = blocks.openers.iter().find(|o| **o == name).copied() {
                let begins = blocks.phrases.iter().any(|p| p.opener == opener);
                let calls = blocks.call().is_some_and(|p| p.opener == opener);
                if let Some(head) = &mut self.head {
                    if begins && head.opener.is_some() {
                        head.earlier.push(std::mem::take(&mut head.text));
                    } else {
                        head.text.push(' ');
                        head.typed |= !begins && self.format.call.contains(&Step::Tok(opener));
                    }
                    head.opener = if begins { Some(opener) } else { head.opener };
                    return;
                }
                let typed = !begins && self.format.call.contains(&Step::Tok(opener));
                let mut text = String::new();
                if (calls || typed) && !self.lead_in.trim().is_empty() {
                    text = std::mem::take(&mut self.lead_in) + " ";
                }
                self.flush_lead_in(out);
                self.head = Some(Head { opener: begins.then_some(opener), text, typed, ..Head::default() });
                return;
            }
            // Without the marker before them, the words alone tell what begins.
            let end = blocks.ends.contains(&name.as_str());
            if end && self.head.is_none() && !self.lead_in.trim().is_empty() {
                self.head = Some(Head { text: std::mem::take(&mut self.lead_in), ..Head::default() });
            }
            if let Some(head) = &mut self.head {
                if end {
                    if let Some(head) = self.head.take() {
                        self.end_head(&head, out);
                    }
                } else {
                    head.text.push(' ');
                }
                return;
            }
        }
        if let State::Header(parts) = &mut self.state {
            parts.push(("", String::new()));
        }
        if let State::Body(body) = &mut self.state
            && let Body::Params(params) = &mut **body
            && params.in_value()
        {
            params.text(&name);
        }
        self.take_string_mark(&name, out);
    }

    /// The mark of a string counts as its letters.
    fn take_string_mark(&mut self, name: &str, out: &mut Vec<Event>) {
        let State::Body(body) = &mut self.state else { return };
        let Body::Bare(bare) = &mut **body else { return };
        if bare.is_mark(name) && !name.bytes().all(|b| bare.feed(b, out) != Progress::Bad) {
            self.leave_body(0, End::Broken, out);
        }
    }

    /// The words between two markers are complete.
    fn end_head(&mut self, head: &Head, out: &mut Vec<Event>) {
        let joined = self.join_head(head, out);
        let head = joined.as_ref().unwrap_or(head);
        if self.parse_tools && self.is_foreign(head) {
            return self.foreign_head(head, out);
        }
        let Some(blocks) = &self.lex.blocks else { return };
        let phrase = blocks.classify(head.opener, &head.text).map(|p| (p.mark, p.label().is_some()));
        if !self.parse_tools && phrase.is_some_and(|(mark, _)| mark.is_tool()) {
            // Without tools there are no calls: the text of a call is dropped.
            return match phrase {
                Some((Mark::Open, _)) => self.foreign_head(head, out),
                _ => self.drop_head(&head.text, out),
            };
        }
        match phrase {
            // Uses the whole head.
            Some((mark, true)) => self.take_mark(mark, "", false, Some(&head.text), out),
            Some((mark, false)) => {
                self.drop_head(&head.text, out);
                self.take_mark(mark, "", false, None, out);
            }
            // The format does not have this block: its text is text.
            None => {
                if let State::Prose = self.state {
                    self.end_prose(Cause::Marker, out);
                    self.region = Region::Text;
                    self.wrapped = true;
                }
                self.drop_head(&head.text, out);
            }
        }
    }

    /// Several heads in a row: the last one counts. Only a declared tool that an earlier one names is called, unless
    /// the last one tells what begins instead.
    fn join_head(&mut self, head: &Head, out: &mut Vec<Event>) -> Option<Head> {
        if head.earlier.is_empty() {
            return None;
        }
        let call = self.lex.blocks.as_ref().and_then(|b| b.call());
        let own = |p: &Phrase| p.words().any(|w| head.text.split_whitespace().any(|h| h == w));
        let calls = call.is_some_and(|p| head.text.trim().is_empty() || own(p));
        let named = |text: &&String| {
            let name = call.and_then(|p| slots(p.steps, text).name);
            name.is_some_and(|name| self.declares(&name))
        };
        let found = head.earlier.iter().rposition(|text| calls && named(&text));
        let mut text = head.text.clone();
        for (i, earlier) in head.earlier.iter().enumerate() {
            if Some(i) == found {
                text = format!("{earlier} {text}");
            } else {
                self.drop_head(earlier, out);
            }
        }
        Some(Head { opener: head.opener, text, earlier: Vec::new(), typed: head.typed })
    }

    /// Whether the head of a call names something that is not a tool.
    fn is_foreign(&self, head: &Head) -> bool {
        let Some(phrase) = self.lex.blocks.as_ref().and_then(|b| b.classify(head.opener, &head.text)) else {
            return false;
        };
        let Some((key, prefix)) =
            phrase.attribute().filter(|(_, prefix)| phrase.mark == Mark::Open && !prefix.is_empty())
        else {
            return false;
        };
        let name = slots(phrase.steps, &head.text).name.unwrap_or_default();
        let written = head.text.contains(&format!("{key}{prefix}"));
        !self.tools.is_empty() && !written && !self.declares(&name) && !self.declares(&format!("{prefix}{name}"))
    }

    /// Output for an unknown recipient is reasoning or text if the rest of the head tells so; otherwise it is dropped.
    fn foreign_head(&mut self, head: &Head, out: &mut Vec<Event>) {
        let Some(blocks) = &self.lex.blocks else { return };
        let key = blocks.call().and_then(Phrase::label).unwrap_or_default();
        let addressed = |word: &&str| word.starts_with(key);
        let rest: Vec<&str> = head.text.split_whitespace().filter(|w| !addressed(w)).collect();
        let rest = rest.join(" ");
        let region = blocks.classify(head.opener, &rest).filter(|p| p.label().is_none()).map(|p| p.mark);
        let says = |s: &Step| matches!(s, Step::Lit(l) if rest.split_whitespace().any(|w| w == l.trim()));
        let answers = region == Some(Mark::Think) || self.format.text.open.iter().any(says);
        self.leave_all(out);
        match region {
            Some(mark) if answers && !head.typed && self.unknown_words(&rest).is_empty() => {
                let words: Vec<&str> = head.text.split_whitespace().filter(addressed).collect();
                self.stray(&words.join(" "), out);
                self.take_mark(mark, "", false, None, out);
            }
            _ => self.state = State::Gap(head.text.trim().to_owned() + " "),
        }
    }

    /// Ends whatever is open.
    fn leave_all(&mut self, out: &mut Vec<Event>) {
        if let State::Body(_) = self.state {
            self.leave_body(0, End::Marker, out);
        }
        match std::mem::replace(&mut self.state, State::Prose) {
            State::Gap(junk) => self.malformed(&junk, out),
            State::Header(parts) => {
                let junk: String = parts.into_iter().map(|(_, text)| text).collect();
                self.malformed(&junk, out);
            }
            State::Prose | State::List(_) | State::Opening(_) | State::Body(_) => {
                self.flush_lead_in(out);
                self.end_prose(Cause::Marker, out);
            }
        }
        self.region = Region::Text;
    }

    /// A head that never ended.
    pub(super) fn give_up_head(&mut self, head: &Head, out: &mut Vec<Event>) {
        for text in head.earlier.iter().chain([&head.text]) {
            self.drop_head(text, out);
        }
    }

    /// A head without meaning, except for words that belong to none.
    pub(super) fn drop_head(&mut self, text: &str, out: &mut Vec<Event>) {
        if !self.unknown_words(text).is_empty() {
            self.stray(text.trim(), out);
        }
    }

    pub(super) fn unknown_words(&self, text: &str) -> String {
        let literals = self.format.all_steps().filter_map(|s| if let Step::Lit(l) = s { Some(*l) } else { None });
        let known: Vec<&str> = literals.flat_map(str::split_whitespace).collect();
        let words: Vec<&str> = text.split_whitespace().filter(|w| !known.contains(w)).collect();
        words.join(" ")
    }

    /// Words where only markers are expected.
    fn stray(&mut self, words: &str, out: &mut Vec<Event>) {
        if words.is_empty() {
            return;
        }
        match &mut self.state {
            State::Prose | State::List(_) | State::Opening(_) => {
                self.flush_lead_in(out);
                self.end_prose(Cause::Marker, out);
                self.malformed(words, out);
            }
            State::Gap(junk) => junk.push_str(words),
            State::Header(parts) => {
                if let Some((_, text)) = parts.last_mut() {
                    text.push_str(words);
                }
            }
            State::Body(body) => match &mut **body {
                Body::Params(params) => params.text(words),
                _ => {
                    self.leave_body(0, End::Marker, out);
                    self.stray(words, out);
                }
            },
        }
    }
}
