//! What architectures share: the common keys of config.json, and constructors of blocks under the usual tensor names.

use std::sync::Arc;

use rein_kernels::{RopeSpec, RouteSpec, Scoring, WeightRole};

use super::linear::{LinearSpec, Norm, Shard};
use super::mixer::{Gqa, MixerSpec};
use super::rope::{self, Frequencies};
use super::spec::{Activation, Gated, LayerSpec, Mlp, Moe, SharedExpert, Spec};
use crate::checkpoint::{ConfigFields, LoadError};

pub use rein_gguf::MAX_LAYERS;

const MAX_EXPERTS: usize = 1 << 14;
pub const MAX_HEADS: usize = 1 << 16;
pub const MAX_HEAD_DIM: usize = 1 << 16;

/// Default values of transformers' config class for missing keys.
pub struct ConfigDefaults {
    /// None: the number of attention heads.
    pub kv_heads: Option<usize>,
    /// None: hidden_size / num_attention_heads.
    pub head_dim: Option<usize>,
    pub max_positions: usize,
    pub eps: f64,
    pub theta: f64,
}

pub const LLAMA_DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: None, head_dim: None, max_positions: 2048, eps: 1e-6, theta: 1e4 };

/// The keys that every architecture has.
pub struct Base<'a> {
    pub config: &'a ConfigFields<'a>,
    /// Prefix of "model." and "lm_head." in tensor names.
    pub prefix: &'a str,
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub max_positions: usize,
    pub eps: f32,
    pub tied: bool,
    pub theta: f64,
    head_dim: Option<usize>,
}

impl<'a> Base<'a> {
    pub fn read(config: &'a ConfigFields<'a>, prefix: &'a str, defaults: &ConfigDefaults) -> Result<Self, LoadError> {
        config.require("hidden_act", "silu")?;
        let heads = config.within("num_attention_heads", config.size("num_attention_heads")?, MAX_HEADS)?;
        // Null means the number of heads; the default is for a missing key.
        let absent = defaults.kv_heads.filter(|_| !config.mentions("num_key_value_heads"));
        let kv_heads = config.usize("num_key_value_heads")?.or(absent).unwrap_or(heads);
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(config.error(
                "num_key_value_heads",
                format!("must divide {heads}, the number of attention heads, got {kv_heads}"),
            ));
        }
        let eps = config.f64("rms_norm_eps")?.unwrap_or(defaults.eps);
        if !(0.0..1.0).contains(&eps) {
            return Err(config.error("rms_norm_eps", format!("must be between 0 and 1, got {eps}")));
        }
        Ok(Self {
            config,
            prefix,
            vocab: config.size("vocab_size")?,
            hidden: config.size("hidden_size")?,
            layers: config.within("num_hidden_layers", config.size("num_hidden_layers")?, MAX_LAYERS)?,
            heads,
            kv_heads,
            max_positions: config.usize("max_position_embeddings")?.unwrap_or(defaults.max_positions).max(1),
            eps: eps as f32,
            tied: config.bool("tie_word_embeddings")?.unwrap_or(false),
            theta: defaults.theta,
            head_dim: defaults.head_dim,
        })
    }

    /// `head_dim`, or the value that transformers derives.
    pub fn head_dim(&self) -> Result<usize, LoadError> {
        let dim = match self.config.usize("head_dim")?.or(self.head_dim) {
            Some(dim) => dim,
            None if self.hidden.is_multiple_of(self.heads) => self.hidden / self.heads,
            None => {
                let what =
                    format!("{} is not a multiple of {}, the number of attention heads", self.hidden, self.heads);
                return Err(self.config.error("hidden_size", what));
            }
        };
        if dim == 0 || dim % 2 == 1 || dim > MAX_HEAD_DIM {
            return Err(self.config.error("head_dim", format!("must be even and at most {MAX_HEAD_DIM}, got {dim}")));
        }
        Ok(dim)
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool, LoadError> {
        Ok(self.config.bool(key)?.unwrap_or(default))
    }

    pub fn number(&self, key: &str, default: f64) -> Result<f32, LoadError> {
        Ok(self.config.f64(key)?.unwrap_or(default) as f32)
    }

    pub fn rope(&self, dims: usize) -> Result<Frequencies, LoadError> {
        self.constant(rope::read(self.config, dims, self.max_positions, self.theta)?)
    }

    /// Queries may grow. The rotated dimensions are a share of a head.
    pub fn growing_rope(&self, dims: usize, share: f64) -> Result<Frequencies, LoadError> {
        rope::read_share(self.config, dims, share, self.max_positions, self.theta)
    }

    /// Of architectures whose queries do not grow.
    fn constant(&self, frequencies: Frequencies) -> Result<Frequencies, LoadError> {
        match frequencies.growth {
            None => Ok(frequencies),
            Some(_) => Err(self.config.error("rope_parameters.llama_4_scaling_beta", "this architecture has none")),
        }
    }

    /// For the first `dims` of a head, whose share has been read.
    fn partial_rope(&self, dims: usize) -> Result<Frequencies, LoadError> {
        self.constant(rope::read_partial(self.config, dims, self.max_positions, self.theta)?)
    }

    /// Of heads of which only a part is rotated: the first dimensions, by `partial_rotary_factor`.
    pub fn partial_rotation(&self, head_dim: usize, default_factor: f64) -> Result<RopeSpec, LoadError> {
        const KEY: &str = "partial_rotary_factor";
        let nested = self.config.object("rope_parameters")?.map(|rope| rope.f64(KEY)).transpose()?.flatten();
        let factor = self.config.f64(KEY)?.or(nested).unwrap_or(default_factor);
        let dims = (head_dim as f64 * factor) as usize;
        if dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
            let what = format!("must leave an even number of {head_dim} dimensions to rotate, got {factor}");
            return Err(self.config.error(KEY, what));
        }
        Ok(RopeSpec { dims, ..whole_head_rope(head_dim, self.partial_rope(dims)?) })
    }

    /// Which layers are mixtures of experts, where the first ones are dense.
    pub fn sparse_layers(&self, default_dense: usize) -> Result<Vec<bool>, LoadError> {
        const TYPES: &str = "mlp_layer_types";
        let first = self.config.usize("first_k_dense_replace")?;
        let by_first: Vec<bool> = (0..self.layers).map(|i| i >= first.unwrap_or(default_dense)).collect();
        let Some(types) = self.config.strs(TYPES)? else { return Ok(by_first) };
        if types.len() != self.layers {
            return Err(self.config.error(TYPES, format!("has {} entries for {} layers", types.len(), self.layers)));
        }
        let sparse = types.iter().map(|kind| match *kind {
            "sparse" => Ok(true),
            "dense" => Ok(false),
            other => Err(self.config.error(TYPES, format!("must be dense or sparse, got {other:?}"))),
        });
        let sparse = sparse.collect::<Result<Vec<_>, _>>()?;
        if first.is_some() && sparse != by_first {
            return Err(self.config.error(TYPES, "differs from first_k_dense_replace; give one of them"));
        }
        Ok(sparse)
    }

    /// "model.layers.{i}."
    pub fn layer(&self, i: usize) -> String {
        format!("{}model.layers.{i}.", self.prefix)
    }

    pub fn norm(&self, name: String, size: usize) -> Norm {
        Norm { tensor: format!("{name}.weight"), size, eps: self.eps, from_one: false, bias: None }
    }

    /// One window for the whole model, as in Mistral. `layer_types`, if given, must agree.
    pub fn uniform_window(&self, window: Option<usize>) -> Result<Option<usize>, LoadError> {
        let expected = if window.is_some() { "sliding_attention" } else { "full_attention" };
        if let Some(types) = self.config.strs("layer_types")?
            && let Some(other) = types.iter().find(|&&t| t != expected)
        {
            let what = format!("must be {expected:?} for every layer of this architecture, got {other:?}");
            return Err(self.config.error("layer_types", what));
        }
        if window == Some(0) {
            return Err(self.config.error("sliding_window", "must be at least 1, or null"));
        }
        Ok(window)
    }

    /// A window per layer, as in Qwen. Without `layer_types`, `slides` says which layers have one, from the layer and
    /// `max_window_layers`.
    pub fn qwen_windows(&self, slides: impl Fn(usize, usize) -> bool) -> Result<Vec<Option<usize>>, LoadError> {
        let on = self.flag("use_sliding_window", false)?;
        let stated = self.sliding_window(Some(4096))?;
        let max = self.config.usize("max_window_layers")?.unwrap_or(28);
        let window = stated.filter(|_| on);
        if window == Some(0) {
            return Err(self.config.error("sliding_window", "must be at least 1, or null"));
        }
        let Some(types) = self.config.strs("layer_types")? else {
            return Ok((0..self.layers).map(|i| window.filter(|_| slides(i, max))).collect());
        };
        let bad = |what: String| Err(self.config.error("layer_types", what));
        if types.len() != self.layers {
            return bad(format!("has {} entries for {} layers", types.len(), self.layers));
        }
        let mut windows = Vec::with_capacity(types.len());
        for kind in types {
            windows.push(match (kind, window) {
                ("full_attention", _) => None,
                ("sliding_attention", Some(window)) => Some(window),
                ("sliding_attention", None) => {
                    return bad("has sliding_attention, but use_sliding_window or sliding_window is off".into());
                }
                (other, _) => return bad(format!("must be full_attention or sliding_attention, got {other:?}")),
            });
        }
        Ok(windows)
    }

    /// `sliding_window`: if it is missing, the architecture's default; null means none.
    pub fn sliding_window(&self, default: Option<usize>) -> Result<Option<usize>, LoadError> {
        let stated = self.config.usize("sliding_window")?;
        Ok(if self.config.mentions("sliding_window") { stated } else { default })
    }

    /// The model around the layers.
    pub fn spec(
        &self,
        architecture: &'static str,
        layer: impl FnMut(usize) -> Result<LayerSpec, LoadError>,
    ) -> Result<Spec, LoadError> {
        let name = |rest: &str| format!("{}{rest}", self.prefix);
        Ok(Spec {
            architecture,
            vocab: self.vocab,
            hidden: self.hidden,
            max_positions: self.max_positions,
            heads: self.heads,
            kv_heads: self.kv_heads,
            embed: name("model.embed_tokens"),
            embedding_multiplier: 1.0,
            positions: None,
            layers: (0..self.layers).map(layer).collect::<Result<_, _>>()?,
            residual_multiplier: 1.0,
            norm: self.norm(name("model.norm"), self.hidden),
            head: Some(LinearSpec::new(name("lm_head"), [self.vocab, self.hidden], false, Shard::Out)),
            tied: self.tied,
            logits_scaling: 1.0,
            ignored: Vec::new(),
        })
    }

    /// A pre-norm layer with the usual tensor names.
    pub fn decoder_layer(&self, i: usize, mixer: MixerSpec, mlp: Mlp) -> LayerSpec {
        let at = self.layer(i);
        LayerSpec {
            input_norm: Some(self.norm(format!("{at}input_layernorm"), self.hidden)),
            mixer,
            mixer_result_norm: None,
            mlp_norm: Some(self.norm(format!("{at}post_attention_layernorm"), self.hidden)),
            mlp,
            mlp_result_norm: None,
        }
    }

    /// down(silu(gate(x)) * up(x)) with the usual tensor names.
    pub fn gated(&self, at: &str, inter: usize, bias: bool) -> Gated {
        self.gated_named(at, ["gate_proj", "up_proj", "down_proj"], inter, bias)
    }

    pub fn gated_named(&self, at: &str, [gate, up, down]: [&str; 3], inter: usize, bias: bool) -> Gated {
        let h = self.hidden;
        Gated {
            activation: Activation::Silu,
            gate: LinearSpec::new(format!("{at}{gate}"), [inter, h], bias, Shard::Out),
            up: LinearSpec::new(format!("{at}{up}"), [inter, h], bias, Shard::Out),
            down: LinearSpec::new(format!("{at}{down}"), [h, inter], bias, Shard::In),
        }
    }

    /// Routing without groups, to so many experts under `key` of the config, with normalized weights.
    pub fn route(&self, key: &str, default: usize, experts: usize, scoring: Scoring) -> Result<RouteSpec, LoadError> {
        let top_k = self.config.usize(key)?.unwrap_or(default);
        self.config.within("number of experts", experts, MAX_EXPERTS)?;
        if top_k == 0 || top_k > experts {
            let what = format!("must be from 1 to {experts}, the number of experts, got {top_k}");
            return Err(self.config.error(key, what));
        }
        Ok(RouteSpec { top_k, scoring, n_group: 1, topk_group: 1, normalize: true, scaling: 1.0 })
    }

    /// `router` is the scoring module.
    pub fn moe(&self, router: String, experts: usize, route: RouteSpec, expert: impl Fn(usize) -> Gated) -> Moe {
        Moe {
            router: LinearSpec::new(router, [experts, self.hidden], false, Shard::Whole).with_role(WeightRole::Router),
            choice_bias: None,
            experts: (0..experts).map(|e| expert(e).into_expert()).collect(),
            clamped: None,
            route,
            shared: None,
        }
    }

    /// The shared experts of a layer as one MLP; None: it has none.
    pub fn shared_expert(&self, at: &str, inter: usize) -> Option<Box<SharedExpert>> {
        (inter > 0).then(|| Box::new(SharedExpert { mlp: self.gated(at, inter, false), gate: None }))
    }
}

/// What a norm of queries and keys is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormSpan {
    /// There is none.
    Nothing,
    Head,
    AllHeads,
}

/// Variants of grouped-query attention with the usual tensor names.
pub struct GqaStyle {
    pub head_dim: usize,
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub qk_norm: NormSpan,
    /// None: 1 / sqrt(head_dim).
    pub scale: Option<f32>,
    pub rope: Arc<RopeSpec>,
    /// Of queries.
    pub growth: Option<Arc<RopeSpec>>,
}

impl GqaStyle {
    /// No biases, no norms, default scale.
    pub fn plain(base: &Base) -> Result<Self, LoadError> {
        let head_dim = base.head_dim()?;
        Ok(Self::rotated(whole_head_rope(head_dim, base.rope(head_dim)?)))
    }

    /// The same with queries that may grow.
    pub fn growing(base: &Base) -> Result<Self, LoadError> {
        let head_dim = base.head_dim()?;
        let frequencies = base.growing_rope(head_dim, 1.0)?;
        let growth = frequencies.growth.map(RopeSpec::growing).map(Arc::new);
        Ok(Self { growth, ..Self::rotated(whole_head_rope(head_dim, frequencies)) })
    }

    /// The same with another rotation.
    pub fn rotated(rope: RopeSpec) -> Self {
        let (head_dim, rope) = (rope.head_dim, Arc::new(rope));
        Self { head_dim, qkv_bias: false, o_bias: false, qk_norm: NormSpan::Nothing, scale: None, rope, growth: None }
    }

    /// Norms on each q and k head; biases if the config has them, under either of two keys.
    pub fn qwen3(base: &Base) -> Result<Self, LoadError> {
        let bias = base.flag("attention_bias", false)?;
        base.config.require("qkv_bias", bias)?;
        base.config.require("use_qk_norm", true)?;
        Ok(Self { qkv_bias: bias, o_bias: bias, qk_norm: NormSpan::Head, ..Self::plain(base)? })
    }

    pub fn layer(&self, base: &Base, i: usize, window: Option<usize>) -> MixerSpec {
        MixerSpec::Gqa(self.gqa(base, i, window))
    }

    /// The same, for architectures that change more of it.
    pub fn gqa(&self, base: &Base, i: usize, window: Option<usize>) -> Gqa {
        let at = format!("{}self_attn.", base.layer(i));
        let dim = self.head_dim;
        let (q, kv, h) = (base.heads * dim, base.kv_heads * dim, base.hidden);
        let norms = |q_size, k_size| {
            let norm = |name: &str, size| base.norm(format!("{at}{name}"), size);
            Some((norm("q_norm", q_size), norm("k_norm", k_size)))
        };
        Gqa {
            q: LinearSpec::new(format!("{at}q_proj"), [q, h], self.qkv_bias, Shard::OutHeads(dim)),
            k: LinearSpec::new(format!("{at}k_proj"), [kv, h], self.qkv_bias, Shard::OutKvHeads(dim)),
            v: LinearSpec::new(format!("{at}v_proj"), [kv, h], self.qkv_bias, Shard::OutKvHeads(dim)),
            o: LinearSpec::new(format!("{at}o_proj"), [h, q], self.o_bias, Shard::InHeads(dim)),
            gate: None,
            qk_norm: match self.qk_norm {
                NormSpan::Nothing => None,
                NormSpan::Head => norms(dim, dim),
                NormSpan::AllHeads => norms(q, kv),
            },
            head_dim: dim,
            scale: self.scale.unwrap_or((1.0 / (dim as f64).sqrt()) as f32),
            window,
            sinks: None,
            rope: Some(self.rope.clone()),
            growth: self.growth.clone(),
        }
    }
}

pub fn whole_head_rope(head_dim: usize, frequencies: Frequencies) -> RopeSpec {
    RopeSpec {
        head_dim,
        offset: 0,
        dims: head_dim,
        interleaved: false,
        inv_freq: frequencies.inv_freq,
        magnitude: frequencies.magnitude,
        growth: None,
    }
}
