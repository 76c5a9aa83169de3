//! The ops on rows alone, derived from their list.

use super::{Both, Lockstep};
use crate::backend::{Backend, RowOps};
use crate::cpu::Tensor;
use crate::row_ops::{arg_type, result_type, row_ops};

/// What the oracle takes: of what the device changes in place, a copy.
macro_rules! read {
    ($both:ident tensor $x:ident) => {
        $both.read($x)
    };
    ($both:ident stream $x:ident) => {
        $both.read($x)
    };
    ($both:ident rounded $x:ident) => {
        $both.read($x)
    };
    ($both:ident vector $x:ident) => {
        &$x.oracle
    };
    ($both:ident number $x:ident) => {
        $x.clone()
    };
}

macro_rules! to_oracle {
    (tensor $x:ident) => {
        &$x
    };
    (stream $x:ident) => {
        &mut $x
    };
    (rounded $x:ident) => {
        &mut $x
    };
    ($kind:ident $x:ident) => {
        $x
    };
}

macro_rules! to_device {
    (vector $x:ident) => {
        &$x.device
    };
    (number $x:ident) => {
        $x.clone()
    };
    ($kind:ident $x:ident) => {
        $x
    };
}

/// An argument that was changed in place.
macro_rules! changed {
    (stream $x:ident) => {
        Some($x)
    };
    (rounded $x:ident) => {
        Some($x)
    };
    ($kind:ident $x:ident) => {
        None
    };
}

macro_rules! changed_ref {
    (stream $x:ident) => {
        Some(&*$x)
    };
    (rounded $x:ident) => {
        Some(&*$x)
    };
    ($kind:ident $x:ident) => {
        None
    };
}

macro_rules! result_of_oracle {
    ($result:ident) => {
        Tensor
    };
}

macro_rules! compare {
    ($($(#[$doc:meta])* fn $op:ident($($kind:ident $arg:ident $(: $type:ty)?),*) $(-> $result:ident)?;)*) => {
        // A number may be a range, which is no copy.
        #[allow(clippy::clone_on_copy, unused_mut)]
        impl<B: Backend> RowOps for Lockstep<B> {
            type Tensor = B::Tensor;
            type Vector = Both<B::Vector, Vec<f32>>;
            $(fn $op(&self, $($arg: arg_type!($kind $($type)?)),*) $(-> result_type!($result))? {
                $(let want: result_of_oracle!($result);)?
                let after: Vec<Option<Tensor>> = {
                    $(let mut $arg = read!(self $kind $arg);)*
                    $(let result: result_of_oracle!($result) =)? self.oracle.$op($(to_oracle!($kind $arg)),*);
                    $(want = { let result: result_of_oracle!($result) = result; result };)?
                    vec![$(changed!($kind $arg)),*]
                };
                $(let got: result_type!($result) =)? self.device.$op($(to_device!($kind $arg)),*);
                let places: Vec<(&'static str, Option<&B::Tensor>)> =
                    vec![$((concat!(stringify!($op), ": ", stringify!($arg)), changed_ref!($kind $arg))),*];
                for ((name, got), want) in places.into_iter().zip(&after) {
                    if let (Some(got), Some(want)) = (got, want) {
                        self.check(name, got, want);
                    }
                }
                $(let got: result_type!($result) = got;
                self.check(stringify!($op), &got, &want);
                got)?
            })*
        }
    };
}
row_ops!(compare);
