use futures::FutureExt;

use super::*;
use crate::blocks::HostShape;

const INTERVAL: Duration = Duration::from_millis(50);

fn feed(blocks: usize) -> (EventSource, Arc<EventFeed>) {
    new(&ExecutorShape {
        model: "m".into(),
        vocab_size: 10,
        max_context: 10,
        blocks,
        block_size: 4,
        kind: "sim",
        ranks: 1,
        hidden_size: 4,
        runs_ahead: true,
        step_cost: 6,
        states: None,
        lora_slots: 0,
        host: HostShape::default(),
        kv_ranks: 1,
    })
}

fn stored(hash: u64) -> BlockChange {
    BlockChange { hash, stored: true, tier: BlockTier::Cache }
}

fn removed(hash: u64) -> BlockChange {
    BlockChange { hash, stored: false, tier: BlockTier::Cache }
}

type Events = BoxStream<'static, Result<EngineEvents, Status>>;

fn listen(feed: &Arc<EventFeed>) -> Events {
    feed.listen(INTERVAL).expect("room for a listener").into_stream()
}

async fn next(events: &mut Events) -> EngineEvents {
    events.next().await.expect("goes on").expect("no status")
}

fn busy(running: u32) -> EngineLoad {
    EngineLoad { running, ..EngineLoad::default() }
}

#[tokio::test(start_paused = true)]
async fn a_listener_gets_a_snapshot_then_changes_at_its_interval_and_a_heartbeat_each_second() {
    let (_source, feed) = feed(100);
    let mut early = listen(&feed);
    feed.publish(vec![stored(1), stored(2)], busy(1));
    let first = next(&mut early).await;
    assert!(first.reset && first.complete && first.removed.is_empty());
    assert_eq!((first.hash_version, first.block_size, first.load), (block_hash::VERSION, 4, Some(busy(1))));
    assert_eq!(first.stored.iter().sum::<u64>(), 3);
    let begun = Instant::now();
    feed.publish(vec![removed(1), stored(3)], busy(1));
    feed.publish(vec![stored(4), removed(4), removed(2), stored(2)], busy(2));
    let news = next(&mut early).await;
    assert_eq!(begun.elapsed(), INTERVAL);
    assert!(!news.reset && news.complete);
    assert_eq!((news.stored, news.removed, news.load), (vec![3], vec![1], Some(busy(2))), "only what is left of it");
    let silence = next(&mut early).await;
    assert_eq!(begun.elapsed(), INTERVAL + limits::EVENT_SILENCE);
    assert!(silence.stored.is_empty() && silence.removed.is_empty());
    // A change of load alone is sent too. Changes during the interval are sent when it ends.
    feed.publish(vec![], busy(3));
    assert_eq!(next(&mut early).await.load, Some(busy(3)));
    assert_eq!(begun.elapsed(), INTERVAL * 2 + limits::EVENT_SILENCE);
    // A later listener starts with a snapshot, and both continue.
    let mut late = listen(&feed);
    let mut all = next(&mut late).await.stored;
    all.sort_unstable();
    assert_eq!(all, [2, 3]);
    feed.publish(vec![stored(5)], busy(3));
    assert_eq!((next(&mut early).await.stored, next(&mut late).await.stored), (vec![5], vec![5]));
}

#[tokio::test(start_paused = true)]
async fn a_content_in_two_blocks_stays_until_both_are_removed() {
    let (_source, feed) = feed(100);
    let mut events = listen(&feed);
    next(&mut events).await;
    feed.publish(vec![stored(1), stored(1), removed(1), stored(2)], busy(0));
    assert_eq!(next(&mut events).await.stored, [1, 2]);
    feed.publish(vec![removed(1)], busy(0));
    assert_eq!(next(&mut events).await.removed, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_is_too_slow_gets_a_new_snapshot() {
    let (_source, feed) = feed(10);
    let (mut slow, mut quick) = (listen(&feed), listen(&feed));
    next(&mut slow).await;
    next(&mut quick).await;
    for hash in 1..=11 {
        feed.publish(vec![stored(hash)], busy(0));
        assert_eq!(next(&mut quick).await.stored, [hash]);
    }
    assert_eq!(feed.state().log.len(), 10);
    let again = next(&mut slow).await;
    assert!(again.reset && again.complete);
    assert_eq!(again.stored.len(), 11);
    feed.publish(vec![stored(12)], busy(0));
    let news = next(&mut slow).await;
    assert_eq!((news.reset, news.stored), (false, vec![12]));
}

#[tokio::test(start_paused = true)]
async fn a_large_snapshot_is_sent_in_parts_at_once() {
    let count = limits::EVENT_PART as u64 * 2 + 1;
    let (_source, feed) = feed(count as usize);
    feed.publish((0..count).map(stored).collect(), busy(0));
    let mut events = listen(&feed);
    let begun = Instant::now();
    let parts = [next(&mut events).await, next(&mut events).await, next(&mut events).await];
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(
        parts.each_ref().map(|part| (part.reset, part.complete)),
        [(true, false), (false, false), (false, true)]
    );
    let mut all: Vec<u64> = parts.into_iter().flat_map(|part| part.stored).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..count));
    assert!(next(&mut events).await.stored.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_end_is_sent_at_once_and_listeners_are_counted() {
    let (source, feed) = feed(10);
    let mut all: Vec<Events> = (0..limits::EVENT_LISTENERS).map(|_| listen(&feed)).collect();
    let status = feed.listen(INTERVAL).err().expect("too many");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    all.pop();
    let mut events = listen(&feed);
    next(&mut events).await;
    let begun = Instant::now();
    let mut following = tokio::spawn(async move { (events.next().await, events.next().await.is_none()) });
    assert!((&mut following).now_or_never().is_none());
    source.close("rank 1 is gone");
    drop(source);
    let (end, over) = following.await.expect("no panic");
    let status = end.expect("an item").expect_err("a status");
    assert_eq!((status.code(), status.message(), over), (tonic::Code::Unavailable, "rank 1 is gone", true));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    drop(all);
    assert_eq!(feed.listeners.load(Ordering::SeqCst), 0);
}
