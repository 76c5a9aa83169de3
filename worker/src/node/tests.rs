//! Hanging steps and ranks. The test acts as the controller and as the other rank.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use rein_control_plane::records::{GroupMember, RankFailure, Release};
use rein_control_plane::{MemoryStore, ModelShape, place};
use rein_kernels::collective::ControlLink;
use rein_kernels::collective::tcp::{self, Tcp};
use rein_proto::internal::engine_client::EngineClient;
use rein_proto::internal::{
    EventsRequest, FinishReason, FromEngine, Limits, Sampling, Start, Step, StepResult, ToEngine, from_engine,
    to_engine,
};
use rein_proto::protocol;
use serde::de::DeserializeOwned;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Code, Request, Status, Streaming};

use super::*;
use crate::executor::{Executor, ExecutorError, ExecutorShape};
use crate::rank::{Dtype, ModelLoader, ModelOptions};
use crate::sim::{Sim, SimOptions};

const GROUP: &str = "g";
/// Time limit for expected events.
const PATIENCE: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_millis(200);

/// Open or closed; callers wait while it is closed.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>, Arc<AtomicUsize>);

/// Releases hanging threads at the end of the test, however it ends.
#[derive(Default)]
struct Open(Gate);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Gate {
    fn set(&self, closed: bool) {
        *self.0.0.lock().unwrap() = closed;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |closed| *closed));
    }
}

struct Gated<T>(T, Gate);

impl Executor for Gated<Sim> {
    fn shape(&self) -> ExecutorShape {
        self.0.shape()
    }

    fn submit(&mut self, step: Step) -> Result<(), ExecutorError> {
        self.0.submit(step)
    }

    fn wait(&mut self) -> Result<StepResult, ExecutorError> {
        self.1.pass();
        self.0.wait()
    }
}

/// Stands for a kernel that does not return: not even for a closed connection.
impl<T: Read> Read for Gated<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // Heartbeats are read in turns with other work.
        let of_a_rank = !std::thread::current().name().is_some_and(|name| name.starts_with("heartbeat"));
        self.1.1.fetch_add(usize::from(of_a_rank), Ordering::SeqCst);
        self.1.pass();
        let read = self.0.read(bytes);
        self.1.pass();
        self.1.1.fetch_sub(usize::from(of_a_rank), Ordering::SeqCst);
        read
    }
}

impl<T: Write> Write for Gated<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

struct Worker {
    store: Arc<MemoryStore>,
    keys: Keys,
    listener: Arc<RankListener>,
    switch: EngineSwitch,
    leave: watch::Sender<bool>,
    run: JoinHandle<Result<(), NodeError>>,
}

/// A group with one worker per mesh address, in rank order.
fn group(epoch: u64, mesh: &[String]) -> GroupRecord {
    let member = |(rank, mesh): (usize, &String)| GroupMember {
        worker: format!("w{rank}"),
        incarnation: 1,
        address: String::new(),
        mesh: mesh.clone(),
        ranks: vec![rank],
    };
    let shape = ModelShape { attention_heads: 4, kv_heads: 2, experts: vec![0; 2] };
    GroupRecord {
        model: "m".into(),
        fingerprint: "f".into(),
        text: "t".into(),
        revision: None,
        group_size: mesh.len(),
        domain: None,
        members: mesh.iter().enumerate().map(member).collect(),
        placement: place(&shape, mesh.len(), epoch).unwrap(),
        draining: false,
        out: Vec::new(),
        protocol: 0,
    }
}

impl Worker {
    fn start(rank: usize, work: Workload, secure: tcp::SecureConnection, step_deadline: Duration) -> Self {
        let (store, keys, switch) =
            (Arc::new(MemoryStore::default()), Keys::new("test").unwrap(), EngineSwitch::default());
        let listener = Arc::new(RankListener::bind("127.0.0.1:0", secure).unwrap());
        let record = WorkerRecord {
            model: "m".into(),
            fingerprint: "f".into(),
            text: "t".into(),
            revision: None,
            address: String::new(),
            mesh: listener.address().to_string(),
            device: "cpu".into(),
            locality: None,
            shape: ModelShape { attention_heads: 4, kv_heads: 2, experts: vec![0; 2] },
            ranks: 1,
            most_ranks: 1,
            group_size: 1,
            redundant_experts: 0,
            domain: None,
            incarnation: 1,
            state: WorkerState::Ready,
            seat: Seat::default(),
            release: Release::default(),
            expires: None,
        };
        let options = NodeOptions {
            keys: keys.clone(),
            id: format!("w{rank}"),
            record,
            engine: EngineOptions::default(),
            loras: Vec::new(),
            step_deadline,
            lease: Duration::from_secs(3),
            expires: watch::channel(None).1,
        };
        let (leave, leaving) = watch::channel(false);
        let run = tokio::spawn(run(store.clone(), options, work, listener.clone(), switch.clone(), leaving));
        Worker { store, keys, listener, switch, leave, run }
    }

    /// Writes what the controller would write.
    async fn seat(&self, rank: usize, seat: Seat, record: Option<&GroupRecord>) {
        let mut write = Transaction::default().put(self.keys.seat(&format!("w{rank}")), encode(&seat), None);
        if let Some(record) = record {
            write = write.put(self.keys.placement(GROUP), encode(record), None);
        }
        self.store.commit(write).await.unwrap().unwrap();
    }

    async fn take(&self, rank: usize, record: &GroupRecord) {
        self.seat(rank, Seat { group: Some(GROUP.into()), epoch: record.epoch() }, Some(record)).await;
        self.said::<Ready>(&self.keys.ready(GROUP, rank), |ready| ready.epoch == record.epoch()).await;
    }

    async fn dismiss(&self, rank: usize, epoch: u64) {
        self.seat(rank, Seat { group: None, epoch }, None).await;
    }

    /// Waits until a key has this value.
    async fn said<T: DeserializeOwned>(&self, key: &str, is_it: impl Fn(&T) -> bool) -> T {
        let mut mirror = Mirror::new(self.store.clone(), "test", key);
        let wait = async {
            loop {
                let said = mirror.view().entries.get(key).map(|entry| decode(&entry.value).unwrap());
                if let Some(said) = said.filter(&is_it) {
                    return said;
                }
                mirror.changed().await;
            }
        };
        timeout(PATIENCE, wait).await.expect(key)
    }

    async fn trouble(&self, rank: usize) -> RankFailure {
        self.said(&self.keys.trouble(GROUP, rank), |_| true).await
    }

    async fn open(&self) -> Result<Streaming<FromEngine>, Status> {
        let start = Start {
            prompt: vec![1, 2, 3],
            sampling: Some(Sampling { top_p: 1.0, repetition_penalty: 1.0, ..Sampling::default() }),
            limits: Some(Limits { max_tokens: 4, ..Limits::default() }),
            logprobs: -1,
            prompt_logprobs: -1,
            ..Start::default()
        };
        let (requests, queue) = tokio::sync::mpsc::channel(1);
        requests.send(ToEngine { kind: Some(to_engine::Kind::Start(start)) }).await.unwrap();
        let stream = ReceiverStream::new(queue).chain(tokio_stream::pending());
        let mut client = EngineClient::new(self.switch.clone().into_server());
        client.generate(Request::new(stream)).await.map(tonic::Response::into_inner)
    }

    /// How the worker ended, and whether it is still registered.
    async fn end(mut self) -> (Result<(), NodeError>, bool) {
        let ended = timeout(PATIENCE, &mut self.run).await.expect("it ends").expect("no panic");
        let known = self.store.read(&self.keys.worker("")).await.unwrap();
        (ended, !known.entries.is_empty())
    }
}

/// The last message of a stream: the status of a lost engine, or a finish.
async fn last(stream: &mut Streaming<FromEngine>) -> Result<Option<FinishReason>, Status> {
    let read = async {
        let mut last = Ok(None);
        while let Some(message) = stream.next().await {
            last = message.map(|message| match message.kind {
                Some(from_engine::Kind::Finish(finish)) => Some(finish.reason()),
                _ => None,
            });
        }
        last
    };
    timeout(PATIENCE, read).await.expect("the stream ends")
}

fn sim(gate: &Gate) -> Workload {
    let gate = gate.clone();
    let make = move || {
        let sim = Sim::new(SimOptions { blocks: 100, ..SimOptions::default() });
        Box::new(Gated(sim, gate.clone())) as Box<dyn Executor>
    };
    Workload::Sim(Arc::new(make))
}

fn model() -> Workload {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama3");
    let options =
        ModelOptions { dtype: Dtype::F32, tp: 2, threads: Some(1), kv_blocks: Some(16), ..ModelOptions::default() };
    Workload::Model(Arc::new(ModelLoader::open(&dir, &options).unwrap()))
}

/// The rank that the test plays, linked and loaded as far as the other one sees.
async fn other(rank: usize, record: &GroupRecord, listener: RankListener) -> Tcp {
    let member = tcp::JoinRequest {
        group: GROUP.into(),
        epoch: record.epoch(),
        rank,
        protocol: protocol::NUMBER,
        addresses: record.mesh(),
    };
    let join = move || {
        let link = listener.join(&member, PATIENCE).unwrap();
        // Its KV blocks, and its places in the host tier.
        link.gather_bytes(&16u64.to_le_bytes()).unwrap();
        link.gather_bytes(&0u64.to_le_bytes()).unwrap();
        link
    };
    tokio::task::spawn_blocking(join).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_step_without_other_processes_ends_the_group_its_streams_and_the_process() {
    let gate = Open::default();
    let worker = Worker::start(0, sim(&gate.0), tcp::plain(), DEADLINE);
    worker.take(0, &group(5, &[String::new()])).await;
    let mut client = EngineClient::new(worker.switch.clone().into_server());
    let mut events = client.events(EventsRequest { interval_ms: 50 }).await.unwrap().into_inner();
    gate.0.set(true);
    let mut stream = worker.open().await.unwrap();
    let trouble = worker.trouble(0).await;
    assert_eq!((trouble.epoch, trouble.suspect), (5, Some(0)));
    assert!(trouble.reason.contains("a step is running"), "{}", trouble.reason);
    let lost = last(&mut stream).await.expect_err("it is lost");
    assert_eq!(lost.code(), Code::Unavailable, "{lost}");
    assert!(lost.message().contains("a step is running"), "{lost}");
    let listening = async { while events.next().await.expect("a status").is_ok() {} };
    timeout(PATIENCE, listening).await.expect("routers that follow its events are told");
    assert_eq!(worker.open().await.err().map(|status| status.code()), Some(Code::Unavailable));
    // Its thread cannot be joined.
    let (ended, known) = worker.end().await;
    assert!(matches!(&ended, Err(NodeError::Stuck(why)) if why.contains("a step is running")), "{ended:?}");
    assert!(!known, "its record was not deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_ends_too_late_ends_its_group_and_every_call_is_answered() {
    let gate = Open::default();
    let worker = Worker::start(0, sim(&gate.0), tcp::plain(), DEADLINE);
    worker.take(0, &group(5, &[String::new()])).await;
    gate.0.set(true);
    let mut first = worker.open().await.unwrap();
    // The engine thread is in the first sequence's step, so the second call is not answered.
    while worker.switch.serving().is_none_or(|engine| engine.step_time().is_none()) {
        tokio::task::yield_now().await;
    }
    let second = timeout(PATIENCE, worker.open()).await.expect("an answer");
    assert_eq!(second.err().map(|status| status.code()), Some(Code::Unavailable));
    last(&mut first).await.expect_err("it is lost");
    gate.0.set(false);
    worker.take(0, &group(6, &[String::new()])).await;
    assert_eq!(last(&mut worker.open().await.unwrap()).await.unwrap(), Some(FinishReason::Length));
    worker.leave.send_replace(true);
    worker.dismiss(0, 7).await;
    assert!(worker.end().await.0.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_waits_for_another_rank_blames_that_rank() {
    let worker = Worker::start(0, model(), tcp::plain(), DEADLINE);
    let listener = RankListener::bind("127.0.0.1:0", tcp::plain()).unwrap();
    let record = group(5, &[worker.listener.address().to_string(), listener.address().to_string()]);
    let (_, link) = tokio::join!(worker.take(0, &record), other(1, &record, listener));
    // The other rank is alive and does nothing.
    let mut stream = worker.open().await.unwrap();
    let trouble = worker.trouble(0).await;
    assert_eq!((trouble.epoch, trouble.suspect), (5, Some(1)));
    assert!(trouble.reason.contains("a step is running"), "{}", trouble.reason);
    assert_eq!(last(&mut stream).await.unwrap(), Some(FinishReason::Lost));
    let told = link.group_end().wait(PATIENCE).expect("the other rank is told");
    assert_eq!(told.suspect, Some(1));
    // Its own rank ended with the link, so the process continues.
    worker.dismiss(0, 6).await;
    worker.said::<WorkerRecord>(&worker.keys.worker("w0"), |record| record.seat.epoch == 6).await;
    worker.leave.send_replace(true);
    assert!(worker.end().await.0.is_ok());
}

/// A worker whose follower rank does not notice the end of its group, and the other rank.
async fn stuck(step_deadline: Duration, gate: &Gate) -> (Worker, Tcp) {
    let own = gate.clone();
    let secure: tcp::SecureConnection = Arc::new(move |stream, _| Ok(Box::new(Gated(stream, own.clone()))));
    let worker = Worker::start(1, model(), secure, step_deadline);
    let listener = RankListener::bind("127.0.0.1:0", tcp::plain()).unwrap();
    let record = group(5, &[listener.address().to_string(), worker.listener.address().to_string()]);
    let (_, link) = tokio::join!(worker.take(1, &record), other(0, &record, listener));
    // Before its first read of a step it would notice.
    let reads = async {
        while gate.1.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, reads).await.expect("the rank waits for a step");
    gate.set(true);
    worker.dismiss(1, 6).await;
    (worker, link)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_cannot_be_joined_ends_the_process() {
    let gate = Open::default();
    let (worker, _link) = stuck(DEADLINE, &gate.0).await;
    let (ended, known) = worker.end().await;
    assert!(matches!(&ended, Err(NodeError::Stuck(why)) if why.contains("replaced by epoch 6")), "{ended:?}");
    assert!(!known, "its record was not deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_worker_does_not_wait_for_a_hung_rank() {
    let gate = Open::default();
    let (worker, _link) = stuck(Duration::from_secs(3600), &gate.0).await;
    worker.leave.send_replace(true);
    let (ended, known) = worker.end().await;
    assert!(ended.is_ok() && !known, "{ended:?}");
}
