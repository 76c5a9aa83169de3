"""Synthetic tool-calling conversations for the demo model.

`Gen(seed, held)` makes conversations {"messages", "tools", "thinking"} in the OpenAI spelling. With held=True all tools come from
nouns, domains and templates that training never sees, and half of the names and places are unseen too.
`python data.py [N] [--held]` prints N conversations as JSON lines.
"""
import json, random, re, string, sys
from catalog import *
from conversation import Conversation
from text import *

CONDITIONS = "sunny cloudy rainy windy foggy snowy clear stormy".split()
TOPPINGS = "cheese mushrooms ham olives onions peppers tuna basil".split()
LANGS = "French German Spanish Italian Japanese Chinese Dutch Polish Swedish Greek Turkish Korean".split()
ROOMS = "kitchen bedroom bathroom office garage hallway garden attic cellar studio".split()
UNITS = "kg grams pounds ounces miles km meters feet inches cm yards liters gallons cups pints celsius fahrenheit knots acres hectares".split()
FOODS = "rice pasta bread pizza soup salad steak salmon chicken curry porridge pancakes lentils cake yoghurt muesli noodles potatoes tofu waffles".split()
CURRENCIES = "USD EUR GBP JPY CHF CAD AUD SEK INR BRL".split()
ACTIVITIES = "running swimming cycling yoga rowing hiking climbing boxing skating dancing".split()
FORMAT_NAME = {"city": "City name", "date": "Date as YYYY-MM-DD", "time": "Time as HH:MM", "email": "Email address", "url": "URL", "path": "File path"}
INT_KINDS = {"limit": (1, 50), "days": (1, 14), "minutes": (1, 180), "small": (1, 20), "percent": (1, 100), "degrees": (10, 30), "stars": (1, 5), "px": (16, 4096), "int": (1, 9999)}
# First words of requests before which "Could you" fits.
COMMANDS = {v.split("_")[0] for v in VERBS} | {v for verbs, *_ in ACTIONS.values() for v in verbs.split()} | {ask.split(" ")[0] for _, asks, *_ in ACTIONS.values() for ask in asks}
COMMANDS = (COMMANDS | {ask.split(" ")[0] for line in TOOLS.strip().split("\n") for ask in line.split("|")[3].split(";") if not ask.endswith("?") and not ask.startswith("~")}) - STATEMENTS - set("which how tell".split())


class Tool:
    """One declared tool: its OpenAI spec and what is needed to ask for it and to answer from its result."""

    def __init__(self, key, name, noun, spec, params, asks, answer, slots=False):
        """slots: the requests name the required parameters by number ({0}, {1}) instead of a clause each."""
        self.key, self.name, self.noun, self.spec, self.params, self.asks, self.answer, self.slots = key, name, noun, spec, params, asks, answer, slots
        self.says = content(name + " " + spec["function"].get("description", ""))  # the words by which a request can find it
        self.takes = {SHAPES.get(kind, kind) for _, kind, _ in params}
        self.shapes = set()  # what it takes, if that alone tells

    def related(self, other):
        """Shares a word or an action with it, so that a request for one is not plainly outside the other."""
        return (self.key[0] == other.key[0] and self.key[0] != "described") or bool(self.says & other.says)

    def confusable(self, other):
        """A request for one of them could as well mean the other."""
        for a, b in ((self, other), (other, self)):
            if a.key == b.key or a.name == b.name: return True
            cue = content(" ".join(a.key[1:])) if a.key[0] in ("free", "described") else set()
            if a.key[0] == "described" and (cue & b.says or a.shapes & b.takes): return True
            if cue and cue <= b.says: return True
            if a.key[0] in ACTIONS and b.key[0] == "free" and content(a.key[1]) <= b.says and content(ACTIONS[a.key[0]][0]) & b.says: return True
        return False


CRUDE = set("whore nigger negro bitch bastard ass damn rape raper cock prick slut fag faggot dyke coon fuck shit piss tit tits sex sexes squaw jap kike wench harlot orgasm penis pussy vagina".split())


def english(counts="/usr/share/wordnet/cntlist.rev"):
    """(nouns, verbs) that occur in running text, by WordNet's counts (Debian: wordnet-base)."""
    found = ({}, {})
    for line in open(counts):
        key, _, n = line.split()
        word, _, sense = key.partition("%")
        if sense[0] in "12" and re.fullmatch("[a-z]{3,11}", word) and not held_out(word) and word not in STOP | CRUDE: found[int(sense[0]) - 1][word] = found[int(sense[0]) - 1].get(word, 0) + int(n)
    return tuple(sorted(w for w, n in words.items() if n > 2) for words in found)


class Gen:
    def __init__(self, seed=0, held=False):
        self.r, self.held, self.most_tools, self.most_turns = random.Random(seed), held, 6, 2
        self.families = 0.4, 0.15  # shares of handwritten and of free tools
        self.drills, self.answered = 0.0, 0.8  # shares: of bare runs of requests to one set of tools, and of calls whose results follow
        self.pieces, self.capitals, self.coined = [], [], 0.0  # training sets them: the tokenizer's word pieces, so that each is copied now and then, and a further share of coined names
        self.invented, self.english, self.alias = 0.05, None, 0.0  # shares of invented words and of names unlike the request; more words for tools and values
        nouns = [(d, n) for d, ns in DOMAINS.items() for n in ns.split()]
        self.nouns = [(d, n) for d, n in nouns if (d in HELD_DOMAINS or held_out(n)) == held]
        self.kinds, self.slots, self.pairs = FREE, (1, 1, 1, 2, 2), "city date currency lang person slug country geo word".split()  # of free tools' parameters
        self.leading = 0.0  # share of free tools' requests that say a value before what is meant
        self.alike, self.namesakes = 0.2, 0.6  # shares: of a set's other tools that are made to be like the one that is meant, and of those like one by action about its noun
        self.swapped, self.plain = 0.0, 0.0  # shares: of handwritten tools with other words in them, and of tools of any words
        self.tools = [t for t in map(self.parse_tool, TOOLS.strip().split("\n")) if (t[0][0] in HELD_TOOLS) == held]

    @staticmethod
    def parse_tool(line):
        names, descs, params, asks, result, answer = line.split("|") if "@many" not in line else [*line.split("|")[:4], "@many", ""]
        ps = []
        for p in params.split():
            pnames, kind = p.rstrip("!").split("=")
            ps.append((pnames.split(","), kind, p.endswith("!")))
        return names.split(","), descs.split(","), ps, asks.split(";"), result, answer

    # ---- values ----
    def pick(self, xs):
        return self.r.choice(xs)

    def known(self, xs):
        """From a fixed list; words that hash as held out are kept for evaluation."""
        want = self.held and self.r.random() < 0.5
        for _ in range(50):
            x = self.pick(xs)
            if held_out(x) == want:
                break
        return x.replace("_", " ")

    def pseudo(self, lo=1, hi=3):
        r = self.r
        if self.pieces and r.random() < 0.7:
            return r.choice(self.pieces) + (r.choice(self.pieces) if r.random() < 0.6 else "")
        return "".join(r.choice(CONSONANTS) + r.choice(VOWELS) + (r.choice(CONSONANTS) if r.random() < 0.3 else "") for _ in range(r.randint(lo, hi)))

    def coin(self, lo):
        """A name that nobody has."""
        if not self.capitals or self.r.random() < .4: return self.pseudo(lo, 3).capitalize()
        name = self.pick(self.capitals) + (self.pick(self.pieces) if self.r.random() < .5 else "")
        return name + (" " + self.pick(self.capitals) if self.r.random() < .25 else "")

    def new(self, part, known):
        """A verb (part 1) or noun (part 0) for a tool: a known one, any English one, or an invented one."""
        if self.r.random() < self.invented: return self.pseudo()
        return self.pick(self.english[part]) if self.english and self.r.random() < .6 else known()

    def any_word(self):
        return self.pick(self.pieces) if self.pieces and self.r.random() < .5 else self.new(int(self.r.random() < .4), lambda: self.known(THINGS))

    def phrase(self, lo=1, hi=5):
        n = self.r.randint(lo, hi)
        ws = [self.pseudo() if self.r.random() > 0.94 else self.pick(self.pick(self.english)) if self.english and self.r.random() < .3 else self.pick(WORDS if 0 < i < n - 1 else THINGS) for i in range(n)]
        text = " ".join(ws)
        return text[0].upper() + text[1:] if self.r.random() < 0.4 else text

    def code(self):
        r, al, nu = self.r, string.ascii_uppercase, string.digits
        s = lambda a, lo, hi: "".join(r.choice(a) for _ in range(r.randint(lo, hi)))
        return r.choice([lambda: s(al, 1, 4) + "-" + s(nu, 2, 5), lambda: s(nu, 2, 7), lambda: s(string.ascii_lowercase + nu, 4, 9), lambda: self.pseudo(1, 2) + "_" + s(nu, 1, 4),
                         lambda: s("0123456789abcdef", 6, 10), lambda: s(al + nu, 5, 8), lambda: self.pick(WORDS) + "-" + s(nu, 1, 3), lambda: "#" + s(nu, 2, 5)])()

    def person(self):
        first = self.known(PEOPLE) if self.r.random() < 0.8 - self.coined else self.coin(2)
        return first if self.r.random() < 0.55 else first + " " + (self.known(SURNAMES) if self.r.random() < 0.8 - self.coined else self.coin(1))

    def city(self):
        return self.known(CITIES) if self.r.random() < 0.85 - self.coined else self.coin(2) + self.pick(["", "", "", " City", "ville", "burg"])

    def value(self, kind):
        """(JSON value, how the user says it)"""
        r = self.r
        if kind in INT_KINDS:
            v = r.randint(*INT_KINDS[kind])
            return v, str(v)
        if kind.startswith("enum:"):
            v = self.pick(ENUMS[kind[5:]][1].split())
            return v, v
        plain = {
            "city": self.city, "country": lambda: self.known(COUNTRIES), "person": self.person, "id": self.code, "word": lambda: self.pseudo() if r.random() < 0.35 else self.pick(WORDS),
            "title": lambda: self.phrase(1, 4), "text": lambda: self.phrase(2, 7) + self.pick(["", "", ".", "!"]), "query": lambda: self.phrase(1, 3).lower(), "words": lambda: self.phrase(3, 6),
            "email": lambda: (self.known(PEOPLE) if r.random() < .6 else self.pseudo()).lower() + self.pick(["", ".", "_"]) + self.pick([str(r.randint(1, 99)), self.pseudo(), self.known(SURNAMES).lower()]) + "@" + self.pseudo() + self.pick([".com", ".org", ".net", ".io"]),
            "phone": lambda: self.pick(["+1 555 ", "+49 ", "0", "555-"]) + "".join(r.choice("0123456789") for _ in range(r.randint(4, 8))), "slug": lambda: self.pick([self.pseudo(), self.pick(WORDS)]) + self.pick(["-", "_", "/"]) + self.pick([self.pseudo(), self.pick(WORDS), str(r.randint(1, 99))]),
            "date": lambda: f"20{r.randint(24, 29)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}", "time": lambda: f"{r.randint(0, 23):02}:{r.choice([0, 15, 30, 45, r.randint(0, 59)]):02}", "proper": lambda: self.phrase(1, 2).title(),
            "money": lambda: self.pick([r.randint(1, 5000), round(r.uniform(1, 900), 2), round(r.uniform(1, 90), 1)]), "currency": lambda: self.pick(CURRENCIES), "lang": lambda: self.pick(LANGS), "ticker": lambda: "".join(r.choice(string.ascii_uppercase) for _ in range(r.randint(2, 5))),
            "url": lambda: "https://" + self.pseudo() + self.pick([".com", ".org", ".io"]) + self.pick(["", "/" + self.pseudo(), "/" + self.pick(WORDS) + "/" + str(r.randint(1, 999))]), "path": lambda: self.pick(["", "/", "/home/", "src/", "docs/"]) + self.pick([self.pseudo(), self.pick(WORDS)]) + self.pick(["", "_" + self.pseudo(), "/" + self.pick(WORDS)]) + self.pick([".txt", ".py", ".csv", ".md", ".json", ".png"]),
            "expr": lambda: " ".join([str(r.randint(1, 999)), self.pick("+-*/"), str(r.randint(1, 999))] + ([self.pick("+-*"), str(r.randint(1, 99))] if r.random() < .3 else [])), "sql": lambda: f"SELECT {self.pick(['*', self.pick(WORDS), 'COUNT(*)'])} FROM {self.pick(WORDS)}" + self.pick(["", f" WHERE {self.pick(WORDS)} = {r.randint(1, 99)}", f" LIMIT {r.randint(1, 99)}"]),
            "room": lambda: self.pick(ROOMS), "cuisine": lambda: self.pick("italian thai indian mexican japanese greek vegan french korean".split()), "cabin": lambda: self.pick("economy business first".split()), "travelmode": lambda: self.pick("walking driving cycling transit".split()), "tempunit": lambda: self.pick(["celsius", "fahrenheit"]), "activity": lambda: self.pick(ACTIVITIES),
            "unit": lambda: self.pick(UNITS), "dish": lambda: self.pick(FOODS) if r.random() < .7 else self.pick(TOPPINGS) + " " + self.pick(FOODS),
            "role": lambda: self.pick("viewer editor admin".split()), "shipstate": lambda: self.pick(["in transit", "delivered", "delayed"]),
        }
        if kind in plain:
            v = plain[kind]()
            return v, dumps(v) if isinstance(v, (int, float)) else v
        lists = {"tags": lambda: self.pick(WORDS) if r.random() < .7 else self.pseudo(), "people": self.person, "emails": lambda: self.value("email")[0], "toppings": lambda: self.pick(TOPPINGS), "ids": self.code}
        if kind in lists:
            v = list(dict.fromkeys(lists[kind]() for _ in range(r.randint(1, 3))))
            return v, join(v)
        if kind == "items":
            v = [{"name": n, "quantity": r.randint(1, 40)} for n in r.sample(ITEMS, r.randint(1, 3))]
            return v, join(f"{x['quantity']} {x['name']}" for x in v)
        if kind == "address":
            v = {"street": f"{r.randint(1, 199)} {self.phrase(1, 1).title()} {self.pick(['Street', 'Road', 'Lane'])}", "city": self.city(), "zip": str(r.randint(10000, 99999))}
            return v, f"{v['street']}, {v['zip']} {v['city']}" if r.random() < .5 else f"{v['street']}, {v['city']} {v['zip']}"
        if kind == "geo":
            v = {"lat": round(r.uniform(-80, 80), 2), "lng": round(r.uniform(-170, 170), 2)}
            return v, f"{v['lat']}, {v['lng']}"
        if kind == "contact":
            v = {"name": self.person(), "email": self.value("email")[0]}
            return v, f"{v['name']} ({v['email']})" if r.random() < .5 else f"{v['name']}, {v['email']}"
        if kind == "dims":
            v = {"width": r.randint(2, 4000), "height": r.randint(2, 4000)}
            return v, self.pick([f"{v['width']} by {v['height']}", f"{v['width']}x{v['height']}"])
        if kind == "daterange":
            v = {"from": self.value("date")[0], "to": self.value("date")[0]}
            return v, f"{v['from']} to {v['to']}" if r.random() < .6 else f"{v['from']} and {v['to']}"
        raise KeyError(kind)

    # ---- parameters: kind -> (names, schema, descriptions, clauses) ----
    def param(self, kind):
        if kind in ENUMS or kind.startswith("enum:"):
            names, vals, descs, says = ENUMS[kind.removeprefix("enum:")]
            return names.split(), {"type": "string", "enum": vals.split()}, descs, says
        if kind in FLAGS or kind == "bool":
            names, descs, yes, no = FLAGS[kind if kind != "bool" else "private"]
            return names.split(), {"type": "boolean"}, descs, (yes, no)
        s = lambda t: {"type": t}
        obj = lambda **p: {"type": "object", "properties": {k: s(t) for k, t in p.items()}, "required": list(p)}
        arr = {"type": "array", "items": s("string")}
        enum = lambda text: {"type": "string", "enum": text.split()}
        table = {
            "tags": ("tags labels keywords", arr, ["Tags", "Labels to attach"], ["tagged {v}", "with the tags {v}", "label it {v}"]), "people": ("people attendees members guests", arr, ["Names of people", "Who takes part"], ["with {v}", "and invite {v}", "for {v}"]),
            "emails": ("emails recipients invitees", arr, ["Email addresses"], ["with {v}", "to {v}"]), "ids": ("ids", arr, ["Identifiers"], ["for {v}"]), "toppings": ("toppings", arr, ["List of toppings"], ["with {v}"]),
            "items": ("items products lines", {"type": "array", "items": obj(name="string", quantity="integer")}, ["Items to order", "Names and quantities"], ["{v}"]), "address": ("address shipping_address delivery_address", obj(street="string", city="string", zip="string"), ["Postal address"], ["to {v}", "at {v}"]),
            "geo": ("location coordinates position", obj(lat="number", lng="number"), ["Coordinates"], ["at {v}", "at the coordinates {v}"]), "contact": ("contact owner requester", obj(name="string", email="string"), ["Contact person"], ["for {v}", "contact {v}"]),
            "dims": ("size dimensions", obj(width="integer", height="integer"), ["New size"], ["to {v}"]), "daterange": ("range dates date_range", obj(**{"from": "string", "to": "string"}), ["Date range"], ["from {v}", "between {v}"]),
            "id": ("id", self.pick([s("string")] * 3 + [s("string")]), ["Identifier", "The id"], ["{v}", "with id {v}", "with the id {v}", "number {v}"]), "title": ("title name label subject", s("string"), ["Title", "Name", "A short name"], ['called "{v}"', "named '{v}'", 'titled "{v}"', 'with the name "{v}"', "'{v}'", "called {v}"]),
            "newtitle": ("title name new_name", s("string"), ["New title", "The new name"], ['to "{v}"', 'and rename it to "{v}"', 'so that it is called "{v}"']), "newstatus": ("status new_status state", enum("open closed pending"), ["New status"], ["to {v}", "and set the status to {v}", "to status {v}"]),
            "newamount": ("amount price total value", s("number"), ["New amount"], ["to {v}", "and set the amount to {v}"]), "newowner": ("owner assignee manager", s("string"), ["New owner"], ["so that {v} owns it", "and make {v} the owner"]), "newdate": ("date due_date deadline", s("string"), ["New date"], ["to {v}", "and move the date to {v}"]),
            "text": ("text message body content note comment", s("string"), ["Text", "The message"], ['saying "{v}"', "with the text '{v}'", 'with the note "{v}"', 'and say "{v}"']), "reason": ("reason", s("string"), ["Why", "Reason"], ['because "{v}"', 'the reason is "{v}"']),
            "query": ("query q term keyword text", s("string"), ["Search query", "What to look for"], ['for "{v}"', "for {v}", "about {v}", "matching '{v}'"]), "city": ("city location place town", s("string"), ["City", "Name of the city"], ["in {v}", "near {v}"]), "destination": ("to target destination", s("string"), ["Where to"], ["to {v}"]),
            "people_one": ("owner assignee user created_by", s("string"), ["Only of this person"], ["of {v}", "owned by {v}"]), "assignee": ("assignee person to user", s("string"), ["Person", "Who gets it"], ["to {v}"]), "person": ("name person", s("string"), ["Name of the person"], ["for {v}"]),
            "date": ("date day due_date on", s("string"), ["Date", "Day as YYYY-MM-DD"], ["on {v}", "for {v}", "due {v}"]), "time": ("time start_time at", s("string"), ["Time", "Time as HH:MM"], ["at {v}"]), "amount": ("amount price total", s("number"), ["Amount"], ["over {v}", "with an amount of {v}", "worth {v}"]), "maxprice": ("max_price budget price_limit", s("number"), ["Highest price"], ["under {v}", "for at most {v}", "below {v}"]),
            "limit": ("limit max_results count top_k", s("integer"), ["How many results", "Maximum number"], ["limit {v}", "at most {v}", "only {v} of them", "show {v} results"]), "minutes": ("minutes duration duration_minutes", s("integer"), ["Minutes", "Duration in minutes"], ["for {v} minutes"]), "days": ("days num_days nights", s("integer"), ["Number of days"], ["for {v} days"]),
            "small": ("count number guests", s("integer"), ["How many"], ["for {v}"]), "stars": ("stars rating score", {"type": "integer", "minimum": 1, "maximum": 5}, ["1 to 5"], ["with {v} stars", "{v} stars"]), "percent": ("level volume", s("integer"), ["Percent"], ["at {v} percent"]), "degrees": ("degrees", s("number"), ["Degrees"], ["to {v} degrees"]),
            "email": ("email", s("string"), ["Email address"], ["with email {v}", "{v}"]), "tempunit": ("unit units", enum("celsius fahrenheit"), ["Temperature unit", "Unit", "The unit"], ["in {v}", "in {v} please", "use {v}"]), "currency": ("currency", s("string"), ["Currency code"], ["in {v}"]), "path": ("path file filename", s("string"), ["File path"], ["to {v}", "into {v}"]),
            "money": ("amount", s("number"), ["Amount"], ["over {v}"]), "cabin": ("cabin", enum("economy business first"), ["Cabin class"], ["in {v}", "in {v} class"]), "cuisine": ("cuisine", s("string"), ["Kind of food"], ["with {v} food", "serving {v} food"]), "travelmode": ("mode", enum("walking driving cycling transit"), ["How to travel"], ["by {v}", "{v}"]), "room": ("room", s("string"), ["Room"], ["in the {v}"]),
        }
        names, schema, descs, says = table.get(kind, (kind, s("integer") if kind in INT_KINDS else s("string"), [FORMAT_NAME.get(kind, "The " + kind)], ["{v}"]))
        return names.split(), dict(schema), descs, says

    # ---- tools ----
    def style(self, parts, domain=None):
        r, parts = self.r, [p for x in parts for p in x.split("_")]
        k = r.random()
        if k < .80: return "_".join(parts)
        if k < .86: return parts[0] + "".join(p.capitalize() for p in parts[1:])
        if k < .91: return "-".join(parts)
        if k < .94 and domain: return domain + "." + "_".join(parts)
        if k < .96 and domain: return "mcp__" + domain + "__" + "_".join(parts)
        if k < .97: return "_".join(parts[1:] + parts[:1])
        return "_".join(parts) + self.pick(["_v2", "_tool", "_api", "2"])

    def spec(self, name, desc, params):
        r, props, used, out = self.r, {}, set(), []
        with_desc = r.random() < .6
        for names, kind, required, want in params:
            pnames, schema, descs, says = self.param(kind)
            free = [n for n in (want or pnames) if n not in used]
            if not free:
                continue
            pname = self.pick(free)
            used.add(pname)
            if (with_desc and r.random() < .8) or (kind in ("city", "tempunit") and r.random() < .5):
                d = self.pick(descs)
                schema = {**schema, "description": d} if r.random() < .75 else {"description": d, **schema}
            props[pname] = schema
            out.append((pname, kind, required))
        p = {"type": "object", "properties": props}
        req = [n for n, _, q in out if q]
        if req or r.random() < .3: p["required"] = req
        if r.random() < .08: p["additionalProperties"] = False
        f = {"name": name, "description": desc, "parameters": p}
        if r.random() < .04 and "or" not in desc: del f["description"]
        if r.random() < .05: f["strict"] = True
        if not props and r.random() < .3: del f["parameters"]
        t = {"type": "function", "function": f}
        return t, out

    def swap(self, names, descs, asks):
        """The same tool about other things: each of its words becomes any other one, wherever it stands, so that nothing but what
        a request and the declaration share tells that it is meant. Requests that share nothing are left out."""
        new = {}  # what stands for the words of a stem

        def other(match):
            word, key = match[0], stem(match[0].lower())
            if len(key) < 3 or word.lower() in STOP | COMMON: return word
            if key not in new: new[key] = self.any_word() if self.r.random() < .9 else None
            return inflect(new[key], word) if new[key] else word

        name, desc, *asks = [re.sub("[A-Za-z]+", other, text.replace("_", " ")) for text in (self.pick(names), self.pick(descs), *asks)]
        stems = lambda text: {stem(w) for w in content(text)}
        told = stems(name + " " + desc) & {stem(w) for w in new.values() if w}
        asks = [ask for ask in asks if told & stems(ask)]
        return ([name.replace(" ", "_")], [desc], asks, tuple(new.values())) if asks else None

    def handmade(self, index=None):
        i = self.r.randrange(len(self.tools)) if index is None else index
        names, descs, ps, asks, result, answer = self.tools[i]
        key, swapped = ("hand", i), self.swap(names, descs, asks) if self.swapped and self.r.random() < self.swapped else None
        if swapped: names, descs, asks, key = *swapped[:3], key + swapped[3]
        first = self.r.random() < .4
        params = [(None, kind, req, n if not first else n[:1]) for n, kind, req in ps if req or self.r.random() < .6]
        name = names[0] if self.r.random() < .35 else self.style([self.pick(names)], None)
        spec, out = self.spec(name, self.pick(descs), params)
        if len(out) < len(params): return self.handmade(i)
        return Tool(key, name, names[0], spec, out, asks, (result, answer), slots=True)

    def spoken(self, kinds):
        """Of each kind its parameters' names, and one way to say its value."""
        return [self.kinds[k].split("|")[0].split() for k in kinds], [self.pick(self.kinds[k].split("|")[1].split(";")) for k in kinds]

    def free(self, verb=None, noun=None):
        """A tool of any verb and noun, whose request shares words with its name and says the values in any of many ways."""
        r = self.r
        verb = verb or self.new(1, lambda: self.known(VERBS).replace(" ", "_"))
        noun = noun or self.new(0, lambda: self.pick(self.nouns)[1] if r.random() < .4 else self.known(THINGS)) + ("_" + self.known(THINGS) if r.random() < .1 else "")
        by = r.choices(["both", "verb", "noun"], [6, 2, 2])[0]
        v, n, a = words(verb), words(noun), article(noun)
        if self.leading and len(noun) < 5 and r.random() < .3: n, a = n.upper(), a[: -len(n)] + n.upper()  # as an acronym is written
        slots = r.choice(self.slots)
        kinds = r.sample(DIGITS if self.leading and slots > 1 and r.random() < .4 else list(self.kinds), slots)
        if self.leading and r.random() < .3: kinds = [self.pick(NAMED), *kinds[1:]] if not set(NAMED) & set(kinds) else kinds
        names, says = self.spoken(kinds)
        for i in range(len(kinds)):
            if self.english and r.random() < .25:  # a parameter of any name, which the request says
                names[i], says[i] = [self.new(0, lambda: self.known(THINGS))], self.pick(["with {p} {v}", "{p} {v}", "with the {p} {v}", "and {p} {v}", "the {p} is {v}", "as {p} {v}"])
        if r.random() < .15:  # two of a kind, told apart by their names
            k, (one, two) = self.pick(self.pairs), self.pick(list(PAIRS.items()))
            kinds, names, says = [k, k] + kinds[:1], [one.split(), two.split()] + names[:1], self.pick([["from {v}", "to {v}"], ["{v}", "to {v}"], ["between {v}", "and {v}"]]) + [says[0] if kinds[0] not in ("city", "country", k) else "{v}"]
            if kinds[2] == k: kinds, names, says = kinds[:2], names[:2], says[:2]
        if by == "noun":
            head = self.pick(["what is the {n}?", "which {n} is there?", "any {n}?", "how is the {n}?", "where is the {n}?", "{n}?", "is there {a}?", "tell me the {n}", "show me the {n}", "I need {a}", "~{n}", "give me the {n}", "the latest {n}", "what about the {n}?", "when is the {n}?", "who has the {n}?"])
            parts = self.pick([[noun], ["get", noun], ["find", noun], [noun, "lookup"], ["current", noun], ["check", noun]])
            descs = ["Get the {n}", "The {n}", "Find {a}", "Look up the {n}", "Current {n}", "{N} information", "Return the {n} of something"]
        elif by == "verb":
            head, parts = self.pick(["{v}", "{v}", "{v} it:", "{v} this:"]), [verb] if r.random() < .5 else [verb, noun]
            descs = ["{V} something", "{V} {a}", "{V}", "{V} a thing or {a}", "Use it to {v}"]
        else:
            head, parts = self.pick(["{v} the {n}", "{v} {a}", "{v} {n}", "{v} my {n}", "{v} this {n}", "{v} {a}", "how do I {v} {a}?", "who can {v} the {n}?"]), [verb, noun] if r.random() < .85 else [noun, verb]
            descs = ["{V} {a}", "{V} the {n}", "{V} {n}", "Used to {v} {a}", "{V} {a} of the user", "Lets you {v} the {n}"]
        if r.random() < self.alias:  # only the description tells that the request means this tool
            parts = [self.new(1, lambda: self.known(VERBS).replace(" ", "_")), self.new(0, lambda: self.known(THINGS))][: r.choice([1, 2, 2])]
            descs = [d + self.pick(["", ": {o} or {n} or {p}", "; to {w} or {v}", ", {p} and {o}"]).format(n=n, v=v, **{k: self.new(int(k == "w"), lambda: self.known(THINGS)) for k in "opw"}) for d in descs if "{v}" in d.lower() or by == "noun"]
        fill = dict(v=v, n=n, a=a, V=v.capitalize(), N=n.capitalize())
        params = [(None, k, True, w) for k, w in zip(kinds, names)] + [(None, k, False, None) for k in r.sample(OPTIONAL, r.choice([0, 0, 0, 1])) if k not in kinds and "enum:" + k not in kinds]
        spec, out = self.spec(self.style(parts), self.pick(descs).format(**fill), params)
        if sum(p[2] for p in out) < len(kinds): return self.free(verb, noun)
        asks, amount = [], len(kinds) > 2 and kinds[0] == kinds[1] and kinds[2] in DIGITS and says[0] == "{v}"
        for _ in range(3):
            order, ways = list(range(len(kinds))), says
            if self.leading and kinds[:1] == kinds[1:2] and says[0] == "from {v}" and r.random() < .4: order[:2] = [1, 0]  # "to Rome from Oslo"
            if self.leading and amount and r.random() < .6: order, ways = [2, 0, 1], [*says[:2], "{v}"]  # "change 20 EUR to USD"
            if r.random() < .3 and len({s.split("{")[0] for s in says}) == len(says) and not says[0].startswith(("from", "{v}", "between")): r.shuffle(order)
            said = [ways[i].replace("{v}", "{%d}" % i).replace("{p}", words(out[i][0])) for i in order]
            text, question = head.format(**fill).rstrip("?"), head.endswith("?")
            if self.leading and by != "verb" and order[0] == 0 and "from" not in says[0] and "between" not in says[0] and r.random() < self.leading:
                text, said = self.pick(LEADING).format("{0}", **fill), said[1:]
                text, question = text.rstrip("?"), text.endswith("?")
            elif order[0] == 0 and kinds[0] in ("room", "enum:color", "enum:size", "city", "word", "id", "query") and by == "both" and r.random() < .25 and not question:
                text, said = f"{v} the {{0}} {n}", said[1:]  # "set the kitchen light ..."
            elif r.random() < .12 and len(said) > 1 and by != "noun":
                text, said = f"{v} {{{order[0]}}}" + (" " + n if by == "both" else ""), said[1:]  # "send Ann 20"
            asks.append((text + " " + " ".join(said)).strip().replace(" :", ":") + ("?" if question else ""))
        result = self.pick(["done", "done", "created", "record", "record", "count", "many", "file"])
        return Tool(("free", verb if by != "noun" else "", noun if by != "verb" else ""), spec["function"]["name"], n, spec, out, asks, (result, None), slots=True)

    def described(self):
        """A tool of any words. All that a request shares with it are a few words of its description, or the name of a parameter, or
        values of a kind that only it takes."""
        r = self.r
        by = r.choices(["words", "parameter", "values"], [5, 2, 3])[0]
        words = list(dict.fromkeys(self.any_word() for _ in range(r.randint(2, 8))))
        parts = [self.any_word() for _ in range(r.choice([1, 2, 2]))]
        if r.random() < .3: parts[0] = self.pick(words)
        desc = words[0]
        for w in words[1:]: desc += self.pick([" the ", " a ", " of a ", " of the ", " with ", " or ", " and ", " for the ", " to ", ", ", " in a ", " "]) + w
        kinds = r.sample(SHAPED if by == "values" else list(self.kinds), r.choice([0, 0, 1, 1, 1] if by == "words" else [1, 1, 2]))
        names, says = self.spoken(kinds)
        if by == "parameter": names[0], says[0] = [self.any_word()], self.pick(["with {p} {v}", "{p} {v}", "{v} {p}", "of {v} {p}", "the {p} is {v}", "{p}: {v}", "{v} for the {p}"])
        if by == "values": names = [n[:1] for n in names]
        if by == "values" and len(kinds) == 1 and r.random() < .7:  # two of a kind, often with an amount
            if r.random() < .8: kinds = [self.pick(["currency", "unit", "unit", *kinds])]
            kinds, names, says = kinds * 2, [[n.split()[0] + self.pick(["", "_" + kinds[0]])] for n in self.pick(list(PAIRS.items()))], self.pick([["{v}", "to {v}"], ["from {v}", "to {v}"], ["{v}", "in {v}"]])
            if r.random() < .8: kinds, names, says = [self.pick(["money", "money", "int"]), *kinds], [["amount", "value", "n"], *names], self.pick([["{v}", "{v}", "to {v}"], ["{v}", "{v}", "in {v}"], ["is {v}", "{v}", "{v}"], ["are {v}", "{v}", "{v}"]])
        spec, out = self.spec(self.style(parts), desc[0].upper() + desc[1:], [(None, k, True, n) for k, n in zip(kinds, names)])
        questions = "what does ", "who is ", "how many ", "how much ", "where is the ", "what is the ", "is "
        asks, foreign = [], [self.any_word() for _ in range(4)]
        for _ in range(4):
            cues = [inflect(w, "s") if r.random() < .1 else w for w in r.sample(words + parts, min(len(words), r.choice([1, 2, 2, 3])))] if by == "words" else []
            cues += r.sample(foreign, r.choice([0, 0, 1, 2] if cues or by == "values" else [1, 1, 2]))
            r.shuffle(cues)
            head = self.pick(["~", "~the ", "~my ", "", "", "is the ", "I have a ", "what about ", *questions])
            text = cues[0] if cues else ""
            for w in cues[1:]: text += self.pick([" the ", " a ", " of my ", " with ", " and ", " for ", " is ", " ", ", "]) + w
            said = [say.replace("{v}", "{%d}" % i).replace("{p}", out[i][0].replace("_", " ")) for i, say in enumerate(says)]
            if says and says[0].startswith(("is ", "are ")): said = [said[2], *said[:2]]  # "how many EUR are 20 USD"
            text = head + " ".join(filter(None, [said[0], text, *said[1:]] if said and r.random() < .3 else [text, *said]))
            asks.append(text + ("?" if head in questions and r.random() < .8 else ""))
        result = self.pick(["done", "done", "created", "record", "count", "many", "file"])
        cue = (*words, *parts) if by == "words" else (*foreign, *names[0])
        tool = Tool(("described", *cue), spec["function"]["name"], words[0], spec, out, asks, (result, None), slots=True)
        if by == "values": tool.shapes = set(kinds) & set(SHAPED)
        return tool

    def procedural(self, group=None, noun=None, verb=None):
        r = self.r
        group = group or self.pick(list(ACTIONS))
        if not noun:
            domain, known = self.pick(self.nouns)
            noun = self.new(0, lambda: known)
            noun = (domain, known) if noun == known else (self.new(0, lambda: domain), self.pick(["", "", self.pick(THINGS) + "_"]) + noun)
        domain, n = noun
        verbs, asks, descs, required, optional, result = ACTIONS[group]
        verb = verb if verb in verbs.split() else self.pick(verbs.split())
        parts = [verb, plural(n).replace(" ", "_") if group in ("list", "search", "count") and r.random() < .7 else n]
        fill = dict(n=words(n), ns=plural(n), an=article(n), a_new=article(n, "new"))
        kinds = [self.pick(k.split("|")) for k in required]
        opts = r.sample(optional.split(), min(len(optional.split()), r.choice([0, 0, 0, 1, 1, 2])))
        idname = self.pick([["id"], [n + "_id"], [n + "_id"], ["id", "key", "ref", "number", n]])
        params = [(None, k, True, idname if k == "id" else None) for k in kinds] + [(None, k, group in ("create", "schedule") and r.random() < .25, None) for k in opts]
        spec, out = self.spec(self.style(parts, domain), self.pick(descs).format(**fill), params)
        own = next((a for a in asks if a.split()[0] in verbs.split() and a.split()[1].startswith(("the", "all", "{"))), None)
        if own and "_" not in verb and verb not in ("invite", "lookup"): asks = asks + [verb + own[own.index(" ") :]] * len(asks)  # half of the requests use the tool's own verb
        return Tool((group, n), spec["function"]["name"], words(n), spec, out, [a.format(**fill) for a in asks], (result, group))

    def tool(self):
        k = self.r.random()
        hand, free = self.families
        if self.plain and self.r.random() < self.plain: return self.described()
        return self.handmade() if k < hand else self.free() if k < hand + free else self.procedural()

    def toolset(self, must, count):
        """The given tools among others: some share a noun or an action with them, none does the same job."""
        tools = list(must)
        for _ in range(200):
            if len(tools) >= count: break
            like = self.pick(must) if must and self.r.random() < self.alike else None
            if like and like.key[2:] and like.key[0] == "hand": t = self.handmade(like.key[1])  # the same sentences about something else
            elif like and like.key[0] == "free":
                _, verb, noun = like.key
                t = self.free(verb=verb or None) if not noun or (verb and self.r.random() < .5) else self.free(noun=noun) if verb else self.free()
            elif like and like.key[0] in ACTIONS:
                t = self.procedural(noun=(self.pseudo(), like.key[1])) if self.r.random() < self.namesakes else self.procedural(group=like.key[0], verb=self.pick(like.asks).split(" ")[0] if self.plain else None)  # in training with the request's verb
            else:
                t = self.tool()
            if not any(t.confusable(x) for x in tools): tools.append(t)
        self.r.shuffle(tools)
        return tools

    def chained(self):
        """Two tools for one noun: one finds it, the other needs the id that was found."""
        noun = self.pick(self.nouns)
        return self.procedural("search", noun), self.procedural(self.pick(["delete", "get", "start", "stop", "cancel"]), noun)

    # ---- requests ----
    def args_for(self, t, drop=None):
        """One request for a tool: (imperative or question, arguments). `drop` names a required parameter to leave out."""
        r = self.r
        chosen = [p for p in t.params if p[2] or r.random() < .45]
        args, said = {}, {}
        for name, kind, req in t.params:
            if (name, kind, req) not in chosen or name == drop: continue
            if kind in FLAGS or kind == "bool":
                yes, no = self.param(kind)[3]
                v = r.random() < .65
                args[name], said[name] = v, self.pick(yes if v else no)
            else:
                base = {"newtitle": "title", "newstatus": "enum:status", "newamount": "money", "newowner": "person", "newdate": "date", "destination": self.pick(["city", "slug", "person"]), "people_one": "person", "assignee": "person",
                        "reason": "title", "amount": "money", "maxprice": "money"}.get(kind, "enum:" + kind if kind in ENUMS else kind)
                args[name], said[name] = self.value(base)
        slots, ask = [], self.pick(t.asks)
        if t.slots:
            slots = [p[0] for p in t.params if p[2]]
            for i, n in enumerate(slots):
                if n in said: ask = ask.replace("{%d}" % i, said[n])
        rest = [p for p in t.params if p[0] in said and (p[0] not in slots)]
        head, tail = [p for p in rest if p[1] in ("id", "items", "query", "title")], [p for p in rest if p[1] not in ("id", "items", "query", "title")]
        if r.random() < .7: r.shuffle(tail)
        text, question = ask.rstrip("?"), ask.endswith("?")
        for name, kind, _ in head + tail:
            if kind in FLAGS or kind == "bool": clause = said[name]
            else: clause = self.pick(self.param(kind)[3]).replace("{v}", said[name])
            bare = len(args) > 1 or kind not in ("id",)
            loose = any(k == "query" and text.endswith(said.get(n, '"')) for n, k, _ in t.params)  # a comma tells where a bare query ends
            text += (", " if loose or kind in FLAGS or (bare and r.random() < .12) else " ") + clause
        return text + ("?" if question else ""), {n: args[n] for n, _, _ in t.params if n in args}

    def polite(self, text):
        """As somebody would say it. A text that begins with `~` is no command."""
        r, statement, text = self.r, text.startswith("~"), text.removeprefix("~")
        up = lambda s: s[0].upper() + s[1:]
        if text.endswith("?"):
            if r.random() < .12: text = text[:-1]
            return up(text) if r.random() < .75 else text
        k = r.random() if not statement and text.split(" ")[0] in COMMANDS else 0
        if k < .35: s = up(text) + self.pick([".", ".", ""])
        elif k < .50: s = self.pick(["Please ", "please ", "Now ", "Hey, ", "Hi, please ", "Ok, "]) + text + self.pick([".", ""])
        elif k < .66: s = self.pick(["Can you ", "Could you ", "Would you ", "can you ", "Could you please "]) + text + "?"
        elif k < .78: s = self.pick(["I want to ", "I need to ", "I'd like to ", "I need you to ", "I want you to ", "We have to "]) + text + self.pick([".", ""])
        elif k < .86: s = up(text) + self.pick([", please.", " please", ", thanks.", "!"])
        else: s = text
        return s

    # ---- results and answers ----
    def result(self, t, args):
        """(content of the tool message, the assistant's sentence)"""
        r = self.r
        spaced = lambda x: json.dumps(x, ensure_ascii=False) if r.random() < .5 else dumps(x)
        if r.random() < .05:
            e = self.pick(["not found", "permission denied", "timeout", "invalid id", "service unavailable", self.phrase(1, 3).lower()])
            return (spaced({"error": e}) if r.random() < .8 else "Error: " + e), f"That did not work: {e}."
        kind, answer = t.answer
        if kind == "@many" or kind == "many":
            names = [self.phrase(1, 3) if r.random() < .8 else self.person() for _ in range(r.choice([0, 1, 2, 2, 3, 3, 4]))]
            style = r.random()
            rows = names if style < .3 else [{"id": self.code(), self.pick(["name", "title"]): n} for n in names] if style < .8 else [{"name": n, "price": self.value("money")[0]} for n in names]
            return spaced(rows if r.random() < .4 else {self.pick(["results", "items", "data"]): rows}), (f"I found {len(names)}: {join(names)}." if names else "I found nothing.")
        if kind == "weather":
            temp, cond = r.randint(-15, 38), self.pick(CONDITIONS)
            place = next((v for (n, k, q) in t.params for v in [args.get(n)] if k == "city"), "")
            out = {self.pick(["temperature", "temp", "temp_c", "degrees"]): temp, self.pick(["condition", "conditions", "description", "sky"]): cond}
            if r.random() < .3: out = {"city": place, **out}
            if r.random() < .3: out[self.pick(["humidity", "wind"])] = r.randint(1, 99)
            if r.random() < .3: out["unit"] = args.get("unit", "celsius")
            if r.random() < .2: return self.pick([f"{temp} degrees, {cond}", f"{cond}, {temp} degrees", f"{temp}°C and {cond}", f"It is {temp} degrees and {cond}."]), f"It is {temp} degrees and {cond} in {place}."
            return spaced(out), f"It is {temp} degrees and {cond} in {place}."
        if t.key[0] == "hand" and r.random() < .8:
            out = {}
            for k, vk in (item.split(":", 1) for item in kind.split()):
                try:
                    out[k] = self.value(vk)[0]
                except KeyError:  # a literal such as status:sent
                    out[k] = vk
            req = [p[0] for p in t.params if p[2]]
            text = answer
            for i, n in enumerate(req): text = text.replace("{%d}" % i, str(args.get(n)))
            for k, v in out.items(): text = text.replace("{" + k + "}", str(v))
            return spaced(out), text.strip()
        if kind == "created":
            i = self.code()
            return spaced({**({"status": self.pick(["created", "ok"])} if r.random() < .6 else {}), "id": i}), f"Done, the id is {i}."
        if kind == "done":
            out = self.pick([{"status": "ok"}, {"ok": True}, {"success": True}, {"status": "done"}, "ok", "done"])
            return (out if isinstance(out, str) else spaced(out)), "Done."
        if kind == "file":
            f = self.value("path")[0]
            return spaced({self.pick(["file", "path", "url"]): f}), f"Done, the file is {f}."
        if kind == "count":
            n = r.randint(0, 500)
            return spaced({"count": n}) if r.random() < .8 else str(n), f"The count is {n}."
        keys = r.sample("status owner total name city date price email level stock color rating weight phone".split(), r.randint(1, 3))
        kinds = dict(status="enum:status", owner="person", total="money", name="title", city="city", date="date", price="money", email="email", level="small", stock="int", color="enum:color", rating="stars", weight="money", phone="phone")
        out = {k: self.value(kinds[k])[0] for k in keys}
        return spaced(out), "Here it is: " + ", ".join(f"{k} {v}" for k, v in out.items()) + "."

    # ---- conversations ----
    def conversation(self):
        r = self.r
        tools_n = min(self.most_tools, r.choice([1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6]))
        c = Conversation(self, thinking=r.random() < .3)
        plan = "multi" if r.random() < .12 * (self.most_turns - 2) else r.choices(["call", "parallel", "chat", "nofit", "missing", "notools", "chain", "multi"], [32, 18, 5, 8, 6, 6, 5, 20])[0]
        if r.random() < self.drills: plan = "drill"
        if r.random() < .3: c.messages.append({"role": "system", "content": self.pick(SYSTEM) if r.random() < .8 else self.pick(SYSTEM) + " " + self.phrase(3, 8).capitalize() + "."})
        if plan == "notools":
            for _ in range(r.randint(1, 3)): c.chat() if r.random() < .75 else c.no_tools()
            return c.done()
        if plan == "chain":
            search, act = self.chained()
            c.declare(self.toolset([search, act], max(2, tools_n)))
            c.chain(search, act)
            return c.done()
        main = self.tool() if r.random() > .1 or self.held else self.handmade(0)
        if plan == "nofit":
            c.declare(self.toolset([], tools_n))
            c.no_fit()
            if r.random() < .3: c.call([self.pick(c.tools)])
            return c.done()
        if plan == "drill":
            chained = self.chained() if self.most_tools > 3 and r.random() < .4 else None
            c.declare(self.toolset(list(chained or [main]), min(self.most_tools, r.randint(2, 7))))
            for _ in range(8):
                k = r.random()
                if k < .04: c.no_fit()
                elif k < .07: c.chat()
                elif k < .12: c.missing(self.pick(c.tools))
                elif k < .30 and chained: c.chain(*chained)
                elif k < .63: c.call([self.pick(c.tools)], answered=.15)
                elif k < .82: c.call([self.pick(c.tools)] * r.choice([2, 2, 3]), answered=0)
                else: c.call(r.sample(c.tools, min(len(c.tools), r.choice([2, 2, 3]))), answered=0)
            return c.done()
        c.declare(self.toolset([main], tools_n))
        if plan == "chat":
            c.chat()
            if r.random() < .5: c.call([main])
        elif plan == "missing":
            if not c.missing(main): c.call([main])
        elif plan == "parallel":
            c.call([main] * r.choice([2, 2, 3]) if r.random() < .5 or tools_n == 1 else r.sample(c.tools, min(len(c.tools), r.choice([2, 2, 3]))))
        elif plan == "call":
            c.call([main])
            if r.random() < .1: c.chat()
        else:
            c.call([main])
            for _ in range(r.randint(1, self.most_turns)):
                k = r.random()
                if k < .62: c.call([self.pick(c.tools)])
                elif k < .80: c.call([self.pick(c.tools)] * 2)
                elif k < .88: c.no_fit()
                else: c.chat()
        return c.done()


if __name__ == "__main__":
    n = next((int(a) for a in sys.argv[1:] if a.isdigit()), 10)
    gen = Gen(seed=1, held="--held" in sys.argv)
    for _ in range(n):
        print(json.dumps(gen.conversation(), ensure_ascii=False))
