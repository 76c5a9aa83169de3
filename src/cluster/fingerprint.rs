//! What must be the same for all workers of a group, in one number: what they compute with, and how.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use rein_kernels::cpu::Isa;

use crate::args::WorkerArgs;

/// Of each file of weights so many pieces are read, its beginning (which names the tensors) among them, and ...
const PIECES: u64 = 64;
/// ... so many bytes of each: a fine-tune changes all of them, and a terabyte is not read twice.
const PIECE: u64 = 16 << 10;

pub fn of(args: &WorkerArgs) -> Result<String, Box<dyn Error>> {
    let WorkerArgs { weights, engine, .. } = args;
    let dir = &weights.model;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| format!("--model: {}: {e}", dir.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let counts = name.ends_with(".safetensors") || name.starts_with("tokenizer") || name.starts_with("tiktoken");
        if counts || name == "config.json" {
            names.push(name);
        }
    }
    names.sort();
    let mut hash = Hash::default();
    for name in &names {
        hash.add(name.as_bytes());
        let path = dir.join(name);
        File::open(&path)
            .and_then(|mut file| hash.file(&mut file))
            .map_err(|e| format!("--model: {}: {e}", path.display()))?;
    }
    // Sums differ between instruction sets, and what a rank adds up must not depend on where an expert lies.
    let how = (weights.dtype, weights.quantize, engine.engine, engine.block_size, engine.max_context, Isa::detect());
    hash.add(format!("{how:?} {}", args.devices.len()).as_bytes());
    Ok(format!("{:016x}", hash.0))
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
