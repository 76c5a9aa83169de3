//! Tests the session with a toy engine of variable latency: timing changes no token, greedy output equals that with
//! masks at every step, and sampled output has the same distribution.

use std::sync::Arc;

use rein_grammar::{Enforcement, Format, Grammars, Matcher, Response, Rules, Tool, ToolChoice, Vocab, by_name};
use rein_proto::splitmix;
use serde_json::json;

use super::*;

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
    compiled(rules).matcher().unwrap()
}

fn compiled(rules: &Rules) -> Compiled {
    let bytes = (0..=255u8).map(|byte| (vec![byte], false));
    let markers = MARKERS.iter().map(|marker| (marker.as_bytes().to_vec(), true));
    let encode = |text: &str| text.bytes().map(u32::from).collect();
    let vocab = Vocab::new(bytes.chain(markers), &[END], Some(Box::new(encode))).unwrap();
    Grammars::new(format(), Arc::new(vocab)).compile(rules).unwrap().unwrap()
}

/// A session in which a stop token never begins a call.
fn plain(matcher: Matcher, always: bool) -> GrammarSession {
    with_call_opening(matcher, &[], always)
}

fn with_call_opening(matcher: Matcher, opening: &[u32], always: bool) -> GrammarSession {
    restricted(Some(matcher), Restrictions::default(), opening, always)
}

fn restricted(matcher: Option<Matcher>, restrictions: Restrictions, opening: &[u32], always: bool) -> GrammarSession {
    let vocab = 256 + MARKERS.len();
    let (call_opening, stop_ids) = (opening.to_vec(), vec![END]);
    GrammarSession::new(super::SessionRules {
        loosened: None,
        matcher,
        canonical: None,
        restrictions,
        call_opening,
        stop_ids,
        vocab,
        always_mask: always,
    })
}

fn weather(choice: ToolChoice) -> Rules {
    let parameters = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city"]});
    Rules {
        tools: vec![Tool { name: "get_weather".into(), parameters: Some(parameters), ..Tool::default() }].into(),
        choice,
        parallel: true,
        enforcement: Enforcement::NamesAndArguments,
        ..Rules::default()
    }
}

fn mix(state: u64, value: u64) -> u64 {
    splitmix::mix(state ^ splitmix::mix(value))
}

fn unit(x: u64) -> f64 {
    (x >> 11) as f64 / (1u64 << 53) as f64
}

/// A model whose draws are a pure function of the tokens before, the seed, and whether a mask applies.
struct ToyModel {
    seed: u64,
    greedy: bool,
    /// Extra weights of a few ids, which make them likely.
    likes: Vec<(u32, f64)>,
}

impl ToyModel {
    fn draw(&self, tokens: &[u32], mask: Option<&[u8]>) -> u32 {
        let state = tokens.iter().fold(self.seed, |state, &id| mix(state, u64::from(id)));
        let weight = |id: u32| {
            let allowed = mask.is_none_or(|mask| mask[id as usize / 8] >> (id % 8) & 1 == 1);
            let liked = self.likes.iter().find(|(liked, _)| *liked == id).map_or(1.0, |(_, weight)| *weight);
            // A greedy model's weights differ at every position. Those of a drawing model do not, so that its draws
            // can be counted.
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

/// Runs until the output ends or has `max` tokens. `ahead(step)` is how many tokens the engine draws per message.
fn run(
    mut session: GrammarSession,
    model: &ToyModel,
    max: usize,
    ahead: impl Fn(usize) -> usize,
) -> (Vec<u32>, GrammarStats) {
    let mut tokens: Vec<u32> = Vec::new();
    let (mut mask, mut hold) = (None, session.always_mask);
    let mut outcome = session.begin(max).unwrap();
    let mut batch: Vec<u32> = Vec::new();
    for step in 0.. {
        tokens.extend(&batch[..outcome.accepted]);
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
                assert_eq!((outcome.accepted, outcome.forced.len()), (batch.len(), 0));
                assert!(!hold, "the engine would wait forever");
            }
        }
        let mut drawn = tokens.clone();
        let count = if hold { 1 } else { ahead(step) };
        for _ in 0..count.min(max - tokens.len()) {
            drawn.push(model.draw(&drawn, mask.take().as_deref()));
        }
        batch = drawn.split_off(tokens.len());
        outcome = session.check(&batch, max - tokens.len()).unwrap();
    }
    (tokens, session.stats())
}

#[test]
fn timing_and_masks_do_not_change_greedy_tokens() {
    let mut ended = 0;
    for (seed, choice) in (0..60).zip([ToolChoice::Required, ToolChoice::Auto, ToolChoice::None].iter().cycle()) {
        let matcher = matcher(&weather(choice.clone()));
        let likes = vec![(END, 1.2), (259, 1.3)];
        let model = ToyModel { seed, greedy: true, likes };
        let opening: &[u32] = if *choice == ToolChoice::Required { &[259] } else { &[] };
        let session = |always| with_call_opening(matcher.clone(), opening, always);
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
        let model = ToyModel { seed, greedy: false, likes: vec![(259, 40.0), (END, 9.0)] };
        let at = |latency: usize| run(plain(matcher.clone(), false), &model, 150, |_| latency);
        let (first, stats) = at(1);
        assert!(stats.refused > 0 && stats.forced > 0 && stats.held > 0, "{stats:?}");
        for latency in [2, 5, 40] {
            assert_eq!(at(latency).0, first, "seed {seed}, latency {latency}");
        }
    }
}

/// Refusing and redrawing has the same distribution as masks at every step: chi-square test over 8,000 draws.
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
            let model = ToyModel { seed: mix(seed, u64::from(always)), greedy: false, likes: likes.clone() };
            let (tokens, _) = run(plain(matcher.clone(), always), &model, 1, |_| 1);
            // The grammar allows blanks before an answer.
            let letter = tokens[0].wrapping_sub(u32::from(b'a')) as usize;
            if let Some(count) = counts.get_mut(letter) {
                *count += 1;
            }
        }
        counts
    };
    // With 7 degrees of freedom, chi-square is above 24.3 with a probability of 0.001.
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
fn a_stop_token_begins_a_call_if_a_call_is_required() {
    let mut session = with_call_opening(matcher(&weather(ToolChoice::Required)), &[259], false);
    session.begin(100).unwrap();
    let outcome = session.check(&[u32::from(b'\n'), END], 100).unwrap();
    assert_eq!((outcome.accepted, outcome.forced.as_slice()), (1, [259].as_slice()));
    assert!(outcome.steering.is_some() && !outcome.ended);
    let mut free = plain(matcher(&weather(ToolChoice::Auto)), false);
    free.begin(100).unwrap();
    let outcome = free.check(&[u32::from(b'h'), END], 100).unwrap();
    assert!(outcome.ended && outcome.accepted == 2);
}

#[test]
fn hold_begins_after_refusals_and_ends() {
    let mut hold = Hold::default();
    for _ in 1..limits::HOLD_REFUSALS {
        hold.refused();
        hold.accepted();
        assert!(!hold.is_active());
    }
    hold.refused();
    assert!(hold.is_active());
    for _ in 1..limits::HOLD_TOKENS {
        hold.accepted();
        assert!(hold.is_active());
    }
    hold.accepted();
    assert!(!hold.is_active());
    for _ in 0..limits::HOLD_WINDOW {
        hold.accepted();
    }
    hold.refused();
    assert!(!hold.is_active(), "old refusals do not count");
}

#[test]
fn a_call_is_forced_where_the_grammar_allows_nothing_else() {
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false);
    assert!(session.begin(100).unwrap().forced.is_empty());
    // The engine draws the beginning of a call; the grammar forces everything up to the first argument.
    let begun = [259, 261, u32::from(b'f')];
    let outcome = session.check(&begun, 100).unwrap();
    let text: Vec<u8> = outcome.forced.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
    assert!(text.starts_with(b"unctions.get_weather:0"), "{:?}", String::from_utf8_lossy(&text));
    // Draws beyond it are accepted while they agree, then overruled without counting as refused.
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false);
    session.begin(100).unwrap();
    let overruled = session.check(&[&begun[..], &[u32::from(b'u'), u32::from(b'z')]].concat(), 100).unwrap();
    assert_eq!(overruled.accepted, 4);
    assert_eq!(overruled.forced, outcome.forced[1..]);
    assert_eq!(session.stats().refused, 0);
    // No more tokens are forced than fit.
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false);
    session.begin(6).unwrap();
    let outcome = session.check(&begun, 6).unwrap();
    assert_eq!(outcome.forced.len(), 3);
}

#[test]
fn decisions_report_the_origin_of_each_token() {
    let z = u32::from(b'z');
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false).with_decisions();
    session.begin(100).unwrap();
    assert_eq!(session.check(&[z], 100).unwrap().accepted, 0);
    assert_eq!(session.take_decisions(), [], "no token was accepted yet");
    let forced = session.check(&[259], 100).unwrap().forced;
    let decisions = session.take_decisions();
    let refused = vec![Refusal { position: 0, id: z }];
    assert_eq!(decisions[0], TokenDecision { id: 259, origin: TokenOrigin::Masked, refused });
    let rest: Vec<_> =
        forced.iter().map(|&id| TokenDecision { id, origin: TokenOrigin::Forced, refused: vec![] }).collect();
    assert_eq!(decisions[1..], rest);
    // Without a refusal the token is drawn without a mask.
    let mut session = plain(matcher(&weather(ToolChoice::Required)), false).with_decisions();
    session.begin(100).unwrap();
    session.check(&[259], 100).unwrap();
    assert_eq!(session.take_decisions()[0], TokenDecision { id: 259, origin: TokenOrigin::Drawn, refused: vec![] });
    assert_eq!(session.take_decisions(), [], "each decision is reported once");
}

#[test]
fn decisions_are_recorded_on_request_and_up_to_a_limit() {
    let mut session = restricted(None, Restrictions::default(), &[], false);
    session.check(&[1, 2], 100).unwrap();
    assert_eq!(session.take_decisions(), []);
    let mut session = restricted(None, Restrictions::default(), &[], false).with_decisions();
    let most = limits::MAX_REPORTED_DECISIONS;
    session.check(&vec![1; most + 1], most + 1).unwrap();
    assert_eq!(session.take_decisions().len(), most);
    session.check(&[1], 1).unwrap();
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
            // Never reasons: that would only make the output longer.
            let model = ToyModel { seed, greedy: true, likes: vec![(257, 0.0), (END, 1.5)] };
            let (tokens, stats) = run(plain(matcher.clone(), always), &model, 40, |_| 3);
            assert_eq!(tokens.last(), Some(&END), "{response:?}, seed {seed}: {tokens:?}");
            assert!(stats.refused <= 3, "{response:?}: {stats:?}");
        }
    }
}

#[test]
fn consecutive_refusals_are_bounded() {
    let rules = Rules { response: Some(Response::Regex("a".into())), parallel: true, ..Rules::default() };
    let mut session = plain(matcher(&rules), false);
    session.begin(100).unwrap();
    // The engine ignores the mask.
    let refused = (1..).find_map(|draws| session.check(&[u32::from(b'z')], 100).err().map(|error| (draws, error)));
    let bound = limits::REFUSALS_IN_A_ROW;
    assert_eq!(refused, Some((bound, MatcherError::NoProgress(bound).into())));
}

#[test]
fn dead_ends_and_limits_are_the_clients_errors_and_defects_are_internal() {
    use crate::error::{Error, ErrorKind};
    let seen = |error| {
        let error = Error::from_matcher(error);
        (error.kind, error.code)
    };
    assert_eq!(seen(MatcherError::DeadEnd), (ErrorKind::Invalid, Some("grammar_dead_end")));
    assert_eq!(seen(MatcherError::Limit("x".into())), (ErrorKind::Invalid, Some("grammar_limit_exceeded")));
    assert_eq!(seen(MatcherError::Internal("x".into())), (ErrorKind::Internal, Some("grammar_failed")));
    assert_eq!(seen(MatcherError::NoProgress(8)), (ErrorKind::Internal, Some("grammar_failed")));
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
        let outcome = session.check(&[byte('x'), byte('c'), byte('a'), byte('c'), byte('z')], 100).unwrap();
        assert_eq!((outcome.accepted, outcome.forced.len()), (3, 0));
        let mask = outcome.steering.unwrap().mask.unwrap();
        let allowed = |id: u32| mask[id as usize / 8] >> (id % 8) & 1 == 1;
        assert!(!allowed(byte('b')) && !allowed(byte('c')) && allowed(byte('a')) && allowed(byte('d')) && allowed(END));
        assert_eq!(mask.len(), (256 + MARKERS.len()).div_ceil(8));
        // Other draws are accepted.
        assert_eq!(session.check(&[byte('a'), byte('d'), byte('c')], 100).unwrap().accepted, 3);
    }
}

#[test]
fn with_allowed_tokens_every_draw_is_masked_and_only_an_allowed_stop_token_ends_the_output() {
    let mut session = restricted(None, Restrictions::new(&[byte('a')], vec![], 300), &[], true);
    let mask = session.begin(100).unwrap().steering.unwrap().mask.unwrap();
    assert_eq!(mask.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_eq!(session.check(&[byte('a')], 100).unwrap().accepted, 1);
    let refused = session.check(&[END], 100).unwrap();
    assert_eq!((refused.accepted, refused.ended), (0, false));
    // The only allowed token is one that the grammar refuses.
    let none = Restrictions::new(&[END], vec![], 300);
    let mut session = restricted(Some(matcher(&weather(ToolChoice::Required))), none, &[], true);
    assert_eq!(session.begin(100).map(|_| ()), Err(GrammarSessionError::NothingLeft));
}

#[test]
fn reasoning_is_closed_where_the_grammar_allows_it() {
    let think = 256 + MARKERS.iter().position(|marker| *marker == "</think>").unwrap() as u32;
    let rules = rein_grammar::Rules { start: rein_grammar::Region::Reasoning, ..weather(ToolChoice::Auto) };
    for matcher in [None, Some(matcher(&rules))] {
        let bound = matcher.is_some();
        let mut session = restricted(matcher, Restrictions::default(), &[], false);
        session.begin(100).unwrap();
        // The first byte of a character.
        session.check(&[byte('w'), 0xC3], 100).unwrap();
        assert_eq!(session.force(&[think], 100).unwrap().is_none(), bound);
        if bound {
            session.check(&[0xA9], 100).unwrap();
            assert!(session.force(&[think], 0).unwrap().is_none(), "the tokens do not fit");
            let outcome = session.force(&[think], 100).unwrap().unwrap();
            assert_eq!((outcome.accepted, outcome.forced.as_slice()), (0, [think].as_slice()));
            let steering = outcome.steering.unwrap();
            assert_eq!((steering.keep, steering.append, steering.mask), (3, vec![think], None));
        }
        assert!(session.check(&[byte('t'), END], 100).unwrap().accepted == 2);
    }
}

fn marker(text: &str) -> u32 {
    256 + MARKERS.iter().position(|marker| *marker == text).unwrap() as u32
}

/// A limit at run time: the rest goes on without the constraints of strings, once, and the limit is named. A strict
/// schema has no such rest.
#[test]
fn a_limit_relaxes_the_rest_of_the_output() {
    let schema = |strict| Response::JsonSchema { schema: json!({"type": "string", "maxLength": 2}), strict };
    for strict in [false, true] {
        let rules = Rules { response: Some(schema(strict)), ..Rules::default() };
        let compiled = compiled(&rules);
        let mut session = plain(compiled.matcher().unwrap(), false);
        session.loosened = Some(compiled);
        let text = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        assert_eq!(session.check(&text("\"ab"), 100).unwrap().accepted, 3);
        assert_eq!(session.relaxed(), "");
        let fails = std::cell::Cell::new(true);
        let asked = session.within_limits(|matcher| match fails.replace(false) {
            true => Err(MatcherError::Limit("too many states".into())),
            false => matcher.accept(u32::from(b'c')),
        });
        if strict {
            assert!(asked.is_err() && session.relaxed().is_empty());
            continue;
        }
        assert_eq!(asked.unwrap(), Some(true), "the length is relaxed");
        assert_eq!(session.relaxed(), "too many states");
        assert_eq!(session.check(&text("d\""), 100).unwrap().accepted, 2);
        // There is nothing left to relax.
        fails.set(true);
        assert!(
            session
                .within_limits(|_| match fails.get() {
                    true => Err::<(), _>(MatcherError::Limit("again".into())),
                    false => Ok(()),
                })
                .is_err()
        );
    }
}

fn replacing(rules: &Rules) -> GrammarSession {
    let compiled = compiled(rules);
    GrammarSession::new(super::SessionRules {
        loosened: None,
        matcher: Some(compiled.matcher().unwrap()),
        canonical: Some(compiled),
        restrictions: Restrictions::default(),
        call_opening: Vec::new(),
        stop_ids: vec![END],
        vocab: 256 + MARKERS.len(),
        always_mask: false,
    })
}

/// Blanks, reasoning and short forms are accepted where the model draws them, and never offered in place of a refused
/// draw.
#[test]
fn a_refused_draw_is_replaced_by_what_the_format_writes() {
    let section = marker("<|tool_calls_section_begin|>");
    let text = |ids: &[u32]| -> String {
        let shown = |id: &u32| match *id {
            id if id < 256 => char::from(id as u8).to_string(),
            id => MARKERS[id as usize - 256].to_owned(),
        };
        ids.iter().map(shown).collect()
    };
    let demanded = weather(ToolChoice::Required);
    let mut session = replacing(&demanded);
    let outcome = session.check(&[u32::from(b'I')], 200).unwrap();
    assert_eq!(outcome.accepted, 0);
    assert_eq!(
        text(&outcome.forced),
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"
    );

    // The template has reasoning: both ways are left to the model.
    let mut session = replacing(&Rules { reasons: true, ..demanded.clone() });
    let outcome = session.check(&[u32::from(b'I')], 200).unwrap();
    let mask = outcome.steering.unwrap().mask.unwrap();
    let allowed: Vec<u32> = (0..VOCAB).filter(|id| mask[*id as usize / 8] >> (id % 8) & 1 == 1).collect();
    assert_eq!((outcome.forced, allowed), (Vec::new(), vec![marker("<think>"), section]));

    // What the model drew by itself is followed, and blanks are left out.
    let mut session = replacing(&demanded);
    let own =
        [vec![u32::from(b'\n'), section, marker("<|tool_call_begin|>")], bytes("functions.get_weather:0")].concat();
    let outcome = session.check(&own, 200).unwrap();
    assert_eq!(outcome.accepted, own.len());
    let rest = [vec![marker("<|tool_call_argument_begin|>")], bytes("{ \t \"days\" : 3 } ")].concat();
    let outcome = session.check(&rest, 200).unwrap();
    // "}" is refused, because the city is missing. No more blanks are offered.
    assert_eq!(text(&rest[..outcome.accepted]), "<|tool_call_argument_begin|>{ \t \"days\" : 3 ");
    let mask = outcome.steering.unwrap().mask.unwrap();
    let allowed: Vec<u32> = (0..VOCAB).filter(|id| mask[*id as usize / 8] >> (id % 8) & 1 == 1).collect();
    assert_eq!(text(&allowed), ",");
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// A grammar whose cost shows only while the answer is written goes on without the constraints of strings; a strict one
/// ends with its limit.
#[test]
fn a_limit_of_the_grammar_loosens_it_unless_it_is_strict() {
    let text = json!({"type": "string", "maxLength": 900, "pattern": "^(?:\\S+\\s+){0,89}\\S+$"});
    let schema = json!({"type": "object", "properties": {"a": text, "b": {"type": "integer"}}, "required": ["a", "b"],
        "additionalProperties": false});
    let answer = json!({"a": "some words and more ".repeat(20).trim(), "b": 1}).to_string();
    let drawn: Vec<u32> = answer.bytes().map(u32::from).chain([END]).collect();
    for strict in [false, true] {
        let response = Some(rein_grammar::Response::JsonSchema { schema: schema.clone(), strict });
        let compiled = compiled(&Rules { response, ..Rules::default() });
        let mut session = GrammarSession::new(super::SessionRules {
            loosened: Some(compiled.clone()),
            matcher: Some(compiled.matcher().unwrap()),
            canonical: Some(compiled),
            restrictions: Restrictions::default(),
            call_opening: Vec::new(),
            stop_ids: vec![END],
            vocab: 256 + MARKERS.len(),
            always_mask: false,
        });
        let mut at = 0;
        let ended = loop {
            match session.check(&drawn[at..(at + 1).min(drawn.len())], 1000) {
                Ok(outcome) if outcome.ended => break Ok(()),
                Ok(outcome) => at += outcome.accepted + outcome.forced.len(),
                Err(error) => break Err(error),
            }
        };
        match strict {
            false => assert_eq!((at, ended), (drawn.len() - 1, Ok(())), "{answer}"),
            true => assert!(matches!(ended, Err(GrammarSessionError::Matcher(MatcherError::Limit(_)))), "{ended:?}"),
        }
    }
}
