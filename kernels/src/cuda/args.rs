//! The arguments of kernels, as kernels/cuda declares them. Addresses are of the device.

use super::tensor_map::TensorMap;

/// ptx_test.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PtxArgs {
    pub map: TensorMap,
    pub input: u64,
    pub out: u64,
}

/// linear.cu
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct LinearArgs {
    pub x: u64,
    pub w: u64,
    pub bias: u64,
    pub out: u64,
    pub order: u64,
    pub starts: u64,
    pub weight_slots: u64,
    pub x_batch: u64,
    pub w_batch: u64,
    pub out_batch: u64,
    pub x_scales: u64,
    pub w_scales: u64,
    pub rows: i32,
    pub n: i32,
    pub k: i32,
    pub x_stride: i32,
    pub out_stride: i32,
    pub routes_per_row: i32,
    pub group: i32,
}

/// low_rank.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LowRankArgs {
    pub x: u64,
    pub y: u64,
    pub t: u64,
    pub table: u64,
    pub slots: u64,
    pub routes: u64,
    pub expert: u64,
    pub k: i32,
    pub n: i32,
    pub x_stride: i32,
    pub y_stride: i32,
    pub most: i32,
    pub per_row: i32,
    pub experts: i32,
    pub of_batch: i32,
}

/// embed.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EmbedArgs {
    pub table: u64,
    pub ids: u64,
    pub out: u64,
    pub hidden: i32,
    pub first: u32,
    pub count: u32,
}

/// `Codes` of quant.cuh
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CodesTo {
    pub codes: u64,
    pub scales: u64,
    pub stride: i32,
}

/// norm.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AddNormArgs {
    pub x: u64,
    pub y: u64,
    pub weight: u64,
    pub out: u64,
    pub to: CodesTo,
    pub n: i32,
    pub factor: f32,
    pub eps: f32,
}

/// norm.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GroupNormArgs {
    pub x: u64,
    pub weight: u64,
    pub out: u64,
    pub to: CodesTo,
    pub n: i32,
    pub stride: i32,
    pub eps: f32,
}

/// norm.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SquareSumArgs {
    pub x: u64,
    pub out: u64,
    pub n: i32,
    pub stride: i32,
    pub columns: i32,
}

/// norm.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PartNormArgs {
    pub x: u64,
    pub squares: u64,
    pub weight: u64,
    pub out: u64,
    pub to: CodesTo,
    pub n: i32,
    pub stride: i32,
    pub columns: i32,
    pub width: i32,
    pub eps: f32,
}

/// elementwise.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SiluMulArgs {
    pub gate: u64,
    pub up: u64,
    pub out: u64,
    pub routes: u64,
    pub used: u64,
    pub n: i32,
    pub stride: i32,
}

/// elementwise.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SigmoidMulArgs {
    pub x: u64,
    pub gate: u64,
    pub n: i32,
    pub gates: i32,
    pub stride: i32,
}

/// elementwise.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AddScaledArgs {
    pub x: u64,
    pub y: u64,
    pub n: usize,
    pub keep: f32,
    pub factor: f32,
}

/// elementwise.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GatherArgs {
    pub x: u64,
    pub index: u64,
    pub used: u64,
    pub out: u64,
    pub n: i32,
    pub stride: i32,
    pub per_row: i32,
}

/// elementwise.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ScatterArgs {
    pub x: u64,
    pub index: u64,
    pub used: u64,
    pub out: u64,
    pub n: i32,
}

/// quant.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QuantizeArgs {
    pub x: u64,
    pub to: CodesTo,
    pub routes: u64,
    pub used: u64,
    pub k: i32,
    pub x_stride: i32,
    pub per_row: i32,
}

/// quant.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SiluMulQuantArgs {
    pub gate: u64,
    pub up: u64,
    pub to: CodesTo,
    pub routes: u64,
    pub used: u64,
    pub k: i32,
    pub stride: i32,
}

/// rope.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RopeArgs {
    pub of: [RopeHeads; 2],
    pub positions: u64,
    pub blocks: i32,
}

/// rope.cu
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct RopeHeads {
    pub x: u64,
    pub angles: u64,
    pub dims: i32,
    pub interleaved: i32,
    pub heads: i32,
    pub dim: i32,
    pub offset: i32,
    pub stride: i32,
    pub heads_of_block: i32,
}

/// rope.cu
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CacheWriteArgs {
    pub x: [u64; 2],
    pub caches: [u64; 2],
    pub places: u64,
    pub width: [i32; 2],
    pub stride: [i32; 2],
}

/// attention.cu
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct AttentionArgs {
    pub qa: u64,
    pub qb: u64,
    pub cache_a: u64,
    pub cache_b: u64,
    pub cache_value: u64,
    pub out: u64,
    pub sequences: u64,
    pub positions: u64,
    pub tables: u64,
    pub a_entry: usize,
    pub b_entry: usize,
    pub value_entry: usize,
    pub qa_stride: i32,
    pub qa_head_stride: i32,
    pub width_a: i32,
    pub a_head: i32,
    pub qb_stride: i32,
    pub qb_head_stride: i32,
    pub width_b: i32,
    pub b_head: i32,
    pub value_width: i32,
    pub value_head: i32,
    pub group: i32,
    pub table_stride: i32,
    pub block_size: i32,
    pub window: i32,
    pub scale: f32,
    pub scales: u64,
    pub scales_of_place: i32,
    pub a_sharing: i32,
    pub value_sharing: i32,
    pub value_first: i32,
    pub sinks: u64,
}

/// cache.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CacheFp8Args {
    pub x: u64,
    pub codes: u64,
    pub scales: u64,
    pub positions: u64,
    pub places: u64,
    pub width: i32,
    pub stride: i32,
    pub sharing: i32,
    pub scales_of_place: i32,
    pub first_scale: i32,
}

/// route.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RouteArgs {
    pub scores: u64,
    pub bias: u64,
    pub ids: u64,
    pub weights: u64,
    pub experts: i32,
    pub top_k: i32,
    pub groups: i32,
    pub top_groups: i32,
    pub sigmoid: i32,
    pub normalize: i32,
    pub scaling: f32,
}

/// moe.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoeAlignArgs {
    pub ids: u64,
    pub held_ids: u64,
    pub tokens: u64,
    pub counts: u64,
    pub starts: u64,
    pub order: u64,
    pub routes: i32,
    pub held: i32,
    pub top_k: i32,
}

/// moe.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoePlaces {
    pub routes: u64,
    pub ends: u64,
    pub begins: u64,
    pub places: u64,
    pub held: i32,
    pub groups: i32,
    pub tile: i32,
    pub room: i32,
}

/// moe.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoePlaceArgs {
    pub counts: u64,
    pub starts: u64,
    pub order: u64,
    pub to: MoePlaces,
}

/// moe.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoePlaceFewArgs {
    pub ids: u64,
    pub held_ids: u64,
    pub tokens: u64,
    pub to: MoePlaces,
    pub routes: i32,
    pub top_k: i32,
}

/// moe.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoeCombineArgs {
    pub parts: u64,
    pub shared: u64,
    pub ids: u64,
    pub held: u64,
    pub tokens: u64,
    pub places: u64,
    pub weights: u64,
    pub out: u64,
    pub n: i32,
    pub top_k: i32,
}

/// delta.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeltaArgs {
    pub qkvz: u64,
    pub ba: u64,
    pub conv: u64,
    pub log_decay: u64,
    pub step_bias: u64,
    pub norm: u64,
    pub mixed: u64,
    pub states: u64,
    pub out: u64,
    pub cells: u64,
    pub numbers: usize,
    pub rows: i32,
    pub sequences: i32,
    pub key_heads: i32,
    pub group: i32,
    pub key_dim: i32,
    pub value_dim: i32,
    pub taps: i32,
    pub qkvz_stride: i32,
    pub ba_stride: i32,
    pub eps: f32,
}

/// linear_sm90.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LinearSm90Args {
    pub x_map: TensorMap,
    pub w_map: TensorMap,
    pub bias: u64,
    pub out: u64,
    pub rows: i32,
    pub n: i32,
    pub k: i32,
    pub out_stride: i32,
}

impl LinearSm90Args {
    /// `SHARED_BYTES` of linear_sm90.cu.
    pub const SHARED: u32 = 4 * (64 + 128) * 64 * 2 + 2 * 4 * 8;
}

/// ranks.cu
pub const MAX_RANKS: usize = 64;

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RankLetter {
    pub offers: [u64; 2],
    pub round: u32,
    pub unused: u32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MeetArgs {
    pub boxes: u64,
    pub round: u64,
    pub aborted: u64,
    pub table: u64,
    pub offers: [u64; 2],
    pub offsets: [u64; 2],
    /// Where the exchanges are counted, and where the host is told.
    pub count: [u64; 2],
    pub rank: i32,
    pub ranks: i32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct WriteTableArgs {
    pub table: u64,
    pub addresses: [[u64; MAX_RANKS]; 2],
    /// As in `MeetArgs`.
    pub count: [u64; 2],
    pub ranks: i32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SumRanksArgs {
    pub parts: u64,
    pub out: u64,
    pub n: usize,
    pub ranks: i32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AddNormRanksArgs {
    pub x: u64,
    pub parts: u64,
    pub weight: u64,
    pub out: u64,
    pub to: CodesTo,
    pub n: i32,
    pub ranks: i32,
    pub factor: f32,
    pub eps: f32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct JoinRowsArgs {
    pub parts: u64,
    pub out: u64,
    pub rows: i32,
    pub n: i32,
    pub ranks: i32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct JoinColumnsArgs {
    pub parts: u64,
    pub starts: u64,
    pub out: u64,
    pub n: i32,
    pub ranks: i32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoeDispatchArgs {
    pub ids: u64,
    pub tokens: u64,
    pub positions: u64,
    pub holders: u64,
    pub ranks_of: u64,
    pub mine: u64,
    pub counts: u64,
    pub routes: i32,
    pub top_k: i32,
    pub rank: i32,
    pub ranks: i32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoeSlotsArgs {
    pub ranks_of: u64,
    pub slots: u64,
    pub starts: u64,
    pub rows: i32,
    pub top_k: i32,
    pub ranks: i32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoePackArgs {
    pub parts: u64,
    pub ranks_of: u64,
    pub slots: u64,
    pub packed: u64,
    pub n: i32,
    pub rank: i32,
}

/// ranks.cu
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoeCombineRanksArgs {
    pub parts: u64,
    pub shared: u64,
    pub ids: u64,
    pub ranks_of: u64,
    pub tokens: u64,
    pub slots: u64,
    pub starts: u64,
    pub weights: u64,
    pub out: u64,
    pub first: i32,
    pub n: i32,
    pub top_k: i32,
    pub rank: i32,
    pub ranks: i32,
}
