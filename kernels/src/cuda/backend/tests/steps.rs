//! Decode steps: what they call of the driver, that their rows depend on nothing else, and that experts may move
//! between them.

use super::*;

const KIND: Kind = Kind { stored: Stored::Wide(Precision::F32), latent: true, experts: true };

/// The calls of this thread that the driver has written to the file of REIN_FAKE_CUDA_TRACE.
struct Calls {
    path: std::path::PathBuf,
    seen: usize,
}

impl Calls {
    fn new() -> Calls {
        Calls { path: std::env::var_os("REIN_FAKE_CUDA_TRACE").expect("a trace").into(), seen: 0 }
    }

    /// Those since the last time.
    fn next(&mut self) -> Vec<String> {
        // SAFETY: takes no arguments.
        let thread = format!("{} ", unsafe { libc::gettid() });
        let text = std::fs::read_to_string(&self.path).expect("the trace");
        let all: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&thread)).map(str::to_owned).collect();
        let new = all[self.seen..].to_vec();
        self.seen = all.len();
        new
    }
}

/// One token of each sequence; sequence i has block i.
pub(super) fn decode(tables: &[[u32; 1]], ids: impl Fn(usize) -> u32, start: usize) -> StepInputs<'_> {
    let draw = |row| Draw {
        from: LogitsOf::Row(row),
        sample: SampleSpec::default(),
        history: None,
        slot: None,
        logprobs: None,
    };
    StepInputs {
        ids: (0..tables.len()).map(ids).collect(),
        spans: tables.iter().enumerate().map(|(row, blocks)| Span { row, len: 1, start, blocks }).collect(),
        draws: (0..tables.len()).map(draw).collect(),
        ..StepInputs::default()
    }
}

/// Beyond the number of blocks they share some.
pub(super) fn tables(sequences: usize) -> Vec<[u32; 1]> {
    (0..sequences).map(|block| [(block % BLOCKS) as u32]).collect()
}

/// In every bucket up to the default number of sequences, and in a larger one.
#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn a_steady_decode_step_is_one_launch_two_copies_and_one_wait() {
    let all = [1, 2, 3, 5, 9, 17, 33, 49, 129];
    steady_steps(Kind { latent: false, ..KIND }, &all);
    for stored in [Stored::Wide(Precision::Bf16), Stored::Fp8, Stored::Int4(ScaleForm::Bf16)] {
        steady_steps(Kind { stored, ..KIND }, &[1, 3, 17]);
    }
}

fn steady_steps(kind: Kind, all: &[usize]) {
    let (devices, mut calls) = (devices(), Calls::new());
    let mut cuda = devices.open_beside(0).expect("cuda");
    let mut toy = Toy::new(&devices, &cuda, kind);
    for &sequences in all {
        let tables = tables(sequences);
        for step in 0..5 {
            calls.next();
            let id = |row| (row as u32 + step) % VOCAB as u32;
            toy.draw(&mut cuda, decode(&tables, id, step as usize % BLOCK_SIZE));
            let calls = calls.next();
            let count = |name: &str| calls.iter().filter(|call| *call == name).count();
            match step {
                0 => assert!(count("cuLaunchKernelEx") > 20 && count("cuGraphLaunch") == 0, "{calls:?}"),
                1 => assert!(count("cuStreamBeginCapture_v2") == 1 && count("cuGraphLaunch") == 1, "{calls:?}"),
                _ => {
                    let launched = ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2"];
                    let want = [&launched[..], &["cuEventRecord", "cuEventSynchronize"]].concat();
                    assert_eq!(calls, want, "{kind:?}: {sequences} sequences, step {step}");
                }
            }
        }
    }
}

/// Every way of running a row gives the same bits: alone or with others, as it is, recorded or repeated, at once or in
/// chunks.
#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn a_row_depends_on_nothing_but_its_sequence() {
    let devices = devices();
    for precision in [Precision::F32, Precision::Bf16] {
        let kind = Kind { stored: Stored::Wide(precision), ..KIND };
        let mut cuda = devices.open_beside(0).expect("cuda");
        let mut toy = Toy::new(&devices, &cuda, kind);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let mut alone = Vec::new();
        for position in 0..4 {
            let (hidden, _) = toy.step(&mut cuda, decode(&[[0]], |_| position * 3 + 1, position as usize));
            alone.push(bits(&hidden[..HIDDEN]));
        }
        for sequences in [2, 5, 17] {
            let tables = tables(sequences);
            for (position, want) in alone.iter().enumerate() {
                // The row is the last one.
                let id = |row| if row == sequences - 1 { position as u32 * 3 + 1 } else { row as u32 };
                let (hidden, _) = toy.step(&mut cuda, decode(&tables, id, position));
                let got = bits(&hidden[(sequences - 1) * HIDDEN..][..HIDDEN]);
                assert_eq!(&got, want, "{kind:?}: position {position} of {sequences} sequences");
            }
        }
        for chunks in [vec![4], vec![1, 3], vec![3, 1]] {
            let mut start = 0;
            for len in chunks {
                let ids = (start..start + len).map(|position| position as u32 * 3 + 1).collect();
                let spans = vec![Span { row: 0, len, start, blocks: &[9] }];
                let (hidden, _) = toy.step(&mut cuda, StepInputs { ids, spans, ..StepInputs::default() });
                for (row, want) in alone[start..start + len].iter().enumerate() {
                    assert_eq!(&bits(&hidden[row * HIDDEN..][..HIDDEN]), want, "{kind:?}: {len} rows from {start}");
                }
                start += len;
            }
        }
    }
}

/// A draw from a slot is that of the row that was stashed, whether steps are recorded or the stash grows meanwhile.
#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn repeated_steps_stash_and_draw_from_slots() {
    let devices = devices();
    let mut cuda = devices.open_beside(0).expect("cuda");
    let mut toy = Toy::new(&devices, &cuda, KIND);
    let tables = tables(3);
    let sample = SampleSpec { seed: 9, ..SampleSpec::default() };
    let with = |from| Draw { from, sample, history: None, slot: None, logprobs: Some(2) };
    let mut before = None;
    for (step, slot) in [0, 1, 0, 1, 2, 5, 1, 40, 5, 40].into_iter().enumerate() {
        let mut rows = decode(&tables, |row| row as u32 + step as u32, step % BLOCK_SIZE);
        rows.stashes = vec![Stash { row: 1, slot }];
        // With the stash, logits of three rows are wanted, no more than the step has.
        rows.draws.truncate(1);
        rows.draws.push(with(LogitsOf::Row(1)));
        rows.draws.extend(before.as_ref().map(|&(slot, _)| with(LogitsOf::Slot(slot))));
        let (_, drawn) = toy.step(&mut cuda, rows);
        let token = |i: usize| drawn.tokens[i].as_ref().map(|token| (token.id, token.logprob.clone()));
        if let Some((slot, want)) = before {
            assert_eq!(token(2), want, "step {step}, slot {slot}");
        }
        before = Some((slot, token(1)));
    }
}

/// Experts that leave and come back, in a step that is repeated all the while.
#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn experts_move_between_repeated_steps() {
    let devices = devices();
    for stored in
        [Stored::Wide(Precision::F32), Stored::Fp8, Stored::Int4(ScaleForm::F32), Stored::Int4(ScaleForm::Bf16)]
    {
        let mut cuda = devices.open_beside(0).expect("cuda");
        let mut toy = Toy::new(&devices, &cuda, Kind { stored, ..KIND });
        let tables = tables(2);
        let step = |toy: &mut Toy<Cuda>, cuda: &mut Cuda| {
            toy.step(cuda, decode(&tables, |row| 5 * row as u32 + 2, 0)).0.iter().map(|x| x.to_bits()).collect()
        };
        let want: Vec<u32> = step(&mut toy, &mut cuda);
        assert_eq!(step(&mut toy, &mut cuda), want, "recorded");
        for (gone, order) in [(vec![1, 4], [0, 1, 2, 3, 4, 5]), (vec![0, 2, 5], [5, 4, 3, 2, 1, 0])] {
            let beside = devices.open_beside(0).expect("cuda");
            let fresh = experts(&devices, &beside, stored, &gone);
            let kept: Vec<u32> = order.into_iter().filter(|id| !gone.contains(id)).collect();
            for layer in &mut toy.layers {
                let Mixes::Moe { experts: held, .. } = &mut layer.mixes else { panic!("experts") };
                let less = cuda.regroup(held, &fresh, &kept).expect("fewer");
                let error = cuda.regroup(&less, &less, &order).expect_err("missing").to_string();
                assert!(error.starts_with("regroup: expert") && error.ends_with("is not held"), "{error}");
                let twice = cuda.regroup(&less, &fresh, &[kept[0], kept[0]]).expect_err("twice").to_string();
                assert!(twice.contains("is added twice"), "{twice}");
                *held = cuda.regroup(&less, &fresh, &order).expect("all");
            }
            let launched: Vec<u32> = step(&mut toy, &mut cuda);
            assert_eq!(launched, want, "{stored:?}: without {gone:?} for a while");
            assert!(
                cuda.steps.graphs.get_mut().repeats(&cuda_shape(&tables)),
                "{stored:?}: the recorded step is still valid"
            );
        }
    }
}

fn cuda_shape(tables: &[[u32; 1]]) -> StepShape {
    StepShape::of(&decode(tables, |_| 0, 0), StepState::default().limits.get())
}

/// Of more shapes than are kept, those that were used last repeat.
#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn the_shapes_that_were_used_last_are_kept() {
    let devices = devices();
    let mut cuda = devices.open_beside(0).expect("cuda");
    let mut toy = Toy::new(&devices, &cuda, KIND);
    cuda.steps.graphs.get_mut().limit(2);
    let tables = [tables(1), tables(2), tables(4)];
    let mut step = |cuda: &mut Cuda, of: usize| {
        let (hidden, _) = toy.step(cuda, decode(&tables[of], |row| row as u32 + 3, 0));
        hidden[..HIDDEN].iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let want = step(&mut cuda, 0);
    for of in [0, 1, 1, 0, 2, 2, 2, 0, 0, 1] {
        assert_eq!(step(&mut cuda, of), want, "shape {of}");
    }
    let repeats = [0, 1, 2].map(|of| cuda.steps.graphs.get_mut().repeats(&cuda_shape(&tables[of])));
    assert_eq!(repeats, [true, false, false], "the second has run once since, the third was dropped");
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn weights_of_many_slots_arrive_in_order() {
    let devices = devices();
    let cuda = devices.open_beside(0).expect("cuda");
    let numbers: Vec<f32> = (0..6 << 20).map(|i| i as f32).collect();
    let weight = HostMatrix { rows: 6, cols: 1 << 20, data: HostData::F32(numbers.clone()) };
    let weight = cuda.linear_weight(weight, Precision::F32).expect("weight");
    cuda.writer().wait().expect("copied");
    assert!(weight.0.data.read::<f32>(&cuda.ops.device, numbers.len()).expect("read") == numbers);
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn int8_is_an_error_that_names_the_option() {
    let devices = devices();
    let cuda = devices.open_beside(0).expect("cuda");
    let weight = HostMatrix { rows: 1, cols: 1, data: HostData::F32(vec![1.0]) };
    let error = cuda.linear_weight(weight, Precision::Int8).expect_err("no int8").to_string();
    assert_eq!(error, "weight: int8 is not available on CUDA: leave out `--quantize`, or use `--engine cpu`");
}
