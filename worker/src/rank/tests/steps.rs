//! Steps as the scheduler makes them: chunks, batches, held rows, masks, and steps that are rejected.

use super::*;

fn scores_of(result: &[RowResult], slot: u32) -> Vec<f32> {
    let scores = result.iter().filter(|r| r.slot == slot).flat_map(|r| &r.scores);
    scores.map(|s| s.logprob.expect("logprob")).collect()
}

fn scoring(slot: u32, tokens: &[u32], range: std::ops::Range<usize>, blocks: &[u32]) -> Row {
    let next = tokens.get(range.end).copied();
    Row { score: 0, next, ..row(slot, &tokens[range.clone()], range.start, blocks, After::Nothing) }
}

#[test]
fn results_do_not_depend_on_chunks_batch_or_block_order() {
    for name in ["deepseek_v3", "mistral", "qwen3_moe", "granite", "qwen3_next"] {
        let fixture = fixture(name);
        let tokens = &fixture.reference.tokens[..20];
        let other: Vec<u32> = tokens.iter().rev().copied().collect();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let options = ModelOptions { dtype, ..f32_options() };
            let mut group = load(&fixture.dir, &options);
            let whole = scores_of(&run(&mut group, vec![scoring(1, tokens, 0..20, &[0, 1, 2])]), 1);
            assert_eq!(whole.len(), 19);

            let mut pieces = Vec::new();
            let blocks = [9, 4, 6];
            for (i, range) in [0..3, 3..4, 4..11, 11..20].into_iter().enumerate() {
                let neighbour = scoring(2, &other, 0..(i + 2), &[12]);
                let mine = scoring(1, tokens, range, &blocks);
                let rows = if i % 2 == 0 { vec![neighbour, mine] } else { vec![mine, neighbour] };
                pieces.extend(scores_of(&run(&mut group, rows), 1));
            }
            assert_eq!(pieces, whole, "{name} {dtype:?}");
        }
    }
}

#[test]
fn a_held_row_draws_the_same_token_later() {
    for tp in [1, 2] {
        let fixture = fixture("qwen3");
        let prompt = &fixture.reference.greedy_prompt;
        let mut group = load(&fixture.dir, &ModelOptions { tp, ..f32_options() });
        let blocks = [0, 1];
        let at_once = run(&mut group, vec![row(1, prompt, 0, &blocks, After::Draw)]);
        assert!(run(&mut group, vec![row(2, prompt, 0, &blocks, After::Stash)]).is_empty());
        let later = run(&mut group, vec![row(2, &[], prompt.len(), &blocks, After::Draw)]);
        assert_eq!(at_once[0].token(), later[0].token());

        // A stash is used up by a draw and forgotten when dropped.
        let again = |slot| Step {
            epoch: 1,
            id: 1,
            rows: vec![row(slot, &[], prompt.len(), &blocks, After::Draw)],
            ..Step::default()
        };
        assert!(matches!(group.execute(again(2)), Err(ExecutorError::Step(what)) if what.contains("slot 2")));
        run(&mut group, vec![row(3, prompt, 0, &blocks, After::Stash)]);
        let dropping = Step { dropped: vec![3, 99], ..again(3) };
        assert!(matches!(group.execute(dropping), Err(ExecutorError::Step(_))));
    }
}

#[test]
fn slots_are_below_the_number_of_sequences_that_run() {
    let fixture = fixture("qwen3");
    let prompt = &fixture.reference.greedy_prompt[..3];
    let mut group = load(&fixture.dir, &ModelOptions { max_sequences: 2, ..f32_options() });
    let stash = |slot: u32| row(slot, prompt, 0, &[slot], After::Stash);
    run(&mut group, vec![stash(0), stash(1)]);
    run(&mut group, vec![stash(1)]);
    let step = |rows: Vec<Row>| Step { epoch: 1, id: 1, rows, ..Step::default() };
    match group.execute(step(vec![stash(2)])) {
        Err(ExecutorError::Step(what)) => assert_eq!(what, "slot 2: there are 2 slots"),
        other => panic!("a third slot: {other:?}"),
    }
    // A row with tokens replaces the stash.
    run(&mut group, vec![row(1, prompt, 0, &[1], After::Nothing)]);
    let draw = row(1, &[], prompt.len(), &[1], After::Draw);
    assert!(matches!(group.execute(step(vec![draw])), Err(ExecutorError::Step(_))), "nothing is stashed any more");
}

#[test]
fn a_draw_obeys_mask_and_bans_and_reports_the_models_logprobs() {
    let fixture = fixture("qwen3");
    let vocab = fixture.config["vocab_size"].as_u64().expect("vocabulary") as usize;
    let prompt = &fixture.reference.greedy_prompt;
    let mut group = load(&fixture.dir, &f32_options());
    let mut draw = |change: &dyn Fn(&mut Draw)| {
        let mut asked = greedy_draw(0);
        change(&mut asked);
        let row = Row { draws: vec![asked], ..row(1, prompt, 0, &[0, 1], After::Draw) };
        run(&mut group, vec![row]).remove(0)
    };
    let best = fixture.reference.greedy[0];
    let plain = draw(&|d| d.logprobs = 3);
    let found = plain.logprob().expect("logprob");
    assert_eq!((plain.token(), found.id, found.rank, found.top.len()), (Some(best), best, 1, 3));
    assert_eq!(found.logprob, Some(found.top[0].logprob));

    let banned = draw(&|d| (d.banned, d.logprobs) = (vec![best], 0));
    assert_eq!(banned.token(), Some(found.top[1].id));
    let second = banned.logprob().expect("logprob");
    assert_eq!((second.rank, second.logprob), (2, Some(found.top[1].logprob)), "bans do not change logprobs");

    let mut mask = vec![0u8; vocab.div_ceil(8)];
    mask[5] = 1;
    assert_eq!(draw(&|d| d.mask = Some(mask.clone().into())).token(), Some(40));
    let nothing = draw(&|d| d.mask = Some(vec![0u8; vocab.div_ceil(8)].into()));
    assert_eq!(nothing.drawn, [Drawn::default()]);
}

#[test]
fn results_come_in_step_order_for_rows_that_draw_or_score() {
    let fixture = fixture("llama3");
    let tokens = &fixture.reference.tokens;
    let mut group = load(&fixture.dir, &f32_options());
    let mut both = scoring(4, tokens, 0..4, &[3]);
    (both.after, both.draws) = (After::Draw.into(), vec![greedy_draw(0)]);
    let result = run(
        &mut group,
        vec![
            row(9, &tokens[..5], 0, &[0], After::Draw),
            row(8, &tokens[..5], 0, &[1], After::Nothing),
            row(7, &tokens[..5], 0, &[2], After::Stash),
            both,
        ],
    );
    assert_eq!(result.iter().map(|r| r.slot).collect::<Vec<_>>(), [9, 4]);
    assert_eq!((result[1].scores.len(), result[1].token().is_some()), (4, true));
    assert_eq!(result[1].scores[3].id, tokens[4]);
}

#[test]
fn an_invalid_step_is_rejected_and_the_next_one_runs() {
    let fixture = fixture("llama3");
    let mut group = load(&fixture.dir, &f32_options());
    let good = row(1, &[5, 6], 0, &[0], After::Draw);
    let step = |rows: Vec<Row>| Step { epoch: 1, id: 1, rows, ..Step::default() };
    let cases = [
        (Step { epoch: 2, ..step(vec![good.clone()]) }, "epoch 2"),
        (step(vec![Row { tokens: vec![256], ..good.clone() }]), "token 256"),
        (step(vec![Row { next: Some(999), ..good.clone() }]), "token 999"),
        (step(vec![Row { blocks: vec![], ..good.clone() }]), "do not cover"),
        (step(vec![Row { blocks: vec![16], ..good.clone() }]), "no block 16"),
        (step(vec![Row { kept_blocks: 1, blocks: vec![], ..good.clone() }]), "keeps 1 blocks, but its table has 0"),
        (step(vec![Row { start: 127, ..good.clone() }]), "context of 128"),
        (step(vec![Row { draws: vec![], ..good.clone() }]), "a row with 0 draws, which can have 1 to 2"),
        (step(vec![Row { draws: vec![greedy_draw(0); 3], ..good.clone() }]), "a row with 3 draws"),
        (step(vec![Row { after: After::Stash.into(), ..good.clone() }]), "a row with 1 draws, which can have 1 to 0"),
        (step(vec![Row { tokens: vec![], ..good.clone() }]), "no stashed logits"),
        (step(vec![row(1, &[], 0, &[0], After::Stash)]), "must draw"),
    ];
    for (step, expected) in cases {
        match group.execute(step) {
            Err(ExecutorError::Step(what)) => assert!(what.contains(expected), "{what}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
    assert_eq!(run(&mut group, vec![good]).len(), 1);
}

#[test]
fn the_shape_is_that_of_the_checkpoint() {
    let fixture = fixture("llama_awkward");
    let group = load(&fixture.dir, &ModelOptions { tp: 2, kv_blocks: None, ..f32_options() });
    let shape = group.shape();
    assert_eq!((shape.vocab_size, shape.max_context, shape.block_size, shape.ranks), (257, 128, 8, 2));
    assert_eq!((shape.kind, shape.model.as_str()), ("cpu", "llama_awkward"));
    assert_eq!(group.plan().blocks, shape.blocks);
}

/// Also while a rank computes a step that never ends.
#[test]
fn a_group_within_one_process_tells_other_threads_that_it_has_ended() {
    let model = ModelLoader::open(&fixture("qwen3").dir, &f32_options()).expect("opens");
    let watch_of = |ranks: usize| {
        let placement = Arc::new(place(&model.shape(), ranks, 1).expect("a placement"));
        let links = collective::threads::group(ranks).into_iter().map(|link| Box::new(link) as Box<dyn Collective>);
        let links: Vec<_> = links.collect();
        let abort = links[0].abort_handle();
        let seated = model.seat(&placement, links, Vec::new(), None, &mut |_, _| ()).expect("seated");
        let group = seated.executor().expect("it leads");
        (group.end_watch(), group, abort)
    };
    let (watch, group, abort) = watch_of(2);
    let watch = watch.expect("two ranks");
    assert_eq!(watch.reason(), None);
    abort.abort("a device hangs");
    assert_eq!(watch.reason().as_deref(), Some("a device hangs"));
    drop(group);
    // The only rank waits for nobody.
    assert!(watch_of(1).0.is_none());
}
