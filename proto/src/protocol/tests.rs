use super::*;

#[test]
fn adjacent_protocols_understand_each_other_in_both_directions() {
    for (one, other, expected) in [(1, 1, true), (1, 0, true), (0, 1, true), (1, 2, true), (1, 3, false), (3, 1, false)]
    {
        assert_eq!(understands(one, other), expected, "{one} and {other}");
    }
}
