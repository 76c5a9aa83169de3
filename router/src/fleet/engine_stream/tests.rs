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
    // Appended tokens count once, whether the engine repeats them or not.
    assert_eq!(ids(progress.receive(tokens(1, 1, &[9, 8, 5])).unwrap()), [5]);
    assert_eq!(ids(progress.receive(tokens(1, 4, &[6])).unwrap()), [6]);
    assert_eq!(progress.accepted, [1, 9, 8, 5, 6]);
}

#[tokio::test]
async fn a_failed_connection_is_distinguished_from_a_closed_one() {
    use std::io::Read;
    let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
    let failure_of = async |port: u16| {
        let channel =
            tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap().connect_lazy();
        let mut client =
            rein_proto::internal::engine_client::EngineClient::new(crate::fleet::transport::transport(channel));
        Failure::from_status(&client.info(rein_proto::internal::InfoRequest::default()).await.unwrap_err())
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port(&listener);
    // Closes the connection after the first byte.
    let hanging_up = std::thread::spawn(move || listener.accept().unwrap().0.read_exact(&mut [0]).unwrap());
    let Failure::Lost(Some(Fault::Gone), error) = failure_of(taken).await else { panic!("it hung up") };
    assert_eq!((error.kind, error.code), (ErrorKind::Unavailable, Some("capacity_lost")));
    hanging_up.join().unwrap();
    assert!(matches!(failure_of(taken).await, Failure::NotStarted(_)));
}

#[test]
fn an_engine_that_takes_no_sequence_is_distinguished_from_one_that_lost_it() {
    assert!(matches!(Failure::from_start(&Status::unavailable("draining")), Failure::NotStarted(_)));
    let mut cut = Status::unavailable("the connection broke");
    cut.set_source(Arc::new(std::io::Error::other("reset")));
    for lost in [Status::aborted("no head"), cut] {
        let Failure::Lost(Some(Fault::Gone), error) = Failure::from_start(&lost) else { panic!("{lost}") };
        assert_eq!(error.kind, ErrorKind::Unavailable);
    }
}

#[test]
fn a_gap_or_a_future_epoch_is_an_error() {
    assert!(SequenceProgress::default().receive(tokens(0, 1, &[7])).is_err());
    assert!(SequenceProgress::default().receive(tokens(1, 0, &[7])).is_err());
}

#[test]
fn keep_is_limited_to_the_accepted_tokens() {
    let mut progress = SequenceProgress { epoch: 4, accepted: vec![1, 2], ..SequenceProgress::default() };
    let steer = progress.steer(Steering::keep(9));
    assert_eq!((steer.epoch, steer.keep), (5, 2));
}

#[test]
fn a_resumed_sequence_keeps_its_mask_and_hold() {
    let start = Start { prompt: vec![1], hold: true, prompt_logprobs: 2, ..Start::default() };
    let mut progress = SequenceProgress { held: true, ..SequenceProgress::default() };
    let (begun, nothing) = progress.resume(&start, false);
    assert_eq!((begun, nothing), (start.clone(), None));
    // A mask is sent again until a token was drawn with it.
    let masked = Steering::keep(0).append([5]).mask(Bytes::from_static(&[7]));
    progress.steer(masked);
    let (resumed, steering) = progress.resume(&start, true);
    assert_eq!((resumed.resume, resumed.hold, resumed.prompt_logprobs), (vec![5], true, -1));
    assert_eq!(steering, Some(Steering::keep(1).mask(Bytes::from_static(&[7]))));
    progress.steer(steering.unwrap());
    assert_eq!(ids(progress.receive(tokens(1, 1, &[6, 7])).unwrap()), [6, 7]);
    let (resumed, steering) = progress.resume(&start, true);
    assert_eq!((resumed.resume, resumed.hold, steering), (vec![5, 6, 7], false, None));
    // A held sequence stays held.
    progress.steer(Steering::keep(3).hold());
    progress.receive(tokens(1, 3, &[8])).unwrap();
    let (resumed, steering) = progress.resume(&start, true);
    assert_eq!((resumed.resume, resumed.hold, steering), (vec![5, 6, 7, 8], true, None));
}

mod budget {
    use rein_proto::internal::{Limits, engine_server::EngineServer};

    use super::*;
    use crate::{
        fleet::{breaker::OPEN_MOST, transport::transport},
        tests::fake::{Ending, Fake},
    };

    /// The context of sequences on a pool of these engines. Without `credit`, the retry budget is spent.
    fn context(engines: &[&Fake], credit: bool) -> SequenceContext {
        let retry_budget = Arc::new(RetryBudget::new(None));
        while !credit && retry_budget.try_retry(Instant::now()) {}
        let engines =
            engines.iter().map(|&engine| (transport(EngineServer::new(engine.clone())), String::new(), Vec::new()));
        let deadline = Instant::now() + limits::REQUEST_TIME;
        SequenceContext {
            pool: Arc::new(EnginePool::fixed(engines.collect())),
            session: None,
            deadline,
            metrics: Arc::default(),
            retry_budget,
            client: watch::channel(ClientState::Reading).1,
        }
    }

    async fn sequence(context: &SequenceContext) -> Result<(), Error> {
        let SequenceContext { pool, session, deadline, metrics, retry_budget, client } = context;
        let (pool, session, deadline, client) = (pool.clone(), *session, *deadline, client.clone());
        let limits = Some(Limits { max_tokens: 1, ..Limits::default() });
        let start = Start { limits, logprobs: -1, prompt_logprobs: -1, ..Start::default() };
        let wanted = EngineRequest { salt: "", lora: 0, tokens: &[], session, kind: None, refused: &[] };
        let lease = pool.lease(&wanted, deadline, deadline).await?;
        let context = SequenceContext {
            pool,
            session,
            deadline,
            metrics: metrics.clone(),
            retry_budget: retry_budget.clone(),
            client,
        };
        let spans = Spans { span: Span::none(), queue: Span::none() };
        let mut stream = EngineStream::open(context, lease, start, spans).await?;
        while !matches!(stream.next_output().await?, EngineOutput::Finish(_)) {}
        Ok(())
    }

    async fn succeed(context: &SequenceContext, sequences: usize) -> usize {
        let mut succeeded = 0;
        for _ in 0..sequences {
            succeeded += usize::from(sequence(context).await.is_ok());
        }
        succeeded
    }

    #[tokio::test(start_paused = true)]
    async fn retries_cost_budget_and_the_first_resume_does_not() {
        let full = Fake { refuse: Some(Code::ResourceExhausted), ..Fake::default() };
        let (ends, well) = (Fake::ending(Ending::Silence), Fake::default());
        assert_eq!(succeed(&context(&[&full, &well], true), 8).await, 8);
        assert_eq!(succeed(&context(&[&full, &well], false), 8).await, 4, "half of them tried the full engine first");
        assert_eq!(succeed(&context(&[&ends, &well], false), 8).await, 8);
        let twice = Fake::ending(Ending::Silence);
        assert!(sequence(&context(&[&twice; 8], false)).await.is_err());
        assert_eq!(twice.starts().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sequence_resumes_a_limited_number_of_times() {
        for ending in [Ending::Silence, Ending::Lost, Ending::Stopped] {
            let ends = Fake::ending(ending);
            let engines = vec![&ends; 2 * limits::RESUMES as usize];
            let error = sequence(&context(&engines, true)).await.unwrap_err();
            assert_eq!((error.kind, error.code), (ErrorKind::Unavailable, Some("capacity_lost")), "{ending:?}");
            assert_eq!(ends.starts().len(), limits::RESUMES as usize + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_sequence_without_another_engine_fails_with_capacity_lost() {
        let ends = Fake::ending(Ending::Lost);
        for (refuse, credit) in [(Code::Unavailable, true), (Code::ResourceExhausted, true), (Code::Unavailable, false)]
        {
            let refuses = Fake { refuse: Some(refuse), ..Fake::default() };
            let context = context(&[&ends, &refuses], credit);
            let (mut lost, before) = (Vec::new(), ends.starts().len());
            while ends.starts().len() < before + 4 {
                lost.extend(sequence(&context).await.err());
            }
            let told = lost.iter().filter(|error| error.code == Some("capacity_lost")).count();
            assert!(lost.iter().all(|error| error.kind != ErrorKind::Internal), "{lost:?}");
            assert!(told > 0, "{refuse:?}, {credit}: {lost:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_error_is_not_reported_as_lost_capacity() {
        let errs = Fake { refuse: Some(Code::Internal), ..Fake::default() };
        let error = sequence(&context(&[&errs, &errs], true)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (ErrorKind::Internal, Some("internal_error")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_engine_gets_no_sequence_until_its_breaker_allows_one_probe() {
        let (fallen, well) = (Fake::ending(Ending::Silence), Fake::default());
        let context = context(&[&fallen, &well], true);
        assert_eq!(succeed(&context, 8).await, 8);
        assert_eq!(fallen.starts().len(), 1);
        tokio::time::advance(OPEN_MOST * 2).await;
        assert_eq!(succeed(&context, 8).await, 8);
        assert!(fallen.starts().len() <= 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_failed_sequence_does_not_open_the_breaker() {
        let errs = Fake { refuse: Some(Code::Internal), ..Fake::default() };
        let context = context(&[&errs, &Fake::default()], true);
        assert_eq!(succeed(&context, 1).await + succeed(&context, 1).await, 2);
        let allowed: Vec<_> = context.pool.engines().iter().map(|engine| engine.allows(Instant::now())).collect();
        assert_eq!(allowed, [true, true]);
    }
}
