//! The renderer: what a model of the format would have written.

use crate::format::{Codec, Format, Markers, Step};
use crate::parse::Region;
use crate::scan::OwnedPiece;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turn {
    pub reasoning: Option<String>,
    pub text: String,
    pub calls: Vec<Call>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// The text of a JSON object.
    pub arguments: String,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct RenderOptions {
    /// Where the output starts; inside the reasoning, its start marker is part of the prompt.
    pub start: Region,
    /// The number of the first call, where calls are numbered.
    pub first_index: usize,
    /// Where a marker may be one token or ordinary text: write it as text.
    pub spelled: bool,
}

/// The turn as pieces of output, one per marker and per stretch of text.
pub fn render(format: &Format, turn: &Turn, options: RenderOptions) -> Vec<OwnedPiece> {
    let spelled = options.spelled && format.markers == Markers::Either;
    let mut out = Pieces { spelled, pieces: Vec::new() };
    match (&format.reasoning, &turn.reasoning) {
        (Some(r), Some(reasoning)) => {
            if options.start == Region::Text {
                out.marker(r.open);
                out.text(r.layout[0]);
            }
            out.text(reasoning);
            out.text(r.layout[1]);
            out.marker(r.close);
            out.text(r.layout[2]);
        }
        (Some(r), None) if options.start == Region::Reasoning => {
            out.marker(r.close);
            out.text(r.layout[2]);
        }
        _ => {}
    }
    out.text(&turn.text);
    if turn.calls.is_empty() {
        return out.pieces;
    }
    if !turn.text.is_empty() {
        out.text(format.lead);
    }
    let empty = Call { name: String::new(), arguments: String::new() };
    out.steps(format.begin, &empty, 0);
    for (i, call) in turn.calls.iter().enumerate() {
        if i > 0 {
            out.steps(format.between, call, 0);
        }
        out.steps(format.call, call, options.first_index + i);
    }
    out.steps(format.end, &empty, 0);
    out.pieces
}

/// The pieces' text: what a transcript shows.
pub fn render_text(pieces: &[OwnedPiece]) -> String {
    let bytes: Vec<u8> = pieces
        .iter()
        .flat_map(|p| match p {
            OwnedPiece::Bytes(b) => b.as_slice(),
            OwnedPiece::Special(s) => s.as_bytes(),
        })
        .copied()
        .collect();
    crate::scan::text(&bytes)
}

struct Pieces {
    spelled: bool,
    pieces: Vec<OwnedPiece>,
}

impl Pieces {
    fn marker(&mut self, marker: &str) {
        if self.spelled {
            self.text(marker);
        } else {
            self.pieces.push(OwnedPiece::Special(marker.to_owned()));
        }
    }

    fn text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(OwnedPiece::Bytes(b)) => b.extend_from_slice(text.as_bytes()),
            _ => self.pieces.push(OwnedPiece::Bytes(text.as_bytes().to_vec())),
        }
    }

    fn steps(&mut self, steps: &[Step], call: &Call, index: usize) {
        for step in steps {
            match step {
                Step::Tok(t) => self.marker(t),
                Step::Lit(l) => self.text(l),
                Step::Name => self.text(&call.name),
                Step::Index => self.text(&index.to_string()),
                Step::Args(Codec::Json) => self.text(&call.arguments),
                Step::Args(Codec::Object { name, arguments, .. }) => {
                    let quoted = serde_json::Value::from(call.name.as_str());
                    let (n, a) = (name.first().unwrap_or(&"name"), arguments.first().unwrap_or(&"arguments"));
                    self.text(&format!("{{\"{n}\": {quoted}, \"{a}\": {}}}", call.arguments));
                }
            }
        }
    }
}

impl Format {
    /// Cuts a transcript in which special tokens are spelled into pieces, as a tokenizer would that has every marker of
    /// this format as a token: for transcripts that come without token ids.
    pub fn split(&self, transcript: &str) -> Vec<OwnedPiece> {
        let reasoning = self.reasoning.iter().flat_map(|r| [r.open, r.close]);
        let markers: Vec<&str> = reasoning.chain(self.marker_texts()).filter(|m| !m.is_empty()).collect();
        let mut out = Pieces { spelled: false, pieces: Vec::new() };
        let mut rest = transcript;
        while !rest.is_empty() {
            if let Some(m) = markers.iter().find(|m| rest.starts_with(**m)) {
                out.marker(m);
                rest = &rest[m.len()..];
                continue;
            }
            let lead = |c: char| markers.iter().any(|m| m.starts_with(c));
            let n = rest.char_indices().skip(1).find(|(_, c)| lead(*c)).map_or(rest.len(), |(i, _)| i);
            out.text(&rest[..n]);
            rest = &rest[n..];
        }
        out.pieces
    }
}
