#!/usr/bin/env python3
"""Writes the generated parts of docs/ from the code.

    scripts/reference.py            write the pages
    scripts/reference.py --check    exit with 1 and name the pages that differ from the code

Sources: openapi.json (API fields), inference.proto (gRPC) every limits.rs (limits) and habits.toml (options of other servers). Tests hold those sources to the code.
`rein formats --markdown` writes docs/reference/formats.md.
"""
import json
import math
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs"
BINARY_UNITS = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]


def find(name, where="."):
    found = [path for path in sorted((ROOT / where).rglob(name)) if "target" not in path.parts]
    if not found:
        raise SystemExit(f"reference.py: there is no {name} under {where}")
    return found


def cell(text):
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows]) + "\n"


# --- API fields, from openapi.json

def resolved(document, schema):
    while "$ref" in schema:
        node = document
        for part in schema["$ref"].lstrip("#/").split("/"):
            node = node[part]
        schema = node
    return schema


def type_of(document, schema):
    schema = resolved(document, schema)
    if "anyOf" in schema:
        names = [type_of(document, option) for option in schema["anyOf"]]
    elif "enum" in schema:
        return " or ".join(f"`{value}`" for value in map(json.dumps, schema["enum"]) if value != "null")
    elif "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    else:
        kind = schema.get("type", "any")
        names = [kind] if isinstance(kind, str) else kind
        if "array" in names:
            items = type_of(document, schema["items"]) if "items" in schema else "any"
            names = [f"array of {items}" if name == "array" else name for name in names]
    return " or ".join(dict.fromkeys(name for name in names if name and name != "null"))


def limits_of(document, schema):
    schema = resolved(document, schema)
    phrases = []
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        phrases.append(f"{low} to {high}")
    elif low is not None:
        phrases.append(f"at least {low}")
    if "exclusiveMinimum" in schema:
        phrases.append(f"above {schema['exclusiveMinimum']}" + (f", at most {high}" if high is not None else ""))
    for key, words in [("minItems", "at least {} items"), ("maxItems", "at most {} items"), ("maxProperties", "at most {} entries"),
                       ("maxLength", "at most {} bytes")]:
        if key in schema and not (key == "minItems" and schema[key] == 1):
            phrases.append(words.format(schema[key]))
    if schema.get("minLength") == 1 or schema.get("minItems") == 1:
        phrases.append("not empty")
    for inner in schema.get("anyOf", []) + ([schema["items"]] if "items" in schema else []):
        text = "" if "$ref" in inner else limits_of(document, inner)
        if text:
            phrases.append(f"each {text}" if schema.get("items") is inner else text)
    return "; ".join(dict.fromkeys(phrases))


def members(document, schema):
    """Members of an object, one level down, as `object.member`."""
    schema = resolved(document, schema)
    for name, inner in schema.get("properties", {}).items():
        yield name, inner


def fields(document, name):
    schema = document["components"]["schemas"][name]
    required, rows = set(schema.get("required", [])), []
    for field, inner in schema["properties"].items():
        default = "required" if field in required else json.dumps(resolved(document, inner)["default"]) \
            if "default" in resolved(document, inner) else ""
        rows.append([f"`{field}`", type_of(document, inner), limits_of(document, inner), default, resolved(document, inner).get("description", "")])
        if inner.get("$ref", "").endswith("/Message") or "$ref" in inner.get("items", {}):
            continue
        for member, deeper in members(document, inner):
            rows.append([f"`{field}.{member}`", type_of(document, deeper), limits_of(document, deeper), "", resolved(document, deeper).get("description", "")])
    return table(["field", "type", "limits", "default", "meaning"], rows)


def refused(document, name):
    rows = [[f"`{field}`", reason] for field, reason in document["components"]["schemas"][name]["x-refused-fields"].items()]
    return table(["field", "reason, or what to use"], rows)


def api_fields():
    document = json.loads(find("openapi.json", "router")[0].read_text())
    chat, completion, messages, responses = ("ChatRequest", "CompletionRequest", "MessagesRequest", "ResponsesRequest")
    embedding = "EmbeddingRequest"
    described = [chat, completion, embedding, messages, responses, "Message", "Tool", "TokenizeRequest", "DetokenizeRequest"]
    parts = {f"fields {name}": fields(document, name) for name in described}
    schemas = document["components"]["schemas"]
    common = [field for field in schemas[chat]["x-refused-fields"] if field in schemas[completion]["x-refused-fields"]]
    both = {"components": {"schemas": {"Both": {"x-refused-fields": {field: schemas[chat]["x-refused-fields"][field] for field in common}}}}}
    parts["refused both"] = refused(both, "Both")
    for name in [chat, completion, embedding, messages, responses]:
        own = {field: why for field, why in schemas[name]["x-refused-fields"].items() if field not in common}
        parts[f"refused {name}"] = refused({"components": {"schemas": {"Own": {"x-refused-fields": own}}}}, "Own")
    return parts


# --- gRPC, from inference.proto

def grpc():
    text = find("inference.proto", "proto")[0].read_text()
    parts, section, comment = [], [], []
    for line in text.splitlines():
        if line.startswith("//"):
            comment.append(line[2:].strip())
            continue
        if match := re.match(r"(message|enum|service) (\w+)", line):
            parts.append((match[1], match[2], " ".join(comment), section := []))
            if line.rstrip().endswith("}"):
                section.append(line[line.index("{") + 1:line.rindex("}")].strip())
        elif not line.startswith("}") and parts:
            section.append(line[2:] if line.startswith("  ") else line)
        comment = []
    out = []
    for kind, name, why, lines in parts:
        out.append(f"### {name}\n")
        if why:
            out.append(f"{why}\n")
        body = "\n".join(lines).strip("\n")
        out.append(f"```proto\n{kind} {name} {{\n" + "\n".join(f"  {line}".rstrip() for line in body.splitlines()) + "\n}\n```\n" if body
                   else f"`{name}` has no fields.\n")
    return {"messages": "\n".join(out)}


# --- Limits, from limits.rs

CONSTANT = re.compile(r"((?:^[ \t]*///.*\n)*)^pub const (\w+): ([^=]+?) =\s*([^;]+);", re.M)


def quantity(name, kind, value):
    """A constant's value as people read it."""
    value = value.replace("_", "").strip()
    if match := re.fullmatch(r"\((.*)\)", value, re.S):
        return " and ".join(quantity(name, "Duration", part) for part in re.findall(r"Duration::\w+\(\d+\)", match[1]))
    if match := re.fullmatch(r"Duration::from(secs|millis|micros)\(([\d*\s]+)\)", value):
        number = math.prod(int(factor) for factor in match[2].split("*"))
        return f"{number:,} " + {"secs": "s", "millis": "ms", "micros": "us"}[match[1]]
    if match := re.fullmatch(r"(\d+)\.0", value):
        return f"{int(match[1]):,}"
    if match := re.fullmatch(r"(\d+)\.\.=(\d+)", value):
        return f"{match[1]} to {match[2]}"
    if match := re.fullmatch(r"(\d+) << (\d+)", value):
        number = int(match[1]) << int(match[2])
        for unit, suffix in BINARY_UNITS:
            if number % unit == 0:
                return f"{number // unit:,} {suffix}"
    if re.fullmatch(r"\d+", value):
        return f"{int(value):,}" + (" bytes" if "BYTES" in name else "")
    if "::" in value:
        raise SystemExit(f"reference.py: {name} has a value that this script cannot show: {value}")
    return value


def limits():
    parts = {}
    for path in find("limits.rs"):
        rows = []
        for comment, name, kind, value in CONSTANT.findall(path.read_text()):
            words = " ".join(line.strip()[3:].strip() for line in comment.splitlines())
            if not words or words.startswith("...") or words.endswith("..."):
                raise SystemExit(f"{path.relative_to(ROOT)}: the comment of {name} must be a whole sentence")
            rows.append([f"`{name}`", quantity(name, kind, value), words])
        parts[f"limits {path.relative_to(ROOT).parent.as_posix()}"] = table(["limit", "value", "meaning"], rows)
    return parts


# --- Options of other servers, from src/config/habits.toml

def habits():
    options = tomllib.loads((ROOT / "src/config/habits.toml").read_text())["option"]
    names = lambda option: ", ".join(f"`{name}`" for name in option["names"])
    return {f"options of {server}": table([f"of {server}", "in Rein"], [[names(option), option["rein"]] for option in options if option["of"] == server])
            for server in ("vLLM", "llama-server")}


PARTS = {"reference/api-fields.md": api_fields, "reference/grpc.md": grpc, "reference/limits.md": limits, "howto/from-vllm.md": habits}


def filled(page, parts):
    """The page with each generated part in its place: between `<!-- generated: NAME -->` and `<!-- end -->`."""
    text, used = page.read_text(), set()

    def put(match):
        used.add(match[1])
        if match[1] not in parts:
            raise SystemExit(f"{page.name}: nothing generates {match[1]!r}; there are: {', '.join(parts)}")
        return f"<!-- generated: {match[1]} -->\n{parts[match[1]]}<!-- end -->"

    text = re.sub(r"<!-- generated: (.*?) -->\n.*?<!-- end -->", put, text, flags=re.S)
    if missing := set(parts) - used:
        raise SystemExit(f"{page.name}: no place for {', '.join(sorted(missing))}; add `<!-- generated: NAME -->` and `<!-- end -->`")
    return text


def main():
    check, wrong = "--check" in sys.argv[1:], []
    for name, make in PARTS.items():
        page = PAGES / name
        text = filled(page, make())
        if text != page.read_text():
            wrong.append(name)
            if not check:
                page.write_text(text)
    if check and wrong:
        raise SystemExit(f"docs differ from the code: {', '.join(wrong)}; run scripts/reference.py")


if __name__ == "__main__":
    main()
