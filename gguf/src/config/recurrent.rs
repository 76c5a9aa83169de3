//! Qwen's hybrids of gated delta nets and attention.

use serde_json::json;

use super::experts::{qwen, qwen_shared};
use super::{ArchShape, Config, has, put};
use crate::GgufError;
use crate::fields::MetadataFields;
use crate::names::DeltaHeads;

pub(crate) fn qwen3_next(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    delta_nets(fields, shape, out)?;
    // The first files had the Hub's matrix.
    let joined = (0..shape.layers).any(|layer| has(fields, &format!("blk.{layer}.ssm_in.weight")));
    put(out, [("linear_inputs", if joined { "by_head" } else { "values_apart" }.into())]);
    qwen_shared(fields, out)?;
    qwen(fields, shape, out, true)
}

pub(crate) fn qwen3_5_moe(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    qwen3_5(fields, shape, out)?;
    qwen_shared(fields, out)?;
    qwen(fields, shape, out, true)
}

pub(crate) fn qwen3_5(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    // Text has one position in all sections.
    fields.ignore("rope.dimension_sections");
    delta_nets(fields, shape, out)
}

pub(super) fn heads(fields: &MetadataFields) -> Result<DeltaHeads, GgufError> {
    let (values, inner) = (fields.required("ssm.time_step_rank")?, fields.required("ssm.inner_size")?);
    if !inner.is_multiple_of(values) {
        let what = format!("must be a multiple of ssm.time_step_rank, {values}, got {inner}");
        return Err(fields.invalid("ssm.inner_size", what));
    }
    let size = |name: &str| fields.required(name).map(|size| size as usize);
    Ok(DeltaHeads {
        keys: size("ssm.group_count")?,
        key_dim: size("ssm.state_size")?,
        value_dim: (inner / values) as usize,
    })
}

fn delta_nets(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    let DeltaHeads { keys, key_dim, value_dim } = heads(fields)?;
    let keys = [
        ("linear_num_key_heads", keys.into()),
        ("linear_num_value_heads", fields.required("ssm.time_step_rank")?.into()),
        ("linear_key_head_dim", key_dim.into()),
        ("linear_value_head_dim", value_dim.into()),
        ("linear_conv_kernel_dim", fields.required("ssm.conv_kernel")?.into()),
        ("attention_bias", false.into()),
        ("full_attention_interval", fields.size("full_attention_interval")?.unwrap_or(4).into()),
    ];
    put(out, keys);
    const LAYERS: &str = "attention.recurrent_layers";
    let Some(recurrent) = fields.bools(LAYERS)? else { return Ok(()) };
    if (recurrent.len() as u64) < shape.layers {
        return Err(fields.invalid(LAYERS, format!("must have {} values, got {}", shape.layers, recurrent.len())));
    }
    let kind = |&recurrent: &bool| if recurrent { "linear_attention" } else { "full_attention" };
    let types: Vec<&str> = recurrent.iter().map(kind).take(shape.layers as usize).collect();
    put(out, [("layer_types", json!(types))]);
    Ok(())
}
