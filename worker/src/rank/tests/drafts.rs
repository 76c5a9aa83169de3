//! Rows with several draws: each has the bits that a step of its own gives.

use super::*;

const PROMPT: [u32; 3] = [5, 6, 7];

/// A greedy sequence, a drawn one, and one with penalties.
fn draw(slot: u32, position: usize) -> Draw {
    let mut draw = Draw { logprobs: 3, ..greedy_draw(position) };
    let sampling = draw.sampling.get_or_insert_default();
    (sampling.seed, sampling.temperature) = (7, if slot == 0 { 0.0 } else { 1.5 });
    if slot == 2 {
        (sampling.presence_penalty, sampling.repetition_penalty) = (3.0, 1.2);
        draw.prompt_length = PROMPT.len() as u32;
    }
    draw
}

/// The step of three sequences that computes `tokens` of each, from position `start` on, and draws behind all but the
/// first ones.
fn drawn(group: &mut RankGroup, blocks: u32, start: usize, tokens: &[Vec<u32>; 3], draws: usize) -> [Vec<Drawn>; 3] {
    let rows = tokens.iter().zip(0..).map(|(tokens, slot)| {
        let first = start + tokens.len() - draws;
        let mut row = row(slot, tokens, start, &[blocks + 2 * slot, blocks + 2 * slot + 1], After::Draw);
        row.draws = (0..draws).map(|i| draw(slot, first + 1 + i - PROMPT.len())).collect();
        if slot == 2 {
            row.draws.iter_mut().for_each(|draw| draw.kept_history = start as u32);
            row.draws[0].history = tokens[..=tokens.len() - draws].to_vec();
        }
        row
    });
    let results = run(group, rows.collect());
    let drawn: Vec<_> = results.into_iter().map(|row| row.drawn).collect();
    drawn.try_into().expect("three rows")
}

/// Compares rows of one draw with rows that have drafts, right ones and wrong ones.
pub(super) fn check(group: &mut RankGroup, name: &str) {
    let (mut want, mut tokens) = ([(); 3].map(|()| Vec::new()), [(); 3].map(|()| PROMPT.to_vec()));
    let mut start = 0;
    for _ in 0..9 {
        let next = drawn(group, 0, start, &tokens, 1);
        start += tokens[0].len();
        tokens = std::array::from_fn(|i| vec![next[i][0].token.expect("a token")]);
        (0..3).for_each(|i| want[i].extend_from_slice(&next[i]));
    }
    let ids = want.each_ref().map(|drawn| drawn.iter().map(|drawn| drawn.token.expect("a token")).collect::<Vec<_>>());
    let same = |got: [Vec<Drawn>; 3], from: usize, count: usize| {
        for (i, got) in got.iter().enumerate() {
            assert_eq!(got[..count], want[i][from..from + count], "{name}: sequence {i} from its draw {from} on");
        }
    };
    let at = |range: std::ops::Range<usize>| ids.each_ref().map(|ids| ids[range.clone()].to_vec());
    let prompts = [(); 3].map(|()| PROMPT.to_vec());
    same(drawn(group, 6, 0, &prompts, 1), 0, 1);
    same(drawn(group, 6, 3, &at(0..4), 4), 1, 4);
    // Behind a wrong draft, nothing counts.
    let wrong = at(4..6).map(|tokens| vec![tokens[0], tokens[1], tokens[1] ^ 1, 9]);
    same(drawn(group, 6, 7, &wrong, 4), 5, 2);
    same(drawn(group, 6, 9, &at(6..8), 2), 7, 2);
}

#[test]
fn draws_of_one_row_have_the_bits_of_steps_of_their_own() {
    for fixture in fixtures() {
        let mut group = load(&fixture.dir, &f32_options());
        // A caller that never goes back within a slot cannot draft: recurrent.rs does.
        if group.shape().states.is_none() {
            check(&mut group, &fixture.name);
        }
    }
}
