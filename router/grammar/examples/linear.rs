//! How parsing time grows with hostile output: for each format, the worst of many outputs at 50 KB and at 1 MB.
//!
//! `cargo run --release -p rein-grammar --example linear [FORMAT]`

use std::time::Instant;

use rein_grammar::{
    Call, Format, OwnedPiece, Parser, ParserOptions, Piece, Region, RenderOptions, Tool, Turn, formats, render,
    render_text,
};

const SMALL: usize = 50_000;
const TIMES: usize = 20;
const LARGE: usize = SMALL * TIMES;
const LEAST_TRIALS: usize = 3;
const MOST_TRIALS: usize = 30;

/// The repeated parts of hostile outputs.
fn atoms(format: &Format) -> Vec<String> {
    let call = Call { name: "f".into(), arguments: r#"{"a": "x \" {[</", "b": [[1, {"c": "\\"}]]}"#.into() };
    let turn = Turn { reasoning: Some("r".into()), text: "t".into(), calls: vec![call.clone(), call] };
    let whole = render_text(&render(format, &turn, RenderOptions::default()));
    let mut all: Vec<String> = [
        "{", "[", "{\"a\":", "\"", "\\", "\"\\\\", "'", "<", "</", "<a>", "<f ", " ", "\n", "é", "\0", "(", "f(a=",
        "[f(",
    ]
    .map(str::to_owned)
    .to_vec();
    // The turn, its halves, and its beginning and end.
    let cuts: Vec<usize> = whole.char_indices().map(|(i, _)| i).collect();
    for part in [1, 2, 3, 5, 8] {
        let at = cuts[cuts.len() * part / 10];
        all.extend([whole[..at].to_owned(), whole[at..].to_owned()]);
    }
    all.push(whole);
    all.retain(|atom| !atom.is_empty());
    all
}

fn read(format: &'static Format, start: Region, pieces: &[OwnedPiece], chunk: usize) {
    let tools = vec![Tool { name: "f".into(), parameters: None, ..Tool::default() }].into();
    let mut parser = Parser::new(format, ParserOptions { start, tools, parse_tools: true });
    let mut events = Vec::new();
    for piece in pieces {
        match piece {
            OwnedPiece::Bytes(bytes) => {
                for chunk in bytes.chunks(chunk) {
                    parser.push(Piece::Bytes(chunk), &mut events);
                    events.clear();
                }
            }
            special => parser.push(special.as_piece(), &mut events),
        }
    }
    parser.finish(&mut events);
}

/// The time of the small output, scaled, and of the large one: the minimum of interleaved trials, because other work on
/// the machine only adds to it. Trials continue while the ratio looks worse than `bound`.
fn time(bound: f64, small: impl Fn(), large: impl Fn()) -> (f64, f64) {
    let took = |times: usize, reading: &dyn Fn()| {
        let start = Instant::now();
        for _ in 0..times {
            reading();
        }
        start.elapsed().as_secs_f64()
    };
    let (mut short, mut long) = (f64::MAX, f64::MAX);
    for trial in 0..MOST_TRIALS {
        short = short.min(took(TIMES, &small));
        long = long.min(took(1, &large));
        if trial + 1 >= LEAST_TRIALS && long <= bound * short {
            break;
        }
    }
    (short, long)
}

fn main() {
    let only = std::env::args().nth(1);
    println!("{:<20} {:>7} {:>12} {:>10}  worst output", "format", "ratio", "1 MB, ms", "MB/s");
    for format in formats().iter().filter(|f| only.as_ref().is_none_or(|name| f.name == name)) {
        let mut worst = (0.0, 0.0, String::new());
        for atom in atoms(format) {
            for (start, split, chunk) in
                [(Region::Text, false, LARGE), (Region::Text, true, 7), (Region::Reasoning, false, LARGE)]
            {
                let output = |bytes: usize| {
                    let text = atom.repeat(bytes.div_ceil(atom.len()));
                    if split { format.split(&text) } else { vec![OwnedPiece::Bytes(text.into_bytes())] }
                };
                let (small, large) = (output(SMALL), output(LARGE));
                let bound = f64::max(1.0, worst.0 / TIMES as f64);
                let (short, long) =
                    time(bound, || read(format, start, &small, chunk), || read(format, start, &large, chunk));
                let ratio = TIMES as f64 * long / short;
                if ratio > worst.0 {
                    let shown: String = atom.chars().take(24).collect();
                    worst = (ratio, long, format!("{shown:?} by {chunk} from {start:?}"));
                }
            }
        }
        let (ratio, long, atom) = worst;
        let speed = LARGE as f64 / 1e6 / long;
        println!("{:<20} {ratio:>7.1} {:>12.1} {speed:>10.1}  {atom}", format.name, long * 1e3);
    }
}
