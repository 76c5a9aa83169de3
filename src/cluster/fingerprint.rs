//! What must be the same for all workers of a group, in one number: what they compute with, and how. And of that, what
//! routers read: the text files.

use rein_kernels::cpu::Isa;
use rein_proto::protocol;
use rein_worker::checkpoint::content_hash;
use rein_worker::node::{Files, Work};

use crate::args::WorkerArgs;

pub struct Fingerprints {
    pub whole: String,
    pub text: String,
}

/// Of what the worker has read and holds open: what it loads later is checked against the same files.
pub fn of(args: &WorkerArgs, work: &Work, files: &Files) -> Result<Fingerprints, String> {
    let mut hash = Hash::default();
    for (path, bytes) in files.iter() {
        hash.add(path.as_bytes());
        hash.add(bytes);
    }
    let text = hash.end();
    if let Work::Model(model) = work {
        if files.get("config.json").map(content_hash) != Some(model.config_hash()) {
            let what = "config.json was replaced while the worker started; start it again when nobody writes there";
            return Err(format!("--model: {}: {what}", args.weights.model.display()));
        }
        for (name, content) in model.hashes().map_err(|error| format!("--model: {error}"))? {
            hash.add(name.as_os_str().as_encoded_bytes());
            hash.add(&content.to_le_bytes());
        }
    }
    let WorkerArgs { weights, engine, .. } = args;
    // Sums differ between instruction sets, and what a rank adds up must not depend on where an expert lies.
    let how = (weights.dtype, weights.quantize, engine.engine, engine.block_size, engine.max_context, Isa::detect());
    hash.add(format!("{how:?} {} protocol {}", args.devices.len(), protocol::NUMBER).as_bytes());
    Ok(Fingerprints { whole: hash.end(), text })
}

/// Of parts in their order: the same in every build.
#[derive(Default)]
struct Hash(Vec<u8>);

impl Hash {
    fn add(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.0.extend_from_slice(&content_hash(part).to_le_bytes());
    }

    fn end(&self) -> String {
        format!("{:016x}", content_hash(&self.0))
    }
}
