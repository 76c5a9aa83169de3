//! Weights packed for the product. One layout serves single rows and many rows: panels of 32 outputs, each a sequence
//! of steps over the inputs.
//!
//! Weights that files store as codes stay codes (`codes`). Of the others,
//! a step is 32 words of 32 bits, one per output: one f32 input, or a pair of bf16 inputs. Per group of 32 inputs, an
//! int8 panel has 32 bf16 scales and 16 steps of 64 bytes: a pair of inputs per output.

use half::bf16;

use super::codes::{CodeForm, StoredCodes};
pub use super::codes::{GROUP, PANEL};
use super::fp8::{Fp8Form, Fp8Rows};
use super::memory::{Arena, Block};
use super::pool::{SharedPtr, ThreadPool};
use super::simd::{Isa, Simd, simd_fn};
use crate::backend::{HostData, HostMatrix, Precision};
use crate::error::{KernelError, Result};

pub const GROUP_STEPS: usize = GROUP / 2;
pub const GROUP_BYTES: usize = PANEL * 2 + PANEL * GROUP;
/// Least weight bytes per work item.
const ITEM_BYTES: usize = 512 << 10;

/// The form in which a product takes activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationForm {
    F32,
    /// In pairs where the instruction set multiplies pairs, else as f32.
    Bf16,
    /// Pairs of 16-bit integers, with a scale for each group of a row's inputs, so that the sum over a group is exact.
    Int16,
    /// Four 8-bit integers, likewise.
    Int8,
}

impl ActivationForm {
    /// Inputs in a step.
    fn inputs(self) -> usize {
        match self {
            ActivationForm::F32 => 1,
            ActivationForm::Bf16 | ActivationForm::Int16 => 2,
            ActivationForm::Int8 => 4,
        }
    }

    pub fn has_scales(self) -> bool {
        matches!(self, ActivationForm::Int16 | ActivationForm::Int8)
    }
}

/// What panels hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanelForm {
    F32,
    Bf16,
    Int8,
    Codes(CodeForm),
    Fp8(Fp8Form),
}

impl PanelForm {
    fn of(data: Numbers, precision: Precision) -> PanelForm {
        match (data, precision) {
            (Numbers::Codes(rows), _) => PanelForm::Codes(rows.form()),
            (Numbers::Fp8(rows), _) => PanelForm::Fp8(rows.form()),
            (_, Precision::F32) => PanelForm::F32,
            (_, Precision::Bf16) => PanelForm::Bf16,
            (_, Precision::Int8) => PanelForm::Int8,
        }
    }

    pub fn takes(self) -> ActivationForm {
        match self {
            PanelForm::F32 => ActivationForm::F32,
            PanelForm::Bf16 | PanelForm::Fp8(_) => ActivationForm::Bf16,
            PanelForm::Codes(codes) if codes.bits() < 8 => ActivationForm::Int8,
            PanelForm::Int8 | PanelForm::Codes(_) => ActivationForm::Int16,
        }
    }

    /// Of so many groups of inputs.
    fn panel_bytes(self, groups: usize) -> usize {
        match self {
            PanelForm::F32 => groups * GROUP * PANEL * 4,
            PanelForm::Bf16 => groups * GROUP * PANEL * 2,
            PanelForm::Int8 => groups * GROUP_BYTES,
            PanelForm::Codes(codes) => codes.panel_bytes(groups),
            PanelForm::Fp8(fp8) => fp8.panel_bytes(groups),
        }
    }
}

/// A weight [outs, ins] packed for the product.
#[derive(Debug, Clone)]
pub struct Panels {
    pub form: PanelForm,
    pub outs: usize,
    pub ins: usize,
    panel_bytes: usize,
    /// Panel p starts at `first + p * stride` of the block.
    first: usize,
    stride: usize,
    block: Block,
}

/// The contents of a host matrix.
#[derive(Debug, Clone, Copy)]
pub enum Numbers<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    Codes(StoredCodes<'a>),
    Fp8(Fp8Rows<'a>),
}

impl<'a> Numbers<'a> {
    pub fn of(matrix: &'a HostMatrix) -> Result<Numbers<'a>> {
        // The loader converts other forms (`CpuDevices::host_form`).
        let quantized = || KernelError::Shape { op: "weight", what: "must be numbers or codes of 32 inputs".into() };
        match &matrix.data {
            HostData::F32(v) => Ok(Numbers::F32(v)),
            HostData::Bf16(v) => Ok(Numbers::Bf16(v)),
            HostData::Blocks { form, bytes } => {
                Ok(Numbers::Codes(StoredCodes::blocks(*form, bytes, matrix.rows, matrix.cols)?))
            }
            HostData::Int4 { packed, scales, group } => {
                StoredCodes::int4(packed, scales, None, *group, matrix.cols).map(Numbers::Codes).ok_or_else(quantized)
            }
            HostData::Int4Zeros { packed, scales, zeros, group } => {
                let rows = StoredCodes::int4(packed, scales, Some(zeros), *group, matrix.cols);
                rows.map(Numbers::Codes).ok_or_else(quantized)
            }
            HostData::Mxfp4 { packed, scales } => {
                Ok(Numbers::Codes(StoredCodes::Mxfp4 { packed, scales, cols: matrix.cols }))
            }
            HostData::Fp8 { codes, scales, block } => {
                let rows = Fp8Rows::of(codes, scales, *block, [matrix.rows, matrix.cols]);
                rows.map(Numbers::Fp8).ok_or_else(quantized)
            }
        }
    }

    pub fn is_dense(self) -> bool {
        matches!(self, Numbers::F32(_) | Numbers::Bf16(_))
    }

    /// Whether panels of both can lie side by side.
    pub fn packs_like(self, other: Numbers, precision: Precision) -> bool {
        PanelForm::of(self, precision) == PanelForm::of(other, precision)
    }
}

/// A matrix to pack: element (i, j) is `data[offset + i * row_stride + j * col_stride]`. Codes are packed whole.
pub struct PackSource<'a> {
    pub data: Numbers<'a>,
    pub offset: usize,
    pub row_stride: usize,
    pub col_stride: usize,
    pub rows: usize,
    pub cols: usize,
}

impl<'a> PackSource<'a> {
    pub fn whole(matrix: &'a HostMatrix) -> Result<PackSource<'a>> {
        let (rows, cols, data) = (matrix.rows, matrix.cols, Numbers::of(matrix)?);
        Ok(PackSource { data, offset: 0, row_stride: cols, col_stride: 1, rows, cols })
    }

    fn check(&self) -> Result<()> {
        let len = match self.data {
            Numbers::F32(v) => v.len(),
            Numbers::Bf16(v) => v.len(),
            // Checked when they were made.
            Numbers::Codes(_) | Numbers::Fp8(_) => return Ok(()),
        };
        let last =
            self.offset + self.rows.saturating_sub(1) * self.row_stride + self.cols.saturating_sub(1) * self.col_stride;
        if self.rows > 0 && self.cols > 0 && last >= len {
            let what = format!("[{}, {}] needs {} numbers, got {len}", self.rows, self.cols, last + 1);
            return Err(KernelError::Shape { op: "weight", what });
        }
        Ok(())
    }
}

trait Number: Copy + Default {
    fn f32(self) -> f32;
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
    /// 32 numbers as 16 words of bf16 pairs.
    unsafe fn load_pairs<S: Simd>(p: *const Self) -> S::V;
}

impl Number for f32 {
    #[inline(always)]
    fn f32(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::V {
        // SAFETY: the same contract.
        unsafe { S::load(p) }
    }
    #[inline(always)]
    unsafe fn load_pairs<S: Simd>(p: *const f32) -> S::V {
        // SAFETY: the same contract.
        unsafe { S::load_pairs(p) }
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::V {
        // SAFETY: the same contract.
        unsafe { S::load_bf16(p) }
    }
    #[inline(always)]
    unsafe fn load_pairs<S: Simd>(p: *const bf16) -> S::V {
        // SAFETY: 32 bf16 are 16 words, in pairs as they lie (little-endian as the sets are; see `Simd`).
        unsafe { S::load(p.cast()) }
    }
}

impl Panels {
    pub fn pack(
        pool: &ThreadPool,
        isa: Isa,
        arena: &Arena,
        source: &PackSource,
        precision: Precision,
    ) -> Result<Panels> {
        let [panels] = Panels::pack_side_by_side(pool, isa, arena, [source], precision)?;
        Ok(panels)
    }

    /// Packs matrices of one shape and form that are read together, with their panels interleaved.
    pub fn pack_side_by_side<const N: usize>(
        pool: &ThreadPool,
        isa: Isa,
        arena: &Arena,
        sources: [&PackSource; N],
        precision: Precision,
    ) -> Result<[Panels; N]> {
        let (outs, ins) = (sources[0].rows, sources[0].cols);
        for source in sources {
            source.check()?;
            assert_eq!((source.rows, source.cols), (outs, ins), "stacked matrices must have the same shape");
        }
        let (form, groups) = (PanelForm::of(sources[0].data, precision), ins.div_ceil(GROUP));
        let panel_bytes = form.panel_bytes(groups);
        let panels = outs.div_ceil(PANEL) * N;
        let block = arena.take(panels * panel_bytes)?;
        let base = SharedPtr(block.ptr());
        pool.run(panels, &|i| {
            // SAFETY: the block is fresh and has panel_bytes for each panel; each item writes its own panel.
            let panel = unsafe { std::slice::from_raw_parts_mut(base.get().add(i * panel_bytes), panel_bytes) };
            let (source, p) = (sources[i % N], i / N);
            match source.data {
                // SAFETY: `isa` was detected; a panel has panel_bytes.
                Numbers::F32(data) => unsafe { pack_f32(isa, source, data, p, precision, panel) },
                // SAFETY: as above.
                Numbers::Bf16(data) => unsafe { pack_bf16(isa, source, data, p, precision, panel) },
                Numbers::Codes(rows) => rows.pack(p, outs, groups, panel),
                Numbers::Fp8(rows) => rows.pack(p, panel),
            }
        });
        Ok(std::array::from_fn(|n| {
            let block = block.clone();
            let (first, stride) = (n * panel_bytes, N * panel_bytes);
            Panels { form, outs, ins, panel_bytes, first, stride, block }
        }))
    }

    pub fn panels(&self) -> usize {
        self.outs.div_ceil(PANEL)
    }

    /// Panels per work item: enough work, but several items for each of `threads`.
    pub fn panels_per_item(&self, threads: usize) -> usize {
        let by_size = (ITEM_BYTES / self.panel_bytes.max(1)).max(1);
        by_size.min((self.panels() / (4 * threads)).max(1))
    }

    pub fn takes(&self) -> ActivationForm {
        self.form.takes()
    }

    /// Steps of a panel, including padding.
    pub fn steps(&self) -> usize {
        self.ins.next_multiple_of(GROUP) / self.takes().inputs()
    }

    /// The inputs of an output, as they were packed.
    pub fn output(&self, out: usize, into: &mut [f32]) {
        debug_assert!(out < self.outs && into.len() == self.ins);
        let c = out % PANEL;
        // SAFETY: a panel has panel_bytes, which are not written after packing.
        let panel = unsafe { std::slice::from_raw_parts(self.panel(out / PANEL), self.panel_bytes) };
        let half = |at: usize| bf16::from_ne_bytes([panel[at], panel[at + 1]]);
        for (g, into) in into.chunks_mut(GROUP).enumerate() {
            match self.form {
                PanelForm::Codes(codes) => into.copy_from_slice(&codes.read(panel, c, g)[..into.len()]),
                PanelForm::Fp8(fp8) => into.copy_from_slice(&fp8.read(panel, c, g)[..into.len()]),
                PanelForm::F32 => into.iter_mut().enumerate().for_each(|(i, x)| {
                    let at = ((g * GROUP + i) * PANEL + c) * 4;
                    *x = f32::from_ne_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]]);
                }),
                PanelForm::Bf16 => into.iter_mut().enumerate().for_each(|(i, x)| {
                    *x = half(((g * GROUP_STEPS + i / 2) * PANEL + c) * 4 + i % 2 * 2).to_f32();
                }),
                PanelForm::Int8 => {
                    let group = g * GROUP_BYTES;
                    let scale = half(group + 2 * c).to_f32();
                    into.iter_mut().enumerate().for_each(|(i, x)| {
                        let code = panel[group + 2 * PANEL + i / 2 * 64 + 2 * c + i % 2] as i8;
                        *x = scale * f32::from(code);
                    });
                }
            }
        }
    }

    /// The panel's bytes, aligned to 64.
    pub fn panel(&self, p: usize) -> *const u8 {
        self.block.ptr().wrapping_add(self.first + p * self.stride)
    }
}

#[inline(always)]
unsafe fn pack_panel_generic<S: Simd, T: Number>(
    source: &PackSource,
    data: &[T],
    p: usize,
    precision: Precision,
    panel: &mut [u8],
) {
    let columns = PANEL.min(source.rows - p * PANEL);
    // Groups of inputs in the outer loop: a group of a panel fits in the first-level cache.
    for from in (0..source.cols).step_by(GROUP) {
        let (group, len) = (from / GROUP, GROUP.min(source.cols - from));
        let column = |c: usize| source.offset + (p * PANEL + c) * source.row_stride + from * source.col_stride;
        let mut values = [[T::default(); GROUP]; PANEL];
        for c in 0..columns {
            if source.col_stride == 1 && len == GROUP {
                values[c].copy_from_slice(&data[column(c)..][..GROUP]);
            } else {
                let strided = data[column(c)..].iter().step_by(source.col_stride).take(len);
                values[c].iter_mut().zip(strided).for_each(|(v, x)| *v = *x);
            }
        }
        if precision == Precision::Int8 {
            let group = &mut panel[group * GROUP_BYTES..][..GROUP_BYTES];
            values[..columns].iter().enumerate().for_each(|(c, values)| pack_int8(values, c, group));
            continue;
        }
        let steps = if precision == Precision::F32 { GROUP } else { GROUP_STEPS };
        let words = panel[group * steps * PANEL * 4..][..steps * PANEL * 4].as_mut_ptr().cast::<f32>();
        // Transposes squares of 16 columns by 16 steps.
        for half in 0..2 {
            for part in 0..steps / 16 {
                // SAFETY: a column has 32 values, of which a part is 16 f32 or 32 to be paired; words has steps rows
                // of PANEL words (panels are aligned to 64 bytes).
                unsafe {
                    let mut square = [S::splat(0.0); 16];
                    for i in 0..16 {
                        let values = &values[16 * half + i];
                        square[i] = match precision {
                            Precision::F32 => T::load::<S>(values.as_ptr().add(16 * part)),
                            _ => T::load_pairs::<S>(values.as_ptr()),
                        };
                    }
                    for (i, row) in S::transpose(square).into_iter().enumerate() {
                        S::store(words.add((16 * part + i) * PANEL + 16 * half), row);
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn pack_f32_generic<S: Simd>(
    source: &PackSource,
    data: &[f32],
    p: usize,
    precision: Precision,
    panel: &mut [u8],
) {
    // SAFETY: the same contract.
    unsafe { pack_panel_generic::<S, f32>(source, data, p, precision, panel) }
}

#[inline(always)]
unsafe fn pack_bf16_generic<S: Simd>(
    source: &PackSource,
    data: &[bf16],
    p: usize,
    precision: Precision,
    panel: &mut [u8],
) {
    // SAFETY: the same contract.
    unsafe { pack_panel_generic::<S, bf16>(source, data, p, precision, panel) }
}

simd_fn!(fn pack_f32(source: &PackSource, data: &[f32], p: usize, precision: Precision, panel: &mut [u8]) = pack_f32_generic);
simd_fn!(fn pack_bf16(source: &PackSource, data: &[bf16], p: usize, precision: Precision, panel: &mut [u8]) = pack_bf16_generic);

/// One column of a group: its scale and its bytes.
#[inline(always)]
fn pack_int8<T: Number>(values: &[T; GROUP], c: usize, group: &mut [u8]) {
    // Adding and subtracting it rounds a small number to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let values = values.map(T::f32);
    let (scales, steps) = group.split_at_mut(PANEL * 2);
    let mut tops = [0.0f32; 8];
    for part in values.as_chunks::<8>().0 {
        tops.iter_mut().zip(part).for_each(|(m, v)| *m = if v.abs() > *m { v.abs() } else { *m });
    }
    let largest = tops.into_iter().fold(0.0, f32::max);
    // The scale is rounded up before use, so that nothing is clipped and the rounding adds no error.
    let mut scale = bf16::from_f32(largest / 127.0);
    if scale.to_f32() < largest / 127.0 {
        scale = bf16::from_bits(scale.to_bits() + 1);
    }
    scales[c * 2..][..2].copy_from_slice(&scale.to_ne_bytes());
    let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    // NaN becomes 0.
    let bytes = values.map(|v| (v * inverse + ROUND - ROUND).clamp(-127.0, 127.0) as i8 as u8);
    for (step, pair) in bytes.as_chunks::<2>().0.iter().enumerate() {
        steps[step * 64 + 2 * c..][..2].copy_from_slice(pair);
    }
}
