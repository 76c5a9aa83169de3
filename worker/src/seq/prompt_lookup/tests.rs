use super::*;

#[test]
fn what_followed_the_longest_and_then_the_latest_match_is_drafted() {
    let text = [9, 1, 2, 3, 70, 71, 72, 8, 1, 2, 3, 80, 81, 82, 7, 1, 2, 3];
    assert_eq!(follows(&text, 2), [80, 81]);
    // With one more equal token, the earlier match is longer.
    let longer: Vec<u32> = text[..15].iter().copied().chain([9, 1, 2, 3]).collect();
    assert_eq!(follows(&longer, 3), [70, 71, 72]);
    assert_eq!(follows(&text[..14], 4), [] as [u32; 0], "82 comes once");
    assert_eq!(follows(&[1, 2, 5, 1, 2], 4), [] as [u32; 0], "two equal tokens are too few");
    assert_eq!(follows(&[], 4), [] as [u32; 0]);
    // Of equal matches, one that is followed by as many as are wanted.
    let repeated = [5, 6].repeat(20);
    assert_eq!(follows(&repeated, 6), [5, 6, 5, 6, 5, 6]);
    let far: Vec<u32> = (0..100).chain(0..(LOOKBACK as u32 - 50)).map(|i| i + 3).chain([3, 4, 5]).collect();
    assert_eq!(follows(&far, 2), [6, 7]);
    let beyond: Vec<u32> = [1, 2, 3, 4].into_iter().chain((10..).take(LOOKBACK)).chain([1, 2, 3]).collect();
    assert_eq!(follows(&beyond, 2), [] as [u32; 0]);
}

#[test]
fn drafts_are_as_many_as_they_are_worth() {
    let text = [1, 2, 3, 4].repeat(30);
    let mut lookup = PromptLookup::default();
    let alone = StepCost { fixed: 6, rows: 1, sequences: 1 };
    let many = StepCost { fixed: 6, rows: 16, sequences: 16 };
    let mut learned = |drawn: &[u32]| {
        lookup.find(&text);
        lookup.learn(drawn);
        lookup.find(&text);
        [alone, many].map(|cost| lookup.drafts(cost).len())
    };
    assert_eq!(learned(&[]), [3, 0], "nothing is known yet");
    assert_eq!(learned(&[9]), [2, 0]);
    assert_eq!(learned(&[1, 2, 3]), [6, 0]);
    assert_eq!(learned(&[1, 2, 3, 4]), [25, 3]);
    // What follows a wrong one says nothing.
    for _ in 0..12 {
        learned(&[9, 2, 3, 4]);
    }
    assert_eq!(learned(&[9]), [0, 0]);
    // Right ones count, though none of them is computed ahead.
    for _ in 0..3 {
        learned(&[1]);
    }
    assert_eq!(learned(&[1]), [4, 0]);
}
