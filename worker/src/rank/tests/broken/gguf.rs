//! GGUF files that must not load, and the error messages for them.

use super::*;

/// The number of Q2_K among ggml's types, and that of Q4_K.
const Q2_K: u32 = 10;
const Q4_K: u32 = 12;

/// Where the bytes of a name end, which its length precedes.
fn after_name(bytes: &[u8], name: &str) -> usize {
    let mut wanted = (name.len() as u64).to_le_bytes().to_vec();
    wanted.extend(name.as_bytes());
    let found = bytes.windows(wanted.len()).position(|part| part == wanted);
    found.unwrap_or_else(|| panic!("{name} is not in the header")) + wanted.len()
}

fn put(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// Changes the type of a tensor, which follows its dimensions.
fn retype(bytes: &mut [u8], tensor: &str, kind: u32) {
    let at = after_name(bytes, tensor);
    let dims = u32::from_le_bytes(*bytes[at..].first_chunk().expect("dimensions")) as usize;
    put(bytes, at + 4 + 8 * dims, kind);
}

/// The error for a fixture of which one file was changed.
fn with_file(name: &str, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let copy = Copied::of(&fixture(name));
    let path = copy.path().join(file);
    let mut bytes = fs::read(&path).expect("file");
    change(&mut bytes);
    fs::write(&path, bytes).expect("write");
    refusal(copy.path())
}

#[test]
fn errors_name_truncated_files() {
    let file = "model.gguf";
    let whole = fs::metadata(fixture("gguf_llama").dir.join(file)).expect("file").len() as usize;
    // Its last bytes may be padding.
    let short = whole - 100;
    let message = with_file("gguf_llama", file, |bytes| bytes.truncate(short));
    let expected = format!("but the file has {short}; it is truncated: download it again");
    assert_names(&message, &[file, "tensor blk.1.", "ends at byte", &expected]);
    for length in [2000, 23, 3] {
        let message = with_file("gguf_llama", file, |bytes| bytes.truncate(length));
        assert_names(&message, &[file, "truncated"]);
    }
    let message = with_file("gguf_llama", file, Vec::clear);
    assert_names(&message, &[file, "magic"]);
    let message = with_file("gguf_llama", file, |bytes| *bytes = b"<html>not found</html>".to_vec());
    assert_names(&message, &[file, "must be \"GGUF\", got \"<htm\""]);
}

#[test]
fn errors_name_tensors_in_a_form_that_is_not_read() {
    let message = with_file("gguf_llama", "model.gguf", |bytes| retype(bytes, "blk.1.ffn_up.weight", Q2_K));
    let expected = "tensor blk.1.ffn_up.weight: is stored as Q2_K; the types that are read are F32, F16, BF16, Q4_0";
    assert_names(&message, &["model.gguf", expected]);
    let message = with_file("gguf_llama", "model.gguf", |bytes| retype(bytes, "output_norm.weight", 4000));
    assert_names(&message, &["tensor output_norm.weight: is stored as type 4000; the types"]);
}

#[test]
fn errors_name_rows_of_no_whole_number_of_blocks() {
    let message = with_file("gguf_llama", "model.gguf", |bytes| retype(bytes, "blk.0.attn_q.weight", Q4_K));
    assert_names(&message, &["tensor blk.0.attn_q.weight: [128, 64] of Q4_K is not a number of whole blocks"]);
    let message = with_file("gguf_deepseek_v3", "model.gguf", |bytes| retype(bytes, "blk.2.attn_k_b.weight", Q4_K));
    assert_names(&message, &["tensor blk.2.attn_k_b.weight: [4, 32, 32] of Q4_K is not a number of whole blocks"]);
}

#[test]
fn errors_name_parts_that_are_missing_or_of_another_file() {
    let copy = Copied::of(&fixture("gguf_qwen3_moe"));
    let [first, second] = [1, 2].map(|n| copy.path().join(format!("model-0000{n}-of-00002.gguf")));
    let aside = copy.path().join("aside");
    fs::rename(&second, &aside).expect("rename");
    let expected = "model-00002-of-00002.gguf: is missing; it is part 2 of the 2 of model-00001-of-00002.gguf";
    assert_names(&refusal(copy.path()), &[expected]);
    fs::copy(&first, &second).expect("copy");
    assert_names(&refusal(copy.path()), &["split.no", "file 2 of 2 must have split.no 1"]);
    fs::copy(fixture("gguf_llama").dir.join("model.gguf"), &second).expect("copy");
    assert_names(&refusal(copy.path()), &["split.no", "file 2 of 2"]);
    fs::rename(&aside, &second).expect("rename");
    load(copy.path(), &f32_options());

    let (whole, mut bytes) = (fs::read(&first).expect("file"), fs::read(&second).expect("file"));
    let mut more = whole.clone();
    let at = after_name(&more, "split.tensors.count") + 4;
    put(&mut more, at, 15);
    fs::write(&first, more).expect("write");
    assert_names(&refusal(copy.path()), &["split.tensors.count: is 15, but the files have 14 tensors"]);
    fs::write(&first, whole).expect("write");
    let at = after_name(&bytes, "blk.0.attn_q_norm.weight");
    bytes[at - "q_norm.weight".len()] = b'k';
    fs::write(&second, &bytes).expect("write");
    assert_names(&refusal(copy.path()), &["blk.0.attn_k_norm.weight: the tensor is in two files"]);
    fs::remove_file(&first).expect("remove");
    assert_names(&refusal(copy.path()), &["has neither model.safetensors nor"]);
}

#[test]
fn errors_name_experts_that_do_not_fit() {
    let first = "model-00001-of-00002.gguf";
    let message = with_file("gguf_qwen3_moe", first, |bytes| {
        let at = after_name(bytes, "qwen3moe.expert_count") + 4;
        put(bytes, at, 3);
    });
    let expected = "_exps.weight: must have 3 dimensions, the last of expert_count, 3, got [256, 256, 4]";
    assert_names(&message, &[first, "blk.0.ffn_", expected]);
    // More experts than the data has.
    let message = with_file("gguf_qwen3_moe", first, |bytes| {
        let at = after_name(bytes, "qwen3moe.expert_count") + 4;
        put(bytes, at, 8);
        for name in ["gate", "up", "down"] {
            let at = after_name(bytes, &format!("blk.0.ffn_{name}_exps.weight")) + 4 + 16;
            put(bytes, at, 8);
        }
    });
    assert_names(&message, &[first, "truncated"]);
    let message = with_config("gguf_qwen3_moe", |config| config["num_experts"] = 5.into());
    assert_names(&message, &["model.layers.0.mlp.gate.weight", "[4, 256]", "[5, 256]"]);
    let message = with_config("gguf_deepseek_v3", |config| config["n_routed_experts"] = 4.into());
    assert_names(&message, &["model.layers.1.mlp.gate.weight", "[8, 64]", "[4, 64]"]);
}

#[test]
fn errors_name_tensors_that_do_not_fit_the_config() {
    let message = with_config("gguf_llama", |config| config["intermediate_size"] = 96.into());
    assert_names(&message, &["mlp.", "[128, 64]", "[96, 64]"]);
    let message = with_config("gguf_deepseek_v3", |config| config["kv_lora_rank"] = 16.into());
    assert_names(&message, &["model.layers.0.self_attn."]);
    let message = with_config("gguf_deepseek_v3", |config| config["v_head_dim"] = 16.into());
    assert_names(&message, &["model.layers.0.self_attn."]);
    let message = with_file("gguf_llama", "model.gguf", |bytes| {
        let at = after_name(bytes, "blk.1.attn_k.weight");
        bytes[at - 8] = b'z';
    });
    assert_names(&message, &["blk.1.attn_z.weight", "unknown"]);
}

/// Damaged headers are errors or other weights, never panics.
#[test]
fn damaged_headers_do_not_panic() {
    for name in ["gguf_llama", "gguf_deepseek_v3"] {
        let copy = Copied::of(&fixture(name));
        let path = copy.path().join("model.gguf");
        let whole = fs::read(&path).expect("file");
        // From the first tensor's name on, up to the data.
        let tensors = after_name(&whole, "output.weight") - 21;
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let mut refused = 0;
        for _ in 0..300 {
            let mut damaged = whole.clone();
            for _ in 0..1 + random() % 2 {
                let at = tensors + random() % 1500;
                damaged[at] = if random() % 2 == 0 { random() as u8 } else { 0xff };
            }
            fs::write(&path, damaged).expect("write");
            refused += usize::from(RankGroup::load(copy.path(), &f32_options(), &mut |_, _| ()).is_err());
        }
        assert!(refused > 200, "{name}: {refused} of 300 were refused");
    }
}
