//! Strict reading of config.json: every key is implemented, known to be harmless, or rejected by name. It does not know
//! architectures.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::error::LoadError;
use super::reads::Reads;
use super::source::read_file;

const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Limit of one dimension.
const MAX_SIZE: usize = 1 << 26;

/// Keys that do not change the logits of a forward pass: bookkeeping, training, generation defaults and names of other
/// implementations' kernels.
const HARMLESS: &[&str] = &[
    // identity and bookkeeping
    "architectures",
    "model_type",
    "auto_map",
    "name_or_path",
    "attn_implementation",
    "experts_implementation",
    "transformers_version",
    "transformers.js_config",
    "license",
    "model_name",
    "task_specific_params",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "tokenizer_class",
    "is_llama_config",
    "unsloth_fixed",
    "unsloth_version",
    "base_model_tp_plan",
    "base_model_pp_plan",
    // storage types; the loader uses the types of the tensors
    "torch_dtype",
    "dtype",
    "quantization_config",
    // token ids
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "cls_token_id",
    "mask_token_id",
    "im_start_token_id",
    "im_end_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "begin_suppress_tokens",
    "suppress_tokens",
    "pad_to_multiple_of",
    "prefix",
    // training
    "initializer_range",
    "initializer_factor",
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "dropout",
    "classifier_dropout",
    "aux_loss_alpha",
    "seq_aux",
    "router_aux_loss_coef",
    "router_z_loss_coef",
    "router_jitter_noise",
    "router_bias_update_speed",
    "output_router_logits",
    "ep_size",
    "pretraining_tp",
    "gradient_checkpointing",
    "use_bfloat16",
    "tf_legacy_loss",
    "torchscript",
    "num_nextn_predict_layers",
    "num_mtp_layers",
    // how an implementation runs
    "use_cache",
    "cache_implementation",
    "use_flash_attn",
    "use_flash_attention",
    "use_flash_attention_2",
    "return_dict",
    "return_dict_in_generate",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "chunk_size_feed_forward",
    // generation defaults (of generation_config.json)
    "temperature",
    "top_p",
    "top_k",
    "typical_p",
    "do_sample",
    "max_length",
    "max_new_tokens",
    "min_length",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "diversity_penalty",
    "early_stopping",
    "bad_words_ids",
    "exponential_decay_length_penalty",
    "remove_invalid_values",
    // context lengths of training and of other runtimes; max_position_embeddings is used
    "max_sequence_length",
    "model_max_length",
    "tokenizer_model_max_length",
    "tokenizer_padding_side",
    "max_seq_len",
];

/// Keys that are harmless only with this value, in every architecture.
fn harmless_value(key: &str, value: &Value) -> bool {
    match key {
        "is_decoder" => value.as_bool().is_some(),
        "is_encoder_decoder"
        | "add_cross_attention"
        | "tie_encoder_decoder"
        | "use_mrope"
        | "use_parallel_residual"
        | "use_qk_norm"
        | "qk_layernorm"
        | "use_sliding_window"
        | "rope_interleaved"
        | "clip_qkv" => value.as_bool() == Some(false),
        "activation" => matches!(value.as_str(), Some("silu" | "swiglu")),
        "pruned_heads" => value.as_object().is_some_and(Map::is_empty),
        "partial_rotary_factor" => value.as_f64() == Some(1.0),
        _ => false,
    }
}

/// The keys of one JSON object, with a record of which were read.
pub struct ConfigFields<'a> {
    map: &'a Map<String, Value>,
    /// The path of the object for messages: "" or "rope_scaling.".
    prefix: String,
    read: RefCell<BTreeSet<String>>,
    context: Option<usize>,
}

impl<'a> ConfigFields<'a> {
    pub fn new(map: &'a Map<String, Value>, prefix: impl Into<String>) -> Self {
        Self { map, prefix: prefix.into(), read: RefCell::default(), context: None }
    }

    /// Of a model of which no longer context is served.
    pub fn for_context(self, context: Option<usize>) -> Self {
        Self { context, ..self }
    }

    /// The longest context that is served, if it is limited.
    pub fn context(&self) -> Option<usize> {
        self.context
    }

    /// The value of `key`, if it is present and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key.to_owned());
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The first key by name.
    pub fn first_key(&self) -> Option<&'a str> {
        self.map.keys().map(String::as_str).min()
    }

    /// Whether the key is present, even as null.
    pub fn mentions(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub fn error(&self, key: &str, what: impl Into<String>) -> LoadError {
        LoadError::config(format!("{}{key}", self.prefix), what)
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => {
                read(value).map(Some).ok_or_else(|| self.error(key, format!("must be {expected}, got {value}")))
            }
        }
    }

    pub fn usize(&self, key: &str) -> Result<Option<usize>, LoadError> {
        const MAX: u64 = 1 << 31;
        self.typed(key, "a whole number from 0 to 2^31", |v| v.as_u64().filter(|&n| n <= MAX).map(|n| n as usize))
    }

    pub fn f64(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn str(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn object(&self, key: &str) -> Result<Option<ConfigFields<'a>>, LoadError> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Ok(map.map(|map| ConfigFields::new(map, format!("{}{key}.", self.prefix))))
    }

    /// Keys and values.
    pub fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    pub fn usizes(&self, key: &str) -> Result<Option<Vec<usize>>, LoadError> {
        self.typed(key, "a list of whole numbers", |value| {
            value.as_array()?.iter().map(|v| v.as_u64().map(|n| n as usize)).collect()
        })
    }

    pub fn f64s(&self, key: &str) -> Result<Option<Vec<f64>>, LoadError> {
        self.typed(key, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    pub fn strs(&self, key: &str) -> Result<Option<Vec<&'a str>>, LoadError> {
        self.typed(key, "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// A required size, at least 1.
    pub fn size(&self, key: &str) -> Result<usize, LoadError> {
        self.usize(key)?.map_or_else(|| Err(self.error(key, "is required")), |n| self.within(key, n, MAX_SIZE))
    }

    /// Rejects zero and counts above a limit.
    pub fn within(&self, key: &str, n: usize, most: usize) -> Result<usize, LoadError> {
        match n {
            0 => Err(self.error(key, "must be at least 1")),
            n if n > most => Err(self.error(key, format!("must be at most {most}, got {n}"))),
            n => Ok(n),
        }
    }

    /// Reads a key of which only one value is implemented.
    pub fn require(&self, key: &str, value: impl Into<Value>) -> Result<(), LoadError> {
        let value = value.into();
        match self.get(key) {
            Some(found) if !same(found, &value) => {
                Err(self.error(key, format!("must be {value} for this architecture, got {found}")))
            }
            _ => Ok(()),
        }
    }

    /// Rejects keys that were not read, unless they are null or known to be harmless. Keys that begin with `_` are
    /// notes of transformers, which reads none of them as a parameter of the model.
    pub fn finish(self) -> Result<(), LoadError> {
        let read = self.read.borrow();
        let top = self.prefix.is_empty();
        for (key, value) in self.map {
            let note = key.starts_with('_');
            let harmless = note || top && (HARMLESS.contains(&key.as_str()) || harmless_value(key, value));
            if !value.is_null() && !harmless && !read.contains(key) {
                let what = "unknown key, which may change the model's results; remove it if it does not";
                return Err(self.error(key, what));
            }
        }
        Ok(())
    }
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

/// `config.json` of a checkpoint directory.
pub fn read_config(dir: &Path, reads: &Reads) -> Result<Vec<u8>, LoadError> {
    read_file(&dir.join("config.json"), MAX_CONFIG_BYTES, reads)
}

pub fn parse_config(dir: &Path, text: &[u8]) -> Result<Map<String, Value>, LoadError> {
    parse_json(&dir.join("config.json"), text)
}

/// A file that is a JSON object.
pub fn parse_json(path: &Path, text: &[u8]) -> Result<Map<String, Value>, LoadError> {
    let bad = |what: String| LoadError::File { path: path.to_owned(), what };
    match serde_json::from_slice(text).map_err(|e| bad(format!("is not JSON: {e}")))? {
        Value::Object(map) => Ok(map),
        _ => Err(bad("must be a JSON object".into())),
    }
}

#[cfg(test)]
mod tests;
