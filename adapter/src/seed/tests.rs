use std::collections::HashSet;

use super::*;

#[test]
fn each_place_has_its_own_seed_which_fits() {
    for bits in [32, 63] {
        let mut seen = HashSet::new();
        for (seed, position) in (0..20).flat_map(|seed| (0..20).map(move |position| (seed, position))) {
            for (masked, draws) in [(false, 0), (true, 0), (true, 1), (true, 2)] {
                let derived = derive(seed, position, masked, draws, bits);
                assert_eq!(derived >> bits, 0);
                assert_eq!(derived, derive(seed, position, masked, draws, bits));
                assert!(seen.insert(derived), "seed {seed}, position {position}, {masked}, {draws}");
            }
        }
    }
}
