//! The file of a response: a line with a checksum and the length of the response, then the two JSON texts. It names no
//! files.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use rein_text::sha256_hex;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::StoredResponse;

/// Files hold prompts: only the server's user reads them.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// The first word of the first line.
const VERSION: &str = "rein-response-1";
/// Bytes of the first line: the version, the checksum, and the length in 20 digits.
pub const HEAD_BYTES: usize = VERSION.len() + 1 + 64 + 1 + 20 + 1;
/// Between the two texts of a file of earlier versions, which have no first line.
const SEPARATOR: u8 = 0;

/// Makes a directory and those above it, for the server's user only.
pub fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// The checksum covers the file's name, so that another response's file does not pass for it.
fn checksum(name: &str, texts: &[u8]) -> String {
    sha256_hex(&[name.as_bytes(), &[0], texts].concat())
}

/// Writes a file that is whole on the disk when this returns. `part`: its name until then; nothing is left there if it
/// fails.
pub fn write(part: &Path, name: &str, stored: &StoredResponse) -> io::Result<()> {
    let texts = [&*stored.response, &*stored.input].concat();
    let head = format!("{VERSION} {} {:020}\n", checksum(name, &texts), stored.response.len());
    let written = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(part)?;
        file.write_all(head.as_bytes())?;
        file.write_all(&texts)?;
        // Before it gets its name: after a loss of power there is a whole file or none.
        file.sync_all()
    };
    written().inspect_err(|_| drop(fs::remove_file(part)))
}

/// The response in a file. Fails with what is wrong with it.
pub fn read(name: &str, bytes: &[u8]) -> Result<StoredResponse, &'static str> {
    let parts = |at: usize, skip: usize, bytes: &[u8]| StoredResponse {
        response: bytes[..at].into(),
        input: bytes[at + skip..].into(),
    };
    if !bytes.starts_with(VERSION.as_bytes()) {
        let at = bytes.iter().position(|&byte| byte == SEPARATOR).ok_or("it is no response's file")?;
        let stored = parts(at, 1, bytes);
        return is_of(name, &stored).then_some(stored).ok_or("it is damaged, or another response's");
    }
    let end = bytes.iter().position(|&byte| byte == b'\n').ok_or("its first line is cut")?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| "its first line is damaged")?;
    let texts = &bytes[end + 1..];
    let mut words = head.split(' ').skip(1);
    let (sum, length) = (words.next().unwrap_or_default(), words.next().and_then(|word| word.parse().ok()));
    match length {
        Some(length) if length <= texts.len() && sum == checksum(name, texts) => Ok(parts(length, 0, texts)),
        _ => Err("its checksum is wrong"),
    }
}

/// Whether two texts without a checksum are whole, and belong to this file.
fn is_of(name: &str, stored: &StoredResponse) -> bool {
    let id =
        serde_json::from_slice::<Value>(&stored.response).ok().and_then(|r| Some(r.get("id")?.as_str()?.to_owned()));
    let whole = serde_json::from_slice::<IgnoredAny>(&stored.input).is_ok();
    whole && id.is_some_and(|id| name.split('.').nth(1) == Some(&id))
}
