use serde_json::json;

use super::*;

fn finish(value: Value, read: &[&str]) -> Result<(), LoadError> {
    let fields = ConfigFields::new(value.as_object().expect("object"), "");
    for key in read {
        fields.get(key);
    }
    fields.finish()
}

#[test]
fn a_key_is_read_harmless_null_or_rejected_by_name() {
    assert!(finish(json!({"hidden_size": 1, "use_cache": true, "new_thing": null}), &["hidden_size"]).is_ok());
    let error = finish(json!({"new_thing": 1}), &[]).expect_err("unknown").to_string();
    assert!(error.contains("new_thing"), "{error}");
    assert!(finish(json!({"is_encoder_decoder": false}), &[]).is_ok());
    assert!(finish(json!({"is_encoder_decoder": true}), &[]).is_err());
}

#[test]
fn errors_name_wrong_types_and_fixed_values() {
    let value = json!({"n": "4", "act": "gelu", "x": 1});
    let fields = ConfigFields::new(value.as_object().expect("object"), "rope_scaling.");
    assert!(fields.usize("n").expect_err("string").to_string().contains("rope_scaling.n"));
    assert!(fields.require("act", "silu").expect_err("gelu").to_string().contains("\"silu\""));
    assert!(fields.require("x", 1.0).is_ok());
    assert!(fields.size("y").expect_err("missing").to_string().contains("required"));
}
