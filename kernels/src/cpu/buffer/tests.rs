use super::*;

#[test]
fn a_dropped_buffer_is_reused() {
    let mut first = Buffer::zeroed(10_000);
    first[9_999] = 7.0;
    let address = first.as_ptr();
    drop(first);
    let second = Buffer::stale(9_000);
    assert_eq!((second.as_ptr(), second.len()), (address, 9_000));
    assert_eq!(second.clone().len(), 9_000);
    drop(second);
    assert!(Buffer::zeroed(9_999).iter().all(|&x| x == 0.0));
    for _ in 0..3 * KEPT {
        let many: Vec<Buffer> = (0..2 * KEPT).map(|_| Buffer::stale(SMALL)).collect();
        drop(many);
    }
    assert!(FREE.with_borrow(Vec::len) <= KEPT);
}
