//! Aborting an engine at the end of the drain time.

use super::*;

#[tokio::test]
async fn an_abort_ends_running_waiting_and_held_sequences_once_each() {
    let service = engine(EngineOptions { max_sequences: 2, token_budget: 2, ..EngineOptions::default() });
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

/// Its steps never end, because its ranks wait for one that hangs.
struct Stuck {
    ended: std::sync::Arc<std::sync::OnceLock<String>>,
    goes_on: Receiver<()>,
}

impl Executor for Stuck {
    fn shape(&self) -> ExecutorShape {
        sim().shape()
    }

    fn end_watch(&self) -> Option<AbortWatch> {
        let ended = self.ended.clone();
        Some(AbortWatch::new(move || ended.get().cloned()))
    }

    fn submit(&mut self, _: Step) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn wait(&mut self) -> Result<StepResult, ExecutorError> {
        // Until the test is over.
        let _ = self.goes_on.recv();
        Err(ExecutorError::Lost("test over".into()))
    }
}

#[tokio::test]
async fn an_engine_whose_ranks_ended_in_a_step_is_given_up_without_its_step() {
    let ended = std::sync::Arc::default();
    let (go_on, goes_on) = crossbeam_channel::bounded::<()>(1);
    let service = start(Box::new(Stuck { ended: std::sync::Arc::clone(&ended), goes_on }), EngineOptions::default());
    let mut router = open(&service, request(&[10])).await.expect("opened");
    assert_eq!((service.ended(), service.lost()), (None, None));
    ended.set("rank 1: its device hangs".to_owned()).expect("once");
    let why = service.ended().expect("its ranks have ended");
    service.give_up(&why);
    assert_eq!(service.lost(), Some("rank 1: its device hangs"));
    let status = loop {
        if let Some(Err(status)) = router.responses.next().await {
            break status;
        }
    };
    assert_eq!(status.code(), Code::Unavailable);
    drop(go_on);
}
