"""Structured answers: twenty schemas of the kinds that people write, five questions each, plain, with `strict`, and led to their end
with `finish_structured`."""
import json
import statistics

import jsonschema

from servers import at_once

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": name} for name in ("string", "integer", "number", "boolean"))


def of(required, /, closed=True, **properties):
    """A schema of an object. `required` is a number: so many of the first properties are."""
    made = {"type": "object", "properties": properties, "required": list(properties)[:required]}
    return {**made, "additionalProperties": False} if closed else made


def array(items, **bounds):
    return {"type": "array", "items": items, **bounds}


def nullable(name):
    return {"type": [name, "null"]}


LANDMARKS = {"type": "object", "properties": {
    "name": {"type": "string"}, "landmarks": {"type": "array", "items": {
        "type": "object", "properties": {"name": {"type": "string"}, "year": {"type": ["integer", "null"]}}, "required": ["name", "year"]}}},
    "required": ["name", "landmarks"], "additionalProperties": False}
TREE = {
    "$defs": {"node": of(2, label=STRING, children=array({"$ref": "#/$defs/node"}, maxItems=3))}, "$ref": "#/$defs/node"}
SHAPE = {"anyOf": [
    of(2, kind={"const": "circle"}, radius=NUMBER), of(3, kind={"const": "rectangle"}, width=NUMBER, height=NUMBER),
    of(2, kind={"const": "square"}, side=NUMBER)]}

# By name: the schema, a question, and what its blank stands for.
SCHEMAS = {
    "landmarks, open items": (LANDMARKS, "List three landmarks of {} with the year they were built", ("Rome", "Paris", "Cairo", "New York", "Kyoto")),
    "open object": (
        of(2, closed=False, name=STRING, capital=STRING, population=INTEGER), "Give me facts about {}.",
        ("France", "Japan", "Kenya", "Brazil", "Norway")),
    "open without required": (
        of(0, closed=False, title=STRING, author=STRING, year=INTEGER), "Describe the book {}.",
        ("Moby Dick", "Dune", "Emma", "Ulysses", "The Hobbit")),
    "closed object": (
        of(3, name=STRING, age=INTEGER, city=STRING), "Extract the person: {}",
        ("Anna is 31 and lives in Oslo.", "Bob, 45, Lima.", "In Rome lives Carla, aged 9.", "Dev turned 60 in Pune.", "Eva (22) moved to Bonn.")),
    "nested object": (
        of(2, name=STRING, address=of(3, street=STRING, city=STRING, country=of(2, name=STRING, code=STRING))), "Invent an address of {} with a street.",
        ("a museum in Berlin", "a hotel in Madrid", "a bakery in Lyon", "a school in Dublin", "a cinema in Warsaw")),
    "optional members": (
        of(1, name=STRING, email=STRING, phone=STRING, company=STRING), "Extract the contact: {}",
        ("Jo Li, jo@example.com", "Call Max at 555-0101", "Ada of Acme", "Kim, Initech, kim@initech.example", "Only Sam")),
    "unions with null": (
        of(3, title=STRING, due=nullable("string"), priority=nullable("integer")), "Make a task of this: {}",
        ("Buy milk tomorrow", "Call mum", "Urgent: pay rent by Friday", "Clean the car", "Send report on 3 May, priority 2")),
    "anyOf": (SHAPE, "Describe {} as a shape.", ("a coin", "a door", "a chess board", "a football field", "a wheel of 30 cm")),
    "enums": (
        of(3, sentiment={"enum": ["positive", "negative", "neutral"]}, topic={"type": "string", "enum": ["food", "travel", "work"]}, score={"enum": [1, 2, 3, 4, 5]}),
        "Classify: {}", ("The pizza was great.", "My flight was late again.", "The meeting is at ten.", "I love this soup.", "The hotel was dirty.")),
    "const and type": (
        of(3, version={"const": 2}, kind={"const": "note"}, body=STRING), "Write a note about {}.",
        ("rain", "the sea", "a lost key", "a birthday", "coffee")),
    "array": (array(STRING), "List {}.", ("the planets", "five colours", "three rivers in Europe", "the days of the week", "four programming languages")),
    "minItems": (
        of(1, words=array(STRING, minItems=12)), "Give twelve words that rhyme with or sound like {}.", ("day", "light", "tree", "house", "king")),
    "maxItems": (of(1, steps=array(STRING, minItems=1, maxItems=4)), "How do I {}?", ("make tea", "tie a tie", "plant a tree", "boil an egg", "change a tyre")),
    "array of objects": (
        of(1, items=array(of(3, product=STRING, quantity=INTEGER, price=NUMBER))), "Make an invoice of: {}",
        ("two pens at 1.50", "a laptop for 999", "3 apples at 0.40 and 1 melon at 3", "five books, 12 each", "a desk 150, a chair 80, a lamp 25")),
    "array of open objects": (
        array(of(1, closed=False, name=STRING, born=INTEGER)), "Name three {} with the year of birth.",
        ("painters", "physicists", "composers", "novelists", "chess players")),
    "pattern": (
        of(2, code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, colour={"type": "string", "pattern": "^#[0-9a-f]{6}$"}),
        "Invent a product code and a colour for {}.", ("a red bike", "a blue cup", "a green chair", "a white lamp", "a black phone")),
    "formats": (
        of(3, email={"type": "string", "format": "email"}, date={"type": "string", "format": "date"}, time={"type": "string", "format": "date-time"}),
        "Extract or invent the booking: {}",
        ("lee@example.com, 4 May 2024 at noon", "On 2023-12-24 at 18:00 for pat@example.org", "tomorrow for ann@example.net", "bo@example.com, New Year", "No address, 1 June")),
    "bounds": (
        of(3, stars={"type": "integer", "minimum": 1, "maximum": 5}, percent={"type": "number", "minimum": 0, "maximum": 100},
           year={"type": "integer", "minimum": 1900, "exclusiveMaximum": 2100}),
        "Rate {}: stars, how sure you are in percent, and the year it came out.", ("Titanic", "Jaws", "Alien", "Avatar", "Psycho")),
    "recursive": (TREE, "Write {} as a tree.", ("a small family", "the folders of a project", "a company", "the animals", "a menu with two levels")),
    "map": (
        {"type": "object", "properties": {"unit": STRING}, "required": ["unit"], "additionalProperties": NUMBER},
        "Give a table of {} with the unit.", ("the weights of four animals", "prices of fruit", "the heights of three mountains", "temperatures of a week", "lengths of rivers")),
}


def questions(count):
    """As many cases as asked for, at most 100: first the first question of each schema."""
    made = [
        {"id": f"{name}, {number}", "name": name, "schema": schema, "question": question.format(blanks[number])}
        for number in range(5) for name, (schema, question, blanks) in SCHEMAS.items()]
    return made[:count]


# By mode: the server, members of `json_schema`, and fields of the request.
MODES = {
    "plain": ("rein", {}, {}), "strict": ("rein", {"strict": True}, {}), "finished": ("rein", {}, {"finish_structured": True}),
    "llama": ("llama", {}, {})}


def measure(servers, chosen, mode, max_tokens):
    server, members, fields = MODES[mode]
    server = servers(server)

    def ask(case):
        form = {"name": "answer", "schema": case["schema"], **members}
        answer = server.chat(
            messages=[{"role": "user", "content": case["question"]}], max_tokens=max_tokens,
            response_format={"type": "json_schema", "json_schema": form}, **fields)
        return {"id": case["id"], "name": case["name"], **answer, "outcome": outcome(case["schema"], answer)}

    return at_once(ask, chosen)


def outcome(schema, answer):
    if "error" in answer:
        return "refused" if answer["status"] == 400 else "error"
    if answer["finish"] == "length":
        return "length"
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    try:
        return "whole" if answer["finish"] == "stop" and validator.is_valid(json.loads(answer["text"])) else "invalid"
    except ValueError:
        return "invalid"


def summary(records):
    """Figures by mode, and the laws: by name, the records that break each."""
    made, laws = {"modes": {}, "schemas": {}}, {}
    for mode, asked in records.items():
        tokens = [record["tokens"] for record in asked if "error" not in record]
        made["modes"][mode] = {
            "answers": len(asked), **{name: sum(record["outcome"] == name for record in asked) for name in OUTCOMES}, "tokens": sum(tokens),
            "median": statistics.median(tokens or [0]), "seconds": statistics.mean([record["seconds"] for record in asked])}
        for record in asked:
            row = made["schemas"].setdefault(record["name"], {}).setdefault(mode, {})
            row[record["outcome"]] = row.get(record["outcome"], 0) + 1
        if not mode.startswith("llama"):
            laws[f"{mode}: finished answers that are not valid"] = [record for record in asked if record["outcome"] == "invalid"]
            laws[f"{mode}: errors"] = [
                record for record in asked if record["outcome"] == "error" or record["outcome"] == "refused" and mode != "strict"]
        if mode == "finished":
            laws[f"{mode}: answers that the length cut"] = [record for record in asked if record["outcome"] == "length"]
    return made, laws


OUTCOMES = ("whole", "length", "invalid", "refused", "error")


def tables(figures):
    yield "| mode | answers | whole | ended by length | invalid | refused (400) | errors | tokens | median | s per answer |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for mode, row in figures["modes"].items():
        counts = " | ".join(str(row[name]) for name in ("answers", *OUTCOMES, "tokens", "median"))
        yield f"| {mode} | {counts} | {row['seconds']:.2f} |"
    yield ""
    modes = list(figures["modes"])
    yield "| schema | " + " | ".join(modes) + " |"
    yield "|---" * (len(modes) + 1) + "|"
    for name, row in figures["schemas"].items():
        cells = (", ".join(f"{count} {outcome}" for outcome, count in sorted(row.get(mode, {}).items(), key=lambda pair: OUTCOMES.index(pair[0]))) for mode in modes)
        yield f"| {name} | " + " | ".join(cells) + " |"
