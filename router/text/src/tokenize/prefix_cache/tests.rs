use super::*;

fn ids(node: Option<Arc<Node>>) -> Vec<u32> {
    node.expect("a node").ids.to_vec()
}

#[test]
fn a_part_is_found_only_behind_its_prefix_and_salt() {
    let cache = PromptCache::new(1 << 20);
    let start = cache.start("").unwrap();
    let a = cache.store(start, "a", &[1]).unwrap();
    let b = cache.store(a, "b", &[2, 3]).unwrap();
    assert_eq!(ids(cache.find(start, "a")), [1]);
    assert_eq!(ids(cache.find(a, "b")), [2, 3]);
    assert_eq!(cache.find(a, "b").unwrap().behind, b);
    for (place, text) in [(start, "b"), (b, "b"), (b, "a"), (a, "a")] {
        assert!(cache.find(place, text).is_none(), "{place:?} {text}");
    }
    // A salt is no part of a prompt, and a part is no salt.
    for salt in ["a", "s"] {
        let salted = cache.start(salt).unwrap();
        assert_eq!(cache.start(salt), Some(salted));
        assert_ne!(salted, start);
        assert!(cache.find(salted, "a").is_none());
    }
    assert!(cache.find(start, "s").is_none());
    assert_eq!(cache.store(start, "a", &[1]), Some(a), "a part that another request has stored stays");
}

#[test]
fn memory_is_bounded_and_used_parts_stay() {
    let most = 64 << 10;
    let cache = PromptCache::new(most);
    let start = cache.start("").unwrap();
    let kept = cache.store(start, "kept", &[1, 2]).unwrap();
    let child = cache.store(kept, "child", &[3]).unwrap();
    let mut largest = 0;
    for i in 0..10_000_u32 {
        cache.store(start, &format!("{i}: {}", "x".repeat(i as usize % 500)), &[i; 20]).unwrap();
        if i % 20 == 0 {
            assert_eq!(cache.find(start, "kept").unwrap().behind, kept);
            assert_eq!(cache.find(kept, "child").unwrap().behind, child);
        }
        largest = largest.max(cache.stats().bytes);
    }
    assert!((most / 2..=most).contains(&largest), "{largest}");
    assert!(cache.find(start, "5: xxxxx").is_none(), "an unused part is evicted");
    let inner = cache.inner.lock().unwrap();
    let bytes = |map: &HashMap<u64, Arc<Node>>| map.values().map(|node| node.bytes()).sum::<usize>();
    assert_eq!((bytes(&inner.young), bytes(&inner.old)), (inner.young_bytes, inner.old_bytes));
}

#[test]
fn a_part_that_is_too_large_is_not_stored() {
    let cache = PromptCache::new(8 << 10);
    let start = cache.start("").unwrap();
    assert_eq!(cache.store(start, &"x".repeat(1 << 10), &[1]), None);
    assert_eq!(cache.stats(), PromptCacheStats::default());
}

#[test]
fn children_of_an_evicted_part_are_not_found() {
    let cache = PromptCache::new(16 << 10);
    let start = cache.start("").unwrap();
    let first = cache.store(start, "parent", &[1]).unwrap();
    cache.store(first, "child", &[2]).unwrap();
    for i in 0..500_u32 {
        cache.store(start, &i.to_string(), &[i]).unwrap();
    }
    assert!(cache.find(start, "parent").is_none());
    let second = cache.store(start, "parent", &[1]).unwrap();
    assert_ne!(first, second);
    assert!(cache.find(second, "child").is_none());
}
