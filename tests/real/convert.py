"""convert.py GGUF DIR: a GGUF file of Qwen2 or SmolLM2 as a model directory in the Hub's layout.

transformers dequantizes the weights, which are written in bf16. The tokenizer is built from the file's own tokens and merges:
transformers' conversion drops added tokens of Qwen (`<tool_call>` would become letters) and gives SmolLM2 a tokenizer of Llama."""
import json
import pathlib
import sys

import gguf
import torch
from transformers import AutoModelForCausalLM

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


# By the file's tokenizer.ggml.pre: the normalizer, and how a text is split before the merges.
SPLITS = {
    "qwen2": ({"type": "NFC"}, [
        {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": False}, byte_level(False)]),
    "smollm": (None, [{"type": "Digits", "individual_digits": True}, byte_level(True)]),
}


def tokenizer(field):
    """The contents of tokenizer.json."""
    tokens, kinds = field("tokens"), field("token_type")
    normalizer, split = SPLITS[field("pre")]
    added = [
        {"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": kind == CONTROL}
        for id, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (CONTROL, USER_DEFINED)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split}, "post_processor": None, "decoder": byte_level(False),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False,
            "vocab": {token: id for id, (token, kind) in enumerate(zip(tokens, kinds)) if kind != UNUSED},
            "merges": [merge.split(" ") for merge in field("merges")]}}


def write(path, contents):
    path.write_text(json.dumps(contents, indent=1, ensure_ascii=False))


def main(source, target):
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    model.save_pretrained(target)
    config = json.loads((target / "config.json").read_text())
    config.pop("_model_name_or_path", None)
    write(target / "config.json", config)

    fields = gguf.GGUFReader(source).fields

    def field(name):
        return fields[f"tokenizer.ggml.{name}"].contents()

    made = tokenizer(field)
    write(target / "tokenizer.json", made)
    tokens = field("tokens")
    write(target / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "clean_up_tokenization_spaces": False,
        "bos_token": tokens[field("bos_token_id")], "eos_token": tokens[field("eos_token_id")], "pad_token": tokens[field("padding_token_id")],
        "chat_template": fields["tokenizer.chat_template"].contents(),
        "added_tokens_decoder": {token["id"]: {k: v for k, v in token.items() if k != "id"} for token in made["added_tokens"]}})


if __name__ == "__main__":
    main(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:]))
