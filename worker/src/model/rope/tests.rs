use serde_json::{Value, json};

use super::*;

fn of(config: Value) -> Result<Frequencies, LoadError> {
    read(&ConfigFields::new(config.as_object().expect("object"), ""), 8, 64, 10000.0)
}

#[test]
fn both_spellings_agree() {
    let old = of(json!({"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}})).expect("old");
    let new = of(json!({"rope_parameters": {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}}));
    assert_eq!(old, new.expect("new"));
    assert_eq!(old.inv_freq[0], 0.5);
    assert_eq!(of(json!({})).expect("none"), of(json!({"rope_scaling": null})).expect("null"));
}

#[test]
fn errors_name_what_is_not_implemented() {
    let cases = [
        (json!({"rope_scaling": {"type": "xpos", "factor": 2.0}}), "xpos"),
        (json!({"rope_scaling": {"type": "longrope"}}), "rope_scaling.short_factor"),
        (json!({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1]}}), "rope_scaling.long_factor"),
        (json!({"rope_scaling": {"type": "su", "short_factor": [1, 1], "long_factor": [1, 1]}}), "4 positive numbers"),
        (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor"),
        (json!({"rope_scaling": {"type": "linear", "factor": 2.0, "sections": [1]}}), "sections"),
        (json!({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}), "rope_type"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (json!({"rope_theta": 0}), "rope_theta"),
        (json!({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}), "full_attention"),
    ];
    for (config, name) in cases {
        let error = of(config).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn the_trained_length_may_be_stated_twice_if_both_agree() {
    let with = |top: Value, inner: Value| {
        of(json!({"original_max_position_embeddings": top, "rope_scaling": {"type": "yarn", "factor": 4,
            "original_max_position_embeddings": inner}}))
    };
    let once = with(Value::Null, 32.into()).expect("inside");
    assert_eq!(once, with(32.into(), Value::Null).expect("top level"));
    assert_eq!(once, with(32.into(), 32.into()).expect("both"));
    let error = with(16.into(), 32.into()).expect_err("they differ").to_string();
    assert!(error.contains("original_max_position_embeddings") && error.contains("16"), "{error}");
}

#[test]
fn yarn_keeps_fast_dimensions_and_stretches_slow_ones() {
    let made = of(json!({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32,
        "mscale": 0.5, "mscale_all_dim": 1.0}}))
    .expect("yarn");
    let plain = plain(8, 10000.0);
    assert_eq!(made.inv_freq[0], plain.inv_freq[0]);
    assert!((made.inv_freq[3] - plain.inv_freq[3] / 4.0).abs() < 1e-12);
    assert!((f64::from(made.magnitude) - (0.05 * 4f64.ln() + 1.0) / (0.1 * 4f64.ln() + 1.0)).abs() < 1e-7);
    assert!((made.softmax_mscale - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
}

#[test]
fn longrope_has_one_set_of_factors_for_the_trained_context_and_one_for_longer_ones() {
    let config = json!({"original_max_position_embeddings": 16, "rope_scaling": {"type": "longrope",
        "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 2.0, 4.0, 8.0]}});
    let fields = |context| ConfigFields::new(config.as_object().expect("object"), "").for_context(context);
    let served = |context| read(&fields(context), 8, 64, 10000.0).expect("longrope");
    let plain = plain(8, 10000.0);
    for (context, factor) in [(None, 8.0), (Some(17), 8.0), (Some(16), 2.5), (Some(1), 2.5)] {
        let made = served(context);
        assert!((made.inv_freq[3] - plain.inv_freq[3] / factor).abs() < 1e-12, "{context:?}");
        // sqrt(1 + ln(64 / 16) / ln 16), whatever is served.
        assert!((f64::from(made.magnitude) - 1.5f64.sqrt()).abs() < 1e-7, "{context:?}");
    }
}
