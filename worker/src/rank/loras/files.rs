//! PEFT's files: which module of the model each tensor belongs to, and whether it fits. Experts come as modules of
//! their own (transformers 4), or as one tensor for all experts of a layer (transformers 5).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use rein_control_plane::{RankPlacement, place};
use rein_kernels::Precision;

use super::config::LoraConfig;
use super::room::number_bytes;
use crate::bytes::ByteCount;
use crate::checkpoint::{CheckpointWeights, LoadError, Reads, content_hash, parse_json, read_file};
use crate::limits::{MAX_LORA_CONFIG_BYTES, MAX_LORA_RANK};
use crate::lora::{Lora, LoraModule, LoraSource};
use crate::model::{Gated, LinearSpec, Mlp, Spec, numbers_of_rank_one};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// Before the module's name in PEFT's tensors.
const PREFIX: &str = "base_model.model.";
/// The inner one of two adapters of a layer's experts.
const INNER: &str = ".base_layer";

/// Reads adapters of one model.
#[derive(Debug, Clone)]
pub struct LoraReader {
    pub spec: Arc<Spec>,
    /// Of the group.
    pub ranks: usize,
    pub precision: Precision,
    /// Bytes that all of them together may take on a rank.
    pub room: usize,
    pub reads: Arc<Reads>,
}

/// Both tensors of a module: their names and shapes.
#[derive(Default)]
struct Found<'a> {
    down: Option<(&'a str, [usize; 2])>,
    up: Option<(&'a str, [usize; 2])>,
}

/// The experts of one layer.
struct LayerExperts<'a> {
    experts: &'a [Gated],
}

impl LoraSource for LoraReader {
    fn read(&self, dir: &Path) -> Result<Lora, LoadError> {
        let (reads, reader, dir) = (self.reads.clone(), self.clone(), dir.to_owned());
        reads.watch(move || reader.read_here(&dir))
    }

    fn room(&self) -> usize {
        self.room
    }
}

impl LoraReader {
    fn read_here(&self, dir: &Path) -> Result<Lora, LoadError> {
        let of_config = dir.join(CONFIG);
        let named = |error| match error {
            LoadError::Config { key, what } => {
                LoadError::File { path: of_config.clone(), what: format!("{key}: {what}") }
            }
            other => other,
        };
        let text = read_file(&of_config, MAX_LORA_CONFIG_BYTES, &self.reads)?;
        let config = LoraConfig::read(&parse_json(&of_config, &text)?).map_err(named)?;
        let weights = CheckpointWeights::of_file(&dir.join(WEIGHTS), &self.reads)?;
        let modules = self.modules(&weights, &config).map_err(|error| {
            let of = config.base.as_ref().map(|base| format!(" (the adapter was made for {base})")).unwrap_or_default();
            LoadError::File { path: dir.join(WEIGHTS), what: format!("{}{of}", without_path(named(error))) }
        })?;
        let mut hashes = content_hash(&text).to_le_bytes().to_vec();
        for (_, hash) in weights.hashes()? {
            hashes.extend(hash.to_le_bytes());
        }
        weights.verify_reads()?;
        let rank = modules.iter().map(|module| module.rank).max().unwrap_or(0);
        let bytes = self.most_bytes(&modules)?;
        if bytes > self.room {
            let [needs, room] = [bytes, self.room].map(|bytes| ByteCount(bytes as u64));
            let what = format!("needs {needs} on a rank, where adapters have {room}: raise --lora-memory");
            return Err(LoadError::File { path: dir.to_owned(), what });
        }
        Ok(Lora { digest: content_hash(&hashes), rank, bytes, modules })
    }

    fn modules(&self, weights: &CheckpointWeights, config: &LoraConfig) -> Result<Vec<LoraModule>, LoadError> {
        let mut found = BTreeMap::<&str, Found>::new();
        for name in weights.names() {
            let (module, part) = module_of(name)?;
            let shape = weights.shape(name)?;
            let &[rows, cols] = shape else {
                return Err(wrong(name, format!("must be a matrix, got shape {shape:?}")));
            };
            let entry = found.entry(module).or_default();
            match part {
                Part::Down => entry.down = Some((name, [rows, cols])),
                Part::Up => entry.up = Some((name, [rows, cols])),
            }
        }
        if found.is_empty() {
            return Err(wrong(WEIGHTS, "has no tensors".into()));
        }
        let known: BTreeMap<&str, &LinearSpec> =
            self.spec.linears().filter(|l| !l.joined).map(|l| (l.module.as_str(), l)).collect();
        let (experts, mut modules) = (self.experts(), Vec::new());
        for (module, found) in found {
            let (Some(down), Some(up)) = (found.down, found.up) else {
                return Err(wrong(module, "has only one of lora_A and lora_B".into()));
            };
            let numbers = |(name, [rows, cols]): (&str, [usize; 2])| weights.vector(name, 0..rows * cols);
            let all = module.strip_suffix(INNER).unwrap_or(module);
            if let Some(layer) = names_of(all).find_map(|name| experts.get(&*name)) {
                layer.split(module, config, [down.1, up.1], numbers(down)?, numbers(up)?, &mut modules)?;
                continue;
            }
            let Some(spec) = names_of(module).find_map(|name| known.get(&*name)) else {
                return Err(self.unknown(module));
            };
            let ([rank, ins], [outs, rank_of_up]) = (down.1, up.1);
            let [want_outs, want_ins] = spec.stored_shape();
            check_rank(module, rank, rank_of_up)?;
            if [outs, ins] != [want_outs, want_ins] {
                let what = format!("is for [{outs}, {ins}], but the model's module is [{want_outs}, {want_ins}]");
                return Err(wrong(module, what));
            }
            let scale = config.scale(module, rank)?;
            let up = numbers(up)?.into_iter().map(|number| number * scale);
            modules.push(LoraModule {
                module: spec.module.as_str().into(),
                rank,
                down: floats(numbers(down)?),
                up: floats(up),
            });
        }
        Ok(modules)
    }

    fn unknown(&self, module: &str) -> LoadError {
        let Spec { architecture, head, embed, .. } = &*self.spec;
        let outer = head.as_ref().is_some_and(|head| head.module == module) || embed == module;
        wrong(
            module,
            match outer {
                true => "adapters of the embedding and of the head are not supported; leave it out of target_modules"
                    .to_owned(),
                false => format!("is no linear module of this {architecture}"),
            },
        )
    }

    /// The experts of each layer, by the module that has all of them.
    fn experts(&self) -> BTreeMap<&str, LayerExperts<'_>> {
        let mut all = BTreeMap::new();
        for layer in &self.spec.layers {
            if let Mlp::Moe(moe) = &layer.mlp
                && let Some(first) = moe.experts.first()
                // Without the expert's number and the matrix's name.
                && let Some(module) = first.gate.module.rsplitn(3, '.').nth(2)
            {
                all.insert(module, LayerExperts { experts: &moe.experts });
            }
        }
        all
    }

    /// On the rank that needs most.
    fn most_bytes(&self, modules: &[LoraModule]) -> Result<usize, LoadError> {
        let placement = place(&self.spec.shape(), self.ranks, 1)?;
        let specs: BTreeMap<&str, Vec<&LinearSpec>> = self.spec.linears().fold(BTreeMap::new(), |mut all, l| {
            all.entry(l.module.as_str()).or_insert_with(Vec::new).push(l);
            all
        });
        let of = |rank: &RankPlacement| {
            let parts = modules.iter().flat_map(|module| {
                let specs = specs.get(&*module.module).into_iter().flatten();
                specs.map(|l| numbers_of_rank_one(l, rank, self.ranks) * module.rank)
            });
            parts.sum::<usize>() * number_bytes(self.precision)
        };
        Ok(placement.ranks.iter().map(of).max().unwrap_or(0))
    }
}

impl LayerExperts<'_> {
    /// Splits the adapter of one tensor for all experts: `down` [experts * rank, in], expert by expert, and `up` [out,
    /// rank * experts], whose columns go through the experts for each number of the rank. The outputs are those of
    /// gate and up, or those of down.
    fn split(
        &self,
        module: &str,
        config: &LoraConfig,
        [[rows, ins], [outs, cols]]: [[usize; 2]; 2],
        down: Vec<f32>,
        up: Vec<f32>,
        modules: &mut Vec<LoraModule>,
    ) -> Result<(), LoadError> {
        let Some(first) = self.experts.first() else { return Ok(()) };
        let count = self.experts.len();
        let (inter, hidden) = (first.gate.out, first.gate.inp);
        if !rows.is_multiple_of(count) {
            return Err(wrong(module, format!("has {rows} rows of lora_A, not a multiple of {count} experts")));
        }
        if cols != rows {
            return Err(wrong(module, format!("has {rows} rows of lora_A, but {cols} columns of lora_B")));
        }
        let rank = rows / count;
        check_rank(module, rank, rank)?;
        let (parameter, fused) = match [outs, ins] {
            shape if shape == [2 * inter, hidden] => ("gate_up_proj", true),
            shape if shape == [hidden, inter] => ("down_proj", false),
            _ => {
                let what = format!(
                    "is for [{outs}, {ins}], but the model's experts are [{}, {hidden}] and [{hidden}, {inter}]",
                    2 * inter
                );
                return Err(wrong(module, what));
            }
        };
        let path = module.strip_suffix(INNER).unwrap_or(module);
        let scale = config.scale(&format!("{path}.{parameter}"), rank)?;
        for (e, expert) in self.experts.iter().enumerate() {
            let of_expert = floats(down[e * rank * ins..(e + 1) * rank * ins].iter().copied());
            let outputs = |range: std::ops::Range<usize>| {
                let all = range.flat_map(|out| (0..rank).map(move |k| out * cols + k * count + e));
                floats(all.map(|at| up[at] * scale))
            };
            let parts = match fused {
                true => vec![(&expert.gate, 0..inter), (&expert.up, inter..2 * inter)],
                false => vec![(&expert.down, 0..hidden)],
            };
            modules.extend(parts.into_iter().map(|(spec, range)| LoraModule {
                module: spec.module.as_str().into(),
                rank,
                down: of_expert.clone(),
                up: outputs(range),
            }));
        }
        Ok(())
    }
}

enum Part {
    Down,
    Up,
}

/// The module that a tensor of PEFT belongs to.
fn module_of(name: &str) -> Result<(&str, Part), LoadError> {
    let refused = |what: &str| Err(wrong(name, what.to_owned()));
    let Some(path) = name.strip_prefix(PREFIX) else {
        return refused("is no tensor of PEFT, whose names begin with base_model.model.");
    };
    if let Some(module) = path.strip_suffix(".lora_A.weight") {
        return Ok((module, Part::Down));
    }
    if let Some(module) = path.strip_suffix(".lora_B.weight") {
        return Ok((module, Part::Up));
    }
    if path.ends_with(".lora_embedding_A") || path.ends_with(".lora_embedding_B") {
        return refused("adapters of embeddings are not supported; leave them out of target_modules");
    }
    if path.contains(".lora_magnitude_vector") {
        return refused("is of DoRA, which is not supported: merge the adapter into its model instead");
    }
    refused("is neither lora_A nor lora_B of a module; trained copies of modules are not supported")
}

/// Modules that have other names in transformers 5 than in published files: of Mixtral, and of Hy3.
const RENAMED: &[(&str, &str)] =
    &[(".mlp.", ".block_sparse_moe."), (".mlp.gate", ".mlp.router.gate"), (".mlp.shared_experts.", ".mlp.shared_mlp.")];

/// Names that a module of PEFT's file may have in the model's.
fn names_of(module: &str) -> impl Iterator<Item = String> {
    let renamed = RENAMED.iter().map(|(theirs, ours)| module.replace(theirs, ours));
    std::iter::once(module.to_owned()).chain(renamed)
}

fn check_rank(module: &str, rank: usize, rank_of_up: usize) -> Result<(), LoadError> {
    if rank != rank_of_up {
        return Err(wrong(module, format!("has rank {rank} in lora_A and {rank_of_up} in lora_B")));
    }
    match rank {
        1..=MAX_LORA_RANK => Ok(()),
        _ => Err(wrong(module, format!("must have a rank from 1 to {MAX_LORA_RANK}, got {rank}"))),
    }
}

fn wrong(module: &str, what: String) -> LoadError {
    LoadError::File { path: module.into(), what }
}

/// What is wrong, for an error that names the file itself.
fn without_path(error: LoadError) -> String {
    match error {
        LoadError::File { path, what } => format!("{}: {what}", path.display()),
        other => other.to_string(),
    }
}

fn floats(numbers: impl IntoIterator<Item = f32>) -> Bytes {
    let numbers = numbers.into_iter();
    let mut bytes = BytesMut::with_capacity(4 * numbers.size_hint().0);
    numbers.for_each(|number| bytes.put_f32_le(number));
    bytes.freeze()
}
