//! Arbitrary output: nothing panics, no text is lost, no result depends on how the output is split, and nothing takes
//! quadratic time.

use super::{Random, cut, cuts, fold, options, parse};
use crate::{Event, Format, OwnedPiece, Parser, ParserOptions, Piece, Region, formats};

const ATOMS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ", ",
    "\\",
    "\n",
    " ",
    "1",
    "-",
    "null",
    "true",
    "functions.",
    ":0",
    "é",
    "\u{1}",
    "<",
    "<tool_",
    "{\"name\": \"",
    "\"name\": ",
    "\"arguments\": ",
    "\"arguments\": {",
    "{\"a\": \"",
    "\", \"arguments\": {",
    "\"f\"",
    "\"}",
    "}}",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"k\": \"",
];

fn output(format: &Format, random: &mut Random) -> (Vec<OwnedPiece>, usize) {
    let mut markers: Vec<&str> = format.marker_texts().collect();
    markers.extend(["<think>", "</think>", "<|im_end|>"]);
    let (mut pieces, mut words) = (Vec::new(), 0);
    for _ in 0..random.below(40) {
        pieces.push(match random.below(5) {
            0 | 1 => OwnedPiece::Special((*random.pick(&markers)).to_owned()),
            2 => {
                words += 1;
                OwnedPiece::Bytes(format!("w{words}_").into_bytes())
            }
            _ => OwnedPiece::Bytes(random.pick(ATOMS).as_bytes().to_vec()),
        });
    }
    (pieces, words)
}

pub(super) fn told(events: &[Event]) -> String {
    let mut all = String::new();
    for event in events {
        match event {
            Event::ReasoningDelta(s) | Event::TextDelta(s) | Event::Malformed(s) => all.push_str(s),
            Event::ToolCallStart { name, id, .. } => {
                all.push_str(name);
                // If the id repeats the name, the name counts once.
                all.push_str(id.as_deref().filter(|id| !id.contains(&format!(".{name}:"))).unwrap_or_default());
            }
            Event::ArgumentsDelta { text, .. } => all.push_str(text),
            _ => {}
        }
        all.push(' ');
    }
    all
}

#[test]
fn no_word_is_lost_however_the_output_is_split() {
    let wrong: Vec<String> =
        formats().iter().filter_map(|format| (0..250).find_map(|seed| lost(format, seed))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn lost(format: &'static Format, seed: u64) -> Option<String> {
    let mut random = Random::new(seed);
    let (pieces, words) = output(format, &mut random);
    let start = if random.one_in(3) { Region::Reasoning } else { Region::Text };
    let options = ParserOptions { parse_tools: !random.one_in(8), ..options(start, &["f", "w1_"]) };
    let whole = parse(format, options.clone(), &pieces);
    let all = told(&whole);
    for n in 1..=words {
        let found = all.matches(&format!("w{n}_")).count();
        if found != 1 {
            return Some(format!("{} seed {seed}: word {n} {found} times of {pieces:?} in {whole:?}", format.name));
        }
    }
    cuts(&pieces, &mut random).into_iter().find_map(|cut| {
        let got = parse(format, options.clone(), &cut);
        (got != whole).then(|| format!("{} seed {seed}: {cut:?} gives {got:?}, not {whole:?}", format.name))
    })
}

#[test]
fn random_bytes_do_not_panic() {
    for format in formats() {
        let markers: Vec<&str> = format.marker_texts().collect();
        for seed in 0..150 {
            let mut random = Random::new(seed);
            let mut parser = Parser::new(format, options(Region::Text, &["f"]));
            let mut events = Vec::new();
            for _ in 0..random.below(60) {
                let bytes: Vec<u8> = (0..random.below(6)).map(|_| random.below(256) as u8).collect();
                parser.push(Piece::Bytes(&bytes), &mut events);
                if !markers.is_empty() && random.one_in(3) {
                    parser.push(Piece::Special(markers[random.below(markers.len())]), &mut events);
                }
            }
            parser.finish(&mut events);
            fold(&events);
        }
    }
}

/// Counted in examined bytes, not in seconds: an output four times as long costs no more per byte.
#[test]
fn parsing_time_is_linear() {
    let hostile = [
        "<",
        "<tool_",
        "<tool_call>",
        "\n",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"",
        "<think>",
        "</think>",
        "{\"a\":",
        "{",
        "{ x",
        "[",
        "\"\\\\",
        "<tool_call>       ",
        "\u{0}",
        "é",
        "<tool_call>{\"arguments\": {\"a\": \"b\"}, ",
        " ",
        "</tool_call>",
    ];
    let many = |atom: &str, bytes: usize| atom.repeat(bytes / atom.len()).into_bytes();
    for format in formats() {
        let markers: Vec<&str> = format.marker_texts().collect();
        for start in [Region::Text, Region::Reasoning] {
            let own = markers.iter().flat_map(|m| [(*m).to_owned(), format!("{m} "), format!("{m}\"f\">x\n")]);
            for atom in hostile.iter().map(|a| (*a).to_owned()).chain(own) {
                let atom = atom.as_str();
                for opening in [&[][..], &markers[..]] {
                    let cost = |bytes: usize, longest: usize| {
                        let mut pieces: Vec<_> = opening.iter().map(|m| OwnedPiece::Special((*m).to_owned())).collect();
                        pieces.truncate(2 + usize::from(start == Region::Reasoning));
                        pieces.push(OwnedPiece::Bytes(many(atom, bytes)));
                        let mut parser = Parser::new(format, options(start, &["f"]));
                        let mut events = Vec::new();
                        for piece in cut(&pieces, longest, &mut Random::new(5)) {
                            parser.push(piece.as_piece(), &mut events);
                            events.clear();
                        }
                        parser.finish(&mut events);
                        parser.work() as f64 / bytes as f64
                    };
                    for longest in [1, 1 << 20] {
                        let (small, large) = (cost(1_500, longest), cost(6_000, longest));
                        assert!(small < 512.0, "{} {atom:?} by {longest}: {small} looks per byte", format.name);
                        assert!(
                            large < small * 1.05 + 4.0,
                            "{} {atom:?} by {longest}: {small} -> {large}",
                            format.name
                        );
                    }
                }
            }
        }
    }
}
