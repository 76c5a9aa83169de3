//! Rotary frequencies from `rope_scaling` and `rope_theta` (published configs) or `rope_parameters` (transformers 5),
//! with the formulas of transformers' modeling_rope_utils.

use std::f64::consts::PI;

use rein_kernels::Growth;

use crate::checkpoint::{ConfigFields, LoadError};

/// Frequencies before they are applied to a head layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// dims / 2 values.
    pub inv_freq: Vec<f64>,
    /// Factor of cos and sin.
    pub magnitude: f32,
    /// YaRN's `mscale_all_dim` factor (DeepSeek multiplies the softmax scale by its square); 1 otherwise.
    pub softmax_mscale: f64,
    /// Of queries (Llama 4, Mistral from 2512 on).
    pub growth: Option<Growth>,
}

/// Reads the rope keys of `config` for `dims` rotated dimensions, which are all of a head.
pub fn read(
    config: &ConfigFields,
    dims: usize,
    max_positions: usize,
    default_theta: f64,
) -> Result<Frequencies, LoadError> {
    read_share(config, dims, 1.0, max_positions, default_theta)
}

/// The same where `dims` are a share of a head that the architecture tells.
pub fn read_share(
    config: &ConfigFields,
    dims: usize,
    share: f64,
    max_positions: usize,
    default_theta: f64,
) -> Result<Frequencies, LoadError> {
    for rope in [config.object("rope_scaling")?, config.object("rope_parameters")?].iter().flatten() {
        rope.require("partial_rotary_factor", share)?;
    }
    config.require("partial_rotary_factor", share)?;
    read_partial(config, dims, max_positions, default_theta)
}

/// The same where `partial_rotary_factor` has given `dims`.
pub fn read_partial(
    config: &ConfigFields,
    dims: usize,
    max_positions: usize,
    default_theta: f64,
) -> Result<Frequencies, LoadError> {
    let (old, new) = (config.object("rope_scaling")?, config.object("rope_parameters")?);
    if old.is_some() && new.is_some() && config.get("rope_scaling") != config.get("rope_parameters") {
        return Err(config.error("rope_scaling", "differs from rope_parameters; give one of them"));
    }
    let top_theta = config.f64("rope_theta")?;
    let Some(rope) = new.or(old) else {
        return Ok(plain(dims, check_theta(config, top_theta.unwrap_or(default_theta))?));
    };
    of_parameters(config, rope, dims, max_positions, top_theta.unwrap_or(default_theta))
}

/// From an object of such keys; `theta` if it has none.
pub fn of_parameters(
    config: &ConfigFields,
    rope: ConfigFields,
    dims: usize,
    max_positions: usize,
    theta: f64,
) -> Result<Frequencies, LoadError> {
    rope.f64("partial_rotary_factor")?;
    // Text has one position in all sections.
    for of_images in ["mrope_section", "mrope_interleaved"] {
        rope.get(of_images);
    }
    let theta = check_theta(&rope, rope.f64("rope_theta")?.unwrap_or(theta))?;
    let kind = match (rope.str("rope_type")?, rope.str("type")?) {
        (Some(a), Some(b)) if a != b => {
            return Err(rope.error("rope_type", format!("is {a:?}, but type is {b:?}")));
        }
        (a, b) => a.or(b).unwrap_or("default"),
    };
    // Older configs have it at the top level.
    let trained_length = || -> Result<f64, LoadError> {
        const KEY: &str = "original_max_position_embeddings";
        let (top, inner) = (config.usize(KEY)?, rope.usize(KEY)?);
        if let (Some(top), Some(inner)) = (top, inner)
            && top != inner
        {
            return Err(rope.error(KEY, format!("is {inner}, but {top} at the top level")));
        }
        match top.or(inner).unwrap_or(max_positions) {
            0 => Err(rope.error("original_max_position_embeddings", "must be at least 1")),
            n => Ok(n as f64),
        }
    };
    // Mistral's repeat it.
    if rope.usize("max_position_embeddings")?.is_some_and(|n| n != max_positions) {
        return Err(rope.error("max_position_embeddings", format!("must be that of the model, {max_positions}")));
    }
    let growth = match rope.f64("llama_4_scaling_beta")? {
        Some(beta) if beta != 0.0 => Some(Growth { length: trained_length()? as u32, beta: beta as f32 }),
        _ => None,
    };
    let mut made = match kind {
        "default" => plain(dims, theta),
        "linear" => {
            let factor = factor(&rope)?;
            let mut made = plain(dims, theta);
            made.inv_freq.iter_mut().for_each(|f| *f /= factor);
            made
        }
        "dynamic" => {
            // Scales only beyond max_position_embeddings, which no sequence exceeds.
            factor(&rope)?;
            trained_length()?;
            plain(dims, theta)
        }
        "llama3" => llama3(&rope, dims, theta, trained_length()?)?,
        "yarn" => yarn(&rope, dims, theta, trained_length()?)?,
        // "su" is its name in the first Phi-3.
        "longrope" | "su" => {
            let trained = trained_length()?;
            let context = config.context().unwrap_or(max_positions) as f64;
            longrope(&rope, dims, theta, LongContext { trained, most: max_positions as f64, context })?
        }
        other => {
            let what = format!("must be default, linear, dynamic, llama3, yarn or longrope, got {other:?}");
            return Err(rope.error("rope_type", what));
        }
    };
    rope.finish()?;
    made.growth = growth;
    Ok(made)
}

pub fn check_theta(fields: &ConfigFields, theta: f64) -> Result<f64, LoadError> {
    if theta > 1.0 {
        Ok(theta)
    } else {
        Err(fields.error("rope_theta", format!("must be greater than 1, got {theta}")))
    }
}

fn factor(rope: &ConfigFields) -> Result<f64, LoadError> {
    match rope.f64("factor")? {
        Some(factor) if factor >= 1.0 => Ok(factor),
        Some(factor) => Err(rope.error("factor", format!("must be at least 1, got {factor}"))),
        None => Err(rope.error("factor", "is required")),
    }
}

pub fn plain(dims: usize, theta: f64) -> Frequencies {
    let inv_freq = (0..dims / 2).map(|i| 1.0 / theta.powf(2.0 * i as f64 / dims as f64)).collect();
    Frequencies { inv_freq, magnitude: 1.0, softmax_mscale: 1.0, growth: None }
}

fn llama3(rope: &ConfigFields, dims: usize, theta: f64, trained: f64) -> Result<Frequencies, LoadError> {
    let factor = factor(rope)?;
    let need = |key: &str| rope.f64(key)?.ok_or_else(|| rope.error(key, "is required"));
    let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
    if low <= 0.0 || high <= low {
        return Err(rope.error("high_freq_factor", "must be greater than low_freq_factor, and both must be positive"));
    }
    let mut made = plain(dims, theta);
    for f in &mut made.inv_freq {
        let wavelength = 2.0 * PI / *f;
        if wavelength > trained / low {
            *f /= factor;
        } else if wavelength >= trained / high {
            let smooth = (trained / wavelength - low) / (high - low);
            *f = (1.0 - smooth) * *f / factor + smooth * *f;
        }
    }
    Ok(made)
}

fn yarn(rope: &ConfigFields, dims: usize, theta: f64, trained: f64) -> Result<Frequencies, LoadError> {
    let factor = factor(rope)?;
    let or = |key: &str, default: f64| Ok::<_, LoadError>(rope.f64(key)?.filter(|&v| v != 0.0).unwrap_or(default));
    let (beta_fast, beta_slow) = (or("beta_fast", 32.0)?, or("beta_slow", 1.0)?);
    let truncate = rope.bool("truncate")?.unwrap_or(true);
    let mscale_of = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    let (mscale, all_dim) = (or("mscale", 0.0)?, or("mscale_all_dim", 0.0)?);
    let magnitude = match rope.f64("attention_factor")? {
        Some(given) => given,
        None if mscale != 0.0 && all_dim != 0.0 => mscale_of(mscale) / mscale_of(all_dim),
        None => mscale_of(1.0),
    };
    // The dimension that makes `rotations` turns within the trained length.
    let dimension = |rotations: f64| dims as f64 * (trained / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let mut made = plain(dims, theta);
    for (i, f) in made.inv_freq.iter_mut().enumerate() {
        let slow = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        *f = *f / factor * slow + *f * (1.0 - slow);
    }
    made.magnitude = magnitude as f32;
    made.softmax_mscale = if all_dim != 0.0 { mscale_of(all_dim) } else { 1.0 };
    Ok(made)
}

/// Lengths in tokens: that the model was trained with first, that of its config, and that which is served.
struct LongContext {
    trained: f64,
    most: f64,
    context: f64,
}

/// LongRoPE (arXiv 2402.13753). Each dimension has a factor for contexts of the trained length and one for longer ones.
/// transformers chooses anew for each sequence, and computes keys again when a sequence grows past the trained length.
/// Here the context that is served decides, so that a cached key does not depend on what follows.
fn longrope(rope: &ConfigFields, dims: usize, theta: f64, of: LongContext) -> Result<Frequencies, LoadError> {
    let factors = |key: &str| {
        let factors = rope.f64s(key)?.ok_or_else(|| rope.error(key, "is required"))?;
        match factors.iter().all(|&factor| factor > 0.0) && factors.len() == dims / 2 {
            true => Ok(factors),
            false => {
                let what = format!("must be {} positive numbers, one for each pair of rotated dimensions", dims / 2);
                Err(rope.error(key, format!("{what}; got {} numbers", factors.len())))
            }
        }
    };
    let (short, long) = (factors("short_factor")?, factors("long_factor")?);
    let stretch = if rope.mentions("factor") { factor(rope)? } else { of.most / of.trained };
    let mut made = plain(dims, theta);
    made.magnitude = match rope.f64("attention_factor")? {
        Some(given) => given as f32,
        None if stretch <= 1.0 => 1.0,
        None => (1.0 + stretch.ln() / of.trained.ln()).sqrt() as f32,
    };
    let chosen = if of.context > of.trained { long } else { short };
    made.inv_freq.iter_mut().zip(chosen).for_each(|(f, factor)| *f /= factor);
    Ok(made)
}

#[cfg(test)]
mod tests;
