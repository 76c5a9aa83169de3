"""One synthetic conversation: requests, calls, results and answers, turn by turn."""
import json
from catalog import *
from text import *


class Conversation:
    def __init__(self, gen, thinking):
        self.g, self.thinking, self.messages, self.tools, self.count = gen, thinking, [], [], 0

    def declare(self, tools):
        self.tools = tools

    def done(self):
        family = {"hand": "handwritten", "free": "free"}
        families = {t.name: family.get(t.key[0], "by action") for t in self.tools}
        return {"messages": self.messages, "tools": [t.spec for t in self.tools] or None, "thinking": self.thinking, "families": families}

    def user(self, text):
        self.messages.append({"role": "user", "content": text})

    def say(self, text, thought, kind):
        m = {"role": "assistant", "content": text, "kind": kind}
        if self.thinking: m["reasoning_content"] = thought
        self.messages.append(m)

    def emit(self, calls, kind="call"):
        """calls: [(tool, args)]; returns the ids"""
        ids, tcs, thought = [], [], []
        for t, args in calls:
            ids.append(f"functions.{t.name}:{self.count}")
            self.count += 1
            tcs.append({"id": ids[-1], "type": "function", "function": {"name": t.name, "arguments": args}})
            thought.append(t.name)
        m = {"role": "assistant", "content": "", "tool_calls": tcs, "kind": kind}
        if self.thinking: m["reasoning_content"] = ("I call " if len(calls) == 1 else f"I need {len(calls)} calls: ") + ", ".join(thought) + "."
        self.messages.append(m)
        return ids

    def results(self, ids, calls, given=None):
        said = []
        named = self.g.r.random() < .5
        for i, (id, (t, args)) in enumerate(zip(ids, calls)):
            content, sentence = given[i] if given else self.g.result(t, args)
            if sentence not in said: said.append(sentence)
            self.messages.append({"role": "tool", "tool_call_id": id, **({"name": t.name} if named else {}), "content": content})
        return " ".join(said)

    def call(self, tools, answered=None):
        g, r = self.g, self.g.r
        asks = [g.args_for(t) for t in tools]
        same = len(tools) > 1 and all(t is tools[0] for t in tools)
        text = None
        if same and r.random() < .75:  # one value differs: "the weather in Paris and London"
            t, (first, args) = tools[0], asks[0]
            strings = [n for n, k, q in t.params if q and k in NAMED]
            if strings and str(args.get(strings[0])) in first and first.count(str(args[strings[0]])) == 1:
                n = strings[0]
                kind = next(k for m, k, _ in t.params if m == n)
                values = list(dict.fromkeys([args[n]] + [g.value(kind)[0] for _ in tools[1:]]))
                if all(v == values[0] or v not in first for v in values):
                    asks = [(first, {**args, n: v}) for v in values]
                    text = g.polite(first.replace(str(args[n]), join(values)))
                    tools = [t] * len(asks)
        if text is None:
            unique = {(t.name, dumps(args)): (t, ask, args) for t, (ask, args) in zip(tools, asks)}
            tools, asks = [u[0] for u in unique.values()], [u[1:] for u in unique.values()]
            parts = [ask for ask, _ in asks]
            if len(parts) == 1: text = g.polite(parts[0])
            elif r.random() < .45:
                parts = [p.removeprefix("~") for p in parts]
                text = " ".join(g.polite(p) if p.endswith("?") else p[0].upper() + p[1:] + "." if i == 0 else g.pick(["And ", "Also ", "Then ", ""]) + p + "." for i, p in enumerate(parts))
            else:
                parts = [p.removeprefix("~") if i else p for i, p in enumerate(parts)]
                text = g.polite(g.pick([", and ", " and ", ", and also ", " and then ", "; "]).join(p.rstrip("?") if i + 1 < len(parts) else p for i, p in enumerate(parts)))
        calls = [(t, a[1]) for t, a in zip(tools, asks)]
        self.user(text)
        ids = self.emit(calls)
        if r.random() < (g.answered if answered is None else answered):
            answer = self.results(ids, calls)
            self.say(answer, "I have the result and can answer." if len(ids) == 1 else "I have the results and can answer.", "answer")

    def chain(self, search, act):
        g = self.g
        title = g.phrase(1, 3)
        q = next(n for n, k, _ in search.params if k == "query")
        i = next(n for n, k, _ in act.params if k == "id")
        ask = g.pick(act.asks)
        self.user(g.polite(g.pick([f'find the {search.noun} "{title}" and {ask.replace("the " + act.noun, "it")}', f'{ask} called "{title}", search for it first', f'look for the {search.noun} "{title}", then {ask.replace("the " + act.noun, "it")}'])))
        calls = [(search, {q: title})]
        ids = self.emit(calls)
        code = g.code()
        rows = [{"id": code, "name": title}]
        if g.r.random() < .3: rows.append({"id": g.code(), "name": g.phrase(1, 3)})
        self.results(ids, calls, [(dumps({"results": rows}) if g.r.random() < .5 else json.dumps({"results": rows}), "")])
        calls = [(act, {i: code})]
        ids = self.emit(calls, "chain")
        self.say(self.results(ids, calls), "I have the result and can answer.", "answer")

    def missing(self, t):
        named = [p for p in t.params if p[2] and p[1] not in ("items",)]
        if t.slots or not named: return False
        p = self.g.pick(named)
        text, args = self.g.args_for(t, drop=p[0])
        self.user(self.g.polite(text))
        self.say(f"Please tell me the {words(p[0])}.", f"{t.name} needs {p[0]}, which is missing.", "ask")
        if self.g.r.random() < .5 and p[1] in ("id", "query", "title", "date"):
            v, said = self.g.value(p[1])
            self.user(said if self.g.r.random() < .6 else "It is " + said)
            calls = [(t, {n: {**args, p[0]: v}[n] for n, _, _ in t.params if n in {**args, p[0]: v}})]
            ids = self.emit(calls)
            self.say(self.results(ids, calls), "I have the result and can answer.", "answer")
        return True

    def no_fit(self):
        """A request that is plainly outside the declared tools: neither what it is about nor what to do is among them, and its
        values are not all that tells."""
        shapes = {k for t in self.tools for k in t.takes if k in SHAPED} if self.g.plain else set()
        t = next((t for t in (self.g.tool() for _ in range(50)) if not any(t.related(x) for x in self.tools) and not t.takes & shapes and not t.shapes), None)
        if not t: return
        self.user(self.g.polite(self.g.args_for(t)[0]))
        self.say("I cannot do that: none of my tools fits.", "No tool fits this request.", "nofit")

    def no_tools(self):
        t = self.g.tool()
        self.user(self.g.polite(self.g.args_for(t)[0]))
        self.say("I cannot do that: I have no tools.", "I have no tools.", "nofit")

    def chat(self):
        g, r = self.g, self.g.r
        k = r.random()
        if k < .62:
            asks, answer = g.pick(CHAT)
            text = g.pick(asks.split(";"))
            text = text[0].upper() + text[1:] if r.random() < .6 else text
        elif k < .74 and not self.tools:
            country = g.pick(list(CAPITALS))
            text, answer = g.pick(["What is the capital of {}?", "what is the capital of {}", "Capital of {}?", "What's the capital of {}?"]).format(country), f"The capital of {country} is {CAPITALS[country]}."
        elif k < .80 and not self.tools:
            a, b = r.randint(0, 9), r.randint(0, 9)
            text, answer = g.pick(["What is {} + {}?", "what is {} plus {}?", "{} + {}?", "Calculate {} + {}."]).format(a, b), f"{a} + {b} is {a + b}."
        elif self.tools and k < .85:
            text, answer = g.pick(["What can you do?", "which tools do you have?", "What tools do you have?", "what can you do for me?", "List your tools."]), "I can use these tools: " + join([t.name for t in self.tools]) + "."
        elif not self.tools and k < .85:
            text, answer = g.pick(["What can you do?", "which tools do you have?", "What tools do you have?", "what can you do for me?"]), "I can call tools, but you gave me none."
        else:
            text, answer = g.pick(UNKNOWN).format(w=g.pick(WORDS) if r.random() < .7 else g.pseudo(), w2=g.pick(WORDS)), "I do not know. I am a very small model that calls tools."
            text = text[0].upper() + text[1:] if r.random() < .6 else text
            if g.plain and any(content(text) & t.says for t in self.tools): return self.call([g.pick(self.tools)])  # it might mean that tool
        self.user(text)
        self.say(answer, "No tool is needed.", "chat")
