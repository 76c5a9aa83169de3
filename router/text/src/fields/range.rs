//! The numbers that a field may hold.

use std::fmt::Display;

use crate::InvalidRequest;

/// The numbers that a field may hold.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    min: f32,
    max: f32,
    /// The least number itself is not one of them.
    above: bool,
}

impl Range {
    pub const fn between(min: f32, max: f32) -> Self {
        Range { min, max, above: false }
    }

    /// Without the least number itself.
    pub const fn above(min: f32, max: f32) -> Self {
        Range { min, max, above: true }
    }

    /// `shown`: the value as the client wrote it.
    pub fn check(self, param: &str, value: f32, shown: impl Display) -> Result<(), InvalidRequest> {
        let Range { min, max, above } = self;
        if (min..=max).contains(&value) && !(above && value == min) {
            return Ok(());
        }
        let allowed = if above { format!("above {min} and at most {max}") } else { format!("between {min} and {max}") };
        Err(InvalidRequest::invalid(param, format!("'{param}' must be {allowed}, got {shown}")))
    }
}
