//! Runs steered sequences on engines that fail in every way and at any time, with seeds and virtual time.
//!
//! An engine's draws are a function of the previous tokens and the mask. A client's steers are a function of its
//! tokens. So an oracle knows the tokens of each sequence, whichever engine computes them. `REIN_SEED=n` replays one
//! seed; `REIN_SEEDS=n` runs `n` seeds.

use std::{
    cell::Cell,
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{Stream, stream};
use prometheus_client::registry::Registry;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rein_proto::{
    internal::{engine_server::EngineServer, *},
    splitmix::mix,
};
use tokio::time::{sleep, timeout};
use tonic::Request;
use tower::ServiceExt;

use super::*;
use crate::{
    fleet::{
        pool::EngineListing,
        route::RoutePolicy,
        transport::{EngineTransport, transport},
    },
    metrics::text,
};

const VOCAB: u32 = 29;
const SEEDS: u64 = 400;
const GROUPS: usize = 4;
/// The time after which engines stop failing.
const STABLE_AFTER: Duration = Duration::from_secs(3);
const SEQUENCES: u64 = 8;

fn hash(state: u64, value: u64) -> u64 {
    mix(state ^ mix(value))
}

fn past(prompt: &[u32], generated: &[u32]) -> u64 {
    prompt.iter().chain(generated).fold(prompt.len() as u64, |state, &id| hash(state, id.into()))
}

/// What every engine draws after these tokens.
fn draw(prompt: &[u32], generated: &[u32], mask: Option<&[u8]>) -> u32 {
    let first = (past(prompt, generated) % u64::from(VOCAB)) as u32;
    let allowed = |id: &u32| mask.is_none_or(|mask| mask[*id as usize / 8] >> (id % 8) & 1 == 1);
    (first..VOCAB).chain(0..first).find(allowed).expect("a mask that allows something")
}

/// A client's steer.
#[derive(Default)]
struct PlannedSteer {
    append: Vec<u32>,
    mask: Option<Bytes>,
    /// A steer that only holds is sent before this one.
    holds: bool,
    /// Holds the sequence after the next token.
    one: bool,
}

fn mask(of: u64) -> Bytes {
    let mut bits = vec![0; VOCAB.div_ceil(8) as usize];
    for id in
        (0..VOCAB).filter(|id| hash(of, u64::from(*id)).is_multiple_of(3) || u64::from(*id) == of % u64::from(VOCAB))
    {
        bits[id as usize / 8] |= 1 << (id % 8);
    }
    bits.into()
}

fn planned_steer(prompt: &[u32], generated: &[u32], limit: usize) -> Option<PlannedSteer> {
    let now = hash(past(prompt, generated), 1);
    let room = limit - generated.len();
    if !now.is_multiple_of(4) || room < 2 {
        return None;
    }
    let append = match now >> 8 & 3 {
        0 | 1 => (0..(now >> 10 & 3).min(room as u64 - 1)).map(|i| (hash(now, i) % u64::from(VOCAB)) as u32).collect(),
        _ => Vec::new(),
    };
    let mask = (now >> 12 & 3 > 0).then(|| mask(now));
    Some(PlannedSteer { append, mask, holds: now >> 14 & 3 == 0, one: now >> 16 & 1 == 0 })
}

fn oracle(sequence: &Sequence) -> Vec<u32> {
    let (prompt, limit) = (&sequence.prompt, sequence.limit);
    let (mut ids, mut masked) = (Vec::new(), sequence.masked.clone());
    while ids.len() < limit {
        ids.push(draw(prompt, &ids, masked.take().as_deref()));
        if let Some(planned) = planned_steer(prompt, &ids, limit) {
            ids.extend(planned.append);
            masked = planned.mask;
        }
    }
    ids
}

struct Sequence {
    name: String,
    prompt: Vec<u32>,
    limit: usize,
    /// The sequence starts held, and its first token has this mask.
    masked: Option<Bytes>,
    deadline: Duration,
    /// The client leaves after this many tokens.
    leaves: Option<usize>,
}

/// How an engine fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Unavailable,
    /// Only this sequence fails.
    Internal,
    Lost,
    Eof,
}

struct World {
    seed: u64,
    calls: AtomicU64,
    began: Instant,
    /// The current epoch of each group.
    epochs: Mutex<[u64; GROUPS]>,
    /// Number of failures by sequence.
    failures: Mutex<HashMap<String, u32>>,
    /// Invalid steers that engines received.
    invalid_steers: Mutex<Vec<String>>,
}

impl World {
    fn rng(&self) -> StdRng {
        StdRng::seed_from_u64(hash(self.seed, self.calls.fetch_add(1, Relaxed)))
    }

    fn is_stable(&self) -> bool {
        self.began.elapsed() >= STABLE_AFTER
    }

    fn is_current(&self, group: usize, epoch: u64) -> bool {
        self.epochs.lock().unwrap()[group] == epoch
    }

    fn record_failure(&self, sequence: &str) {
        *self.failures.lock().unwrap().entry(sequence.into()).or_default() += 1;
    }
}

#[derive(Clone)]
struct FlakyEngine {
    world: Arc<World>,
    group: usize,
    epoch: u64,
}

/// A transport error that, like a channel's, has the connect error as its source.
#[derive(Debug, thiserror::Error)]
#[error("transport")]
struct Refused(#[source] tonic::ConnectError);

type EngineMessage = Result<FromEngine, Status>;

impl FlakyEngine {
    fn transport(self) -> EngineTransport {
        let server = EngineServer::new(self.clone());
        transport(tower::service_fn(move |request: http::Request<tonic::body::Body>| {
            let (server, world) = (server.clone(), self.world.clone());
            let refused =
                !world.is_stable() && world.rng().random_ratio(1, 12) || !world.is_current(self.group, self.epoch);
            async move {
                match refused {
                    true => Err(Refused(tonic::ConnectError("refused".into()))),
                    false => Ok(server.oneshot(request).await.unwrap_or_else(|never| match never {})),
                }
            }
        }))
    }

    async fn run(
        self,
        start: Start,
        mut steers: Streaming<ToEngine>,
        messages: mpsc::Sender<EngineMessage>,
        mut rng: StdRng,
    ) {
        let limit = start.limits.as_ref().map_or(0, |limits| limits.max_tokens as usize);
        let (mut ids, mut said, mut epoch) = (start.resume.clone(), start.resume.len(), 0);
        let (mut masked, mut holds, mut finished) = (None::<Bytes>, start.hold, false);
        let send = async |kind| messages.send(Ok(FromEngine { kind: Some(kind) })).await.is_ok();
        let end = [End::Unavailable, End::Internal, End::Lost, End::Eof][rng.random_range(0..4)];
        let mut left =
            if self.world.is_stable() || rng.random_ratio(1, 3) { u32::MAX } else { rng.random_range(0..12) };
        let mut admitted = false;
        loop {
            let pause = Duration::from_micros(rng.random_range(0..4000));
            let draws = !finished && (!holds || masked.is_some());
            let dead = !self.world.is_current(self.group, self.epoch);
            if dead || left == 0 && !self.world.is_stable() {
                self.world.record_failure(&start.request_id);
                let lost = Finish { epoch, reason: FinishReason::Lost.into(), generated: 0, error: "a rank".into() };
                let last = match end {
                    _ if dead => messages.send(Err(Status::unavailable("the engine has stopped"))).await,
                    End::Unavailable => messages.send(Err(Status::unavailable("gone"))).await,
                    End::Internal => messages.send(Err(Status::internal("a fault"))).await,
                    End::Lost => messages.send(Ok(FromEngine { kind: Some(from_engine::Kind::Finish(lost)) })).await,
                    End::Eof => Ok(()),
                };
                return drop(last);
            }
            let steer = tokio::select! {
                biased;
                () = sleep(pause), if !admitted || draws => None,
                steer = steers.message() => match steer {
                    Ok(Some(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) })) => Some(steer),
                    _ => return,
                },
                // The engine's epoch may be over.
                () = sleep(Duration::from_millis(5)) => continue,
            };
            left = left.saturating_sub(1);
            if let Some(steer) = steer {
                let keep = steer.keep as usize;
                if steer.epoch <= epoch || keep > ids.len() || keep + steer.append.len() > limit {
                    let invalid_steers =
                        format!("{}: {steer:?} after epoch {epoch} and {} tokens", start.request_id, ids.len());
                    self.world.invalid_steers.lock().unwrap().push(invalid_steers);
                }
                ids.truncate(keep);
                ids.extend(&steer.append);
                // Engines may repeat appended tokens or not.
                said = if rng.random() { keep } else { ids.len() };
                (epoch, masked, holds, finished) = (steer.epoch, steer.mask, steer.hold, false);
                if steer.stop {
                    return;
                }
            } else if !admitted {
                let kind = Admitted { prompt_tokens: start.prompt.len() as u32, ..Admitted::default() };
                admitted = send(from_engine::Kind::Admitted(kind)).await;
            } else if ids.len() >= limit {
                let generated = ids.len() as u32;
                let finish = Finish { epoch, reason: FinishReason::Length.into(), generated, error: String::new() };
                finished = send(from_engine::Kind::Finish(finish)).await;
            } else {
                let batch = if holds { 1 } else { rng.random_range(1..4).min(limit - ids.len()) };
                for _ in 0..batch {
                    ids.push(draw(&start.prompt, &ids, masked.take().as_deref()));
                }
                let (position, drawn) = (said as u32, ids[said..].to_vec());
                said = ids.len();
                send(from_engine::Kind::Tokens(Tokens { epoch, position, ids: drawn, logprobs: Vec::new() })).await;
            }
        }
    }
}

#[tonic::async_trait]
impl engine_server::Engine for FlakyEngine {
    type GenerateStream = Pin<Box<dyn Stream<Item = EngineMessage> + Send>>;
    type EventsStream = stream::Empty<Result<EngineEvents, Status>>;

    async fn generate(
        &self,
        request: Request<Streaming<ToEngine>>,
    ) -> Result<tonic::Response<Self::GenerateStream>, Status> {
        let mut rng = self.world.rng();
        sleep(Duration::from_micros(rng.random_range(0..3000))).await;
        let mut requests = request.into_inner();
        let Some(ToEngine { kind: Some(to_engine::Kind::Start(start)) }) = requests.message().await? else {
            return Err(Status::invalid_argument("the first message must be Start"));
        };
        if !self.world.is_stable() && rng.random_ratio(1, 5) {
            self.world.record_failure(&start.request_id);
            return Err(match rng.random_range(0..3) {
                0 => Status::resource_exhausted("full"),
                1 => Status::unavailable("draining"),
                _ => Status::internal("a fault"),
            });
        }
        let (messages, said) = mpsc::channel(4);
        tokio::spawn(self.clone().run(start, requests, messages, rng));
        Ok(tonic::Response::new(Box::pin(ReceiverStream::new(said))))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<tonic::Response<EngineInfo>, Status> {
        Ok(tonic::Response::new(EngineInfo { max_sequences: 4, vocab_size: VOCAB, ..EngineInfo::default() }))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<tonic::Response<EngineStats>, Status> {
        Ok(tonic::Response::new(EngineStats::default()))
    }

    async fn hold(&self, _: Request<HoldRequest>) -> Result<tonic::Response<HoldResponse>, Status> {
        Err(Status::unimplemented("of an older release"))
    }

    async fn events(&self, _: Request<EventsRequest>) -> Result<tonic::Response<Self::EventsStream>, Status> {
        Err(Status::unimplemented("none"))
    }
}

/// Lists the groups as membership knows them: with gaps until engines stop failing, and completely afterwards.
fn list(world: &Arc<World>, pool: &EnginePool, rng: &mut StdRng) {
    let epochs = *world.epochs.lock().unwrap();
    let known = |group: &usize| world.is_stable() || *group == 0 || !rng.random_ratio(1, 4);
    let groups: Vec<usize> = (0..GROUPS).filter(known).collect();
    let listing = |&group: &usize| EngineListing {
        group: format!("g{group}"),
        epoch: epochs[group],
        kind: "k".into(),
        revision: None,
        address: group.to_string(),
        draining: !world.is_stable() && rng.random_ratio(1, 5),
        loras: Vec::new(),
    };
    let listings: Vec<EngineListing> = groups.iter().map(listing).collect();
    let of = |name: &str| name.trim_start_matches('g').parse::<usize>().unwrap();
    let dial = |address: &str| {
        let group = of(address);
        Some(FlakyEngine { world: world.clone(), group, epoch: epochs[group] }.transport())
    };
    pool.list(&listings, |engine| engine.epoch < epochs[of(&engine.group)], dial);
}

/// The tokens that a client received, and the error that ended its sequence.
async fn client(context: SequenceContext, sequence: &Sequence) -> (Vec<u32>, Result<(), Error>) {
    let start = Start {
        request_id: sequence.name.clone(),
        prompt: sequence.prompt.clone(),
        limits: Some(Limits { max_tokens: sequence.limit as u32, ..Limits::default() }),
        hold: sequence.masked.is_some(),
        logprobs: -1,
        prompt_logprobs: -1,
        finish_is_proposal: true,
        ..Start::default()
    };
    let mut seen = Vec::new();
    let ended = listen(context, sequence, start, &mut seen).await;
    (seen, ended)
}

/// A client that now and then does not read for a while.
fn stalling_client(seed: u64) -> watch::Receiver<ClientState> {
    let (client, watched) = watch::channel(ClientState::Reading);
    let mut rng = StdRng::seed_from_u64(seed);
    tokio::spawn(async move {
        while !client.is_closed() {
            sleep(Duration::from_millis(rng.random_range(1..100))).await;
            client.send_replace(ClientState::Stalled);
            sleep(Duration::from_millis(rng.random_range(0..30))).await;
            client.send_replace(ClientState::Reading);
        }
    });
    watched
}

async fn listen(context: SequenceContext, sequence: &Sequence, start: Start, seen: &mut Vec<u32>) -> Result<(), Error> {
    let wanted = EngineRequest { salt: "", lora: 0, tokens: &start.prompt, session: None, kind: None, refused: &[] };
    let lease = context.pool.lease(&wanted, context.deadline, context.deadline).await?;
    let spans = Spans { span: Span::none(), queue: Span::none() };
    let mut stream = EngineStream::open(context, lease, start, spans).await?;
    if let Some(mask) = &sequence.masked {
        stream.steer(Steering::keep(0).mask(mask.clone())).await?;
    }
    let (mut admitted, mut waits) = (false, false);
    loop {
        match stream.next_output().await? {
            EngineOutput::Admitted(_) => assert!(!std::mem::replace(&mut admitted, true), "admitted twice"),
            EngineOutput::Tokens(drawn) => {
                assert!(admitted && !drawn.is_empty());
                for token in drawn {
                    seen.push(token.id);
                    let planned = planned_steer(&sequence.prompt, seen, sequence.limit);
                    if planned.is_none() && !waits {
                        continue;
                    }
                    let planned = planned.unwrap_or_default();
                    if planned.holds {
                        stream.steer(Steering::keep(seen.len()).hold()).await?;
                        sleep(Duration::from_millis(past(&[], seen) % 20)).await;
                    }
                    let steering = Steering::keep(seen.len()).append(planned.append.iter().copied());
                    let steering = Steering { mask: planned.mask, hold: planned.one, ..steering };
                    waits = planned.one;
                    // Without a mask, a held sequence would not draw.
                    let steering = Steering { hold: waits && steering.mask.is_some(), ..steering };
                    waits = steering.hold;
                    stream.steer(steering).await?;
                    seen.extend(planned.append);
                    break;
                }
            }
            EngineOutput::Finish(_) => {
                assert_eq!(seen.len(), sequence.limit, "{}: an early finish", sequence.name);
                return Ok(());
            }
        }
        if sequence.leaves.is_some_and(|most| seen.len() >= most) {
            stream.stop(seen.len());
            return Ok(());
        }
        assert_eq!(stream.accepted(), seen);
    }
}

#[derive(Debug, Default)]
struct Tally {
    sequences: u64,
    resumed: u64,
    late: u64,
    given_up: u64,
    won: u64,
    parked: u64,
}

async fn run_seed(seed: u64) -> Tally {
    let mut rng = StdRng::seed_from_u64(seed);
    let world = Arc::new(World {
        seed,
        calls: AtomicU64::new(0),
        began: Instant::now(),
        epochs: Mutex::new([1; GROUPS]),
        failures: Mutex::default(),
        invalid_steers: Mutex::default(),
    });
    let policies = [RoutePolicy::CacheAware, RoutePolicy::LeastLoad, RoutePolicy::PowerOfTwo, RoutePolicy::RoundRobin];
    let pool = Arc::new(EnginePool::open(policies[rng.random_range(0..policies.len())], limits::ROUTE_INDEX_BYTES));
    let hedge_after = rng.random::<bool>().then(|| Duration::from_micros(rng.random_range(0..20_000)));
    let (metrics, retry_budget) = (Arc::<FleetMetrics>::default(), Arc::new(RetryBudget::new(hedge_after)));
    let clients = Cell::new(0);
    let context = |deadline: Duration| SequenceContext {
        pool: pool.clone(),
        session: None,
        deadline: Instant::now() + deadline,
        metrics: metrics.clone(),
        retry_budget: retry_budget.clone(),
        client: match clients.replace(clients.get() + 1) {
            steady if steady % 3 > 0 => watch::channel(ClientState::Reading).1,
            stalls => stalling_client(hash(seed, stalls)),
        },
    };
    let sequence = |i: u64, rng: &mut StdRng| Sequence {
        name: format!("s{i}"),
        prompt: (0..rng.random_range(1..30)).map(|_| rng.random_range(0..VOCAB)).collect(),
        limit: rng.random_range(1..60),
        masked: rng.random_ratio(1, 4).then(|| mask(rng.random())),
        deadline: if rng.random_ratio(1, 6) {
            Duration::from_millis(rng.random_range(1..300))
        } else {
            Duration::from_secs(600)
        },
        leaves: rng.random_ratio(1, 8).then(|| rng.random_range(0..30)),
    };
    let sequences: Vec<(Duration, Sequence)> =
        (0..SEQUENCES).map(|i| (Duration::from_millis(rng.random_range(0..400)), sequence(i, &mut rng))).collect();
    list(&world, &pool, &mut rng);
    let churning = {
        let (world, pool) = (world.clone(), pool.clone());
        let mut rng = StdRng::seed_from_u64(hash(seed, u64::MAX));
        async move {
            while !world.is_stable() {
                sleep(Duration::from_millis(rng.random_range(1..150))).await;
                if rng.random_ratio(1, 3) {
                    world.epochs.lock().unwrap()[rng.random_range(0..GROUPS)] += 1;
                    // Membership learns of it later.
                    sleep(Duration::from_millis(rng.random_range(0..40))).await;
                }
                list(&world, &pool, &mut rng);
            }
        }
    };
    let running = sequences.iter().map(|(after, sequence)| {
        let context = &context;
        async move {
            sleep(*after).await;
            let began = Instant::now();
            let results = timeout(Duration::from_secs(700), client(context(sequence.deadline), sequence)).await;
            (results.expect("a sequence hangs"), began.elapsed())
        }
    });
    let (results, ()) = tokio::join!(futures::future::join_all(running), churning);
    let mut tally = Tally { sequences: SEQUENCES, ..Tally::default() };
    for ((_, sequence), ((seen, ended), took)) in sequences.iter().zip(results) {
        let wanted = oracle(sequence);
        assert_eq!(seen, wanted[..seen.len()], "{}: other tokens", sequence.name);
        match ended {
            Ok(()) => {
                let least = sequence.leaves.map_or(sequence.limit, |leaves| leaves.min(sequence.limit));
                assert!(seen.len() >= least, "{}: {} of {least} tokens", sequence.name, seen.len());
            }
            Err(error) if error.message == Error::deadline().message => {
                tally.late += 1;
                // A client that sleeps gets the error later.
                let late = took.saturating_sub(sequence.deadline);
                assert!(took >= sequence.deadline && late < Duration::from_millis(25), "{}: {took:?}", sequence.name);
            }
            Err(error) => {
                tally.given_up += 1;
                let failures = world.failures.lock().unwrap().get(&sequence.name).copied().unwrap_or(0);
                assert!(failures > limits::RESUMES, "{}: given up after {failures}: {error:?}", sequence.name);
            }
        }
    }
    assert_eq!(*world.invalid_steers.lock().unwrap(), Vec::<String>::new());
    // Nothing leaks: every slot is free, and after the breakers' longest time all engines get sequences again.
    sleep(Duration::from_secs(60)).await;
    list(&world, &pool, &mut rng);
    assert_eq!(pool.engines().len(), GROUPS);
    assert!(pool.engines().iter().all(|engine| engine.open() == 0));
    let last: Vec<Sequence> = (0..2 * SEQUENCES)
        .map(|i| Sequence { deadline: Duration::from_secs(600), leaves: None, ..sequence(SEQUENCES + i, &mut rng) })
        .collect();
    for sequence in &last {
        let (seen, ended) = client(context(sequence.deadline), sequence).await;
        assert!(ended.is_ok() && seen == oracle(sequence), "{}: {ended:?}", sequence.name);
    }
    tally.resumed = metrics.resumed.get();
    tally.parked = metrics.parked.get();
    let mut registry = Registry::default();
    retry_budget.register(&mut registry);
    let written = text(&registry);
    let won = written.lines().find_map(|line| line.strip_prefix("rein_hedges_won_total "));
    tally.won = won.and_then(|won| won.parse().ok()).expect("a count");
    tally
}

#[test]
fn clients_get_the_same_tokens_for_all_seeds() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = number("REIN_SEED").map_or(0..number("REIN_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let (alone, mut total) = (seeds.end - seeds.start == 1, Tally::default());
    for seed in seeds {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.expect("a runtime").block_on(run_seed(seed))
        };
        let tally = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            eprintln!("REIN_SEED={seed} replays this");
            std::panic::resume_unwind(panic)
        });
        total.sequences += tally.sequences;
        total.resumed += tally.resumed;
        total.late += tally.late;
        total.given_up += tally.given_up;
        total.won += tally.won;
        total.parked += tally.parked;
    }
    println!("{total:?}");
    // The run must cover enough of each case.
    assert!(alone || total.resumed > total.sequences / 4 && total.won > 0 && total.late > 0, "{total:?}");
    assert!(alone || total.parked > total.sequences / 10, "{total:?}");
    assert!(alone || total.given_up < total.sequences / 10, "{total:?}");
}
