//! Weights as the kernels take them: which stored forms are kept, and where their numbers lie on the device. It does
//! not know layers.

use half::bf16;

use super::DeviceBuffer;
use super::fast::tiled_scales;
use super::form::{Element, WeightForm};
use super::upload::WeightWriter;
use crate::backend::{GroupScales, HostData, HostForm, HostMatrix, MlaSpec, Precision, WeightRole};
use crate::error::{KernelError, Result};
use crate::quant::{MXFP4_GROUP, e8m0};
use crate::storage::{CudaStorage, DeviceStorage};

fn wrong(what: String) -> KernelError {
    KernelError::Shape { op: "weight", what }
}

/// A weight in a form that the kernels take.
pub(super) struct Prepared {
    pub outs: usize,
    pub ins: usize,
    pub form: WeightForm,
    data: HostData,
    /// A scale for each output, or nothing.
    of_outputs: Vec<f32>,
}

impl Prepared {
    pub fn new(matrix: HostMatrix, precision: Precision) -> Result<Prepared> {
        let form = match precision {
            Precision::Int8 => {
                return Err(wrong(
                    "int8 is not available on CUDA: leave out `--quantize`, or use `--engine cpu`".into(),
                ));
            }
            precision => CudaStorage.host_form(WeightRole::Linear, matrix.stored_form(), precision),
        };
        let (matrix, of_outputs) = matrix.into_form(form)?.split_output_scales();
        let HostMatrix { rows: outs, cols: ins, data } = matrix;
        let (form, data) = match (data, form) {
            (HostData::F32(v), HostForm::F32) => (WeightForm::F32, HostData::F32(v)),
            (HostData::Bf16(v), HostForm::F32) => {
                (WeightForm::F32, HostData::F32(v.into_iter().map(bf16::to_f32).collect()))
            }
            (HostData::F32(v), _) => (WeightForm::Bf16, HostData::Bf16(v.into_iter().map(bf16::from_f32).collect())),
            (HostData::Bf16(v), _) => (WeightForm::Bf16, HostData::Bf16(v)),
            (data @ HostData::Fp8 { .. }, _) => (WeightForm::Fp8 { by_output: !of_outputs.is_empty() }, data),
            (HostData::Int4 { packed, scales, group }, _) => {
                (WeightForm::Int4 { group, scales: scales.form() }, HostData::Int4 { packed, scales, group })
            }
            (HostData::Mxfp4 { packed, scales }, _) => {
                let scales = GroupScales::Bf16(scales.into_iter().map(|scale| bf16::from_f32(e8m0(scale))).collect());
                (WeightForm::Mxfp4, HostData::Int4 { packed: packed.into(), scales, group: MXFP4_GROUP })
            }
            (data, _) => {
                let form = HostMatrix { rows: outs, cols: ins, data }.stored_form();
                return Err(wrong(format!("{form:?} is not kept on GPUs")));
            }
        };
        let prepared = Prepared { outs, ins, form, data, of_outputs };
        let bytes = [prepared.bytes(), prepared.scale_bytes(), size_of_val(&*prepared.of_outputs)];
        let wanted = form.parts(outs, ins);
        if bytes != wanted {
            return Err(wrong(format!(
                "[{outs}, {ins}] as {form:?} must have {wanted:?} bytes of numbers, scales and scales of outputs, got \
                 {bytes:?}"
            )));
        }
        Ok(prepared)
    }

    fn bytes(&self) -> usize {
        match &self.data {
            HostData::F32(v) => size_of_val(&**v),
            HostData::Bf16(v) => size_of_val(&**v),
            HostData::Fp8 { codes, .. } => codes.len(),
            HostData::Int4 { packed, .. } => packed.len(),
            _ => 0,
        }
    }

    fn scale_bytes(&self) -> usize {
        match &self.data {
            HostData::Fp8 { scales, .. } | HostData::Int4 { scales: GroupScales::F32(scales), .. } => {
                size_of_val(&**scales)
            }
            HostData::Int4 { scales: GroupScales::Bf16(scales), .. } => size_of_val(&**scales),
            _ => 0,
        }
    }

    /// Copies its parts to where they begin (bytes).
    pub fn write(self, writer: WeightWriter, to: &DeviceBuffer, parts: [usize; 3]) -> super::Result<()> {
        let [at, scales_at, outputs_at] = parts;
        if !self.of_outputs.is_empty() {
            writer.write(to, outputs_at, &self.of_outputs)?;
        }
        match self.data {
            HostData::F32(v) => writer.write(to, at, &v)?,
            HostData::Bf16(v) => writer.write_buffer(to, at, v)?,
            HostData::Fp8 { codes, scales, .. } => {
                writer.write_buffer(to, at, codes)?;
                writer.write(to, scales_at, &scales)?;
            }
            HostData::Int4 { packed, scales, .. } => {
                writer.write_buffer(to, at, packed)?;
                match scales {
                    GroupScales::F32(scales) => writer.write(to, scales_at, &scales)?,
                    GroupScales::Bf16(scales) => writer.write(to, scales_at, &scales)?,
                }
            }
            // `new` refuses them.
            _ => {}
        }
        Ok(())
    }
}

impl Prepared {
    /// As `write`, for matrices whose outputs follow each other, in the layout of the fast kernels for weights of four
    /// bits.
    pub fn write_tiled(
        stack: Vec<Prepared>,
        writer: WeightWriter,
        to: &DeviceBuffer,
        [at, scales_at, _]: [usize; 3],
    ) -> super::Result<()> {
        let (outs, ins) = (stack.iter().map(|matrix| matrix.outs).sum(), stack.first().map_or(0, |matrix| matrix.ins));
        let (mut codes, mut all_scales) = (Vec::new(), Vec::new());
        for matrix in stack {
            let HostData::Int4 { packed, scales: GroupScales::Bf16(scales), .. } = matrix.data else {
                unreachable!("the kernels take weights of four bits with bf16 scales")
            };
            codes.push(packed);
            all_scales.extend(scales);
        }
        writer.write(to, scales_at, &tiled_scales(&all_scales, outs))?;
        // SAFETY: the scales of the weight lie behind it.
        unsafe { writer.write_tiled(to.address() + at as u64, codes, [outs, ins]) }
    }
}

/// Bytes after which something else may follow.
pub(super) fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
}

/// A weight [outs, ins]: its parts, one after the other.
#[derive(Debug)]
pub(super) struct Matrix {
    pub outs: usize,
    pub ins: usize,
    pub form: WeightForm,
    pub data: DeviceBuffer,
}

impl Matrix {
    pub fn new(writer: WeightWriter, weight: Prepared) -> Result<Matrix> {
        let Prepared { outs, ins, form, .. } = weight;
        let data = writer.allocate(form.parts(outs, ins).map(aligned).iter().sum())?;
        let matrix = Matrix { outs, ins, form, data };
        weight.write(writer, &matrix.data, matrix.starts())?;
        Ok(matrix)
    }

    /// Where its parts begin.
    fn starts(&self) -> [usize; 3] {
        let [numbers, scales, _] = self.form.parts(self.outs, self.ins).map(aligned);
        [0, numbers, numbers + scales]
    }

    pub fn scales(&self) -> u64 {
        self.data.address() + self.starts()[1] as u64
    }

    /// One for each output, if its form has them.
    pub fn output_scales(&self) -> u64 {
        self.data.address() + self.starts()[2] as u64
    }
}

/// A packed weight.
#[derive(Debug)]
pub struct DeviceLinear(pub(super) Matrix);

/// Per head: q_nope to latent [kv_rank, nope], and latent to value [v, kv_rank].
#[derive(Debug)]
pub struct DeviceExpansion {
    pub(super) heads: usize,
    pub(super) to_latent: Matrix,
    pub(super) to_value: Matrix,
}

impl DeviceExpansion {
    /// Splits `kv_b_proj` by head, as `mla_attention` multiplies.
    pub(super) fn new(writer: WeightWriter, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<Self> {
        let MlaSpec { heads, nope_dim, v_dim, kv_rank, .. } = *spec;
        let (rows, cols) = (heads * (nope_dim + v_dim), kv_rank);
        if (kv_b.rows, kv_b.cols) != (rows, cols) {
            let what = format!("kv_b must be [{rows}, {cols}], got [{}, {}]", kv_b.rows, kv_b.cols);
            return Err(KernelError::Shape { op: "mla_weight", what });
        }
        let HostData::F32(all) = Prepared::new(kv_b, Precision::F32)?.data else { unreachable!("prepared as f32") };
        let (mut to_latent, mut to_value) = (Vec::new(), Vec::new());
        for head in all.chunks_exact((nope_dim + v_dim) * kv_rank) {
            let (keys, values) = head.split_at(nope_dim * kv_rank);
            to_latent.extend((0..kv_rank).flat_map(|i| keys.iter().skip(i).step_by(kv_rank)));
            to_value.extend_from_slice(values);
        }
        let matrix = |rows, cols, numbers| {
            let weight = HostMatrix { rows, cols, data: HostData::F32(numbers) };
            Matrix::new(writer, Prepared::new(weight, precision)?)
        };
        Ok(DeviceExpansion {
            heads,
            to_latent: matrix(heads * kv_rank, nope_dim, to_latent)?,
            to_value: matrix(heads * v_dim, kv_rank, to_value)?,
        })
    }
}

/// Rows of a lookup table, from `first` on: [rows, cols].
#[derive(Debug)]
pub struct DeviceEmbedding {
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) element: Element,
    pub(super) table: DeviceBuffer,
}

impl DeviceEmbedding {
    pub(super) fn new(writer: WeightWriter, weight: Prepared, first: usize) -> Result<DeviceEmbedding> {
        let element = match weight.form {
            WeightForm::F32 => Element::F32,
            WeightForm::Bf16 => Element::Bf16,
            WeightForm::Fp8 { .. } | WeightForm::Int4 { .. } | WeightForm::Mxfp4 => {
                return Err(KernelError::Shape { op: "embedding", what: "must be f32 or bf16".into() });
            }
        };
        let (rows, cols) = (weight.outs, weight.ins);
        Ok(DeviceEmbedding { first, rows, cols, element, table: Matrix::new(writer, weight)?.data })
    }
}

/// Numbers of a norm, a bias or a router's choice.
#[derive(Debug)]
pub struct DeviceVector {
    pub(super) len: usize,
    pub(super) data: DeviceBuffer,
}
