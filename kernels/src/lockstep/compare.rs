//! What makes ops that are compared of a list of ops.

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
    ($both:ident maybe_vector $x:ident) => {
        $x.map(|x| &x.oracle)
    };
    ($both:ident delta_vectors $x:ident) => {
        &$x.map(|x| &x.oracle)
    };
    ($both:ident cache $x:ident) => {
        &mut $x.oracle
    };
    ($both:ident states $x:ident) => {
        &mut $x.oracle
    };
    ($both:ident number $x:ident) => {
        Clone::clone(&$x)
    };
    ($both:ident $kind:ident $x:ident) => {
        &$x.oracle
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
    (tensor $x:ident) => {
        $x
    };
    (stream $x:ident) => {
        $x
    };
    (rounded $x:ident) => {
        $x
    };
    (number $x:ident) => {
        Clone::clone(&$x)
    };
    (maybe_vector $x:ident) => {
        $x.map(|x| &x.device)
    };
    (delta_vectors $x:ident) => {
        &$x.map(|x| &x.device)
    };
    (cache $x:ident) => {
        &mut $x.device
    };
    (states $x:ident) => {
        &mut $x.device
    };
    ($kind:ident $x:ident) => {
        &$x.device
    };
}

/// What is left of an argument that was changed in place.
macro_rules! changed {
    (stream $x:expr) => {
        Some($x)
    };
    (rounded $x:expr) => {
        Some($x)
    };
    ($kind:ident $x:expr) => {
        None
    };
}

macro_rules! result_of_oracle {
    ($result:ident) => {
        Tensor
    };
}

/// The ops of a list. The oracle takes what the device had, before the device changes it.
macro_rules! compare {
    ($($(#[$doc:meta])* fn $op:ident($($kind:ident $arg:ident $(: $type:ty)?),*) $(-> $result:ident)?;)*) => {
        $(
            // A number may be a range, which is no copy.
            #[allow(clippy::clone_on_copy, clippy::too_many_arguments, unused_mut)]
            fn $op(&self, $($arg: arg_type!($kind $($type)?)),*) $(-> result_type!($result))? {
                $(let want: result_of_oracle!($result);)?
                let after: Vec<Option<Tensor>> = {
                    $(let mut $arg = read!(self $kind $arg);)*
                    $(let result: result_of_oracle!($result) =)? self.oracle.$op($(to_oracle!($kind $arg)),*);
                    $(want = { let result: result_of_oracle!($result) = result; result };)?
                    vec![$(changed!($kind $arg)),*]
                };
                $(let got: result_type!($result) =)? self.device.$op($(to_device!($kind $arg)),*);
                let places: Vec<(&'static str, Option<&B::Tensor>)> =
                    vec![$((concat!(stringify!($op), ": ", stringify!($arg)), changed!($kind &*$arg))),*];
                for ((name, got), want) in places.into_iter().zip(&after) {
                    if let (Some(got), Some(want)) = (got, want) {
                        self.check(name, got, want);
                    }
                }
                $(let got: result_type!($result) = got;
                self.check(stringify!($op), &got, &want);
                got)?
            }
        )*
    };
}
