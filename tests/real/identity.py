"""Greedy answers of Rein against transformers' with the same weights, and prompts against transformers' and llama-server's."""
import gc

from servers import at_once

# With a smaller difference between two logits, the rounding of sums decides which token is drawn.
TIE = 1e-3
QUESTIONS = (
    "Hello!", "What is the capital of Australia?", "Write a Python function that reverses a string.", "Zähle drei Städte in Österreich auf.",
    "用一句话解释什么是黑洞。", "Translate 'good morning' into French, Spanish and Italian.", "What is 17 * 23? Explain step by step.",
    "    indented\n\n\ttabs and\r\nline ends 🙂 <|im_end|> <tool_call> 12345", "Write a haiku about the sea.",
    "Give me a JSON object with the keys name and age.")


def prompts(count, cases):
    """Chats: half of them with tools, which are cases of BFCL."""
    plain = [{"id": f"question {at}", "messages": [{"role": "user", "content": text}]} for at, text in enumerate(QUESTIONS)]
    tools = [{"id": case["id"], "messages": case["messages"], "tools": case["tools"]} for case in cases]
    made = [prompt for pair in zip(plain, tools) for prompt in pair]
    return made[:count]


def body(prompt):
    return {name: prompt[name] for name in ("messages", "tools") if name in prompt}


def answers(server, chosen, max_tokens):
    """Rein's answers, without enforcement: transformers has none."""
    return at_once(lambda prompt: server.chat(**body(prompt), max_tokens=max_tokens, return_token_ids=True), chosen)


def prompt_differences(llama, tokenizer, chosen, answered):
    """The prompts whose ids differ from those of transformers' template and of llama-server's, by reference. `llama` may be None."""
    found = {name: [] for name in ("transformers", "llama-server")[:1 if llama is None else 2]}
    for prompt, answer in zip(chosen, answered):
        ours = answer["prompt_ids"]
        text = tokenizer.apply_chat_template(prompt["messages"], tools=prompt.get("tools"), add_generation_prompt=True, tokenize=False)
        references = {"transformers": tokenizer(text, add_special_tokens=False)["input_ids"]}
        if llama is not None:
            text = llama.post("/apply-template", body(prompt))["prompt"]
            references["llama-server"] = llama.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        for name, reference in references.items():
            if reference != ours:
                at = next((at for at, pair in enumerate(zip(ours, reference)) if pair[0] != pair[1]), min(len(ours), len(reference)))
                found[name].append({
                    "id": prompt["id"], "at": at, "rein": tokenizer.decode(ours[max(at - 5, 0):at + 10]),
                    "reference": tokenizer.decode(reference[max(at - 5, 0):at + 10])})
    return found


def differences(directory, dtype, chosen, answered):
    """The answers with a token that transformers would not have drawn there. One pass over prompt and answer computes what greedy
    decoding draws after each of the answer's tokens: up to the first difference, both have drawn the same."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    found = []
    with torch.inference_mode():
        for prompt, answer in zip(chosen, answered):
            ids, before = answer["ids"], len(answer["prompt_ids"])
            logits = model(torch.tensor([answer["prompt_ids"] + ids]), logits_to_keep=len(ids) + 1).logits[0].float()
            drawn = logits.argmax(-1).tolist()
            at = next((at for at, id in enumerate(ids) if drawn[at] != id), None)
            if at is not None:
                gap = (logits[at].max() - logits[at, ids[at]]).item()
                found.append({"id": prompt["id"], "prompt": before, "at": at, "rein": ids[at], "transformers": drawn[at], "gap": round(gap, 6)})
    del model
    gc.collect()
    return found


def summary(compared, prompts_found, count):
    """Figures by type, and the laws: by name, what breaks each."""
    made = {
        "prompts": {name: {"compared": count, "differing": rows} for name, rows in prompts_found.items()},
        "answers": {dtype: {"compared": count, "differing": rows, "ties": sum(row["gap"] < TIE for row in rows)} for dtype, rows in compared.items()}}
    laws = {"prompts that differ from transformers'": prompts_found["transformers"]}
    if "f32" in compared:
        laws[f"f32: answers that differ from transformers' by more than {TIE} in a logit"] = [row for row in compared["f32"] if row["gap"] >= TIE]
    return made, laws


def tables(figures):
    yield "| compared with | what | equal | differing |"
    yield "|---|---|---|---|"
    for name, row in figures["prompts"].items():
        rest = "; ".join(f"{entry['id']} at token {entry['at']}: {entry['rein']!r}, not {entry['reference']!r}" for entry in row["differing"])
        yield f"| {name} | prompt ids | {row['compared'] - len(row['differing'])} of {row['compared']} | {rest.replace('|', chr(92) + '|')} |"
    for dtype, row in figures["answers"].items():
        rest = "; ".join(f"{entry['id']} at token {entry['at']}, logits {entry['gap']} apart" for entry in row["differing"])
        yield f"| transformers | greedy answers, {dtype} | {row['compared'] - len(row['differing'])} of {row['compared']} | {rest} |"
