"""Trains the byte-level BPE tokenizer on the synthetic corpus and writes tokenizer.json and tokenizer_config.json."""
import json
from pathlib import Path
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers import AddedToken
from data import Gen, english
from text import dumps

HERE = Path(__file__).parent
VOCAB = 5120
SPECIAL = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "[UNK]", "[PAD]"]
MARKERS = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"]
# Words, single digits, runs of JSON punctuation, single other signs. A blank is a token of its own, so that a word has the same
# tokens in a sentence and in a JSON string: copying becomes easy for a small model. The fixed parts of a tool declaration may merge
# into one token each, which shortens prompts by a third.
SCAFFOLD = [r'\[?\{"type":"function","function":\{"name":"', r'","description":"', r'","parameters":\{"type":"object","properties":\{"?', r'":\{"type":"(?:string|integer|number|boolean)"', r'":\{"description":"',
            r',"description":"', r'","type":"(?:string|integer|number|boolean)"', r',"enum":\["', r'"?\}+,"required":\["', r'"\]\}\}\},?', r'"?\},"', r'":\{"type":"(?:object|array)","(?:properties|items)":']
PATTERN = "|".join(SCAFFOLD) + r"""|\p{N}|(?:\p{L}\p{M}*)+|["{}\[\]:,]+|[^\s\p{L}\p{N}]| |\s+"""


def train(conversations=12000):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    gen = Gen(seed=7)
    gen.english, gen.invented = english(), 0.0

    def corpus():
        for _ in range(conversations):
            c = gen.conversation()
            if c["tools"]: yield dumps(c["tools"])
            for m in c["messages"]:
                yield m["content"] + "\n" + m.get("reasoning_content", "") + "".join(dumps(t["function"]["arguments"]) + "functions." for t in m.get("tool_calls", []))

    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(SPECIAL) - len(MARKERS), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tok.train_from_iterator(corpus(), trainer)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    assert tok.get_vocab_size() == VOCAB
    tok.save(str(HERE / "tokenizer.json"))
    ids = {t: tok.token_to_id(t) for t in SPECIAL + MARKERS}
    config = {
        "added_tokens_decoder": {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": t in SPECIAL} for t, i in ids.items()},
        "bos_token": "[BOS]", "clean_up_tokenization_spaces": False, "eos_token": "[EOS]", "extra_special_tokens": {}, "model_max_length": 4096, "pad_token": "[PAD]",
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]",
    }
    (HERE / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    train()
