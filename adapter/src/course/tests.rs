use bytes::Bytes;
use rein_proto::internal::LogitBias;

use super::*;

mod random;

pub const VOCAB: usize = 40;
pub const STOP: u32 = 39;

pub fn traits() -> EngineTraits {
    EngineTraits {
        allow_limit: 4,
        allow_is_penalized: false,
        bias_limit: 12,
        exclude_first: 12,
        chunk: None,
        counts_generated: true,
        seed_bits: 63,
    }
}

pub fn shape(traits: EngineTraits) -> CourseShape {
    CourseShape { vocab_size: VOCAB, context: 64, traits }
}

pub fn start() -> Start {
    Start {
        prompt: vec![1, 2, 3],
        sampling: Some(Sampling {
            temperature: 1.0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            seed: 7,
            ..Sampling::default()
        }),
        limits: Some(Limits { max_tokens: 20, stop_token_ids: vec![STOP], ..Limits::default() }),
        logprobs: -1,
        prompt_logprobs: -1,
        finish_is_proposal: true,
        ..Start::default()
    }
}

pub fn mask(ids: &[u32]) -> Bytes {
    let mut bits = vec![0; VOCAB.div_ceil(8)];
    ids.iter().for_each(|id| bits[*id as usize / 8] |= 1 << (id % 8));
    bits.into()
}

pub fn ids(ids: &[u32]) -> Vec<DrawnId> {
    ids.iter().map(|&id| DrawnId { id, logprob: None }).collect()
}

pub fn steer(epoch: u64, keep: u32) -> Steer {
    Steer { epoch, keep, ..Steer::default() }
}

/// The actions so far: what was opened and closed, and the messages.
#[derive(Debug, Default)]
pub struct Seen {
    pub opened: Vec<DrawRequest>,
    pub closed: Vec<u64>,
    pub tokens: Vec<(u64, u32, Vec<u32>)>,
    pub admitted: Vec<Admitted>,
    pub finishes: Vec<Finish>,
}

pub fn seen(course: &mut Course) -> Seen {
    let mut seen = Seen::default();
    while let Some(action) = course.next_action() {
        match action {
            CourseAction::Open(request) => seen.opened.push(request),
            CourseAction::Close { number, .. } => seen.closed.push(number),
            CourseAction::Send(message) => match message.kind.expect("a kind") {
                from_engine::Kind::Admitted(admitted) => seen.admitted.push(admitted),
                from_engine::Kind::Tokens(tokens) => seen.tokens.push((tokens.epoch, tokens.position, tokens.ids)),
                from_engine::Kind::Finish(finish) => seen.finishes.push(finish),
            },
        }
    }
    seen
}

fn begun(start: Start, traits: EngineTraits) -> (Course, DrawRequest) {
    check(&start, &shape(traits.clone())).expect("a valid start");
    let mut course = Course::new(start, shape(traits));
    let opened = seen(&mut course).opened.pop().expect("a request");
    (course, opened)
}

fn only(seen: Seen) -> DrawRequest {
    assert_eq!(seen.opened.len(), 1, "{seen:?}");
    seen.opened.into_iter().next().expect("one")
}

fn error(course: &mut Course) -> String {
    let finish = seen(course).finishes.pop().expect("a finish");
    assert_eq!(finish.reason(), FinishReason::Error);
    assert!(course.is_ended());
    finish.error
}

#[test]
fn an_undisturbed_sequence_is_one_request_with_every_parameter() {
    let (mut course, request) = begun(start(), traits());
    assert_eq!((request.number, request.why, request.max_tokens), (1, DrawReason::Start, 20));
    assert_eq!(
        (request.prompt.as_slice(), request.stop_token_ids.as_slice()),
        ([1, 2, 3].as_slice(), [STOP].as_slice())
    );
    assert_eq!(request.sampling, Sampling { seed: 0, ..start().sampling.expect("sampling") });
    assert_eq!((request.allow.len(), request.exclude.len(), request.width), (0, 0, None));
    course.admit(2);
    course.drawn(1, ids(&[4, 5]));
    course.drawn(1, ids(&[6, STOP, 8]));
    let seen = seen(&mut course);
    assert_eq!(seen.admitted, [Admitted { prompt_tokens: 3, cached_tokens: 2, ..Admitted::default() }]);
    assert_eq!(seen.tokens, [(0, 0, vec![4, 5]), (0, 2, vec![6, STOP])]);
    assert_eq!((seen.closed, seen.finishes[0].reason(), seen.finishes[0].generated), (vec![1], FinishReason::Stop, 4));
    assert!(!course.is_ended(), "a finish under a grammar is a proposal");
}

#[test]
fn a_steer_closes_the_request_and_a_mask_is_one_token_before_the_rest() {
    let (mut course, _) = begun(start(), traits());
    course.drawn(1, ids(&[4, 5, 6, 7]));
    seen(&mut course);
    course.steer(Steer { append: vec![], mask: Some(mask(&[8, 9])), ..steer(1, 2) });
    let after = seen(&mut course);
    assert_eq!(after.closed, [1]);
    let masked = only(after);
    assert_eq!((masked.number, masked.why, masked.max_tokens, masked.width), (2, DrawReason::Masked, 1, Some(2)));
    assert_eq!((masked.prompt, masked.allow), (vec![1, 2, 3, 4, 5], vec![8, 9]));
    assert_eq!(masked.exclude, [6], "the refused token is excluded, too");
    // What the closed request still sends is dropped.
    course.drawn(1, ids(&[10, 11]));
    course.drawing_ended(1, DrawEnd::Lost("late".into()));
    course.drawn(2, ids(&[9]));
    let after = seen(&mut course);
    assert_eq!((&after.tokens, &after.closed), (&vec![(1, 2, vec![9])], &vec![2]));
    let free = only(after);
    assert_eq!((free.why, free.max_tokens, free.width), (DrawReason::Free, 17, None));
    assert_eq!((free.prompt, free.allow.len(), free.exclude.len()), (vec![1, 2, 3, 4, 5, 9], 0, 0));
    assert_eq!(course.stats(), CourseStats { steers: 1, rewound: 2, generated: 5, ..CourseStats::default() });
}

#[test]
fn appended_tokens_are_prompt_and_a_single_allowed_token_is_not_drawn() {
    let (mut course, _) = begun(start(), traits());
    course.drawn(1, ids(&[4, 5]));
    seen(&mut course);
    course.steer(Steer { append: vec![20, 21], mask: Some(mask(&[22])), ..steer(1, 1) });
    let after = seen(&mut course);
    assert_eq!(after.tokens, [(1, 3, vec![22])]);
    let free = only(after);
    assert_eq!((free.why, free.max_tokens, free.prompt), (DrawReason::Free, 16, vec![1, 2, 3, 4, 20, 21, 22]));
    course.steer(Steer { mask: Some(mask(&[STOP])), ..steer(2, 4) });
    let after = seen(&mut course);
    assert_eq!((after.tokens, after.opened.len()), (vec![(2, 4, vec![STOP])], 0));
    assert_eq!(after.finishes[0].reason(), FinishReason::Stop);
    // The router may steer on after a proposed finish.
    course.steer(Steer { mask: Some(mask(&[5, 6])), ..steer(3, 4) });
    assert_eq!(only(seen(&mut course)).prompt, [1, 2, 3, 4, 20, 21, 22]);
    course.steer(Steer { stop: true, ..steer(4, 2) });
    let after = seen(&mut course);
    assert_eq!((after.finishes[0].reason(), after.finishes[0].generated), (FinishReason::Steered, 2));
    assert!(course.is_ended());
}

#[test]
fn a_held_sequence_is_one_request_a_token() {
    let mut course = Course::new(Start { hold: true, ..start() }, shape(traits()));
    let first = seen(&mut course);
    assert_eq!((first.opened.len(), first.admitted.len()), (0, 1), "the router steers when it is admitted");
    for (epoch, token) in (1..).zip([8, 9, 10]) {
        let keep = epoch as u32 - 1;
        course.steer(Steer { mask: Some(mask(&[8, 9, 10])), hold: true, ..steer(epoch, keep) });
        let request = only(seen(&mut course));
        assert_eq!((request.why, request.max_tokens), (DrawReason::Held, 1));
        course.drawn(request.number, ids(&[token]));
        let after = seen(&mut course);
        assert_eq!((after.opened.len(), after.tokens), (0, vec![(epoch, keep, vec![token])]));
    }
    course.steer(steer(4, 3));
    let free = only(seen(&mut course));
    assert_eq!((free.why, free.max_tokens, free.prompt), (DrawReason::Free, 17, vec![1, 2, 3, 8, 9, 10]));
}

#[test]
fn an_ignored_mask_is_drawn_again_without_the_refused_token_and_ends_the_sequence_after_eight_times() {
    let (mut course, _) = begun(start(), traits());
    course.drawn(1, ids(&[4]));
    course.steer(Steer { mask: Some(mask(&[8, 9])), ..steer(1, 1) });
    let mut request = only(seen(&mut course));
    let mut seeds = vec![request.seed];
    for token in 10..17 {
        course.drawn(request.number, ids(&[token]));
        let after = seen(&mut course);
        assert_eq!(after.tokens.len(), 0);
        request = only(after);
        assert_eq!((request.allow.as_slice(), request.exclude.last()), ([8, 9].as_slice(), Some(&token)));
        assert!(!seeds.contains(&request.seed), "a draw must not repeat the noise of another one");
        seeds.push(request.seed);
    }
    course.drawn(request.number, ids(&[17]));
    let error = error(&mut course);
    assert!(error.contains("ignored the mask of position 1 8 times in a row") && error.contains("token 17"), "{error}");
    // A draw that obeys resets the count.
    let (mut course, _) = begun(start(), traits());
    course.steer(Steer { mask: Some(mask(&[8, 9])), ..steer(1, 0) });
    for round in 2u64..40 {
        course.drawn(round, ids(&[if round % 8 == 0 { 8 } else { 20 }]));
        if round % 8 == 0 {
            let keep = (round / 8) as u32;
            course.steer(Steer { mask: Some(mask(&[8, 9])), ..steer(keep as u64 + 1, keep) });
        }
        let number = seen(&mut course).opened.last().expect("a request").number;
        // The free request after the masked one was opened and closed.
        if round % 8 == 0 {
            assert_eq!(number, round + 2);
            break;
        }
    }
    assert!(!course.is_ended());
}

#[test]
fn a_mask_that_no_request_can_say_is_drawn_without_replacement() {
    let narrow = EngineTraits { allow_limit: 4, bias_limit: 12, exclude_first: 3, ..traits() };
    let (mut course, _) = begun(start(), narrow.clone());
    course.drawn(1, ids(&[30]));
    seen(&mut course);
    // 10 allowed, 30 excluded: neither fits.
    let allowed: Vec<u32> = (0..10).collect();
    course.steer(Steer { mask: Some(mask(&allowed)), ..steer(1, 0) });
    let first = only(seen(&mut course));
    assert_eq!((first.allow.len(), first.exclude.as_slice(), first.width), (0, [30].as_slice(), Some(10)));
    course.drawn(first.number, ids(&[31]));
    let second = only(seen(&mut course));
    assert_eq!(second.exclude, [30, 31]);
    course.drawn(second.number, ids(&[5]));
    assert_eq!(seen(&mut course).tokens, [(1, 0, vec![5])]);
    assert_eq!(course.stats().redraws, 1);
    // Excluded tokens need room among the biases: then the sequence ends with a named error.
    course.steer(Steer { mask: Some(mask(&allowed)), ..steer(2, 0) });
    let mut request = only(seen(&mut course));
    let ended = (20..33).find_map(|token| {
        course.drawn(request.number, ids(&[token]));
        let seen = seen(&mut course);
        seen.opened.first().inspect(|opened| request = (*opened).clone());
        seen.finishes.into_iter().next()
    });
    let error = ended.expect("13 tokens were excluded in one request").error;
    assert!(error.contains("at most 12 logits"), "{error}");
}

#[test]
fn a_wide_mask_is_sent_as_its_complement() {
    let (mut course, _) = begun(start(), traits());
    let allowed: Vec<u32> = (0..30).collect();
    course.steer(Steer { mask: Some(mask(&allowed)), ..steer(1, 0) });
    let request = only(seen(&mut course));
    assert_eq!((request.allow.len(), request.exclude), (0, (30..40).collect::<Vec<_>>()));
    // A complement that is large is tried after the token that was refused alone.
    let careful = EngineTraits { exclude_first: 2, bias_limit: usize::MAX, ..traits() };
    let (mut course, _) = begun(start(), careful);
    course.drawn(1, ids(&[33]));
    seen(&mut course);
    course.steer(Steer { mask: Some(mask(&allowed)), ..steer(1, 0) });
    let request = only(seen(&mut course));
    assert_eq!(request.exclude, [33]);
    course.drawn(request.number, ids(&[35]));
    assert_eq!(only(seen(&mut course)).exclude, (30..40).collect::<Vec<_>>());
}

#[test]
fn a_repetition_penalty_that_counts_raised_logits_gets_a_complement() {
    let raises = EngineTraits { allow_is_penalized: true, bias_limit: 40, exclude_first: 40, ..traits() };
    for (repetition_penalty, allowed, excluded) in [(1.0, 2, 0), (1.5, 0, 38)] {
        let sampling = Sampling { repetition_penalty, ..start().sampling.expect("sampling") };
        let (mut course, _) = begun(Start { sampling: Some(sampling), ..start() }, raises.clone());
        course.steer(Steer { mask: Some(mask(&[3, 4])), ..steer(1, 0) });
        let request = only(seen(&mut course));
        assert_eq!((request.allow.len(), request.exclude.len()), (allowed, excluded), "{repetition_penalty}");
    }
}

#[test]
fn penalties_of_generated_tokens_become_biases() {
    let sampling = Sampling {
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        logit_bias: vec![LogitBias { token: 4, bias: 2.0 }],
        ..start().sampling.expect("sampling")
    };
    let penalized = Start { sampling: Some(sampling), ..start() };
    let (mut course, first) = begun(penalized.clone(), traits());
    assert_eq!((first.sampling.presence_penalty, first.sampling.frequency_penalty), (0.5, 0.25));
    assert_eq!(first.bias, [(4, 2.0)]);
    course.drawn(1, ids(&[4, 5, 4]));
    seen(&mut course);
    course.steer(Steer { append: vec![6], ..steer(1, 3) });
    let free = only(seen(&mut course));
    assert_eq!(free.bias, [(4, 2.0 - 0.5 - 0.5), (5, -0.75), (6, -0.75)]);
    assert_eq!(free.sampling.presence_penalty, 0.5, "for tokens that are new");
    // The engine would take the presence penalty of a repeated token a second time.
    course.drawn(free.number, ids(&[8, 5, 9]));
    let after = seen(&mut course);
    assert_eq!(after.tokens, [(1, 4, vec![8, 5])]);
    let again = only(after);
    assert_eq!(again.bias, [(4, 1.0), (5, -1.0), (6, -0.75), (8, -0.75)]);
    // An engine that counts the prompt, too, applies no penalties itself, and draws one token a request.
    let counts = EngineTraits { counts_generated: false, ..traits() };
    let (mut course, first) = begun(penalized.clone(), counts);
    assert_eq!((first.sampling.presence_penalty, first.max_tokens), (0.0, 1));
    course.drawn(1, ids(&[7]));
    assert_eq!(only(seen(&mut course)).bias, [(4, 2.0), (7, -0.75)]);
    // More than fits ends the sequence, or is rejected at the start.
    let few = EngineTraits { bias_limit: 3, ..traits() };
    let (mut course, _) = begun(penalized.clone(), few);
    course.drawn(1, ids(&[7, 8, 9]));
    course.steer(steer(1, 3));
    assert!(error(&mut course).contains("at most 3 logits in one request"));
    let resume: Vec<u32> = (0..1025).collect();
    let limits = Limits { max_tokens: 2000, ..Limits::default() };
    let large = CourseShape { vocab_size: 2000, context: 4000, traits: traits() };
    let error = check(&Start { resume, limits: Some(limits), ..penalized }, &large).expect_err("too many");
    assert!(error.to_string().contains("at most 1024"), "{error}");
}

#[test]
fn limits_shrink_and_stop_tokens_are_excluded_until_min_tokens() {
    let limits = Limits { min_tokens: 3, ..start().limits.expect("limits") };
    let (mut course, first) = begun(Start { limits: Some(limits), resume: vec![4], ..start() }, traits());
    assert_eq!((first.why, first.max_tokens, first.exclude), (DrawReason::Resume, 2, vec![STOP]));
    // An engine that ignores the bias.
    course.drawn(1, ids(&[STOP]));
    let again = only(seen(&mut course));
    assert_eq!((again.max_tokens, again.exclude), (2, vec![STOP]));
    course.drawn(again.number, ids(&[5, 6]));
    let free = only(seen(&mut course));
    assert_eq!((free.max_tokens, free.exclude.len()), (17, 0));
    course.drawn(free.number, ids(&[STOP]));
    assert_eq!(seen(&mut course).finishes[0].reason(), FinishReason::Stop);
    // A grammar that can only end takes precedence.
    let limits = Limits { min_tokens: 3, ..start().limits.expect("limits") };
    let (mut course, _) = begun(Start { limits: Some(limits), ..start() }, traits());
    course.steer(Steer { mask: Some(mask(&[STOP])), ..steer(1, 0) });
    assert_eq!(seen(&mut course).tokens, [(1, 0, vec![STOP])]);
}

#[test]
fn the_context_and_max_tokens_end_the_sequence() {
    let (mut course, request) = begun(Start { prompt: vec![1; 60], finish_is_proposal: false, ..start() }, traits());
    assert_eq!(request.max_tokens, 4);
    course.drawn(1, ids(&[4, 5, 6, 7]));
    let after = seen(&mut course);
    assert_eq!((after.finishes[0].reason(), after.opened.len()), (FinishReason::Length, 0));
    assert!(course.is_ended());
    let mut full = Course::new(Start { resume: vec![4; 20], ..start() }, shape(traits()));
    assert_eq!(seen(&mut full).finishes[0].reason(), FinishReason::Length);
    // An append is cut at the limit.
    let (mut course, _) = begun(start(), traits());
    course.steer(Steer { append: vec![5; 30], ..steer(1, 0) });
    let after = seen(&mut course);
    assert_eq!((after.finishes[0].reason(), after.finishes[0].generated), (FinishReason::Length, 20));
}

#[test]
fn a_chunk_is_followed_by_the_next_one() {
    let chunked = EngineTraits { chunk: Some(3), ..traits() };
    let (mut course, first) = begun(start(), chunked);
    assert_eq!(first.max_tokens, 3);
    course.drawn(1, ids(&[4, 5, 6]));
    course.drawing_ended(1, DrawEnd::Length);
    let next = only(seen(&mut course));
    assert_eq!((next.why, next.max_tokens, next.prompt), (DrawReason::Free, 3, vec![1, 2, 3, 4, 5, 6]));
    assert_ne!(next.seed, first.seed);
    // It ends early at a stop token that is not among its ids.
    course.drawn(2, ids(&[7]));
    course.drawing_ended(2, DrawEnd::Stop(Some(STOP)));
    let after = seen(&mut course);
    assert_eq!(after.tokens, [(0, 3, vec![7]), (0, 4, vec![STOP])]);
    assert_eq!(after.finishes[0].reason(), FinishReason::Stop);
}

#[test]
fn losses_failures_and_empty_requests_end_the_sequence_with_their_reason() {
    let (mut course, _) = begun(start(), traits());
    course.drawing_ended(1, DrawEnd::Lost("the connection was cut".into()));
    let finish = seen(&mut course).finishes.remove(0);
    assert_eq!((finish.reason(), finish.error.as_str()), (FinishReason::Lost, "the connection was cut"));
    assert!(course.is_ended(), "a loss is no proposal");
    let (mut course, _) = begun(start(), traits());
    course.drawing_ended(1, DrawEnd::Failed("400".into()));
    assert_eq!(error(&mut course), "400");
    let (mut course, mut request) = begun(start(), traits());
    for _ in 1..limits::EMPTY_REQUESTS {
        course.drawing_ended(request.number, DrawEnd::Stop(None));
        request = only(seen(&mut course));
    }
    course.drawing_ended(request.number, DrawEnd::Length);
    assert!(error(&mut course).contains("8 requests in a row without a token"));
}

#[test]
fn an_engine_that_breaks_the_rules_ends_its_sequence() {
    let (mut course, _) = begun(start(), traits());
    course.drawn(1, ids(&[4, VOCAB as u32]));
    let after = seen(&mut course);
    assert_eq!(after.tokens, [(0, 0, vec![4])], "what came before counts");
    assert!(after.finishes[0].error.contains("drew token 40; the vocabulary has 40"), "{:?}", after.finishes);
    let (mut course, _) = begun(start(), traits());
    course.steer(Steer { mask: Some(mask(&[])), ..steer(1, 0) });
    assert!(error(&mut course).contains("the mask allows none"));
}

#[test]
fn steers_that_break_the_protocol_are_named() {
    for (wrong, part) in [
        (steer(0, 0), "steer.epoch"),
        (steer(1, 1), "steer.keep"),
        (Steer { append: vec![VOCAB as u32], ..steer(1, 0) }, "steer.append"),
        (Steer { mask: Some(vec![1; 4].into()), ..steer(1, 0) }, "steer.mask: must have 5 bytes"),
        (Steer { mask: Some(vec![1; 6].into()), ..steer(1, 0) }, "steer.mask: must have 5 bytes"),
    ] {
        let (mut course, _) = begun(start(), traits());
        course.steer(wrong);
        let error = error(&mut course);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn bad_input_never_reaches_an_engine() {
    let sampling = |change: fn(&mut Sampling)| {
        let mut sampling = start().sampling.expect("sampling");
        change(&mut sampling);
        Start { sampling: Some(sampling), ..start() }
    };
    for (wrong, part) in [
        (Start { prompt: vec![VOCAB as u32], ..start() }, "prompt must have token ids below 40"),
        (Start { resume: vec![VOCAB as u32], ..start() }, "resume must have token ids below 40"),
        (Start { prompt: vec![1; 64], ..start() }, "must fit the context of 64 tokens"),
        (Start { prompt: vec![], ..start() }, "at least one token"),
        (Start { embed: true, ..start() }, "embed must be false"),
        (Start { prompt_logprobs: 0, ..start() }, "prompt_logprobs must be -1"),
        (Start { logprobs: 21, ..start() }, "from 0 to 20"),
        (Start { script: vec![1], ..start() }, "script must be empty"),
        (sampling(|sampling| sampling.temperature = 2.5), "sampling.temperature must be from 0 to 2, got 2.5"),
        (sampling(|sampling| sampling.temperature = f32::NAN), "sampling.temperature"),
        (sampling(|sampling| sampling.logit_bias = vec![LogitBias { token: 40, bias: 1.0 }]), "token ids below 40"),
        (
            sampling(|sampling| sampling.logit_bias = vec![LogitBias { token: 4, bias: 1.0 }; 1025]),
            "must have at most 1024 entries",
        ),
    ] {
        let error = check(&wrong, &shape(traits())).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}
