"""Trains the demo model (Kimi K2 architecture, 5.5 M parameters) on one CPU and exports a Hugging Face checkpoint.

    python tokenizer.py && python train.py --minutes 60 --out . --checkpoint demo.pt

The model below is DeepSeek V3 / Kimi K2 as transformers computes it (eval.py loads the export with transformers), written for
speed on one thread per process: the schedule follows the wall clock, so that it ends on time on a busy machine.
"""
import argparse, json, math, os, random, time
from pathlib import Path
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoTokenizer
from catalog import FREE, MORE_KINDS
from data import Gen, english
from text import COMMON, STOP, stem

HERE = Path(__file__).parent
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.0, "bos_token_id": 0, "eos_token_id": 0,
    "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 192, "initializer_range": 0.02, "intermediate_size": 512, "kv_lora_rank": 64,
    "max_position_embeddings": 4096, "model_type": "kimi_k2", "moe_intermediate_size": 128, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 8, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 5, "num_key_value_heads": 4, "num_nextn_predict_layers": 0,
    "pretraining_tp": 1, "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
    "routed_scaling_factor": 1.5, "scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "use_cache": True, "v_head_dim": 48, "vocab_size": 5120,
}
# The steps of a lookup, which training tells of. After these layers the words of a declaration are asked for their tool's name, and
# the words of a request for that of the one tool that has them. These (layer, head) are to look from a request's word at the same
# word of a declaration, and from a call's name at the request's words that only that tool has.
HINTED, LOOKING = (1, 2), ((2, 3), (3, 2))
HINT_WEIGHTS = (0.3, 0.5, 0.3, 0.3)


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight, 1e-6).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, width), linear(hidden, width), linear(width, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        e, h, w = c["n_routed_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.k, self.scale = c["num_experts_per_tok"], c["routed_scaling_factor"]
        self.router = nn.Parameter(torch.randn(e, h) * 0.02)
        self.gate_up, self.down = nn.Parameter(torch.empty(e, 2 * w, h)), nn.Parameter(torch.empty(e, h, w))
        self.shared_experts = Mlp(h, w)
        self.register_buffer("bias", torch.zeros(e))
        self.load = torch.zeros(e)

    def forward(self, x):
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        with torch.autocast("cpu", enabled=False):
            scores = F.linear(x.float(), self.router).sigmoid()
        index = (scores + self.bias).topk(self.k, -1)[1]
        weight = scores.gather(1, index)
        weight = weight / weight.sum(-1, keepdim=True) * self.scale
        order = index.flatten().argsort(stable=True)
        self.load = torch.bincount(index.flatten(), minlength=len(self.bias)).float()
        gate_up, down = self.gate_up.to(x.dtype), self.down.to(x.dtype)
        parts = []
        for e, part in enumerate(x[order // self.k].split(self.load.int().tolist())):
            gate, up = F.linear(part, gate_up[e]).chunk(2, -1)
            parts.append(F.linear(F.silu(gate) * up, down[e]))
        parts = torch.cat(parts)
        out = torch.empty_like(parts).index_copy(0, order, parts).view(-1, self.k, shape[-1])
        return ((out * weight[..., None].to(out.dtype)).sum(1) + self.shared_experts(x)).view(shape)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.nope, self.rope, self.v, self.latent = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        h, q = c["hidden_size"], c["q_lora_rank"]
        self.q_a_proj, self.q_a_layernorm, self.q_b_proj = linear(h, q), Norm(q), linear(q, self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = linear(h, self.latent + self.rope), Norm(self.latent)
        self.kv_b_proj, self.o_proj = linear(self.latent, self.heads * (self.nope + self.v)), linear(self.heads * self.v, h)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape

        def rotate(z):  # interleaved pairs, as DeepSeek stores them
            even, odd = z[..., 0::2], z[..., 1::2]
            return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)

        q_nope, q_rope = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(b, t, self.heads, -1).transpose(1, 2).split([self.nope, self.rope], -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.latent, self.rope], -1)
        k_nope, v = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, t, self.heads, -1).transpose(1, 2).split([self.nope, self.v], -1)
        q = torch.cat([q_nope, rotate(q_rope)], -1)
        k = torch.cat([k_nope, rotate(k_rope[:, None]).expand(b, self.heads, t, self.rope)], -1)
        self.last = q, k
        with torch.autocast("cpu", enabled=False):  # in bf16 by hand: twice as fast here as the fused kernel; padding is on the right
            q, rows, out = q * q.shape[-1] ** -0.5, -(-t // max(1, round(t / 192))), []
            for start in range(0, t, rows):  # block by block: what a block's rows cannot see is not computed
                end = min(start + rows, t)
                scores = q[:, :, start:end] @ k[:, :, :end].mT
                scores[..., start:] += torch.full((end - start, end - start), float("-inf"), dtype=q.dtype).triu(1)
                out.append(scores.softmax(-1) @ v[:, :, :end])
        return self.o_proj(torch.cat(out, 2).transpose(1, 2).reshape(b, t, -1))


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        h = c["hidden_size"]
        self.input_layernorm, self.post_attention_layernorm, self.self_attn = Norm(h), Norm(h), Attention(c)
        self.mlp = Mlp(h, c["intermediate_size"]) if index < c["first_k_dense_replace"] else Moe(c)

    def forward(self, x, cos, sin, keep=...):
        x = (x + self.self_attn(self.input_layernorm(x), cos, sin))[keep]
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm, self.lm_head = Norm(c["hidden_size"]), linear(c["hidden_size"], c["vocab_size"])
        self.hints = nn.ModuleList(linear(c["hidden_size"], c["hidden_size"]) for _ in HINTED)
        depth = (2 * c["num_hidden_layers"]) ** -0.5
        for name, p in self.named_parameters():
            if name.startswith("hints"): nn.init.eye_(p)
            elif p.dim() > 1:
                nn.init.normal_(p, std=0.02 if "embed" in name or "router" in name else p.shape[-1] ** -0.5 * (depth if "o_proj" in name or "down" in name else 1) * 0.7)

    def forward(self, ids, keep, seen=None):
        """Hidden states of the positions in `keep`, of which alone the last layer computes what is its own; `seen` gets those of
        all positions after the layers in HINTED."""
        c = self.config
        angle = torch.arange(ids.shape[1])[:, None] * c["rope_theta"] ** (-torch.arange(0, c["qk_rope_head_dim"], 2) / c["qk_rope_head_dim"])
        x, cos, sin = self.embed_tokens(ids).bfloat16(), angle.cos().bfloat16(), angle.sin().bfloat16()
        for i, layer in enumerate(self.layers[:-1]):
            x = layer(x, cos, sin)
            if seen is not None and i in HINTED: seen.append(x)
        return self.norm(self.layers[-1](x, cos, sin, keep))

    def hint(self, seen, hints):
        """How badly the layers in HINTED know what `hints` says of each token, and how badly the heads LOOKING look from the tokens
        of a number at those of the same number (-1: nothing). The calls alone teach the steps of a lookup very slowly."""
        losses, ends = [], hints[len(HINTED) :]
        for x, labels, project in zip(seen, hints, self.hints):
            known = labels >= 0
            losses.append(F.cross_entropy(self.lm_head(self.norm(project(x[known]))).float(), labels[known]) if known.any() else None)
        for (layer, head), looked_at, looking in zip(LOOKING, ends[::2], ends[1::2]):
            q, k = (x[:, head] for x in self.layers[layer].self_attn.last)
            same = (looking[:, :, None] == looked_at[:, None]) & (looking >= 0)[:, :, None]
            row, at = same.any(-1).nonzero(as_tuple=True)
            if not len(row):
                losses.append(None)
                continue
            scores = (q[row, at][:, None] @ k[row].mT)[:, 0].float() * q.shape[-1] ** -0.5
            scores = scores.masked_fill(torch.arange(k.shape[1]) > at[:, None], float("-inf"))
            losses.append((scores.logsumexp(-1) - scores.masked_fill(~same[row, at], float("-inf")).logsumexp(-1)).mean())
        return losses

    def loss(self, ids, weight, hints, hinting):
        keep, seen = F.pad(weight[:, 1:] > 0, (0, 1)), []
        logits = self.lm_head(self(ids, keep, seen)).float()
        each = F.cross_entropy(logits, ids.roll(-1, 1)[keep], reduction="none")
        w = weight.roll(-1, 1)[keep]
        told = self.hint(seen, hints)
        return (each * w).sum() / w.sum() + hinting * sum(x * share for x, share in zip(told, HINT_WEIGHTS) if x is not None), each[w >= 1].mean().item(), [math.nan if x is None else x.item() for x in told]

    def balance(self, rate):
        """Nudges each expert's selection bias towards an even load (DeepSeek's auxiliary-loss-free balancing)."""
        for layer in self.layers:
            if isinstance(layer.mlp, Moe):
                layer.mlp.bias += rate * torch.sign(layer.mlp.load.mean() - layer.mlp.load)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton-Schulz; for matrices and stacks of matrices. Update size matches AdamW's. Ranks share the work."""

    def __init__(self, params, lr, decay=0.02, momentum=0.95, rank=0, ranks=1):
        super().__init__(params, dict(lr=lr, decay=decay, momentum=momentum))
        params = sorted(self.param_groups[0]["params"], key=lambda p: -p.numel() * min(p.shape[-2:]))
        self.mine, self.ranks = {id(p) for p in params[rank::ranks]}, ranks

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            updates = []
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                updates.append(torch.zeros(p.shape))
                if id(p) not in self.mine: continue
                x = p.grad.lerp(m, group["momentum"]).bfloat16()
                rows, cols = x.shape[-2:]
                x = x.mT if rows > cols else x
                x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
                for _ in range(5):
                    a = x @ x.mT
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                updates[-1] = x.mT.float() if rows > cols else x.float()
            if self.ranks > 1:
                flat = torch.cat([u.flatten() for u in updates])
                dist.all_reduce(flat)
                updates = flat.split([p.numel() for p in group["params"]])
            for p, x in zip(group["params"], updates):
                p.mul_(1 - group["lr"] * group["decay"]).add_(x.reshape(p.shape), alpha=-group["lr"] * 0.2 * max(p.shape[-2:]) ** 0.5)


class Batches:
    """Endless batches of about `tokens` tokens: conversations of like length, padded on the right."""

    def __init__(self, tokenizer, seed, tokens, longest=1024):
        self.tok, self.gen, self.tokens, self.longest, self.rng, self.seen = tokenizer, Gen(seed), tokens, longest, random.Random(seed), 0
        self.gen.most_turns, self.gen.drills, self.gen.answered = 6, 0.4, 0.5  # many requests to the same tools: more to learn per token
        self.gen.english, self.gen.invented, self.gen.alias, self.gen.families = english(), 0.3, 0.2, (0.48, 0.17)  # any word, so that it is found and copied, not known
        self.gen.swapped, self.gen.plain, self.gen.alike, self.gen.leading = 0.5, 0.18, 0.45, 0.25
        self.gen.namesakes = 0.4
        self.gen.kinds, self.gen.slots, self.gen.pairs = FREE | MORE_KINDS, (1, 1, 2, 2, 3), self.gen.pairs + "unit int email time".split()
        self.gen.pieces = sorted(t for t in tokenizer.get_vocab() if t.isascii() and t.isalpha() and t.islower() and len(t) > 1)
        self.gen.capitals, self.gen.coined = sorted(t for t in tokenizer.get_vocab() if t.isascii() and t.isalpha() and t[0].isupper() and len(t) > 1), 0.35
        words = {t: i for t, i in tokenizer.get_vocab().items() if t.isascii() and t.isalpha() and len(t) > 1 and t.lower() not in STOP | COMMON}
        first = {stem(t.lower()): i for t, i in words.items()}
        self.words = {i: first[stem(t.lower())] for t, i in words.items()}  # of each word, which stands for all forms of it
        self.text = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.quotes = {i for t, i in tokenizer.get_vocab().items() if '"' in t}
        self.names = {i for t, i in tokenizer.get_vocab().items() if t.endswith('"function":{"name":"')}
        self.id = {t: tokenizer.convert_tokens_to_ids(t) for t in ("<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<think>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|im_user|>")}

    def encode(self, conversation):
        """(ids, weights, hints): weight 1 on what the assistant writes, 3 on a call's name, 0.15 on one of sixteen tokens elsewhere, 0 on
        `<think>`, which the prompt holds."""
        text = self.tok.apply_chat_template(conversation["messages"], tools=conversation["tools"], tokenize=False)
        ids, weights, header, speaking, naming = self.tok(text, add_special_tokens=False).input_ids[: self.longest], [], False, False, False
        for i in ids:
            naming = naming and i != self.id["<|tool_call_argument_begin|>"]
            weights.append(0.0 if i == self.id["<think>"] else 3.0 if naming else 1.0 if speaking else 0.15 if self.rng.random() < 1 / 16 else 0.0)
            naming = naming or (speaking and i == self.id["<|tool_call_begin|>"])
            header = header or i == self.id["<|im_assistant|>"]
            if i == self.id["<|im_middle|>"] and header: header, speaking = False, True
            if i == self.id["<|im_end|>"]: speaking = False
        return ids, weights, self.hints(ids)

    def hints(self, ids):
        """What Model.hint takes, -1 where there is nothing: of a declaration's word one of its tool's name, of a request's word that one
        tool alone has one of that one's name; numbers for what words of declarations, and of requests, are forms of; and numbers
        for the tool that alone has a request's word, and for the one that is being called."""
        tools, within, turn, labels = [], None, 0, []  # tools: [words of the name, what its words are forms of, the name's text]
        for at, i in enumerate(ids):
            if i in self.names: tools, within = tools + [[[], set(), ""]], "name"
            elif i == self.id["<|im_end|>"]: within = None
            elif i == self.id["<|im_user|>"]: within, turn = "request", turn + 1
            elif i == self.id["<|tool_call_begin|>"]: within = "call"
            elif i == self.id["<|tool_call_argument_begin|>"]: within = None
            elif i in self.quotes and within == "name": within = "declaration"
            elif within == "name": tools[-1][2] += self.text[i]
            form, declared, asked, owner, called = self.words.get(i, -1), -1, -1, -1, -1
            if within in ("name", "declaration"):
                name, forms, _ = tools[-1]
                if form >= 0: forms.add(form)
                if within == "name" and self.text[i].isalpha() and (form >= 0 or not name): name.append(i)
                if within == "declaration" and form >= 0 and name and self.rng.random() < 1 / 3: declared = self.rng.choice(name)
            elif within == "request" and form >= 0:
                owners = [t for t, (_, forms, _) in enumerate(tools) if form in forms]
                if len(owners) == 1 and tools[owners[0]][0]: owner, asked = turn * 64 + owners[0], self.rng.choice(tools[owners[0]][0])
            elif within == "call":
                if i == self.id["<|tool_call_begin|>"]:
                    text = "".join(self.text[j] for j in ids[at + 1 : at + 32])
                    name = text.removeprefix("functions.").partition(":")[0]
                    tool = next((t for t, (_, _, text) in enumerate(tools) if text == name), None)
                if tool is not None: called = turn * 64 + tool
            request = within == "request"
            labels.append((declared, asked, form if within in ("name", "declaration") else -1, form if request else -1, owner, called))
        return list(zip(*labels))

    def __iter__(self):
        while True:
            pool = sorted((self.encode(self.gen.conversation()) for _ in range(400)), key=lambda x: len(x[0]))
            batches, batch = [], []
            for item in pool:
                if batch and (len(batch) + 1) * len(item[0]) > self.tokens:
                    batches.append(batch)
                    batch = []
                batch.append(item)
            self.rng.shuffle(batches)
            for batch in batches:
                n = max(len(x[0]) for x in batch)
                pad = lambda xs, fill: torch.tensor([x + [fill] * (n - len(x)) for x in xs])
                self.seen += sum(len(x[0]) for x in batch)
                yield pad([x[0] for x in batch], 0), pad([x[1] for x in batch], 0.0), [pad([list(x[2][i]) for x in batch], -1) for i in range(len(HINTED) + 2 * len(LOOKING))]


def export(model, tok, out):
    """Writes model.safetensors (bf16, one tensor per expert, names as on the Hub), config.json and generation_config.json."""
    tensors = {}
    for name, p in model.state_dict().items():
        if name.startswith("hints"): continue
        name = name if name.startswith("lm_head") else "model." + name
        p = p.detach().float()
        if name.endswith("mlp.router"): tensors[name.replace("router", "gate.weight")] = p.bfloat16()
        elif name.endswith("mlp.bias"): tensors[name.replace("bias", "gate.e_score_correction_bias")] = p
        elif name.endswith("mlp.gate_up"):
            for e, (gate, up) in enumerate(x.chunk(2) for x in p):
                tensors[name.replace("gate_up", f"experts.{e}.gate_proj.weight")] = gate.bfloat16()
                tensors[name.replace("gate_up", f"experts.{e}.up_proj.weight")] = up.bfloat16()
        elif name.endswith("mlp.down"):
            for e, x in enumerate(p): tensors[name.replace("down", f"experts.{e}.down_proj.weight")] = x.bfloat16()
        else: tensors[name] = p.bfloat16()
    out.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, out / "model.safetensors.tmp", metadata={"format": "pt"})
    (out / "model.safetensors.tmp").chmod(0o644)
    os.replace(out / "model.safetensors.tmp", out / "model.safetensors")
    end, eos, bos = (tok.convert_tokens_to_ids(t) for t in ("<|im_end|>", "[EOS]", "[BOS]"))
    config = {**model.config, "bos_token_id": bos, "eos_token_id": end}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"bos_token_id": bos, "do_sample": False, "eos_token_id": [eos, end], "pad_token_id": tok.convert_tokens_to_ids("[PAD]")}, indent=2) + "\n")


def restore(model, folder, tok):
    """The other way round: an export's weights, without what the optimizers knew. A token that its tokenizer did not have begins
    as the mean of its pieces there, and is as likely as the first of them."""
    tensors, known = load_file(folder / "model.safetensors"), AutoTokenizer.from_pretrained(folder)
    vocab, spell = known.get_vocab(), lambda token: known(tok.convert_tokens_to_string([token]), add_special_tokens=False).input_ids
    pieces = [[vocab[token]] if token in vocab else spell(token) for token in tok.convert_ids_to_tokens(range(len(tok)))]
    for name, of in (("model.embed_tokens.weight", lambda rows, ids: rows[ids].mean(0)), ("lm_head.weight", lambda rows, ids: rows[ids[0]])):
        rows = tensors[name].float()
        tensors[name] = torch.stack([of(rows, ids) for ids in pieces])
    def of(name):
        if name.endswith("mlp.router"): return tensors[name.replace("router", "gate.weight")]
        if name.endswith("mlp.bias"): return tensors[name.replace("bias", "gate.e_score_correction_bias")]
        experts = range(model.config["n_routed_experts"])
        if name.endswith("mlp.gate_up"):
            both = lambda e: torch.cat([tensors[name.replace("gate_up", f"experts.{e}.{part}_proj.weight")] for part in ("gate", "up")])
            return torch.stack([both(e) for e in experts])
        if name.endswith("mlp.down"): return torch.stack([tensors[name.replace("down", f"experts.{e}.down_proj.weight")] for e in experts])
        return tensors[name]
    model.load_state_dict({name: of(name if name.startswith("lm_head") else "model." + name).float() for name in model.state_dict() if not name.startswith("hints")}, strict=False)


def mean(x, *others):
    """Of checkpoints: better than any of the runs, if they share their beginning. Counts are the first one's."""
    if torch.is_tensor(x): return sum(others, x) / (1 + len(others)) if x.is_floating_point() else x
    if isinstance(x, dict): return {k: mean(v, *(y[k] for y in others)) for k, v in x.items()}
    return [mean(*each) for each in zip(x, *others)] if isinstance(x, list) else x


def average(model, elapsed):
    """Means over all ranks of the gradients, the experts' loads and the time that has passed: one all-reduce of one flat vector."""
    grads, moes = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()], [l.mlp for l in model.layers if isinstance(l.mlp, Moe)]
    flat = torch.cat([g.flatten() for g in grads] + [m.load for m in moes] + [torch.tensor([elapsed])])
    if dist.is_initialized():
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
    *parts, elapsed = flat.split([g.numel() for g in grads] + [len(m.load) for m in moes] + [1])
    for p, x in zip(model.parameters(), parts): p.grad = x.view_as(p)
    for m, x in zip(moes, parts[len(grads) :]): m.load = x
    return elapsed.item()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--minutes", type=float, default=60)
    a.add_argument("--lr", type=float, default=3e-3)
    a.add_argument("--tokens", type=int, default=3072, help="tokens in a rank's batch")
    a.add_argument("--ranks", type=int, default=2, help="data-parallel processes of one thread each")
    a.add_argument("--out", type=Path, default=HERE)
    a.add_argument("--checkpoint", type=Path, default=Path("demo.pt"))
    a.add_argument("--resume", action="store_true")
    a.add_argument("--beside", type=Path, nargs="+", default=[], help="with --resume: checkpoints of this run's past, or of runs that branched off it; goes on from the mean of all")
    a.add_argument("--tools", type=int, default=8, help="most tools in a conversation, with --resume or --weights; else they grow to 8")
    a.add_argument("--hints", type=float, default=1, help="factor of the hints' weights; once they are learnt, less: their gradient is several times that of all answers")
    a.add_argument("--weights", type=Path, help="begin from the export in this folder instead of at random")
    a = a.parse_args()
    if a.ranks == 1: return train(0, a)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29500 + os.getpid() % 1000))
    torch.multiprocessing.spawn(train, (a,), nprocs=a.ranks)


def train(rank, a):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if a.ranks > 1: dist.init_process_group("gloo", rank=rank, world_size=a.ranks)
    tok = AutoTokenizer.from_pretrained(HERE)
    model = Model(CONFIG)
    hidden = [p for n, p in model.named_parameters() if p.dim() > 1 and n.startswith("layers") and "router" not in n]
    rest = [p for p in model.parameters() if all(p is not h for h in hidden)]
    opts = [torch.optim.AdamW(rest, lr=a.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True), Muon(hidden, a.lr, rank=rank, ranks=a.ranks)]
    step, seen, before, seed = 0, 0, 0.0, 1000
    if a.weights: restore(model, a.weights, tok)
    if a.resume:
        s = torch.load(a.checkpoint)
        if a.beside:
            runs = [s, *map(torch.load, a.beside)]
            s = {**mean(*runs), "seed": max(x["seed"] for x in runs)}  # of none is anything read again
        model.load_state_dict(s["model"])
        for o, d in zip(opts, s["opts"]): o.load_state_dict(d)
        step, seen, before, seed = s["step"], s["seen"], s["elapsed"], s["seed"] + a.ranks
    batches = Batches(tok, seed + rank, a.tokens)
    say = (lambda *x: print(*x, flush=True)) if rank == 0 else lambda *x: None
    say("parameters", sum(p.numel() for p in model.parameters()))
    start, saved, elapsed, recent, total = time.time(), before, before, [], a.minutes * 60
    for ids, weight, hints in batches:
        if (elapsed >= total or elapsed - saved > 480) and rank == 0:
            torch.save({"model": model.state_dict(), "opts": [o.state_dict() for o in opts], "step": step, "seen": seen + batches.seen * a.ranks, "elapsed": elapsed, "seed": seed}, a.checkpoint)
            export(model, tok, a.out)
            say("exported", step)
        saved = elapsed if elapsed - saved > 480 else saved
        if elapsed >= total: break
        scale = min(1, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1, (elapsed - before) / (total - before)))))
        batches.gen.most_tools = a.tools if a.weights or a.resume else 1 + int(8 * elapsed / total)  # short prompts first: copying is learnt sooner
        for o in opts:
            for g in o.param_groups: g["lr"] = a.lr * scale
        with torch.autocast("cpu", torch.bfloat16):
            loss, said, told = model.loss(ids, weight, hints, a.hints)
        loss.backward()
        elapsed = average(model, before + time.time() - start)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad()
        model.balance(5e-3 if step < 200 else 2e-3 * scale)
        step += 1
        recent.append((loss.item(), said, *told))
        if step % 25 == 0:
            means = torch.tensor(recent).nanmean(0).tolist()
            load = [round((l.mlp.load.max() / l.mlp.load.mean()).item(), 1) for l in model.layers if isinstance(l.mlp, Moe)]
            say(f"{elapsed / 60:6.1f} min step {step} tokens {(seen + batches.seen * a.ranks) / 1e6:.2f}M loss {means[0]:.3f} assistant {means[1]:.4f} hints {' '.join(f'{x:.2f}' for x in means[2:])} load {load}")
            recent = []


if __name__ == "__main__":
    main()
