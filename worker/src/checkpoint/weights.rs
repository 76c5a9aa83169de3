//! Reads parts of weights from any stored form, and converts them to the form that a backend takes. It does not know
//! architectures.

mod blocks;
mod coded;
mod numbers;
mod stacked;

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coded::Coded;
use half::bf16;
use numbers::{extend_bf16, extend_f32, narrowed};
use rein_kernels::{
    BY_OUTPUT, BlockForm, GroupScales, HostBuffer, HostData, HostForm, HostMatrix, HostNumber, HostPool, ScaleForm,
    StoredForm,
};

use super::error::LoadError;
use super::forms::CodedForm;
use super::parts::{cut_bytes, cut_nibbles, cut_scales};
use super::quant::Quantization;
use super::reads::Reads;
use super::safetensors::Shards;
use super::stored::{StoredDtype, TensorEntry};

/// Bytes of a plain tensor that are read at a time, unless a row is longer.
const PART: usize = 4 << 20;

pub struct CheckpointWeights {
    shards: Shards,
    quantization: Quantization,
}

/// A linear module's weight as stored.
enum Stored<'a> {
    Dense(&'a TensorEntry),
    Fp8 {
        codes: &'a TensorEntry,
        scales: &'a TensorEntry,
        block: [usize; 2],
    },
    Int4 {
        packed: &'a TensorEntry,
        scales: &'a TensorEntry,
        group: usize,
    },
    Coded(Coded<'a>),
    Blocks(&'a TensorEntry, BlockForm),
    /// Of GGUF.
    Mxfp4(&'a TensorEntry),
    Transposed(&'a TensorEntry),
    /// Of GGUF: `kv_b_proj` in two tensors, [heads, in, nope] and [heads, v, in].
    Latent {
        keys: &'a TensorEntry,
        values: &'a TensorEntry,
    },
}

impl CheckpointWeights {
    pub fn open(dir: &Path, quantization: Quantization, reads: &Arc<Reads>) -> Result<Self, LoadError> {
        Ok(Self { shards: Shards::open(dir, reads)?, quantization })
    }

    /// The plain tensors of one safetensors file.
    pub fn of_file(path: &Path, reads: &Arc<Reads>) -> Result<Self, LoadError> {
        Ok(Self { shards: Shards::of_file(path, reads)?, quantization: Quantization::None })
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.shards.names()
    }

    /// The shape of the plain tensor `name`, which must be of floats.
    pub fn shape(&self, name: &str) -> Result<&[usize], LoadError> {
        match self.shards.get(name) {
            None => Err(LoadError::Missing(vec![name.to_owned()])),
            Some(entry) if !is_float(entry.dtype) => Err(mistyped(name, entry, "F32, F16 or BF16")),
            Some(entry) => Ok(&entry.shape),
        }
    }

    /// [`Shards::nest`].
    pub fn nest(&mut self, prefix: &str) {
        self.shards.nest(prefix);
    }

    /// [`Shards::hashes`].
    pub fn hashes(&self) -> Result<Vec<(PathBuf, u64)>, LoadError> {
        self.shards.hashes()
    }

    /// [`Shards::check_unmodified`].
    pub fn check_unmodified(&self) -> Result<(), LoadError> {
        self.shards.check_unmodified()
    }

    /// [`Shards::verify_reads`]. Whatever is read must be checked with it before use.
    pub fn verify_reads(&self) -> Result<(), LoadError> {
        self.shards.verify_reads()
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.shards.get(tensor).is_some()
    }

    /// Whether both tensors exist and have the same bytes.
    pub fn equal(&self, a: &str, b: &str) -> Result<bool, LoadError> {
        let (Some(a), Some(b)) = (self.shards.get(a), self.shards.get(b)) else { return Ok(false) };
        if (a.dtype, a.len()) != (b.dtype, b.len()) {
            return Ok(false);
        }
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for start in (0..a.len()).step_by(PART) {
            let part = start..(start + PART).min(a.len());
            self.shards.read(a, part.clone(), &mut left)?;
            self.shards.read(b, part, &mut right)?;
            if left != right {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The dtype of the plain tensor `name`.
    pub fn dtype(&self, name: &str) -> Option<StoredDtype> {
        self.shards.get(name).map(|entry| entry.dtype)
    }

    /// Compares the checkpoint with the tensors that the model needs: `modules` are linear weights by module name with
    /// [out, in], `tensors` are plain tensors by full name. Other tensors must be `harmless`.
    pub fn check(
        &self,
        modules: &[(String, [usize; 2])],
        tensors: &[(String, Vec<usize>)],
        harmless: impl Fn(&str) -> bool,
    ) -> Result<(), LoadError> {
        let mut used = HashSet::new();
        let mut missing = Vec::new();
        for (module, [out, inp]) in modules {
            match self.stored(module, *out, *inp, &mut used) {
                Ok(_) => {}
                Err(LoadError::Missing(names)) => missing.extend(names),
                Err(error) => return Err(error),
            }
        }
        for (name, shape) in tensors {
            used.insert(name.clone());
            match self.shards.get(name) {
                None => missing.push(name.clone()),
                Some(entry) if !is_shaped(entry, shape) => return Err(mis_shaped(name, entry, shape)),
                Some(entry) if !is_float(entry.dtype) => return Err(mistyped(name, entry, "F32, F16 or BF16")),
                Some(_) => {}
            }
        }
        if !missing.is_empty() {
            return Err(LoadError::Missing(missing));
        }
        let mut extra = Vec::new();
        for name in self.shards.names().filter(|name| !used.contains(*name) && !harmless(name)) {
            if !self.is_empty_bias(name)? {
                extra.push(name.clone());
            }
        }
        if extra.is_empty() { Ok(()) } else { Err(LoadError::Extra(extra)) }
    }

    /// auto-gptq wrote a bias of zeros beside each weight.
    fn is_empty_bias(&self, name: &str) -> Result<bool, LoadError> {
        let Quantization::Coded(form @ CodedForm::Gptq { .. }) = self.quantization else { return Ok(false) };
        let Some(module) = name.strip_suffix(".bias") else { return Ok(false) };
        match self.shards.get(name).filter(|entry| is_float(entry.dtype) && self.is_coded(form, module)) {
            Some(entry) => Ok(self.floats(entry, 0..entry.len() / entry.dtype.size())?.iter().all(|&bias| bias == 0.0)),
            None => Ok(false),
        }
    }

    fn is_coded(&self, form: CodedForm, module: &str) -> bool {
        self.has(&format!("{module}.{}", form.codes())) || (form.has_blocks() && self.has(&format!("{module}_blocks")))
    }

    /// Finds a module's weight, checks its parts against [out, inp] and records their names.
    fn stored(
        &self,
        module: &str,
        out: usize,
        inp: usize,
        used: &mut HashSet<String>,
    ) -> Result<Stored<'_>, LoadError> {
        let plain = format!("{module}.weight");
        if let Quantization::Coded(form) = self.quantization
            && let Some(coded) = self.coded(form, module, [out, inp], used)?
        {
            used.extend(self.scales_of_activations(module));
            return Ok(Stored::Coded(coded));
        }
        if let Some(stacked) = self.transposed(module, [out, inp], used)? {
            return Ok(stacked);
        }
        let need = |name: String, shape: &[usize], used: &mut HashSet<String>| {
            let entry = self.shards.get(&name).ok_or_else(|| LoadError::Missing(vec![name.clone()]))?;
            // Matrices of the experts of a layer may be one tensor.
            let stacked =
                matches!((&entry.shape[..], shape), (&[n, rows, cols], &[out, inp]) if [n * rows, cols] == [out, inp]);
            if !is_shaped(entry, shape) && !stacked {
                return Err(mis_shaped(&name, entry, shape));
            }
            used.insert(name);
            Ok(entry)
        };
        let scale_is_float = |name: &str, entry: &TensorEntry| match is_float(entry.dtype) {
            true => Ok(()),
            false => Err(mistyped(name, entry, "F32, F16 or BF16")),
        };
        if let (None, Some(keys)) = (self.shards.get(&plain), self.shards.get(&format!("{module}.k_b"))) {
            let &[heads, _, nope] = &keys.shape[..] else {
                return Err(mis_shaped(&format!("{module}.k_b"), keys, &[1, inp, out]));
            };
            let v = (out / heads.max(1)).saturating_sub(nope);
            let (keys, values) = (format!("{module}.k_b"), format!("{module}.v_b"));
            let keys_entry = need(keys.clone(), &[heads, inp, nope], used)?;
            let values_entry = need(values.clone(), &[heads, v, inp], used)?;
            for (name, entry) in [(&keys, keys_entry), (&values, values_entry)] {
                if !is_float(entry.dtype) && !matches!(entry.dtype, StoredDtype::Blocks(_)) {
                    return Err(mistyped(name, entry, "F32, F16, BF16 or in blocks of integers"));
                }
            }
            return Ok(Stored::Latent { keys: keys_entry, values: values_entry });
        }
        if let Some(&TensorEntry { dtype: StoredDtype::Blocks(form), .. }) = self.shards.get(&plain) {
            return Ok(Stored::Blocks(need(plain, &[out, inp], used)?, form));
        }
        if self.shards.get(&plain).is_some_and(|entry| entry.dtype == StoredDtype::Mxfp4) {
            return Ok(Stored::Mxfp4(need(plain, &[out, inp], used)?));
        }
        match (self.quantization, self.shards.get(&plain)) {
            (Quantization::Fp8Scaled { block }, Some(entry)) if entry.dtype == StoredDtype::F8E4m3 => {
                let codes = need(plain, &[out, inp], used)?;
                let names = ["weight_scale", "weight_scale_inv"].map(|part| format!("{module}.{part}"));
                // Both are what codes are multiplied with.
                let name = names.iter().find(|name| self.has(name)).unwrap_or(&names[0]).clone();
                let found = self.shards.get(&name).map(|entry| entry.shape.clone()).unwrap_or_default();
                let (shape, block) = match (&found[..], block) {
                    // One for the tensor.
                    ([] | [1], _) => (found, [out, inp]),
                    // One for each output.
                    ([_], None) => (vec![out], [1, inp]),
                    (_, None) => (vec![out, 1], [1, inp]),
                    (_, Some(block)) => (vec![out.div_ceil(block[0]), inp.div_ceil(block[1])], block),
                };
                let scales = need(name.clone(), &shape, used)?;
                scale_is_float(&name, scales)?;
                used.extend(self.scales_of_activations(module));
                Ok(Stored::Fp8 { codes, scales, block })
            }
            (Quantization::Fp8 { block }, Some(entry)) if entry.dtype == StoredDtype::F8E4m3 => {
                let codes = need(plain, &[out, inp], used)?;
                let name = format!("{module}.weight_scale_inv");
                let scales = need(name.clone(), &[out.div_ceil(block[0]), inp.div_ceil(block[1])], used)?;
                scale_is_float(&name, scales)?;
                Ok(Stored::Fp8 { codes, scales, block })
            }
            (Quantization::Int4 { group }, None) if self.has(&format!("{module}.weight_packed")) => {
                let packed = need(format!("{module}.weight_packed"), &[out, inp.div_ceil(8)], used)?;
                if packed.dtype != StoredDtype::I32 {
                    return Err(mistyped(&format!("{module}.weight_packed"), packed, "I32"));
                }
                let name = format!("{module}.weight_scale");
                let scales = need(name.clone(), &[out, inp.div_ceil(group)], used)?;
                scale_is_float(&name, scales)?;
                let name = format!("{module}.weight_shape");
                let shape = self.integers(&name, need(name.clone(), &[2], used)?)?;
                if shape != [out, inp] {
                    return Err(LoadError::TensorShape { name, found: shape, expected: vec![out, inp] });
                }
                Ok(Stored::Int4 { packed, scales, group })
            }
            (_, Some(entry)) if !is_float(entry.dtype) => {
                let expected = "F32, F16 or BF16 (F8_E4M3 only with quantization_config.quant_method fp8)";
                Err(mistyped(&plain, entry, expected))
            }
            _ => Ok(Stored::Dense(need(plain, &[out, inp], used)?)),
        }
    }

    /// Tensors for activations that are quantized elsewhere; here they are not.
    fn scales_of_activations(&self, module: &str) -> impl Iterator<Item = String> {
        ["input_scale", "input_zero_point", "input_global_scale", "activation_scale"]
            .map(|part| format!("{module}.{part}"))
            .into_iter()
            .filter(|n| self.has(n))
    }

    pub(super) fn entry(&self, name: &str) -> Option<&TensorEntry> {
        self.shards.get(name)
    }

    pub(super) fn integers(&self, name: &str, entry: &TensorEntry) -> Result<Vec<usize>, LoadError> {
        let bytes = self.bytes(entry, 0..entry.len())?;
        match entry.dtype {
            StoredDtype::I64 => Ok(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as usize).collect()),
            StoredDtype::I32 => Ok(bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as usize).collect()),
            _ => Err(mistyped(name, entry, "I64 or I32")),
        }
    }

    /// Rows and columns of a module's weight [out, inp], in the form that `form` says for its stored form, and in
    /// memory of a pool if the file has that form.
    pub fn matrix(
        &self,
        module: &str,
        [out, inp]: [usize; 2],
        rows: Range<usize>,
        cols: Range<usize>,
        form: impl FnOnce(StoredForm) -> HostForm,
        pool: &Arc<HostPool>,
    ) -> Result<HostMatrix, LoadError> {
        let Some(order) = self.shards.get(&format!("{module}.weight")).and_then(|entry| entry.cols) else {
            return self.stored_matrix(module, [out, inp], rows, cols, form, pool);
        };
        let whole = |stored| match stored {
            StoredForm::Blocks(blocks) => order.width.is_multiple_of(blocks.numbers()),
            StoredForm::F32 | StoredForm::F16 | StoredForm::Bf16 => true,
            _ => false,
        };
        let kept = |stored| match form(stored) {
            HostForm::Stored if !whole(stored) => HostForm::Bf16,
            form => form,
        };
        let mut runs = Vec::new();
        let mut col = cols.start;
        while col < cols.end {
            let (first, len) = (order.stored(col, inp), order.run(col).min(cols.end - col));
            runs.push(first..first + len);
            col += len;
        }
        Ok(self.stored_matrix(module, [out, inp], rows, 0..inp, kept, pool)?.columns(&runs)?)
    }

    /// In the order of the file.
    fn stored_matrix(
        &self,
        module: &str,
        [out, inp]: [usize; 2],
        rows: Range<usize>,
        cols: Range<usize>,
        form: impl FnOnce(StoredForm) -> HostForm,
        pool: &Arc<HostPool>,
    ) -> Result<HostMatrix, LoadError> {
        let shape = (rows.len(), cols.len());
        let (data, form) = match self.stored(module, out, inp, &mut HashSet::new())? {
            Stored::Coded(coded) => {
                let form = form(coded.form.stored());
                if form == HostForm::Stored
                    && let Some(data) = self.kept(&coded, rows.clone(), cols.clone())?
                {
                    return Ok(HostMatrix { rows: shape.0, cols: shape.1, data });
                }
                let numbers = self.decoded(&coded, rows, cols)?;
                let form = if form == HostForm::Stored { HostForm::Bf16 } else { form };
                (narrowed(numbers, form), form)
            }
            Stored::Blocks(entry, blocks) => {
                let form = form(StoredForm::Blocks(blocks));
                (self.blocks(entry, blocks, inp, rows, cols, form)?, form)
            }
            Stored::Mxfp4(entry) => {
                let form = form(StoredForm::Mxfp4);
                (self.mxfp4(entry, inp, rows, cols, form)?, form)
            }
            Stored::Transposed(entry) => {
                let form = form(dense_form(entry.dtype));
                (narrowed(self.transposed_numbers(entry, rows, cols)?, form), form)
            }
            Stored::Latent { keys, values } => {
                let form = form(StoredForm::F32);
                (narrowed(self.latent_expansion(keys, values, rows, cols)?, form), form)
            }
            Stored::Dense(entry) => {
                let form = form(dense_form(entry.dtype));
                (self.dense(entry, inp, rows, cols, form, pool)?, form)
            }
            Stored::Fp8 { codes, scales, block } => {
                let scale_cols = inp.div_ceil(block[1]);
                let scale_rows = rows.start / block[0]..rows.end.div_ceil(block[0]);
                let scales = self.floats(scales, scale_rows.start * scale_cols..scale_rows.end * scale_cols)?;
                let bytes = self.pooled(codes, rows.start * inp..rows.end * inp, pool)?;
                let (scales, part_block, stored) = match block {
                    // Of a tensor or of an output: then one of each output.
                    [outs, ins] if ins >= inp && self.stored_form(module) == (StoredForm::Fp8 { block: BY_OUTPUT }) => {
                        let first = rows.start / outs;
                        let scales = rows.clone().map(|row| scales[row / outs - first]).collect();
                        (scales, [1, cols.len().max(1)], BY_OUTPUT)
                    }
                    block => {
                        let (scales, part_block) = cut_scales(&scales, scale_cols, block, &rows, &cols);
                        (scales, part_block, block)
                    }
                };
                let codes = cut_bytes(bytes, inp, cols);
                (HostData::Fp8 { codes, scales, block: part_block }, form(StoredForm::Fp8 { block: stored }))
            }
            Stored::Int4 { packed, scales, group } => {
                let (scale_cols, block) = (inp.div_ceil(group), [1, group]);
                let part = rows.start * scale_cols..rows.end * scale_cols;
                let (scales, [_, part_group]) = match scale_form(scales.dtype) {
                    ScaleForm::Bf16 => {
                        let (cut, size) = cut_scales(&self.bf16s(scales, part)?, scale_cols, block, &rows, &cols);
                        (GroupScales::Bf16(cut), size)
                    }
                    ScaleForm::F32 => {
                        let (cut, size) = cut_scales(&self.floats(scales, part)?, scale_cols, block, &rows, &cols);
                        (GroupScales::F32(cut), size)
                    }
                };
                let stored = StoredForm::Int4 { group, scales: scales.form() };
                let stride = inp.div_ceil(8) * 4;
                let bytes = self.pooled(packed, rows.start * stride..rows.end * stride, pool)?;
                let packed = cut_nibbles(bytes, stride, inp, cols);
                (HostData::Int4 { packed, scales, group: part_group }, form(stored))
            }
        };
        Ok(HostMatrix { rows: shape.0, cols: shape.1, data }.into_form(form)?)
    }

    /// How a module's weight is stored. A missing weight counts as f32.
    pub fn stored_form(&self, module: &str) -> StoredForm {
        let plain = self.shards.get(&format!("{module}.weight")).or(self.transposed_entry(module));
        match (plain, self.quantization) {
            (Some(&TensorEntry { dtype: StoredDtype::Blocks(form), .. }), _) => StoredForm::Blocks(form),
            (Some(&TensorEntry { dtype: StoredDtype::Mxfp4, .. }), _) => StoredForm::Mxfp4,
            (Some(entry), Quantization::Fp8 { block }) if entry.dtype == StoredDtype::F8E4m3 => {
                StoredForm::Fp8 { block }
            }
            (Some(entry), Quantization::Fp8Scaled { block }) if entry.dtype == StoredDtype::F8E4m3 => {
                // Without blocks a scale is for all inputs.
                StoredForm::Fp8 { block: block.unwrap_or(BY_OUTPUT) }
            }
            (Some(entry), _) if is_float(entry.dtype) => dense_form(entry.dtype),
            (_, Quantization::Coded(form)) if self.is_coded(form, module) => form.stored(),
            (None, Quantization::Coded(_)) => StoredForm::Bf16,
            (Some(entry), _) => dense_form(entry.dtype),
            (None, Quantization::Int4 { group }) => {
                let scales = self.shards.get(&format!("{module}.weight_scale"));
                StoredForm::Int4 { group, scales: scales.map_or(ScaleForm::F32, |entry| scale_form(entry.dtype)) }
            }
            (None, _) => StoredForm::F32,
        }
    }

    /// Approximate bytes of the checkpoint for a part of a module's weight.
    pub fn cost(&self, module: &str, elements: usize) -> u64 {
        match self.shards.get(&format!("{module}.weight")) {
            Some(entry) => {
                let all: u64 = entry.shape.iter().map(|&n| n as u64).product();
                (entry.len() as u64 * elements as u64) / all.max(1)
            }
            None => (elements / 2) as u64,
        }
    }

    /// Whether files store most numbers in blocks.
    pub fn has_blocks(&self) -> bool {
        self.shards.has_blocks()
    }

    /// A plain tensor's elements as f32.
    pub fn vector(&self, name: &str, range: Range<usize>) -> Result<Vec<f32>, LoadError> {
        let entry = self.shards.get(name).ok_or_else(|| LoadError::Missing(vec![name.to_owned()]))?;
        self.floats(entry, range)
    }

    pub(super) fn bytes(&self, entry: &TensorEntry, within: Range<usize>) -> Result<Vec<u8>, LoadError> {
        let mut bytes = Vec::new();
        self.shards.read(entry, within, &mut bytes)?;
        Ok(bytes)
    }

    /// Bytes of whole numbers as they are stored.
    fn pooled<T: HostNumber>(
        &self,
        entry: &TensorEntry,
        within: Range<usize>,
        pool: &Arc<HostPool>,
    ) -> Result<HostBuffer<T>, LoadError> {
        let mut numbers = pool.take::<T>(within.len() / size_of::<T>())?;
        self.shards.read_to(entry, within.start, numbers.bytes_mut())?;
        Ok(numbers)
    }

    pub(super) fn floats(&self, entry: &TensorEntry, range: Range<usize>) -> Result<Vec<f32>, LoadError> {
        let size = entry.dtype.size();
        let mut out = Vec::with_capacity(range.len());
        extend_f32(&mut out, &self.bytes(entry, range.start * size..range.end * size)?, entry.dtype);
        entry.change.undo(&mut out);
        Ok(out)
    }

    fn bf16s(&self, entry: &TensorEntry, range: Range<usize>) -> Result<Vec<bf16>, LoadError> {
        let size = entry.dtype.size();
        let mut out = Vec::with_capacity(range.len());
        extend_bf16(&mut out, &self.bytes(entry, range.start * size..range.end * size)?, entry.dtype);
        Ok(out)
    }

    fn dense(
        &self,
        entry: &TensorEntry,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        form: HostForm,
        pool: &Arc<HostPool>,
    ) -> Result<HostData, LoadError> {
        let size = entry.dtype.size();
        let row = stride * size;
        if form != HostForm::F32 && entry.dtype == StoredDtype::Bf16 && cols.len() == stride {
            return Ok(HostData::Bf16(self.pooled(entry, rows.start * row..rows.end * row, pool)?));
        }
        let mut part = Vec::new();
        // A few rows at a time, so that only they are in memory in both forms.
        let mut each = |take: &mut dyn FnMut(&[u8])| {
            let step = (PART / row.max(1)).max(1);
            for first in rows.clone().step_by(step) {
                let last = (first + step).min(rows.end);
                self.shards.read(entry, first * row..last * row, &mut part)?;
                match cols.len() == stride {
                    true => take(&part),
                    false => part.chunks(row).for_each(|row| take(&row[cols.start * size..cols.end * size])),
                }
            }
            Ok::<_, LoadError>(())
        };
        let count = rows.len() * cols.len();
        Ok(if form == HostForm::F32 || (form == HostForm::Stored && entry.dtype != StoredDtype::Bf16) {
            let mut out = Vec::with_capacity(count);
            each(&mut |bytes| extend_f32(&mut out, bytes, entry.dtype))?;
            HostData::F32(out)
        } else {
            let mut out = Vec::with_capacity(count);
            each(&mut |bytes| extend_bf16(&mut out, bytes, entry.dtype))?;
            HostData::Bf16(out.into())
        })
    }
}

fn dense_form(dtype: StoredDtype) -> StoredForm {
    match dtype {
        StoredDtype::F16 => StoredForm::F16,
        StoredDtype::Bf16 => StoredForm::Bf16,
        _ => StoredForm::F32,
    }
}

/// The form in which the scales of int4 are handed over. bf16 takes half the memory; f16 is exact in f32 only.
fn scale_form(dtype: StoredDtype) -> ScaleForm {
    if dtype == StoredDtype::Bf16 { ScaleForm::Bf16 } else { ScaleForm::F32 }
}

pub(super) fn is_float(dtype: StoredDtype) -> bool {
    matches!(dtype, StoredDtype::F32 | StoredDtype::F16 | StoredDtype::Bf16)
}

/// GGUF files leave out dimensions of one.
fn is_shaped(entry: &TensorEntry, shape: &[usize]) -> bool {
    let more = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
    entry.shape == shape || more(&entry.shape) == more(shape)
}

pub(super) fn mis_shaped(name: &str, entry: &TensorEntry, expected: &[usize]) -> LoadError {
    LoadError::TensorShape { name: name.to_owned(), found: entry.shape.clone(), expected: expected.to_vec() }
}

pub(super) fn mistyped(name: &str, entry: &TensorEntry, expected: &'static str) -> LoadError {
    LoadError::TensorDtype { name: name.to_owned(), found: entry.dtype.name().to_owned(), expected }
}
