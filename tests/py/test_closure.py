"""For every format, the grammar accepts what the renderer writes, with a real tokenizer, and the parser reads it back.

Cases are the schemas and arguments of `rein verify --generate`; they are checked with Python's jsonschema and the tokenizers library.
REIN_CASES is the number of cases per format (few in `make test`, 2000 in a full run)."""
import copy
import json
import pathlib
import random
import subprocess

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from tokenizers import Tokenizer

from conftest import BIN, REPOSITORY
from test_enforcement import CASES, FORMATS, SPELLED, model_dir

KIMI = REPOSITORY / "tests/fixtures/kimi_k2"
TEXTS = ["", "Let me see.", "Über 5 € — naïve ☕\n\nSecond paragraph.", "a < b && c > d", "1. one\n2. two", "{not json", "日本語です"]


def lines(command, items):
    """The answers to these lines."""
    text = "\n".join(json.dumps(item) for item in items)
    answers = subprocess.run([BIN, *command], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answers) == len(items)
    return [json.loads(answer) for answer in answers]


@pytest.fixture(scope="session")
def asked(tmp_path_factory):
    """(tools, name, arguments) of generated requests."""
    file = tmp_path_factory.mktemp("asked") / "samples.jsonl"
    subprocess.run([BIN, "verify", "--generate", str(max(240, 2 * CASES)), "--seed", "11", "--out", str(file)], check=True, capture_output=True)
    found = []
    for line in file.read_text().splitlines():
        sample = json.loads(line)
        content = sample["request"]["messages"][-1]["content"]
        content = content if isinstance(content, str) else "".join(part["text"] for part in content)
        if "with exactly these arguments: " in content:
            name, _, arguments = content.removeprefix("Call the tool ").partition(" with exactly these arguments: ")
            found.append((sample["request"]["tools"], name, json.loads(arguments)))
    assert len(found) > 50
    return found


def keywords(tool):
    """Whether the arguments of a tool can be keyword arguments in Python."""
    return all(key.isidentifier() for key in tool["function"].get("parameters", {}).get("properties", {}))


def valid(schema, arguments):
    return not list(validator_for(schema, default=Draft202012Validator)(schema).iter_errors(arguments))


def mutations(name, schema, arguments):
    """Calls that violate the schema. Formats with raw text cannot distinguish another type from a string."""
    yield "undeclared", name + "x", arguments
    for key in arguments:
        broken = copy.deepcopy(arguments)
        del broken[key]
        yield "missing", name, broken
        broken = copy.deepcopy(arguments)
        broken[key] = {"unexpected": [None]}
        yield "type", name, broken
    if schema.get("properties") and not schema.get("additionalProperties") and not schema.get("patternProperties"):
        yield "extra", name, {**arguments, "surplus": 1}


def many(asked, usable):
    """A call with the declarations of as many tools as agents with several servers have, under long names."""
    pool = [tool for tools, _, _ in asked for tool in tools if usable(tool)]
    tools, name, arguments = next(one for one in asked if all(usable(tool) for tool in one[0]))
    others = [copy.deepcopy(pool[i % len(pool)]) for i in range(250 - len(tools))]
    for i, tool in enumerate(others):
        tool["function"]["name"] = f"{tool['function']['name'][:40]}_of_server_{i}"
    return {"content": "Hi.", "tool_calls": [{"name": name, "arguments": arguments}], "tools": tools + others}


def close(format, folder, asked, encode):
    rng = random.Random(format["name"])
    python = "arguments are Python literals" in format["guarantees"]
    turns, broken, why = [many(asked, keywords if python else lambda tool: True)], [], []
    for i in range(CASES):
        tools, name, arguments = rng.choice(asked)
        if python and not all(keywords(tool) for tool in tools):
            continue  # such tools are rejected
        if any("raw values" in g for g in format["guarantees"]) and any(marker in json.dumps(arguments) for marker in format["markers"]):
            continue  # a raw value cannot contain its end marker
        calls = [{"name": name, "arguments": arguments}] * (rng.choice([1, 1, 2]) if "several calls per turn" in format["guarantees"] else 1)
        content = rng.choice(TEXTS)
        if "no marker begins a call: only declared names count" in format["guarantees"]:
            content = content.lstrip("{")  # text that starts with { must be a call
        turns.append({"content": content, "tool_calls": calls if i % 5 else [], "tools": tools})
        schema = next(t["function"].get("parameters") or {} for t in tools if t["function"]["name"] == name)
        for kind, other, mutated in mutations(name, schema, arguments):
            if kind == "undeclared" and "no marker begins a call: only declared names count" in format["guarantees"]:
                text = {"content": "", "tool_calls": [{"name": other, "arguments": mutated}], "tools": tools}
                [written] = lines(["parse", "--format", format["name"], "--render"], [text])
                [read] = lines(["parse", "--format", format["name"]], [{"tools": tools, "text": written["text"]}])
                assert not read["tool_calls"], (written, read)
            elif kind == "undeclared" or not valid(schema, mutated):
                broken.append({"content": "", "tool_calls": [{"name": other, "arguments": mutated}], "tools": tools})
                why.append((kind, schema, mutated))
    named = ["--format", format["name"]]
    texts = [answer["text"] for answer in lines(["parse", *named, "--render"], turns)]
    cases = [{"tools": turn["tools"], "text": text} for turn, text in zip(turns, texts)]
    for case, answer in zip(cases, lines(["accept", *named, "--tokenizer", str(folder)], cases)):
        assert answer["complete"] and answer["error"] is None, json.dumps([case, answer], ensure_ascii=False)
    whole = lines(["parse", *named], cases)
    for turn, text, read in zip(turns, texts, whole):
        got = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in read["tool_calls"]]
        assert got == turn["tool_calls"] and not read["malformed"], json.dumps([turn, text, read], ensure_ascii=False)
        if not got or "a turn is text or calls" not in format["guarantees"]:
            assert read["content"].strip() == turn["content"].strip(), (text, read)
    told = lambda read: {key: read[key] for key in ("reasoning", "content", "tool_calls", "malformed")}
    cuts = [{"chunks": "char"}, {"chunks": rng.randint(2, 9)}]
    for cut in cuts:
        for read, again in zip(whole, lines(["parse", *named], [{**case, **cut} for case in cases])):
            assert told(read) == told(again), cut
    if encode:
        ids = [{"tools": case["tools"], "token_ids": encode(case["text"])} for case in cases]
        for read, again in zip(whole, lines(["parse", *named, "--tokenizer", str(folder)], ids)):
            assert told(read) == told(again)
    for case, answer in zip(ids if encode else cases, lines(["accept", *named, "--tokenizer", str(folder)], ids if encode else cases)):
        assert answer["complete"], answer
    mutated = [{"tools": turn["tools"], "text": answer["text"]} for turn, answer in zip(broken, lines(["parse", *named, "--render"], broken))]
    accepted = lines(["accept", *named, "--tokenizer", str(folder)], mutated)
    taken = 0
    for case, reason, answer, read in zip(mutated, why, accepted, lines(["parse", *named], mutated)):
        if answer["complete"] and not answer["relaxed"]:
            taken += 1
            schemas = {t["function"]["name"]: t["function"].get("parameters") or {} for t in case["tools"]}
            assert read["tool_calls"], (reason, case["text"], answer)
            for call in read["tool_calls"]:
                assert valid(schemas[call["name"]], json.loads(call["arguments"])), (reason, case["text"], answer)
    return len(cases), len(mutated), taken


def reports(name, counts):
    print(f"{name}: {counts[0]} turns taken and read back, {counts[1] - counts[2]} of {counts[1]} broken calls refused, the others are valid as they are read")


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f["name"])
def test_rendered_is_accepted_and_read_back(format, asked, tmp_path):
    folder = model_dir(tmp_path, [] if format["name"] in SPELLED else format["markers"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    reports(format["name"], close(format, folder, asked, lambda text: tokenizer.encode(text, add_special_tokens=False).ids))


@pytest.mark.parametrize("format", [f for f in FORMATS if f["name"] == "kimi_k2"], ids=lambda f: f["name"])
def test_kimis_own_tokenizer(format, asked):
    reports(format["name"], close(format, KIMI, asked, None))
