use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn clock(running: u64) -> TokenClock {
    let counters = Arc::new(EngineCounters::default());
    counters.running.store(running, Ordering::Relaxed);
    TokenClock::new(LIMIT, counters, 2)
}

async fn within(clock: &TokenClock, prompt: Option<usize>, part: Duration) -> Result<(), String> {
    clock.within(Instant::now(), prompt, tokio::time::sleep(part)).await
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_lost_after_a_time_without_a_token() {
    let clock = clock(2);
    assert!(within(&clock, Some(0), LIMIT / 2).await.is_ok());
    let late = within(&clock, Some(0), LIMIT * 2).await.expect_err("no token");
    assert_eq!(late, "the engine sent no token for 60s");
    // A long prompt takes its time.
    assert!(within(&clock, Some(2000), LIMIT * 2).await.is_ok());
    assert!(within(&clock, Some(2000), LIMIT * 3).await.is_err());
    // Parts that have no token do not help.
    let last = Instant::now();
    tokio::time::advance(LIMIT - Duration::from_secs(1)).await;
    assert!(clock.within(last, Some(0), tokio::time::sleep(Duration::from_millis(500))).await.is_ok());
    assert!(clock.within(last, Some(0), tokio::time::sleep(Duration::from_secs(1))).await.is_err());
    assert!(clock.within(last, Some(0), std::future::ready(())).await.is_ok(), "what is there is read");
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
    assert!(within(&clock, Some(0), LIMIT * 4).await.is_ok());
    assert!(within(&clock, None, LIMIT * 4).await.is_err(), "it has tokens, so it is not in the queue");
    ticks.await.expect("no panic");
    assert!(within(&clock, Some(0), LIMIT * 4).await.is_err(), "nobody gets a token");
}
