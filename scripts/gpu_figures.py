#!/usr/bin/env python3
"""Makes the tables and plots of docs/benchmarks/cuda.md from what a GPU found.

    scripts/gpu_figures.py report.json torch.json            prints the tables as Markdown
    scripts/gpu_figures.py report.json torch.json --data     and writes docs/benchmarks/data/cuda_*.csv

report.json: `rein selftest --engine cuda --sections device,fast,slice --report report.json`;
torch.json: `benches/k2_slice.py --out torch.json` on the same GPU. scripts/plot_benchmarks.py draws the data.
"""
import argparse
import csv
import json
import pathlib

DATA = pathlib.Path(__file__).resolve().parents[1] / "docs/benchmarks/data"
FORMS = ("FP8", "int4")
COMMANDS = "rein selftest --engine cuda --sections device,fast,slice; benches/k2_slice.py"

# Kimi K2 (its config.json): layers, heads, experts, of which each token goes to 8.
LAYERS, HEADS, EXPERTS, TOP_K, HIDDEN, VOCAB = 61, 64, 384, 8, 7168, 163_840
Q_RANK, LATENT, NOPE, ROPE, VALUE, WIDTH = 1536, 512, 128, 64, 128, 2048
# Bytes of a number, with its part of the scales: in experts, and in other products.
SIZES = {"FP8": (1 + 4 / 128**2, 1 + 4 / 128**2), "int4": (0.5 + 2 / 32, 2)}
SUMS_OF_LAYER = 2

# Published, for the last columns. Not measured here, and not with the same prompts.
PUBLISHED = {
    ("int4", 8): "vLLM, K2-Thinking on 8 x H200: median inter-token latency 38 ms, at most 2,100 tokens/s",
}


def rows_of(report, section):
    """Numbers of the rows of a section that passed, by name."""
    found = report["sections"].get(section)
    if found is None:
        raise SystemExit(f"the report has no section `{section}`: it has {', '.join(report['sections'])}")
    return {row["name"]: row["numbers"] for row in found["rows"] if row["passed"] and row.get("numbers")}


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def layer_bytes(form, ranks, rows, context):
    """What a layer of one of `ranks` ranks reads once in a step that draws a token for each of `rows` sequences."""
    of_expert, of_other = SIZES[form]
    heads = HEADS // ranks
    attention = (HIDDEN * (Q_RANK + LATENT + ROPE) + Q_RANK * heads * (NOPE + ROPE) + heads * (NOPE + VALUE) * LATENT
                 + heads * VALUE * HIDDEN)
    expert = 3 * HIDDEN * WIDTH
    chosen = EXPERTS / ranks * (1 - (1 - TOP_K / EXPERTS) ** rows)
    gate = HIDDEN * EXPERTS * 2
    return ((attention + expert / ranks) * of_other + gate + expert * chosen * of_expert
            + rows * context * 2 * (LATENT + ROPE))


def sum_us(ranks, rows, options):
    """One sum over ranks of `rows` rows in bf16: a latency, and what each rank sends (Thakur et al., 2005: 2 (n-1)/n of the bytes)."""
    sent = 2 * (ranks - 1) / ranks * rows * HIDDEN * 2
    over_nodes = ranks > options.node_gpus
    latency = options.node_sum_us if over_nodes else options.sum_us
    rate = options.node_gbs if over_nodes else options.link_gbs
    return latency + sent / (rate * 1e3)


def share(numbers, copied):
    """A layer's time over the time in which its bytes are read."""
    return numbers["layer_us"] * copied / numbers["layer_bytes"] / 1e6


def step_ms(numbers, form, ranks, copied, options):
    """A step of the whole model: the slice, which has the shared expert whole, gives the share for the rank's bytes, and the sums come
    on top."""
    rows, us_of_byte = int(numbers["rows"]), share(numbers, copied) / copied * 1e6
    layer = layer_bytes(form, ranks, rows, int(numbers["context"])) * us_of_byte
    head = VOCAB / ranks * HIDDEN * 2 * us_of_byte
    return (LAYERS * (layer + SUMS_OF_LAYER * sum_us(ranks, rows, options)) + head) / 1e3


def cell(number, form="{:.0f}", missing="-"):
    return missing if number is None else form.format(number)


def decodes(report, torch):
    """(label, FP8, int4, torch eager, torch compiled): numbers of each, or None."""
    found, yard = rows_of(report, "slice"), rows_of(torch, "torch")
    labels = dict.fromkeys(name.split(": decode, ")[1] for name in found if ": decode, " in name)
    if not labels:
        raise SystemExit("the section `slice` of the report has no times of decode steps")
    return [(label, *(found.get(f"{form}: decode, {label}") for form in FORMS),
             *(yard.get(f"decode, {label}, {form}") for form in ("eager", "compiled"))) for label in labels]


def tables(report, torch, options):
    copied = rows_of(report, "device")["copy on the device"]["bytes_per_s"]
    yield f"{report['device']}, rein {report['version']}, torch {torch['version']}; a copy reads and writes {copied / 1e12:.2f} TB/s.\n"
    yield "Microseconds of a layer when a rank of Kimi K2 decodes, and the share of the time in which its bytes are read:\n"
    lines = []
    for label, fp8, int4, eager, compiled in decodes(report, torch):
        line = [label]
        for numbers in (fp8, int4):
            line.append(cell(numbers and numbers["layer_us"]))
            line.append(cell(numbers and share(numbers, copied), "{:.2f}"))
        line += [cell(numbers and numbers["layer_us"]) for numbers in (eager, compiled)]
        line.append(cell(fp8 and compiled and compiled["layer_us"] / fp8["layer_us"], "{:.2f}"))
        lines.append(line)
    yield table(["decode", "FP8", "of its floor", "int4", "of its floor", "torch bf16, eager", "compiled", "compiled over FP8"], lines)
    yield from prefills(report, torch)
    yield from products(report, torch, copied)
    yield from extrapolations(report, copied, options)


def best_us(numbers):
    """Of the fast kernel, which other GPUs than Hopper do not have."""
    return numbers.get("fast_us", numbers["plain_us"])


def prefills(report, torch):
    """Beside the time of its operations at the rate of the large dense product: FP8, and bf16 for int4."""
    found, yard, fast = rows_of(report, "slice"), rows_of(torch, "torch"), rows_of(report, "fast")
    lines = []
    for form, product in zip(FORMS, ("Fp8", "Bf16")):
        rates = [n["operations"] / best_us(n) for name, n in fast.items() if name.startswith(f"{product}: [") and "operations" in n]
        for name, numbers in found.items():
            if not name.startswith(f"{form}: prefill"):
                continue
            label = name.split(": ")[1]
            floor = numbers["layer_operations"] / max(rates) if rates else None
            eager, compiled = (yard.get(f"{label}, {way}", {}).get("layer_us") for way in ("eager", "compiled"))
            lines.append([f"{form}: {label}", cell(numbers["layer_us"]), cell(floor and numbers["layer_us"] / floor, "{:.2f}"),
                          cell(eager), cell(compiled)])
    yield "Microseconds of a layer in a prefill, and the share of its operations' time at the rate of the dense product:\n"
    yield table(["prefill", "rein", "of its floor", "torch bf16, eager", "compiled"], lines)


def products(report, torch, copied):
    yard, lines = rows_of(torch, "torch"), []
    for name, numbers in rows_of(report, "fast").items():
        us, stick = best_us(numbers), yard.get(name, {}).get("us")
        work = (f"{numbers['bytes'] / us * 1e6 / copied * 100:.0f} % of a copy" if "bytes" in numbers
                else f"{numbers['operations'] / us / 1e6:.0f} TFLOP/s")
        lines.append([name, cell(numbers.get("fast_us"), "{:.1f}"), work, f"{numbers['plain_us']:.1f}", cell(stick, "{:.1f}"), cell(stick and stick / us, "{:.2f}")])
    yield ("Microseconds of ops (published for H800: FlashMLA 3,000 GB/s, DeepGEMM 1,550 TFLOP/s; torch is `_scaled_mm` for FP8, "
           "`@` for bf16):\n")
    yield table(["op", "fast kernel", "", "plain kernel", "torch", "torch over fast"], lines)


def extrapolations(report, copied, options):
    found, lines = rows_of(report, "slice"), []
    for ranks in (8, 16):
        for form in FORMS:
            for name, numbers in found.items():
                if name.startswith(f"{form}: decode") and numbers["context"] == options.context:
                    rows = int(numbers["rows"])
                    ms = step_ms(numbers, form, ranks, copied, options)
                    lines.append([f"{ranks} GPUs, {form}, {rows} sequences", f"{ms:.1f} ms", f"{rows / ms * 1e3:,.0f}",
                                  PUBLISHED.get((form, ranks), "-")])
    yield (f"Not measured: the whole of Kimi K2 after {options.context:,} tokens. The slice's share of its bytes' time is applied to the "
           f"bytes of each of {LAYERS} layers of a rank, and {SUMS_OF_LAYER} sums over ranks a layer are added, at {options.sum_us} us "
           f"and {options.link_gbs} GB/s in a node of {options.node_gpus}, {options.node_sum_us} us and {options.node_gbs} GB/s over nodes "
           "(assumed):\n")
    yield table(["", "between tokens", "output tokens/s", "published"], lines)


def write_data(report, torch):
    """Two plots over batch and context: times, and how near they are to their floor."""
    copied = rows_of(report, "device")["copy on the device"]["bytes_per_s"]
    found = decodes(report, torch)
    us = [[label, *(cell(numbers and numbers["layer_us"], missing="") for numbers in all_)] for label, *all_ in found]
    shares = [[label, *(cell(numbers and share(numbers, copied), "{:.2f}", "") for numbers in all_)] for label, *all_ in found]
    head = ["decode", "FP8", "int4", "torch bf16, eager", "torch bf16, compiled"]
    for name, title, unit, scale, rows in (
            ("cuda_decode", "A layer of a rank of Kimi K2", "us", "log", us),
            ("cuda_share", "A layer's time over the time in which its bytes are read", "times", None, shares)):
        with (DATA / f"{name}.csv").open("w", newline="") as file:
            file.write(f"# title: {title}, {report['device']}\n# unit: {unit}\n# command: {COMMANDS}\n")
            file.write("# scale: log\n" if scale else "")
            csv.writer(file, lineterminator="\n").writerows([head, *rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("torch", type=pathlib.Path)
    parser.add_argument("--data", action="store_true", help="write docs/benchmarks/data/cuda_*.csv too")
    parser.add_argument("--context", type=int, default=4096, help="tokens before a step that is extrapolated")
    parser.add_argument("--node-gpus", type=int, default=8)
    parser.add_argument("--sum-us", type=float, default=15, help="latency of a sum over the ranks of a node")
    parser.add_argument("--link-gbs", type=float, default=450, help="GB/s that a GPU sends in a node (NVLink of an H200: 450)")
    parser.add_argument("--node-sum-us", type=float, default=40, help="latency of a sum over nodes")
    parser.add_argument("--node-gbs", type=float, default=50, help="GB/s that a GPU sends to other nodes (400 Gb/s InfiniBand: 50)")
    options = parser.parse_args()
    report, torch = (json.loads(path.read_text()) for path in (options.report, options.torch))
    if report["device"] != torch["device"]:
        print(f"Two devices: {report['device']} and {torch['device']}.\n")
    print("\n".join(tables(report, torch, options)), end="")
    if options.data:
        write_data(report, torch)


if __name__ == "__main__":
    main()
