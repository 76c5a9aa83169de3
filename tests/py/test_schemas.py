"""Grammars of schemas accept the JSON texts whose values are valid according to Python's `re` and `jsonschema`."""
import json
import random
import re
import subprocess
from datetime import date

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from conftest import BIN
from test_enforcement import model_dir

CLASSES = [
    r'^[^"]+$', r"^[^\\]+$", r'^[^"\\]+$', r'^["\\]+$', r"^[^/]+$", r"^[/]+$", r"^[^\n]+$", r"^.+$", r"^[^a]+$", r"^[ -~]+$", r"^[^ -~]+$",
    r"^[\x00-\x1f]+$", r"^[^\x00-\x1f]+$", r"^\d+$", r"^\D+$", r"^\w+$", r"^\W+$", r"^[\w.-]+$", r"^[^\w.-]+$", r"^[!-/:-@\[-`{-~]+$", r"^[\]\[]+$",
    r"^[\s\S]+$", r"^\s+$", r"^\S+$", r"^[^\s]+$", r'"', r"\\", r"^[^\"]", r"[^\"]$", r"^(?:[^\"\\]|\\.)*$",
]
ALIKE = [pattern for pattern in CLASSES if not re.search(r"\\[wWdDsS]", pattern)]  # beyond ASCII, Python defines these differently
DIFFER = [chr(c) for c in range(0x1C, 0x20)]  # white space for Python, not for ECMA-262
SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_dir(tmp_path_factory.mktemp("plain"), [])


def accept(folder, cases):
    """Whether the grammar of its schema accepts each whole text, and which keywords are relaxed."""
    asked = [{"text": text, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}} for schema, text in cases]
    text = "\n".join(json.dumps(item) for item in asked)
    command = [BIN, "accept", "--format", "hermes", "--tokenizer", str(folder)]
    out = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(out) == len(cases)
    return [json.loads(line) for line in out]


def spellings(c):
    yield f"\\u{ord(c):04x}"
    yield f"\\u{ord(c):04X}"
    if c >= " " and c not in '"\\':
        yield c
    if c in SHORT:
        yield SHORT[c]


def test_ascii_classes_match_re_for_every_escape_of_a_character(folder):
    cases, wanted = [], []
    for pattern in CLASSES:
        for c in map(chr, range(128)):
            for spelled in spellings(c):
                cases.append(({"type": "string", "pattern": pattern}, f'"{spelled}"'))
                wanted.append((c, re.search(pattern, c) is not None))
    for (schema, text), (c, found), answer in zip(cases, wanted, accept(folder, cases)):
        assert answer["relaxed"] == [], (schema, answer)
        blank = re.search(r"\\s(?!\\S)|(?<!\\s)\\S", schema["pattern"])
        if c in DIFFER and blank:
            assert not answer["complete"], (schema, text)
        elif c == "\n" and schema["pattern"].endswith("$") and not re.search(schema["pattern"][:-1] + r"\Z", c):
            assert not answer["complete"], (schema, text)  # Python's $ also matches before a trailing newline
        else:
            assert answer["complete"] == found, (schema, text)


def test_dates_are_valid_days(folder):
    texts = [f"{year:04d}-{month:02d}-{day:02d}" for year in (0, 4, 100, 1900, 2000, 2023, 2024, 2100, 2400, 9999) for month in range(14) for day in (0, 1, 28, 29, 30, 31, 32)]

    def is_day(text):
        try:
            return date.fromisoformat(text) is not None
        except ValueError:
            return False

    for kind, after in (("date", ""), ("date-time", "T12:30:00Z")):
        cases = [({"type": "string", "format": kind}, f'"{text}{after}"') for text in texts]
        for text, answer in zip(texts, accept(folder, cases)):
            assert answer["complete"] == is_day(text), text
    (answer,) = accept(folder, [({"type": "string", "format": "nobody-knows"}, '"x"')])
    assert answer["complete"] and answer["relaxed"] == []


def test_integers_beyond_floating_point(folder):
    bounds = [0, 9, -10, 2**53, 2**53 + 1, -(2**53) - 1, 10**16, 2**63 - 1, -(2**63), 2**64 - 1]
    cases = []
    for bound in bounds:
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            cases += [({"type": "integer", keyword: bound}, str(bound + by)) for by in (-11, -10, -2, -1, 0, 1, 2, 9, 10)]
    for (schema, text), answer in zip(cases, accept(folder, cases)):
        assert answer["relaxed"] == [], (schema, answer)
        assert answer["complete"] == Draft202012Validator(schema).is_valid(json.loads(text)), (schema, text)


def schema_of(rng, depth=0):
    """A random schema that combines keywords in unusual ways."""
    kind = rng.choice(["string", "integer", "number", "enum", "const", "any", "ref"] + ["object", "array", "combine", "object"] * (depth < 3))
    inner = lambda: schema_of(rng, depth + 1)
    maybe = lambda schema, p=0.5, **more: {**schema, **(more if rng.random() < p else {})}
    if kind == "string":
        schema = {"type": "string"}
        schema = maybe(schema, pattern=rng.choice(ALIKE + [r"^a|b$", r"^(ab|c)*$", r"x.y", r"^\S+@\S+$"]))
        schema = maybe(schema, 0.3, minLength=rng.randrange(3))
        return maybe(schema, 0.3, maxLength=rng.randrange(1, 6))
    if kind in ("integer", "number"):
        schema = {"type": kind}
        schema = maybe(schema, **{rng.choice(["minimum", "exclusiveMinimum"]): rng.choice([-3, 0, 0.5, 7, 10**16])})
        schema = maybe(schema, 0.3, **{rng.choice(["maximum", "exclusiveMaximum"]): rng.choice([8, 10.25, 100, 10**17])})
        schema = maybe(schema, 0.15, multipleOf=rng.choice([2, 5]))
        return maybe(schema, 0.2, **{"not": {"const": rng.choice([0, 1, 8])}})
    if kind == "enum":
        return {"enum": rng.sample([1, 1.0, "a", '"', "\\", None, True, [1], {"a": 1}, "é😀", -0.0, 100, 1e2], 3)}
    if kind == "const":
        return {"const": rng.choice([1, 2.5, "/", "\n", False, [], {}, [None], {"a": "x"}])}
    if kind == "any":
        return rng.choice([{}, True, {"type": ["null", "boolean"]}])
    if kind == "ref":
        return {"$ref": rng.choice(["#/$defs/one", "#/$defs/two"])}
    if kind == "array":
        schema = {"type": "array"}
        schema = maybe(schema, items=inner())
        schema = maybe(schema, 0.3, prefixItems=[inner() for _ in range(rng.randrange(1, 3))])
        schema = maybe(schema, 0.3, contains=inner())
        schema = maybe(schema, 0.1, minContains=rng.randrange(3))
        schema = maybe(schema, 0.3, uniqueItems=True)
        schema = maybe(schema, 0.2, unevaluatedItems=rng.choice([False, {"type": "integer"}]))
        schema = maybe(schema, 0.3, minItems=rng.randrange(3))
        return maybe(schema, 0.3, maxItems=rng.randrange(1, 4))
    if kind == "combine":
        keyword = rng.choice(["allOf", "anyOf", "oneOf", "not", "if", "$ref"])
        if keyword == "not":
            return {"not": inner()}
        if keyword == "if":
            return {"if": inner(), "then": inner(), "else": inner()}
        if keyword == "$ref":
            other = inner()
            return {**(other if isinstance(other, dict) else {}), "$ref": "#/$defs/one"}
        return {keyword: [inner() for _ in range(2)]}
    schema = {"type": "object"}
    keys = ["a", "b", '"', "c/d", "é"]
    schema = maybe(schema, 0.8, properties={key: inner() for key in rng.sample(keys, rng.randrange(1, 4))})
    schema = maybe(schema, required=rng.sample(keys, rng.randrange(1, 3)))
    schema = maybe(schema, 0.4, additionalProperties=rng.choice([False, True, {"type": "integer"}]))
    schema = maybe(schema, 0.3, patternProperties={rng.choice(['^[^"]$', "a", "^.$", "[/\"]"]): inner()})
    schema = maybe(schema, 0.2, propertyNames=rng.choice([{"maxLength": 1}, {"pattern": '^[^"]+$'}, {"$ref": "#/$defs/name"}]))
    schema = maybe(schema, 0.2, unevaluatedProperties=rng.choice([False, {"type": "string"}]))
    schema = maybe(schema, 0.2, dependentRequired={"a": ["b"]})
    schema = maybe(schema, 0.2, dependentSchemas={"b": inner()})
    schema = maybe(schema, 0.2, minProperties=rng.randrange(3))
    return maybe(schema, 0.2, maxProperties=rng.randrange(1, 3))


def value_of(rng, depth=0):
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind <= 2:
        return rng.choice([0, 1, 2, 5, 7, 8, 10, 100, -3, 0.5, 1.0, 2.5, 10.25, 10**16, 10**16 + 1, 1e2])
    if kind <= 5:
        return rng.choice(["", "a", "b", '"', "\\", "/", "ab", "a\nb", "é😀", "c/d", "x.y", "a@b", 'x"y', "\x1f", "abcdefgh"])
    if kind == 6:
        return [value_of(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "b", '"', "c/d", "é", "zz"]): value_of(rng, depth + 1) for _ in range(rng.randrange(4))}


def text_of(rng, value):
    """The value as JSON, with unusual spaces and escapes."""
    if isinstance(value, str):
        return '"' + "".join(rng.choice(list(spellings(c))) if c < "\x80" else rng.choice([c, json.dumps(c)[1:-1]]) for c in value) + '"'
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, (int, float)):
        other = [f"{value}.0", f"{value}e0"] if isinstance(value, int) and abs(value) < 2**53 else []
        return rng.choice([json.dumps(value), json.dumps(value), *other])
    if isinstance(value, list):
        return "[" + ", ".join(text_of(rng, item) for item in value) + "]"
    members = [f"{json.dumps(key) if rng.random() < 0.7 else text_of(rng, key)}: {text_of(rng, item)}" for key, item in value.items()]
    if members and rng.random() < 0.15:
        members.append(rng.choice(members))  # a duplicate key
    return "{" + ", ".join(members) + "}"


def instances(rng, schema):
    """Random values that may satisfy a schema."""
    validator = validator_for(schema, default=Draft202012Validator)(schema)
    values = [value_of(rng) for _ in range(60)]
    return validator, [v for v in values if validator.is_valid(v)][:8] + values[:8]


def test_grammars_without_relaxations_accept_only_valid_texts(folder):
    rng = random.Random(5)
    cases, schemas = [], []
    while len(schemas) < 250:
        schema = schema_of(rng)
        schema = {**(schema if isinstance(schema, dict) else {}), "$defs": {"one": schema_of(rng, 3), "two": {"type": "array", "items": {"type": "boolean"}}, "name": {"pattern": "^[^/]+$"}}}
        if "#/$defs/" in json.dumps(schema["$defs"]):
            continue  # infinitely recursive definitions
        schemas.append(schema)
        validator, values = instances(rng, schema)
        for value in values:
            text = text_of(rng, value)
            cases.append((schema, text, validator.is_valid(json.loads(text))))
            plain = json.dumps(value)
            cases.append((schema, plain, validator.is_valid(json.loads(plain))))
    taken, refused = 0, []
    for (schema, text, valid), answer in zip(cases, accept(folder, [case[:2] for case in cases])):
        if answer["complete"] and not answer["relaxed"]:
            taken += 1
            assert valid, json.dumps([schema, text], ensure_ascii=False)
        if valid and not answer["complete"] and text == json.dumps(json.loads(text)):
            refused.append((schema, text, answer))
    print(f"{taken} of {len(cases)} texts are taken and valid; of {sum(case[2] for case in cases)} valid ones {len(refused)} plainly written are refused")
    for schema, text, answer in refused[:40]:
        print(json.dumps(schema, ensure_ascii=False), text, answer["error"])
    assert taken > 500
