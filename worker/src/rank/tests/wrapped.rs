//! The published layout of Qwen3.5: a language model within one that sees images, with a layer's experts in one tensor.

use super::broken::Tensors;
use super::*;

const EXPERTS: usize = 4;

/// Puts the experts of each layer into one tensor.
fn stack(tensors: &mut Tensors) {
    const FIRST: &str = ".experts.0.gate_proj.weight";
    let layers = tensors.header.keys().filter_map(|name| name.strip_suffix(FIRST).map(str::to_owned));
    for layer in layers.collect::<Vec<_>>() {
        for (stacked, parts) in [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])] {
            let of = |e: usize| parts.iter().map(move |part| (e, part));
            let names = (0..EXPERTS).flat_map(of).map(|(e, part)| format!("{layer}.experts.{e}.{part}.weight"));
            tensors.join(&names.collect::<Vec<_>>(), &format!("{layer}.experts.{stacked}"), EXPERTS);
        }
    }
}

#[test]
fn the_published_layout_of_qwen3_5_is_read() {
    for (name, wrapper, kind) in [
        ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
        ("qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5"),
    ] {
        let fixture = fixture(name);
        let copy = Copied::of(&fixture);
        let path = copy.path().join("model.safetensors");
        let mut tensors = Tensors::read(&path);
        tensors.copy("model.norm.weight", "model.visual.merger.norm.weight");
        tensors.copy("model.norm.weight", "mtp.norm.weight");
        stack(&mut tensors);
        let header = std::mem::take(&mut tensors.header).into_iter();
        let of_text = |name: &str| name.starts_with("model.") && !name.starts_with("model.visual.");
        let renamed = |name: String| match of_text(&name) {
            true => name.replacen("model.", "model.language_model.", 1),
            false => name,
        };
        tensors.header = header.map(|(name, entry)| (renamed(name), entry)).collect();
        tensors.write(&path);
        let mut text = fixture.config.clone();
        let tied = text["tie_word_embeddings"].clone();
        text.as_object_mut().expect("an object").remove("architectures");
        let config = json!({"architectures": [wrapper], "model_type": kind, "text_config": text, "vision_config": {},
            "image_token_id": 3, "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6,
            "tie_word_embeddings": tied, "torch_dtype": "bfloat16"});
        fs::write(copy.path().join("config.json"), config.to_string()).expect("write");
        for ranks in [1, 2] {
            let options = ModelOptions { tp: ranks, ..f32_options() };
            let wrapped = score(copy.path(), &options, &fixture.reference.tokens).expect("wrapped");
            assert_eq!(wrapped.logprobs, fixture.score(&options).logprobs, "{name}, {ranks} ranks");
        }
    }
}
