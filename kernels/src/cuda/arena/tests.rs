use super::{ALIGNMENT, ArenaLayout};

#[test]
fn gaps_are_reused_lowest_first() {
    let mut layout = ArenaLayout::default();
    let (a, b, c) = (layout.take(1), layout.take(300), layout.take(ALIGNMENT));
    assert_eq!((a, b, c), (0, ALIGNMENT, 3 * ALIGNMENT));
    layout.give(a);
    // Too small for this one.
    assert_eq!(layout.take(ALIGNMENT + 1), 4 * ALIGNMENT);
    assert_eq!(layout.take(0), 0);
    layout.give(b);
    assert_eq!(layout.take(2 * ALIGNMENT), b);
    assert_eq!(layout.peak(), 6 * ALIGNMENT);
}

#[test]
fn equal_sequences_get_equal_starts() {
    let mut layout = ArenaLayout::default();
    let mut run = || {
        let (a, b) = (layout.take(1000), layout.take(5000));
        layout.give(a);
        let (c, d) = (layout.take(900), layout.take(2000));
        for start in [b, c, d] {
            layout.give(start);
        }
        assert!(layout.is_empty());
        ([a, b, c, d], layout.peak())
    };
    assert_eq!(run(), run());
}

#[test]
fn a_known_start_is_taken_unless_it_is_in_use() {
    let mut layout = ArenaLayout::default();
    let (a, b) = (layout.take(ALIGNMENT), layout.take(ALIGNMENT));
    layout.give(b);
    assert!(!layout.take_at(a, 1));
    assert!(layout.take_at(b, ALIGNMENT) && !layout.take_at(b, 1));
    layout.give(a);
    assert!(!layout.take_at(0, 2 * ALIGNMENT), "overlaps with the second");
    assert!(layout.take_at(0, ALIGNMENT));
}
