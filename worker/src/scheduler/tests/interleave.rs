//! Tests with real models: a sequence's tokens do not depend on its batch, the cache, preemption or rewinds, to the
//! bit.

use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rein_proto::internal::{Limits, Sampling};

use super::*;
use crate::executor::Executor;
use crate::rank::{Dtype, KvDtype, ModelOptions, RankGroup};

const REQUESTS: usize = 64;

/// Prompts with shared and with own prefixes; three of four greedy, the others seeded.
fn requests(rng: &mut StdRng, vocab: usize, context: usize) -> Vec<Start> {
    let mut tokens = |count: usize| (0..count).map(|_| rng.random_range(0..vocab as u32)).collect::<Vec<_>>();
    let prefixes = [tokens(37), tokens(16), tokens(3)];
    (0..REQUESTS)
        .map(|index| {
            let mut prompt = prefixes[index % 3].clone();
            prompt.extend(tokens(1 + index * 7 % 23));
            let sampling = Sampling {
                temperature: if index % 4 == 3 { 0.8 } else { 0.0 },
                top_p: 0.95,
                repetition_penalty: if index % 8 == 5 { 1.2 } else { 1.0 },
                seed: index as u64,
                ..Sampling::default()
            };
            let max_tokens = (8 + index * 5 % 17).min(context - prompt.len()) as u32;
            Start {
                prompt,
                sampling: Some(sampling),
                limits: Some(Limits { max_tokens, ..Limits::default() }),
                logprobs: -1,
                prompt_logprobs: -1,
                ..Start::default()
            }
        })
        .collect()
}

/// Runs all requests, each starting at its round. With `rewinds`, routers rewind tokens at random and get the same ones
/// again.
fn run(
    group: &mut RankGroup,
    requests: &[(usize, Start)],
    options: EngineOptions,
    mut rewinds: Option<StdRng>,
) -> (Vec<Vec<u32>>, EngineStats) {
    let mut scheduler = Scheduler::new(&group.shape(), options);
    let mut generated = vec![Vec::new(); requests.len()];
    let mut epochs = vec![0; requests.len()];
    let mut finished = 0;
    for round in 0.. {
        for (index, (_, start)) in requests.iter().enumerate().filter(|(_, (at, _))| *at == round) {
            let event = SchedulerEvent::Start { seq: index as SeqId, start: Box::new(start.clone()), lora: None };
            scheduler.apply(event).expect("there is room in the queue");
        }
        if let Some(rng) = &mut rewinds {
            let index = rng.random_range(0..requests.len());
            let (keep, epoch) = (rng.random_range(0..=generated[index].len()), epochs[index] + 1);
            if scheduler.seqs.contains_key(&(index as SeqId)) {
                generated[index].truncate(keep);
                epochs[index] = epoch;
                let steer = Steer { epoch, keep: keep as u32, ..Steer::default() };
                scheduler
                    .apply(SchedulerEvent::Steer { seq: index as SeqId, steer })
                    .expect("only a Start is rejected");
            }
        }
        if let Some(step) = scheduler.schedule(group.placed(), Duration::ZERO) {
            scheduler.check().expect("intact");
            scheduler.commit(group.execute(step).expect("executed"));
        }
        for Output { seq, message, .. } in scheduler.take_outputs() {
            match message.kind.expect("set") {
                from_engine::Kind::Tokens(tokens) => {
                    assert_eq!(tokens.position as usize, generated[seq as usize].len());
                    generated[seq as usize].extend(tokens.ids);
                }
                from_engine::Kind::Finish(finish) => {
                    assert_eq!(finish.reason(), FinishReason::Length, "{finish:?}");
                    finished += 1;
                }
                from_engine::Kind::Admitted(_) => {}
            }
        }
        if finished == requests.len() {
            break;
        }
    }
    (generated, scheduler.stats())
}

fn interleaving_changes_nothing(name: &str, dtype: Dtype, tp: usize) {
    interleaving_with(name, &ModelOptions { dtype, tp, ..ModelOptions::default() }, 40);
}

fn interleaving_with(name: &str, options: &ModelOptions, blocks: usize) {
    let ModelOptions { dtype, tp, .. } = *options;
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name);
    let load = |kv_blocks| {
        let (threads, kv_blocks) = (Some(tp), Some(kv_blocks));
        let options = ModelOptions { threads, kv_blocks, block_size: 4, ..options.clone() };
        RankGroup::load(&dir, &options, &mut |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let mut group = load(blocks);
    let mut rng = StdRng::seed_from_u64(11);
    let starts = requests(&mut rng, group.shape().vocab_size, context_limit(&group.shape()));
    // Alone, with whole prompts at once and no shared blocks.
    let plain = EngineOptions { token_budget: 1000, prefix_cache: false, ..EngineOptions::default() };
    let alone: Vec<_> =
        starts.iter().map(|start| run(&mut group, &[(0, start.clone())], plain.clone(), None).0.remove(0)).collect();
    for seed in 0..2 {
        let mut rng = StdRng::seed_from_u64(seed);
        let spread: Vec<_> = starts.iter().map(|start| (rng.random_range(0..40), start.clone())).collect();
        let options = EngineOptions { max_sequences: 12, token_budget: 29, ..EngineOptions::default() };
        let (together, stats) = run(&mut group, &spread, options, (seed == 1).then_some(rng));
        for (index, (got, want)) in together.iter().zip(&alone).enumerate() {
            assert_eq!(got, want, "{name} {dtype:?} tp {tp}: request {index} among others");
        }
        let EngineStats { preemptions, cached_tokens, rewound_tokens, .. } = stats;
        assert!(preemptions > 5 && cached_tokens > 100, "too easy: {stats:?}");
        assert_eq!(rewound_tokens > 0, seed == 1);
    }
}

#[test]
fn interleaving_changes_nothing_with_mla_and_experts() {
    interleaving_changes_nothing("deepseek_v3", Dtype::F32, 1);
    interleaving_changes_nothing("kimi_k2", Dtype::Bf16, 1);
}

#[test]
fn interleaving_changes_nothing_with_gqa_and_experts_over_two_ranks() {
    interleaving_changes_nothing("qwen3_moe", Dtype::F32, 2);
}

#[test]
fn interleaving_changes_nothing_with_a_sliding_window() {
    interleaving_changes_nothing("mistral", Dtype::F32, 1);
}

#[test]
fn interleaving_changes_nothing_with_an_fp8_cache() {
    let fp8 = |dtype, tp| ModelOptions { dtype, tp, kv_dtype: KvDtype::Fp8, ..ModelOptions::default() };
    interleaving_with("kimi_k2", &fp8(Dtype::Bf16, 2), 40);
    interleaving_with("mistral", &fp8(Dtype::F32, 1), 40);
}

#[test]
fn interleaving_changes_nothing_with_a_cache_that_is_split_over_ranks() {
    let split = |dtype, tp| ModelOptions { dtype, tp, kv_parallel: true, ..ModelOptions::default() };
    interleaving_with("deepseek_v3", &split(Dtype::F32, 2), 40);
    interleaving_with("kimi_k2", &ModelOptions { kv_dtype: KvDtype::Fp8, ..split(Dtype::Bf16, 2) }, 40);
    interleaving_with("deepseek_v3", &split(Dtype::F32, 4), 64);
    // Ranks with the same KV head share its positions: windows and sinks, and norms over ranks.
    interleaving_with("gpt_oss", &split(Dtype::F32, 4), 40);
    interleaving_with("minimax_m2", &ModelOptions { kv_dtype: KvDtype::Fp8, ..split(Dtype::F32, 8) }, 64);
}
