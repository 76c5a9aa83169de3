//! The numbers that a field accepts.

use std::fmt::Display;

use crate::InvalidRequest;

/// An interval of numbers that a field accepts.
#[derive(Debug, Clone, Copy)]
pub struct AcceptedRange {
    min: f32,
    max: f32,
    /// Whether `min` itself is excluded.
    above: bool,
}

impl AcceptedRange {
    pub const fn between(min: f32, max: f32) -> Self {
        AcceptedRange { min, max, above: false }
    }

    /// Above `min`, up to and including `max`.
    pub const fn above(min: f32, max: f32) -> Self {
        AcceptedRange { min, max, above: true }
    }

    /// Checks a value; `shown` is the value as the client wrote it.
    pub fn check(self, param: &str, value: f32, shown: impl Display) -> Result<(), InvalidRequest> {
        let AcceptedRange { min, max, above } = self;
        if (min..=max).contains(&value) && !(above && value == min) {
            return Ok(());
        }
        let allowed = if above { format!("above {min} and at most {max}") } else { format!("between {min} and {max}") };
        Err(InvalidRequest::invalid(param, format!("'{param}' must be {allowed}, got {shown}")))
    }
}
