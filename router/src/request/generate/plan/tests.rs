use super::*;

#[test]
fn choices_have_different_seeds_and_the_first_has_the_requests_seed() {
    let seeds: std::collections::HashSet<u64> = (0..64).map(|choice| derived_seed(7, choice)).collect();
    assert_eq!((seeds.len(), derived_seed(7, 0)), (64, 7));
}
