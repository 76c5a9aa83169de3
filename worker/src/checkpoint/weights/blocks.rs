//! Weights of GGUF files: rows of blocks, and what is stored in two tensors.

use std::ops::Range;

use half::bf16;
use rein_kernels::quant::MXFP4_GROUP;
use rein_kernels::{BlockForm, HostData, HostForm, HostMatrix};

use super::super::error::LoadError;
use super::super::parts::cut_bytes;
use super::super::stored::{StoredDtype, TensorEntry};
use super::{CheckpointWeights, PART, extend_f32};

impl CheckpointWeights {
    /// Rows and columns of blocks; numbers where a part begins or ends within one.
    pub(super) fn mxfp4(
        &self,
        entry: &TensorEntry,
        inp: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        form: HostForm,
    ) -> Result<HostData, LoadError> {
        let (groups, size) = (inp / MXFP4_GROUP, entry.dtype.size());
        let whole = cols.start.is_multiple_of(MXFP4_GROUP) && cols.end.is_multiple_of(MXFP4_GROUP);
        let (mut packed, mut scales, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        let step = (PART / (groups * size).max(1)).max(1);
        for first in rows.clone().step_by(step) {
            let last = (first + step).min(rows.end);
            let bytes = self.bytes(entry, first * groups * size..last * groups * size)?;
            let (mut codes_here, mut scales_here) = (Vec::new(), Vec::new());
            for block in bytes.chunks_exact(size) {
                let (scale, codes) = block.split_at(1);
                scales_here.extend_from_slice(scale);
                // Number i is in the lower half of byte i, number i + 16 in its upper half.
                let nibble = |i: usize| codes[i % 16] >> (i / 16 * 4) & 0xf;
                codes_here.extend((0..16).map(|i| nibble(2 * i) | nibble(2 * i + 1) << 4));
            }
            if whole {
                packed.extend(cut_bytes(codes_here.into(), inp / 2, cols.start / 2..cols.end / 2));
                scales.extend(cut_bytes(scales_here.into(), groups, cols.start / MXFP4_GROUP..cols.end / MXFP4_GROUP));
                continue;
            }
            let data = HostData::Mxfp4 { packed: codes_here, scales: scales_here };
            let wide = HostMatrix { rows: last - first, cols: inp, data }.into_form(HostForm::F32)?;
            let HostData::F32(wide) = wide.data else { unreachable!("converted to f32") };
            let part = wide.chunks_exact(inp.max(1)).flat_map(|row| &row[cols.clone()]);
            // Exact in bf16: a code and a power of two.
            numbers.extend(part.map(|&number| bf16::from_f32(number)));
        }
        Ok(match (whole, form) {
            (true, _) => HostData::Mxfp4 { packed, scales },
            (false, HostForm::F32) => HostData::F32(numbers.into_iter().map(bf16::to_f32).collect()),
            (false, _) => HostData::Bf16(numbers.into()),
        })
    }

    pub(super) fn blocks(
        &self,
        entry: &TensorEntry,
        blocks: BlockForm,
        inp: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        form: HostForm,
    ) -> Result<HostData, LoadError> {
        let row = entry.len() / entry.shape.first().map_or(1, |&rows| rows.max(1));
        let numbers = blocks.numbers();
        // A part that begins or ends within a block is decoded.
        let whole = cols.start.is_multiple_of(numbers) && cols.end.is_multiple_of(numbers);
        if form == HostForm::Stored && whole {
            let bytes = self.bytes(entry, rows.start * row..rows.end * row)?;
            let cut = cols.start / numbers * blocks.bytes()..cols.end / numbers * blocks.bytes();
            return Ok(HostData::Blocks { form: blocks, bytes: cut_bytes(bytes.into(), row, cut).into_vec() });
        }
        let wide = form == HostForm::F32;
        let (mut f32s, mut bf16s) = (Vec::new(), Vec::new());
        let step = (PART / row.max(1)).max(1);
        for first in rows.clone().step_by(step) {
            let last = (first + step).min(rows.end);
            let decoded = blocks.decode(&self.bytes(entry, first * row..last * row)?);
            for decoded in decoded.chunks_exact(inp.max(1)).map(|row| &row[cols.clone()]) {
                match wide {
                    true => f32s.extend_from_slice(decoded),
                    false => bf16s.extend(decoded.iter().map(|&x| bf16::from_f32(x))),
                }
            }
        }
        Ok(if wide { HostData::F32(f32s) } else { HostData::Bf16(bf16s.into()) })
    }

    /// Rows and columns of `kv_b_proj`: of each head first the rows of keys, which are stored transposed, then those of
    /// values.
    pub(super) fn latent_expansion(
        &self,
        keys: &TensorEntry,
        values: &TensorEntry,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<Vec<f32>, LoadError> {
        let (&[heads, inp, nope], &[_, v, _]) = (&keys.shape[..], &values.shape[..]) else {
            return Err(LoadError::Missing(vec!["kv_b_proj".into()]));
        };
        let of_head = nope + v;
        let used = rows.start / of_head.max(1)..rows.end.div_ceil(of_head.max(1));
        let [keys, values] = [keys, values].map(|entry| {
            let head = entry.len() / heads.max(1);
            let bytes = self.bytes(entry, used.start * head..used.end * head)?;
            Ok::<_, LoadError>(match entry.dtype {
                StoredDtype::Blocks(form) => form.decode(&bytes),
                dtype => {
                    let mut numbers = Vec::new();
                    extend_f32(&mut numbers, &bytes, dtype);
                    numbers
                }
            })
        });
        let (keys, values) = (keys?, values?);
        let mut out = Vec::with_capacity(rows.len() * cols.len());
        for row in rows {
            let (head, row) = (row / of_head - used.start, row % of_head);
            match row.checked_sub(nope) {
                None => out.extend(cols.clone().map(|col| keys[(head * inp + col) * nope + row])),
                Some(row) => out.extend_from_slice(&values[(head * v + row) * inp..][..inp][cols.clone()]),
            }
        }
        Ok(out)
    }
}
