//! Runs one sequence: carries out its course's actions over HTTP, and passes messages between the router and the
//! engine. It decides nothing about tokens.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;

use futures::future::{Either, pending};
use rein_proto::internal::{FromEngine, Start, Steer, ToEngine, from_engine, to_engine};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use crate::clock::TokenClock;
use crate::connection::EngineHttp;
use crate::course::{Course, CourseAction, CourseShape, CourseStats};
use crate::dialect::{DrawFrame, EngineDialect};
use crate::draw::{DrawEnd, DrawReason, DrawRequest};
use crate::driven::Driven;
use crate::exchange::{Exchange, ExchangeEvent};
use crate::feed::CacheFeed;
use crate::health::Lost;
use crate::identity::Identity;
use crate::limits;
use crate::metrics::{EngineCounters, add};
use crate::verdict::VerdictTime;

/// The engine of a sequence.
#[derive(Debug)]
pub struct EngineLink {
    pub http: Arc<EngineHttp>,
    pub dialect: EngineDialect,
    pub identity: Arc<Identity>,
    pub clock: Arc<TokenClock>,
    pub counters: Arc<EngineCounters>,
    pub feed: Arc<CacheFeed>,
    pub lost: watch::Receiver<Lost>,
    pub verdicts: VerdictTime,
}

/// The open request.
struct Open {
    number: u64,
    answer: Driven<ExchangeEvent>,
    /// Prompt tokens, for metrics.
    prompt: usize,
    first: bool,
    began: Instant,
    /// It has a part of an answer: the next request continues it.
    is_chunk: bool,
}

pub struct Sequence {
    course: Course,
    link: Arc<EngineLink>,
    open: Option<Open>,
    /// A request for the next chunk, and when it is sent.
    next_chunk: Option<(DrawRequest, Instant)>,
    /// Chunks that still wait longer, because a token was refused.
    cautious: u32,
    /// Messages for the router that do not fit into its queue.
    backlog: VecDeque<FromEngine>,
    counted: CourseStats,
    lost: watch::Receiver<Lost>,
    /// When the router got the last tokens.
    told: Option<Instant>,
    /// When it refused a token that is not drawn again yet.
    refused: Option<Instant>,
    /// It runs: if it is dropped, its router has gone.
    runs: bool,
}

impl Sequence {
    /// The Start has been checked.
    pub fn new(start: Start, shape: CourseShape, link: Arc<EngineLink>) -> Self {
        add(&link.counters.running, 1);
        let lost = link.lost.clone();
        Sequence {
            course: Course::new(start, shape),
            link,
            open: None,
            next_chunk: None,
            cautious: 0,
            backlog: VecDeque::new(),
            counted: CourseStats::default(),
            lost,
            told: None,
            refused: None,
            runs: false,
        }
    }

    /// Opens the first request, if the sequence does not wait for its router. Err: the engine does not accept it.
    pub async fn begin(&mut self) -> Result<(), Status> {
        self.act(false);
        if let Some(open) = &mut self.open {
            match poll_fn(|context| open.answer.poll_next(context)).await {
                Some(ExchangeEvent::Accepted) => {}
                Some(ExchangeEvent::Refused(refusal)) => return Err(refusal.into_status()),
                Some(ExchangeEvent::Frame(_)) | None => return Err(Status::internal("the request was dropped")),
            }
        }
        Ok(())
    }

    /// Runs until the sequence has ended. If it is dropped before, the router is gone.
    pub async fn run(
        mut self,
        mut steers: Streaming<ToEngine>,
        to: mpsc::Sender<Result<FromEngine, Status>>,
        deadline: Option<Instant>,
    ) {
        self.runs = true;
        loop {
            self.act(true);
            if self.backlog.is_empty() && self.course.is_ended() {
                self.runs = false;
                return;
            }
            if self.backlog.len() > limits::OUTPUT_QUEUE {
                return;
            }
            let event = match (&mut self.open, self.backlog.is_empty()) {
                // The engine's stream is not read while the router does not read.
                (Some(open), true) => Either::Left(poll_fn(|context| open.answer.poll_next(context))),
                _ => Either::Right(pending()),
            };
            let due = deadline.map_or(Either::Right(pending()), |at| Either::Left(sleep_until(at)));
            let pause =
                self.next_chunk.as_ref().map_or(Either::Right(pending()), |(_, at)| Either::Left(sleep_until(*at)));
            tokio::select! {
                biased;
                () = due => {
                    // A router that does not read has its own clock.
                    let _ = to.try_send(Err(Status::deadline_exceeded("the call's deadline has passed")));
                    self.runs = false;
                    return;
                }
                steer = steers.message() => match steer {
                    Ok(Some(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) })) => self.steer(steer),
                    Ok(Some(_)) => self.course.fail("only a steer may follow the start".into()),
                    Ok(None) | Err(_) => return,
                },
                permit = to.reserve(), if !self.backlog.is_empty() => {
                    if let (Ok(permit), Some(message)) = (permit, self.backlog.pop_front()) {
                        self.told = Some(Instant::now());
                        permit.send(Ok(message));
                    }
                }
                // The sender lives as long as the engine's service.
                Ok(()) = self.lost.changed() => {
                    if let Some(why) = self.lost.borrow_and_update().clone() {
                        self.course.lost(why.to_string());
                    }
                }
                event = event => self.receive(event),
                () = pause => {
                    if let Some((request, _)) = self.next_chunk.take() {
                        self.request(request, true);
                    }
                }
            }
        }
    }

    fn steer(&mut self, steer: Steer) {
        self.refused = (steer.mask.is_some() && !steer.hold).then(Instant::now);
        if self.refused.is_some() {
            self.cautious = limits::REFUSED_CHUNKS;
            if let Some(told) = self.told {
                self.link.verdicts.note(told.elapsed());
            }
        }
        self.course.steer(steer);
    }

    fn receive(&mut self, event: Option<ExchangeEvent>) {
        let Some(open) = &mut self.open else { return };
        let number = open.number;
        match event {
            Some(ExchangeEvent::Accepted) => {}
            Some(ExchangeEvent::Refused(refusal)) => self.course.drawing_ended(number, refusal.into_end()),
            Some(ExchangeEvent::Frame(DrawFrame { drawn, cached_tokens, end, .. })) => {
                let counters = &self.link.counters;
                if let Some(cached) = cached_tokens {
                    let cached = (cached as usize).min(open.prompt);
                    add(&counters.cached_tokens, cached as u64);
                    if !open.first {
                        add(&counters.recomputed_tokens, (open.prompt - cached) as u64);
                    }
                    open.prompt = cached;
                }
                if !drawn.is_empty() || cached_tokens.is_some() {
                    self.course.admit(cached_tokens.unwrap_or_default());
                }
                self.course.drawn(number, drawn);
                if let Some(end) = end {
                    self.course.drawing_ended(number, end);
                }
            }
            None => {
                let why = DrawEnd::Lost("the request ended without an answer".into());
                self.course.drawing_ended(number, why);
            }
        }
    }

    /// Carries out the course's actions.
    fn act(&mut self, waits: bool) {
        let mut chunk_took = None;
        while let Some(action) = self.course.next_action() {
            match action {
                CourseAction::Open(request) => match chunk_took.take() {
                    Some(took) => {
                        let pause = match self.cautious {
                            0 => took / limits::CHUNK_PAUSE,
                            _ => self.link.verdicts.pause(took),
                        };
                        self.cautious = self.cautious.saturating_sub(1);
                        self.next_chunk = Some((request, Instant::now() + pause));
                    }
                    None => self.request(request, waits),
                },
                CourseAction::Close { complete, .. } => {
                    self.next_chunk = None;
                    if let Some(open) = self.open.take() {
                        chunk_took = (complete && open.is_chunk).then(|| open.began.elapsed());
                        close(open, complete, &self.link.counters);
                    }
                }
                CourseAction::Send(message) => {
                    if let (Some(from_engine::Kind::Tokens(_)), Some(since)) = (&message.kind, self.refused.take()) {
                        self.link.counters.refused(since.elapsed());
                    }
                    self.backlog.push_back(message);
                }
            }
        }
        let stats = self.course.stats();
        self.link.counters.add_course(self.counted, stats);
        self.counted = stats;
    }

    fn request(&mut self, request: DrawRequest, waits: bool) {
        let link = &self.link;
        link.counters.requested(&request);
        link.feed.note(&request.cache_salt, &request.prompt);
        let prompt = request.prompt.len();
        let first = matches!(request.why, DrawReason::Start | DrawReason::Resume);
        if first {
            add(&link.counters.prefill_tokens, prompt as u64);
        }
        let exchange = Exchange {
            http: link.http.clone(),
            dialect: link.dialect,
            identity: link.identity.clone(),
            clock: link.clock.clone(),
            body: link.dialect.body(&request, &link.identity.joined().model),
            prompt,
            streams: link.dialect.streams(&request),
            waits,
        };
        let is_chunk = link.dialect.traits().chunk.is_some() && request.max_tokens > 1;
        let (to, events) = mpsc::channel(limits::FRAME_QUEUE);
        let answer = Driven::new(exchange.run(to), events);
        self.open = Some(Open { number: request.number, answer, prompt, first, began: Instant::now(), is_chunk });
    }
}

/// Dropping the connection tells the engine to stop. A request that is complete ends by itself, and its connection
/// can be used again.
fn close(open: Open, complete: bool, counters: &EngineCounters) {
    match (complete, open.answer.into_rest()) {
        (true, Some(rest)) => drop(tokio::spawn(rest)),
        (true, None) => {}
        (false, _) => add(&counters.aborts, 1),
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            close(open, false, &self.link.counters);
        }
        if self.runs {
            add(&self.link.counters.cancelled, 1);
        }
        self.link.counters.running.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}
