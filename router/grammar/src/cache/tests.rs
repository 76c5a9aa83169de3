use super::*;

#[test]
fn the_cache_is_limited_in_bytes() {
    let cache = Cache::new(100);
    for i in 0..10 {
        cache.keep([i, 0], i, 20);
        assert_eq!(cache.get([0, 0]), Some(0), "what is used stays");
    }
    let kept: Vec<u64> = (0..10).filter(|i| cache.get([*i, 0]).is_some()).collect();
    assert_eq!(kept, [0, 6, 7, 8, 9]);
    cache.keep([99, 0], 99, 26);
    assert_eq!(cache.get([99, 0]), None, "what is too large displaces nothing");
    for bytes in [20, 20, 20, 20] {
        cache.keep([9, 0], 9, bytes);
    }
    assert_eq!(cache.get([6, 0]), Some(6), "a value that is kept again counts once");
}
