"""Cases of the Berkeley Function Calling Leaderboard v4 (single turn): asked in several modes, checked by the wheel's own checker."""
import collections
import importlib.util
import json
import pathlib
import statistics
import sys
from types import ModuleType, SimpleNamespace

import jsonschema

from servers import at_once

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance", "live_simple", "live_multiple", "live_parallel")
# By mode: the server, and the tool choice.
MODES = {
    "auto": ("rein", "auto"), "required": ("rein", "required"), "off": ("rein-off", "auto"), "llama": ("llama", "auto"),
    "llama-required": ("llama", "required")}
TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def checker():
    """The wheel's checker and its value for Python. The stub stands for a module that imports the SDKs of all vendors: it says that
    the names of functions have underscores in place of dots."""
    stub = ModuleType("bfcl_eval.constants.model_config")
    stub.MODEL_CONFIG_MAPPING = {"m": SimpleNamespace(underscore_to_dot=True)}
    sys.modules[stub.__name__] = stub
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    return ast_checker, Language.PYTHON


CHECK, PYTHON = checker()


def json_schema(schema):
    """A schema with the names of JSON Schema's types."""
    if isinstance(schema, list):
        return [json_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: value if name in ("default", "enum") else json_schema(value) for name, value in schema.items()}
    if isinstance(schema.get("type"), str):
        made["type"] = TYPES.get(schema["type"], schema["type"])
        if made["type"] == "any":
            del made["type"]
    return made


def closed(schema):
    """The schema whose objects take no members beyond the declared ones, unless they say so."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(value) for name, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def cases(count):
    """Cases of all categories, as many of each as there are, taken at equal distances."""
    data = pathlib.Path(importlib.util.find_spec("bfcl_eval").origin).parent / "data"
    files, left = {}, count
    for category in CATEGORIES:
        lines = (data / f"BFCL_v4_{category}.json").read_text().splitlines()
        truths = data / f"possible_answer/BFCL_v4_{category}.json"
        truths = {line["id"]: line["ground_truth"] for line in map(json.loads, truths.read_text().splitlines())} if truths.exists() else {}
        files[category] = [case(category, json.loads(line), truths) for line in lines]
    chosen = []
    by_size = sorted(CATEGORIES, key=lambda category: len(files[category]))
    for position, category in enumerate(by_size):
        share = min(len(files[category]), left // (len(by_size) - position))
        chosen += [files[category][at * len(files[category]) // share] for at in range(share)]
        left -= share
    return chosen


def case(category, line, truths):
    functions = line["function"]
    tools = [
        {"type": "function", "function": {**function, "name": function["name"].replace(".", "_"), "parameters": json_schema(function["parameters"])}}
        for function in functions]
    return {
        "id": line["id"], "category": category, "messages": line["question"][0], "tools": tools, "functions": functions,
        "truth": truths.get(line["id"])}


def examined(case, answer):
    """The answer with what is true of its calls."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case["tools"]}
    for call in answer.get("calls", ()):
        try:
            call["arguments"] = json.loads(call["arguments"])
        except ValueError:
            call.update(declared=call["name"] in schemas, valid=False, closed=False)
            continue
        call["declared"] = call["name"] in schemas
        schema = schemas.get(call["name"], False)
        call["valid"] = isinstance(call["arguments"], dict) and valid(schema, call["arguments"])
        call["closed"] = call["valid"] and valid(closed(schema), call["arguments"])
    answer["right"] = "error" not in answer and right(case, answer["calls"])
    return answer


def valid(schema, value):
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def right(case, calls):
    if case["category"] == "irrelevance":
        return not calls
    output = [{call["name"]: call["arguments"]} for call in calls]
    try:
        return CHECK(case["functions"], output, case["truth"], PYTHON, case["category"], "m")["valid"]
    # The checker does not expect arguments that are no object, and unhashable or nested values in some places.
    except (AttributeError, KeyError, TypeError, IndexError):
        return False


def essence(answer):
    """What a client acts on."""
    return {name: answer.get(name) for name in ("status", "text", "reasoning", "finish", "tokens", "malformed")} | {
        "calls": [(call["name"], call["arguments"]) for call in answer.get("calls", ())]}


def measure(servers, chosen, mode, max_tokens, again):
    """A record for each case. The first cases of each category, `again` in all, are also asked streamed and over /v1/responses."""
    server, choice = MODES[mode]
    server = servers(server)
    repeated = {case["id"] for case in spread(chosen, again)} if not mode.startswith("llama") else ()

    def ask(case):
        body = {"messages": case["messages"], "tools": case["tools"], "tool_choice": choice, "max_tokens": max_tokens}
        record = {"id": case["id"], "category": case["category"], **examined(case, server.chat(**body))}
        if case["id"] in repeated:
            others = {"stream": server.chat(stream=True, **body), "responses": server.respond(**body), "responses stream": server.respond(stream=True, **body)}
            differing = {name: answer for name, answer in others.items() if essence(examined(case, answer)) != essence(record)}
            record["again"] = {"asked": len(others), "differing": differing}
        return record

    return at_once(ask, chosen)


def spread(chosen, count):
    return [chosen[at * len(chosen) // count] for at in range(min(count, len(chosen)))] if count else []


def natural_tokens(tokenizer, case, calls):
    """The number of tokens that the chat template writes for these calls, with the token that ends the turn."""
    def rendered(*messages, **options):
        return tokenizer.apply_chat_template(
            [*case["messages"], *messages], tools=[*case["tools"]], tokenize=False, **options)

    functions = [{"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]
    begin = rendered(add_generation_prompt=True)
    empty = rendered({"role": "assistant", "content": ""})
    turn = rendered({"role": "assistant", "content": "", "tool_calls": functions})
    if not turn.startswith(begin) or not empty.startswith(begin):
        return None
    return len(tokenizer(turn[len(begin):].removesuffix(empty[len(begin):]), add_special_tokens=False)["input_ids"]) + 1


def valid_but_changed(off, auto):
    """Records without enforcement whose calls are all valid, and whose text, reasoning or calls enforcement changed."""
    enforced = {record["id"]: record for record in auto}

    def said(record):
        return record.get("text"), record.get("reasoning"), [(call["name"], call["arguments"]) for call in record.get("calls", ())]

    return [
        {"id": record["id"], "off": record, "auto": enforced[record["id"]]} for record in off
        if "error" not in record and not record["malformed"] and not record["incomplete"] and all(call["valid"] for call in record["calls"])
        and said(record) != said(enforced[record["id"]])]


def summary(records, chosen, tokenizer):
    """Figures of all modes, and the laws: by name, the records that break each."""
    by_id = {case["id"]: case for case in chosen}
    made, laws = {"modes": {}}, {}
    for mode, asked in records.items():
        answered = [record for record in asked if "error" not in record]
        calls = [call for record in answered for call in record["calls"]]
        scored = [record for record in asked if not (mode.endswith("required") and record["category"] == "irrelevance")]
        counted = collections.Counter(record["category"] for record in scored if record["right"])
        figures = made["modes"][mode] = {
            "cases": len(asked), "errors": len(asked) - len(answered), "calls": len(calls), "invalid": sum(not call["valid"] for call in calls),
            "undeclared": sum(not call["declared"] for call in calls), "right": sum(counted.values()), "scored": len(scored),
            "length": sum(record["finish"] == "length" for record in answered), "malformed": sum(bool(record["malformed"]) for record in answered),
            "incomplete": sum(bool(record["incomplete"]) for record in answered), "tokens": sum(record["tokens"] for record in answered),
            "seconds": statistics.mean([record["seconds"] for record in asked]), "categories": {
                category: [counted[category], sum(record["category"] == category for record in scored)] for category in CATEGORIES}}
        if mode.endswith("required"):
            pairs = [
                (record["tokens"], natural_tokens(tokenizer, by_id[record["id"]], record["calls"]), len(record["calls"]), 1, bool(record["reasoning"]))
                for record in answered
                if record["calls"] and not record["text"] and record["finish"] == "tool_calls" and all(call["valid"] for call in record["calls"])]
            pairs = [pair for pair in pairs if pair[1] is not None]
            figures["per_call"] = [sum(column) for column in zip(*pairs)]
        if not mode.startswith("llama"):
            laws[f"{mode}: errors"] = [record for record in asked if "error" in record]
            laws[f"{mode}: streams or responses that differ from the whole chat"] = [
                record for record in asked if record.get("again", {}).get("differing")]
            figures["again"] = sum(record.get("again", {}).get("asked", 0) for record in asked)
        if mode in ("auto", "required"):
            laws[f"{mode}: answers with invalid or undeclared calls"] = [
                record for record in answered if not all(call["valid"] for call in record["calls"])]
        if mode == "required":
            laws["required: answers without a call that the length did not cut"] = [
                record for record in answered if not record["calls"] and record["finish"] != "length"]
    if "auto" in records and "off" in records:
        changed = valid_but_changed(records["off"], records["auto"])
        made["changed"] = len(changed)
        made["changed_open"] = sum(not all(call["closed"] for call in pair["off"]["calls"]) for pair in changed)
        laws["off: valid answers that enforcement changed"] = changed
    return made, laws


def tables(figures):
    modes = figures["modes"]
    yield "| mode | cases | errors | calls | undeclared | invalid | malformed | incomplete | ended by length | right | tokens | s per case |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for mode, row in modes.items():
        counts = " | ".join(str(row[name]) for name in ("cases", "errors", "calls", "undeclared", "invalid", "malformed", "incomplete", "length"))
        yield f"| {mode} | {counts} | {row['right']} of {row['scored']} | {row['tokens']} | {row['seconds']:.2f} |"
    yield ""
    yield "| right answers | " + " | ".join(CATEGORIES) + " |"
    yield "|---" * (len(CATEGORIES) + 1) + "|"
    for mode, row in modes.items():
        yield f"| {mode} | " + " | ".join("{} of {}".format(*row["categories"][category]) for category in CATEGORIES) + " |"
    for mode, row in modes.items():
        if row.get("per_call"):
            tokens, natural, calls, answers, reasoned = row["per_call"]
            yield (
                f"\n{mode}: {tokens / calls:.1f} tokens per call, {natural / calls:.1f} as the chat template writes the same calls ({calls} calls in "
                f"{answers} finished answers, {reasoned} of which begin with reasoning).")
    if "changed" in figures:
        yield f"\nValid answers that enforcement changed: {figures['changed']}, of which {figures['changed_open']} have undeclared members."
