//! What must be the same for all workers of a group, in one number: what they compute with, and how. And of that, what
//! routers read: the text files.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use rein_kernels::cpu::Isa;
use rein_worker::node::Files;

use crate::args::WorkerArgs;

/// Of each file of weights so many pieces are read, its beginning (which names the tensors) among them, and ...
const PIECES: u64 = 64;
/// ... so many bytes of each: a fine-tune changes all of them, and a terabyte is not read twice.
const PIECE: u64 = 16 << 10;

pub struct Fingerprints {
    pub whole: String,
    pub text: String,
}

pub fn of(args: &WorkerArgs) -> Result<Fingerprints, Box<dyn Error>> {
    let WorkerArgs { weights, engine, .. } = args;
    let dir = &weights.model;
    let add = |hash: &mut Hash, mut names: Vec<PathBuf>| {
        names.sort();
        names.iter().try_for_each(|name| {
            hash.add(name.as_os_str().as_encoded_bytes());
            let path = dir.join(name);
            let read = File::open(&path).and_then(|mut file| hash.file(&mut file));
            read.map_err(|e| format!("--model: {}: {e}", path.display()))
        })
    };
    let mut text = Hash::default();
    add(&mut text, Files::of(dir).paths())?;
    let mut weights_of = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| format!("--model: {}: {e}", dir.display()))? {
        let name = PathBuf::from(entry?.file_name());
        if name.extension().is_some_and(|extension| extension == "safetensors") {
            weights_of.push(name);
        }
    }
    let mut hash = Hash(text.0);
    add(&mut hash, weights_of)?;
    // Sums differ between instruction sets, and what a rank adds up must not depend on where an expert lies.
    let how = (weights.dtype, weights.quantize, engine.engine, engine.block_size, engine.max_context, Isa::detect());
    hash.add(format!("{how:?} {}", args.devices.len()).as_bytes());
    Ok(Fingerprints { whole: format!("{:016x}", hash.0), text: format!("{:016x}", text.0) })
}

/// FNV-1a, which is the same in every build.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    }

    fn file(&mut self, file: &mut (impl Read + Seek)) -> std::io::Result<()> {
        let len = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        self.add(&len.to_le_bytes());
        let mut piece = Vec::new();
        if len <= PIECES * PIECE {
            file.read_to_end(&mut piece)?;
            self.add(&piece);
            return Ok(());
        }
        for i in 0..PIECES {
            // Spread from the first byte to the last; the product fits for any file that there is.
            let at = (u128::from(len - PIECE) * u128::from(i) / u128::from(PIECES - 1)) as u64;
            file.seek(SeekFrom::Start(at))?;
            piece.clear();
            file.by_ref().take(PIECE).read_to_end(&mut piece)?;
            self.add(&piece);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_is_in_it() {
        let of = |bytes: &[u8]| {
            let mut hash = Hash::default();
            hash.file(&mut std::io::Cursor::new(bytes)).expect("read");
            hash.0
        };
        for len in [100, 5 << 20] {
            let mut bytes = vec![7; len];
            let before = of(&bytes);
            assert_eq!(of(&bytes), before);
            bytes[len - 1] = 8;
            assert_ne!(of(&bytes), before, "the last byte");
            bytes[len - 1] = 7;
            bytes[len / 3..len / 2].fill(9);
            assert_ne!(of(&bytes), before, "a tensor");
            bytes.push(7);
            assert_ne!(of(&bytes), before, "the length");
        }
    }
}
