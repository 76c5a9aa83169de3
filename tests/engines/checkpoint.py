"""A checkpoint with random weights that vLLM, llama-server and Rein's router can use: llama's shape in f32, with a byte-level
tokenizer that is trained on this project's pages. In Hugging Face's layout, and as a GGUF file."""
import json

import gguf
import numpy
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from fleet import REPOSITORY

VOCAB, HIDDEN, HEADS, KV_HEADS, LAYERS, FEED_FORWARD, CONTEXT = 4096, 128, 2, 1, 2, 256, 4096
EPS, THETA = 1e-5, 10000.0
HEAD = HIDDEN // HEADS
MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
# Qwen2's. llama.cpp knows it by this name.
PRE = "qwen2"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = """{%- if tools %}<|im_start|>system
You may call functions:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Answer a call as <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tokenizer():
    pages = sorted(REPOSITORY.glob("docs/**/*.md")) + sorted(REPOSITORY.glob("models/demo/*.txt"))
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(MARKERS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    trained.train_from_iterator((page.read_text() for page in pages), trainer)
    assert trained.get_vocab_size() == VOCAB - len(MARKERS)
    trained.add_special_tokens([AddedToken(marker, special=True) for marker in MARKERS[:3]])
    trained.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS[3:]])
    return trained


def weights(seed):
    """Named as in Hugging Face's llama."""
    rng = numpy.random.default_rng(seed)

    def matrix(rows, columns, scale):
        return (rng.standard_normal((rows, columns)) * scale).astype(numpy.float32)

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 1.0), "lm_head.weight": matrix(VOCAB, HIDDEN, 0.25)}
    tensors["model.norm.weight"] = numpy.ones(HIDDEN, numpy.float32)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = numpy.ones(HIDDEN, numpy.float32)
        for name, rows, columns in (
            ("self_attn.q_proj", HIDDEN, HIDDEN), ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN), ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN), ("mlp.gate_proj", FEED_FORWARD, HIDDEN), ("mlp.up_proj", FEED_FORWARD, HIDDEN),
            ("mlp.down_proj", HIDDEN, FEED_FORWARD)):
            tensors[f"{prefix}.{name}.weight"] = matrix(rows, columns, 1.2 / columns**0.5)
    return tensors


def write_hf(folder, trained, tensors):
    ids = {marker: trained.token_to_id(marker) for marker in MARKERS}
    folder.mkdir(parents=True)
    trained.save(str(folder / "tokenizer.json"))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "max_position_embeddings": CONTEXT, "rms_norm_eps": EPS, "rope_theta": THETA,
        "vocab_size": VOCAB, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "model_max_length": CONTEXT, "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False}))


def write_gguf(file, trained, tensors, form=gguf.GGMLQuantizationType.F32):
    """`form` is that of the matrices. llama.cpp takes norms in f32."""
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(THETA)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    names = [trained.id_to_token(id) for id in range(VOCAB)]
    kinds = {marker: gguf.TokenType.CONTROL for marker in MARKERS[:3]} | {marker: gguf.TokenType.USER_DEFINED for marker in MARKERS[3:]}
    writer.add_token_list(names)
    writer.add_token_types([kinds.get(name, gguf.TokenType.NORMAL) for name in names])
    merges = json.loads(trained.to_str())["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(trained.token_to_id("<|endoftext|>"))
    writer.add_eos_token_id(trained.token_to_id("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm"}
    whole = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}

    def add(name, tensor):
        if tensor.ndim == 1 or form == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, numpy.ascontiguousarray(tensor))
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, form), raw_dtype=form)

    for name, tensor in tensors.items():
        name = name.removesuffix(".weight")
        if name in whole:
            add(f"{whole[name]}.weight", tensor)
            continue
        layer, part = name.removeprefix("model.layers.").split(".", 1)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):
            # Hugging Face rotates halves of a head, llama.cpp neighbours.
            heads = tensor.shape[0] // HEAD
            tensor = tensor.reshape(heads, 2, HEAD // 2, HIDDEN).swapaxes(1, 2).reshape(tensor.shape)
        add(f"blk.{layer}.{parts[part]}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(directory, seed=1):
    """`directory`/model and `directory`/model.gguf."""
    trained, tensors = tokenizer(), weights(seed)
    write_hf(directory / "model", trained, tensors)
    write_gguf(directory / "model.gguf", trained, tensors)
    return directory / "model", directory / "model.gguf"
