//! Model outputs that were then damaged: no word is lost or reported twice, and no result depends on how the output is
//! split.

use serde_json::{Map, Value, json};

use super::closure::tools;
use super::fuzz::told;
use super::{Random, cases, cuts, parse};
use crate::{
    Call, CallPosition, Codec, Event, Format, OwnedPiece, ParserOptions, Region, RenderOptions, Turn, formats, render,
};

/// Cases per format, unless set in the environment.
const CASES: u64 = 150;
const ATOMS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "\"",
    "'",
    ",",
    ":",
    "=",
    "\\",
    "\n",
    " ",
    "<",
    ">",
    "é",
    "1",
    "-",
    "null",
    "\"name\": ",
    "\"arguments\": {",
    "functions.",
    "```",
    "</",
];

/// Words that can be found again wherever they end up.
struct Words(usize);

impl Words {
    fn next(&mut self) -> String {
        self.0 += 1;
        format!("w{}_", self.0)
    }

    fn some(&mut self, random: &mut Random) -> String {
        (0..=random.below(3)).map(|_| self.next()).collect::<Vec<_>>().join(" ")
    }
}

fn turn(format: &Format, random: &mut Random, words: &mut Words) -> Turn {
    let arguments = |random: &mut Random, words: &mut Words| {
        let mut all = Map::new();
        for key in ["text", "class", "list", "record", "count"] {
            if random.one_in(2) {
                continue;
            }
            let value = match key {
                "list" => json!([words.next(), 1, words.next()]),
                "record" => json!({"k": {"l": words.next()}, "n": null}),
                "count" => json!(random.below(1000)),
                _ => json!(words.some(random)),
            };
            all.insert(key.to_owned(), value);
        }
        Value::Object(all).to_string()
    };
    let reasoning = format.reasoning.as_ref().filter(|_| random.one_in(2)).map(|_| words.some(random));
    let most = if !format.has_calls() {
        1
    } else if format.many {
        4
    } else {
        2
    };
    let name =
        |random: &mut Random| if format.codec() == Codec::Python { "search" } else { *random.pick(&["search", "a"]) };
    let calls: Vec<Call> = (0..random.below(most))
        .map(|_| Call { name: name(random).into(), arguments: arguments(random, words) })
        .collect();
    let text = if format.calls == CallPosition::InsteadOfText && !calls.is_empty() || random.one_in(3) {
        String::new()
    } else {
        words.some(random)
    };
    Turn { reasoning, text, calls }
}

/// The output in units that no mutation divides: special tokens, words, characters.
fn units(pieces: &[OwnedPiece]) -> Vec<OwnedPiece> {
    let mut out = Vec::new();
    for piece in pieces {
        let OwnedPiece::Bytes(bytes) = piece else {
            out.push(piece.clone());
            continue;
        };
        let text = String::from_utf8_lossy(bytes);
        let mut rest = text.as_ref();
        while let Some(c) = rest.chars().next() {
            let digits = rest.bytes().skip(1).take_while(u8::is_ascii_digit).count();
            let word = c == 'w' && digits > 0 && rest[1 + digits..].starts_with('_');
            let n = if word { digits + 2 } else { c.len_utf8() };
            out.push(OwnedPiece::Bytes(rest.as_bytes()[..n].to_vec()));
            rest = &rest[n..];
        }
    }
    out
}

fn mutate(format: &Format, units: &mut Vec<OwnedPiece>, random: &mut Random, words: &mut Words) {
    let at = random.below(units.len() + 1);
    let end = (at + 1 + random.below(12)).min(units.len());
    let markers: Vec<&str> = format.all_steps().filter_map(crate::format::marker).collect();
    match random.below(6) {
        0 => units.truncate(at),
        1 => drop(units.drain(at.min(end)..end)),
        2 => {
            let copy = units[at.min(end)..end].to_vec();
            units.splice(at..at, copy);
        }
        3 if !markers.is_empty() => units.insert(at, OwnedPiece::Special((*random.pick(&markers)).to_owned())),
        4 => units.insert(at, OwnedPiece::Bytes(words.next().into_bytes())),
        _ => units.insert(at, OwnedPiece::Bytes(random.pick(ATOMS).as_bytes().to_vec())),
    }
}

fn broken(format: &'static Format, seed: u64) -> Option<String> {
    let mut random = Random::new(seed);
    let mut words = Words(0);
    let turn = turn(format, &mut random, &mut words);
    let start = if turn.reasoning.is_some() && random.one_in(2) { Region::Reasoning } else { Region::Text };
    let options = RenderOptions { start, first_index: random.below(9), spelled: random.one_in(2) };
    let mut output = units(&render(format, &turn, options));
    for _ in 0..random.below(4) {
        mutate(format, &mut output, &mut random, &mut words);
    }
    let options = ParserOptions { start, tools: tools(&["search", "a"]).into(), parse_tools: !random.one_in(8) };
    let whole = parse(format, options.clone(), &output);
    let all = told(&whole);
    for n in 1..=words.0 {
        let word = format!("w{n}_");
        let written = output.iter().filter(|unit| **unit == OwnedPiece::Bytes(word.clone().into_bytes())).count();
        let found = all.matches(&word).count();
        if found != written {
            let text = crate::render_text(&output);
            return Some(format!(
                "{} seed {seed}: {word} {found} times, not {written}, of {text:?} in {whole:?}",
                format.name
            ));
        }
    }
    cuts(&joined(&output), &mut random).into_iter().find_map(|cut| {
        let got: Vec<Event> = parse(format, options.clone(), &cut);
        (got != whole).then(|| format!("{} seed {seed}: {cut:?} gives {got:?}, not {whole:?}", format.name))
    })
}

/// Adjacent texts as one piece.
fn joined(units: &[OwnedPiece]) -> Vec<OwnedPiece> {
    let mut out: Vec<OwnedPiece> = Vec::new();
    for unit in units {
        match (out.last_mut(), unit) {
            (Some(OwnedPiece::Bytes(all)), OwnedPiece::Bytes(more)) => all.extend_from_slice(more),
            _ => out.push(unit.clone()),
        }
    }
    out
}

#[test]
fn damaged_outputs_lose_no_word_however_they_are_split() {
    let wrong: Vec<String> =
        formats().iter().filter_map(|format| (0..cases(CASES)).find_map(|seed| broken(format, seed))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
