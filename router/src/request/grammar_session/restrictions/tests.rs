use super::*;

#[test]
fn what_is_refused_is_not_in_the_mask_and_the_other_way_round() {
    let restrictions = Restrictions::new(&[1, 2, 3, 9], vec![vec![2], vec![1, 9], vec![3, 1, 3], vec![]], 12);
    assert_eq!(restrictions.looks_back(), 2);
    for (generated, allowed) in [(&[][..], &[1, 3, 9][..]), (&[1], &[1, 3]), (&[3, 1], &[1]), (&[1, 3], &[1, 3, 9])] {
        let mut mask = vec![0xFF, 0x0F];
        restrictions.narrow(generated, &mut mask);
        for id in 0..16 {
            assert_eq!(bit(&mask, id), allowed.contains(&id), "{id} after {generated:?}");
            assert_eq!(restrictions.refuse(generated, id), !allowed.contains(&id), "{id} after {generated:?}");
        }
    }
    assert!(Restrictions::new(&[], vec![vec![]], 12).is_empty());
}
