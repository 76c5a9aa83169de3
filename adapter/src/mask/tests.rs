use super::*;

#[test]
fn bits_beyond_the_vocabulary_do_not_count() {
    let mask = AllowedTokens::new(&Bytes::from(vec![0b1000_0001, 0xFF]), 11);
    assert_eq!(mask.count(), 5);
    assert_eq!(mask.ids().collect::<Vec<_>>(), [0, 7, 8, 9, 10]);
    assert_eq!(mask.excluded().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert!(!mask.contains(11) && !mask.contains(u32::MAX));
    assert_eq!(AllowedTokens::new(&Bytes::from(vec![0xFF]), 8).count(), 8);
}

#[test]
fn ids_are_removed_unless_none_is_left() {
    let mask = AllowedTokens::new(&Bytes::from(vec![0b0000_0110]), 8);
    assert_eq!(mask.clone().without(&[1, 5, 99]).ids().collect::<Vec<_>>(), [2]);
    assert_eq!(mask.clone().without(&[1, 2]), mask);
}
