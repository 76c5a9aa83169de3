use super::*;
use crate::tests::{Header, Put};

fn named(header: &Header) -> Result<Vec<NamedTensor>, String> {
    hf_tensors(&header.read()).map_err(|error| error.to_string())
}

fn find(list: &[NamedTensor], name: &str) -> NamedTensor {
    list.iter().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("{name} is missing")).clone()
}

fn layer(header: Header) -> Header {
    header
        .tensor("blk.1.attn_norm.weight", &[8])
        .tensor("blk.1.attn_q.weight", &[8, 8])
        .tensor("blk.1.attn_q.bias", &[8])
        .tensor("blk.1.attn_k.weight", &[8, 4])
        .tensor("blk.1.attn_v.weight", &[8, 4])
        .tensor("blk.1.attn_output.weight", &[8, 8])
        .tensor("blk.1.ffn_norm.weight", &[8])
}

#[test]
fn a_llama_s_rotated_rows_are_pairs() {
    let dense = layer(Header::dense("llama")).tensor("blk.1.ffn_gate.weight", &[8, 12]);
    let list = named(&dense.tensor(FACTOR_TENSORS[0], &[2])).unwrap();
    let names: Vec<&str> = list.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "model.embed_tokens.weight",
            "model.norm.weight",
            "model.layers.1.input_layernorm.weight",
            "model.layers.1.self_attn.q_proj.weight",
            "model.layers.1.self_attn.q_proj.bias",
            "model.layers.1.self_attn.k_proj.weight",
            "model.layers.1.self_attn.v_proj.weight",
            "model.layers.1.self_attn.o_proj.weight",
            "model.layers.1.post_attention_layernorm.weight",
            "model.layers.1.mlp.gate_proj.weight",
        ]
    );
    let pairs = RowOrder::RotaryPairs { head_dim: 4 };
    let rows: Vec<RowOrder> = list[2..7].iter().map(|tensor| tensor.rows).collect();
    assert_eq!(rows, [RowOrder::Stored, pairs, pairs, pairs, RowOrder::Stored]);
    for arch in ["qwen2", "qwen3"] {
        let list = named(&layer(Header::dense(arch))).unwrap();
        assert_eq!(find(&list, "model.layers.1.self_attn.q_proj.weight").rows, RowOrder::Stored);
    }
    let list = named(&layer(Header::dense("granite"))).unwrap();
    assert_eq!(find(&list, "model.layers.1.self_attn.k_proj.weight").rows, pairs);
    let odd = Header::dense("llama").tensor("blk.0.attn_q.weight", &[8, 6]);
    assert!(named(&odd).unwrap_err().contains("blk.0.attn_q.weight: must have a multiple of 4 rows"));
}

fn part(expert: usize, experts: usize, piece: (usize, usize)) -> Option<ExpertPart> {
    Some(ExpertPart { expert, experts, piece })
}

#[test]
fn merged_experts_are_taken_apart() {
    let moe = |arch: &str| {
        Header::dense(arch)
            .put(&format!("{arch}.expert_count"), Put::U32(3))
            .tensor("blk.0.ffn_gate_inp.weight", &[8, 3])
            .tensor("blk.0.ffn_up_exps.weight", &[8, 12, 3])
    };
    let list = named(&moe("qwen3moe")).unwrap();
    let last = find(&list, "model.layers.0.mlp.experts.2.up_proj.weight");
    assert_eq!((last.part, last.tensor, last.rows), (part(2, 3, (0, 1)), 3, RowOrder::Stored));
    find(&list, "model.layers.0.mlp.gate.weight");
    let joined =
        moe("qwen3moe").without_tensor("blk.0.ffn_up_exps.weight").tensor("blk.0.ffn_gate_up_exps.weight", &[8, 24, 3]);
    let list = named(&joined).unwrap();
    assert_eq!(find(&list, "model.layers.0.mlp.experts.1.gate_proj.weight").part, part(1, 3, (0, 2)));
    assert_eq!(find(&list, "model.layers.0.mlp.experts.1.up_proj.weight").part, part(1, 3, (1, 2)));
    let list = named(&moe("llama").tensor("blk.1.ffn_down.2.weight", &[12, 8])).unwrap();
    find(&list, "model.layers.0.block_sparse_moe.gate.weight");
    find(&list, "model.layers.0.block_sparse_moe.experts.0.w3.weight");
    assert_eq!(find(&list, "model.layers.1.block_sparse_moe.experts.2.w2.weight").part, None);
    let wrong = moe("llama").tensor("blk.0.ffn_down_exps.weight", &[12, 8, 4]);
    assert!(named(&wrong).unwrap_err().contains("must have 3 dimensions, the last of expert_count, 3"));
    let twice = moe("llama").tensor("blk.0.ffn_up.1.weight", &[8, 12]);
    assert!(named(&twice).unwrap_err().contains("blk.0.ffn_up_exps.weight and blk.0.ffn_up.1.weight: both are"));
    assert!(named(&moe("llama").tensor("blk.0.ffn_up.3.weight", &[8, 12])).unwrap_err().contains("is unknown"));
}

#[test]
fn deepseek_s_latent_attention_has_its_names() {
    let header = Header::dense("deepseek2")
        .put("deepseek2.expert_count", Put::U32(2))
        .tensor("blk.0.attn_q_a.weight", &[8, 4])
        .tensor("blk.0.attn_kv_a_mqa.weight", &[8, 4])
        .tensor("blk.0.attn_k_b.weight", &[4, 8, 2])
        .tensor("blk.0.attn_v_b.weight", &[8, 4, 2])
        .tensor("blk.1.attn_kv_b.weight", &[8, 16])
        .tensor("blk.1.exp_probs_b.bias", &[2])
        .tensor("blk.1.ffn_up_shexp.weight", &[8, 6]);
    let list = named(&header).unwrap();
    for name in [
        "0.self_attn.q_a_proj.weight",
        "0.self_attn.kv_a_proj_with_mqa.weight",
        "0.self_attn.kv_b_proj.k_b",
        "0.self_attn.kv_b_proj.v_b",
        "1.self_attn.kv_b_proj.weight",
        "1.mlp.gate.e_score_correction_bias",
        "1.mlp.shared_experts.up_proj.weight",
    ] {
        find(&list, &format!("model.layers.{name}"));
    }
    assert!(
        named(&header.tensor("blk.0.attn_v.weight", &[8, 4]))
            .unwrap_err()
            .contains("attn_v.weight: the tensor is unknown")
    );
}

#[test]
fn layers_of_multi_token_prediction_are_left_out() {
    let declared = Header::dense("llama").put("llama.nextn_predict_layers", Put::U32(1));
    let list = named(&declared.tensor("blk.1.attn_norm.weight", &[8]).tensor("blk.1.nextn.eh_proj.weight", &[8, 8]));
    assert_eq!(list.unwrap().len(), 2);
    let undeclared = Header::dense("llama").tensor("blk.2.attn_norm.weight", &[8]);
    assert_eq!(named(&undeclared.clone().tensor("blk.2.nextn.enorm.weight", &[8])).unwrap().len(), 2);
    assert_eq!(named(&undeclared).unwrap_err(), "blk.2.attn_norm.weight: the layer must be below block_count, 2");
}

#[test]
fn unknown_tensors_are_refused_by_name() {
    for name in [
        "blk.0.attn_sinks.weight",
        "blk.0.attn_norm.bias",
        "blk.0.ffn_up.scale",
        "blk.01.attn_norm.weight",
        "blk.+1.attn_norm.weight",
        "blk.attn_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.attn_q_norm.weight",
        "output.bias",
        "cls.output.weight",
        "",
    ] {
        let expected = format!("{name}: the tensor is unknown in this architecture");
        assert_eq!(named(&Header::dense("llama").tensor(name, &[8])).unwrap_err(), expected);
    }
}

#[test]
fn a_recurrent_layer_s_numbers_are_changed_back() {
    let header = Header::dense("qwen35")
        .put("qwen35.ssm.time_step_rank", Put::U32(4))
        .put("qwen35.ssm.inner_size", Put::U32(16))
        .put("qwen35.ssm.group_count", Put::U32(2))
        .put("qwen35.ssm.state_size", Put::U32(3))
        .tensor("blk.0.attn_qkv.weight", &[8, 28])
        .tensor("blk.0.ssm_out.weight", &[16, 8])
        .tensor("blk.0.attn_norm.weight", &[8])
        .tensor("blk.0.ssm_a", &[4])
        .tensor("blk.0.ssm_dt.bias", &[4])
        .tensor("blk.0.ssm_norm.weight", &[4])
        .tensor("blk.1.attn_q_norm.weight", &[4]);
    let list = named(&header).unwrap();
    let change = |name: &str| find(&list, &format!("model.{name}")).change;
    assert_eq!(change("layers.0.linear_attn.A_log"), Change::NegativeExp);
    assert_eq!(change("layers.0.linear_attn.dt_bias"), Change::Nothing);
    assert_eq!(change("layers.0.linear_attn.norm.weight"), Change::Nothing);
    for name in ["layers.0.input_layernorm.weight", "layers.1.self_attn.q_norm.weight", "norm.weight"] {
        assert_eq!(change(name), Change::PlusOne, "{name}");
    }
    let qkv = InTurn { after: 12, groups: 2, width: 4 };
    assert_eq!(find(&list, "model.layers.0.linear_attn.in_proj_qkv.weight").rows, RowOrder::InTurn(qkv));
    let out = find(&list, "model.layers.0.linear_attn.out_proj.weight");
    assert_eq!((out.rows, out.cols), (RowOrder::Stored, Some(InTurn { after: 0, ..qkv })));
    // Heads of groups a and b: a0, a1, b0, b1 on the Hub, a0, b0, a1, b1 in the file.
    let stored = [0, 11, 12, 16, 21, 24].map(|row| qkv.stored(row, 28));
    assert_eq!(stored, [0, 11, 12, 20, 17, 24]);
    let odd = named(&header.without_tensor("blk.0.ssm_out.weight").tensor("blk.0.ssm_out.weight", &[12, 8]));
    assert!(odd.unwrap_err().contains("blk.0.ssm_out.weight: must have 0 rows and a multiple of 2 times 4 more"));
    let mut numbers = [-(0.5_f32.exp()), -(2.0_f32.exp())];
    Change::NegativeExp.undo(&mut numbers);
    assert!((numbers[0] - 0.5).abs() < 1e-6 && (numbers[1] - 2.0).abs() < 1e-6, "{numbers:?}");
}
