use super::runs;

#[test]
fn rows_beside_a_prompt_are_computed_as_in_a_step_of_their_own() {
    assert_eq!(runs([1, 1, 1].into_iter()), [(0..3, true)]);
    assert_eq!(runs([300].into_iter()), [(0..300, false)]);
    assert_eq!(runs([1, 1, 500, 20, 1].into_iter()), [(0..2, true), (2..522, false), (522..523, true)]);
    assert_eq!(runs(std::iter::empty()), []);
}
