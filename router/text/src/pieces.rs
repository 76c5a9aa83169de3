//! Converts token ids to the input of a format's parser: bytes, and the special tokens that it handles.

use rein_grammar::{Format, OwnedPiece};

use crate::tokenize::{self, Tokenizer};

/// The pieces that the format's parser gets for these tokens.
pub fn pieces(format: &Format, tokenizer: &Tokenizer, ids: &[u32]) -> Vec<OwnedPiece> {
    let mut detokenizer = tokenizer.detokenizer();
    let mut out = Vec::new();
    let mut take = |piece: tokenize::TokenPiece<'_>, control: bool| {
        out.push(match piece {
            tokenize::TokenPiece::Bytes(bytes) => OwnedPiece::Bytes(bytes.to_vec()),
            // As in streaming, an added token that is neither a control token nor a marker is text.
            tokenize::TokenPiece::Special(text) if control || format.is_marker(text) => {
                OwnedPiece::Special(text.to_owned())
            }
            tokenize::TokenPiece::Special(text) => OwnedPiece::Bytes(text.as_bytes().to_vec()),
        });
    };
    for &id in ids {
        let control = tokenizer.is_control(id);
        for piece in detokenizer.push(id) {
            take(piece, control);
        }
    }
    if let Some(piece) = detokenizer.finish() {
        take(piece, false);
    }
    out
}
