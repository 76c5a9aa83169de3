//! Writes `rope_scaling` of config.json. It does not know architectures, except that DeepSeek scales one factor.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use serde_json::{Map, Value, json};

use crate::GgufError;
use crate::fields::MetadataFields;

/// The tensors of factors, one per pair of rotated dimensions: Llama 3.1's, and those of LongRoPE.
pub const FACTOR_TENSORS: [&str; 3] = [LLAMA3, LONG, SHORT];
const LLAMA3: &str = "rope_freqs.weight";
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// The values of those that a file has.
pub type RopeFactors = BTreeMap<String, Vec<f32>>;

/// `low_freq_factor` and `high_freq_factor` of the published models.
const LLAMA3_BANDS: [(f64, f64); 1] = [(1.0, 4.0)];
/// `original_max_position_embeddings` of Llama 3.1, then other powers of two.
const LLAMA3_LENGTH: f64 = 8192.0;
const LLAMA3_LENGTHS: std::ops::RangeInclusive<i32> = 5..=20;
/// The converter computes in 32 bits, which near the low band loses up to 1e-5.
const TOLERANCE: f64 = 5e-5;
/// The converter writes DeepSeek's mscale_all_dim times this (conversion/deepseek.py).
const DEEPSEEK_MSCALE_UNIT: f64 = 0.1;

/// `rope_scaling`; None if the frequencies are not scaled.
pub(crate) fn rope_scaling(
    fields: &MetadataFields,
    theta: f64,
    dims: u64,
    factors: &RopeFactors,
) -> Result<Option<Value>, GgufError> {
    // llama.cpp reads a missing type as linear, and the old key if the new one is missing.
    let kind = fields.str("rope.scaling.type")?;
    let old_factor = fields.float("rope.scale_linear")?;
    let factor = fields.float("rope.scaling.factor")?.or(old_factor).filter(|&factor| factor != 0.0).unwrap_or(1.0);
    let trained = fields.size("rope.scaling.original_context_length")?;
    if factor < 1.0 {
        return Err(fields.unsupported("rope.scaling.factor", format!("must be at least 1, got {factor}")));
    }
    fields.neutral("rope.scaling.alpha", &[0.0])?;
    if let Some(missing) =
        FACTOR_TENSORS.iter().find(|name| fields.gguf.tensor(name).is_some() && !factors.contains_key(**name))
    {
        return Err(GgufError::invalid(*missing, "its values are required for config.json"));
    }
    if kind == Some("longrope") || factors.contains_key(LONG) || factors.contains_key(SHORT) {
        return longrope(fields, kind, trained, dims, factors).map(Some);
    }
    fields.neutral("rope.scaling.attn_factor", &[1.0])?;
    let scaling = match kind {
        Some("none") => None,
        None | Some("linear") if factor == 1.0 => None,
        None | Some("linear") => Some(json!({"rope_type": "linear", "factor": factor})),
        Some("yarn") => Some(yarn(fields, factor, trained)?),
        Some(other) => {
            let what = format!("must be none, linear, yarn or longrope, got {other}");
            return Err(fields.unsupported("rope.scaling.type", what));
        }
    };
    match factors.get(LLAMA3) {
        None => Ok(scaling),
        Some(_) if scaling.is_some() => Err(GgufError::unsupported(LLAMA3, "must not stand beside rope.scaling.type")),
        Some(factors) => llama3(theta, dims, factors),
    }
}

/// llama.cpp takes the long factors for contexts beyond the trained one, for all sequences, as Rein does.
fn longrope(
    fields: &MetadataFields,
    kind: Option<&str>,
    trained: Option<u64>,
    dims: u64,
    factors: &RopeFactors,
) -> Result<Value, GgufError> {
    if let Some(kind) = kind.filter(|&kind| kind != "longrope") {
        let what = format!("must be longrope beside {LONG}, got {kind}");
        return Err(fields.unsupported("rope.scaling.type", what));
    }
    let of = |name: &str| match factors.get(name) {
        Some(values) => of_pairs(name, dims, values),
        None => Err(GgufError::invalid(name, "the tensor is required for LongRoPE")),
    };
    let trained = match trained {
        Some(trained) => trained,
        None => fields.required("context_length")?,
    };
    Ok(json!({
        "rope_type": "longrope",
        "long_factor": of(LONG)?,
        "short_factor": of(SHORT)?,
        "original_max_position_embeddings": trained,
        "attention_factor": fields.float("rope.scaling.attn_factor")?.unwrap_or(1.0),
    }))
}

/// The factors if there is one for each pair, and each is usable.
fn of_pairs<'a>(tensor: &str, dims: u64, factors: &'a [f32]) -> Result<&'a [f32], GgufError> {
    if factors.len() as u64 != dims / 2 {
        let what = format!("must have {} values, half of the rotated dimensions, got {}", dims / 2, factors.len());
        return Err(GgufError::invalid(tensor, what));
    }
    if factors.iter().any(|f| !f.is_finite() || *f <= 0.0) {
        return Err(GgufError::unsupported(tensor, "its values must be finite and above 0"));
    }
    Ok(factors)
}

fn yarn(fields: &MetadataFields, factor: f64, trained: Option<u64>) -> Result<Value, GgufError> {
    fields.neutral("rope.scaling.yarn_ext_factor", &[-1.0, 1.0])?;
    let mut out = Map::new();
    out.insert("rope_type".into(), "yarn".into());
    out.insert("factor".into(), factor.into());
    let trained = match trained {
        Some(trained) => trained,
        None => fields.required("context_length")?,
    };
    out.insert("original_max_position_embeddings".into(), trained.into());
    let keys =
        [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow"), ("yarn_attn_factor", "attention_factor")];
    for (name, key) in keys {
        if let Some(value) = fields.float(&format!("rope.scaling.{name}"))? {
            out.insert(key.into(), value.into());
        }
    }
    // llama.cpp takes DeepSeek's mscale to equal mscale_all_dim, and Mistral's to be 1. For other architectures the key
    // has another meaning and stays unread.
    let unit = match fields.arch {
        "deepseek2" => DEEPSEEK_MSCALE_UNIT,
        "mistral3" => 1.0,
        _ => return Ok(Value::Object(out)),
    };
    if let Some(product) = fields.float("rope.scaling.yarn_log_multiplier")?.filter(|&product| product != 0.0) {
        let all = rounded(product / unit);
        out.insert("mscale".into(), if fields.arch == "mistral3" { 1.0 } else { all }.into());
        out.insert("mscale_all_dim".into(), all.into());
    }
    Ok(Value::Object(out))
}

/// Without the error of the 32-bit product.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Recovers the parameters of Llama 3.1's scaling from its factors.
fn llama3(theta: f64, dims: u64, factors: &[f32]) -> Result<Option<Value>, GgufError> {
    let factors = of_pairs(LLAMA3, dims, factors)?;
    if factors.iter().any(|&factor| factor < 1.0) {
        return Err(GgufError::unsupported(LLAMA3, "its values must be at least 1"));
    }
    let factor = factors.iter().copied().fold(1.0_f32, f32::max);
    if factor == 1.0 {
        return Ok(None);
    }
    let lengths = LLAMA3_LENGTHS.map(|power| 2.0_f64.powi(power));
    for length in std::iter::once(LLAMA3_LENGTH).chain(lengths) {
        for (low, high) in LLAMA3_BANDS {
            let expected = |i: usize| llama3_factor(theta, dims, i, f64::from(factor), (low, high), length);
            let same = |(i, &given): (usize, &f32)| (f64::from(given) / expected(i) - 1.0).abs() <= TOLERANCE;
            if factors.iter().enumerate().all(same) {
                return Ok(Some(json!({
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": low,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": length as u64,
                })));
            }
        }
    }
    let what =
        "its values are not those of Llama 3.1's formula with factors 1 and 4 of a length that is a power of two";
    Err(GgufError::unsupported(LLAMA3, what))
}

/// What the formula divides the frequency of pair `i` by.
fn llama3_factor(theta: f64, dims: u64, i: usize, factor: f64, (low, high): (f64, f64), length: f64) -> f64 {
    let wavelength = 2.0 * PI * theta.powf(2.0 * i as f64 / dims as f64);
    if wavelength > length / low {
        factor
    } else if wavelength < length / high {
        1.0
    } else {
        let smooth = (length / wavelength - low) / (high - low);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}

#[cfg(test)]
mod tests;
