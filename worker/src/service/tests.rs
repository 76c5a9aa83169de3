//! A scripted router against the service, over the generated client without a socket.

use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::Receiver;
use rein_proto::internal::engine_client::EngineClient;
use rein_proto::internal::{
    Admitted, Finish, FinishReason, Limits, LogitBias, Sampling, Steer, Step, StepResult, Tokens,
};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::*;
use crate::executor::ExecutorError;
use crate::sim::{Sim, SimOptions};

mod abort;
mod burst;
mod embeddings;
mod events;
mod gate;
mod releases;

use gate::{gated, gated_ahead};

const VOCAB: u32 = 100;
const EOS: u32 = 99;

fn sim() -> Sim {
    let options = SimOptions { vocab_size: VOCAB as usize, max_context: 1000, blocks: 200, ..SimOptions::default() };
    Sim::new(SimOptions { block_size: 4, seed: 5, ..options })
}

fn engine(options: EngineOptions) -> EngineService {
    start(Box::new(sim()), options)
}

fn request(script: &[u32]) -> Start {
    Start {
        request_id: "r".into(),
        prompt: vec![1, 2, 3, 4, 5],
        resume: vec![],
        sampling: Some(Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: vec![],
            seed: 0,
        }),
        limits: Some(Limits { max_tokens: 500, min_tokens: 0, stop_token_ids: vec![EOS], ignore_eos: false }),
        hold: false,
        cache_salt: String::new(),
        logprobs: -1,
        prompt_logprobs: -1,
        finish_is_proposal: false,
        script: script.to_vec(),
        ..Start::default()
    }
}

fn mask(tokens: &[u32]) -> Option<Bytes> {
    let mut bits = vec![0u8; VOCAB.div_ceil(8) as usize];
    tokens.iter().for_each(|token| bits[*token as usize / 8] |= 1 << (token % 8));
    Some(bits.into())
}

fn all_but(token: u32) -> Option<Bytes> {
    mask(&(0..VOCAB).filter(|&other| other != token).collect::<Vec<_>>())
}

/// The router's side of one sequence.
struct Router {
    requests: mpsc::Sender<ToEngine>,
    responses: Streaming<FromEngine>,
}

async fn open(service: &EngineService, start: Start) -> Result<Router, Status> {
    open_within(service, start, None).await
}

async fn open_within(service: &EngineService, start: Start, timeout: Option<Duration>) -> Result<Router, Status> {
    let (requests, queue) = mpsc::channel(16);
    requests.send(ToEngine { kind: Some(to_engine::Kind::Start(start)) }).await.expect("room");
    let mut request = Request::new(ReceiverStream::new(queue));
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    let mut client = EngineClient::new(service.clone().into_server());
    let responses = client.generate(request).await?.into_inner();
    Ok(Router { requests, responses })
}

impl Router {
    async fn steer(&self, steer: Steer) {
        let message = ToEngine { kind: Some(to_engine::Kind::Steer(steer)) };
        self.requests.send(message).await.expect("the stream is open");
    }

    async fn next(&mut self) -> Result<from_engine::Kind, Status> {
        let next = tokio::time::timeout(Duration::from_secs(20), self.responses.next()).await.expect("an answer");
        next.expect("the stream goes on").map(|message| message.kind.expect("set"))
    }

    async fn admitted(&mut self) -> Admitted {
        match self.next().await {
            Ok(from_engine::Kind::Admitted(admitted)) => admitted,
            other => panic!("not Admitted: {other:?}"),
        }
    }

    async fn tokens(&mut self) -> Tokens {
        match self.next().await {
            Ok(from_engine::Kind::Tokens(tokens)) => tokens,
            other => panic!("not Tokens: {other:?}"),
        }
    }

    async fn finish(&mut self) -> Finish {
        match self.next().await {
            Ok(from_engine::Kind::Finish(finish)) => finish,
            other => panic!("not Finish: {other:?}"),
        }
    }

    /// The first tokens of this epoch; older ones are ignored, as in a router.
    async fn tokens_of(&mut self, epoch: u64) -> Tokens {
        loop {
            let next = self.next().await.expect("an answer");
            match next {
                from_engine::Kind::Tokens(tokens) if tokens.epoch == epoch => return tokens,
                from_engine::Kind::Finish(finish) if finish.epoch == epoch => panic!("{finish:?}"),
                _ => {}
            }
        }
    }

    /// All ids up to the Finish.
    async fn rest(&mut self) -> (Vec<u32>, Finish) {
        let mut ids = Vec::new();
        loop {
            match self.next().await.expect("an answer") {
                from_engine::Kind::Tokens(tokens) => ids.extend(tokens.ids),
                from_engine::Kind::Finish(finish) => return (ids, finish),
                from_engine::Kind::Admitted(_) => {}
            }
        }
    }

    async fn ended(&mut self) {
        let next = tokio::time::timeout(Duration::from_secs(20), self.responses.next()).await.expect("an end");
        assert!(next.is_none(), "{next:?}");
    }

    /// Whether no message has arrived.
    fn silent(&mut self) -> bool {
        self.responses.next().now_or_never().is_none()
    }
}

async fn run(service: &EngineService, start: Start) -> (Vec<u32>, Finish) {
    open(service, start).await.expect("admitted").rest().await
}

#[tokio::test]
async fn a_script_runs_to_its_stop_token() {
    let service = engine(EngineOptions::default());
    let mut router = open(&service, request(&[10, 11, 12])).await.unwrap();
    assert_eq!(router.admitted().await, Admitted { prompt_tokens: 5, ..Admitted::default() });
    for (position, id) in [10, 11, 12, EOS].into_iter().enumerate() {
        let tokens = router.tokens().await;
        assert_eq!((tokens.epoch, tokens.position, tokens.ids), (0, position as u32, vec![id]));
    }
    let finish = router.finish().await;
    assert_eq!((finish.reason(), finish.generated, &finish.error[..]), (FinishReason::Stop, 4, ""));
    router.ended().await;
    let mut again = open(&service, request(&[10])).await.unwrap();
    assert_eq!(again.admitted().await.cached_tokens, 4);
    let mut salted = open(&service, Start { cache_salt: "tenant".into(), ..request(&[10]) }).await.unwrap();
    assert_eq!(salted.admitted().await.cached_tokens, 0);
}

#[tokio::test]
async fn a_hold_at_the_start_waits_for_the_first_steer() {
    let service = engine(EngineOptions::default());
    let mut held = open(&service, Start { hold: true, ..request(&[10, 11]) }).await.unwrap();
    held.admitted().await;
    assert_eq!(run(&service, request(&[20, 21, 22])).await.0, [20, 21, 22, EOS]);
    assert!(held.silent());
    held.steer(Steer { epoch: 1, mask: mask(&[42]), ..Steer::default() }).await;
    assert_eq!(held.tokens().await, Tokens { epoch: 1, position: 0, ids: vec![42], logprobs: vec![] });
    assert_eq!(held.tokens().await, Tokens { epoch: 1, position: 1, ids: vec![11], logprobs: vec![] });
    assert_eq!(service.engine_stats().held_steps, 1);
}

#[tokio::test]
async fn a_held_row_draws_one_token_per_steer_under_its_mask() {
    let service = engine(EngineOptions::default());
    let mut router = open(&service, Start { hold: true, ..request(&[]) }).await.unwrap();
    router.admitted().await;
    for epoch in 1..=20 {
        let (keep, id) = (epoch as u32 - 1, 30 + epoch as u32);
        router.steer(Steer { epoch, keep, mask: mask(&[id]), hold: true, ..Steer::default() }).await;
        assert_eq!(router.tokens().await, Tokens { epoch, position: keep, ids: vec![id], logprobs: vec![] });
        assert!(router.silent());
    }
    // Forced tokens of a held row count, are not sent back, and the next draw follows them.
    router.steer(Steer { epoch: 21, keep: 20, append: vec![7, 8], mask: mask(&[9]), ..Steer::default() }).await;
    assert_eq!(router.tokens().await, Tokens { epoch: 21, position: 22, ids: vec![9], logprobs: vec![] });
    let stats = service.engine_stats();
    assert_eq!((stats.rewound_tokens, stats.steers), (0, 21));
}

#[tokio::test]
async fn a_rejected_token_is_rewound_and_drawn_again() {
    let service = engine(EngineOptions::default());
    let script: Vec<u32> = (10..60).collect();
    let start = Start { finish_is_proposal: true, ..request(&script) };
    let mut router = open(&service, start).await.unwrap();
    router.admitted().await;
    for position in 0..3 {
        assert_eq!(router.tokens().await.ids, [10 + position]);
    }
    // Token 12 at position 2 is rejected.
    router.steer(Steer { epoch: 1, keep: 2, mask: all_but(12), ..Steer::default() }).await;
    let redrawn = router.tokens_of(1).await;
    assert_eq!(redrawn.position, 2);
    assert_ne!(redrawn.ids, [12]);
    assert_eq!(router.tokens().await, Tokens { epoch: 1, position: 3, ids: vec![13], logprobs: vec![] });
    // Two forced tokens replace what followed.
    router.steer(Steer { epoch: 2, keep: 1, append: vec![70, 71], ..Steer::default() }).await;
    assert_eq!(router.tokens_of(2).await, Tokens { epoch: 2, position: 3, ids: vec![13], logprobs: vec![] });
    let (rest, finish) = router.rest().await;
    assert_eq!(rest, (14..60).chain([EOS]).collect::<Vec<_>>());
    assert_eq!((finish.epoch, finish.generated), (2, 51));
}

#[tokio::test]
async fn steered_tokens_match_a_run_alone() {
    let service = engine(EngineOptions::default());
    let limits = Some(Limits { max_tokens: 40, min_tokens: 0, stop_token_ids: vec![], ignore_eos: true });
    let plain = Start { limits, ..request(&[]) };
    let (alone, _) = run(&service, plain.clone()).await;
    assert_eq!(alone.len(), 40);
    let mut router = open(&service, Start { finish_is_proposal: true, ..plain.clone() }).await.unwrap();
    assert_eq!(router.rest().await.0, alone);
    router.steer(Steer { epoch: 1, keep: 17, ..Steer::default() }).await;
    assert_eq!(router.rest().await.0, alone[17..]);
    router.steer(Steer { epoch: 2, keep: 5, append: alone[5..9].to_vec(), ..Steer::default() }).await;
    assert_eq!(router.rest().await.0, alone[9..]);
    // Resumed on another engine.
    let other = engine(EngineOptions::default());
    let mut resumed = open(&other, Start { resume: alone[..23].to_vec(), ..plain }).await.unwrap();
    assert_eq!(resumed.admitted().await.prompt_tokens, 5);
    assert_eq!(resumed.tokens().await.position, 23);
    let (rest, finish) = resumed.rest().await;
    assert_eq!((&rest[..], finish.generated), (&alone[24..], 40));
}

#[tokio::test]
async fn a_proposed_finish_is_revived_or_closed() {
    let service = engine(EngineOptions { max_sequences: 1, ..EngineOptions::default() });
    let mut router = open(&service, Start { finish_is_proposal: true, ..request(&[10, EOS, 12]) }).await.unwrap();
    let (ids, finish) = router.rest().await;
    assert_eq!((ids, finish.reason()), (vec![10, EOS], FinishReason::Stop));
    // EOS is rejected.
    router.steer(Steer { epoch: 1, keep: 1, mask: mask(&[33]), ..Steer::default() }).await;
    let (ids, finish) = router.rest().await;
    assert_eq!((ids, finish.reason(), finish.generated), (vec![33, 12, EOS], FinishReason::Stop, 4));
    assert!(router.silent());
    drop(router.requests);
    assert!(router.responses.next().await.is_none(), "a clean end after a proposal");
    assert_eq!(run(&service, request(&[20])).await.0, [20, EOS]);
}

#[tokio::test]
async fn stop_finishes_after_keep_and_append() {
    let service = engine(EngineOptions::default());
    let start = Start { hold: true, finish_is_proposal: true, ..request(&[]) };
    let mut router = open(&service, start).await.unwrap();
    router.admitted().await;
    router.steer(Steer { epoch: 1, append: vec![4, 5, 6], stop: true, ..Steer::default() }).await;
    let finish = router.finish().await;
    assert_eq!((finish.epoch, finish.reason(), finish.generated), (1, FinishReason::Steered, 3));
    router.ended().await;
}

#[tokio::test]
async fn max_tokens_counts_resumed_forced_and_drawn_tokens() {
    let service = engine(EngineOptions::default());
    let limits = Some(Limits { max_tokens: 6, min_tokens: 0, stop_token_ids: vec![EOS], ignore_eos: false });
    let start = Start { limits, resume: vec![50, 51], hold: true, ..request(&[]) };
    let mut router = open(&service, start.clone()).await.unwrap();
    router.admitted().await;
    router.steer(Steer { epoch: 1, keep: 2, append: vec![52, 53], mask: mask(&[54]), hold: true, stop: false }).await;
    assert_eq!(router.tokens().await, Tokens { epoch: 1, position: 4, ids: vec![54], logprobs: vec![] });
    router.steer(Steer { epoch: 2, keep: 5, append: vec![55, 56], ..Steer::default() }).await;
    let finish = router.finish().await;
    assert_eq!((finish.epoch, finish.reason(), finish.generated), (2, FinishReason::Length, 6));
    let full = Start { resume: vec![1; 6], ..start };
    let (ids, finish) = run(&service, full).await;
    assert_eq!((ids.len(), finish.reason(), finish.generated), (0, FinishReason::Length, 6));
}

#[tokio::test]
async fn the_context_is_a_limit_and_min_tokens_a_floor() {
    let service = engine(EngineOptions::default());
    let context = service.engine_info().max_context;
    assert_eq!(context, 800, "what the blocks hold");
    let limits = Some(Limits { max_tokens: 5000, min_tokens: 0, stop_token_ids: vec![], ignore_eos: true });
    let (ids, finish) = run(&service, Start { prompt: vec![3; 790], limits, ..request(&[]) }).await;
    assert_eq!((ids.len(), finish.reason()), (10, FinishReason::Length));
    let limits = Limits { max_tokens: 9, min_tokens: 4, stop_token_ids: vec![EOS], ignore_eos: false };
    let (ids, finish) = run(&service, Start { limits: Some(limits.clone()), ..request(&[EOS; 9]) }).await;
    assert_eq!((ids.len(), ids[4], finish.reason()), (5, EOS, FinishReason::Stop));
    assert!(!ids[..4].contains(&EOS));
    let limits = Limits { ignore_eos: true, ..limits };
    let (ids, finish) = run(&service, Start { limits: Some(limits), ..request(&[EOS; 9]) }).await;
    assert_eq!((ids, finish.reason()), (vec![EOS; 9], FinishReason::Length));
}

#[tokio::test]
async fn an_invalid_steer_ends_only_its_own_sequence() {
    let service = engine(EngineOptions::default());
    let mut neighbour = open(&service, Start { hold: true, ..request(&[10, 11]) }).await.unwrap();
    neighbour.admitted().await;
    let good = Steer { epoch: 2, keep: 1, append: vec![], mask: None, hold: true, stop: false };
    let cases = [
        (Steer { epoch: 1, ..good.clone() }, "steer.epoch: must be above 1, got 1"),
        (Steer { epoch: 0, ..good.clone() }, "steer.epoch: must be above 1, got 0"),
        (Steer { keep: 2, ..good.clone() }, "steer.keep: must be at most 1, the number of generated tokens, got 2"),
        (
            Steer { append: vec![3, 100], ..good.clone() },
            "steer.append: tokens must be below the vocabulary size 100, got 100",
        ),
        (
            Steer { mask: Some(vec![255; 12].into()), ..good.clone() },
            "steer.mask: must have 13 bytes for a vocabulary of 100, got 12",
        ),
        (Steer { mask: mask(&[]), ..good }, "no token can be drawn at position 1"),
    ];
    for (steer, text) in cases {
        let mut router = open(&service, Start { hold: true, ..request(&[]) }).await.unwrap();
        router.admitted().await;
        router.steer(Steer { epoch: 1, hold: true, ..Steer::default() }).await;
        router.tokens().await;
        router.steer(steer).await;
        let finish = router.finish().await;
        assert_eq!(finish.reason(), FinishReason::Error);
        assert!(finish.error.contains(text), "{}", finish.error);
        router.ended().await;
    }
    let mut second = open(&service, Start { hold: true, ..request(&[]) }).await.unwrap();
    let message = ToEngine { kind: Some(to_engine::Kind::Start(request(&[]))) };
    second.requests.send(message).await.unwrap();
    assert_eq!(second.rest().await.1.error, "only a steer may follow the start");
    neighbour.steer(Steer { epoch: 9, ..Steer::default() }).await;
    assert_eq!(neighbour.rest().await.0, [10, 11, EOS]);
}

#[tokio::test]
async fn a_router_that_leaves_frees_the_slot_within_one_step() {
    let gate = gated(EngineOptions { max_sequences: 1, ..EngineOptions::default() });
    // A router leaves by dropping the call, or by closing only the request side.
    for drops in [true, false] {
        let Router { requests, responses } = open(&gate.service, request(&[])).await.unwrap();
        let mut responses = Some(responses);
        gate.step().await;
        let service = gate.service.clone();
        let second = tokio::spawn(async move { open(&service, request(&[10])).await });
        gate.queued(1).await;
        drop(requests);
        if drops {
            responses = None;
        }
        gate.queued(2).await;
        gate.permit();
        assert_eq!(gate.step().await.dropped, [0], "the second sequence has the first one's slot");
        gate.permit();
        gate.step().await;
        gate.permit();
        assert_eq!(second.await.unwrap().unwrap().rest().await.0, [10, EOS]);
        if let Some(responses) = responses {
            let last = responses.filter_map(Result::err).next().await;
            assert_eq!(last.expect("a status").code(), Code::Cancelled);
        }
    }
    assert_eq!(gate.service.engine_stats().cancelled, 2);
}

#[tokio::test]
async fn a_failed_step_ends_its_sequences_and_a_lost_executor_ends_all() {
    let gate = gated(EngineOptions::default());
    let mut held = open(&gate.service, Start { hold: true, ..request(&[10]) }).await.unwrap();
    gate.step().await;
    gate.permit();
    held.admitted().await;
    let mut failing = open(&gate.service, request(&[])).await.unwrap();
    gate.step().await;
    gate.permits.send(Err(ExecutorError::Step("rank 1 timed out".into()))).unwrap();
    let finish = failing.finish().await;
    assert_eq!((finish.reason(), &finish.error[..]), (FinishReason::Error, "the step failed: rank 1 timed out"));
    held.steer(Steer { epoch: 1, ..Steer::default() }).await;
    gate.step().await;
    gate.permit();
    assert_eq!(held.tokens().await.ids, [10]);
    gate.step().await;
    gate.permits.send(Err(ExecutorError::Lost("rank 0 is gone".into()))).unwrap();
    assert_eq!(held.finish().await.error, "the executor is lost: rank 0 is gone");
    let status = open(&gate.service, request(&[])).await.err().expect("refused");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("rank 0 is gone"));
    assert!(gate.service.lost().expect("a reason").contains("rank 0 is gone"));
    let mut client = EngineClient::new(gate.service.clone().into_server());
    let info = client.info(InfoRequest::default()).await.expect_err("no info");
    let stats = client.stats(StatsRequest {}).await.expect_err("no stats");
    for status in [info, stats] {
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("rank 0 is gone"), "{status}");
    }
}

#[tokio::test]
async fn a_step_is_submitted_while_one_runs_and_fails_alone() {
    let gate = gated_ahead(EngineOptions::default());
    let mut router = open(&gate.service, request(&[10, 11, 12])).await.unwrap();
    let first = gate.step().await;
    assert!(!first.rows[0].awaits_token, "the prompt is known");
    // Nothing is planned beside a prompt, so that a request that arrives meanwhile waits for one step only.
    gate.permit();
    let [second, third] = [gate.step().await, gate.step().await];
    assert!(!second.rows[0].awaits_token && third.rows[0].awaits_token);
    router.admitted().await;
    assert_eq!(router.tokens().await.ids, [10]);
    gate.permit();
    assert_eq!(router.tokens().await.ids, [11], "the third step was submitted before");
    gate.permits.send(Err(ExecutorError::Step("rank 1 timed out".into()))).unwrap();
    assert_eq!(router.finish().await.error, "the step failed: rank 1 timed out");
    // What was under way for it is void, and others go on.
    (0..10).for_each(|_| gate.permit());
    assert_eq!(run(&gate.service, request(&[20, 21])).await.0, [20, 21, EOS]);
}

#[tokio::test]
async fn a_slow_reader_gets_all_tokens_and_does_not_delay_others() {
    let service = engine(EngineOptions { max_sequences: 2, ..EngineOptions::default() });
    let script: Vec<u32> = (0..400).map(|i| i % 90).collect();
    let mut slow = open(&service, request(&script)).await.unwrap();
    // Far more steps than fit in the slow reader's queue.
    for _ in 0..3 {
        assert_eq!(run(&service, request(&script)).await.0.len(), 401);
    }
    assert!(service.engine_stats().generated_tokens < 1203 + limits::OUTPUT_QUEUE as u64);
    // A Steer that finishes the sequence while its queue is full is delivered too.
    let mut stopped = open(&service, request(&script)).await.unwrap();
    let (rest, _) = slow.rest().await;
    assert_eq!(rest[..400], script);
    assert_eq!(run(&service, request(&script)).await.0.len(), 401);
    stopped.steer(Steer { epoch: 1, keep: 1, stop: true, ..Steer::default() }).await;
    assert_eq!(stopped.rest().await.1.reason(), FinishReason::Steered);
}

#[tokio::test]
async fn a_full_queue_and_a_draining_engine_reject_sequences() {
    let service = engine(EngineOptions { max_sequences: 1, max_queue: 1, ..EngineOptions::default() });
    let mut held = open(&service, Start { hold: true, ..request(&[10]) }).await.unwrap();
    held.admitted().await;
    let mut waiting = open(&service, Start { hold: true, ..request(&[20]) }).await.unwrap();
    let status = open(&service, request(&[])).await.err().expect("refused");
    assert_eq!(status.code(), Code::ResourceExhausted);
    // The first router does not answer: after the grace time the second gets the slot, and the first continues when it
    // answers.
    waiting.admitted().await;
    let drained = tokio::spawn({
        let service = service.clone();
        async move { service.drain().await }
    });
    while !service.shared.draining.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    let status = open(&service, request(&[])).await.err().expect("refused");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!drained.is_finished());
    for router in [&mut held, &mut waiting] {
        router.steer(Steer { epoch: 1, ..Steer::default() }).await;
    }
    assert_eq!(held.rest().await.0, [10, EOS]);
    assert_eq!(waiting.rest().await.0, [20, EOS]);
    tokio::time::timeout(Duration::from_secs(20), drained).await.expect("drained").unwrap();
}

#[tokio::test]
async fn a_deadline_ends_the_call_and_frees_the_slot() {
    let service = engine(EngineOptions { max_sequences: 1, park_grace: Duration::MAX, ..EngineOptions::default() });
    let start = Start { hold: true, ..request(&[10]) };
    let mut late = open_within(&service, start, Some(Duration::from_secs(1))).await.unwrap();
    late.admitted().await;
    assert_eq!(late.next().await.expect_err("too late").code(), Code::DeadlineExceeded);
    assert_eq!(run(&service, request(&[20])).await.0, [20, EOS]);
    assert_eq!(service.engine_stats().cancelled, 1);
}

#[tokio::test]
async fn logprobs_are_returned_for_tokens_and_prompt() {
    let service = engine(EngineOptions { token_budget: 3, max_sequences: 2, ..EngineOptions::default() });
    let mut router = open(&service, Start { logprobs: 2, prompt_logprobs: 1, ..request(&[10]) }).await.unwrap();
    let prompt = router.admitted().await.prompt_logprobs;
    assert_eq!(prompt.iter().map(|entry| entry.id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(prompt[0].logprob.is_none() && prompt[1..].iter().all(|entry| entry.logprob.is_some()));
    let tokens = router.tokens().await;
    assert_eq!((tokens.logprobs.len(), tokens.logprobs[0].id, tokens.logprobs[0].top.len()), (1, 10, 2));
}

#[tokio::test]
async fn errors_name_every_field_out_of_range() {
    let service = engine(EngineOptions::default());
    type Spoil = fn(&mut Start);
    fn sampling(start: &mut Start) -> &mut Sampling {
        start.sampling.as_mut().expect("set")
    }
    fn limits(start: &mut Start) -> &mut Limits {
        start.limits.as_mut().expect("set")
    }
    let cases: &[(&str, Spoil)] = &[
        ("request_id must have at most 256 bytes, got 300", |s| s.request_id = "x".repeat(300)),
        ("prompt must have at least one token", |s| s.prompt.clear()),
        ("prompt must fit the context of 800 tokens", |s| s.prompt = vec![1; 800]),
        ("prompt must have token ids below 100", |s| s.prompt[2] = 100),
        ("resume and prompt together must have at most 800 tokens, got 801", |s| s.resume = vec![1; 796]),
        ("resume must have token ids below 100", |s| s.resume = vec![100]),
        ("resume must have at most limits.max_tokens = 500 tokens, got 501", |s| s.resume = vec![1; 501]),
        ("sampling must be set", |s| s.sampling = None),
        ("limits must be set", |s| s.limits = None),
        ("sampling.temperature must be at least 0, got -1", |s| sampling(s).temperature = -1.0),
        ("sampling.temperature must be at least 0, got NaN", |s| sampling(s).temperature = f32::NAN),
        ("sampling.top_p must be above 0 and at most 1, got 0", |s| sampling(s).top_p = 0.0),
        ("sampling.top_p must be above 0 and at most 1, got 1.5", |s| sampling(s).top_p = 1.5),
        ("sampling.min_p must be from 0 to 1, got 2", |s| sampling(s).min_p = 2.0),
        ("sampling.repetition_penalty must be above 0, got 0", |s| sampling(s).repetition_penalty = 0.0),
        ("sampling.presence_penalty must be finite, got inf", |s| sampling(s).presence_penalty = f32::INFINITY),
        ("sampling.frequency_penalty must be finite, got NaN", |s| sampling(s).frequency_penalty = f32::NAN),
        ("sampling.logit_bias must have token", |s| sampling(s).logit_bias = vec![LogitBias { token: 100, bias: 1.0 }]),
        ("sampling.logit_bias must be", |s| sampling(s).logit_bias = vec![LogitBias { token: 1, bias: f32::NAN }]),
        ("limits.max_tokens must be at least 1, got 0", |s| limits(s).max_tokens = 0),
        ("limits.min_tokens must be at most limits.max_tokens = 500, got 501", |s| limits(s).min_tokens = 501),
        ("limits.stop_token_ids must have token ids below 100", |s| limits(s).stop_token_ids.push(100)),
        ("cache_salt must have at most 256 bytes, got 300", |s| s.cache_salt = "x".repeat(300)),
        ("logprobs must be -1 (none) or from 0 to 20, got -2", |s| s.logprobs = -2),
        ("prompt_logprobs must be -1 (none) or from 0 to 20, got 21", |s| s.prompt_logprobs = 21),
        ("script must have token ids below 100", |s| s.script = vec![100]),
    ];
    for (text, spoil) in cases {
        let mut start = request(&[]);
        spoil(&mut start);
        let status = open(&service, start).await.err().unwrap_or_else(|| panic!("{text} was taken"));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(text), "{text}: {}", status.message());
    }
    let mut client = EngineClient::new(service.clone().into_server());
    let steer = ToEngine { kind: Some(to_engine::Kind::Steer(Steer::default())) };
    let status = client.generate(tokio_stream::iter([steer])).await.expect_err("refused");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "the first message must be a start"));
    assert_eq!(run(&service, request(&[10])).await.0, [10, EOS]);
}
