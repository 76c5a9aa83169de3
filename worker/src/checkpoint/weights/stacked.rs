//! The matrices of a layer's experts in one tensor, as gpt-oss has them: transposed, or as MXFP4.

use std::collections::HashSet;
use std::ops::Range;

use rein_kernels::quant::MXFP4_GROUP;

use super::super::error::LoadError;
use super::super::stored::{StoredDtype, TensorEntry};
use super::{CheckpointWeights, Stored, is_float, mis_shaped, mistyped};

impl CheckpointWeights {
    /// [`Shards::rename`].
    pub fn rename(&mut self, from: &str, to: &str) {
        self.shards.rename(from, to);
    }

    /// [`Shards::unstack`].
    pub fn unstack(&mut self, modules: &[(String, [usize; 2])]) {
        let known: HashSet<&str> = modules.iter().map(|(module, _)| module.as_str()).collect();
        self.shards.unstack(|module| known.contains(module));
    }

    /// A tensor [experts, in, outs] with the module's name.
    pub(super) fn transposed_entry(&self, module: &str) -> Option<&TensorEntry> {
        self.entry(module).filter(|entry| is_float(entry.dtype) && entry.shape.len() == 3)
    }

    /// The weight [out, in] of a module of this kind, if it is one.
    pub(super) fn transposed(
        &self,
        module: &str,
        [out, inp]: [usize; 2],
        used: &mut HashSet<String>,
    ) -> Result<Option<Stored<'_>>, LoadError> {
        let Some(entry) = self.transposed_entry(module) else { return Ok(None) };
        if entry.shape[1] != inp || entry.shape[0] * entry.shape[2] != out {
            return Err(mis_shaped(module, entry, &[entry.shape[0], inp, out / entry.shape[0].max(1)]));
        }
        used.insert(module.to_owned());
        Ok(Some(Stored::Transposed(entry)))
    }

    /// Rows and columns of one.
    pub(super) fn transposed_numbers(
        &self,
        entry: &TensorEntry,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<Vec<f32>, LoadError> {
        let (inp, outs) = (entry.shape[1], entry.shape[2].max(1));
        let experts = rows.start / outs..rows.end.div_ceil(outs);
        let all = self.floats(entry, experts.start * inp * outs..experts.end * inp * outs)?;
        let of = |row: usize| {
            let first = (row / outs - experts.start) * inp * outs + row % outs;
            let all = &all;
            cols.clone().map(move |col| all[first + col * outs])
        };
        Ok(rows.flat_map(of).collect())
    }

    /// The codes [experts, outs, in / 32, 16] and the scales [experts, outs, in / 32] of a module, if it has them.
    pub(super) fn fp4_blocks(
        &self,
        module: &str,
        [out, inp]: [usize; 2],
        used: &mut HashSet<String>,
    ) -> Result<Option<[&TensorEntry; 2]>, LoadError> {
        let [codes, scales] = ["blocks", "scales"].map(|part| format!("{module}_{part}"));
        let Some(found) = self.entry(&codes) else { return Ok(None) };
        let groups = inp / MXFP4_GROUP;
        let experts = found.shape.first().copied().unwrap_or(0).max(1);
        let mut need = |name: String, rest: &[usize]| {
            let entry = self.entry(&name).ok_or_else(|| LoadError::Missing(vec![name.clone()]))?;
            let shape = [&[experts, out / experts, groups], rest].concat();
            if entry.shape != shape || groups * MXFP4_GROUP != inp {
                return Err(mis_shaped(&name, entry, &shape));
            }
            if entry.dtype != StoredDtype::U8 {
                return Err(mistyped(&name, entry, "U8"));
            }
            used.insert(name);
            Ok(entry)
        };
        Ok(Some([need(codes, &[MXFP4_GROUP / 2])?, need(scales, &[])?]))
    }
}
