//! Aborting an engine at the end of the drain time.

use super::*;

#[tokio::test]
async fn an_abort_ends_running_waiting_and_held_sequences_once_each() {
    let service = engine(EngineOptions { max_sequences: 2, step_tokens: 2, ..EngineOptions::default() });
    let mut held = open(&service, Start { hold: true, ..request(&[10]) }).await.unwrap();
    held.admitted().await;
    let endless = Start { limits: Some(Limits { max_tokens: 700, ..Limits::default() }), ..request(&[7; 700]) };
    let running = open(&service, endless.clone()).await.unwrap();
    let waiting = open(&service, endless).await.unwrap();
    service.abort().await;
    for router in [held, running, waiting] {
        let mut responses = router.responses;
        let mut finishes = Vec::new();
        while let Some(message) = responses.next().await {
            if let Some(from_engine::Kind::Finish(finish)) = message.expect("no status").kind {
                finishes.push((finish.reason(), finish.error));
            }
        }
        assert_eq!(finishes, [(FinishReason::Lost, "the engine is shutting down".to_owned())]);
    }
    let status = open(&service, request(&[])).await.err().expect("refused");
    assert_eq!(status.code(), Code::Unavailable);
    tokio::time::timeout(Duration::from_secs(20), service.drain()).await.expect("nothing is left to drain");
}
