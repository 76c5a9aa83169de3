"""Writes templates.json: assistant turns with tool calls as the models' own templates write them.

python templates.py DIRECTORY_OF_TEMPLATES > templates.json
"""

import datetime
import json
import os
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "d"},
                    "days": {"type": "integer", "description": "d"},
                    "tags": {"type": "array", "items": {"type": "string"}, "description": "d"},
                    "deep": {"type": "object", "description": "d"},
                },
                "required": ["city"],
            },
        },
    }
    for name in ("get_weather", "search")
]
ARGUMENTS = [{"city": "Köln \"x\"", "days": 3, "tags": ["a", "b"], "deep": {"k": {"n": 1.5}}}, {"city": "line\nbreak"}]
CASES = {
    "one": ("", 1),
    "text": ("Let me see.", 1),
    "two": ("", 2),
}
USER = {"role": "user", "content": "Hi"}


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def fail(message):
        raise ValueError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = fail
    env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 1, 31).strftime(f)
    return env


def nine(index):
    """The id that Format::native_id gives where ids are nine characters."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    rest = (index + 1) * 9837491235711127 % 62**9
    return "".join(digits[rest // 62**i % 62] for i in range(9))


def calls(count, kimi):
    out = []
    for i in range(count):
        function = {"name": ("get_weather", "search")[i], "arguments": ARGUMENTS[i]}
        call_id = f"functions.{function['name']}:{i}" if kimi else nine(i)
        out.append({"id": call_id, "type": "function", "function": function})
    return out


def turn(template, text, made):
    """The assistant's turn: what history has beyond the generation prompt. None: the template refuses such a turn."""
    assistant = {"role": "assistant", "content": text, "tool_calls": made}
    common = {"tools": TOOLS, "bos_token": "", "eos_token": "", "documents": None}
    try:
        prompt = template.render(messages=[USER], add_generation_prompt=True, **common)
        history = template.render(messages=[USER, assistant], add_generation_prompt=False, **common)
    except Exception as error:
        return {"error": str(error)}
    n = len(os.path.commonprefix([prompt, history]))
    return {"prompt": prompt[-60:], "unwritten": prompt[n:], "turn": history[n:]}


def main(directory):
    out = []
    for name in sorted(os.listdir(directory)):
        source = open(os.path.join(directory, name), encoding="utf-8").read()
        template = environment().from_string(source)
        for case, (text, count) in CASES.items():
            made = calls(count, "tool_calls_section" in source)
            row = {"template": name, "case": case, "text": text, "calls": [c["function"] for c in made]}
            out.append(row | turn(template, text, made))
    json.dump(out, sys.stdout, ensure_ascii=False, indent=1)


main(sys.argv[1])
