use serde_json::json;

use super::*;

#[test]
fn values_in_range_are_accepted_and_null_is_absent() {
    let config = json!({"temperature": 0, "top_p": 1.0, "top_k": -1, "min_p": null, "repetition_penalty": 1.1,
        "max_new_tokens": 2048, "do_sample": true});
    let defaults = defaults(&config).unwrap();
    assert_eq!((defaults.temperature, defaults.top_p, defaults.top_k), (Some(0.0), Some(1.0), Some(0)));
    assert_eq!((defaults.min_p, defaults.repetition_penalty), (None, Some(1.1)));
    assert_eq!((defaults.max_new_tokens, defaults.do_sample), (Some(2048), Some(true)));
    assert_eq!(super::defaults(&Json::Null).unwrap(), GenerationDefaults::default());
}

#[test]
fn errors_name_the_key_and_the_value() {
    for (key, value) in [
        ("temperature", json!(-0.1)),
        ("temperature", json!("0.6")),
        ("temperature", json!(1e300)),
        ("top_p", json!(0)),
        ("top_p", json!(1.01)),
        ("top_k", json!(-2)),
        ("top_k", json!(1.5)),
        ("min_p", json!(2)),
        ("repetition_penalty", json!(0)),
        ("max_new_tokens", json!(0)),
        ("do_sample", json!("yes")),
    ] {
        let (named, message) = defaults(&json!({key: value})).unwrap_err();
        assert!(named == key && message.contains(&format!("got {value}")), "{named} {message}");
    }
    assert_eq!(defaults(&json!([1])).unwrap_err().0, "generation_config.json");
    for value in [json!("2"), json!([1, -1]), json!(true), json!(1.5)] {
        assert_eq!(eos_ids(&json!({"eos_token_id": value})).unwrap_err().0, "eos_token_id");
    }
    assert_eq!(eos_ids(&json!({"eos_token_id": [3, 4]})).unwrap(), [3, 4]);
}

#[test]
fn unsupported_keys_are_listed_when_their_value_would_have_an_effect() {
    let config = json!({"num_beams": 4, "no_repeat_ngram_size": 0, "suppress_tokens": [], "stop_strings": ["x"],
        "length_penalty": 1.0, "typical_p": 0.9, "forced_eos_token_id": 7, "bos_token_id": 1});
    assert_eq!(unsupported_keys(&config), ["num_beams", "typical_p", "stop_strings", "forced_eos_token_id"]);
    assert!(unsupported_keys(&Json::Null).is_empty());
}
