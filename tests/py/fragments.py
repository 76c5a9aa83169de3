"""The template fragments of router/text/src/template/expected.json: the output of transformers' environment for each, or null if it raises.

usage: fragments.py [--write]      --write: updates the expectations, for added fragments
"""
import json
import pathlib
import sys

import template_battery

PATH = pathlib.Path(__file__).resolve().parents[2] / "router/text/src/template/expected.json"
NOW = "2026-11-21T10:30:05"


def expectations(table):
    before, template_battery.NOW = template_battery.NOW, NOW
    try:
        kwargs = {"bos_token": "<s>", **table["variables"]}
        return [[source, template_battery.by_transformers(source, table["messages"], table["tools"], False, kwargs).get("prompt")]
                for source, _ in table["cases"]]
    finally:
        template_battery.NOW = before


def main():
    table = json.loads(PATH.read_text(encoding="utf-8"))
    cases = expectations(table)
    wrong = [(source, was, now) for (source, was), (_, now) in zip(table["cases"], cases) if was != now]
    for source, was, now in wrong:
        print(f"{source!r}: {was!r} in the table, {now!r} by transformers")
    if "--write" in sys.argv:
        fields = [f"{json.dumps(name)}: {json.dumps(table[name])}" for name in ("variables", "tools", "messages")]
        lines = ",\n".join(json.dumps(case) for case in cases)
        PATH.write_text("{\n" + ",\n".join(fields) + f',\n"cases": [\n{lines}\n]\n}}\n', encoding="utf-8")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
