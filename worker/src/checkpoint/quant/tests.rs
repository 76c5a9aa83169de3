use serde_json::{Value, json};

use super::*;

fn read(value: Value) -> Result<Quantization, LoadError> {
    let config = json!({ "quantization_config": value });
    Quantization::read(&ConfigFields::new(config.as_object().expect("object"), ""))
}

fn int4(change: impl FnOnce(&mut Value)) -> Value {
    let mut value = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized", "kv_cache_scheme": null,
        "ignore": ["lm_head"], "quantization_status": "compressed", "config_groups": {"group_0": {
            "input_activations": null, "output_activations": null, "targets": ["Linear"], "weights": {
                "actorder": null, "dynamic": false, "group_size": 32, "num_bits": 4, "observer": "minmax",
                "strategy": "group", "symmetric": true, "type": "int"}}}});
    change(&mut value);
    value
}

#[test]
fn published_formats_are_read() {
    let fp8 = json!({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                     "weight_block_size": [128, 128], "scale_fmt": "ue8m0"});
    assert_eq!(read(fp8).expect("fp8"), Quantization::Fp8 { block: [128, 128] });
    // As written by transformers 5.
    let fp8 = json!({"activation_scheme": "dynamic", "dequantize": false, "expert_dtype": "fp8",
                     "modules_to_convert": null, "modules_to_not_convert": ["lm_head"], "quant_method": "fp8",
                     "scale_fmt": "float", "weight_block_size": [128, 128]});
    assert_eq!(read(fp8).expect("fp8"), Quantization::Fp8 { block: [128, 128] });
    let fp8 = json!({"act_per_tensor": false, "activation_scheme": "dynamic", "fmt": "e4m3",
                     "quant_method": "fp8", "weight_block_size": [128, 128], "weight_per_tensor": false});
    assert_eq!(read(fp8).expect("fp8"), Quantization::Fp8 { block: [128, 128] });
    assert_eq!(read(int4(|_| ())).expect("int4"), Quantization::Int4 { group: 32 });
}

#[test]
fn other_formats_are_rejected_by_name() {
    let weights = |key: &'static str, new: Value| int4(move |v| v["config_groups"]["group_0"]["weights"][key] = new);
    let cases = [
        (json!({"quant_method": "gptq", "bits": 4}), "gptq"),
        (json!({"quant_method": "fp8", "fmt": "e4m3"}), "weight_block_size"),
        (json!({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]}), "static"),
        (json!({"quant_method": "fp8", "expert_dtype": "fp4", "weight_block_size": [128, 128]}), "expert_dtype"),
        (weights("num_bits", 8.into()), "num_bits"),
        (weights("symmetric", false.into()), "symmetric"),
        (weights("actorder", "group".into()), "actorder"),
        (weights("strategy", "channel".into()), "strategy"),
        (int4(|v| v["format"] = "marlin-24".into()), "marlin-24"),
        (int4(|v| v["kv_cache_scheme"] = json!({"num_bits": 8})), "kv_cache_scheme"),
        (int4(|v| v["config_groups"]["group_1"] = json!({"weights": 1})), "group_1"),
    ];
    for (value, name) in cases {
        let error = read(value).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn config_json_says_which_modules_are_quantized() {
    let forms = |value: Value| {
        let config = json!({ "quantization_config": value });
        let config = config.as_object().expect("object");
        StatedForms::read(config, config, ScaleForm::Bf16).expect("forms")
    };
    let ignore = ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"];
    let of_int4 = forms(int4(|value| value["ignore"] = json!(ignore)));
    assert_eq!(of_int4.quantized(), Some("int4"));
    assert_eq!(
        of_int4.of("model.layers.1.mlp.experts.0.up_proj"),
        StoredForm::Int4 { group: 32, scales: ScaleForm::Bf16 }
    );
    for plain in ["self_attn.o_proj", "mlp.shared_experts.up_proj", "mlp.up_proj"] {
        assert_eq!(of_int4.of(&format!("model.layers.0.{plain}")), StoredForm::Bf16, "{plain}");
    }
    let fp8 = forms(json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                           "modules_to_not_convert": ["model.layers.0.mlp"]}));
    let block = [128, 128];
    assert_eq!(fp8.of("model.layers.0.self_attn.o_proj"), StoredForm::Fp8 { block });
    assert_eq!(fp8.of("model.layers.01.mlp"), StoredForm::Fp8 { block });
    for plain in ["lm_head", "language_model.lm_head", "model.layers.0.mlp", "model.layers.0.mlp.up_proj"] {
        assert_eq!(fp8.of(plain), StoredForm::Bf16, "{plain}");
    }
    assert_eq!(forms(Value::Null).of("model.layers.0.mlp.up_proj"), StoredForm::Bf16);
    let config = json!({"quantization_config": int4(|value| value["ignore"] = json!(["re:("]))});
    let config = config.as_object().expect("object");
    let error = StatedForms::read(config, config, ScaleForm::Bf16).err().expect("no regular expression").to_string();
    assert!(error.contains("quantization_config: re:("), "{error}");
}
