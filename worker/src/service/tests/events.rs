//! Events of cache and load, as routers receive them.

use std::collections::BTreeSet;

use rein_proto::block_hash;

use super::*;

const INTERVAL_MS: u32 = 50;

async fn listen(service: &EngineService, interval_ms: u32) -> Result<Streaming<EngineEvents>, Status> {
    let mut client = EngineClient::new(service.clone().into_server());
    Ok(client.events(EventsRequest { interval_ms }).await?.into_inner())
}

async fn next(events: &mut Streaming<EngineEvents>) -> Result<EngineEvents, Status> {
    let next = tokio::time::timeout(Duration::from_secs(20), events.next()).await.expect("a message");
    next.expect("the stream goes on")
}

/// What a listener knows after the messages so far.
#[derive(Default)]
struct Known {
    hashes: BTreeSet<u64>,
    resets: usize,
}

impl Known {
    /// Reads events until `done`.
    async fn until(&mut self, events: &mut Streaming<EngineEvents>, done: impl Fn(&BTreeSet<u64>) -> bool) {
        while !done(&self.hashes) {
            let message = next(events).await.expect("no status");
            assert_eq!((message.hash_version, message.block_size), (block_hash::VERSION, 4));
            assert_eq!(message.load.expect("set").total_blocks, 200);
            if message.reset {
                self.hashes.clear();
                self.resets += 1;
            }
            self.hashes.extend(&message.stored);
            for hash in &message.removed {
                assert!(self.hashes.remove(hash), "removed, but it was not there");
            }
        }
    }
}

fn prompt(of: u32, length: usize) -> Vec<u32> {
    [of, of / 90 + 1].into_iter().cycle().map(|token| token % 90).take(length).collect()
}

fn hashes(tokens: &[u32]) -> Vec<u64> {
    block_hash::chain("", tokens, 4).collect()
}

fn short(prompt: Vec<u32>) -> Start {
    Start { prompt, ..request(&[10]) }
}

#[tokio::test]
async fn a_listener_gets_cached_stored_and_evicted_blocks() {
    let service = engine(EngineOptions::default());
    let old = prompt(1, 40);
    run(&service, short(old.clone())).await;
    let mut events = listen(&service, INTERVAL_MS).await.expect("taken");
    let first = next(&mut events).await.expect("no status");
    assert!(first.reset && first.complete);
    assert_eq!(BTreeSet::from_iter(first.stored.clone()), BTreeSet::from_iter(hashes(&old)));
    assert_eq!(first.load.map(|load| (load.running, load.used_blocks)), Some((0, 0)));

    let mut known = Known { hashes: first.stored.into_iter().collect(), resets: 0 };
    // Generated tokens fill blocks too; the last drawn token has no KV entry.
    let script: Vec<u32> = (20..30).collect();
    run(&service, Start { prompt: prompt(2, 6), ..request(&script) }).await;
    let whole: Vec<u64> = hashes(&[prompt(2, 6), script, vec![EOS]].concat()[..16]);
    known.until(&mut events, |hashes| whole.iter().all(|hash| hashes.contains(hash))).await;
    // There are 200 blocks, so the oldest are evicted, ends of prompts first.
    for of in 3..10 {
        let next = prompt(of, 120);
        run(&service, short(next.clone())).await;
        known.until(&mut events, |known| hashes(&next).iter().all(|hash| known.contains(hash))).await;
    }
    known.until(&mut events, |known| !hashes(&old).iter().any(|hash| known.contains(hash))).await;
    assert_eq!(known.resets, 0);

    let mut held = open(&service, Start { hold: true, ..short(prompt(50, 8)) }).await.expect("admitted");
    held.admitted().await;
    while next(&mut events).await.expect("no status").load.is_none_or(|load| (load.running, load.used_blocks) != (1, 2))
    {
    }
}

#[tokio::test]
async fn a_slow_listener_gets_a_new_snapshot() {
    let service = engine(EngineOptions::default());
    let mut events = listen(&service, INTERVAL_MS).await.expect("taken");
    let first = next(&mut events).await.expect("no status");
    assert!(first.reset && first.stored.is_empty());
    // Each run stores 30 blocks and, once the cache is full, evicts as many: far more than the 200 changes that are
    // kept. Messages that the transport has buffered come first.
    for of in 0..60 {
        run(&service, short(prompt(of, 120))).await;
    }
    let mut known = Known::default();
    let last = hashes(&prompt(59, 120));
    known.until(&mut events, |hashes| last.iter().all(|hash| hashes.contains(hash))).await;
    assert_eq!(known.resets, 1);
    assert!(known.hashes.len() <= 200, "{} of 200 blocks", known.hashes.len());
    // A second listener knows the same.
    let mut second = listen(&service, 1000).await.expect("taken");
    let all = next(&mut second).await.expect("no status");
    assert_eq!(BTreeSet::from_iter(all.stored), known.hashes);
}

#[tokio::test]
async fn without_listeners_nothing_is_recorded_and_a_returning_listener_gets_a_snapshot() {
    let service = engine(EngineOptions::default());
    let mut events = listen(&service, INTERVAL_MS).await.expect("taken");
    next(&mut events).await.expect("no status");
    drop(events);
    run(&service, short(prompt(7, 20))).await;
    let mut events = listen(&service, INTERVAL_MS).await.expect("taken");
    let all = next(&mut events).await.expect("no status");
    assert!(all.reset);
    assert_eq!(BTreeSet::from_iter(all.stored), BTreeSet::from_iter(hashes(&prompt(7, 20))));
}

#[tokio::test]
async fn the_stream_ends_with_the_engine_and_rejects_invalid_intervals() {
    let gate = gated(EngineOptions::default());
    let mut events = listen(&gate.service, INTERVAL_MS).await.expect("taken");
    next(&mut events).await.expect("no status");
    let _held = open(&gate.service, request(&[])).await.expect("admitted");
    gate.step().await;
    gate.permits.send(Err(ExecutorError::Lost("rank 0 is gone".into()))).expect("room");
    let status = loop {
        match next(&mut events).await {
            Ok(message) => assert!(message.stored.is_empty()),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("rank 0 is gone"), "{status}");
    let refused = listen(&gate.service, INTERVAL_MS).await.expect_err("no engine");
    assert_eq!(refused.code(), Code::Unavailable);
    for interval_ms in [0, 49, 1001] {
        let status = listen(&gate.service, interval_ms).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), format!("interval_ms must be from 50 to 1000, got {interval_ms}"));
    }
    // Handles alone keep an engine alive; a listener does not.
    let service = engine(EngineOptions::default());
    let mut events = listen(&service, INTERVAL_MS).await.expect("taken");
    next(&mut events).await.expect("no status");
    drop(service);
    let status = loop {
        if let Err(status) = next(&mut events).await {
            break status;
        }
    };
    assert_eq!(status.message(), "the engine has stopped");
}
