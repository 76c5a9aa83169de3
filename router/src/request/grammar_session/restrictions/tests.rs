use super::*;

#[test]
fn masks_exclude_exactly_the_refused_tokens() {
    let restrictions = Restrictions::new(&[1, 2, 3, 9], vec![vec![2], vec![1, 9], vec![3, 1, 3], vec![]], 12);
    assert_eq!(restrictions.lookback(), 2);
    for (generated, allowed) in [(&[][..], &[1, 3, 9][..]), (&[1], &[1, 3]), (&[3, 1], &[1]), (&[1, 3], &[1, 3, 9])] {
        let mut mask = vec![0xFF, 0x0F];
        restrictions.apply(generated, &mut mask);
        for id in 0..16 {
            assert_eq!(is_set(&mask, id), allowed.contains(&id), "{id} after {generated:?}");
            assert_eq!(restrictions.refuses(generated, id), !allowed.contains(&id), "{id} after {generated:?}");
        }
    }
    assert!(Restrictions::new(&[], vec![vec![]], 12).is_empty());
}
