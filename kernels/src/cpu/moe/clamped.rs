//! The gate of experts with biases and limits.

use crate::backend::ClampedGate;

/// An expert's part of a layer's gate.
#[derive(Clone, Copy)]
pub(crate) struct ClampedExpert<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    pub down: &'a [f32],
    alpha: f32,
    limit: f32,
}

impl<'a> ClampedExpert<'a> {
    pub fn of(all: &'a ClampedGate<Vec<f32>>, id: u32, [inter, hidden]: [usize; 2]) -> Self {
        let part = |biases: &'a [f32], width| &biases[id as usize * width..][..width];
        let ClampedGate { gate, up, down, alpha, limit } = all;
        let (gate, up, down) = (part(gate, inter), part(up, inter), part(down, hidden));
        Self { gate, up, down, alpha: *alpha, limit: *limit }
    }

    /// Makes the middle of products without biases, whose columns begin at `column`. Columns past the last one, which
    /// fill up a panel, stay.
    pub fn middle(&self, column: usize, gate: &mut [f32], up: &[f32]) {
        let biases = self.gate.iter().zip(self.up).skip(column);
        for ((gate, up), (of_gate, of_up)) in gate.iter_mut().zip(up).zip(biases) {
            let (g, u) = ((*gate + of_gate).min(self.limit), (up + of_up).clamp(-self.limit, self.limit));
            *gate = g / (1.0 + (-self.alpha * g).exp()) * (u + 1.0);
        }
    }

    /// The same for whole rows.
    pub fn middle_rows(&self, gate: &mut [f32], up: &[f32]) {
        let cols = self.gate.len().max(1);
        let rows = gate.chunks_exact_mut(cols).zip(up.chunks_exact(cols));
        rows.for_each(|(gate, up)| self.middle(0, gate, up));
    }

    /// Adds the bias to whole rows of the result.
    pub fn add_down(&self, parts: &mut [f32]) {
        for row in parts.chunks_exact_mut(self.down.len().max(1)) {
            row.iter_mut().zip(self.down).for_each(|(part, bias)| *part += bias);
        }
    }
}
