use super::*;
use crate::fields::MetadataFields;
use crate::tests::{Header, Put};

fn scaling(header: Header, factors: Option<&[f32]>) -> Result<Option<Value>, String> {
    scaling_by(header, &factors.map(|values| (LLAMA3.to_owned(), values.to_vec())).into_iter().collect())
}

fn scaling_by(header: Header, factors: &RopeFactors) -> Result<Option<Value>, String> {
    let gguf = header.read();
    let fields = MetadataFields::new(&gguf).unwrap();
    rope_scaling(&fields, 5e5, 16, factors).map_err(|error| error.to_string())
}

fn llama() -> Header {
    Header::dense("llama")
}

/// In 32 bits, as the converter computes them.
fn factors(factor: f32, length: f32) -> Vec<f32> {
    let of = |i: i32| {
        let wavelength = 2.0 * std::f32::consts::PI * 5e5_f32.powf(2.0 * i as f32 / 16.0);
        if wavelength < length / 4.0 {
            1.0
        } else if wavelength > length {
            factor
        } else {
            let smooth = (length / wavelength - 1.0) / 3.0;
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..8).map(of).collect()
}

#[test]
fn llama3_is_recovered_from_its_factors() {
    for (factor, length) in [(8.0, 8192.0), (32.0, 8192.0), (8.0, 1024.0)] {
        let header = llama().tensor(LLAMA3, &[8]);
        let found = scaling(header, Some(&factors(factor, length))).unwrap().unwrap();
        assert_eq!(found["rope_type"], "llama3");
        assert_eq!(found["factor"], json!(factor));
        assert_eq!(found["original_max_position_embeddings"], json!(length as u64));
    }
    assert_eq!(scaling(llama(), Some(&[1.0; 8])), Ok(None));
}

#[test]
fn other_factors_are_refused() {
    let header = || llama().tensor(LLAMA3, &[8]);
    let message = |header: Header, factors: Option<&[f32]>| scaling(header, factors).unwrap_err();
    assert!(message(header(), None).contains("rope_freqs.weight: its values are required"));
    assert!(message(header(), Some(&[1.0; 7])).contains("must have 8 values, half of the rotated dimensions, got 7"));
    assert!(message(header(), Some(&[0.5; 8])).contains("must be at least 1"));
    assert!(message(header(), Some(&[f32::NAN; 8])).contains("must be finite and above 0"));
    let odd = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0];
    assert!(message(header(), Some(&odd)).contains("are not those of Llama 3.1's formula"));
}

#[test]
fn scaling_types_are_translated() {
    let with = |kind: &str, factor: f32| {
        llama().put("llama.rope.scaling.type", Put::Str(kind)).put("llama.rope.scaling.factor", Put::F32(factor))
    };
    assert_eq!(scaling(llama(), None), Ok(None));
    assert_eq!(scaling(with("none", 4.0), None), Ok(None));
    let linear = Ok(Some(json!({"rope_type": "linear", "factor": 4.0})));
    assert_eq!(scaling(with("linear", 4.0), None), linear);
    assert_eq!(scaling(llama().put("llama.rope.scale_linear", Put::F32(4.0)), None), linear);
    let yarn = with("yarn", 4.0).put("llama.rope.scaling.yarn_beta_fast", Put::F32(16.0));
    let expected = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
    });
    assert_eq!(scaling(yarn, None), Ok(Some(expected)));
    assert!(
        scaling(with("dynamic", 1.0), None)
            .unwrap_err()
            .contains("must be none, linear, yarn or longrope, got dynamic")
    );
    assert!(scaling(with("linear", 0.5), None).unwrap_err().contains("must be at least 1, got 0.5"));
    let attn = with("yarn", 4.0).put("llama.rope.scaling.attn_factor", Put::F32(2.0));
    assert!(scaling(attn, None).unwrap_err().contains("llama.rope.scaling.attn_factor: must be 1"));
    assert!(scaling(with("yarn", 4.0), Some(&[1.0; 8])).unwrap_err().contains("must not stand beside"));
}

#[test]
fn deepseek_s_multiplier_is_a_tenth_of_mscale() {
    let header = Header::dense("deepseek2")
        .put("deepseek2.rope.scaling.type", Put::Str("yarn"))
        .put("deepseek2.rope.scaling.factor", Put::F32(40.0))
        .put("deepseek2.rope.scaling.original_context_length", Put::U32(4096))
        .put("deepseek2.rope.scaling.yarn_log_multiplier", Put::F32(0.0707));
    let found = scaling(header, None).unwrap().unwrap();
    assert_eq!(found["mscale_all_dim"], json!(0.707));
    assert_eq!(found["mscale"], found["mscale_all_dim"]);
    assert_eq!(found["original_max_position_embeddings"], json!(4096));
}

#[test]
fn longrope_has_its_two_lists() {
    let header = || llama().tensor(LONG, &[8]).tensor(SHORT, &[8]);
    let both: RopeFactors = [(LONG.to_owned(), vec![4.0; 8]), (SHORT.to_owned(), vec![1.0; 8])].into();
    let stated = header()
        .put("llama.rope.scaling.original_context_length", Put::U32(32))
        .put("llama.rope.scaling.attn_factor", Put::F32(1.25));
    let expected = json!({
        "rope_type": "longrope", "long_factor": vec![4.0; 8], "short_factor": vec![1.0; 8],
        "original_max_position_embeddings": 32, "attention_factor": 1.25,
    });
    let longrope = |header: Header| header.put("llama.rope.scaling.type", Put::Str("longrope"));
    assert_eq!(scaling_by(stated.clone(), &both).unwrap().unwrap(), expected);
    assert_eq!(scaling_by(longrope(stated), &both).unwrap().unwrap(), expected);
    // The trained context is the whole one if the file does not say.
    assert_eq!(scaling_by(header(), &both).unwrap().unwrap()["original_max_position_embeddings"], 64);

    let message = |header: Header, factors: &RopeFactors| scaling_by(header, factors).unwrap_err();
    let one: RopeFactors = [(LONG.to_owned(), vec![4.0; 8])].into();
    assert!(message(header(), &one).contains("rope_factors_short.weight: its values are required"));
    assert!(message(llama().tensor(LONG, &[8]), &one).contains("rope_factors_short.weight: the tensor is required"));
    assert!(
        message(longrope(llama()), &RopeFactors::new()).contains("rope_factors_long.weight: the tensor is required")
    );
    let yarn = header().put("llama.rope.scaling.type", Put::Str("yarn"));
    assert!(message(yarn, &both).contains("llama.rope.scaling.type: must be longrope beside"));
    let short: RopeFactors = [(LONG.to_owned(), vec![4.0; 7]), (SHORT.to_owned(), vec![1.0; 8])].into();
    assert!(message(header(), &short).contains("rope_factors_long.weight: must have 8 values"));
}
