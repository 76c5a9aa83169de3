//! Fingerprints of everything that determines the tokens that an engine samples: checkpoint, text files, types and
//! settings. All workers of a group must have the same fingerprint.

use rein_proto::protocol;
use rein_worker::checkpoint::content_hash;
use rein_worker::node::TextFiles;
use rein_worker::rank::{DeviceChoice, ModelLoader};

use crate::args::{EngineArgs, EngineTask, WeightArgs};
use crate::load;

pub struct Fingerprints {
    pub whole: String,
    /// The fingerprint of the text files alone, which routers read.
    pub text: String,
}

/// Hashes the files that the process has read or holds open. Weights that are loaded later are checked against the same
/// files. `ranks`: in this process.
pub fn of(
    weights: &WeightArgs,
    engine: &EngineArgs,
    devices: &DeviceChoice,
    ranks: usize,
    model: Option<&ModelLoader>,
    files: &TextFiles,
) -> Result<Fingerprints, String> {
    let mut hash = Hash::default();
    for (path, bytes) in files.iter() {
        hash.add(path.as_bytes());
        hash.add(bytes);
    }
    // A router that knows the text files knows what the model is for.
    if engine.task == EngineTask::Embed {
        hash.add(b"embed");
    }
    let text = hash.end();
    if let Some(model) = model {
        if files.get("config.json").map(content_hash) != Some(model.config_hash()) {
            let what = "config.json changed during startup; start again when the directory is no longer written to";
            return Err(format!("--model: {}: {what}", weights.model.display()));
        }
        for (name, content) in model.hashes().map_err(|error| format!("--model: {error}"))? {
            hash.add(name.as_os_str().as_encoded_bytes());
            hash.add(&content.to_le_bytes());
        }
    }
    // Sums differ between instruction sets, and a result must not depend on where an expert is placed.
    let block_size = load::block_size(engine, devices);
    let types = (weights.dtype, weights.quantize, weights.kv_dtype, engine.kv_parallel);
    let how = (types, engine.on.engine, block_size, engine.max_context);
    let arithmetic = model.map(ModelLoader::arithmetic);
    hash.add(format!("{how:?} {arithmetic:?} {} protocol {}", ranks, protocol::NUMBER).as_bytes());
    Ok(Fingerprints { whole: hash.end(), text })
}

/// Hashes parts in order; the same in every build.
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
