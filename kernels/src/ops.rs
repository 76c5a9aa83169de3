//! Lists of ops, which derive from each what repeats or rounds it ([`crate::lockstep`], [`crate::rounding`]). Ops on
//! rows alone take tensors, small weights and numbers. Ops on sequences also read what a step and its sequences have;
//! those that a GPU rounds in their midst are no part of the list.

/// Calls a macro with the list. Of an argument, the first word says what it is: a `tensor`; one that is changed in
/// place, as `stream` (it stays f32) or as `rounded` (it becomes an activation); a `vector` of weights; a `number`. The
/// result is an `activation`, which may have fewer bits than f32, or it has the bits of what it came from (`exact`).
macro_rules! row_ops {
    ($apply:ident) => {
        $apply! {
            /// Columns from..from + len of every row.
            fn slice_cols(tensor x, number from: usize, number len: usize) -> exact;
            /// x += factor * y
            fn add_scaled(stream x, tensor y, number factor: f32);
            fn scale(stream x, number factor: f32);
            /// The residual stream as an activation: what a block takes that has no norm.
            fn activation(tensor x) -> activation;
            /// silu(gate) * up
            fn silu_mul(tensor gate, tensor up) -> activation;
            /// gelu(gate) * up, of gelu's form with tanh (arXiv:1606.08415).
            fn gelu_mul(tensor gate, tensor up) -> activation;
            fn gelu(tensor x, number form: $crate::ops::Gelu) -> activation;
            /// x *= sigmoid(gate); the gate has the columns of x, or one for all of them.
            fn sigmoid_mul(rounded x, tensor gate);
            /// Of `weight.len()` columns at a time, so a q/k norm is the same op with weight [head_dim].
            fn rms_norm(tensor x, vector weight, number eps: f32) -> activation;
            /// x += factor * y; returns the norm of the new x.
            fn add_norm(stream x, tensor y, number factor: f32, vector weight, number eps: f32) -> activation;
            /// (x - mean) / sqrt(variance + eps) * weight + bias, of rows (arXiv:1607.06450).
            fn layer_norm(tensor x, vector weight, vector bias, number eps: f32) -> activation;
            /// Sums of the squares of rows, [rows, 2]: of x, and of columns `counted` of y.
            fn square_sums(tensor x, tensor y, number counted: std::ops::Range<usize>) -> exact;
            /// The norm of rows that are parts of wider ones: x * weight / sqrt(sums[.., column] / width + eps).
            fn norm_of_part(tensor x, vector weight, tensor sums, number of: $crate::ops::WholeRow) -> activation;
        }
    };
}
pub(crate) use row_ops;

/// The same for ops on sequences. Of other arguments, the word is the type: of [`Backend`](crate::Backend), or a table
/// of vectors.
macro_rules! sequence_ops {
    ($apply:ident) => {
        $apply! {
            /// The rows of the batch's tokens, on the rank that holds them. Other ranks give -0, so that the sum over
            /// ranks has the bits of the table.
            fn embed(embedding table, batch batch) -> exact;
            /// Adds to y [rows, out] what the adapters of the batch's sequences make of x [rows, in], where a module
            /// has one in the sequence's slot.
            fn add_low_rank(batch batch, tensor x, rounded y, low_rank table);
            /// Adds to each row of x what the table [any, cols] has for its position.
            fn add_positions(batch batch, stream x, vector table);
            /// Rotates every head of x in place.
            fn rope(batch batch, rounded x, number spec: &$crate::RopeSpec);
            /// Writes k and v into the cache, then attends causally. q [rows, heads * head_dim] -> the same shape.
            /// `sinks` [heads]: a score of each head that takes a share of the softmax and has no value.
            fn gqa_attention(
                batch batch, tensor q, tensor k, tensor v, maybe_vector sinks, cache cache, number spec: &$crate::GqaSpec
            ) -> activation;
            /// Reads and writes the cells of the batch. qkvz [rows, key_heads * inputs]: of each key head its query,
            /// key, values and gates z, before the convolution; ba [rows, 2 * value_heads]: of each key head beta of
            /// its value heads (before sigmoid) and a. Result [rows, value_heads * value_dim], normed, times silu(z).
            fn delta_net(
                batch batch, tensor qkvz, tensor ba, delta_vectors vectors, states states, number spec: &$crate::DeltaSpec
            ) -> activation;
        }
    };
}
pub(crate) use sequence_ops;

/// The type of an argument of a list.
macro_rules! arg_type {
    (tensor) => {
        &Self::Tensor
    };
    (stream) => {
        &mut Self::Tensor
    };
    (rounded) => {
        &mut Self::Tensor
    };
    (vector) => {
        &Self::Vector
    };
    (number $type:ty) => {
        $type
    };
    (batch) => {
        &Self::Batch<'_>
    };
    (embedding) => {
        &Self::Embedding
    };
    (low_rank) => {
        &Self::LowRank
    };
    (maybe_vector) => {
        Option<&Self::Vector>
    };
    (delta_vectors) => {
        &$crate::DeltaVectors<'_, Self::Vector>
    };
    (cache) => {
        &mut Self::Cache
    };
    (states) => {
        &mut Self::States
    };
}
pub(crate) use arg_type;

/// The type of any result of the list.
macro_rules! result_type {
    ($result:ident) => {
        Self::Tensor
    };
}
pub(crate) use result_type;

/// A row of which a rank has a part: where its sum of squares is, and what else its norm needs.
#[derive(Debug, Clone, Copy)]
pub struct WholeRow {
    /// Of the sums, [rows, 2].
    pub column: usize,
    /// Numbers of the whole row.
    pub width: usize,
    pub eps: f32,
}

/// x times the normal distribution's share below x (arXiv:1606.08415), or what is near it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// By the error function.
    Erf,
    Tanh,
}

macro_rules! declare {
    ($($(#[$doc:meta])* fn $op:ident($($kind:ident $arg:ident $(: $type:ty)?),*) $(-> $result:ident)?;)*) => {
        $(
            $(#[$doc])*
            #[allow(clippy::too_many_arguments)]
            fn $op(&self, $($arg: arg_type!($kind $($type)?)),*) $(-> result_type!($result))?;
        )*
    };
}
pub(crate) use declare;

/// Ops on rows alone.
pub trait RowOps {
    /// An activation matrix.
    type Tensor: Send;
    type Vector: Send + Sync;
    row_ops!(declare);
}
