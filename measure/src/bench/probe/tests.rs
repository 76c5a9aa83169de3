use super::*;

fn tensors(list: &[(&str, &str, &[u64], u64)]) -> BTreeMap<String, Tensor> {
    let tensor = |(name, dtype, shape, bytes): &(&str, &str, &[u64], u64)| {
        (name.to_string(), Tensor { dtype: dtype.to_string(), shape: shape.to_vec(), data_offsets: [8, 8 + bytes] })
    };
    list.iter().map(tensor).collect()
}

#[test]
fn a_token_reads_dense_weights_and_its_share_of_the_experts() {
    let config = serde_json::json!({ "n_routed_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1 });
    let list = tensors(&[
        ("model.embed_tokens.weight", "BF16", &[100, 8], 1600),
        ("lm_head.weight", "BF16", &[100, 8], 1600),
        ("model.layers.0.mlp.gate.weight", "F32", &[4, 8], 128),
        ("model.layers.0.mlp.experts.0.up_proj.weight", "BF16", &[16, 8], 256),
        ("model.layers.0.mlp.experts.1.up_proj.weight", "BF16", &[16, 8], 256),
        ("model.layers.0.mlp.shared_experts.up_proj.weight", "BF16", &[16, 8], 256),
        ("model.layers.1.eh_proj.weight", "BF16", &[16, 8], 256),
        ("vision_tower.blocks.0.weight", "BF16", &[16, 8], 256),
    ]);
    let sum = sum_weights(&config, &list, None);
    assert_eq!(sum.active_bytes, 1600.0 + 128.0 + 256.0 + 256.0);
    assert_eq!(sum.total_parameters, 800.0 * 2.0 + 32.0 + 3.0 * 128.0);
    assert_eq!(sum.active_parameters, 800.0 + 32.0 + 128.0 + 128.0);
    assert_eq!(sum_weights(&config, &list, Some(1.0)).active_bytes, sum.active_parameters);
}

#[test]
fn tied_embeddings_are_read_as_the_head_and_packed_weights_count_as_eight() {
    let list = tensors(&[
        ("model.embed_tokens.weight", "F32", &[10, 4], 160),
        ("model.layers.0.mlp.up_proj.weight_packed", "I32", &[4, 1], 16),
        ("model.layers.0.mlp.up_proj.weight_scale", "BF16", &[4, 1], 8),
        ("model.layers.0.mlp.up_proj.weight_shape", "I64", &[2], 16),
    ]);
    let sum = sum_weights(&serde_json::json!({}), &list, None);
    assert_eq!((sum.total_parameters, sum.active_bytes), (40.0 + 32.0, 160.0 + 16.0 + 8.0 + 16.0));
}

#[test]
fn an_error_names_the_directory_that_is_not_a_checkpoint() {
    let error = active_weights(Path::new("/nowhere"), None).map_err(|e| e.to_string());
    assert!(error.is_err_and(|e| e.contains("/nowhere") && e.contains("config.json")));
}
