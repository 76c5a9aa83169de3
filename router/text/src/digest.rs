//! SHA-256 in hexadecimal digits.

use std::fmt::Write;

use ring::digest::{SHA256, digest};

pub fn sha256_hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
