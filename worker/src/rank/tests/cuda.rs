//! Several ranks on an emulated device, which `tests/py/test_cuda_ranks.py` has.

use std::sync::atomic::AtomicBool;

use super::layouts::{Running, start, turned};
use super::loras::{self, LoraReference, lora, scores, scoring};
use super::*;

/// Partial sums are rounded to bf16, and activations to FP8 in groups that depend on the number of ranks.
const ROUNDED: f32 = 6e-2;
/// A device in bf16 rounds in other places than transformers.
const OTHER_ROUNDINGS: f32 = 0.1;

/// Computed on emulated devices unless REIN_CUDA_MODELS is `all`, as in `make chaos`: all of them take a minute.
const FEW: [&str; 5] = ["qwen3_moe", "kimi_k2_int4", "deepseek_v3_fp8", "granite_variants", "minimax_m2"];

fn all_models() -> bool {
    std::env::var("REIN_CUDA_MODELS").is_ok_and(|models| models == "all")
}

/// All ranks on device 0.
fn options(ranks: usize, dtype: Dtype) -> ModelOptions {
    ModelOptions { devices: DeviceChoice::gpus(vec![0; ranks]), tp: ranks, dtype, ..f32_options() }
}

/// Two prompts, then decode steps: the second is recorded, later ones are repeated. `between` is called before each
/// step.
fn run(running: &mut Running, mut between: impl FnMut(usize, &Layouts)) -> Vec<RowResult> {
    let mut results = Vec::new();
    for i in 0..10 {
        between(i, &running.layouts);
        let draw = |slot: u32, token: u32, block: u32| {
            let (tokens, start) = if i == 0 { (vec![token, 6, 7], 0) } else { (vec![token + i as u32], 2 + i) };
            let mut row = row(slot, &tokens, start, &[2 * block, 2 * block + 1], After::Draw);
            row.draws.iter_mut().for_each(|draw| draw.logprobs = 5);
            row
        };
        let step = step_of(&running.group, vec![draw(1, 5, 0), draw(2, 9, 1)]);
        results.extend(running.group.execute(step).expect("executes").rows);
    }
    results
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda_ranks.py"]
fn ranks_on_a_device_give_the_results_of_one() {
    for fixture in fixtures().into_iter().filter(|fixture| all_models() || FEW.contains(&&*fixture.name)) {
        // The sections of `rein selftest` look at bf16.
        let (dtype, tolerance) = if fixture.is_quantized() { (Dtype::Auto, ROUNDED) } else { (Dtype::F32, F32) };
        let one = fixture.score(&options(1, dtype)).logprobs;
        if all_models() && !fixture.is_quantized() {
            // Ops meet other types than in f32.
            let rounded = fixture.score(&options(1, Dtype::Bf16)).logprobs;
            let far = distance(&rounded, &fixture.reference.bf16.logprobs);
            println!("{}: bf16 within {far:.1e}", fixture.name);
            assert!(far <= OTHER_ROUNDINGS, "{}: bf16 is {far:.1e} from transformers", fixture.name);
        }
        for ranks in [2, 4] {
            if !fixture.heads().is_multiple_of(ranks) {
                continue;
            }
            let several = fixture.score(&options(ranks, dtype)).logprobs;
            // Errors grow with the logprobs.
            let size = one.iter().flatten().fold(1f32, |size, logprob| size.max(logprob.abs()));
            let far = distance(&one, &several) / size;
            println!("{}: {ranks} ranks within {far:.1e}", fixture.name);
            assert!(far <= tolerance, "{}: {ranks} ranks are {far:.1e} from one", fixture.name);
        }
    }
}

/// As on the CPU: not a bit changes while experts move between recorded and repeated steps, and returned weights serve
/// another layout.
#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda_ranks.py"]
fn outputs_do_not_change_while_experts_move_between_devices() {
    for name in ["deepseek_v3", "qwen3_moe", "mixtral"].into_iter().take(if all_models() { 3 } else { 2 }) {
        let fixture = fixture(name);
        let model = ModelLoader::open(&fixture.dir, &options(2, Dtype::Bf16)).expect("opens");
        let first = Arc::new(place(&model.shape(), 2, 1).expect("a placement"));
        let mut undisturbed = start(&model, &first, Vec::new(), None);
        let want = run(&mut undisturbed, |_, _| ());
        let counted = undisturbed.layouts.counts().expect("the leader counts");
        assert!(counted.iter().flatten().sum::<u64>() > 0, "{name}: no rows were counted");
        drop(undisturbed);

        let (return_weights, returned) = bounded(2);
        let mut moving = start(&model, &first, Vec::new(), Some(return_weights));
        let got = run(&mut moving, |i, layouts| {
            let go_on = AtomicBool::new(false);
            if let Some(next) = [0, 1, 0, 0, 0, 2, 0, 0, 3, 0][i..].first().filter(|next| **next > 0) {
                assert!(layouts.load(&turned(&model, *next), &go_on).expect("loads"));
                layouts.switch(*next);
            }
        });
        assert_eq!(got, want, "{name}");
        assert_eq!(moving.layouts.counts(), Some(counted), "{name}");
        drop(moving);
        let back: Vec<ResidentWeights> = returned.iter().take(2).collect();
        let mut again: Running = start(&model, &turned(&model, 5), back, None);
        assert_eq!(run(&mut again, |_, _| ()), want, "{name}");
    }
}

/// A rank whose device fails ends the group; the other rank keeps its weights, and computes in the next group.
#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda_ranks.py"]
fn the_weights_of_a_survivor_serve_the_next_group() {
    let fixture = fixture("qwen3_moe");
    let model = ModelLoader::open(&fixture.dir, &options(2, Dtype::F32)).expect("opens");
    let placement = Arc::new(place(&model.shape(), 2, 1).expect("a placement"));
    let (return_weights, returned) = bounded(2);
    let mut group = start(&model, &placement, Vec::new(), Some(return_weights));
    let want = run(&mut group, |_, _| ());
    // A step of a layout that no rank has loaded ends the group on every rank.
    group.layouts.switch(9);
    let step = step_of(&group.group, vec![row(1, &[5], 0, &[0], After::Draw)]);
    group.group.execute(step).expect_err("no layout 9");
    drop(group);
    let mut back: Vec<ResidentWeights> = returned.iter().take(2).collect();
    // One is lost; its rank is read again.
    back.pop();
    let mut next = start(&model, &placement, back, None);
    assert_eq!(run(&mut next, |_, _| ()), want);
}

/// Beside rows without an adapter, on one device and on two; adapters come between recorded steps.
#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda_ranks.py"]
fn adapters_on_devices_are_those_of_peft() {
    for name in ["qwen3_all", "qwen3_moe_experts", "qwen3_moe_modules", "deepseek_v3"] {
        let fixture = lora(name);
        let LoraReference { model, tokens, logprobs, .. } = &fixture.reference;
        let model = super::fixture(model);
        for ranks in [1, 2] {
            let mut group =
                super::load(&model.dir, &ModelOptions { loras: loras::LIMITS, ..options(ranks, Dtype::F32) });
            let decode = |group: &mut RankGroup, lora| {
                let mut drawn = Vec::new();
                for i in 0..8 {
                    let rows = [(1, None), (2, lora)].map(|(slot, lora)| {
                        let last = drawn.last().map_or(5, |tokens: &[u32; 2]| tokens[slot as usize - 1]);
                        let first = 2 * slot;
                        Row { lora, ..row(slot, &[last], i, &[first, first + 1], After::Draw) }
                    });
                    let rows = super::run(group, rows.into());
                    drawn.push([rows[0].token().expect("a token"), rows[1].token().expect("a token")]);
                }
                drawn
            };
            let before = decode(&mut group, None);
            fixture.load(&mut group, 1);
            let after = decode(&mut group, Some(1));
            assert!(before.iter().zip(&after).all(|(before, after)| before[0] == after[0]), "{name}: rows without");
            let mut oracle = super::load(&model.dir, &ModelOptions { loras: loras::LIMITS, ..f32_options() });
            fixture.load(&mut oracle, 1);
            assert_eq!(after, decode(&mut oracle, Some(1)), "{name}, {ranks} ranks");
            let rows = [scoring(1, tokens, 0..tokens.len(), &[0, 1, 2], None)];
            let result = super::run(&mut group, rows.into());
            let of_model = scores(&result, 1);
            let rows = [
                scoring(1, tokens, 0..tokens.len(), &[0, 1, 2], None),
                scoring(2, tokens, 0..tokens.len(), &[3, 4, 5], Some(1)),
            ];
            let result = super::run(&mut group, rows.into());
            let apart = distance(&scores(&result, 2), logprobs);
            println!("{name}, {ranks} ranks: {apart:e}");
            assert!(apart <= F32, "{name}, {ranks} ranks: {apart:e} from PEFT");
            assert!(distance(&scores(&result, 1), &of_model) <= F32, "{name}, {ranks} ranks: rows without");
        }
    }
}

/// Four sequences: greedy, drawn, drawn with penalties, and one whose draws have logprobs. `ahead`: each decode step is
/// submitted while the one before runs, and awaits its tokens.
fn decoded(group: &mut RankGroup, ahead: bool) -> Vec<RowResult> {
    const STEPS: usize = 14;
    let drawing = |slot: u32, at: usize| {
        let mut draw = greedy_draw(at);
        draw.logprobs = if slot == 3 { 4 } else { -1 };
        let sampling = draw.sampling.get_or_insert_default();
        sampling.seed = 7;
        sampling.temperature = if slot == 0 { 0.0 } else { 1.5 };
        if slot == 2 {
            (sampling.presence_penalty, sampling.repetition_penalty) = (3.0, 1.2);
            draw.prompt_length = 3;
        }
        draw
    };
    let mut results: Vec<RowResult> = Vec::new();
    let mut waited = |group: &mut RankGroup| {
        let rows = group.wait().expect("a result").rows;
        results.extend(rows.iter().cloned());
        rows
    };
    let mut last: Vec<RowResult> = Vec::new();
    for at in 0..STEPS {
        let rows = (0..4).map(|slot| {
            let prompt = [5 + slot, 6, 7];
            let token = last.get(slot as usize).and_then(|row| row.token());
            let known = !ahead || at < 2;
            let tokens = if at == 0 { prompt.to_vec() } else { vec![token.filter(|_| known).unwrap_or(0)] };
            let start = if at == 0 { 0 } else { 2 + at };
            let mut row = row(slot, &tokens, start, &[4 * slot, 4 * slot + 1, 4 * slot + 2], After::Draw);
            let mut draw = drawing(slot, at);
            if slot == 2 {
                draw.kept_history = if at == 0 { 0 } else { 2 + at as u32 };
                draw.history = if known { tokens } else { Vec::new() };
            }
            (row.draws, row.awaits_token) = (vec![draw], !known);
            row
        });
        let step = step_of(group, rows.collect());
        group.submit(step).expect("begins");
        if !ahead || at == 0 {
            last = waited(group);
        } else if at > 1 {
            waited(group);
        }
    }
    if ahead {
        waited(group);
    }
    results
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda_ranks.py"]
fn a_step_behind_one_that_runs_has_its_tokens() {
    let fixture = fixtures().into_iter().find(|fixture| fixture.name == "qwen3_moe").expect("qwen3_moe");
    // Steps that are prepared keep the tokens that penalties read on the device.
    for (ranks, token_budget) in [(1, None), (1, Some(64)), (2, None), (4, None)] {
        let options = ModelOptions { token_budget, ..options(ranks, Dtype::F32) };
        let mut group = load(&fixture.dir, &options);
        let [in_turn, ahead] = [false, true].map(|ahead| decoded(&mut group, ahead));
        let tokens: Vec<_> = in_turn.iter().map(|row| (row.slot, row.token())).collect();
        let distinct: std::collections::HashSet<_> = tokens.iter().collect();
        assert!(distinct.len() > tokens.len() / 2, "{tokens:?}");
        assert_eq!(ahead, in_turn, "{ranks} ranks, {token_budget:?}");
    }
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda_ranks.py"]
fn draws_of_one_row_have_the_bits_of_steps_of_their_own() {
    // The first keeps the tokens that penalties read on the device.
    for (name, ranks, dtype, token_budget) in [
        ("deepseek_v3", 1, Dtype::Bf16, Some(64)),
        ("qwen3_moe", 2, Dtype::Bf16, None),
        ("qwen3_moe", 1, Dtype::F32, None),
    ] {
        let mut group = load(&fixture(name).dir, &ModelOptions { token_budget, ..options(ranks, dtype) });
        super::drafts::check(&mut group, &format!("{name}, {ranks} ranks, {dtype:?}"));
    }
}
