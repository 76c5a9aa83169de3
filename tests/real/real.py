"""Measures Rein with the weights of real models, beside transformers and llama-server (tests/real/README.md).

    make real
    REIN_BIN=target/release/rein REIN_REAL_DIR=$(scripts/real.sh) VENV/bin/python tests/real/real.py --models smol --cases 24

Writes a report in JSON, prints tables in Markdown, and exits with 1 if a law does not hold."""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import sys
import tempfile
import time

import bfcl
import identity
import structured
from servers import start_llama, start_rein

PARTS = ("identity", "bfcl", "structured")
TOOLS_TEMPLATE = pathlib.Path(__file__).parent / "tools.jinja"
# Of the records that break a law, as many are printed.
SHOWN = 3


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["smol", "qwen05", "qwen15"], metavar="NAME", help="models that scripts/real.sh has fetched")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--modes", nargs="+", default=["auto", "required", "off", "llama"], choices=list(bfcl.MODES), help="modes of BFCL")
    parser.add_argument("--cases", type=int, default=304, help="cases of BFCL")
    parser.add_argument("--again", type=int, default=40, help="cases of BFCL, per mode, that are also streamed and asked over /v1/responses")
    parser.add_argument("--tool-tokens", type=int, default=256, help="max_tokens of BFCL")
    parser.add_argument("--answers", type=int, default=100, help="structured answers")
    parser.add_argument("--answer-tokens", type=int, default=512, help="max_tokens of structured answers")
    parser.add_argument("--no-llama", action="store_true", help="skip llama-server")
    parser.add_argument("--prompts", type=int, default=20, help="prompts of identity")
    parser.add_argument("--prompt-tokens", type=int, default=48, help="max_tokens of identity")
    parser.add_argument("--dtypes", nargs="+", default=["f32", "bf16"], choices=("f32", "bf16"), help="types of identity")
    parser.add_argument(
        "--weights", default="file", choices=("file", "dequantized"),
        help="what Rein serves for BFCL and structured answers: llama-server's GGUF file, or its weights in bf16")
    parser.add_argument("--dtype", default="auto", help="rein serve's --dtype for BFCL and structured answers")
    parser.add_argument("--quantize", default="none", help="rein serve's --quantize for BFCL and structured answers")
    parser.add_argument("--kv-dtype", default="auto", help="rein serve's --kv-dtype for BFCL and structured answers")
    parser.add_argument("--format", help="rein serve's --format; detected if absent")
    parser.add_argument("--chat-template", type=pathlib.Path, help="template for all engines; default: the model's, or tools.jinja if it shows no tools")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("target/real.json"))
    return parser.parse_args()


class Model:
    """A model's files, its tokenizer with the template in use, and the servers that serve it, of which one runs at a time."""

    def __init__(self, name, arguments, directory):
        import transformers

        transformers.logging.set_verbosity_error()
        home = pathlib.Path(os.environ["REIN_REAL_DIR"])
        self.name, self.arguments, self.directory = name, arguments, directory
        self.hub, self.gguf, self.llama = home / name, home / f"{name}.gguf", home / "llama-server"
        if not self.hub.is_dir():
            sys.exit(f"real: {self.hub} is missing: run REIN_REAL_MODELS={name} scripts/real.sh")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.hub)
        self.template = arguments.chat_template
        if self.template is None and "tools" not in self.tokenizer.chat_template:
            self.template = TOOLS_TEMPLATE
        if self.template:
            self.tokenizer.chat_template = self.template.read_text()
        self.running = {}

    def rein(self, *more, file=False):
        given = {"--chat-template": self.template, "--format": self.arguments.format}
        return start_rein(self.directory, self.gguf if file else self.hub, *(part for pair in given.items() if pair[1] for part in pair), *more)

    def start(self, kind):
        if kind == "llama":
            return start_llama(self.directory, self.llama, self.gguf, *(["--chat-template-file", self.template] if self.template else []))
        enforcement = "off" if kind == "rein-off" else "names+arguments"
        given = self.arguments
        types = ["--dtype", given.dtype, "--quantize", given.quantize, "--kv-dtype", given.kv_dtype]
        return self.rein("--enforcement", enforcement, *types, file=self.arguments.weights == "file")

    def server(self, kind):
        """The server of a kind, in place of one of another kind: two would share the processors."""
        if kind not in self.running:
            self.stop()
            self.running[kind] = self.start(kind)
        return self.running[kind]

    def stop(self):
        while self.running:
            self.running.popitem()[1].stop()

    def measure_identity(self):
        chosen = identity.prompts(self.arguments.prompts, bfcl.cases(self.arguments.prompts))
        self.stop()
        answers = {}
        for dtype in self.arguments.dtypes:
            # transformers and llama-server read control tokens in a message's text as such.
            with self.rein("--enforcement", "off", "--allow-control-tokens", "--dtype", dtype) as server:
                answers[dtype] = identity.answers(server, chosen, self.arguments.prompt_tokens)
        failed = [answer for asked in answers.values() for answer in asked if "error" in answer]
        if failed:
            return {}, {"errors": failed}, lambda figures: ()
        found = identity.prompt_differences(None if self.arguments.no_llama else self.server("llama"), self.tokenizer, chosen, answers[self.arguments.dtypes[0]])
        self.stop()
        compared = {dtype: identity.differences(self.hub, dtype, chosen, asked) for dtype, asked in answers.items()}
        return *identity.summary(compared, found, len(chosen)), identity.tables

    def measure_bfcl(self):
        chosen = bfcl.cases(self.arguments.cases)
        modes = [mode for mode in self.arguments.modes if not (self.arguments.no_llama and mode.startswith("llama"))]
        modes.sort(key=lambda mode: bfcl.MODES[mode][0])
        records = {
            mode: self.timed(f"bfcl {mode}", bfcl.measure, self.server, chosen, mode, self.arguments.tool_tokens, self.arguments.again) for mode in modes}
        figures, laws = bfcl.summary(records, chosen, self.tokenizer)
        return {**figures, "records": records}, laws, bfcl.tables

    def measure_structured(self):
        chosen = structured.questions(self.arguments.answers)
        modes = [mode for mode in structured.MODES if not (self.arguments.no_llama and mode == "llama")]
        records = {
            mode: self.timed(f"structured {mode}", structured.measure, self.server, chosen, mode, self.arguments.answer_tokens) for mode in modes}
        figures, laws = structured.summary(records)
        return {**figures, "records": records}, laws, structured.tables

    def timed(self, what, measure, *arguments):
        began = time.monotonic()
        records = measure(*arguments)
        print(f"real: {self.name}, {what}: {len(records)} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return records


def shown(record):
    text = json.dumps(record, ensure_ascii=False)
    return text if len(text) < 600 else text[:600] + " ..."


def main(arguments, directory):
    report = {"machine": platform.processor() or platform.machine(), "processors": os.cpu_count(), "arguments": {
        name: str(value) for name, value in vars(arguments).items()}, "models": {}}
    broken = []
    for name in arguments.models:
        model, parts = Model(name, arguments, directory), report["models"].setdefault(name, {})
        with contextlib.ExitStack() as stack:
            stack.callback(model.stop)
            for part in arguments.parts:
                figures, laws, tables = getattr(model, f"measure_{part}")()
                parts[part] = {**figures, "laws": {law: [record.get("id") for record in records] for law, records in laws.items()}}
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                arguments.out.write_text(json.dumps(report, indent=1, ensure_ascii=False))
                print(f"\n## {name}: {part}\n")
                print("\n".join(tables(figures)))
                print("\n| law: there are no | found |\n|---|---|")
                for law, records in laws.items():
                    print(f"| {law} | {len(records)} |")
                for law, records in laws.items():
                    broken += [f"{name}, {part}: {law}: {len(records)}"] * bool(records)
                    for record in records[:SHOWN]:
                        print(f"\n{law}: `{shown(record)}`")
                sys.stdout.flush()
    print(f"\nreport: {arguments.out}")
    for line in broken:
        print(f"real: {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(options(), pathlib.Path(made)))
