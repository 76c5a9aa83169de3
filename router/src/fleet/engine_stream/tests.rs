mod replay;

use rein_proto::internal::Tokens;

use super::*;

fn tokens(epoch: u64, position: u32, ids: &[u32]) -> Tokens {
    Tokens { epoch, position, ids: ids.to_vec(), logprobs: Vec::new() }
}

fn ids(drawn: Vec<DrawnToken>) -> Vec<u32> {
    drawn.into_iter().map(|drawn| drawn.id).collect()
}

#[test]
fn older_epochs_are_ignored_and_appended_tokens_count() {
    let mut progress = SequenceProgress::default();
    assert_eq!(ids(progress.receive(tokens(0, 0, &[1, 2, 3])).unwrap()), [1, 2, 3]);
    let steer = progress.steer(Steering::keep(1).append([9, 8]).hold());
    assert_eq!((steer.epoch, steer.keep, steer.append.as_slice(), steer.hold), (1, 1, [9, 8].as_slice(), true));
    assert_eq!(ids(progress.receive(tokens(0, 3, &[4])).unwrap()), Vec::<u32>::new());
    assert_eq!(progress.accepted, [1, 9, 8]);
    // Whether the engine repeats what was appended or not, it counts once.
    assert_eq!(ids(progress.receive(tokens(1, 1, &[9, 8, 5])).unwrap()), [5]);
    assert_eq!(ids(progress.receive(tokens(1, 4, &[6])).unwrap()), [6]);
    assert_eq!(progress.accepted, [1, 9, 8, 5, 6]);
}

#[tokio::test]
async fn an_engine_that_nobody_reached_is_told_from_one_that_hung_up() {
    use std::io::Read;
    let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
    let fate = async |port: u16| {
        let channel =
            tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap().connect_lazy();
        let mut client = rein_proto::internal::engine_client::EngineClient::new(crate::fleet::pool::transport(channel));
        Failure::of(&client.info(rein_proto::internal::InfoRequest::default()).await.unwrap_err())
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port(&listener);
    // Once something was sent.
    let hanging_up = std::thread::spawn(move || listener.accept().unwrap().0.read_exact(&mut [0]).unwrap());
    let Failure::Lost(Some(Fault::Gone), error) = fate(taken).await else { panic!("it hung up") };
    assert_eq!((error.kind, error.code), (Kind::Unavailable, Some("capacity_lost")));
    hanging_up.join().unwrap();
    assert!(matches!(fate(taken).await, Failure::Unreached(_)));
}

#[test]
fn a_gap_or_an_epoch_from_nowhere_is_an_error() {
    assert!(SequenceProgress::default().receive(tokens(0, 1, &[7])).is_err());
    assert!(SequenceProgress::default().receive(tokens(1, 0, &[7])).is_err());
}

#[test]
fn keeping_more_than_there_is_keeps_what_there_is() {
    let mut progress = SequenceProgress { epoch: 4, accepted: vec![1, 2], ..SequenceProgress::default() };
    let steer = progress.steer(Steering::keep(9));
    assert_eq!((steer.epoch, steer.keep), (5, 2));
}

#[test]
fn a_course_goes_on_as_it_was() {
    let start = Start { prompt: vec![1], hold: true, prompt_logprobs: 2, ..Start::default() };
    let mut progress = SequenceProgress { held: true, ..SequenceProgress::default() };
    let (begun, nothing) = progress.resume(&start, false);
    assert_eq!((begun, nothing), (start.clone(), None));
    // A mask that was asked for and not used is asked for again; one that was used is not.
    let masked = Steering::keep(0).append([5]).mask(Bytes::from_static(&[7]));
    progress.steer(masked);
    let (resumed, steering) = progress.resume(&start, true);
    assert_eq!((resumed.resume, resumed.hold, resumed.prompt_logprobs), (vec![5], true, -1));
    assert_eq!(steering, Some(Steering::keep(1).mask(Bytes::from_static(&[7]))));
    progress.steer(steering.unwrap());
    assert_eq!(ids(progress.receive(tokens(1, 1, &[6, 7])).unwrap()), [6, 7]);
    let (resumed, steering) = progress.resume(&start, true);
    assert_eq!((resumed.resume, resumed.hold, steering), (vec![5, 6, 7], false, None));
    // One that waits for a steer goes on waiting.
    progress.steer(Steering::keep(3).hold());
    progress.receive(tokens(1, 3, &[8])).unwrap();
    let (resumed, steering) = progress.resume(&start, true);
    assert_eq!((resumed.resume, resumed.hold, steering), (vec![5, 6, 7, 8], true, None));
}

mod budget {
    use rein_proto::internal::{Limits, engine_server::EngineServer};

    use super::*;
    use crate::{
        fleet::{breaker::OPEN_MOST, pool::transport},
        tests::fake::{Ending, Fake},
    };

    /// A pool of these engines, and what their sequences share.
    fn common(engines: &[&Fake], credit: bool) -> SequenceContext {
        let retry_budget = Arc::new(RetryBudget::new(None));
        while !credit && retry_budget.retry(Instant::now()) {}
        let engines = engines.iter().map(|&engine| (transport(EngineServer::new(engine.clone())), String::new()));
        let deadline = Instant::now() + limits::REQUEST_TIME;
        SequenceContext {
            pool: Arc::new(EnginePool::fixed(engines.collect())),
            session: None,
            deadline,
            metrics: Arc::default(),
            retry_budget,
            client: watch::channel(ClientState::Reads).1,
        }
    }

    async fn sequence(common: &SequenceContext) -> Result<(), Error> {
        let SequenceContext { pool, session, deadline, metrics, retry_budget, client } = common;
        let (pool, session, deadline, client) = (pool.clone(), *session, *deadline, client.clone());
        let limits = Some(Limits { max_tokens: 1, ..Limits::default() });
        let start = Start { limits, logprobs: -1, prompt_logprobs: -1, ..Start::default() };
        let wanted = EngineRequest { salt: "", tokens: &[], session, kind: None, refused: &[] };
        let lease = pool.lease(&wanted, deadline, deadline).await?;
        let common = SequenceContext {
            pool,
            session,
            deadline,
            metrics: metrics.clone(),
            retry_budget: retry_budget.clone(),
            client,
        };
        let spans = Spans { span: Span::none(), queue: Span::none() };
        let mut stream = EngineStream::open(common, lease, start, spans).await?;
        while !matches!(stream.next_output().await?, EngineOutput::Finish(_)) {}
        Ok(())
    }

    async fn succeed(common: &SequenceContext, sequences: usize) -> usize {
        let mut succeeded = 0;
        for _ in 0..sequences {
            succeeded += usize::from(sequence(common).await.is_ok());
        }
        succeeded
    }

    #[tokio::test(start_paused = true)]
    async fn trying_again_costs_credit_and_the_first_loss_does_not() {
        let full = Fake { refuse: Some(Code::ResourceExhausted), ..Fake::default() };
        let (ends, well) = (Fake::ending(Ending::Silence), Fake::default());
        assert_eq!(succeed(&common(&[&full, &well], true), 8).await, 8);
        assert_eq!(succeed(&common(&[&full, &well], false), 8).await, 4, "half of them asked the full one first");
        assert_eq!(succeed(&common(&[&ends, &well], false), 8).await, 8);
        let twice = Fake::ending(Ending::Silence);
        assert!(sequence(&common(&[&twice; 8], false)).await.is_err());
        assert_eq!(twice.starts().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sequence_is_lost_so_often_and_no_more() {
        for ending in [Ending::Silence, Ending::Lost, Ending::Stopped] {
            let ends = Fake::ending(ending);
            let engines = vec![&ends; 2 * limits::RESUMES as usize];
            let error = sequence(&common(&engines, true)).await.unwrap_err();
            assert_eq!((error.kind, error.code), (Kind::Unavailable, Some("capacity_lost")), "{ending:?}");
            assert_eq!(ends.starts().len(), limits::RESUMES as usize + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sequence_that_finds_no_other_engine_tells_of_lost_capacity() {
        let ends = Fake::ending(Ending::Lost);
        for (refuse, credit) in [(Code::Unavailable, true), (Code::ResourceExhausted, true), (Code::Unavailable, false)]
        {
            let refuses = Fake { refuse: Some(refuse), ..Fake::default() };
            let common = common(&[&ends, &refuses], credit);
            let (mut lost, before) = (Vec::new(), ends.starts().len());
            while ends.starts().len() < before + 4 {
                lost.extend(sequence(&common).await.err());
            }
            let told = lost.iter().filter(|error| error.code == Some("capacity_lost")).count();
            assert!(lost.iter().all(|error| error.kind != Kind::Internal), "{lost:?}");
            assert!(told > 0, "{refuse:?}, {credit}: {lost:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_errs_is_no_lost_capacity() {
        let errs = Fake { refuse: Some(Code::Internal), ..Fake::default() };
        let error = sequence(&common(&[&errs, &errs], true)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (Kind::Internal, Some("internal_error")));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_fell_gets_nothing_until_its_time_is_over_and_then_one_probe() {
        let (fallen, well) = (Fake::ending(Ending::Silence), Fake::default());
        let common = common(&[&fallen, &well], true);
        assert_eq!(succeed(&common, 8).await, 8);
        assert_eq!(fallen.starts().len(), 1);
        tokio::time::advance(OPEN_MOST * 2).await;
        assert_eq!(succeed(&common, 8).await, 8);
        assert!(fallen.starts().len() <= 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_fails_on_a_sequence_is_not_taken_from_others_at_once() {
        let errs = Fake { refuse: Some(Code::Internal), ..Fake::default() };
        let common = common(&[&errs, &Fake::default()], true);
        assert_eq!(succeed(&common, 1).await + succeed(&common, 1).await, 2);
        let lets: Vec<_> = common.pool.engines().iter().map(|engine| engine.lets(Instant::now())).collect();
        assert_eq!(lets, [true, true]);
    }
}
