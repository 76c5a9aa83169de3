//! Follows the events of a scripted engine.

use std::pin::Pin;
use std::sync::Mutex;

use futures::{Stream, StreamExt, stream};
use rein_proto::internal::engine_client::EngineClient;
use rein_proto::internal::engine_server::{self, EngineServer};
use rein_proto::internal::{
    EngineInfo, EngineStats, EventsRequest, FromEngine, HoldRequest, HoldResponse, InfoRequest, StatsRequest, ToEngine,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::super::follow::{follow_events, interval};
use super::*;
use crate::fleet::transport::transport;

type Told = mpsc::Receiver<Result<EngineEvents, Status>>;
type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone, Default)]
struct Fake {
    calls: Arc<watch::Sender<Vec<(Instant, u32)>>>,
    /// The stream for the next call. None: the call fails with UNAVAILABLE.
    next: Arc<Mutex<Option<Told>>>,
    refuses: bool,
}

#[tonic::async_trait]
impl engine_server::Engine for Fake {
    type GenerateStream = Answer<FromEngine>;
    type EventsStream = Answer<EngineEvents>;

    async fn generate(&self, _: Request<Streaming<ToEngine>>) -> Result<Response<Self::GenerateStream>, Status> {
        Ok(Response::new(stream::empty().boxed()))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<EngineInfo>, Status> {
        Err(Status::unavailable("not asked"))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<EngineStats>, Status> {
        Err(Status::unavailable("not asked"))
    }

    async fn hold(&self, _: Request<HoldRequest>) -> Result<Response<HoldResponse>, Status> {
        Err(Status::unimplemented("of an older release"))
    }

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        self.calls.send_modify(|calls| calls.push((Instant::now(), request.into_inner().interval_ms)));
        if self.refuses {
            return Err(Status::unimplemented("no events"));
        }
        let next = self.next.lock().expect("no panic").take();
        Ok(Response::new(ReceiverStream::new(next.ok_or_else(|| Status::unavailable("not there"))?).boxed()))
    }
}

impl Fake {
    fn stream(&self) -> mpsc::Sender<Result<EngineEvents, Status>> {
        let (sender, receiver) = mpsc::channel(8);
        *self.next.lock().expect("no panic") = Some(receiver);
        sender
    }

    async fn called(&self, times: usize) -> Vec<(Instant, u32)> {
        self.calls.subscribe().wait_for(|calls| calls.len() >= times).await.expect("there").clone()
    }
}

fn follow(fake: &Fake, slot: &Arc<EngineSlot>) -> tokio::task::JoinHandle<()> {
    let client = EngineClient::new(transport(EngineServer::new(fake.clone())));
    tokio::spawn(follow_events(client, slot.clone(), Duration::from_millis(70), || 1))
}

/// Lets all tasks run: with paused time, the sleep ends when they are idle.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn events_are_applied_until_the_stream_ends() {
    let index = index();
    let slot = Arc::new(index.add_engine());
    let fake = Fake::default();
    let says = fake.stream();
    let following = follow(&fake, &slot);
    assert_eq!(fake.called(1).await[0].1, 70);
    let load = Some(EngineLoad { running: 5, ..EngineLoad::default() });
    let snapshot = EngineEvents { load, ..events(true, &chain("", &tokens(20)), &[]) };
    says.send(Ok(snapshot.clone())).await.expect("read");
    says.send(Ok(events(false, &[], &chain("", &tokens(20))[3..]))).await.expect("read");
    says.send(Ok(EngineEvents { load, ..events(false, &[], &[]) })).await.expect("read");
    settle().await;
    assert_eq!((matched(&index, [&slot], &tokens(30)), slot.load(3)), ([12], 7), "one of the five was ours");
    // When the stream breaks, the entries are cleared until the next snapshot.
    drop(says);
    settle().await;
    assert_eq!((matched(&index, [&slot], &tokens(30)), slot.load(3)), ([0], 3));
    let says = fake.stream();
    fake.called(2).await;
    says.send(Ok(snapshot.clone())).await.expect("read");
    settle().await;
    assert_eq!(matched(&index, [&slot], &tokens(30)), [20]);
    // A silent stream is requested again.
    let before = Instant::now();
    let again = fake.stream();
    fake.called(3).await;
    assert!(before.elapsed() >= limits::EVENTS_SILENCE && before.elapsed() < limits::EVENTS_SILENCE * 2);
    again.send(Ok(snapshot)).await.expect("read");
    settle().await;
    assert_eq!(matched(&index, [&slot], &tokens(30)), [20]);
    following.abort();
    assert!(following.await.expect_err("was stopped").is_cancelled());
    drop(slot);
    assert!(index.block_sizes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_engine_is_retried_with_backoff() {
    let fake = Fake::default();
    let slot = Arc::new(index().add_engine());
    let following = follow(&fake, &slot);
    let calls = fake.called(10).await;
    let pauses: Vec<Duration> = calls.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
    assert!(pauses[0] < Duration::from_millis(150) && pauses[8] >= limits::EVENTS_RETRY.1, "{pauses:?}");
    // After an event, the backoff starts again.
    let says = fake.stream();
    let count = fake.called(11).await.len();
    says.send(Ok(events(true, &[1], &[]))).await.expect("read");
    settle().await;
    drop(says);
    let gone = Instant::now();
    fake.called(count + 1).await;
    assert!(gone.elapsed() < Duration::from_millis(150));
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_events_is_not_retried() {
    let fake = Fake { refuses: true, ..Fake::default() };
    let slot = Arc::new(index().add_engine());
    follow(&fake, &slot).await.expect("it returns");
    assert_eq!(fake.called(1).await.len(), 1);
}

#[test]
fn the_interval_grows_with_the_number_of_engines() {
    assert_eq!([1, 100, 1000, usize::MAX].map(|engines| interval(engines).as_millis()), [50, 50, 500, 1000]);
}
