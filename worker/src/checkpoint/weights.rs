//! Reads parts of weights in the form that a backend wants, whatever form the checkpoint stores them in.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use half::{bf16, f16};
use rein_kernels::quant::{fp8_block_dequant, int4_group_dequant};
use rein_kernels::{HostData, HostMatrix};

use super::error::LoadError;
use super::quant::Quantization;
use super::safetensors::{Dtype, Entry, Shards};

/// What a matrix is turned into while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    F32,
    Bf16,
    /// bf16 as it is, all else f32: for what is quantized next.
    Widest,
}

pub struct Weights {
    shards: Shards,
    quantization: Quantization,
}

/// A linear module's weight as stored.
enum Stored<'a> {
    Dense(&'a Entry),
    Fp8 { codes: &'a Entry, scales: &'a Entry, block: [usize; 2] },
    Int4 { packed: &'a Entry, scales: &'a Entry, group: usize },
}

impl Weights {
    pub fn open(dir: &Path, quantization: Quantization) -> Result<Self, LoadError> {
        Ok(Self { shards: Shards::open(dir)?, quantization })
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.shards.get(tensor).is_some()
    }

    /// Whether two tensors are there and hold the same bytes.
    pub fn equal(&self, a: &str, b: &str) -> bool {
        match (self.shards.get(a), self.shards.get(b)) {
            (Some(a), Some(b)) => a.dtype == b.dtype && self.shards.bytes(a) == self.shards.bytes(b),
            _ => false,
        }
    }

    /// The dtype of the plain tensor `name`.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.shards.get(name).map(|entry| entry.dtype)
    }

    /// Compares what the checkpoint has with what the model needs: `modules` are linear weights by module name with
    /// [out, in], `tensors` are plain tensors by full name. What is left over must be `harmless`.
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
                Some(entry) if entry.shape != *shape => return Err(mis_shaped(name, entry, shape)),
                Some(entry) if !is_float(entry.dtype) => return Err(mistyped(name, entry, "F32, F16 or BF16")),
                Some(_) => {}
            }
        }
        if !missing.is_empty() {
            return Err(LoadError::Missing(missing));
        }
        let extra: Vec<String> =
            self.shards.names().filter(|name| !used.contains(*name) && !harmless(name)).cloned().collect();
        if extra.is_empty() { Ok(()) } else { Err(LoadError::Extra(extra)) }
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
        let need = |name: String, shape: &[usize], used: &mut HashSet<String>| {
            let entry = self.shards.get(&name).ok_or_else(|| LoadError::Missing(vec![name.clone()]))?;
            if entry.shape != shape {
                return Err(mis_shaped(&name, entry, shape));
            }
            used.insert(name);
            Ok(entry)
        };
        let scale_is_float = |name: &str, entry: &Entry| match is_float(entry.dtype) {
            true => Ok(()),
            false => Err(mistyped(name, entry, "F32, F16 or BF16")),
        };
        match (self.quantization, self.shards.get(&plain)) {
            (Quantization::Fp8 { block }, Some(entry)) if entry.dtype == Dtype::F8E4m3 => {
                let codes = need(plain, &[out, inp], used)?;
                let name = format!("{module}.weight_scale_inv");
                let scales = need(name.clone(), &[out.div_ceil(block[0]), inp.div_ceil(block[1])], used)?;
                scale_is_float(&name, scales)?;
                Ok(Stored::Fp8 { codes, scales, block })
            }
            (Quantization::Int4 { group }, None) if self.has(&format!("{module}.weight_packed")) => {
                let packed = need(format!("{module}.weight_packed"), &[out, inp.div_ceil(8)], used)?;
                if packed.dtype != Dtype::I32 {
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

    fn integers(&self, name: &str, entry: &Entry) -> Result<Vec<usize>, LoadError> {
        let bytes = self.shards.bytes(entry);
        match entry.dtype {
            Dtype::I64 => Ok(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as usize).collect()),
            Dtype::I32 => Ok(bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as usize).collect()),
            _ => Err(mistyped(name, entry, "I64 or I32")),
        }
    }

    /// Rows and columns of a module's weight [out, inp].
    pub fn matrix(
        &self,
        module: &str,
        [out, inp]: [usize; 2],
        rows: Range<usize>,
        cols: Range<usize>,
        form: Form,
    ) -> Result<HostMatrix, LoadError> {
        let shape = (rows.len(), cols.len());
        let data = match self.stored(module, out, inp, &mut HashSet::new())? {
            Stored::Dense(entry) => self.dense(entry, inp, rows, cols, form),
            Stored::Fp8 { codes, scales, block } => {
                // Whole blocks of rows, so that the scales of the part are a part of the scales.
                let from = rows.start / block[0] * block[0];
                let to = rows.end.next_multiple_of(block[0]).min(out);
                let scale_cols = inp.div_ceil(block[1]);
                let scale_rows = from / block[0] * scale_cols..to.div_ceil(block[0]) * scale_cols;
                let scales = self.floats(scales, scale_rows);
                let bytes = &self.shards.bytes(codes)[from * inp..to * inp];
                let wide = fp8_block_dequant(bytes, to - from, inp, &scales, block)?;
                self.shards.release(codes, from * inp..to * inp);
                cut(wide, inp, rows.start - from..rows.end - from, cols, form)
            }
            Stored::Int4 { packed, scales, group } => {
                let scale_cols = inp.div_ceil(group);
                let scales = self.floats(scales, rows.start * scale_cols..rows.end * scale_cols);
                let stride = inp.div_ceil(8) * 4;
                let within = rows.start * stride..rows.end * stride;
                let wide =
                    int4_group_dequant(&self.shards.bytes(packed)[within.clone()], rows.len(), inp, &scales, group)?;
                self.shards.release(packed, within);
                cut(wide, inp, 0..rows.len(), cols, form)
            }
        };
        Ok(HostMatrix { rows: shape.0, cols: shape.1, data })
    }

    /// Bytes of the checkpoint that a part of a module's weight takes, about.
    pub fn cost(&self, module: &str, elements: usize) -> u64 {
        match self.shards.get(&format!("{module}.weight")) {
            Some(entry) => (elements * entry.dtype.size()) as u64,
            None => (elements / 2) as u64,
        }
    }

    /// A plain tensor's elements, as f32.
    pub fn vector(&self, name: &str, range: Range<usize>) -> Result<Vec<f32>, LoadError> {
        let entry = self.shards.get(name).ok_or_else(|| LoadError::Missing(vec![name.to_owned()]))?;
        Ok(self.floats(entry, range))
    }

    fn floats(&self, entry: &Entry, range: Range<usize>) -> Vec<f32> {
        let size = entry.dtype.size();
        let mut out = Vec::with_capacity(range.len());
        extend_f32(&mut out, &self.shards.bytes(entry)[range.start * size..range.end * size], entry.dtype);
        out
    }

    fn dense(&self, entry: &Entry, stride: usize, rows: Range<usize>, cols: Range<usize>, form: Form) -> HostData {
        let size = entry.dtype.size();
        let bytes = self.shards.bytes(entry);
        // A run of whole rows is one run of bytes.
        let (runs, run) = if cols.len() == stride { (1, rows.len() * stride) } else { (rows.len(), cols.len()) };
        let part = |i: usize| {
            let first = ((rows.start + i) * stride + cols.start) * size;
            &bytes[first..first + run * size]
        };
        let wide = form == Form::F32 || (form == Form::Widest && entry.dtype != Dtype::Bf16);
        let data = if wide {
            let mut out = Vec::with_capacity(rows.len() * cols.len());
            (0..runs).for_each(|i| extend_f32(&mut out, part(i), entry.dtype));
            HostData::F32(out)
        } else {
            let mut out = Vec::with_capacity(rows.len() * cols.len());
            (0..runs).for_each(|i| extend_bf16(&mut out, part(i), entry.dtype));
            HostData::Bf16(out)
        };
        self.shards.release(entry, rows.start * stride * size..rows.end * stride * size);
        data
    }
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}

fn mis_shaped(name: &str, entry: &Entry, expected: &[usize]) -> LoadError {
    LoadError::TensorShape { name: name.to_owned(), found: entry.shape.clone(), expected: expected.to_vec() }
}

fn mistyped(name: &str, entry: &Entry, expected: &'static str) -> LoadError {
    LoadError::TensorDtype { name: name.to_owned(), found: entry.dtype.name().to_owned(), expected }
}

/// Callers have checked that `dtype` is a float.
fn extend_f32(out: &mut Vec<f32>, bytes: &[u8], dtype: Dtype) {
    match dtype {
        Dtype::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
        Dtype::F16 => out.extend(bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
        _ => out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
    }
}

fn extend_bf16(out: &mut Vec<bf16>, bytes: &[u8], dtype: Dtype) {
    match dtype {
        Dtype::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b))),
        Dtype::F16 => {
            out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_f32(f16::from_le_bytes(*b).to_f32())));
        }
        _ => out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_f32(f32::from_le_bytes(*b)))),
    }
}

/// Rows and columns of a dequantized matrix of `stride` columns.
fn cut(wide: Vec<f32>, stride: usize, rows: Range<usize>, cols: Range<usize>, form: Form) -> HostData {
    let part = if cols.len() == stride && rows.len() * stride == wide.len() {
        wide
    } else {
        rows.flat_map(|r| &wide[r * stride + cols.start..r * stride + cols.end]).copied().collect()
    };
    match form {
        Form::Bf16 => HostData::Bf16(part.into_iter().map(bf16::from_f32).collect()),
        Form::F32 | Form::Widest => HostData::F32(part),
    }
}
