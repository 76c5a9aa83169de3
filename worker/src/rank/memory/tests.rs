use rein_control_plane::place;
use rein_kernels::{StoredForm, cpu::CpuDevices};
use serde_json::json;

use super::super::open;
use super::*;
use crate::limits::MAX_SEQUENCES;

/// The KV cache gets 1 / this of the memory that the weights leave free.
const SHARE: usize = 4;
const PRECISIONS: Precisions = Precisions { base: Precision::Bf16, linear: Precision::Bf16, fp8_cache: false };

fn footprint(spec: &Spec) -> Footprint<'_, CpuDevices> {
    const DEVICES: &CpuDevices = &CpuDevices { threads: 1 };
    Footprint { spec, precisions: PRECISIONS, devices: DEVICES, stored: &|_| StoredForm::Bf16 }
}

/// `free`: the memory that the weights leave.
fn plan(options: &ModelOptions, free: usize) -> Result<KvPlan, LoadError> {
    let config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 8,
        "max_position_embeddings": 100});
    let spec = crate::model::build(config.as_object().expect("object")).expect("spec");
    let placement = place(&spec.shape(), options.tp, 1).expect("placement");
    let weights: usize = placement.ranks.iter().map(|rank| footprint(&spec).held(rank, options.tp)).sum();
    // Embedding and head; then q and o, k and v, and the MLP of each layer.
    if options.tp == 1 {
        assert_eq!(weights, 2 * (2 * 8 * 16 + 2 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 8 * 16)));
    }
    let mine: Vec<&RankPlacement> = placement.ranks.iter().collect();
    KvPlan::with_free(&footprint(&spec), &mine, options.tp, weights, options, weights + free)
}

#[test]
fn the_kv_cache_is_a_share_of_free_memory_and_no_larger_than_useful() {
    // 2 layers * (k + v) * 2 heads * 4 wide * 2 bytes.
    let all = plan(&ModelOptions::default(), 1 << 30).expect("plan");
    assert_eq!((all.bytes_per_token, all.blocks, all.max_context), (64, 7 * MAX_SEQUENCES, 100));
    let few = plan(&ModelOptions::default(), 4 * 64 * 16 * 3).expect("plan");
    assert_eq!((few.blocks, few.max_context), (3, 48));
    assert!(few.to_string().contains("context 48 of 100 tokens"), "{few}");
    let narrow = plan(&ModelOptions { max_sequences: 2, ..Default::default() }, 1 << 30).expect("plan");
    assert_eq!(narrow.blocks, 7 * 2);
    // Four ranks, two heads: each head is held twice.
    let wide = plan(&ModelOptions { tp: 4, ..Default::default() }, 1 << 30).expect("plan");
    assert_eq!(wide.bytes_per_token, 128);
    assert!(all.to_string().contains("448 blocks of 16 tokens"), "{all}");
    assert!(all.to_string().ends_with("context 100 tokens"), "{all}");
}

#[test]
fn caches_that_were_kept_serve_until_much_larger_ones_fit() {
    let options = ModelOptions { max_context: Some(16), ..ModelOptions::default() };
    let planned = |blocks: usize| plan(&options, blocks * SHARE * 64 * 16).expect("plan");
    let kept = |planned_blocks, blocks| planned(planned_blocks).keeping(blocks, &options).map(|plan| plan.blocks);
    assert_eq!(kept(16, 16), Some(16));
    // Other memory is in use now, or less.
    assert_eq!(kept(12, 16), Some(16));
    assert_eq!(kept(18, 16), Some(16));
    assert_eq!(kept(19, 16), None);
    // Now a context of two blocks is asked for.
    let longer = ModelOptions { max_context: Some(32), ..options.clone() };
    assert_eq!(planned(1).keeping(1, &longer), None);
}

#[test]
fn the_weights_are_shown_with_their_types() {
    let bytes = 3 << 20;
    assert_eq!(WeightMemory { bytes, precisions: PRECISIONS }.to_string(), "bf16, 3.0 MiB");
    let precisions = Precisions { linear: Precision::Int8, ..PRECISIONS };
    let shown = WeightMemory { bytes, precisions }.to_string();
    assert_eq!(shown, "int8 (embedding and KV cache bf16), 3.0 MiB");
}

#[test]
fn a_new_layout_has_room_beside_the_current_one() {
    let spec = |experts: usize| {
        let config = json!({"architectures": ["MixtralForCausalLM"], "vocab_size": 8, "hidden_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 8,
            "num_local_experts": experts, "num_experts_per_tok": 2, "max_position_embeddings": 100});
        crate::model::build(config.as_object().expect("object")).expect("spec")
    };
    let expert = 2 * 3 * 16 * 8;
    let of = |experts: usize, ranks, redundant| {
        let spec = spec(experts);
        let placement = place(&spec.shape(), ranks, 1).expect("placement");
        bytes_of_moves(&footprint(&spec), &placement.ranks[0], redundant) / expert
    };
    assert_eq!(of(8, 1, 2), 0, "it holds all");
    assert_eq!(of(8, 2, 2), 2 * 4, "all that it lacks");
    assert_eq!(of(256, 4, 2), 66, "those of one layer");
    assert_eq!(of(128, 4, 2), EXPERT_MOVES);
    // The KV cache is a share of the rest.
    let (spec, options) = (spec(128), ModelOptions { tp: 4, max_sequences: 1 << 40, ..Default::default() });
    let placement = place(&spec.shape(), 4, 1).expect("placement");
    let mine: Vec<&RankPlacement> = placement.ranks[..2].iter().collect();
    let blocks = |to_load: &[&RankPlacement], free: usize| {
        let to_load = to_load.iter().copied();
        let plan = KvPlan::within(&footprint(&spec), &mine, to_load, 4, &options, free).expect("plan");
        plan.blocks * plan.block_size * plan.bytes_per_token * SHARE
    };
    let (room, free) = (2 * EXPERT_MOVES * expert, 1 << 30);
    let (loaded, all) = (blocks(&[], free), blocks(&mine, free));
    let weights: usize = mine.iter().map(|rank| footprint(&spec).held(rank, 4)).sum();
    let block = 64 * 16 * SHARE;
    assert!((free - room).abs_diff(loaded) <= block, "{loaded}");
    assert!((free - room - weights).abs_diff(all) <= block, "{all}");
}

#[test]
fn errors_say_what_does_not_fit() {
    let of = |options: ModelOptions, free| plan(&options, free).expect_err("refused").to_string();
    assert!(of(ModelOptions { max_context: Some(101), ..Default::default() }, 1 << 30).contains("100"));
    assert!(of(ModelOptions { max_context: Some(64), ..Default::default() }, 4 * 64 * 16 * 3).contains("64 tokens"));
    assert!(of(ModelOptions::default(), 0).contains("kv_memory"));
    assert!(of(ModelOptions::default(), 64).contains("one block"));
}

#[test]
fn recurrent_states_have_room_beside_the_kv_cache() {
    let config = json!({"architectures": ["Qwen3NextForCausalLM"], "vocab_size": 8, "hidden_size": 16,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "num_experts": 0, "intermediate_size": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "max_position_embeddings": 100000});
    let spec = crate::model::build(config.as_object().expect("object")).expect("spec");
    let plan = |options: &ModelOptions, ranks: usize, free: usize| {
        let placement = place(&spec.shape(), ranks, 1).expect("placement");
        let mine: Vec<&RankPlacement> = placement.ranks.iter().collect();
        KvPlan::with_free(&footprint(&spec), &mine, ranks, 0, options, free)
    };
    let options = ModelOptions { max_sequences: 4, ..ModelOptions::default() };
    let budget = 2 << 20;
    let all = plan(&options, 1, SHARE * budget).expect("plan");
    let states = all.states.expect("it has recurrent layers");
    // Three layers of 3 inputs for 2 * (2 * 8 + 2 * 8) channels and 4 states of 8 * 8, in f32; one layer of keys and
    // values of 2 heads, in bf16.
    assert_eq!((states.bytes, all.bytes_per_token), (3 * 4 * (3 * 64 + 4 * 64), 2 * 2 * 2 * 16));
    assert_eq!(states.every, (states.bytes / all.bytes_per_token).next_multiple_of(16));
    assert!((budget - budget / 20..=budget).contains(&all.bytes()), "{all:?}: {} of {budget}", all.bytes());
    let cells = all.state_size(all.blocks).cells;
    assert_eq!(cells, all.tokens() / states.every + 4 + 4 * RECENT_STATES);
    assert!(all.to_string().contains(&format!("{cells} recurrent states of 5.2 KiB, context")), "{all}");
    // Two ranks together hold the same states.
    let two = plan(&options, 2, SHARE * budget).expect("plan").states.expect("states");
    assert_eq!((two.bytes, two.every), (states.bytes, states.every));
    let many = plan(&ModelOptions { max_sequences: 100, ..options }, 1, SHARE * budget).expect_err("no room");
    assert!(many.to_string().contains("max_sequences") && many.to_string().contains("100 sequences"), "{many}");
}

#[test]
fn a_split_cache_holds_as_many_times_the_tokens_as_there_are_ranks() {
    let config = json!({"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 8, "hidden_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 8, "max_position_embeddings": 100_000,
        "q_lora_rank": null, "kv_lora_rank": 16, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
        "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rope_theta": 10000.0});
    let spec = crate::model::build(config.as_object().expect("object")).expect("spec");
    let plan = |tp, kv_parallel| {
        let options = ModelOptions { tp, kv_parallel, max_sequences: 1000, ..ModelOptions::default() };
        let placement = place(&spec.shape(), tp, 1).expect("placement");
        let mine: Vec<&RankPlacement> = placement.ranks.iter().collect();
        KvPlan::with_free(&footprint(&spec), &mine, tp, 0, &options, 4 << 20).expect("plan")
    };
    let (one, whole, split) = (plan(1, false), plan(8, false), plan(8, true));
    // 2 layers of 20 numbers of 2 bytes.
    assert_eq!([&one, &whole, &split].map(|plan| plan.bytes_per_token), [80, 640, 80]);
    assert!(split.tokens() >= 8 * whole.tokens() - 8 * 64 && split.tokens() > one.tokens() - 8 * 64, "{split}");
    assert_eq!((split.blocks % 32, split.state_size(split.blocks).blocks), (0, split.blocks / 8));
    let refused = |tp| open::check_split(&spec, tp, &ModelOptions { tp, kv_parallel: true, ..ModelOptions::default() });
    assert!(
        refused(8).is_ok() && refused(16).expect_err("refused").to_string().contains("got 16 ranks and blocks of 16")
    );
    for (ranks, size, fits) in [(8, 64, true), (4, 16, true), (1, 48, false), (3, 16, false), (16, 16, false)] {
        assert_eq!(rein_kernels::KvSplit::fits(ranks, size), fits, "{ranks} ranks, blocks of {size}");
    }
}

/// Ranks that have the same KV head share its positions.
#[test]
fn a_cache_of_groups_is_split_where_ranks_outnumber_kv_heads() {
    let config = json!({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 8, "hidden_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 8, "max_position_embeddings": 100_000, "rms_norm_eps": 1e-6, "rope_theta": 10000.0});
    let spec = crate::model::build(config.as_object().expect("object")).expect("spec");
    let options = |tp, kv_parallel| ModelOptions { tp, kv_parallel, max_sequences: 1000, ..ModelOptions::default() };
    let plan = |tp, kv_parallel| {
        let placement = place(&spec.shape(), tp, 1).expect("placement");
        let mine: Vec<&RankPlacement> = placement.ranks.iter().collect();
        KvPlan::with_free(&footprint(&spec), &mine, tp, 0, &options(tp, kv_parallel), 4 << 20).expect("plan")
    };
    let (two, whole, split) = (plan(2, false), plan(8, false), plan(8, true));
    // 2 layers of keys and values of 2 heads, in bf16; 8 ranks have each head four times.
    assert_eq!([&two, &whole, &split].map(|plan| plan.bytes_per_token), [256, 1024, 256]);
    assert_eq!((split.kv_ranks, split.state_size(split.blocks).blocks), (4, split.blocks / 4));
    assert!(split.tokens() >= 4 * whole.tokens() - 4 * 64 && split.tokens() <= two.tokens(), "{split}");
    let refused =
        |options: &ModelOptions| open::check_split(&spec, options.tp, options).expect_err("refused").to_string();
    let without = refused(&options(2, true));
    assert!(
        without.contains("kv_parallel") && without.contains("no two of 2 ranks have: this model has 2 KV"),
        "{without}"
    );
    let on_gpus = refused(&ModelOptions { devices: DeviceChoice::gpus(Vec::new()), ..options(8, true) });
    assert!(on_gpus.contains("on GPUs splits the cache of latent attention (MLA) alone"), "{on_gpus}");
}
