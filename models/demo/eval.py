"""Measures the exported checkpoint with transformers: greedy decoding, held-out conversations, tools never seen in training.

    python eval.py [--n 600]            decisions on held-out conversations
    python eval.py --url http://127.0.0.1:8000/v1        the same decisions by a server
    python eval.py --lookup             how well a word of a declaration leads to its tool
    python eval.py --samples            rewrites samples.json (f32 reference continuations)
    python eval.py --ask "What is the weather in Paris?"
"""
import argparse, collections, json, random, urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import torch
from transformers import AutoTokenizer, DeepseekV3Config, DeepseekV3ForCausalLM
from catalog import THINGS
from data import Gen

HERE = Path(__file__).parent
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the current weather for a city", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "description": "City name"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}}
EMAIL = {"type": "function", "function": {"name": "send_email", "description": "Send an email", "parameters": {"type": "object", "properties": {
    "to": {"type": "string", "description": "Email address"}, "subject": {"type": "string"}, "body": {"type": "string"}}, "required": ["to", "subject"]}}}


def user(text):
    return [{"role": "user", "content": text}]


def load(folder, dtype):
    """transformers knows the architecture as deepseek_v3; the published model_type is kimi_k2, so the config class is named."""
    raw = json.loads((folder / "config.json").read_text())
    raw.pop("model_type")
    config = DeepseekV3Config(**{k: v for k, v in raw.items() if k != "rope_scaling"})
    return AutoTokenizer.from_pretrained(folder), DeepseekV3ForCausalLM.from_pretrained(folder, config=config, dtype=dtype).eval()


def prompt(tok, messages, tools, thinking):
    return tok.apply_chat_template(messages, tools=tools, add_generation_prompt=True, thinking=thinking, tokenize=False)


@torch.no_grad()
def complete(tok, model, prompts, tokens=192, batch=64):
    """Greedy continuations, in the order of the prompts."""
    order, out = sorted(range(len(prompts)), key=lambda i: len(prompts[i])), [None] * len(prompts)
    tok.padding_side = "left"
    for at in range(0, len(order), batch):
        part = order[at : at + batch]
        x = tok([prompts[i] for i in part], return_tensors="pt", padding=True, add_special_tokens=False)
        y = model.generate(input_ids=x.input_ids, attention_mask=x.attention_mask, max_new_tokens=tokens, do_sample=False, eos_token_id=[tok.convert_tokens_to_ids(t) for t in ("<|im_end|>", "[EOS]")], pad_token_id=tok.pad_token_id)
        for i, row in zip(part, y[:, x.input_ids.shape[1] :]):
            out[i] = tok.decode(row, skip_special_tokens=False).split("<|im_end|>")[0].split("[PAD]")[0]
    return out


def parse(text):
    """(answer text, [(name, arguments or None)])"""
    text = text.split("</think>")[-1]
    head, _, section = text.partition("<|tool_calls_section_begin|>")
    calls = []
    for part in section.split("<|tool_call_begin|>")[1:]:
        id, _, args = part.split("<|tool_call_end|>")[0].partition("<|tool_call_argument_begin|>")
        name = id.removeprefix("functions.").rpartition(":")[0]
        try:
            calls.append((name, json.loads(args)))
        except ValueError:
            calls.append((name, None))
    return head.strip(), calls


def served(url, items):
    """What a server answers, as `parse` gives it. Calls cut off are none."""
    model = json.load(urllib.request.urlopen(url + "/models"))["data"][0]["id"]

    def ask(item):
        _, history, tools, thinking, *_ = item
        names, messages = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content"), []
        for m in history:
            messages.append({k: m[k] for k in names if k in m})
            if "tool_calls" in m:
                messages[-1]["tool_calls"] = [{**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}} for c in m["tool_calls"]]
        body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 192, "chat_template_kwargs": {"thinking": thinking}, **({"tools": tools} if tools else {})}
        request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
        return message["content"] or "", [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or []]

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, items))


def decisions(n, held, seed):
    """(kind, history, tools, thinking, expected message, families of the tools) for each assistant turn."""
    gen, out = Gen(seed, held), []
    while len(out) < n:
        c = gen.conversation()
        for i, m in enumerate(c["messages"]):
            if m["role"] == "assistant":
                out.append((m["kind"], c["messages"][:i], c["tools"], c["thinking"], m, c["families"]))
    return out[:n]


def lookups(n, seed):
    """Items as of `decisions`: with one of five tools the request shares nothing but two words of its name, one of them, or two words
    of its description."""
    r, out = random.Random(seed), []
    for i in range(n):
        family, tools = ("two words of the name", "one word of the name", "two words of the description")[i % 3], {}
        words = r.sample(sorted(set(THINGS)), 30)
        for at in range(0, 30, 6):
            a, b, *rest = words[at : at + 6]
            about = "{} of a {} with the {} or {}".format(*rest).capitalize()
            parameters = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
            tools[f"{a}_{b}"] = (rest[1:], {"type": "function", "function": {"name": f"{a}_{b}", "description": about, "parameters": parameters}})
        name, number = r.choice(list(tools)), r.randint(10, 99)
        cues = r.sample(tools[name][0] if "description" in family else name.split("_"), 1 if "one" in family else 2)
        call = {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": {"number": number}}}]}
        out.append(("call", user(" ".join(f"the {cue}" for cue in cues) + f" is {number}"), [t for _, t in tools.values()], False, call, {name: family}))
    return out


def evaluate(items, answers, show):
    """`answers`: what `parse` gives of each."""
    score = collections.defaultdict(lambda: [0, 0])

    def count(name, ok):
        score[name][0] += bool(ok)
        score[name][1] += 1
        return ok

    for (kind, history, tools, thinking, want, families), (answer, calls) in zip(items, answers):
        expected = [(t["function"]["name"], t["function"]["arguments"]) for t in want.get("tool_calls", [])]
        ok = count("decision to call or not (turns with tools)", bool(calls) == bool(expected)) if tools else count("no call without tools", not calls)
        if expected:
            count("number of calls right", len(calls) == len(expected))
            for i, (name, args) in enumerate(expected):
                got = calls[i] if i < len(calls) else (None, None)
                count("right tool", got[0] == name)
                ok &= count("exact arguments (and right tool)", got == (name, args))
                count(f"right tool: {families[name]}", got[0] == name)
                count(f"exact arguments: {families[name]}", got == (name, args))
                count("valid JSON arguments", got[1] is not None)
            ok &= count("whole turn exact: " + ("thinking" if thinking else "direct"), calls == expected)
            count("whole turn exact: " + ("several calls" if len(expected) > 1 else "one call" if kind == "call" else "second call, from a result"), calls == expected)
        elif kind == "answer":
            ok &= count("answer from results, verbatim", answer == want["content"])
        else:
            ok &= count({"nofit": "refuses when nothing fits", "ask": "asks for a missing value", "chat": "small talk, verbatim"}[kind], not calls and (kind != "chat" or answer == want["content"]))
        if show and not ok:
            print(json.dumps({"kind": kind, "tools": [t["function"]["name"] for t in tools or []], "user": history[-1]["content"], "want": expected or want["content"], "got": calls or answer}, ensure_ascii=False))
    for name, (good, all) in score.items():
        print(f"| {name} | {100 * good / all:.1f} % | {good} of {all} |")


def samples(tok, folder):
    model = load(folder, torch.float32)[1]
    result = json.dumps({"temperature": 18, "condition": "cloudy"})
    call = {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    after = user("What is the weather in Paris?") + [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "name": "get_weather", "content": result}]
    cases = [("hello", user("hello"), None, False), ("one call", user("What is the weather in Paris?"), [WEATHER], False), ("two calls", user("What is the weather in Paris and Tokyo?"), [WEATHER, EMAIL], False),
             ("answer", after, [WEATHER], False), ("thinking", user("What is the weather in Oslo in fahrenheit?"), [WEATHER, EMAIL], True), ("nothing fits", user("Delete the invoice INV-221."), [WEATHER, EMAIL], False)]
    out = []
    for name, messages, tools, thinking in cases:
        ids = tok(prompt(tok, messages, tools, thinking), add_special_tokens=False).input_ids
        with torch.no_grad():
            x = list(ids)
            for _ in range(32):  # no cache and no stop: 32 tokens by plain argmax
                x.append(model(torch.tensor([x]), use_cache=False).logits[0, -1].argmax().item())
        out.append({"name": name, "messages": messages, "tools": tools, "thinking": thinking, "prompt_ids": ids, "greedy_ids": x[len(ids) :], "greedy_text": tok.decode(x[len(ids) :], skip_special_tokens=False)})
    (folder / "samples.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model", type=Path, default=HERE)
    a.add_argument("--n", type=int, default=600, help="decisions to measure")
    a.add_argument("--seen", action="store_true", help="tools of the training set instead of held-out ones")
    a.add_argument("--lookup", action="store_true", help="requests that share single words with a tool instead of conversations")
    a.add_argument("--seed", type=int, default=99)
    a.add_argument("--show", action="store_true", help="print what went wrong")
    a.add_argument("--samples", action="store_true")
    a.add_argument("--ask")
    a.add_argument("--thinking", action="store_true")
    a.add_argument("--no-tools", action="store_true")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--url", help="ask this OpenAI endpoint instead of transformers")
    a = a.parse_args()
    items = lookups(a.n, a.seed) if a.lookup else decisions(a.n, not a.seen, a.seed)
    if a.url: return evaluate(items, served(a.url, items), a.show)
    torch.set_num_threads(a.threads)
    tok, model = load(a.model, torch.float32)  # the stored bf16 weights, computed in f32
    if a.samples: samples(tok, a.model)
    elif a.ask: print(complete(tok, model, [prompt(tok, user(a.ask), None if a.no_tools else [WEATHER, EMAIL], a.thinking)])[0])
    else:
        texts = complete(tok, model, [prompt(tok, h, t, think) for _, h, t, think, *_ in items])
        evaluate(items, [parse(text) for text in texts], a.show)


if __name__ == "__main__":
    main()
