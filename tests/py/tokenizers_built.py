"""Trains small tokenizers of the kinds that models use, with their reference implementations."""
import base64
import json

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what we'll do; don't they've I'm you'd?", "def f(x):\n    return x**2 + 10_000\n\n\tprint(f(3))\r\n",
    "北京今天天气怎么样？请查一下。東京は晴れです。서울은 맑습니다.", "Größe, naïve, façade, İstanbul, Ångström, Жизнь прекрасна, العربية, हिन्दी, ไทย",
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3, "list": [1.5, -2e10, true, null]}}', "🙂👍🏽👩‍👩‍👧🇫🇷 emoji   spaces\n\n\n lines 1234567890 3.14159",
    "user assistant system tool call section begin end think </think> <think>",
] * 3

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "｜DSML｜"]  # added with special: false


def splits(*patterns):
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def byte_level(patterns, ignore_merges=False, normalizer=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits(*patterns), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def train(tokenizer, **more):
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=900, show_progress=False, **more))


def add(tokenizer, **flags):
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False, **flags) for text in SPECIAL]
                         + [AddedToken(text, special=False, normalized=False, **flags) for text in PLAIN])
    return tokenizer


def llama3():
    tokenizer = add(byte_level([LLAMA3], ignore_merges=True))
    # The template adds its own begin token, so the tokenizer must not add one to a rendered prompt.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])
    return tokenizer


def sentencepiece(prepend_scheme):
    """A converted SentencePiece BPE model: spaces as ▁, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if prepend_scheme == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    train(tokenizer, special_tokens=pieces, limit_alphabet=120)
    # The bytes are ordinary pieces, not added tokens that could be matched in text.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    return add(Tokenizer.from_str(json.dumps(state)))


def stripping():
    """Added tokens that strip spaces around them, match only whole words, or match normalised text."""
    tokenizer = byte_level([QWEN], normalizer=normalizers.Lowercase())
    tokenizer.add_tokens([AddedToken("<|im_start|>", lstrip=True, special=True, normalized=False),
                          AddedToken("<|im_end|>", rstrip=True, special=True, normalized=False),
                          AddedToken("<think>", lstrip=True, rstrip=True, special=False, normalized=False),
                          AddedToken("quick", single_word=True, special=False, normalized=False),
                          AddedToken("paris", special=False, normalized=True)])
    return tokenizer


BUILDERS = {
    "llama3": llama3,
    "qwen": lambda: add(byte_level([QWEN], normalizer=normalizers.NFC())),
    "deepseek": lambda: add(byte_level(DEEPSEEK)),
    "gpt2": lambda: add(byte_level([])),
    "metaspace_first": lambda: sentencepiece("first"),
    "metaspace_never": lambda: sentencepiece("never"),
    "llama2": lambda: sentencepiece("llama2"),
    "stripping": stripping,
}


class HuggingFace:
    def __init__(self, name, directory):
        self.tokenizer = BUILDERS[name]()
        (directory / "tokenizer.json").write_text(self.tokenizer.to_str(), encoding="utf-8")
        (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
        self.size = self.tokenizer.get_vocab_size()

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)


class Tiktoken:
    """A small tokenizer in Kimi's layout: tiktoken.model, followed by 256 special tokens, some named in tokenizer_config.json."""

    def __init__(self, directory):
        trained = byte_level([])
        unicode_to_byte = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        tokens = [bytes([byte]) for byte in range(256)]
        for token, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1]):
            spelled = bytes(unicode_to_byte[symbol] for symbol in token)
            if len(spelled) > 1:
                tokens.append(spelled)
        (directory / "tiktoken.model").write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
        named = {len(tokens) + i: text for i, text in enumerate(["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<think>", "</think>"])}
        added = {str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                          "special": "think" not in text} for i, text in named.items()}
        (directory / "tokenizer_config.json").write_text(json.dumps({
            "added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]", "tokenizer_class": "TikTokenTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}))
        special = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(len(tokens), len(tokens) + 256)}
        self.encoding = tiktoken.Encoding("small", pat_str=KIMI, mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
                                          special_tokens=special)
        self.size = len(tokens) + 256

    def encode(self, text):
        return self.encoding.encode(text, allowed_special="all")

    def decode(self, ids):
        return self.encoding.decode(ids, errors="replace")


def byte_symbols():
    """GPT-2's printable character for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in printable else next(hidden)) for byte in range(256)]
