//! Seals texts that a client keeps between two requests and must neither read nor change, such as reasoning. Every
//! router with the same key opens them.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use rand::RngCore;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Prk, Salt},
};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Random bytes of each sealed text, from which its own AES key is derived. A nonce alone (96 bits) would be too short
/// for the number of texts that a cluster seals under one key (NIST SP 800-38D, section 8.3: 2^32).
const SALT_BYTES: usize = 16;

/// What a sealed text is bound to. It opens under equal values only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealContext<'a> {
    pub purpose: SealPurpose,
    pub model: &'a str,
    /// The name of the API key, if the server has keys.
    pub caller: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealPurpose {
    /// `reasoning.encrypted_content` of the Responses API.
    Reasoning,
    /// `signature` of a thinking block of the Messages API.
    Thinking,
}

/// Seals and opens with the key of the cluster. Clones share the key.
#[derive(Clone, Default)]
pub struct Seal(Arc<OnceLock<Prk>>);

/// A new key.
pub fn random_key() -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    rand::rng().fill_bytes(&mut key);
    key
}

impl Seal {
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        let seal = Seal::default();
        seal.set(key);
        seal
    }

    /// A key of this process alone.
    pub fn random() -> Self {
        Seal::new(&random_key())
    }

    /// Sets the key of a default seal, which seals and opens nothing before. A key that is set stays.
    pub fn set(&self, key: &[u8; KEY_BYTES]) {
        self.0.get_or_init(|| Salt::new(HKDF_SHA256, b"rein seal").extract(key));
    }

    /// Encrypts and authenticates (AES-256-GCM). The result is base64url; empty for a text of more than 64 GiB, which
    /// cannot be sealed, and without a key.
    pub fn seal(&self, context: SealContext<'_>, plain: &[u8]) -> String {
        let mut salt = [0; SALT_BYTES];
        rand::rng().fill_bytes(&mut salt);
        let mut text = plain.to_vec();
        let key = self.key(&salt);
        match key.map(|key| key.seal_in_place_append_tag(nonce(), context.aad(), &mut text)) {
            Some(Ok(())) => BASE64_URL_SAFE_NO_PAD.encode([&salt[..], &text].concat()),
            _ => String::new(),
        }
    }

    /// None: the text was sealed with another key or context, or was changed.
    pub fn open(&self, context: SealContext<'_>, sealed: &str) -> Option<Vec<u8>> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (salt, text) = bytes.split_at_checked(SALT_BYTES)?;
        let mut text = text.to_vec();
        let plain = self.key(salt)?.open_in_place(nonce(), context.aad(), &mut text).ok()?;
        Some(plain.to_vec())
    }

    /// The AES key of one text.
    fn key(&self, salt: &[u8]) -> Option<LessSafeKey> {
        let info = [salt];
        let derived = self.0.get()?.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

/// Each key seals one text.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

impl SealContext<'_> {
    /// Each part with its length, so that no two contexts are alike.
    fn aad(&self) -> Aad<Vec<u8>> {
        let purpose = match self.purpose {
            SealPurpose::Reasoning => "reasoning",
            SealPurpose::Thinking => "thinking",
        };
        let mut aad = vec![u8::from(self.caller.is_some())];
        for part in [purpose, self.model, self.caller.unwrap_or_default()] {
            aad.extend_from_slice(&(part.len() as u64).to_le_bytes());
            aad.extend_from_slice(part.as_bytes());
        }
        Aad::from(aad)
    }
}

/// Without the key.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests;
