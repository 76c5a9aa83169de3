//! Which engine gets a sequence.

/// The engine with the fewest open sequences; among equals the first at or after `turn`, so that idle engines take turns.
pub fn least_loaded(open: &[usize], turn: usize) -> Option<usize> {
    let least = open.iter().min()?;
    let turn = turn % open.len();
    (turn..open.len()).chain(0..turn).find(|&i| open[i] == *least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_loaded_engine_is_picked_and_equals_take_turns() {
        assert_eq!(least_loaded(&[], 0), None);
        assert_eq!(least_loaded(&[3, 1, 2], 0), Some(1));
        assert_eq!((0..4).map(|turn| least_loaded(&[1, 1, 2], turn)).collect::<Vec<_>>(), [0, 1, 0, 0].map(Some));
    }
}
