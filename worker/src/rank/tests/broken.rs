//! Checkpoints that must not load, and the error messages for them.

use rein_kernels::{
    BY_OUTPUT, CudaStorage, DeviceStorage, HostForm, HostPool, Precision, ScaleForm, StoredForm, WeightRole,
};

use super::*;
use crate::checkpoint::{CheckpointWeights, Quantization, Reads};
use crate::limits::READ_TIMEOUT;

mod gguf;

fn refusal(dir: &Path) -> String {
    match RankGroup::load(dir, &f32_options(), &mut |_, _| ()) {
        Ok(_) => panic!("{} loaded", dir.display()),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
pub(super) fn assert_names(message: &str, names: &[&str]) {
    for name in names {
        assert!(message.contains(name), "{name:?} is not in: {message}");
    }
}

/// A safetensors file, taken apart.
pub(super) struct Tensors {
    pub header: serde_json::Map<String, Value>,
    data: Vec<u8>,
}

impl Tensors {
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("file");
        let length = u64::from_le_bytes(*bytes.first_chunk().expect("length")) as usize;
        let header = serde_json::from_slice(&bytes[8..8 + length]).expect("header");
        Self { header, data: bytes[8 + length..].to_vec() }
    }

    /// Adds the bytes of one tensor under another name.
    pub fn copy(&mut self, tensor: &str, name: &str) {
        let mut entry = self.header[tensor].clone();
        let offset = |i: usize| entry["data_offsets"][i].as_u64().expect("offset") as usize;
        let (from, part) = (self.data.len(), offset(0)..offset(1));
        self.data.extend_from_within(part);
        entry["data_offsets"] = json!([from, self.data.len()]);
        self.header.insert(name.into(), entry);
    }

    /// Makes one tensor [count, .., ..] of these matrices.
    pub fn join(&mut self, names: &[String], to: &str, count: usize) {
        let entries: Vec<Value> = names.iter().map(|name| self.header.remove(name).expect("a tensor")).collect();
        let from = self.data.len();
        for entry in &entries {
            let offset = |i: usize| entry["data_offsets"][i].as_u64().expect("offset") as usize;
            self.data.extend_from_within(offset(0)..offset(1));
        }
        let mut joined = entries[0].clone();
        let rows = joined["shape"][0].as_u64().expect("rows") as usize * names.len() / count;
        joined["shape"] = json!([count, rows, joined["shape"][1]]);
        joined["data_offsets"] = json!([from, self.data.len()]);
        self.header.insert(to.into(), joined);
    }

    pub fn write(&self, path: &Path) {
        let header = serde_json::to_vec(&self.header).expect("header");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(&self.data);
        fs::write(path, bytes).expect("write");
    }
}

fn with_tensors(name: &str, change: impl FnOnce(&mut Tensors)) -> String {
    let copy = Copied::of(&fixture(name));
    let path = copy.path().join("model.safetensors");
    let mut tensors = Tensors::read(&path);
    change(&mut tensors);
    tensors.write(&path);
    refusal(copy.path())
}

fn with_config(name: &str, change: impl FnOnce(&mut Value)) -> String {
    let fixture = fixture(name);
    let copy = Copied::of(&fixture);
    let mut config = fixture.config.clone();
    change(&mut config);
    fs::write(copy.path().join("config.json"), config.to_string()).expect("write");
    refusal(copy.path())
}

#[test]
fn errors_name_tensors_that_do_not_fit() {
    let norm = "model.layers.1.input_layernorm.weight";
    let message = with_tensors("llama3", |t| {
        t.header.remove(norm);
    });
    assert_names(&message, &[norm, "lacks tensor"]);

    let message = with_tensors("llama3", |t| {
        t.header.remove("model.layers.0.mlp.up_proj.weight");
    });
    assert_names(&message, &["model.layers.0.mlp.up_proj.weight"]);

    let message = with_tensors("llama3", |t| t.copy(norm, "model.layers.0.self_attn.sinks"));
    assert_names(&message, &["model.layers.0.self_attn.sinks", "does not use"]);

    let message = with_tensors("llama3", |t| t.header[norm]["shape"] = json!([8, 8]));
    assert_names(&message, &[norm, "[8, 8]", "[64]"]);

    let message = with_tensors("deepseek_v3", |t| {
        t.header.remove("model.layers.1.mlp.experts.3.down_proj.weight");
        t.header.remove("model.layers.2.mlp.gate.e_score_correction_bias");
    });
    assert_names(&message, &["experts.3.down_proj.weight", "e_score_correction_bias"]);

    let message = with_tensors("kimi_k2_int4", |t| {
        t.header.remove("model.layers.1.mlp.experts.0.up_proj.weight_scale");
    });
    assert_names(&message, &["experts.0.up_proj.weight_scale"]);
}

#[test]
fn errors_name_damaged_files() {
    let sharded = Copied::of(&fixture("kimi_k2"));
    let shard = "model-00002-of-00002.safetensors";
    let path = sharded.path().join(shard);
    let whole = fs::read(&path).expect("shard");
    fs::write(&path, &whole[..whole.len() - 10]).expect("write");
    assert_names(&refusal(sharded.path()), &[shard, "truncated"]);
    fs::write(&path, b"<html>not found</html>").expect("write");
    assert_names(&refusal(sharded.path()), &[shard]);
    fs::write(&path, b"").expect("write");
    assert_names(&refusal(sharded.path()), &[shard]);
    fs::remove_file(&path).expect("remove");
    assert_names(&refusal(sharded.path()), &[shard, "is missing", "model."]);

    let index = sharded.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map": {"a": "../secret.safetensors"}}"#).expect("write");
    assert_names(&refusal(sharded.path()), &["secret", "file name"]);
    fs::remove_file(&index).expect("remove");
    assert_names(&refusal(sharded.path()), &["model.safetensors.index.json"]);
    fs::remove_file(sharded.path().join("config.json")).expect("remove");
    assert_names(&refusal(sharded.path()), &["config.json"]);
}

#[test]
fn a_file_that_is_not_regular_is_rejected_without_waiting() {
    let sharded = Copied::of(&fixture("kimi_k2"));
    let shard = "model-00002-of-00002.safetensors";
    for name in [shard, "model.safetensors.index.json", "config.json"] {
        let (path, aside) = (sharded.path().join(name), sharded.path().join("aside"));
        fs::rename(&path, &aside).expect("rename");
        fs::create_dir(&path).expect("directory");
        assert_names(&refusal(sharded.path()), &[name, "directory"]);
        fs::remove_dir(&path).expect("remove");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        assert_names(&refusal(sharded.path()), &[name, "FIFO"]);
        fs::remove_file(&path).expect("remove");
        let socket = std::os::unix::net::UnixListener::bind(&path).expect("socket");
        assert_names(&refusal(sharded.path()), &[name, "socket"]);
        drop(socket);
        for (target, named) in [("/dev/zero", "character device"), ("/nowhere/blobs/abc", "/nowhere/blobs/abc")] {
            fs::remove_file(&path).expect("remove");
            std::os::unix::fs::symlink(target, &path).expect("link");
            assert_names(&refusal(sharded.path()), &[name, named]);
        }
        fs::remove_file(&path).expect("remove");
        // As the Hub's cache has them: links to files of other names.
        std::os::unix::fs::symlink(&aside, &path).expect("link");
        ModelLoader::open(sharded.path(), &f32_options()).expect("links to files are followed");
        fs::remove_file(&path).expect("remove");
        fs::rename(&aside, &path).expect("rename");
    }
}

#[test]
fn tensors_must_be_in_the_file_that_the_index_lists() {
    let sharded = Copied::of(&fixture("kimi_k2"));
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let index = sharded.path().join("model.safetensors.index.json");
    let whole: Value = serde_json::from_slice(&fs::read(&index).expect("index")).expect("JSON");
    let map = whole["weight_map"].as_object().expect("a map");
    let tensor = map.iter().find(|(_, file)| *file == first).expect("a tensor").0;

    let mut moved = whole.clone();
    moved["weight_map"][tensor] = json!(second);
    fs::write(&index, moved.to_string()).expect("write");
    assert_names(&refusal(sharded.path()), &[second, tensor, "lacks tensor"]);

    let entry = format!("\"weight_map\":{{{}:{},", json!(tensor), json!(second));
    fs::write(&index, whole.to_string().replacen("\"weight_map\":{", &entry, 1)).expect("write");
    assert_names(&refusal(sharded.path()), &["index.json", tensor, "twice"]);
    fs::write(&index, whole.to_string()).expect("write");

    let of = |name| Tensors::read(&sharded.path().join(name));
    let (source, mut target) = (of(first), of(second));
    let mut entry = source.header[tensor].clone();
    let offset = |i: usize| entry["data_offsets"][i].as_u64().expect("offset") as usize;
    let from = target.data.len();
    target.data.extend_from_slice(&source.data[offset(0)..offset(1)]);
    entry["data_offsets"] = json!([from, target.data.len()]);
    target.header.insert(tensor.clone(), entry);
    target.write(&sharded.path().join(second));
    assert_names(&refusal(sharded.path()), &[first, second, tensor, "one file"]);
}

#[test]
fn errors_name_wrong_headers() {
    let message = with_tensors("llama3", |t| {
        let of = |name: &str| t.header[name]["data_offsets"].clone();
        let (a, b) = (of("model.layers.0.input_layernorm.weight"), of("model.layers.1.input_layernorm.weight"));
        assert_ne!(a, b);
        t.header["model.layers.0.input_layernorm.weight"]["data_offsets"] = b;
    });
    assert_names(
        &message,
        &["model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight", "overlap"],
    );

    let copy = Copied::of(&fixture("llama3"));
    let path = copy.path().join("model.safetensors");
    let whole = fs::read(&path).expect("file");
    for (length, named) in
        [(u64::MAX, "longer than"), (99_999_999, "truncated within its header"), (0, "header"), (3, "header")]
    {
        fs::write(&path, [&length.to_le_bytes(), &whole[8..]].concat()).expect("write");
        assert_names(&refusal(copy.path()), &["model.safetensors", named]);
    }
    // A hole is fine.
    fs::write(&path, &whole).expect("write");
    let mut tensors = Tensors::read(&path);
    tensors.data.extend([0; 100]);
    tensors.copy("model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq");
    tensors.write(&path);
    ModelLoader::open(copy.path(), &f32_options()).expect("opens");
}

#[test]
fn errors_name_config_keys_that_are_not_implemented() {
    type Case = (&'static str, &'static str, Value, &'static [&'static str]);
    let cases: &[Case] = &[
        ("llama3", "architectures", json!(["GPT2LMHeadModel"]), &["GPT2LMHeadModel", "LlamaForCausalLM"]),
        ("llama3", "model_type", json!("mistral"), &["model_type", "mistral"]),
        ("llama3", "attn_logit_softcapping", json!(50.0), &["attn_logit_softcapping"]),
        ("llama3", "hidden_act", json!("gelu"), &["hidden_act", "gelu"]),
        ("llama3", "sliding_window", json!(4), &["sliding_window"]),
        ("llama3", "hidden_size", json!("64"), &["hidden_size", "whole number"]),
        ("llama3", "num_key_value_heads", json!(3), &["num_key_value_heads"]),
        ("llama3", "vocab_size", Value::Null, &["vocab_size", "required"]),
        ("llama3", "torch_dtype", json!("float8"), &["torch_dtype", "float8"]),
        ("llama3", "rope_scaling", json!({"rope_type": "xpos", "factor": 2}), &["rope_scaling", "xpos"]),
        ("llama3", "quantization_config", json!({"quant_method": "hqq"}), &["hqq", "int4", "AWQ"]),
        ("llama3", "attention_bias", json!(true), &["self_attn.q_proj.bias"]),
        ("mistral", "attention_bias", json!(true), &["attention_bias"]),
        ("mistral", "layer_types", json!(["full_attention", "sliding_attention"]), &["layer_types"]),
        ("qwen2", "layer_types", json!(["full_attention", "chunked_attention"]), &["layer_types", "chunked"]),
        ("qwen2", "layer_types", json!(["full_attention"]), &["layer_types", "2 layers"]),
        ("qwen2", "layer_types", json!(["full_attention", "sliding_attention"]), &["use_sliding_window"]),
        ("deepseek_v3", "scoring_func", json!("softmax"), &["scoring_func", "softmax"]),
        ("deepseek_v3", "topk_method", json!("greedy"), &["topk_method", "greedy"]),
        ("deepseek_v3", "n_group", json!(3), &["n_group"]),
        ("deepseek_v3", "num_experts_per_tok", json!(9), &["num_experts_per_tok"]),
        ("deepseek_v3", "index_topk", json!(2048), &["index_topk"]),
        ("deepseek_v3", "head_dim", json!(32), &["head_dim"]),
        ("qwen3_moe", "decoder_sparse_step", json!(0), &["decoder_sparse_step"]),
    ];
    for (name, key, value, expected) in cases {
        let message = with_config(name, |config| config[*key] = value.clone());
        assert_names(&message, expected);
    }
    let copy = Copied::of(&fixture("llama3"));
    for text in ["{", "[]", ""] {
        fs::write(copy.path().join("config.json"), text).expect("write");
        assert_names(&refusal(copy.path()), &["config.json", "JSON"]);
    }
}

#[test]
fn harmless_extra_tensors_are_accepted() {
    let fixture = fixture("llama3");
    let copy = Copied::of(&fixture);
    let path = copy.path().join("model.safetensors");
    let mut tensors = Tensors::read(&path);
    tensors.copy("model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq");
    // A tied head that is stored a second time.
    tensors.copy("model.embed_tokens.weight", "lm_head.weight");
    tensors.write(&path);
    let mut config = fixture.config.clone();
    config["transformers_version"] = json!("4.40.0");
    config["some_new_key"] = Value::Null;
    config["_model_name_or_path"] = json!("a/b");
    config["_some_new_note"] = json!(1);
    fs::write(copy.path().join("config.json"), config.to_string()).expect("write");
    let again = score(copy.path(), &f32_options(), &fixture.reference.tokens).expect("loads");
    assert_eq!(again, fixture.score(&f32_options()));
}

#[test]
fn a_bias_of_zeros_beside_gptq_weights_is_accepted() {
    let fixture = fixture("llama_gptq");
    let loaded = |fill: u8| {
        let copy = Copied::of(&fixture);
        let path = copy.path().join("model.safetensors");
        let mut tensors = Tensors::read(&path);
        let (module, from) = ("model.layers.0.self_attn.o_proj", tensors.data.len());
        tensors.data.resize(from + 128, fill);
        let bias = json!({"dtype": "F16", "shape": [64], "data_offsets": [from, from + 128]});
        tensors.header.insert(format!("{module}.bias"), bias);
        tensors.write(&path);
        score(copy.path(), &f32_options(), &fixture.reference.tokens)
    };
    assert_eq!(loaded(0).expect("loads"), fixture.score(&f32_options()));
    let other = loaded(0x3c).expect_err("a bias that the model does not add").to_string();
    assert_names(&other, &["model.layers.0.self_attn.o_proj.bias"]);
}

#[test]
fn errors_name_heads_that_cannot_be_split_and_invalid_options() {
    let dir = &fixture("llama3").dir;
    let of = |options: ModelOptions| match RankGroup::load(dir, &options, &mut |_, _| ()) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    };
    assert_names(&of(ModelOptions { tp: 3, ..f32_options() }), &["4 attention heads", "3 ranks"]);
    assert_names(&of(ModelOptions { tp: 0, ..f32_options() }), &["at least 1"]);
    assert_names(&of(ModelOptions { block_size: 0, ..f32_options() }), &["block_size"]);
    assert_names(&of(ModelOptions { max_context: Some(4096), ..f32_options() }), &["max_context", "128"]);
}

#[test]
fn errors_name_tokens_that_cannot_be_scored() {
    let dir = &fixture("llama3").dir;
    let of = |tokens: &[u32]| score(dir, &f32_options(), tokens).expect_err("refused").to_string();
    assert_names(&of(&[]), &["at least one"]);
    assert_names(&of(&[1, 256]), &["tokens[1]", "256"]);
    assert_names(&of(&[1; 129]), &["129", "128", "max_position_embeddings"]);
    let within = |max_context, tokens: &[u32]| {
        let options = ModelOptions { max_context: Some(max_context), ..f32_options() };
        score(dir, &options, tokens).map_err(|error| error.to_string())
    };
    assert_eq!(within(2, &[1; 2]).expect("they fit"), score(dir, &f32_options(), &[1; 2]).expect("without a limit"));
    assert_names(&within(2, &[1; 3]).expect_err("too many"), &["max_context", "3", "2"]);
    assert_names(&within(129, &[1]).expect_err("beyond the model"), &["max_context", "128"]);
    assert_names(&within(0, &[1]).expect_err("nothing"), &["max_context", "from 1"]);
}

/// A copy of the int4 fixture. `change` gets the header's entry and the bytes of each tensor of scales, and returns
/// other bytes.
fn with_scales(change: impl Fn(&mut Value, &[u8]) -> Vec<u8>) -> Copied {
    let copy = Copied::of(&fixture("kimi_k2_int4"));
    let path = copy.path().join("model.safetensors");
    let Tensors { mut header, data } = Tensors::read(&path);
    let mut packed = Vec::new();
    for (name, entry) in header.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        let offset = |i: usize| entry["data_offsets"][i].as_u64().expect("offset") as usize;
        let bytes = &data[offset(0)..offset(1)];
        let bytes = if name.ends_with(".weight_scale") { change(entry, bytes) } else { bytes.to_vec() };
        let from = packed.len();
        packed.extend(bytes);
        entry["data_offsets"] = json!([from, packed.len()]);
    }
    Tensors { header, data: packed }.write(&path);
    copy
}

/// Doubles the int4 scales for groups of half the size: the same weights.
#[test]
fn int4_groups_of_another_size_are_read() {
    let fixture = fixture("kimi_k2_int4");
    let copy = with_scales(|entry, scales| {
        let groups = entry["shape"][1].as_u64().expect("groups");
        entry["shape"][1] = json!(2 * groups);
        scales.chunks(2).flat_map(|scale| [scale, scale].concat()).collect()
    });
    let mut config = fixture.config.clone();
    let size = &mut config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"];
    assert_eq!(*size, 32);
    *size = json!(16);
    fs::write(copy.path().join("config.json"), config.to_string()).expect("write");
    let again = score(copy.path(), &f32_options(), &fixture.reference.tokens).expect("loads");
    assert_eq!(again, fixture.score(&f32_options()));
}

/// The fixture's scales are bf16.
#[test]
fn int4_scales_of_f32_are_the_same_weights() {
    let fixture = fixture("kimi_k2_int4");
    let copy = with_scales(|entry, scales| {
        assert_eq!(entry["dtype"], "BF16");
        entry["dtype"] = json!("F32");
        // The upper half of an f32 is a bf16.
        scales.chunks(2).flat_map(|scale| [&[0, 0], scale].concat()).collect()
    });
    let again = score(copy.path(), &f32_options(), &fixture.reference.tokens).expect("loads");
    assert_eq!(again, fixture.score(&f32_options()));
    let open = |dir: &std::path::Path| {
        let quantization = Quantization::Int4 { group: 32 };
        let weights = CheckpointWeights::open(dir, quantization, &Reads::new(READ_TIMEOUT)).expect("opens");
        let module = "model.layers.1.mlp.experts.0.up_proj";
        let matrix =
            weights.matrix(module, [64, 96], 0..64, 0..96, |_| HostForm::Stored, &HostPool::plain()).expect("reads");
        assert_eq!(matrix.stored_form(), weights.stored_form(module));
        weights.stored_form(module)
    };
    let form = |scales| StoredForm::Int4 { group: 32, scales };
    assert_eq!(open(&fixture.dir), form(ScaleForm::Bf16));
    assert_eq!(open(copy.path()), form(ScaleForm::F32));
}

#[test]
fn fp8_with_a_scale_for_each_output_or_for_all_stays_fp8_on_gpus() {
    for name in ["llama_fp8_dynamic", "llama_fp8_static"] {
        let fixture = fixture(name);
        let quantization = Quantization::Fp8Scaled { block: None };
        let weights = CheckpointWeights::open(&fixture.dir, quantization, &Reads::new(READ_TIMEOUT)).expect("opens");
        let size = |key: &str| fixture.config[key].as_u64().expect("a size") as usize;
        let (module, shape) = ("model.layers.0.mlp.down_proj", [size("hidden_size"), size("intermediate_size")]);
        let by_output = StoredForm::Fp8 { block: BY_OUTPUT };
        assert_eq!(weights.stored_form(module), by_output);
        // Whole, and as the second of two ranks has it.
        for cols in [0..shape[1], shape[1] / 2..shape[1]] {
            let form = |stored| CudaStorage.host_form(WeightRole::Linear, stored, Precision::Bf16);
            let matrix = weights.matrix(module, shape, 0..shape[0], cols, form, &HostPool::plain()).expect("reads");
            assert_eq!(matrix.stored_form(), by_output, "{name}");
        }
    }
}
