use super::*;

fn row(slot: u32, tokens: &[u32], start: u32, draw: Option<Draw>) -> Row {
    let after = if draw.is_some() { After::Draw } else { After::Stash };
    let blocks = vec![slot * 2, slot * 2 + 1];
    let draws = draw.into_iter().collect();
    Row { slot, tokens: tokens.to_vec(), start, blocks, after: after.into(), draws, score: -1, ..Row::default() }
}

fn step(rows: Vec<Row>) -> Step {
    Step { rows, ..Step::default() }
}

fn draw() -> Option<Draw> {
    Some(Draw { logprobs: -1, ..Draw::default() })
}

#[test]
fn tokens_depend_only_on_earlier_tokens() {
    let mut sim = Sim::new(SimOptions::default());
    let mut token = |rows| sim.execute(step(rows)).expect("executed").rows.pop().and_then(|row| row.token());
    let whole = token(vec![row(0, &[1, 2, 3], 0, draw())]);
    assert!(whole.is_some());
    // In two chunks, beside another sequence.
    let other = token(vec![row(1, &[1, 2], 0, None), row(2, &[9], 0, draw())]);
    assert_eq!(token(vec![row(2, &[9], 0, draw())]), other);
    assert_eq!(token(vec![row(1, &[3], 2, draw())]), whole);
    assert_ne!(token(vec![row(1, &[4], 2, draw())]), whole);
    assert_eq!(token(vec![row(1, &[3], 2, None)]), None);
    assert_eq!(token(vec![row(1, &[], 3, draw())]), whole);
    let error = sim.execute(step(vec![row(1, &[], 3, draw())])).expect_err("the stash is used up");
    assert!(error.to_string().contains("stash"), "{error}");
}

#[test]
fn a_step_takes_what_its_rows_cost() {
    let costs = SimOptions { step_base_us: 100, per_prefill_token_us: 10, per_decode_row_us: 1, ..Default::default() };
    let sim = Sim::new(costs.clone());
    let rows = vec![row(0, &[1; 20], 0, None), row(1, &[1], 5, draw()), row(2, &[], 5, draw())];
    assert_eq!(sim.cost(&step(rows)), Duration::from_micros(100 + 200 + 1));
    assert_eq!(sim.cost(&step(vec![row(2, &[], 5, draw())])), Duration::ZERO, "what was computed before");
    let mut slow = Sim::new(SimOptions { step_base_us: 3000, ..costs });
    let begin = Instant::now();
    slow.execute(step(vec![row(0, &[1], 0, draw())])).expect("executed");
    assert!(begin.elapsed() >= Duration::from_millis(3));
}

#[test]
fn scripts_bans_masks_and_biases_are_honoured() {
    let sim = Sim::new(SimOptions { vocab_size: 16, ..SimOptions::default() });
    let sample = |draw: Draw| sim.sample(5, &draw);
    assert_eq!(sample(Draw { scripted: Some(3), ..Draw::default() }), Some(3));
    let mask = Some(vec![0b0001_0000, 0].into());
    assert_eq!(sample(Draw { scripted: Some(3), mask: mask.clone(), ..Draw::default() }), Some(4));
    assert_eq!(sample(Draw { mask, banned: vec![4], ..Draw::default() }), None);
    let bias = vec![rein_proto::internal::LogitBias { token: 9, bias: 100.0 }];
    let sampling = Some(rein_proto::internal::Sampling { logit_bias: bias, ..Default::default() });
    assert_eq!(sample(Draw { sampling, ..Draw::default() }), Some(9));
}
