//! The small models with which a device is compared, and the steps that sections give to an executor.

use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rein_kernels::lockstep::LockstepReport;
use rein_proto::internal::{After, Draw, Row, RowResult, Sampling, Step};
use rein_proto::splitmix::mix;
use rein_worker::executor::{Executor, ExecutorError, StepPlacement};
use rein_worker::rank::{DeviceChoice, Dtype, ModelOptions, RankGroup};
use serde::Deserialize;

/// Small, so that the sequences have several blocks.
const BLOCK_SIZE: usize = 8;
/// Sequences whose slots steps may use.
const MOST_SEQUENCES: usize = 256;
const BLOCKS: usize = 160;
/// For models without reference.json.
const TOKENS: u64 = 24;

/// A model directory, and a text for it.
#[derive(Debug, Clone)]
pub struct SmallModel {
    pub name: String,
    pub dir: PathBuf,
    pub tokens: Vec<u32>,
    /// "fp8", "int4", or "quantized" in another form.
    pub quantized: Option<&'static str>,
    /// It has no head: it makes embeddings.
    pub embeds: bool,
}

/// The tokens of reference.json: for them no router and no token is a close decision.
#[derive(Deserialize)]
struct ReferenceTokens {
    tokens: Vec<u32>,
}

/// The models in the directories below `dir` that generate, by name: all, or those in `only`.
pub fn models(dir: &Path, only: Option<&[&str]>) -> Result<Vec<SmallModel>, Box<dyn Error>> {
    let mut found = all(dir)?;
    found.retain(|model| !model.embeds && only.is_none_or(|only| only.contains(&&*model.name)));
    match found.is_empty() {
        true => Err(format!("--fixtures: {} has no model directories", dir.display()).into()),
        false => Ok(found),
    }
}

/// Those that make embeddings.
pub fn embedding_models(dir: &Path) -> Result<Vec<SmallModel>, Box<dyn Error>> {
    let mut found = all(dir)?;
    found.retain(|model| model.embeds);
    Ok(found)
}

fn all(dir: &Path) -> Result<Vec<SmallModel>, Box<dyn Error>> {
    let failed = |error: std::io::Error| format!("--fixtures: cannot read {}: {error}", dir.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.join("config.json").exists() {
            found.push(open(name, path)?);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn open(name: String, dir: PathBuf) -> Result<SmallModel, Box<dyn Error>> {
    let failed = |what: &dyn std::fmt::Display| format!("--fixtures: {}: {what}", dir.display());
    let config = fs::read_to_string(dir.join("config.json")).map_err(|e| failed(&e))?;
    let config: serde_json::Value = serde_json::from_str(&config).map_err(|e| failed(&e))?;
    let quantization = &config["quantization_config"];
    let [method, format] = ["quant_method", "format"].map(|key| quantization[key].as_str());
    let quantized = method.map(|method| match (method, format) {
        ("fp8", _) | (_, Some("float-quantized")) => "fp8",
        (_, Some("pack-quantized")) => "int4",
        _ => "quantized",
    });
    let tokens = match fs::read_to_string(dir.join("reference.json")) {
        Ok(text) => serde_json::from_str::<ReferenceTokens>(&text).map_err(|e| failed(&e))?.tokens,
        Err(_) => {
            let vocab = config["vocab_size"].as_u64().ok_or_else(|| failed(&"config.json has no vocab_size"))?;
            (0..TOKENS).map(|i| (mix(i) % vocab) as u32).collect()
        }
    };
    // The layout of sentence-transformers.
    let embeds = dir.join("modules.json").exists();
    Ok(SmallModel { name, dir, tokens, quantized, embeds })
}

impl SmallModel {
    pub fn load(&self, devices: &DeviceChoice, dtype: Dtype) -> Result<Steps, Box<dyn Error>> {
        self.load_with(&ModelOptions { devices: devices.clone(), dtype, embeds: self.embeds, ..options() })
    }

    /// Over this many ranks.
    pub fn load_over(&self, devices: &DeviceChoice, dtype: Dtype, ranks: usize) -> Result<Steps, Box<dyn Error>> {
        self.load_with(&ModelOptions { devices: devices.clone(), dtype, tp: ranks, ..options() })
    }

    /// With every op repeated on the CPU.
    pub fn load_in_lockstep(
        &self,
        devices: &DeviceChoice,
        dtype: Dtype,
        report: &LockstepReport,
    ) -> Result<Steps, Box<dyn Error>> {
        let options = ModelOptions { devices: devices.clone(), dtype, ..options() };
        Ok(Steps { group: RankGroup::load_in_lockstep(&self.dir, &options, report)?, id: 0 })
    }

    /// On the CPU, with the rounding of a GPU.
    pub fn load_rounding(&self, dtype: Dtype) -> Result<Steps, Box<dyn Error>> {
        let options = ModelOptions { dtype, embeds: self.embeds, ..options() };
        Ok(Steps { group: RankGroup::load_rounding(&self.dir, &options)?, id: 0 })
    }

    pub fn load_with(&self, options: &ModelOptions) -> Result<Steps, Box<dyn Error>> {
        Ok(Steps { group: RankGroup::load(&self.dir, options, &mut |_, _| ())?, id: 0 })
    }
}

pub fn options() -> ModelOptions {
    ModelOptions {
        kv_blocks: Some(BLOCKS),
        block_size: BLOCK_SIZE,
        max_sequences: MOST_SEQUENCES,
        ..ModelOptions::default()
    }
}

/// A loaded model and the number of its next step.
pub struct Steps {
    pub group: RankGroup,
    id: u64,
}

impl Steps {
    pub fn run(&mut self, rows: Vec<Row>) -> Result<Vec<RowResult>, ExecutorError> {
        self.id += 1;
        let StepPlacement { epoch, layout } = self.group.placed();
        let shape = self.group.shape();
        let rows = rows.into_iter().map(|row| shape.forward_only(row)).collect();
        let step = Step { epoch, layout, id: self.id, rows, ..Step::default() };
        Ok(self.group.execute(step)?.rows)
    }

    pub fn block_size(&self) -> usize {
        self.group.shape().block_size
    }

    /// Blocks for this many tokens, from block `first` on.
    pub fn blocks(&self, first: usize, tokens: usize) -> Vec<u32> {
        let count = tokens.div_ceil(self.block_size());
        (first..first + count).map(|block| block as u32).collect()
    }
}

/// Computes a range of tokens, and scores each of them after its predecessor, with `top` alternatives.
pub fn scoring(slot: u32, tokens: &[u32], range: Range<usize>, blocks: &[u32], top: i32) -> Row {
    Row {
        slot,
        tokens: tokens[range.clone()].to_vec(),
        start: range.start as u32,
        blocks: blocks.to_vec(),
        after: After::Nothing.into(),
        score: top,
        // After the last token only the alternatives count.
        next: Some(tokens.get(range.end).copied().unwrap_or(0)),
        ..Row::default()
    }
}

/// Computes tokens and draws the most likely one after them, with the logprobs of the two best.
pub fn drawing(slot: u32, tokens: &[u32], start: usize, blocks: &[u32]) -> Row {
    let sampling = Sampling { top_p: 1.0, repetition_penalty: 1.0, ..Sampling::default() };
    let draw = Draw { sampling: Some(sampling), logprobs: 2, ..Draw::default() };
    Row {
        slot,
        tokens: tokens.to_vec(),
        start: start as u32,
        blocks: blocks.to_vec(),
        after: After::Draw.into(),
        draws: vec![draw],
        score: -1,
        ..Row::default()
    }
}

/// Computes tokens, and returns the hidden state of the last one.
pub fn embedding(slot: u32, tokens: &[u32], blocks: &[u32]) -> Row {
    Row { after: After::Embed.into(), draws: Vec::new(), ..drawing(slot, tokens, 0, blocks) }
}
