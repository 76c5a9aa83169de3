"""Compares `rein render --tokenizer` with tiktoken (Kimi's golden ids) and with `tokenizers` on small tokenizers that it trains.

usage: tokenizer_battery.py [NAME...]      REIN_BIN: the binary
Lines in: {"text"} gives {"token_ids"}, {"token_ids"} gives {"text"}.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers_built import BUILDERS, PLAIN, SPECIAL, HuggingFace, Tiktoken

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = os.path.abspath(os.environ.get("REIN_BIN", REPOSITORY / "target/debug/rein"))
KIMI = REPOSITORY / "tests/fixtures/kimi_k2"
STRINGS, ID_LISTS = 3000, 300

PIECES = [
    *SPECIAL, *PLAIN, "[BOS]", "<|im_user|>", "<|im_", "end|>", "<|reserved_token_900|>", "<0x0A>", "<unk>", "<think", "</", "｜",
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028", "\x1c", "\x00", "\x7f", "\u200b", "\ufeff", "▁", "Ġ",
    "the", " The", "quick", "quickly", "QUICK", "fox", " Paris", "paris", "don't", "I'LL", "we've'd", "it's", "HTTPServer", "camelCaseÉté", "naïve", "e\u0301",
    "0", "42", "1234567", " 3.14", "１２", "½", "٣", "!", "...", "?!\n", "->", "{\"a\": [1, 2]}", "'", '"', "\\", "`", "_", "#", "é", "ß", "ﬁ", "İ",
    "北京", "天", "東京は", "ひらがな", "カタカナ", "서울", "한", "Жизнь", "العربية", "हिन्दी", "ไทย", "עברית", "🙂", "👩‍👩‍👧", "🇫🇷", "👍🏽", "𝒳", "\U0010ffff",
]


def random_strings(seed):
    dice = random.Random(seed)
    for _ in range(STRINGS):
        pieces = [dice.choice(PIECES) if dice.random() < 0.9 else random_character(dice) for _ in range(dice.randint(0, 12))]
        yield "".join(pieces)


def random_character(dice):
    top = dice.choice([0x80, 0x800, 0x10000, 0x110000])
    code = dice.randrange(top)
    return chr(code) if not 0xD800 <= code < 0xE000 else "x"


def rein(directory, lines):
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    done = subprocess.run([BIN, "render", "--tokenizer", str(directory)], input=text, capture_output=True, encoding="utf-8", check=False)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    if done.returncode or len(answers) != len(lines):
        raise SystemExit(f"rein render answered {len(answers)} of {len(lines)} lines, exit {done.returncode}: {done.stderr[-2000:]}")
    return answers


def compare(name, directory, texts, ids, lists, decoded):
    """Checks that encoding the texts gives the ids, and decoding the lists of ids gives the decoded texts."""
    wrong = []
    for text, expected, answer in zip(texts, ids, rein(directory, [{"text": text} for text in texts])):
        if answer.get("token_ids") != expected:
            wrong.append(f"{text!r}: {expected} expected, got {answer}")
    for row, expected, answer in zip(lists, decoded, rein(directory, [{"token_ids": row} for row in lists])):
        if answer.get("text") != expected:
            wrong.append(f"{row}: {expected!r} expected, got {answer}")
    print(f"{name:20} {len(texts):6} texts {len(lists):6} id lists {len(wrong):6} differences")
    print("".join(f"    {line[:400]}\n" for line in wrong[:3]), end="")
    return len(wrong)


def kimi():
    """Kimi's vocabulary: compares with the ids of tiktoken, and decodes them."""
    cases = json.loads((KIMI / "token_ids.json").read_text(encoding="utf-8"))["cases"]
    texts, ids = [case["text"] for case in cases], [case["ids"] for case in cases]
    return compare("kimi", KIMI, texts, ids, ids, texts)


def built(name):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory)
        reference = Tiktoken(path) if name == "tiktoken" else HuggingFace(name, path)
        texts = list(random_strings(name))
        ids = [reference.encode(text) for text in texts]
        # ids of the texts, and lists that are not valid UTF-8, which decode to U+FFFD
        dice = random.Random(name)
        lists = ids[:ID_LISTS] + [[dice.randrange(reference.size) for _ in range(dice.randint(1, 8))] for _ in range(ID_LISTS)]
        return compare(name, path, texts, ids, lists, [reference.decode(row) for row in lists])


def run(chosen):
    return sum(kimi() if name == "kimi" else built(name) for name in chosen)


def main():
    sys.exit(1 if run(sys.argv[1:] or ["kimi", "tiktoken", *BUILDERS]) else 0)


if __name__ == "__main__":
    main()
