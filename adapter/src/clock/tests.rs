use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn clock(running: u64) -> TokenClock {
    let counters = Arc::new(EngineCounters::default());
    counters.running.store(running, Ordering::Relaxed);
    TokenClock::new(LIMIT, counters, 2)
}

async fn within(clock: &TokenClock, waits: bool, part: Duration) -> Result<(), String> {
    clock.within(Instant::now(), waits, tokio::time::sleep(part)).await
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_lost_after_a_time_without_a_token() {
    let clock = clock(2);
    assert!(within(&clock, true, LIMIT / 2).await.is_ok());
    let late = within(&clock, true, LIMIT * 2).await.expect_err("no token");
    assert_eq!(late, "the engine sent no token for 60s");
    // Parts that have no token do not help.
    let last = Instant::now();
    tokio::time::advance(LIMIT - Duration::from_secs(1)).await;
    assert!(clock.within(last, true, tokio::time::sleep(Duration::from_millis(500))).await.is_ok());
    assert!(clock.within(last, true, tokio::time::sleep(Duration::from_secs(1))).await.is_err());
    assert!(clock.within(last, true, std::future::ready(())).await.is_ok(), "what is there is read");
}

#[tokio::test(start_paused = true)]
async fn a_request_in_a_queue_that_moves_has_more_time() {
    let clock = Arc::new(clock(3));
    let ticks = tokio::spawn({
        let clock = clock.clone();
        async move {
            for _ in 0..10 {
                tokio::time::sleep(LIMIT / 2).await;
                clock.tick();
            }
        }
    });
    assert!(within(&clock, true, LIMIT * 4).await.is_ok());
    assert!(within(&clock, false, LIMIT * 4).await.is_err(), "it has tokens, so it is not in the queue");
    ticks.await.expect("no panic");
    assert!(within(&clock, true, LIMIT * 4).await.is_err(), "nobody gets a token");
}
