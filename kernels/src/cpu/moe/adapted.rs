//! Experts of rows that low-rank adapters change: expert by expert, with the products of any other weight.

use std::collections::BTreeMap;

use super::super::rows::silu_mul;
use super::{Experts, Pick};
use crate::cpu::low_rank::{AdaptedRows, gather};
use crate::cpu::{Cpu, Tensor};

impl Cpu {
    /// Adds what the held experts make of the rows that adapters change. `picks`: of each held expert.
    pub(super) fn adapted_experts_into(
        &self,
        x: &Tensor,
        adapted: &AdaptedRows,
        picks: &[Vec<Pick>],
        experts: &Experts,
        out: &mut Tensor,
    ) {
        let adapters = adapted.adapters();
        for (id, [gate, up, down], picks) in experts.with(picks) {
            let mut by_slot = BTreeMap::<u32, Vec<Pick>>::new();
            for pick in picks {
                if let Some(slot) = adapted.slot(pick.from) {
                    by_slot.entry(slot).or_default().push(*pick);
                }
            }
            for (slot, picks) in by_slot {
                let place = adapters.places(slot as usize).start + id as usize;
                let x = gather(x, &picks.iter().map(|pick| pick.from).collect::<Vec<_>>());
                let (mut gate, mut up) = (self.product(&x, gate, None), self.product(&x, up, None));
                self.add_pair_of_expert(&x, &mut gate, adapters.gate, place);
                self.add_pair_of_expert(&x, &mut up, adapters.up, place);
                let clamped = experts.clamped(id);
                match clamped {
                    // SAFETY: the set was detected.
                    None => unsafe { silu_mul(self.isa, &mut gate.data, &up.data) },
                    Some(clamped) => clamped.middle_rows(&mut gate.data, &up.data),
                }
                let mut part = self.product(&gate, down, None);
                clamped.iter().for_each(|clamped| clamped.add_down(&mut part.data));
                self.add_pair_of_expert(&gate, &mut part, adapters.down, place);
                for (pick, part) in picks.iter().zip(part.data.chunks_exact(part.cols.max(1))) {
                    let cols = out.cols;
                    let row = &mut out.data[pick.to * cols..][..cols];
                    row.iter_mut().zip(part).for_each(|(out, part)| *out += pick.weight * part);
                }
            }
        }
    }
}
