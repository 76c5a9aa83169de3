use std::collections::HashSet;

use super::*;

#[test]
fn prompts_are_found_again_until_others_take_their_blocks() {
    let feed = CacheFeed::new(4, 6, false);
    let tokens: Vec<u32> = (0..20).collect();
    assert_eq!(feed.note("", &tokens[..18]), 0);
    assert_eq!(feed.note("", &tokens), 16, "full blocks only");
    assert_eq!(feed.note("other", &tokens[..4]), 0, "a salt shares nothing");
    // Six blocks are there: the next one takes the place of the end of the chain.
    assert_eq!(feed.note("third", &tokens[..4]), 0);
    assert_eq!(feed.note("", &tokens), 16);
    assert_eq!(CacheFeed::new(4, 0, false).note("", &tokens), 0);
}

#[tokio::test]
async fn a_listener_knows_the_cache_after_each_message() {
    tokio::time::pause();
    let feed = CacheFeed::new(2, 5, false);
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

#[tokio::test]
async fn an_engine_that_reports_is_believed_until_it_is_silent() {
    tokio::time::pause();
    let feed = CacheFeed::new(4, 6, true);
    let tokens: Vec<u32> = (0..16).collect();
    let hashes: Vec<u64> = block_hash::chain("", &tokens, 4).collect();
    let stored: Vec<CacheChange> = hashes[..2].iter().copied().map(CacheChange::Stored).collect();
    assert_eq!(feed.note("", &tokens), 0);
    assert_eq!(feed.note("", &tokens), 0, "nothing is guessed");
    feed.apply(&stored);
    assert_eq!((feed.note("", &tokens), feed.reports()), (8, Some(true)));
    feed.apply(&[CacheChange::Removed(hashes[1]), CacheChange::Removed(7)]);
    assert_eq!(feed.note("", &tokens[..8]), 4);
    // New prompts without a report.
    for _ in 2..limits::SILENT_PROMPTS {
        tokio::time::advance(limits::EVENT_SILENCE).await;
        assert_eq!((feed.note("", &tokens), feed.reports()), (4, Some(true)));
    }
    assert_eq!(feed.note("", &tokens), 4);
    assert_eq!(feed.reports(), Some(false));
    assert_eq!(feed.note("", &tokens), 16, "guessed from now on");
    feed.apply(&stored);
    assert_eq!((feed.note("", &tokens), feed.reports()), (8, Some(true)), "the guesses are gone");
    feed.apply(&[CacheChange::Cleared]);
    assert_eq!(feed.blocks().used.len(), 0);
    // A prompt that is there causes no report.
    feed.apply(&stored);
    for _ in 0..2 * limits::SILENT_PROMPTS {
        feed.note("", &tokens[..8]);
        tokio::time::advance(limits::EVENT_SILENCE).await;
    }
    assert_eq!(feed.reports(), Some(true));
    assert_eq!(CacheFeed::new(4, 6, false).reports(), None);
}
