use super::*;

#[test]
fn memory_returns_to_its_pool_and_is_taken_again() {
    let pool = HostPool::plain();
    let count = LEAST_KEPT + 3;
    let mut first = pool.take::<bf16>(count).expect("memory");
    first.bytes_mut().fill(0x3f);
    assert_eq!((first.len(), first[count - 1].to_bits()), (count, 0x3f3f));
    let second = pool.take::<u8>(2 * count).expect("memory");
    let at = [first.as_ptr().addr(), second.as_ptr().addr()];
    assert_ne!(at[0], at[1]);
    drop(first);
    assert_eq!(pool.take::<u8>(2 * count).expect("memory").as_ptr().addr(), at[0], "of the same size");
    assert_ne!(pool.take::<u8>(8 * count).expect("memory").as_ptr().addr(), at[0], "of another size");
    drop(second);
    assert_eq!(pool.free().len(), 3);
}

#[test]
fn few_and_many_bytes_are_not_kept() {
    let pool = HostPool::plain();
    for count in [0, 1, LEAST_KEPT - 1, MOST_KEPT + 1] {
        assert!(pool.take::<u8>(count).expect("memory").iter().all(|&byte| byte == 0));
    }
    assert_eq!(pool.free().len(), 0);
}

#[test]
fn numbers_are_the_same_in_any_memory() {
    let pool = HostPool::plain();
    let numbers: Vec<u8> = (0..=255).cycle().take(LEAST_KEPT).collect();
    let mut kept = pool.take::<u8>(numbers.len()).expect("memory");
    kept.copy_from_slice(&numbers);
    assert_eq!(kept.clone().into_vec(), numbers);
    kept.append(vec![1, 2].into());
    assert_eq!(kept[LEAST_KEPT..], [1, 2]);
    assert_eq!(pool.free().len(), 1);
    assert!(kept.into_pinned().is_err());
}
