//! The ops on rows alone: they take tensors, small weights and numbers. One list declares them, and derives what
//! repeats or rounds each of them ([`crate::lockstep`], [`crate::rounding`]).

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
            /// x *= sigmoid(gate); the gate has the columns of x, or one for all of them.
            fn sigmoid_mul(rounded x, tensor gate);
            /// Of `weight.len()` columns at a time, so a q/k norm is the same op with weight [head_dim].
            fn rms_norm(tensor x, vector weight, number eps: f32) -> activation;
            /// x += factor * y; returns the norm of the new x.
            fn add_norm(stream x, tensor y, number factor: f32, vector weight, number eps: f32) -> activation;
            /// Sums of the squares of rows, [rows, 2]: of x, and of columns `counted` of y.
            fn square_sums(tensor x, tensor y, number counted: std::ops::Range<usize>) -> exact;
            /// The norm of rows that are parts of wider ones: x * weight / sqrt(sums[.., column] / width + eps).
            fn norm_of_part(tensor x, vector weight, tensor sums, number of: $crate::row_ops::WholeRow) -> activation;
        }
    };
}
pub(crate) use row_ops;

/// What an argument of the list is, in an `impl` of [`RowOps`].
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

macro_rules! declare {
    ($($(#[$doc:meta])* fn $op:ident($($kind:ident $arg:ident $(: $type:ty)?),*) $(-> $result:ident)?;)*) => {
        /// Ops on rows alone.
        pub trait RowOps {
            /// An activation matrix.
            type Tensor: Send;
            type Vector: Send + Sync;
            $($(#[$doc])* fn $op(&self, $($arg: arg_type!($kind $($type)?)),*) $(-> result_type!($result))?;)*
        }
    };
}
row_ops!(declare);
