use super::*;

#[test]
fn choices_draw_with_different_seeds_and_the_first_with_the_given_one() {
    let seeds: std::collections::HashSet<u64> = (0..64).map(|choice| derived_seed(7, choice)).collect();
    assert_eq!((seeds.len(), derived_seed(7, 0)), (64, 7));
}
