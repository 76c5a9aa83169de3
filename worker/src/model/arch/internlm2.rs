//! InternLM2 and 2.5: Llama under other names. q, k and v are in one matrix: of each key head its queries, then its key
//! and its value.

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, GqaStyle, LLAMA_DEFAULTS};
use crate::model::linear::LinearSpec;
use crate::model::mixer::MixerSpec;
use crate::model::spec::{LayerSpec, Mlp, Spec};

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &LLAMA_DEFAULTS)?;
    let bias = base.flag("bias", true)?;
    let style = GqaStyle { qkv_bias: bias, o_bias: bias, ..GqaStyle::plain(&base)? };
    let inter = config.size("intermediate_size")?;
    let window = base.uniform_window(None)?;
    let (dim, queries) = (style.head_dim, base.heads / base.kv_heads);
    let (stride, rows) = ((queries + 2) * dim, (base.heads + 2 * base.kv_heads) * dim);
    let spec = base.spec("InternLM2ForCausalLM", |i| {
        let at = base.layer(i);
        let joined = |linear: LinearSpec, width, offset| {
            LinearSpec { module: format!("{at}attention.wqkv"), ..linear }.runs([width, stride], rows, offset)
        };
        let mut gqa = style.gqa(&base, i, window);
        gqa.q = joined(gqa.q, queries * dim, 0);
        gqa.k = joined(gqa.k, dim, queries * dim);
        gqa.v = joined(gqa.v, dim, (queries + 1) * dim);
        gqa.o.module = format!("{at}attention.wo");
        let mlp = base.gated_named(&format!("{at}feed_forward."), ["w1", "w3", "w2"], inter, false);
        let norm = |name: &str| Some(base.norm(format!("{at}{name}"), base.hidden));
        let layer = base.decoder_layer(i, MixerSpec::Gqa(gqa), Mlp::Dense(mlp));
        Ok(LayerSpec { input_norm: norm("attention_norm"), mlp_norm: norm("ffn_norm"), ..layer })
    })?;
    let named = |name: &str| format!("{prefix}{name}");
    let head = spec.head.map(|head| LinearSpec { module: named("output"), ..head });
    Ok(Spec { embed: named("model.tok_embeddings"), head, ..spec })
}
