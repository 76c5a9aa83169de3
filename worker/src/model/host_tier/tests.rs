//! Prefixes that left the cache come back with the same bits, or are computed again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rein_proto::internal::{EngineStats, Finish, FinishReason, Limits, Sampling, Start, from_engine};

use super::*;
use crate::executor::Executor;
use crate::rank::{Dtype, ModelOptions, RankGroup};
use crate::scheduler::{EngineOptions, Scheduler, SchedulerEvent};

const BLOCK: usize = 4;

fn options(tp: usize, host: HostLimits) -> ModelOptions {
    let (dtype, kv_blocks) = (Dtype::Bf16, Some(20));
    ModelOptions { dtype, tp, threads: Some(tp), kv_blocks, block_size: BLOCK, host, ..ModelOptions::default() }
}

fn load(model: &str, tp: usize, host: HostLimits) -> Result<RankGroup, LoadError> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(model);
    RankGroup::load(&dir, &options(tp, host), &mut |_, _| {})
}

/// Four prompts of more than half of the cache, of which the third continues the second.
fn prompts(vocab: usize) -> [Vec<u32>; 4] {
    let of = |seed: u32, count: u32| (0..count).map(|i| (i * 7 + seed * 13) % vocab as u32).collect::<Vec<u32>>();
    [of(1, 45), of(2, 42), [of(2, 42), of(3, 9)].concat(), of(4, 50)]
}

/// The tokens that each prompt gets, one after the other, and the stats of all.
fn answers(group: &mut RankGroup, prompts: &[Vec<u32>]) -> (Vec<Vec<u32>>, EngineStats) {
    let mut scheduler = Scheduler::new(&group.shape(), EngineOptions { max_sequences: 2, ..EngineOptions::default() });
    let mut all = Vec::new();
    for (seq, prompt) in (1..).zip(prompts) {
        let start = Start {
            prompt: prompt.clone(),
            sampling: Some(Sampling {
                temperature: 0.7,
                top_p: 1.0,
                repetition_penalty: 1.0,
                seed: 5,
                ..Sampling::default()
            }),
            limits: Some(Limits { max_tokens: 6, ..Limits::default() }),
            logprobs: 0,
            prompt_logprobs: -1,
            ..Start::default()
        };
        scheduler.apply(SchedulerEvent::Start { seq, start: Box::new(start), lora: None }).expect("room");
        let (mut tokens, mut ended) = (Vec::new(), None);
        while ended.is_none() {
            let step = scheduler.schedule(group.placed(), Duration::ZERO).expect("a step");
            scheduler.check().expect("intact");
            scheduler.commit(group.execute(step).expect("executed"));
            for output in scheduler.take_outputs() {
                match output.message.kind.expect("set") {
                    from_engine::Kind::Tokens(drawn) => {
                        tokens.extend(drawn.ids);
                        // The bits of what the token was drawn from.
                        tokens.extend(drawn.logprobs.iter().map(|of| of.logprob.expect("asked for").to_bits()));
                    }
                    from_engine::Kind::Finish(Finish { reason, .. }) => ended = Some(reason),
                    from_engine::Kind::Admitted(_) => {}
                }
            }
        }
        assert_eq!(ended, Some(FinishReason::Length.into()));
        all.push(tokens);
    }
    (all, scheduler.stats())
}

fn vocab(group: &RankGroup) -> usize {
    group.shape().vocab_size
}

/// A directory with the files of a tier.
struct KeptFiles(PathBuf);

impl KeptFiles {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rein-host-tier-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        KeptFiles(path)
    }

    fn limits(&self, bytes: usize) -> HostLimits {
        HostLimits { bytes, file: Some(self.0.join("kv")) }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.0.read_dir().expect("readable").map(|entry| entry.expect("an entry").path()).collect()
    }
}

impl Drop for KeptFiles {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("its own");
    }
}

#[test]
fn what_left_the_cache_comes_back_with_the_same_bits() {
    for (model, tp) in [("qwen3", 1), ("qwen3", 2), ("deepseek_v3", 2)] {
        let mut plain = load(model, tp, HostLimits::default()).expect("loads");
        let prompts = prompts(vocab(&plain));
        let twice = [&prompts[..], &prompts[..]].concat();
        let (want, without) = answers(&mut plain, &twice);
        assert_eq!(without.restored_tokens, 0);
        for file in [false, true] {
            let kept = KeptFiles::new();
            let limits = HostLimits { file: kept.limits(0).file.filter(|_| file), bytes: 16 << 20 };
            let mut group = load(model, tp, limits).expect("loads");
            let (got, stats) = answers(&mut group, &twice);
            assert_eq!(got, want, "{model}, {tp} ranks, file: {file}");
            assert!(stats.restored_tokens > 120, "{model}: {stats:?}");
            assert!(stats.prefill_tokens + 120 < without.prefill_tokens, "{stats:?}, without {without:?}");
            assert_eq!(stats.damaged_blocks, 0);
        }
    }
}

/// Prompts that all ranks have positions of.
fn long_prompts() -> Vec<Vec<u32>> {
    (0..4).map(|seed| (0..110).map(|i| (i * 7 + seed * 13) % 250).collect()).collect()
}

fn split_options(tp: usize, host: HostLimits) -> ModelOptions {
    let kv_blocks = Some(16 * tp.min(4));
    ModelOptions { kv_parallel: true, dtype: Dtype::F32, kv_blocks, ..options(tp, host) }
}

fn load_with(model: &str, options: &ModelOptions) -> Result<RankGroup, LoadError> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(model);
    RankGroup::load(&dir, options, &mut |_, _| {})
}

fn load_split(model: &str, tp: usize, host: HostLimits) -> RankGroup {
    load_with(model, &split_options(tp, host)).expect("loads")
}

/// Of each, the ranks that share positions: all, or those with the same KV head.
const SPLIT: [(&str, usize, usize); 4] =
    [("deepseek_v3", 2, 2), ("deepseek_v3", 4, 4), ("qwen3", 4, 2), ("gpt_bigcode", 4, 4)];

#[test]
fn a_cache_that_is_split_has_the_tokens_of_one_that_is_not() {
    // Recurrent layers beside are whole.
    for (model, tp, ranks) in SPLIT.into_iter().chain([("qwen3_next", 4, 2)]) {
        let (prompts, none) = (long_prompts(), HostLimits::default());
        let mut whole = load_with(model, &ModelOptions { kv_parallel: false, ..split_options(tp, none.clone()) });
        let mut split = load_split(model, tp, none);
        assert_eq!(split.shape().kv_ranks, ranks);
        let (want, _) = answers(whole.as_mut().expect("loads"), &prompts);
        let (got, _) = answers(&mut split, &prompts);
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            let (a, b) = (f32::from_bits(*got), f32::from_bits(*want));
            // A token, or a logprob.
            assert!(got == want || (a - b).abs() < 1e-4, "{model} on {tp} ranks: {got} ({a}), {want} ({b})");
        }
    }
}

/// A place is of the ranks whose positions it holds, and all of a rank's memory has places.
#[test]
fn a_cache_that_is_split_over_ranks_has_a_tier_in_memory() {
    let (prompts, host) = (long_prompts(), HostLimits { bytes: 4 << 20, file: None });
    let twice = [&prompts[..], &prompts[..]].concat();
    for (model, tp, ranks) in SPLIT {
        let (want, _) = answers(&mut load_split(model, tp, HostLimits::default()), &twice);
        let mut group = load_split(model, tp, host.clone());
        let whole = load_with(model, &ModelOptions { kv_parallel: false, ..split_options(tp, host.clone()) });
        assert_eq!(group.shape().host.places, ranks * whole.expect("loads").shape().host.places, "{model}, {tp} ranks");
        let (got, stats) = answers(&mut group, &twice);
        assert_eq!(got, want, "{model}, {tp} ranks");
        assert!(stats.restored_tokens > 300 && stats.damaged_blocks == 0, "{model}: {stats:?}");
    }
}

/// Each rank has a file with the blocks that it holds, of which the leader's says what all of them hold.
#[test]
fn files_of_ranks_that_share_positions_outlive_their_process() {
    let prompts = long_prompts();
    for (model, tp, ranks) in SPLIT {
        let kept = KeptFiles::new();
        let mut group = load_split(model, tp, kept.limits(16 << 20));
        let (want, _) = answers(&mut group, &prompts);
        drop(group);
        assert_eq!(kept.files().len(), tp);
        let mut group = load_split(model, tp, kept.limits(16 << 20));
        let (places, next) = (group.shape().host.kept.clone(), group.shape().host.next_content);
        assert!(places.len() >= 4 * 110 / BLOCK && places.iter().all(|kept| kept.content < next), "{}", places.len());
        // The prompts have two tiles.
        for class in 0..2 {
            assert!(places.iter().any(|kept| kept.place as usize % ranks == class), "{model}: none of rank {class}");
        }
        let (got, stats) = answers(&mut group, &prompts);
        assert_eq!((got, stats.damaged_blocks), (want.clone(), 0), "{model}, {tp} ranks");
        assert!(stats.restored_tokens >= 4 * 100, "{stats:?}");
        drop(group);

        // The bytes of one rank's blocks are torn. What follows such a block is computed again.
        let files = |rank: usize| kept.0.join(format!("kv.{rank}-of-{tp}"));
        let torn = files(1);
        let bytes = std::fs::read(&torn).expect("readable");
        let flipped: Vec<u8> =
            bytes.iter().enumerate().map(|(at, byte)| if at % 4096 == 400 { byte ^ 1 } else { *byte }).collect();
        std::fs::write(&torn, flipped).expect("writable");
        let mut group = load_split(model, tp, kept.limits(16 << 20));
        let (got, stats) = answers(&mut group, &prompts);
        assert_eq!(got, want, "{model}, {tp} ranks");
        assert!(stats.damaged_blocks > 0, "{stats:?}");
        drop(group);

        // The same ranks without the split have other blocks: files begin empty. Nor do split ones use what they left.
        let whole = load_with(model, &ModelOptions { kv_parallel: false, ..split_options(tp, kept.limits(16 << 20)) });
        assert_eq!(whole.expect("loads").shape().host.kept.len(), 0);
        let mut group = load_split(model, tp, kept.limits(16 << 20));
        assert_eq!(group.shape().host.kept.len(), 0);
        answers(&mut group, &prompts);
        drop(group);
        // Another rank's file under this rank's name.
        std::fs::copy(files(1), files(0)).expect("copies");
        assert_eq!(load_split(model, tp, kept.limits(16 << 20)).shape().host.kept.len(), 0);
    }
}

/// After a crash, a rank's file may have a content that the leader's lacks: its number is not given again.
#[test]
fn numbers_of_contents_that_another_rank_has_are_not_given_again() {
    let kept = KeptFiles::new();
    let mut group = load("qwen3", 2, kept.limits(16 << 20)).expect("loads");
    let prompts = prompts(vocab(&group));
    answers(&mut group, &prompts);
    drop(group);
    let next = load("qwen3", 2, kept.limits(16 << 20)).expect("loads").shape().host.next_content;
    let leader = kept.0.join("kv.0-of-2");
    let bytes = std::fs::read(&leader).expect("readable");
    // All but the header.
    let lost: Vec<u8> = bytes.iter().enumerate().map(|(at, byte)| if at < 4096 { *byte } else { 0 }).collect();
    std::fs::write(&leader, lost).expect("writable");
    let group = load("qwen3", 2, kept.limits(16 << 20)).expect("loads");
    assert_eq!((group.shape().host.kept.len(), group.shape().host.next_content), (0, next));
    assert!(next > 20);
}

#[test]
fn a_file_outlives_its_process() {
    for tp in [1, 2] {
        let kept = KeptFiles::new();
        let mut group = load("qwen3", tp, kept.limits(16 << 20)).expect("loads");
        let prompts = prompts(vocab(&group));
        let (want, _) = answers(&mut group, &prompts);
        let error = load("qwen3", tp, kept.limits(16 << 20)).err().expect("in use");
        assert!(error.to_string().contains("is in use by another process"), "{error}");
        drop(group);
        let mut group = load("qwen3", tp, kept.limits(16 << 20)).expect("loads");
        assert!(group.shape().host.kept.len() > 20, "{:?}", group.shape().host.kept.len());
        let (got, stats) = answers(&mut group, &prompts[..2]);
        assert_eq!((&got[..], stats.damaged_blocks), (&want[..2], 0));
        assert!(stats.restored_tokens >= 80, "{stats:?}");
        drop(group);

        // Of another model, of another size, or cut short: it begins empty.
        let other = load("qwen3_moe", tp, kept.limits(16 << 20)).expect("loads");
        assert_eq!(other.shape().host.kept.len(), 0);
        drop(other);
        let mut group = load("qwen3", tp, kept.limits(16 << 20)).expect("loads");
        assert_eq!(group.shape().host.kept.len(), 0);
        answers(&mut group, &prompts);
        drop(group);
        let file = kept.files().pop().expect("a file");
        let whole = file.metadata().expect("there").len();
        std::fs::File::options().write(true).open(&file).expect("opens").set_len(whole / 3).expect("is cut");
        let mut group = load("qwen3", tp, kept.limits(16 << 20)).expect("loads");
        let (got, _) = answers(&mut group, &prompts);
        assert_eq!(got, want, "a file that was cut short");
    }
}

#[test]
fn damaged_blocks_are_computed_again() {
    for tp in [1, 2] {
        let kept = KeptFiles::new();
        let mut group = load("qwen3", tp, kept.limits(16 << 20)).expect("loads");
        let prompts = prompts(vocab(&group));
        let (want, _) = answers(&mut group, &prompts);
        drop(group);
        // One rank's part is enough.
        let file = kept.files().into_iter().max().expect("a file");
        let bytes = std::fs::read(&file).expect("readable");
        let flipped: Vec<u8> = bytes
            .iter()
            .enumerate()
            // Behind the head of each record.
            .map(|(at, byte)| if at % 4096 == 400 { byte ^ 1 } else { *byte })
            .collect();
        std::fs::write(&file, flipped).expect("writable");
        let mut group = load("qwen3", tp, kept.limits(16 << 20)).expect("loads");
        let (got, stats) = answers(&mut group, &prompts[..2]);
        assert_eq!(got, want[..2]);
        assert!(stats.damaged_blocks > 0 && stats.restored_tokens == 0, "{stats:?}");
    }
}

#[test]
fn a_tier_that_cannot_be_had_is_told() {
    let refused = |host: HostLimits| load("qwen3", 1, host).err().expect("refused").to_string();
    assert!(refused(HostLimits { bytes: 100, file: None }).contains("hold no KV block"));
    let full = refused(HostLimits { bytes: 16 << 20, file: Some("/dev/full".into()) });
    assert!(full.contains("host_kv") && full.contains("/dev/full"), "{full}");
    let nowhere = refused(HostLimits { bytes: 16 << 20, file: Some("/nowhere/kv".into()) });
    assert!(nowhere.contains("No such file"), "{nowhere}");
}
