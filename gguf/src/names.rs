//! The Hugging Face names of the tensors of a file. It does not read their values.

use std::collections::{BTreeMap, HashSet};

use crate::GgufError;
use crate::config::ArchShape;
use crate::container::{Gguf, TensorInfo};
use crate::families::NEGATIVE_EXP;
use crate::fields::MetadataFields;
use crate::rope::FACTOR_TENSORS;

/// Gates above ups, where files have both in one tensor.
const GATE_UP: &str = "ffn_gate_up_exps.weight";
const OF_GATE_UP: [&str; 2] = ["ffn_gate_exps.weight", "ffn_up_exps.weight"];

/// Tensors of a model after merged experts have been taken apart.
const MAX_NAMES: usize = 1 << 20;

/// One tensor, or one expert of a merged tensor, under the name that Rein's architectures expect.
///
/// DeepSeek's `kv_b_proj.weight` has the rows of head `h` at `h * (nope + v)`: first `nope` rows that make keys, then
/// `v` rows that make values, each of `kv_lora_rank` columns. Newer files store it as two tensors, which keep names of
/// their own:
/// - `self_attn.kv_b_proj.k_b` has the dimensions `[nope, kv_lora_rank, heads]`, innermost first: each head's key
///   rows transposed. Element `[n, r, h]` is row `h * (nope + v) + n`, column `r` of `kv_b_proj.weight`.
/// - `self_attn.kv_b_proj.v_b` has the dimensions `[kv_lora_rank, v, heads]`: element `[r, i, h]` is row
///   `h * (nope + v) + nope + i`, column `r`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTensor {
    pub name: String,
    /// Index in `Gguf::tensors`.
    pub tensor: usize,
    pub part: Option<ExpertPart>,
    pub rows: RowOrder,
    /// Its columns are in another order.
    pub cols: Option<InTurn>,
    pub change: Change,
}

/// Of a tensor of the experts of a layer: its outermost (last) dimension counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertPart {
    pub expert: usize,
    pub experts: usize,
    /// Piece `i` of `n` of the expert's rows.
    pub piece: (usize, usize),
}

/// What was done to the numbers of the Hugging Face tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// One was added: a norm's factors around one.
    PlusOne,
    /// `-exp(x)` is stored: a recurrent layer's decay.
    NegativeExp,
}

impl Change {
    /// The numbers of the Hugging Face tensor.
    pub fn undo(self, numbers: &mut [f32]) {
        match self {
            Change::Nothing => {}
            Change::PlusOne => numbers.iter_mut().for_each(|number| *number -= 1.0),
            Change::NegativeExp => numbers.iter_mut().for_each(|number| *number = f64::from(-*number).ln() as f32),
        }
    }
}

/// How the rows (the outermost dimension) of a tensor in the file are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// As in the Hugging Face tensor.
    Stored,
    /// Llama's converter stores the two rows that are rotated together as neighbours. Row `h * head_dim + 2 * i + j` of
    /// the file is row `h * head_dim + j * head_dim / 2 + i` of the Hugging Face tensor, for each head `h`, pair `i`
    /// and `j` of 0 and 1. The same holds for the elements of a bias.
    RotaryPairs {
        head_dim: usize,
    },
    InTurn(InTurn),
}

/// Value heads of a delta net, which are in `groups` with a key head each: on the Hub one group after the other, in the
/// file first the first of each group, then the second of each. Head `j` of group `g` is at
/// `after + (j * groups + g) * width`; what is before `after` is as on the Hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InTurn {
    pub after: usize,
    pub groups: usize,
    /// Rows, or columns, of a head.
    pub width: usize,
}

impl InTurn {
    /// Where row `row` of the Hugging Face tensor is in the file. `rows`: all of them.
    pub fn stored(self, row: usize, rows: usize) -> usize {
        let Some(at) = row.checked_sub(self.after) else { return row };
        let each = ((rows - self.after) / (self.groups * self.width)).max(1);
        let (head, within) = (at / self.width, at % self.width);
        self.after + (head % each * self.groups + head / each) * self.width + within
    }

    /// From row `row` of the Hugging Face tensor, so many are neighbours in the file.
    pub fn run(self, row: usize) -> usize {
        match row.checked_sub(self.after) {
            None => self.after - row,
            Some(at) => self.width - at % self.width,
        }
    }
}

/// All tensors that Rein loads. The layers of multi-token prediction and factors of rotary frequencies are left out.
pub fn hf_tensors(gguf: &Gguf) -> Result<Vec<NamedTensor>, GgufError> {
    let shape = ArchShape::read(&MetadataFields::new(gguf)?)?;
    let predicting = prediction_layers(gguf);
    let mut named = Vec::with_capacity(gguf.tensors.len());
    for (tensor, info) in gguf.tensors.iter().enumerate() {
        let place = place(info, &shape, &predicting)?;
        let Place::Named { at, names } = place else { continue };
        let whole = |name: &String| !name.contains('#');
        if names.iter().all(whole) {
            for name in names {
                let name = format!("{at}{name}");
                let (rows, cols) = (rows(info, &name, &shape)?, cols(info, &name, &shape)?);
                let change = change(&name, &shape);
                named.push(NamedTensor { name, tensor, part: None, rows, cols, change });
            }
            continue;
        }
        let experts = outermost(info, shape.experts, names.len())?;
        if named.len() + experts * names.len() > MAX_NAMES {
            return Err(GgufError::invalid(&info.name, format!("a model may have {MAX_NAMES} tensors")));
        }
        named.extend((0..experts * names.len()).map(|i| {
            let (expert, piece) = (i / names.len(), i % names.len());
            NamedTensor {
                name: format!("{at}{}", names[piece].replace('#', &expert.to_string())),
                tensor,
                part: Some(ExpertPart { expert, experts, piece: (piece, names.len()) }),
                rows: RowOrder::Stored,
                cols: None,
                change: Change::Nothing,
            }
        }));
    }
    let mut seen = BTreeMap::new();
    for one in &named {
        if let Some(other) = seen.insert(one.name.as_str(), one.tensor) {
            let names = [other, one.tensor].map(|i| gguf.tensors.get(i).map_or("", |info| info.name.as_str()));
            return Err(GgufError::invalid(names.join(" and "), format!("both are {}; give one of them", one.name)));
        }
    }
    Ok(named)
}

enum Place {
    LeftOut,
    /// By these names, after `at`. `#` is each expert's number; several are pieces of each expert's rows.
    Named {
        at: String,
        names: Vec<String>,
    },
}

fn unknown(info: &TensorInfo) -> GgufError {
    GgufError::unsupported(&info.name, "the tensor is unknown in this architecture")
}

fn place(info: &TensorInfo, shape: &ArchShape, predicting: &HashSet<&str>) -> Result<Place, GgufError> {
    if let Some(name) = shape.family.outside(&info.name) {
        return Ok(Place::Named { at: String::new(), names: vec![name] });
    }
    if FACTOR_TENSORS.contains(&info.name.as_str()) {
        return Ok(Place::LeftOut);
    }
    let block = info.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    // Not `parse` alone, which accepts "+1" and "01".
    let parsed = block.and_then(|(layer, rest)| Some((layer.parse::<u64>().ok()?, layer, rest)));
    let Some((layer, digits, rest)) = parsed.filter(|(number, text, _)| number.to_string() == *text) else {
        return Err(unknown(info));
    };
    if rest.starts_with("nextn.") {
        return Ok(Place::LeftOut);
    }
    if layer >= shape.layers {
        let predicts = layer < shape.all_layers || predicting.contains(digits);
        let what = format!("the layer must be below block_count, {}", shape.all_layers);
        return if predicts { Ok(Place::LeftOut) } else { Err(GgufError::invalid(&info.name, what)) };
    }
    let name = |rest: &str| shape.family.in_layer(rest, shape.experts);
    let names = match rest {
        GATE_UP => OF_GATE_UP.iter().map(|rest| name(rest)).collect(),
        _ => name(rest).map(|name| vec![name]),
    };
    let at = format!("{}{layer}.", shape.family.layers);
    names.map(|names| Place::Named { at, names }).ok_or_else(|| unknown(info))
}

/// The layers with tensors of multi-token prediction, as in the names.
fn prediction_layers(gguf: &Gguf) -> HashSet<&str> {
    let blocks = gguf.tensors.iter().filter_map(|tensor| tensor.name.strip_prefix("blk.")?.split_once('.'));
    blocks.filter(|(_, rest)| rest.starts_with("nextn.")).map(|(layer, _)| layer).collect()
}

fn change(name: &str, shape: &ArchShape) -> Change {
    if name.ends_with(NEGATIVE_EXP) {
        return Change::NegativeExp;
    }
    let from_one = shape.family.from_one.iter().any(|end| name.ends_with(end));
    if from_one { Change::PlusOne } else { Change::Nothing }
}

fn rows(info: &TensorInfo, name: &str, shape: &ArchShape) -> Result<RowOrder, GgufError> {
    if let Some(order) = shape.heads_in_turn.and_then(|heads| heads.rows(name)) {
        let rows = info.dims.last().copied().unwrap_or(0);
        return in_turn(info, order, rows).map(RowOrder::InTurn);
    }
    let rotated = [".q_proj.", ".k_proj."].iter().any(|part| name.contains(part));
    if !shape.family.pairs || !rotated {
        return Ok(RowOrder::Stored);
    }
    let rows = info.dims.last().copied().unwrap_or(0);
    match usize::try_from(shape.head_dim) {
        Ok(head_dim) if head_dim > 0 && rows.is_multiple_of(shape.head_dim) => Ok(RowOrder::RotaryPairs { head_dim }),
        _ => {
            let what = format!("must have a multiple of {} rows (the size of a head), got {rows}", shape.head_dim);
            Err(GgufError::invalid(&info.name, what))
        }
    }
}

fn cols(info: &TensorInfo, name: &str, shape: &ArchShape) -> Result<Option<InTurn>, GgufError> {
    let order = shape.heads_in_turn.and_then(|heads| heads.cols(name));
    order.map(|order| in_turn(info, order, info.dims.first().copied().unwrap_or(0))).transpose()
}

fn in_turn(info: &TensorInfo, order: InTurn, count: u64) -> Result<InTurn, GgufError> {
    let heads = count.checked_sub(order.after as u64);
    if heads.is_some_and(|heads| heads.is_multiple_of((order.groups * order.width) as u64)) {
        return Ok(order);
    }
    let what = format!(
        "must have {} rows and a multiple of {} times {} more, got {:?}",
        order.after, order.groups, order.width, info.dims
    );
    Err(GgufError::invalid(&info.name, what))
}

/// A delta net's heads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaHeads {
    pub keys: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl DeltaHeads {
    fn rows(self, name: &str) -> Option<InTurn> {
        let (_, part) = name.split_once(".linear_attn.")?;
        let (after, width) = match part {
            "in_proj_qkv.weight" | "conv1d.weight" => (2 * self.keys * self.key_dim, self.value_dim),
            "in_proj_z.weight" => (0, self.value_dim),
            "in_proj_b.weight" | "in_proj_a.weight" | "A_log" | "dt_bias" => (0, 1),
            _ => return None,
        };
        Some(InTurn { after, groups: self.keys, width })
    }

    fn cols(self, name: &str) -> Option<InTurn> {
        let order = InTurn { after: 0, groups: self.keys, width: self.value_dim };
        name.ends_with(".linear_attn.out_proj.weight").then_some(order)
    }
}

fn outermost(info: &TensorInfo, experts: u64, pieces: usize) -> Result<usize, GgufError> {
    match (info.dims.as_slice(), usize::try_from(experts)) {
        (&[_, rows, last], Ok(count)) if last == experts && rows.is_multiple_of(pieces as u64) => Ok(count),
        _ => {
            let what = format!("must have 3 dimensions, the last of expert_count, {experts}, got {:?}", info.dims);
            Err(GgufError::invalid(&info.name, what))
        }
    }
}

#[cfg(test)]
mod tests;
