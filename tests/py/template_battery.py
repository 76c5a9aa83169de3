"""Renders every conversation of conversations.py with transformers' own template environment and with `rein render`, and compares bytes.
Each is rendered twice: raw, with the conversation as it is, and as served, compared with what a careful user of transformers
passes (careful.py).

usage: template_battery.py [TEMPLATE...]      REIN_BIN: the binary
"""
import datetime
import json
import os
import pathlib
import subprocess
import sys
from collections import Counter

from transformers.utils import chat_template_utils

import conversations
from careful import Careful

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = os.path.abspath(os.environ.get("REIN_BIN", REPOSITORY / "target/debug/rein"))
NOW = "2026-03-09T07:05:02"
SHOWN = 3  # differences printed per template


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(NOW)


chat_template_utils.datetime = FixedClock  # strftime_now reads the clock through this name


def templates():
    """The templates of the repository: its own, those of its models, and public ones."""
    own = [*REPOSITORY.glob("models/*/chat_template.jinja"), *REPOSITORY.glob("tests/fixtures/models/*/chat_template.jinja"),
           *REPOSITORY.glob("tests/py/templates/*.jinja")]
    return sorted(own) + sorted(REPOSITORY.glob("tests/fixtures/templates/*.jinja"))


def by_transformers(source, messages, tools, prompt, kwargs):
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=prompt, **kwargs)
        return {"prompt": rendered[0]}
    except Exception as error:  # templates fail with various exceptions
        return {"error": f"{type(error).__name__}: {error}"}


def by_careful_user(source):
    """Like by_transformers, with the conversation prepared by a careful user."""
    def probe(messages):
        return by_transformers(source, messages, None, False, {}).get("prompt")

    careful = Careful(source, probe)

    def by_user(source, messages, tools, prompt, kwargs):
        try:
            messages = careful.conversation(messages)
        except ValueError as error:
            return {"error": str(error)}
        return by_transformers(source, messages, careful.tools(tools), prompt, kwargs)
    return by_user


def by_rein(template, cases, raw):
    """Renders all cases of a template in one process. `raw`: the template gets the conversation as it is, as in transformers."""
    lines = [json.dumps({"messages": messages, "tools": tools, "add_generation_prompt": prompt, "chat_template_kwargs": kwargs, "raw": raw,
                         "call_ids": False}, ensure_ascii=False) for _, messages, tools, prompt, kwargs in cases]
    done = subprocess.run([BIN, "render", "--template", str(template)], input="\n".join(lines) + "\n", text=True, capture_output=True,
                          encoding="utf-8", env={**os.environ, "REIN_TEMPLATE_NOW": NOW}, check=False)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    if done.returncode or len(answers) != len(lines):
        raise SystemExit(f"{template.name}: rein render answered {len(answers)} of {len(lines)} lines, exit {done.returncode}: {done.stderr[-2000:]}")
    return answers


def verdict(theirs, ours):
    if "error" in theirs:
        return "both-error" if "error" in ours else "only-python-errors"
    if "error" in ours:
        return "only-rein-errors"
    return "same" if theirs["prompt"] == ours["prompt"] else "diff"


def around_difference(theirs, ours):
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b), min(len(theirs), len(ours)))
    return f"at {at}: transformers {theirs[max(0, at - 30):at + 50]!r}, rein {ours[max(0, at - 30):at + 50]!r}"


def compare(template, cases, raw):
    source = template.read_text(encoding="utf-8")
    reference = by_transformers if raw else by_careful_user(source)
    if not raw:
        cases = [(*case[:-1], {**case[-1], "tools_ts_str": None}) for case in cases]
    counts, shown = Counter(), []
    for case, ours in zip(cases, by_rein(template, cases, raw)):
        theirs = reference(source, *case[1:])
        kind = verdict(theirs, ours)
        counts[kind] += 1
        if kind == "diff":
            shown.append(f"    {case[0]} {around_difference(theirs['prompt'], ours['prompt'])}")
        elif kind == "only-rein-errors":
            shown.append(f"    {case[0]} rein: {ours['error']}")
    return counts, shown


KINDS = ["same", "both-error", "diff", "only-rein-errors", "only-python-errors"]


def run(chosen, raw=True, cases=None):
    cases = list(conversations.cases()) if cases is None else cases
    print(f"{len(cases)} conversations, {'raw' if raw else 'as served'}\n{'template':56}" + "".join(f"{kind:>19}" for kind in KINDS))
    total = Counter()
    for template in chosen:
        counts, shown = compare(template, cases, raw)
        total += counts
        print(f"{template.stem if template.stem != 'chat_template' else template.parent.name:56}" + "".join(f"{counts[kind]:19}" for kind in KINDS))
        print("".join(line + "\n" for line in shown[:SHOWN]), end="")
    print(f"{'all':56}" + "".join(f"{total[kind]:19}" for kind in KINDS))
    return total


def main():
    chosen = [pathlib.Path(name) for name in sys.argv[1:]] or templates()
    total = run(chosen) + run(chosen, raw=False)
    sys.exit(1 if total["diff"] or total["only-rein-errors"] else 0)


if __name__ == "__main__":
    main()
