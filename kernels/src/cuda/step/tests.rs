use super::*;
use crate::backend::{Score, Span, StateCells, StateSave};
use crate::sample::SampleSpec;

const LIMITS: StepLimits = StepLimits { vocab: 100, blocks: 10, block_size: 4, split: None, cells: 9, slots: 6 };

fn packed(rows: &StepInputs) -> Result<(StepShape, Vec<u32>)> {
    let shape = StepShape::of(rows, LIMITS);
    let mut words = vec![7; shape.parts().end];
    pack(rows, &shape, LIMITS, &mut words)?;
    Ok((shape, words))
}

fn draw<'a>(row: usize) -> Draw<'a> {
    Draw { from: LogitsOf::Row(row), sample: SampleSpec::default(), history: None, slot: None, logprobs: None }
}

#[test]
fn buckets() {
    let found: Vec<_> = [0, 1, 2, 3, 5, 9, 16, 17, 33, 512, 513].map(bucket).to_vec();
    let want = [None, Some(1), Some(2), Some(4), Some(8), Some(16), Some(16), Some(32), Some(48), Some(512), None];
    assert_eq!(found, want);
}

#[test]
fn a_prompt_is_not_filled_up() {
    let spans =
        vec![Span { row: 0, len: 3, start: 3, blocks: &[9, 2] }, Span { row: 3, len: 1, start: 0, blocks: &[5] }];
    let scores = vec![Score { row: 1, token: 3, top: 0 }];
    let rows = StepInputs { ids: vec![11, 12, 13, 14], spans, draws: vec![draw(3)], scores, ..StepInputs::default() };
    let (shape, words) = packed(&rows).expect("fits");
    assert_eq!(
        shape,
        StepShape {
            rows: 4,
            sequences: 2,
            table_stride: 2,
            wanted: 2,
            results: 5,
            saves: 0,
            loras: false,
            decode: false
        }
    );
    let want = [
        [11, 12, 13, 14], // ids
        [3, 4, 5, 0],     // positions
        [0, 0, 0, 1],     // sequences
        [39, 8, 9, 20],   // places
        [9, 2, 5, 0],     // tables
    ];
    assert_eq!(words[..20], want.concat());
    assert_eq!(words[20..], [1, 3], "wanted");
}

#[test]
fn rows_that_all_draw_are_a_decode_step() {
    let spans = || {
        let first = Span { row: 0, len: 3, start: 4, blocks: &[9, 2] };
        vec![first, Span { row: 3, len: 1, start: 0, blocks: &[5] }]
    };
    let draws = |rows: &[usize]| rows.iter().map(|&row| draw(row)).collect();
    let inputs = |draws| StepInputs { ids: vec![1, 2, 3, 4], spans: spans(), draws, ..StepInputs::default() };
    let mut apart = StepInputs { loras: vec![Some(3), None], ..inputs(draws(&[0, 1, 2, 3])) };
    take_apart(&mut apart);
    let found: Vec<_> = apart.spans.iter().map(|span| (span.row, span.len, span.start, span.blocks)).collect();
    let table = &[9, 2][..];
    assert_eq!(found, [(0, 1, 4, table), (1, 1, 5, table), (2, 1, 6, table), (3, 1, 0, &[5])]);
    assert_eq!(apart.loras, [Some(3), Some(3), Some(3), None]);
    let (shape, words) = packed(&apart).expect("fits");
    assert!(shape.decode && shape.sequences == 4);
    assert_eq!(words[12..16], [8, 9, 10, 20], "places");
    // A prompt, and rows with a recurrent state, stay whole.
    let save = [StateSave { rows: 3, cell: 1 }];
    let cells = vec![StateCells { from: Some(0), saves: &save }; 2];
    for mut rows in [inputs(draws(&[2, 3])), StepInputs { cells, ..inputs(draws(&[0, 1, 2, 3])) }] {
        take_apart(&mut rows);
        assert_eq!(rows.spans.len(), 2);
    }
}

#[test]
fn a_decode_step_is_filled_up_to_its_bucket() {
    let spans = (0..3).map(|row| Span { row, len: 1, start: 2 * row, blocks: &[1, 3] }).collect();
    let (shape, words) =
        packed(&StepInputs { ids: vec![1, 2, 3], spans, draws: vec![draw(2)], ..StepInputs::default() }).expect("fits");
    assert_eq!(
        shape,
        StepShape {
            rows: 4,
            sequences: 4,
            table_stride: 8,
            wanted: 4,
            results: 4 * 44,
            saves: 0,
            loras: false,
            decode: true
        }
    );
    let rows = [[1, 2, 3, NONE], [0, 2, 4, 0], [0, 1, 2, NONE], [4, 6, 12, NONE]];
    assert_eq!(words[..16], rows.concat());
    let table = [1, 3, 0, 0, 0, 0, 0, 0];
    assert_eq!(words[16..40], [table; 3].concat());
    assert_eq!(words[40..48], [0; 8]);
    assert_eq!(words[48..], [2, 0, 0, 0], "wanted");
}

#[test]
fn recurrent_states_have_cells_of_each_sequence() {
    let save = |rows, cell| StateSave { rows, cell };
    let (first, second) = ([save(2, 4), save(3, 5)], [save(1, 6)]);
    let spans = vec![Span { row: 0, len: 3, start: 0, blocks: &[1] }, Span { row: 3, len: 1, start: 3, blocks: &[2] }];
    let cells = vec![StateCells { from: None, saves: &first }, StateCells { from: Some(7), saves: &second }];
    let step = StepInputs { ids: vec![1; 4], spans, cells, draws: vec![draw(3)], ..StepInputs::default() };
    let (shape, words) = packed(&step).expect("fits");
    let from = shape.parts().cells;
    assert_eq!(words[from..from + 9], [0, 3, 4, NONE, 7, NONE, 0, 2, 3]);
    assert_eq!(words[from + 9..], [2, 4, 3, 5, 1, 6]);
    // A decode step has room for two saves of each sequence.
    let single = Span { row: 0, len: 1, start: 3, blocks: &[2] };
    let decode = |cells: StateCells<'static>| {
        packed(&StepInputs {
            ids: vec![1],
            spans: vec![single],
            cells: vec![cells],
            draws: vec![draw(0)],
            ..StepInputs::default()
        })
    };
    let one = decode(StateCells { from: Some(3), saves: &[StateSave { rows: 1, cell: 2 }] }).expect("fits");
    let two = &[StateSave { rows: 1, cell: 8 }, StateSave { rows: 1, cell: 2 }];
    assert_eq!(one.0, decode(StateCells { from: Some(3), saves: two }).expect("fits").0);
    for (bad, what) in [
        (StateCells { from: Some(9), saves: two }, "begin: cell 9 of 9"),
        (StateCells { from: None, saves: &[StateSave { rows: 2, cell: 0 }] }, "of 1 rows"),
    ] {
        let error = decode(bad).expect_err("refused").to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn growing_sequences_keep_their_shape() {
    let of = |blocks: usize| {
        let blocks = vec![0; blocks];
        let spans = vec![Span { row: 0, len: 1, start: 0, blocks: &blocks }];
        StepShape::of(&StepInputs { ids: vec![0], spans, draws: vec![draw(0)], ..StepInputs::default() }, LIMITS)
    };
    assert_eq!(of(1), of(8));
    assert_eq!(of(9), of(16));
    assert_ne!(of(8), of(9));
}

#[test]
fn a_step_that_scores_is_not_recorded() {
    let span = Span { row: 0, len: 1, start: 0, blocks: &[0] };
    let step = |scores: Vec<Score>, draws| {
        StepShape::of(&StepInputs { ids: vec![0], spans: vec![span], scores, draws, ..StepInputs::default() }, LIMITS)
    };
    assert!(step(vec![], vec![draw(0)]).decode);
    assert!(!step(vec![], vec![]).decode, "the logits are part of what is recorded");
    assert!(!step(vec![Score { row: 0, token: 0, top: 0 }], vec![]).decode);
    let of_top = |top| step(vec![], vec![Draw { logprobs: top, ..draw(0) }]);
    assert_eq!(of_top(None), of_top(Some(MOST_ALTERNATIVES)), "there is room for all that clients may ask for");
    assert!(!of_top(Some(MOST_ALTERNATIVES + 1)).decode);
}

#[test]
fn inputs_beyond_the_limits_are_errors() {
    let of = |ids: Vec<u32>, span| packed(&StepInputs { ids, spans: vec![span], ..StepInputs::default() }).map(drop);
    let error = |ids, span| of(ids, span).expect_err("an error").to_string();
    let span = Span { row: 0, len: 1, start: 0, blocks: &[0] };
    assert_eq!(error(vec![100], span), "begin: token 100 must be below the vocabulary's 100");
    assert_eq!(error(vec![1], Span { row: 1, ..span }), "begin: rows 1..2 of 1");
    assert_eq!(error(vec![1], Span { start: 4, ..span }), "begin: 1 blocks of 4 do not cover 5 positions");
    let rows = StepInputs { ids: vec![1], spans: vec![span], draws: vec![draw(1)], ..StepInputs::default() };
    assert_eq!(packed(&rows).expect_err("an error").to_string(), "begin: logits of row 1 of 1");
    assert_eq!(error(vec![1], Span { blocks: &[10], ..span }), "begin: block 10 of a cache of 10 blocks");
    of(vec![99], Span { start: 3, blocks: &[9], ..span }).expect("within the limits");
}

/// Blocks of 32: two of each tile. Rank 1 of 2 has lanes 1, 3, 5 and 7.
#[test]
fn the_table_of_a_split_cache_has_this_rank_s_blocks_lane_by_lane() {
    let limits = StepLimits { blocks: 1000, block_size: 32, split: Some(KvSplit { rank: 1, ranks: 2 }), ..LIMITS };
    // Place i has block 10 * i + its rank.
    let blocks: Vec<u32> = (0..22).map(|i| 10 * i + i / 2 % 2).collect();
    assert_eq!(limits.table_words(22), 4 * 4);
    let mut table = vec![7; 16];
    limits.write_table(&blocks, &mut table);
    // Of lane 1 tiles 1 and 9, of the others one tile.
    assert_eq!(table, [10, 15, 90, 95, 30, 35, 7, 7, 50, 55, 7, 7, 70, 75, 7, 7]);
    assert_eq!(limits.place(&blocks, 63), None, "tile 0 is of rank 0");
    assert_eq!(limits.place(&blocks, 64), Some(10 * 32), "block 21 is block 10 of rank 1");
    assert_eq!(limits.place(&blocks, 9 * 64 + 33), Some(95 * 32 + 1));
    // Steps of growing sequences have a table of one size, as without a split.
    let whole = StepLimits { split: None, ..limits };
    assert_eq!((whole.table_words(22), whole.place(&blocks, 64)), (22, Some(21 * 32)));
}
