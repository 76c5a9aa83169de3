//! Models of which most layers see a window of tokens, and the others all.

use crate::checkpoint::LoadError;
use crate::model::blocks::Base;
use crate::model::rope::{self, Frequencies};

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Of layers with a window, which have the base `local`, and of the others: only those are scaled in published configs.
/// transformers 5 states both by kind of layer.
pub fn frequencies(base: &Base, dim: usize, local: f64) -> Result<[Frequencies; 2], LoadError> {
    let config = base.config;
    if let Some(kinds) = config.object("rope_parameters")?
        && let (Some(sliding), Some(full)) = (kinds.object(SLIDING)?, kinds.object(FULL)?)
    {
        kinds.finish()?;
        let theta = config.f64("rope_theta")?.unwrap_or(base.theta);
        return Ok([
            rope::of_parameters(config, sliding, dim, base.max_positions, local)?,
            rope::of_parameters(config, full, dim, base.max_positions, theta)?,
        ]);
    }
    Ok([rope::plain(dim, rope::check_theta(config, local)?), base.rope(dim)?])
}

/// Which layers have a window: by `layer_types`, or all but each `pattern`th.
pub fn sliding_layers(base: &Base, pattern: usize) -> Result<Vec<bool>, LoadError> {
    let config = base.config;
    let Some(types) = config.strs("layer_types")? else {
        return Ok((0..base.layers).map(|i| !(i + 1).is_multiple_of(pattern)).collect());
    };
    if types.len() != base.layers {
        let what = format!("must name {} layers, got {}", base.layers, types.len());
        return Err(config.error("layer_types", what));
    }
    let slides = types.into_iter().map(|kind| match kind {
        SLIDING => Ok(true),
        FULL => Ok(false),
        other => {
            let what = format!("must be {SLIDING:?} or {FULL:?}, got {other:?}");
            Err(config.error("layer_types", what))
        }
    });
    slides.collect()
}
