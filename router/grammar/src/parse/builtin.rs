//! Parses the calls of built-in tools after a special token.

use super::gap::LONGEST_NAME;
use super::{Parser, State};
use crate::codec::{Body, Code, Python};
use crate::event::Event;
use crate::format::{Codec, Step};
use crate::header::is_plausible;

/// What the text after the token is so far.
#[derive(Debug, PartialEq, Eq)]
enum Known {
    /// It may become `NAME.call(`.
    Maybe,
    Call(String),
    Code(String),
    Nothing,
}

impl Parser {
    /// Reads the next character after the token. None: it does not begin a call of a built-in tool. Otherwise the
    /// number of consumed bytes.
    pub(super) fn builtin_text(&mut self, c: char, out: &mut Vec<Event>) -> Option<usize> {
        let marked = self.trial.as_ref().is_some_and(|trial| trial.marked);
        let State::Gap(junk) = &self.state else { return None };
        if !marked || self.format.builtins.is_empty() || (junk.trim().is_empty() && (c.is_whitespace() || c == '{')) {
            return None;
        }
        let text = format!("{}{c}", junk.trim_start());
        if text.len() > LONGEST_NAME {
            return None;
        }
        match self.builtin(&text) {
            Known::Maybe => {
                if let (Some(trial), State::Gap(junk)) = (&mut self.trial, &mut self.state) {
                    trial.raw.push(c);
                    junk.push(c);
                }
                Some(c.len_utf8())
            }
            Known::Call(name) => {
                let call = self.call(Some(name), None);
                if let Some(trial) = &mut self.trial {
                    trial.raw.push(c);
                }
                self.state = State::Body(Box::new(Body::Python(Python::new(call, &text))));
                Some(c.len_utf8())
            }
            Known::Code(name) => {
                let call = self.call(Some(name), None);
                self.confirm(out);
                let mut code = Code::new(call, out);
                for b in text.trim_end_matches(c).bytes() {
                    code.feed(b);
                }
                self.state = State::Body(Box::new(Body::Code(code)));
                Some(0)
            }
            Known::Nothing => None,
        }
    }

    fn builtin(&self, text: &str) -> Known {
        let mut code = None;
        for builtin in self.format.builtins {
            let codec = builtin.call.iter().find_map(|s| if let Step::Args(codec) = s { Some(*codec) } else { None });
            let opening = builtin.call.iter().skip_while(|s| **s != Step::Name).nth(1);
            let named = |name: &&str| if self.tools.is_empty() { false } else { self.declares(name) };
            match (codec, opening) {
                (Some(Codec::Code), _) => code = code.or(builtin.names.iter().copied().find(named)),
                (_, Some(Step::Lit(opening))) => {
                    // Any declared tool may be called like this, and without declarations, any tool.
                    let name = text.strip_suffix(opening);
                    if let Some(name) = name.filter(|n| self.is_callable(n)) {
                        return Known::Call(name.to_owned());
                    }
                    let begins = |name: &str| format!("{name}{opening}").starts_with(text);
                    let any = self.tools.is_empty()
                        && (is_plausible(text) || text.strip_suffix('(').is_some_and(is_plausible));
                    if any || self.tools.iter().any(|tool| begins(&tool.name)) {
                        return Known::Maybe;
                    }
                }
                _ => {}
            }
        }
        code.map_or(Known::Nothing, |name| Known::Code(name.to_owned()))
    }
}
