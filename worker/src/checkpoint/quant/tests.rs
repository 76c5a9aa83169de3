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
    // One scale for each tensor.
    for scaled in [
        json!({"quant_method": "fp8", "activation_scheme": "static", "fmt": "e4m3"}),
        json!({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}),
    ] {
        assert_eq!(read(scaled).expect("fp8"), Quantization::Fp8Scaled { block: None });
    }
    // Not known before the tensors are: groups of inputs that are no neighbours.
    let ordered = int4(|v| v["config_groups"]["group_0"]["weights"]["actorder"] = "group".into());
    let form = CodedForm::Packed { bits: 4, group: Some(32), symmetric: true };
    assert_eq!(read(ordered).expect("int4"), Quantization::Coded(form));
    let gptq = json!({"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"});
    let form = CodedForm::Gptq { bits: 8, group: None, offset: 0, symmetric: false };
    assert_eq!(read(gptq).expect("gptq"), Quantization::Coded(form));
}

#[test]
fn other_formats_are_rejected_by_name() {
    let weights = |key: &'static str, new: Value| int4(move |v| v["config_groups"]["group_0"]["weights"][key] = new);
    let gptq = |key: &str, new: Value| {
        let mut value = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": true});
        value[key] = new;
        value
    };
    let awq = |key: &str, new: Value| {
        let mut value =
            json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true});
        value[key] = new;
        value
    };
    let cases = [
        (json!({"quant_method": "bitsandbytes"}), "bitsandbytes"),
        (json!({"quant_method": "fp8", "activation_scheme": "other", "weight_block_size": [128, 128]}), "other"),
        (json!({"quant_method": "fp8", "expert_dtype": "fp4", "weight_block_size": [128, 128]}), "expert_dtype"),
        (gptq("bits", 3.into()), "bits must be 4 or 8, got 3"),
        (gptq("group_size", 0.into()), "group_size"),
        (gptq("checkpoint_format", "marlin".into()), "marlin"),
        (gptq("dynamic", json!({"-:.*mlp.*": {}})), "dynamic"),
        (gptq("lm_head", true.into()), "lm_head"),
        (gptq("new_key", 1.into()), "new_key"),
        (awq("bits", 8.into()), "bits"),
        (awq("version", "gemv".into()), "gemv"),
        (awq("zero_point", false.into()), "zero_point"),
        (json!({"quant_method": "modelopt", "quant_algo": "W4A8"}), "W4A8"),
        (json!({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}), "KV cache"),
        (weights("num_bits", 3.into()), "num_bits 3"),
        (weights("group_size", Value::Null), "group_size"),
        (weights("strategy", "tensor".into()), "strategy \"tensor\""),
        (weights("type", "float".into()), "type \"float\""),
        (int4(|v| v["format"] = "marlin-24".into()), "marlin-24"),
        (int4(|v| v["kv_cache_scheme"] = json!({"num_bits": 8})), "kv_cache_scheme"),
        (int4(|v| v["config_groups"]["group_0"]["output_activations"] = json!({"num_bits": 8})), "output_activations"),
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
