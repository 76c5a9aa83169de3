//! Weights as codes of few bits, in the layouts of compressed-tensors, modelopt, GPTQ and AWQ. A number is
//! (code - zero) * scale, or that of a 4-bit float times a scale. It finds their tensors and decodes parts of them.

use std::collections::HashSet;
use std::ops::Range;

use rein_kernels::quant::{E2M1, MXFP4_GROUP, e4m3, e8m0};
use rein_kernels::{GroupScales, HostData, StoredForm};

use super::super::error::LoadError;
use super::super::forms::{CodedForm, Fp4Scales};
use super::super::parts::{cut_bytes, cut_nibbles, cut_scales};
use super::super::stored::{StoredDtype, TensorEntry};
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

/// The zero of int4 without zeros.
const INT4_ZERO: f32 = 8.0;

/// Codes [rows, cols]; scales and zeros [rows, groups] of the whole weight.
struct Codes {
    numbers: Vec<i16>,
    scales: Vec<f32>,
    zeros: Vec<f32>,
    groups: usize,
}

/// Rows of `stride` bytes, each filled up to whole words.
fn padded(bytes: Vec<u8>, stride: usize) -> Vec<u8> {
    let to = stride.next_multiple_of(4);
    if to == stride {
        return bytes;
    }
    let rows = bytes.chunks_exact(stride.max(1));
    rows.flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0, to - stride))).collect()
}

/// Where eight codes of AWQ are in a word, in nibbles.
const AWQ_NIBBLES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The code at this bit of a little-endian stream; of at most eight bits.
fn code_at(bytes: &[u8], bit: usize, bits: usize) -> i16 {
    let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
    let window = byte(bit / 8) | byte(bit / 8 + 1) << 8;
    (window >> (bit % 8) & ((1 << bits) - 1)) as i16
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
        if form.has_blocks()
            && let Some([codes, scales]) = self.fp4_blocks(module, [out, inp], used)?
        {
            let group_of = (0..inp).map(|input| input / MXFP4_GROUP).collect();
            return Ok(Some(Coded { form, out, codes, scales, zeros: None, groups: inp / MXFP4_GROUP, group_of }));
        }
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

    /// Outputs `rows` and inputs `cols` of a weight as it is stored: as int4 or MXFP4 of a backend. None: its groups
    /// are not of neighbours, or a group of MXFP4 is cut.
    pub(super) fn kept(
        &self,
        weight: &Coded,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<Option<HostData>, LoadError> {
        let size = match weight.form.stored() {
            StoredForm::Int4 { group, .. } | StoredForm::Int4Zeros { group } => group,
            StoredForm::Mxfp4 => MXFP4_GROUP,
            _ => return Ok(None),
        };
        let neighbours = weight.group_of.iter().enumerate().all(|(input, &group)| group == input / size.max(1));
        if !neighbours {
            // Then config.json may say what the file has not.
            return weight.form.int4_group().map_or(Ok(None), |_| Err(unlike(weight.form)));
        }
        if let CodedForm::Fp4 { .. } = weight.form {
            if !cols.start.is_multiple_of(size) {
                return Ok(None);
            }
            let groups = cols.start / size..cols.end.div_ceil(size);
            let stride = weight.codes.len() / weight.out.max(1);
            let codes = self.bytes(weight.codes, rows.start * stride..rows.end * stride)?;
            let scales = self.bytes(weight.scales, rows.start * weight.groups..rows.end * weight.groups)?;
            let codes = padded(codes, stride).into();
            let packed = cut_nibbles(codes, stride.next_multiple_of(4), weight.group_of.len(), cols).into_vec();
            let scales = cut_bytes(scales.into(), weight.groups, groups).into_vec();
            return Ok(Some(HostData::Mxfp4 { packed, scales }));
        }
        let codes = self.codes(weight, rows.clone(), cols.clone())?;
        let packed = codes.numbers.chunks_exact(cols.len().max(1)).flat_map(|row| {
            let words = row.chunks(8).map(|eight| {
                eight.iter().enumerate().fold(0, |word: u32, (i, &code)| word | (code as u32 & 0xf) << (4 * i))
            });
            words.flat_map(u32::to_le_bytes)
        });
        let packed: Vec<u8> = packed.collect();
        // Where a part begins within a group, its groups are smaller.
        let cut = |all: &[f32]| cut_scales(all, codes.groups, [1, size], &(0..rows.len()), &cols);
        let ((scales, [_, group]), (zeros, _)) = (cut(&codes.scales), cut(&codes.zeros));
        let scales = GroupScales::F32(scales);
        if weight.form.int4_group().is_none() {
            let zeros = zeros.into_iter().map(|zero| zero as u8).collect();
            return Ok(Some(HostData::Int4Zeros { packed, scales, zeros, group }));
        }
        match zeros.iter().all(|&zero| zero == INT4_ZERO) {
            true => Ok(Some(HostData::Int4 { packed: packed.into(), scales, group })),
            false => Err(unlike(weight.form)),
        }
    }

    /// Outputs `rows` and inputs `cols` of a weight.
    pub(super) fn decoded(&self, w: &Coded, rows: Range<usize>, cols: Range<usize>) -> Result<Vec<f32>, LoadError> {
        if let CodedForm::Fp4 { scales, .. } = w.form {
            return self.fp4(w, scales, rows, cols);
        }
        let Codes { numbers, scales, zeros, groups } = self.codes(w, rows, cols.clone())?;
        let rows = numbers.chunks_exact(cols.len().max(1)).enumerate();
        let number = |row: usize, code: i16, group: usize| {
            let at = row * groups + group;
            (f32::from(code) - zeros[at]) * scales[at]
        };
        let decoded = rows.flat_map(|(row, codes)| {
            codes.iter().zip(&w.group_of[cols.clone()]).map(move |(&code, &group)| (row, code, group))
        });
        Ok(decoded.map(|(row, code, group)| number(row, code, group)).collect())
    }

    fn codes(&self, w: &Coded, rows: Range<usize>, cols: Range<usize>) -> Result<Codes, LoadError> {
        match w.form {
            CodedForm::Int8 | CodedForm::Fp4 { .. } => self.by_outputs(w, 8, rows, cols),
            CodedForm::Packed { bits, .. } => self.by_outputs(w, bits, rows, cols),
            CodedForm::Gptq { bits, offset, .. } => self.by_inputs(w, bits, offset as i16, false, rows, cols),
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
            Fp4Scales::E8m0 => e8m0(byte),
            Fp4Scales::Divided => e4m3(byte) / global,
            Fp4Scales::Multiplied => e4m3(byte) * global,
        };
        let mut numbers = vec![0.0; rows.len() * cols.len()];
        let parts = numbers.chunks_exact_mut(cols.len().max(1)).zip(bytes.chunks_exact(stride.max(1)));
        for ((numbers, bytes), scales) in parts.zip(scales.chunks_exact(groups.max(1))) {
            let scales: Vec<f32> = scales.iter().map(|&byte| scale(byte)).collect();
            for (number, col) in numbers.iter_mut().zip(cols.clone()) {
                *number = E2M1[code_at(bytes, 4 * col, 4) as usize] * scales[group_of[col]];
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
    ) -> Result<Codes, LoadError> {
        let Coded { form, out, codes, scales, groups, .. } = *weight;
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
            (false, true) => i16::from(zeros[if one { 0 } else { row }] as i8),
            (false, false) => {
                // Packed along the outputs, of which a few bits may be in the next word.
                let (word, bit) = (row * bits / 32, row * bits % 32);
                let at = |word: usize| zeros.get(4 * (word * groups + group)..).unwrap_or_default().iter().take(4);
                let both: Vec<u8> = at(word).chain(at(word + 1)).copied().collect();
                code_at(&both, bit, bits)
            }
        };
        let numbers = bytes.chunks_exact(stride.max(1)).flat_map(|bytes| {
            let code = |col: usize| if plain { i16::from(bytes[col] as i8) } else { code_at(bytes, col * bits, bits) };
            cols.clone().map(code).collect::<Vec<_>>()
        });
        let each = || rows.clone().flat_map(|row| (0..groups).map(move |group| (row, group)));
        Ok(Codes {
            numbers: numbers.collect(),
            scales: each().map(|(row, g)| scales[if one { 0 } else { (row - rows.start) * groups + g }]).collect(),
            zeros: each().map(|(row, group)| f32::from(zero(row, group))).collect(),
            groups,
        })
    }

    /// GPTQ and AWQ: words of codes whose rows belong to inputs. `across`: a word has the codes of eight outputs, else
    /// those of several inputs.
    fn by_inputs(
        &self,
        weight: &Coded,
        bits: usize,
        offset: i16,
        across: bool,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<Codes, LoadError> {
        let Coded { out, codes, scales, groups, .. } = *weight;
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
        let zero = |row: usize, group: usize| {
            let word = group * out.div_ceil(per_word) + row / per_word;
            code(&zeros, word, place(row)) + offset
        };
        let number = |row: usize, col: usize| {
            let (word, place) = match across {
                true => ((col - first) * words + row / per_word, place(row)),
                false => ((col / per_word - first) * words + row, col % per_word),
            };
            code(&bytes, word, place)
        };
        let each = || rows.clone().flat_map(|row| (0..groups).map(move |group| (row, group)));
        Ok(Codes {
            numbers: rows
                .clone()
                .flat_map(|row| cols.clone().map(move |col| (row, col)))
                .map(|(r, c)| number(r, c))
                .collect(),
            scales: each().map(|(row, group)| scales[group * out + row]).collect(),
            zeros: each().map(|(row, group)| f32::from(zero(row, group))).collect(),
            groups,
        })
    }
}
