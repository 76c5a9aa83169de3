"""The yardstick of docs/benchmarks/cuda.md: it needs torch, which vLLM brings."""
import json
import subprocess

from conftest import ENGINES
from processes import REPOSITORY


def test_the_slice_in_torch_runs_eager_and_compiled(tmp_path):
    path = tmp_path / "torch.json"
    command = [ENGINES / "vllm/bin/python", REPOSITORY / "benches/k2_slice.py", "--device", "cpu", "--reduced", "--out", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    section = json.loads(path.read_text())["sections"]["torch"]
    assert section["passed"], section["rows"]
    names = {row["name"] for row in section["rows"]}
    assert {f"decode, {rows} rows after {context} tokens, {form}" for context, rows in ((20, 1), (20, 3), (8, 2))
            for form in ("eager", "compiled")} <= names
