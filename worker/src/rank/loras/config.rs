//! `adapter_config.json` as PEFT writes it. Every key is implemented, known to be harmless, or rejected by name.

use regex::Regex;
use serde_json::{Map, Value};

use crate::checkpoint::{ConfigFields, LoadError};

/// Bookkeeping, training, and choices that show in the tensors' names and shapes.
const HARMLESS: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "target_parameters",
    "task_type",
];
/// Initializations after which the base model is as it was.
const INITIALIZATIONS: [&str; 3] = ["gaussian", "orthogonal", "eva"];

#[derive(Debug)]
pub struct LoraConfig {
    pub base: Option<String>,
    alpha: f64,
    alphas: Vec<(Regex, String, f64)>,
    /// Divides by the root of the rank (arXiv:2312.03732).
    rooted: bool,
}

impl LoraConfig {
    pub fn read(map: &Map<String, Value>) -> Result<Self, LoadError> {
        let fields = ConfigFields::new(map, "");
        match fields.str("peft_type")? {
            Some("LORA") => {}
            found => {
                let found = found.unwrap_or("none");
                return Err(fields.error("peft_type", format!("must be \"LORA\", got {found:?}")));
            }
        }
        let only = |key: &str, allowed: &[Value], instead: &str| match fields.get(key) {
            Some(found) if !allowed.contains(found) => Err(fields.error(key, format!("{instead}, got {found}"))),
            _ => Ok(()),
        };
        let merged = "is not supported: merge the adapter into its model instead";
        only("bias", &["none".into()], "must be \"none\": trained biases are not supported")?;
        only("modules_to_save", &[Value::Array(Vec::new())], merged)?;
        for key in ["use_dora", "lora_bias", "use_qalora"] {
            only(key, &[false.into()], merged)?;
        }
        match fields.get("init_lora_weights") {
            None | Some(Value::Bool(_)) => {}
            Some(Value::String(name)) if INITIALIZATIONS.contains(&name.as_str()) => {}
            Some(other) => {
                let what = format!("{other} changes the base model: save the adapter as one of the unchanged model");
                return Err(fields.error("init_lora_weights", what));
            }
        }
        let mut alphas = Vec::new();
        if let Some(patterns) = fields.object("alpha_pattern")? {
            for (pattern, alpha) in patterns.entries() {
                let wrong = |what: String| patterns.error(pattern, what);
                let alpha = alpha.as_f64().ok_or_else(|| wrong(format!("must be a number, got {alpha}")))?;
                // As PEFT matches module names.
                let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).map_err(|e| wrong(e.to_string()))?;
                alphas.push((regex, pattern.clone(), alpha));
            }
        }
        let alpha = fields.f64("lora_alpha")?.ok_or_else(|| fields.error("lora_alpha", "is required"))?;
        let rooted = fields.bool("use_rslora")?.unwrap_or(false);
        let base = fields.str("base_model_name_or_path")?.map(str::to_owned);
        for key in HARMLESS {
            fields.get(key);
        }
        for (key, value) in map {
            let off = matches!(value, Value::Null | Value::Bool(false));
            let empty = value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
            if off || empty {
                fields.get(key);
            }
        }
        fields.finish()?;
        Ok(Self { base, alpha, alphas, rooted })
    }

    /// The factor of a module's adapter of this rank.
    pub fn scale(&self, module: &str, rank: usize) -> Result<f32, LoadError> {
        let mut found: Option<(&String, f64)> = None;
        for (_, pattern, alpha) in self.alphas.iter().filter(|(regex, ..)| regex.is_match(module)) {
            match found {
                Some((other, known)) if known != *alpha => {
                    let what = format!("both {other:?} and {pattern:?} match {module}; which one counts is not clear");
                    return Err(LoadError::config("alpha_pattern", what));
                }
                _ => found = Some((pattern, *alpha)),
            }
        }
        let alpha = found.map_or(self.alpha, |(_, alpha)| alpha);
        let rank = rank as f64;
        Ok((alpha / if self.rooted { rank.sqrt() } else { rank }) as f32)
    }
}
