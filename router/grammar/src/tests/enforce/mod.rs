//! Compares the grammar with the renderer, the parser and a JSON Schema validator.

mod builtins;
mod closure;
mod elements;
mod ending;
mod exact;
mod hostile;
mod kimi;
mod mentions;
mod other_heads;
mod raw_values;
mod read;
mod responses;
mod schemas;
mod string_grammar;
mod strings;
mod style;
mod unchanged;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::tests::Random;
use crate::{
    Compiled, Encoder, Event, Format, Grammars, Matcher, OwnedPiece, Parser, ParserOptions, Rules, Tool, Vocab,
};

pub const STOP: &str = "<|stop|>";

/// A byte-level vocabulary with some longer tokens.
#[derive(Clone)]
pub struct Tokens {
    pub words: Vec<(Vec<u8>, bool)>,
    ids: HashMap<Vec<u8>, u32>,
    special: HashMap<String, u32>,
}

impl Tokens {
    /// With the format's markers as added tokens, or only the stop token.
    pub fn of(format: &Format, spelled: bool) -> Self {
        let mut words: Vec<(Vec<u8>, bool)> = (0..=255).map(|b| (vec![b], false)).collect();
        let merges = "{\" \": \", \" \"} \"}} \n\n functions get_ weather name arguments parameters city \" true false null \
            the you <tool _call > </ ]} [{ ): =\" \\n 12 00 :0 Paris an er in on </parameter>\n <parameter= tool_calls ion";
        words.extend(merges.split(' ').filter(|m| m.len() > 1).map(|m| (m.as_bytes().to_vec(), false)));
        words.extend(["  ", " the", ": ", ", ", "\": ", "\", \""].map(|m| (m.as_bytes().to_vec(), false)));
        let mut added: Vec<&str> = vec![STOP, "<|other|>"];
        if !spelled {
            // Parts of markers that are spelled are tokens of text.
            let (markers, parts): (Vec<&str>, Vec<&str>) =
                format.token_markers().into_iter().partition(|marker| format.is_control(marker, true));
            added.extend(markers);
            words.extend(parts.iter().map(|part| (part.as_bytes().to_vec(), false)));
        }
        added.sort_unstable();
        added.dedup();
        words.extend(added.into_iter().map(|t| (t.as_bytes().to_vec(), true)));
        let plain = words.iter().enumerate().filter(|(_, w)| !w.1);
        let ids = plain.map(|(i, w)| (w.0.clone(), i as u32)).collect();
        let special = words.iter().enumerate().filter(|(_, w)| w.1);
        let special = special.map(|(i, w)| (String::from_utf8(w.0.clone()).expect("utf-8"), i as u32)).collect();
        Tokens { words, ids, special }
    }

    pub fn special(&self, text: &str) -> u32 {
        self.special[text]
    }

    fn marker(&self, text: &str) -> Vec<u32> {
        self.special.get(text).map_or_else(|| self.encode(text.as_bytes()), |id| vec![*id])
    }

    pub fn encode(&self, bytes: &[u8]) -> Vec<u32> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let longest = (1..=(bytes.len() - at).min(16)).rev().find(|n| self.ids.contains_key(&bytes[at..at + n]));
            let n = longest.expect("every byte is a token");
            out.push(self.ids[&bytes[at..at + n]]);
            at += n;
        }
        out
    }

    pub fn ids(&self, pieces: &[OwnedPiece]) -> Vec<u32> {
        let one = |p: &OwnedPiece| match p {
            OwnedPiece::Bytes(b) => self.encode(b),
            OwnedPiece::Special(s) => self.marker(s),
        };
        pieces.iter().flat_map(one).collect()
    }

    /// Text in which `⟦x⟧` is the special token x.
    pub fn text(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        for (i, part) in text.split(['⟦', '⟧']).enumerate() {
            out.extend(if i % 2 == 1 { self.marker(part) } else { self.encode(part.as_bytes()) });
        }
        out
    }

    pub fn show(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.words[*id as usize].0.clone()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn pieces(&self, ids: &[u32]) -> Vec<OwnedPiece> {
        let piece = |id: &u32| match &self.words[*id as usize] {
            (b, true) => OwnedPiece::Special(String::from_utf8(b.clone()).expect("utf-8")),
            (b, false) => OwnedPiece::Bytes(b.clone()),
        };
        ids.iter().map(piece).collect()
    }

    pub fn vocab(&self) -> Arc<Vocab> {
        let this = self.clone();
        let encoder: Encoder = Box::new(move |text| this.encode(text.as_bytes()));
        let vocab = Vocab::new(self.words.iter().cloned(), &[self.special(STOP)], Some(encoder));
        Arc::new(vocab.expect("a vocabulary"))
    }
}

/// A format over a vocabulary.
pub struct Bench {
    pub tokens: Tokens,
    pub grammars: Grammars,
    pub format: &'static Format,
}

impl Bench {
    pub fn new(format: &'static Format, spelled: bool) -> Self {
        let tokens = Tokens::of(format, spelled);
        let grammars = Grammars::new(format, tokens.vocab());
        Bench { tokens, grammars, format }
    }

    pub fn compile(&self, rules: &Rules) -> Compiled {
        match self.grammars.compile(rules) {
            Ok(Some(compiled)) => compiled,
            Ok(None) => panic!("{}: nothing to enforce", self.format.name),
            Err(e) => panic!("{}: {e}", self.format.name),
        }
    }

    pub fn matcher(&self, rules: &Rules) -> Matcher {
        self.compile(rules).matcher().expect("a matcher")
    }

    /// The number of accepted tokens, and whether the turn may end after them.
    pub fn run(&self, matcher: &mut Matcher, ids: &[u32]) -> (usize, bool) {
        let mut taken = 0;
        for id in ids {
            match matcher.accept(*id) {
                Ok(true) => taken += 1,
                Ok(false) => return (taken, false),
                Err(e) => panic!("{}: {e} after {}", self.format.name, self.tokens.show(&ids[..taken])),
            }
        }
        (taken, matcher.may_stop())
    }

    /// Whether the whole text is a turn. `⟦x⟧` is the special token x.
    pub fn takes(&self, rules: &Rules, text: &str) -> bool {
        self.takes_ids(rules, &self.tokens.text(text))
    }

    pub fn takes_ids(&self, rules: &Rules, ids: &[u32]) -> bool {
        self.run(&mut self.matcher(rules), ids) == (ids.len(), true)
    }

    /// The accepted prefix of the text.
    pub fn prefix(&self, rules: &Rules, text: &str) -> String {
        let ids = self.tokens.text(text);
        let (n, _) = self.run(&mut self.matcher(rules), &ids);
        self.tokens.show(&ids[..n])
    }

    /// The calls that the parser reads, or what it could not read.
    pub fn parse(&self, rules: &Rules, ids: &[u32]) -> Result<Vec<(String, String)>, String> {
        let mut parser = Parser::new(self.format, parser_options(rules));
        let mut events = Vec::new();
        for piece in self.tokens.pieces(ids) {
            parser.push(piece.as_piece(), &mut events);
        }
        parser.finish(&mut events);
        let mut calls: Vec<(String, String)> = Vec::new();
        for event in events {
            match event {
                Event::ToolCallStart { name, .. } => calls.push((name, String::new())),
                Event::ArgumentsDelta { text, .. } => calls.last_mut().expect("a call").1.push_str(&text),
                Event::ToolCallEnd { complete: false, .. } => return Err("incomplete".into()),
                Event::Malformed(text) => return Err(format!("malformed: {text:?}")),
                _ => {}
            }
        }
        Ok(calls)
    }

    /// Draws tokens from the masks until the turn ends. None: it does not end within `most` tokens. Tokens that close
    /// something are preferred.
    pub fn walk(&self, matcher: &mut Matcher, random: &mut Random, most: usize) -> Option<Vec<u32>> {
        let stop = self.tokens.special(STOP);
        let mut ids = Vec::new();
        while ids.len() < most {
            matcher.check();
            let mask = matcher.mask().unwrap_or_else(|e| panic!("{}: {e}", self.tokens.show(&ids)));
            let all: Vec<u32> =
                (0..self.tokens.words.len() as u32).filter(|i| mask[*i as usize / 8] >> (i % 8) & 1 == 1).collect();
            assert!(!all.is_empty(), "{}: nothing may follow {:?}", self.format.name, self.tokens.show(&ids));
            let closing = |id: &&u32| {
                let (word, special) = &self.tokens.words[**id as usize];
                *special || word.iter().all(|b| b"\"}])>'<:,/\n".contains(b))
            };
            let close: Vec<u32> = all.iter().filter(closing).copied().collect();
            // Text may go on after calls.
            let stops = mask[stop as usize / 8] >> (stop % 8) & 1 == 1 && ids.len() > 40 && random.one_in(2);
            let id = if stops {
                stop
            } else if !close.is_empty() && !random.one_in(3) {
                *random.pick(&close)
            } else {
                *random.pick(&all)
            };
            let before = matcher.may_stop();
            assert_eq!(before, mask[stop as usize / 8] >> (stop % 8) & 1 == 1, "{}", self.tokens.show(&ids));
            assert_eq!(
                matcher.accept(id),
                Ok(true),
                "{}: mask and accept disagree on {:?} after {:?}",
                self.format.name,
                self.tokens.show(&[id]),
                self.tokens.show(&ids)
            );
            if id == stop {
                return Some(ids);
            }
            ids.push(id);
        }
        None
    }
}

pub fn parser_options(rules: &Rules) -> ParserOptions {
    ParserOptions { start: rules.start, tools: rules.tools.clone(), parse_tools: true }
}

pub fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), parameters: Some(parameters), ..Tool::default() }
}

pub fn rules(tools: Vec<Tool>) -> Rules {
    Rules { tools: tools.into(), parallel: true, ..Rules::default() }
}
