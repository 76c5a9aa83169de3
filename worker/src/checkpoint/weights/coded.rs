//! Weights as codes of few bits, in the layouts of compressed-tensors, modelopt, GPTQ and AWQ. A number is
//! (code - zero) * scale, or that of a 4-bit float times a scale. It finds their tensors and decodes parts of them.

use std::collections::HashSet;
use std::ops::Range;

use rein_kernels::quant::e4m3;
use rein_kernels::{GroupScales, HostData};

use super::super::error::LoadError;
use super::super::forms::{CodedForm, Fp4Scales};
use super::super::parts::cut_scales;
use super::super::safetensors::{StoredDtype, TensorEntry};
use super::{CheckpointWeights, is_float, mis_shaped, mistyped};

/// A weight in one of these forms.
pub(super) struct Coded<'a> {
    pub(super) form: CodedForm,
    out: usize,
    codes: &'a TensorEntry,
    scales: &'a TensorEntry,
    /// Of 4-bit floats: the number for all scales.
    zeros: Option<&'a TensorEntry>,
    /// Columns of scales; of GPTQ and AWQ their rows.
    groups: usize,
    /// The group of each input.
    group_of: Vec<usize>,
}

/// The numbers of e2m1 without a sign, which is the highest bit (OCP Microscaling Formats 1.0).
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Where eight codes of AWQ are in a word, in nibbles.
const AWQ_NIBBLES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The code at this bit of a little-endian stream; of at most eight bits.
fn code_at(bytes: &[u8], bit: usize, bits: usize) -> i32 {
    let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
    let window = byte(bit / 8) | byte(bit / 8 + 1) << 8;
    (window >> (bit % 8) & ((1 << bits) - 1)) as i32
}

fn unlike(form: CodedForm) -> LoadError {
    let what = "quantization_config says sym without desc_act, but zeros or groups of a weight are others";
    LoadError::Quantization { what: format!("{}: {what}", form.name()) }
}

impl CheckpointWeights {
    /// The weight of a module, if it is in this form. Checks its tensors and records their names.
    pub(super) fn coded(
        &self,
        form: CodedForm,
        module: &str,
        [out, inp]: [usize; 2],
        used: &mut HashSet<String>,
    ) -> Result<Option<Coded<'_>>, LoadError> {
        let name = |part: &str| format!("{module}.{part}");
        let codes = match self.entry(&name(form.codes())) {
            Some(codes) if matches!(codes.dtype, StoredDtype::I32 | StoredDtype::I8 | StoredDtype::U8) => codes,
            _ => return Ok(None),
        };
        let mut need = |part: &str, shapes: &[Vec<usize>], kind: fn(StoredDtype) -> bool, kinds: &'static str| {
            let entry = self.entry(&name(part)).ok_or_else(|| LoadError::Missing(vec![name(part)]))?;
            if !shapes.contains(&entry.shape) {
                return Err(mis_shaped(&name(part), entry, &shapes[0]));
            }
            if !kind(entry.dtype) {
                return Err(mistyped(&name(part), entry, kinds));
            }
            used.insert(name(part));
            Ok(entry)
        };
        const FLOATS: &str = "F32, F16 or BF16";
        let words: fn(StoredDtype) -> bool = |dtype| dtype == StoredDtype::I32;
        let bytes: fn(StoredDtype) -> bool = |dtype| dtype == StoredDtype::I8;
        let integers: fn(StoredDtype) -> bool = |dtype| matches!(dtype, StoredDtype::I32 | StoredDtype::I64);
        let groups = |group: Option<usize>| inp.div_ceil(group.unwrap_or(inp).max(1));
        let (groups, size, scales, zeros, order) = match form {
            CodedForm::Int8 => {
                need("weight", &[vec![out, inp]], bytes, "I8")?;
                let scales = need("weight_scale", &[vec![out, 1], vec![out], vec![1], vec![]], is_float, FLOATS)?;
                let zeros = match self.entry(&name("weight_zero_point")) {
                    Some(_) => Some(need("weight_zero_point", std::slice::from_ref(&scales.shape), bytes, "I8")?),
                    None => None,
                };
                (1, inp, scales, zeros, None)
            }
            CodedForm::Fp4 { group, scales } => {
                let groups = groups(Some(group));
                let byte: fn(StoredDtype) -> bool = |dtype| dtype == StoredDtype::U8;
                need(form.codes(), &[vec![out, inp.div_ceil(2)]], byte, "U8")?;
                let is_scale = match scales {
                    Fp4Scales::E8m0 => byte,
                    _ => |dtype| dtype == StoredDtype::F8E4m3,
                };
                let kinds = "U8 for MXFP4, F8_E4M3 for NVFP4";
                let all = need("weight_scale", &[vec![out, groups]], is_scale, kinds)?;
                let global =
                    scales.global().map(|part| need(part, &[vec![1], vec![]], is_float, FLOATS)).transpose()?;
                (groups, group, all, global, None)
            }
            CodedForm::Packed { bits, group, symmetric } => {
                let groups = groups(group);
                need("weight_packed", &[vec![out, (inp * bits).div_ceil(32)]], words, "I32")?;
                let scales = need("weight_scale", &[vec![out, groups]], is_float, FLOATS)?;
                let zeros = match symmetric {
                    true => None,
                    false => Some(need("weight_zero_point", &[vec![(out * bits).div_ceil(32), groups]], words, "I32")?),
                };
                let shape = need("weight_shape", &[vec![2]], integers, "I64 or I32")?;
                let shape = self.integers(&name("weight_shape"), shape)?;
                if shape != [out, inp] {
                    let name = name("weight_shape");
                    return Err(LoadError::TensorShape { name, found: shape, expected: vec![out, inp] });
                }
                (groups, group.unwrap_or(inp), scales, zeros, Some("weight_g_idx"))
            }
            CodedForm::Gptq { bits, group, .. } => {
                let groups = groups(group);
                need("qweight", &[vec![(inp * bits).div_ceil(32), out]], words, "I32")?;
                let scales = need("scales", &[vec![groups, out]], is_float, FLOATS)?;
                let zeros = need("qzeros", &[vec![groups, (out * bits).div_ceil(32)]], words, "I32")?;
                (groups, group.unwrap_or(inp), scales, Some(zeros), Some("g_idx"))
            }
            CodedForm::Awq { group } => {
                let groups = groups(group);
                need("qweight", &[vec![inp, out.div_ceil(8)]], words, "I32")?;
                let scales = need("scales", &[vec![groups, out]], is_float, FLOATS)?;
                let zeros = need("qzeros", &[vec![groups, out.div_ceil(8)]], words, "I32")?;
                (groups, group.unwrap_or(inp), scales, Some(zeros), None)
            }
        };
        let mut group_of: Vec<usize> = (0..inp).map(|input| input / size.max(1)).collect();
        if let Some(part) = order.filter(|part| self.entry(&name(part)).is_some()) {
            let order = need(part, &[vec![inp]], integers, "I32 or I64")?;
            group_of = self.integers(&name(part), order)?;
            if let Some(group) = group_of.iter().find(|&&group| group >= groups) {
                return Err(LoadError::Quantization { what: format!("{}: group {group} of {groups}", name(part)) });
            }
        }
        Ok(Some(Coded { form, out, codes, scales, zeros, groups, group_of }))
    }

    /// Outputs `rows` and inputs `cols` of a weight whose form has an `int4_group`, as a matrix of int4.
    pub(super) fn int4(
        &self,
        weight: &Coded,
        group: usize,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<HostData, LoadError> {
        let Coded { form, out, codes, scales, ref group_of, .. } = *weight;
        let CodedForm::Gptq { offset, .. } = form else { return Err(unlike(form)) };
        // The zero of every code, eight times.
        let zero = (8 - offset) * 0x1111_1111;
        let others = self.zeros(weight)?.as_chunks().0.iter().any(|word| u32::from_le_bytes(*word) != zero);
        if others || group_of.iter().enumerate().any(|(input, &of)| of != input / group) {
            return Err(unlike(form));
        }
        let first = cols.start / 8;
        let bytes = self.bytes(codes, 4 * first * out..4 * cols.end.div_ceil(8) * out)?;
        let code = |row: usize, col: usize| match col < cols.end {
            true => code_at(&bytes[4 * ((col / 8 - first) * out + row)..][..4], col % 8 * 4, 4) as u8,
            false => 0,
        };
        let padded = cols.len().div_ceil(8) * 4;
        let packed = rows.clone().flat_map(|row| {
            let at = cols.start;
            (0..padded).map(move |i| (row, at + 2 * i)).map(|(row, col)| code(row, col) | code(row, col + 1) << 4)
        });
        let packed = packed.collect();
        // [groups, out] to [out, groups].
        let all = self.floats(scales, 0..scales.len() / scales.dtype.size())?;
        let by_row: Vec<f32> = rows.clone().flat_map(|row| all.iter().skip(row).step_by(out).copied()).collect();
        let local = 0..rows.len();
        let (scales, [_, group]) = cut_scales(&by_row, all.len() / out.max(1), [1, group], &local, &cols);
        Ok(HostData::Int4 { packed, scales: GroupScales::F32(scales), group })
    }

    /// Outputs `rows` and inputs `cols` of a weight.
    pub(super) fn decoded(&self, w: &Coded, rows: Range<usize>, cols: Range<usize>) -> Result<Vec<f32>, LoadError> {
        match w.form {
            CodedForm::Int8 => self.by_outputs(w, 8, rows, cols),
            CodedForm::Packed { bits, .. } => self.by_outputs(w, bits, rows, cols),
            CodedForm::Fp4 { scales, .. } => self.fp4(w, scales, rows, cols),
            CodedForm::Gptq { bits, offset, .. } => self.by_inputs(w, bits, offset as i32, false, rows, cols),
            CodedForm::Awq { .. } => self.by_inputs(w, 4, 0, true, rows, cols),
        }
    }

    fn fp4(
        &self,
        weight: &Coded,
        kind: Fp4Scales,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<Vec<f32>, LoadError> {
        let Coded { out, codes, scales, zeros: global, groups, ref group_of, .. } = *weight;
        let stride = codes.len() / out.max(1);
        let bytes = self.bytes(codes, rows.start * stride..rows.end * stride)?;
        let scales = self.bytes(scales, rows.start * groups..rows.end * groups)?;
        let global = global.map(|entry| self.floats(entry, 0..1)).transpose()?.map_or(1.0, |global| global[0]);
        let scale = |byte: u8| match kind {
            Fp4Scales::E8m0 => f32::powi(2.0, i32::from(byte) - 127),
            Fp4Scales::Divided => e4m3(byte) / global,
            Fp4Scales::Multiplied => e4m3(byte) * global,
        };
        let mut numbers = vec![0.0; rows.len() * cols.len()];
        let parts = numbers.chunks_exact_mut(cols.len().max(1)).zip(bytes.chunks_exact(stride.max(1)));
        for ((numbers, bytes), scales) in parts.zip(scales.chunks_exact(groups.max(1))) {
            let scales: Vec<f32> = scales.iter().map(|&byte| scale(byte)).collect();
            for (number, col) in numbers.iter_mut().zip(cols.clone()) {
                let code = code_at(bytes, 4 * col, 4) as usize;
                let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
                *number = sign * E2M1[code & 7] * scales[group_of[col]];
            }
        }
        Ok(numbers)
    }

    fn zeros(&self, weight: &Coded) -> Result<Vec<u8>, LoadError> {
        let all = |entry: &TensorEntry| self.bytes(entry, 0..entry.len());
        Ok(weight.zeros.map(all).transpose()?.unwrap_or_default())
    }

    /// compressed-tensors: a row of codes for each output.
    fn by_outputs(
        &self,
        weight: &Coded,
        bits: usize,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<Vec<f32>, LoadError> {
        let Coded { form, out, codes, scales, groups, ref group_of, .. } = *weight;
        let plain = form == CodedForm::Int8;
        // Without zeros, a packed code is a value plus half of the range.
        let middle = if plain { 0 } else { 1 << (bits - 1) };
        let zeros = self.zeros(weight)?;
        let stride = codes.len() / out.max(1);
        let bytes = self.bytes(codes, rows.start * stride..rows.end * stride)?;
        let one = scales.len() == scales.dtype.size();
        let scales = self.floats(scales, if one { 0..1 } else { rows.start * groups..rows.end * groups })?;
        let zero = |row: usize, group: usize| match (zeros.is_empty(), plain) {
            (true, _) => middle,
            (false, true) => i32::from(zeros[if one { 0 } else { row }] as i8),
            (false, false) => {
                // Packed along the outputs, of which a few bits may be in the next word.
                let (word, bit) = (row * bits / 32, row * bits % 32);
                let at = |word: usize| zeros.get(4 * (word * groups + group)..).unwrap_or_default().iter().take(4);
                let both: Vec<u8> = at(word).chain(at(word + 1)).copied().collect();
                code_at(&both, bit, bits)
            }
        };
        let mut numbers = vec![0.0; rows.len() * cols.len()];
        let parts = numbers.chunks_exact_mut(cols.len().max(1)).zip(bytes.chunks_exact(stride.max(1)));
        for (i, (numbers, bytes)) in parts.enumerate() {
            let scale = |group: usize| scales[if one { 0 } else { i * groups + group }];
            let of_row: Vec<(f32, i32)> = (0..groups).map(|g| (scale(g), zero(rows.start + i, g))).collect();
            for (number, col) in numbers.iter_mut().zip(cols.clone()) {
                let code = if plain { i32::from(bytes[col] as i8) } else { code_at(bytes, col * bits, bits) };
                let (scale, zero) = of_row[group_of[col]];
                *number = (code - zero) as f32 * scale;
            }
        }
        Ok(numbers)
    }

    /// GPTQ and AWQ: words of codes whose rows belong to inputs. `across`: a word has the codes of eight outputs, else
    /// those of several inputs.
    fn by_inputs(
        &self,
        weight: &Coded,
        bits: usize,
        offset: i32,
        across: bool,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<Vec<f32>, LoadError> {
        let Coded { out, codes, scales, groups, ref group_of, .. } = *weight;
        let per_word = 32 / bits;
        let zeros = self.zeros(weight)?;
        let scales = self.floats(scales, 0..groups * out)?;
        let (words, first, last) = match across {
            true => (out.div_ceil(per_word), cols.start, cols.end),
            false => (out, cols.start / per_word, cols.end.div_ceil(per_word)),
        };
        let bytes = self.bytes(codes, 4 * first * words..4 * last * words)?;
        let place = |output: usize| if across { AWQ_NIBBLES[output % per_word] } else { output % per_word };
        let code = |bytes: &[u8], word: usize, place: usize| code_at(&bytes[4 * word..][..4], place * bits, bits);
        let mut numbers = vec![0.0; rows.len() * cols.len()];
        for (numbers, row) in numbers.chunks_exact_mut(cols.len().max(1)).zip(rows) {
            let zero = |group: usize| {
                let word = group * out.div_ceil(per_word) + row / per_word;
                code(&zeros, word, place(row)) + offset
            };
            let of_row: Vec<(f32, i32)> = (0..groups).map(|g| (scales[g * out + row], zero(g))).collect();
            for (number, col) in numbers.iter_mut().zip(cols.clone()) {
                let (word, place) = match across {
                    true => ((col - first) * words + row / per_word, place(row)),
                    false => ((col / per_word - first) * words + row, col % per_word),
                };
                let (scale, zero) = of_row[group_of[col]];
                *number = (code(&bytes, word, place) - zero) as f32 * scale;
            }
        }
        Ok(numbers)
    }
}
