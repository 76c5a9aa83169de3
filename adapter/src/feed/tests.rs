use std::collections::HashSet;

use super::*;

#[test]
fn prompts_are_found_again_until_others_take_their_blocks() {
    let feed = CacheFeed::new(4, 6);
    let tokens: Vec<u32> = (0..20).collect();
    assert_eq!(feed.note("", &tokens[..18]), 0);
    assert_eq!(feed.note("", &tokens), 16, "full blocks only");
    assert_eq!(feed.note("other", &tokens[..4]), 0, "a salt shares nothing");
    // Six blocks are there: the next one takes the place of the end of the chain.
    assert_eq!(feed.note("third", &tokens[..4]), 0);
    assert_eq!(feed.note("", &tokens), 16);
    assert_eq!(CacheFeed::new(4, 0).note("", &tokens), 0);
}

#[tokio::test]
async fn a_listener_knows_the_cache_after_each_message() {
    tokio::time::pause();
    let feed = CacheFeed::new(2, 5);
    let mut events = feed.listen(Duration::from_millis(50));
    let mut known: HashSet<u64> = HashSet::new();
    for round in 0u32..40 {
        let event = events.next().await.expect("events do not end").expect("an event");
        assert_eq!((event.reset, event.complete, event.block_size), (round == 0, true, 2));
        assert!(event.stored.iter().all(|hash| !event.removed.contains(hash)));
        event.removed.iter().for_each(|hash| assert!(known.remove(hash)));
        known.extend(event.stored);
        let cached: HashSet<u64> = feed.blocks().used.keys().copied().collect();
        assert_eq!(known, cached, "round {round}");
        feed.note("", &[round % 7, 1, 2, 3, round % 3, 4]);
    }
    assert_eq!(known.len(), 5);
    // A new listener gets a snapshot.
    let snapshot = feed.listen(Duration::from_millis(50)).next().await.expect("an event").expect("an event");
    assert_eq!((snapshot.reset, snapshot.stored.len(), snapshot.removed.len()), (true, 5, 0));
}
