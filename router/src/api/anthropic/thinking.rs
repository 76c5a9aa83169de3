//! Signatures of thinking blocks: a client returns a block with the signature that it got, and the block is used only
//! if its text is the one that was signed.

use ring::digest::{Context, SHA256, digest};

use crate::{
    fair::CallerName,
    seal::{Seal, SealContext, SealPurpose},
};

/// The signature holds the SHA-256 of the text, which the client has.
const DIGEST: u8 = b'h';
/// The signature holds the text itself, which was not sent (`display: omitted`).
const TEXT: u8 = b't';

/// Signs and verifies thinking blocks for one API key.
#[derive(Debug, Clone)]
pub struct ThinkingSeal {
    seal: Seal,
    caller: CallerName,
}

impl ThinkingSeal {
    pub fn new(seal: &Seal, caller: CallerName) -> Self {
        ThinkingSeal { seal: seal.clone(), caller }
    }

    fn context<'a>(&'a self, model: &'a str) -> SealContext<'a> {
        SealContext { purpose: SealPurpose::Thinking, model, caller: self.caller.as_deref() }
    }

    /// The reasoning that a returned block stands for. None: the block was not signed for this model and API key, or
    /// its text was changed.
    pub fn open(&self, model: &str, text: &str, signature: &str) -> Option<String> {
        let opened = self.seal.open(self.context(model), signature)?;
        match opened.split_first()? {
            (&DIGEST, signed) => (signed == digest(&SHA256, text.as_bytes()).as_ref()).then(|| text.to_owned()),
            (&TEXT, signed) if text.is_empty() => String::from_utf8(signed.to_vec()).ok(),
            _ => None,
        }
    }

    fn sign(&self, model: &str, kind: u8, signed: &[u8]) -> String {
        self.seal.seal(self.context(model), &[&[kind], signed].concat())
    }
}

/// A thinking block that is being sent.
pub enum UnsignedThinking {
    /// The client gets the text.
    Shown(Context),
    /// The client gets the signature only.
    Omitted(String),
}

impl UnsignedThinking {
    pub fn new(omitted: bool) -> Self {
        match omitted {
            true => UnsignedThinking::Omitted(String::new()),
            false => UnsignedThinking::Shown(Context::new(&SHA256)),
        }
    }

    /// Adds text. Returns whether the client gets it.
    pub fn push(&mut self, text: &str) -> bool {
        match self {
            UnsignedThinking::Shown(sum) => sum.update(text.as_bytes()),
            UnsignedThinking::Omitted(whole) => whole.push_str(text),
        }
        matches!(self, UnsignedThinking::Shown(_))
    }

    pub fn sign(self, seal: &ThinkingSeal, model: &str) -> String {
        match self {
            UnsignedThinking::Shown(sum) => seal.sign(model, DIGEST, sum.finish().as_ref()),
            UnsignedThinking::Omitted(whole) => seal.sign(model, TEXT, whole.as_bytes()),
        }
    }
}

/// The signature of a block that an answer would have, for tests.
#[cfg(test)]
pub fn signed_thinking(seal: &ThinkingSeal, model: &str, text: &str) -> String {
    let mut thinking = UnsignedThinking::new(false);
    thinking.push(text);
    thinking.sign(seal, model)
}
