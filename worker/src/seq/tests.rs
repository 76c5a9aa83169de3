use super::*;

fn seq(sampling: Sampling, limits: Limits) -> Seq {
    let (sampling, limits) = (Some(sampling), Some(limits));
    Seq::new(
        Start { prompt: vec![1, 2, 3], resume: vec![4, 5], sampling, limits, logprobs: 3, ..Start::default() },
        None,
    )
}

fn neutral() -> Sampling {
    Sampling { repetition_penalty: 1.0, ..Sampling::default() }
}

fn next_draw(seq: &mut Seq) -> Draw {
    seq.draws(0).remove(0)
}

#[test]
fn histories_are_sent_only_with_a_penalty_and_only_what_is_new() {
    let plain = next_draw(&mut seq(neutral(), Limits::default()));
    assert_eq!((plain.position, plain.logprobs), (2, 3));
    assert!(plain.history.is_empty());
    let mut seq = seq(Sampling { presence_penalty: 0.5, ..neutral() }, Limits { max_tokens: 9, ..Limits::default() });
    let mut blocks = BlockPool::new(4, 4, true, None);
    let told = |seq: &mut Seq| {
        let draw = next_draw(seq);
        assert_eq!(draw.prompt_length, 3);
        (draw.kept_history, draw.history)
    };
    assert_eq!(told(&mut seq), (0, vec![1, 2, 3, 4, 5]));
    seq.push(6);
    assert_eq!(told(&mut seq), (5, vec![6]));
    // A token that is under way is added where it is drawn.
    seq.ahead.draws = 1;
    assert_eq!(told(&mut seq), (6, vec![]));
    let back = Steer { epoch: 1, keep: 2, append: vec![8], ..Steer::default() };
    seq.steer(back, 100, &mut blocks);
    assert_eq!(told(&mut seq), (5, vec![8]));
}

#[test]
fn stop_tokens_are_banned_before_min_tokens_unless_the_mask_leaves_only_them() {
    let limits = Limits { max_tokens: 9, min_tokens: 3, stop_token_ids: vec![7], ignore_eos: false };
    let mut seq = seq(neutral(), limits);
    let mut blocks = BlockPool::new(4, 4, true, None);
    assert_eq!(next_draw(&mut seq).banned, [7]);
    let steer = |epoch, keep, bits: u8| Steer { epoch, keep, mask: Some(vec![bits].into()), ..Steer::default() };
    seq.steer(steer(1, 2, 0b1000_0001), 100, &mut blocks);
    assert_eq!(next_draw(&mut seq).banned, [7]);
    seq.steer(steer(2, 2, 0b1000_0000), 100, &mut blocks);
    assert!(next_draw(&mut seq).banned.is_empty());
    seq.push(7);
    assert_eq!((next_draw(&mut seq).mask, next_draw(&mut seq).banned), (None, vec![]));
}

#[test]
fn draws_behind_drafts_have_the_parameters_of_their_positions() {
    let limits = Limits { max_tokens: 9, min_tokens: 4, stop_token_ids: vec![7], ignore_eos: false };
    let mut seq = seq(Sampling { presence_penalty: 0.5, ..neutral() }, limits);
    let draws = seq.draws(2);
    let of = |draw: &Draw| (draw.position, draw.banned.clone(), draw.kept_history, draw.history.len());
    assert_eq!(draws.iter().map(of).collect::<Vec<_>>(), [(2, vec![7], 0, 5), (3, vec![7], 0, 0), (4, vec![], 0, 0)]);
    // What was drafted may be wrong, so it is told again.
    seq.push(6);
    assert_eq!(of(&seq.draws(0)[0]), (3, vec![7], 5, 1));
}
