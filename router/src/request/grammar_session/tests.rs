//! A toy engine of any latency, to hold the guide to its promises: same tokens whatever the timing, same tokens as with
//! masks at every step when greedy, same distribution when not.

use std::sync::Arc;

use rein_grammar::{Enforcement, Format, Grammars, Matcher, Response, Rules, Tool, ToolChoice, Vocab, by_name};
use serde_json::json;

use super::*;
use crate::hash;

const MARKERS: [&str; 8] = [
    "<|im_end|>",
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
];
const END: u32 = 256;
const VOCAB: u32 = 256 + MARKERS.len() as u32;

fn format() -> &'static Format {
    by_name("kimi_k2").unwrap()
}

fn matcher(rules: &Rules) -> Matcher {
    let bytes = (0..=255u8).map(|byte| (vec![byte], false));
    let markers = MARKERS.iter().map(|marker| (marker.as_bytes().to_vec(), true));
    let encode = |text: &str| text.bytes().map(u32::from).collect();
    let vocab = Vocab::new(bytes.chain(markers), &[END], Some(Box::new(encode))).unwrap();
    Grammars::new(format(), Arc::new(vocab)).compile(rules).unwrap().unwrap().matcher().unwrap()
}

/// Without an opening for calls.
fn plain(matcher: Matcher, always: bool) -> GrammarSession {
    opened(matcher, &[], always)
}

fn opened(matcher: Matcher, opening: &[u32], always: bool) -> GrammarSession {
    restricted(Some(matcher), Restrictions::default(), opening, always)
}

fn restricted(matcher: Option<Matcher>, restrictions: Restrictions, opening: &[u32], always: bool) -> GrammarSession {
    let vocab = 256 + MARKERS.len();
    let (opening, stop_ids) = (opening.to_vec(), vec![END]);
    GrammarSession::new(super::SessionRules { matcher, restrictions, opening, stop_ids, vocab, always })
}

fn weather(choice: ToolChoice) -> Rules {
    let parameters = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city"]});
    Rules {
        tools: vec![Tool { name: "get_weather".into(), parameters: Some(parameters), strict: false }],
        choice,
        parallel: true,
        enforcement: Enforcement::NamesAndArguments,
        ..Rules::default()
    }
}

fn mix(state: u64, value: u64) -> u64 {
    hash::mix(state ^ hash::mix(value))
}

fn unit(x: u64) -> f64 {
    (x >> 11) as f64 / (1u64 << 53) as f64
}

/// A model: what it draws is a pure function of the tokens before, the seed, and whether a mask applies.
struct ServedModel {
    seed: u64,
    greedy: bool,
    /// Extra weight of a few ids, so that a draw can be likely.
    likes: Vec<(u32, f64)>,
}

impl ServedModel {
    fn draw(&self, tokens: &[u32], mask: Option<&[u8]>) -> u32 {
        let state = tokens.iter().fold(self.seed, |state, &id| mix(state, u64::from(id)));
        let weight = |id: u32| {
            let allowed = mask.is_none_or(|mask| mask[id as usize / 8] >> (id % 8) & 1 == 1);
            let liked = self.likes.iter().find(|(liked, _)| *liked == id).map_or(1.0, |(_, weight)| *weight);
            // A greedy model's preferences differ at every position; a drawing one's do not, so that they can be
            // counted.
            let base = if self.greedy { unit(mix(state, u64::from(id) + 7)) } else { 1.0 };
            if allowed { base * liked } else { 0.0 }
        };
        let weights: Vec<f64> = (0..VOCAB).map(weight).collect();
        if self.greedy {
            return (0..VOCAB).max_by(|&a, &b| weights[a as usize].total_cmp(&weights[b as usize])).unwrap();
        }
        let mut left = unit(mix(state, u64::from(mask.is_some()))) * weights.iter().sum::<f64>();
        let drawn = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        drawn.unwrap_or(VOCAB as usize - 1) as u32
    }
}

/// Runs until the output ends or `max` tokens stand. `ahead(step)`: tokens that the engine draws before it is heard.
fn run(
    mut session: GrammarSession,
    model: &ServedModel,
    max: usize,
    ahead: impl Fn(usize) -> usize,
) -> (Vec<u32>, GrammarStats) {
    let mut tokens: Vec<u32> = Vec::new();
    let (mut mask, mut hold) = (None, session.always);
    let mut outcome = session.begin(max).unwrap();
    let mut batch: Vec<u32> = Vec::new();
    for step in 0.. {
        tokens.extend(&batch[..outcome.stand]);
        let keep = tokens.len();
        tokens.extend(&outcome.forced);
        if outcome.ended || tokens.len() >= max {
            break;
        }
        match outcome.steering.take() {
            Some(steering) => {
                assert_eq!((steering.keep, &steering.append), (keep, &outcome.forced));
                (mask, hold) = (steering.mask, steering.hold);
            }
            None => {
                assert_eq!((outcome.stand, outcome.forced.len()), (batch.len(), 0));
                assert!(!hold, "the engine would wait for ever");
            }
        }
        let mut drawn = tokens.clone();
        let count = if hold { 1 } else { ahead(step) };
        for _ in 0..count.min(max - tokens.len()) {
            drawn.push(model.draw(&drawn, mask.take().as_deref()));
        }
        batch = drawn.split_off(tokens.len());
        outcome = session.take(&batch, max - tokens.len()).unwrap();
    }
    (tokens, session.stats())
}

#[test]
fn timing_and_masks_do_not_change_greedy_tokens() {
    let mut ended = 0;
    for (seed, choice) in (0..60).zip([ToolChoice::Required, ToolChoice::Auto, ToolChoice::None].iter().cycle()) {
        let matcher = matcher(&weather(choice.clone()));
        let likes = vec![(END, 1.2), (259, 1.3)];
        let model = ServedModel { seed, greedy: true, likes };
        let opening: &[u32] = if *choice == ToolChoice::Required { &[259] } else { &[] };
        let session = |always| opened(matcher.clone(), opening, always);
        let (masked, stats) = run(session(true), &model, 120, |_| 1);
        let opened = u64::from(!opening.is_empty());
        assert!(stats.refused <= opened, "nothing but an early end is refused under masks");
        for latency in [1, 2, 3, 7, 50] {
            let (tokens, _) = run(session(false), &model, 120, |step| 1 + (mix(seed, step as u64) as usize) % latency);
            assert_eq!(tokens, masked, "seed {seed}, {choice:?}, latency {latency}");
        }
        ended += usize::from(masked.len() < 120);
    }
    assert!(ended > 20, "{ended} of 60 ended");
}

#[test]
fn timing_does_not_change_drawn_tokens() {
    for seed in 0..60 {
        let matcher = matcher(&weather(ToolChoice::Required));
        let model = ServedModel { seed, greedy: false, likes: vec![(259, 40.0), (END, 9.0)] };
        let at = |latency: usize| run(plain(matcher.clone(), false), &model, 150, |_| latency);
        let (first, stats) = at(1);
        assert!(stats.refused > 0 && stats.forced > 0 && stats.held > 0, "{stats:?}");
        for latency in [2, 5, 40] {
            assert_eq!(at(latency).0, first, "seed {seed}, latency {latency}");
        }
    }
}

/// The second token after an accepted first one is drawn as if a mask had been there all along: chi-square over 8,000
/// draws.
#[test]
fn refusing_and_redrawing_is_masked_sampling() {
    let rules = Rules { response: Some(Response::Regex("[a-h][0-9]?x".into())), parallel: true, ..Rules::default() };
    let matcher = matcher(&rules);
    let likes: Vec<(u32, f64)> =
        (b'a'..=b'h').zip(1..).map(|(byte, weight)| (u32::from(byte), f64::from(weight) * 12.0)).collect();
    let draws = 8_000;
    let count = |always: bool| {
        let mut counts = [0u32; 8];
        for seed in 0..draws {
            let model = ServedModel { seed: mix(seed, u64::from(always)), greedy: false, likes: likes.clone() };
            let (tokens, _) = run(plain(matcher.clone(), always), &model, 1, |_| 1);
            // Blanks before an answer are allowed, too.
            let letter = tokens[0].wrapping_sub(u32::from(b'a')) as usize;
            if let Some(count) = counts.get_mut(letter) {
                *count += 1;
            }
        }
        counts
    };
    // 7 degrees of freedom: above 24.3 once in a thousand.
    for counts in [count(false), count(true)] {
        let draws: u32 = counts.iter().sum();
        assert!(draws > 7_000, "{counts:?}");
        let chi: f64 = counts
            .iter()
            .zip(1..)
            .map(|(&seen, weight)| {
                let expected = f64::from(draws) * f64::from(weight) / 36.0;
                (f64::from(seen) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi < 24.3, "{chi} from {counts:?}");
    }
}

#[test]
fn a_model_that_wants_to_end_but_must_call_opens_a_call() {
    let mut session = opened(matcher(&weather(ToolChoice::Required)), &[259], false);
    session.begin(100).unwrap();
    let outcome = session.take(&[u32::from(b'\n'), END], 100).unwrap();
    assert_eq!((outcome.stand, &outcome.forced[..2]), (1, [259, 261].as_slice()));
    assert!(outcome.steering.is_some() && !outcome.ended);
    let mut free = plain(matcher(&weather(ToolChoice::Auto)), false);
    free.begin(100).unwrap();
    let outcome = free.take(&[u32::from(b'h'), END], 100).unwrap();
    assert!(outcome.ended && outcome.stand == 2);
}

#[test]
fn holding_begins_after_refusals_and_lets_go() {
    let mut hold = Hold::default();
    for _ in 1..limits::HOLD_REFUSALS {
        hold.refused();
        hold.accepted();
        assert!(!hold.on());
    }
    hold.refused();
    assert!(hold.on());
    for _ in 1..limits::HOLD_TOKENS {
        hold.accepted();
        assert!(hold.on());
    }
    hold.accepted();
    assert!(!hold.on());
    for _ in 0..limits::HOLD_WINDOW {
        hold.accepted();
    }
    hold.refused();
    assert!(!hold.on(), "what is long ago does not count");
}

#[test]
fn a_call_is_forced_where_nothing_else_can_come() {
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false);
    assert!(session.begin(100).unwrap().forced.is_empty());
    // The engine opens the section; the rest up to the first argument is the grammar's.
    let outcome = session.take(&[259], 100).unwrap();
    let text: Vec<u8> = outcome.forced.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
    assert!(text.starts_with(b"functions.get_weather:0"), "{:?}", String::from_utf8_lossy(&text));
    assert_eq!(outcome.forced[0], 261);
    // Where it drew on, what agrees stands and the rest is overruled, without counting against it.
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false);
    session.begin(100).unwrap();
    let overruled = session.take(&[259, 261, u32::from(b'f'), u32::from(b'z')], 100).unwrap();
    assert_eq!(overruled.stand, 3);
    assert_eq!(overruled.forced, outcome.forced[2..]);
    assert_eq!(session.stats().refused, 0);
    // No room: no more than that.
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false);
    session.begin(4).unwrap();
    let outcome = session.take(&[259], 4).unwrap();
    assert_eq!(outcome.forced.len(), 3);
}

#[test]
fn decisions_tell_how_each_token_came_about() {
    let z = u32::from(b'z');
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false).with_decisions();
    session.begin(100).unwrap();
    assert_eq!(session.take(&[z], 100).unwrap().stand, 0);
    assert_eq!(session.take_decisions(), [], "nothing stands yet");
    let forced = session.take(&[259], 100).unwrap().forced;
    let decisions = session.take_decisions();
    let refused = vec![Refusal { position: 0, id: z }];
    assert_eq!(decisions[0], TokenDecision { id: 259, origin: TokenOrigin::Masked, refused });
    let rest: Vec<_> =
        forced.iter().map(|&id| TokenDecision { id, origin: TokenOrigin::Forced, refused: vec![] }).collect();
    assert_eq!(decisions[1..], rest);
    // Without a refusal the token is drawn without a mask.
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false).with_decisions();
    session.begin(100).unwrap();
    session.take(&[259], 100).unwrap();
    assert_eq!(session.take_decisions()[0], TokenDecision { id: 259, origin: TokenOrigin::Drawn, refused: vec![] });
    assert_eq!(session.take_decisions(), [], "each decision is told once");
}

#[test]
fn decisions_are_recorded_only_where_asked_and_up_to_a_limit() {
    let mut session = restricted(None, Restrictions::default(), &[], false);
    session.take(&[1, 2], 100).unwrap();
    assert_eq!(session.take_decisions(), []);
    let mut session = restricted(None, Restrictions::default(), &[], false).with_decisions();
    let most = limits::DECISIONS_TOLD;
    session.take(&vec![1; most + 1], most + 1).unwrap();
    assert_eq!(session.take_decisions().len(), most);
    session.take(&[1], 1).unwrap();
    assert_eq!(session.take_decisions(), []);
}

#[test]
fn a_stop_token_that_a_grammar_names_ends_the_output() {
    let token = json!({"type": "token", "token": "<|im_end|>"});
    let tag = json!({"type": "tag", "begin": "ab", "content": token, "end": "a"});
    let [token, tag] = [token, tag].map(|format| json!({"type": "structural_tag", "format": format}));
    for response in [
        Response::Lark("start: <|im_end|>".into()),
        Response::Lark(format!("start: <[{END}]>")),
        Response::Lark("start: \"a\" <|im_end|> \"b\"".into()),
        Response::Lark("start: \"a\" \"b\" <|im_end|>".into()),
        Response::StructuralTag(token),
        Response::StructuralTag(tag),
    ] {
        let rules = Rules { response: Some(response.clone()), parallel: true, ..Rules::default() };
        let matcher = matcher(&rules);
        for (seed, always) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
            // It never reasons, which would only be longer.
            let model = ServedModel { seed, greedy: true, likes: vec![(257, 0.0), (END, 1.5)] };
            let (tokens, stats) = run(plain(matcher.clone(), always), &model, 40, |_| 3);
            assert_eq!(tokens.last(), Some(&END), "{response:?}, seed {seed}: {tokens:?}");
            assert!(stats.refused <= 3, "{response:?}: {stats:?}");
        }
    }
}

#[test]
fn refusals_at_one_place_are_bounded() {
    let rules = Rules { response: Some(Response::Regex("a".into())), parallel: true, ..Rules::default() };
    let mut session = plain(matcher(&rules), false);
    session.begin(100).unwrap();
    // An engine that disregards the mask.
    let refused = (1..).find_map(|draws| session.take(&[u32::from(b'z')], 100).err().map(|error| (draws, error)));
    let bound = limits::REFUSALS_IN_A_ROW;
    assert_eq!(refused, Some((bound, MatcherError::NoProgress(bound).into())));
}

#[test]
fn what_a_grammar_allows_no_more_is_the_clients_error_and_a_defect_is_not() {
    use crate::error::{Error, Kind};
    let seen = |error| {
        let error = Error::from_matcher(error);
        (error.kind, error.code)
    };
    assert_eq!(seen(MatcherError::DeadEnd), (Kind::Invalid, Some("grammar_dead_end")));
    assert_eq!(seen(MatcherError::Limit("x".into())), (Kind::Invalid, Some("grammar_limit_exceeded")));
    assert_eq!(seen(MatcherError::Internal("x".into())), (Kind::Internal, Some("grammar_failed")));
    assert_eq!(seen(MatcherError::NoProgress(8)), (Kind::Internal, Some("grammar_failed")));
}

fn byte(c: char) -> u32 {
    c as u32
}

#[test]
fn restricted_tokens_are_refused_with_and_without_a_grammar() {
    let words = vec![vec![byte('b')], vec![byte('a'), byte('c')]];
    for matcher in [None, Some(matcher(&weather(ToolChoice::Auto)))] {
        let mut session = restricted(matcher, Restrictions::new(&[], words.clone(), 300), &[], false);
        session.begin(100).unwrap();
        let outcome = session.take(&[byte('x'), byte('c'), byte('a'), byte('c'), byte('z')], 100).unwrap();
        assert_eq!((outcome.stand, outcome.forced.len()), (3, 0));
        let mask = outcome.steering.unwrap().mask.unwrap();
        let allowed = |id: u32| mask[id as usize / 8] >> (id % 8) & 1 == 1;
        assert!(!allowed(byte('b')) && !allowed(byte('c')) && allowed(byte('a')) && allowed(byte('d')) && allowed(END));
        assert_eq!(mask.len(), (256 + MARKERS.len()).div_ceil(8));
        // What is drawn instead goes on.
        assert_eq!(session.take(&[byte('a'), byte('d'), byte('c')], 100).unwrap().stand, 3);
    }
}

#[test]
fn allowed_tokens_are_drawn_under_masks_and_end_only_where_the_end_is_one_of_them() {
    let mut session = restricted(None, Restrictions::new(&[byte('a')], vec![], 300), &[], true);
    let mask = session.begin(100).unwrap().steering.unwrap().mask.unwrap();
    assert_eq!(mask.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_eq!(session.take(&[byte('a')], 100).unwrap().stand, 1);
    let refused = session.take(&[END], 100).unwrap();
    assert_eq!((refused.stand, refused.ended), (0, false));
    // Nothing that the grammar allows is allowed.
    let none = Restrictions::new(&[END], vec![], 300);
    let mut session = restricted(Some(matcher(&weather(ToolChoice::Required))), none, &[], true);
    assert_eq!(session.begin(100).map(|_| ()), Err(GrammarSessionError::NothingLeft));
}

#[test]
fn reasoning_is_ended_where_the_grammar_lets_it() {
    let think = 256 + MARKERS.iter().position(|marker| *marker == "</think>").unwrap() as u32;
    let rules = rein_grammar::Rules { start: rein_grammar::Region::Reasoning, ..weather(ToolChoice::Auto) };
    for matcher in [None, Some(matcher(&rules))] {
        let bound = matcher.is_some();
        let mut session = restricted(matcher, Restrictions::default(), &[], false);
        session.begin(100).unwrap();
        // The first byte of a character.
        session.take(&[byte('w'), 0xC3], 100).unwrap();
        assert_eq!(session.force(&[think], 100).unwrap().is_none(), bound);
        if bound {
            session.take(&[0xA9], 100).unwrap();
            assert!(session.force(&[think], 0).unwrap().is_none(), "there is no room for it");
            let outcome = session.force(&[think], 100).unwrap().unwrap();
            assert_eq!((outcome.stand, outcome.forced.as_slice()), (0, [think].as_slice()));
            let steering = outcome.steering.unwrap();
            assert_eq!((steering.keep, steering.append, steering.mask), (3, vec![think], None));
        }
        assert!(session.take(&[byte('t'), END], 100).unwrap().stand == 2);
    }
}
