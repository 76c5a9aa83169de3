use super::*;

#[test]
fn a_plan_lists_draws_stashes_and_scores_with_their_rows() {
    let draw = Draw { logprobs: -1, ..Draw::default() };
    let row = |slot, tokens: &[u32], after: After| Row {
        slot,
        tokens: tokens.to_vec(),
        start: 10,
        after: after.into(),
        score: -1,
        ..Row::default()
    };
    let step = Step {
        rows: vec![
            Row { score: 2, next: Some(9), ..row(1, &[5, 6, 7], After::Nothing) },
            Row { draws: vec![draw.clone(); 2], ..row(2, &[8, 3], After::Draw) },
            row(3, &[1], After::Stash),
            Row { draws: vec![draw], ..row(4, &[], After::Draw) },
        ],
        ..Step::default()
    };
    let (inputs, mut tables): (Vec<_>, _) = (step.rows.iter().map(RowInputs::of).collect(), BlockTables::default());
    tables.apply(&step).expect("new tables");
    let histories = Histories::default();
    let plan = StepPlan::new(&step, &inputs, &tables, &histories);
    assert_eq!(plan.rows.ids, [5, 6, 7, 8, 3, 1]);
    let spans: Vec<_> = plan.rows.spans.iter().map(|span| (span.row, span.len, span.start)).collect();
    assert_eq!(spans, [(0, 3, 10), (3, 2, 10), (5, 1, 10)]);
    let scores: Vec<_> = plan.rows.scores.iter().map(|score| (score.row, score.token, score.top)).collect();
    assert_eq!(scores, [(0, 6, 2), (1, 7, 2), (2, 9, 2)]);
    assert_eq!(plan.answers.rows, [1, 2, 4]);
    assert_eq!(plan.answers.scores, [(0, 6), (0, 7), (0, 9)]);
    let draws: Vec<_> = plan.rows.draws.iter().map(|draw| draw.from).collect();
    assert_eq!(draws, [LogitsOf::Row(3), LogitsOf::Row(4), LogitsOf::Slot(4)]);
    assert_eq!(plan.answers.draws, [1, 1, 2]);
    // The next step may await the last one's token.
    assert_eq!(plan.rows.draws.iter().map(|draw| draw.slot).collect::<Vec<_>>(), [None, Some(2), Some(4)]);
    assert_eq!((plan.rows.stashes[0].row, plan.rows.stashes[0].slot), (5, 3));
}
