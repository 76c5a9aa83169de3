//! The epoch of a placement: a fencing token that never repeats and contains a short number for people.
//!
//! The low 16 bits count the epochs of one group from 1. Logs, `rein status` and metrics show this number. The bits
//! above are a time in milliseconds since 1970, so that an epoch is higher than all earlier ones even if the store has
//! lost them (docs/decisions/0005-an-epoch-is-a-time-and-a-number.md). Numbers of expert layouts have the same form.
//!
//! This module does not know what an epoch fences.

const NUMBER_BITS: u32 = 16;
const NUMBERS: u64 = 1 << NUMBER_BITS;

/// After 65,535 epochs of a group the number wraps to 0. The time part still grows.
pub fn new(time: u64, number: u64) -> u64 {
    (time << NUMBER_BITS) | (number % NUMBERS)
}

/// The number to show for an epoch or an expert layout. 0: none yet.
pub fn number(epoch: u64) -> u64 {
    epoch % NUMBERS
}

pub(crate) fn time(epoch: u64) -> u64 {
    epoch >> NUMBER_BITS
}
