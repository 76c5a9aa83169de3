//! Masks of tokens: one bit per id, lowest bit first.

/// The ids in a mask.
pub(crate) fn ids(mask: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let set = mask.iter().enumerate().filter(|(_, byte)| **byte != 0);
    set.flat_map(|(at, byte)| (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| 8 * at as u32 + bit))
}

/// Adds ids to a mask. Those beyond it are left out.
pub(crate) fn set(mask: &mut [u8], ids: &[u32]) {
    for id in ids {
        if let Some(byte) = mask.get_mut(*id as usize / 8) {
            *byte |= 1 << (id % 8);
        }
    }
}
