use super::*;

#[test]
fn weights_stay_on_their_devices() {
    assert_eq!(assign(&[None, None, None]), [0, 1, 2]);
    assert_eq!(assign(&[Some(1), None, None]), [1, 0, 2]);
    assert_eq!(assign(&[None, Some(2), None]), [0, 2, 1]);
}
