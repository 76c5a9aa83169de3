"""The fast kernels for Hopper without a GPU: over the driver, stand-ins run in their place. What a report becomes."""
import json
import subprocess
import sys

import pytest

from conftest import REPOSITORY
from test_cuda import driver, rows_of, score, selftest  # noqa: F401

sys.path.insert(0, str(REPOSITORY / "scripts"))
import gpu_figures  # noqa: E402
import plot_benchmarks  # noqa: E402

FAST = {f"products with {form} weights" for form in ("bf16", "FP8")} | {
    f"experts in {form}" for form in ("bf16", "FP8", "FP8 by output", "int4", "MXFP4")} | {
    "products with FP8 weights by output", "bits of products with shared codes", "bits of products over tiles",
    "latent attention", *(f"bits of {what} over rows" for what in ("products", "experts", "latent attention"))}


def test_fast_kernels_agree_with_the_plain_ones(driver, tmp_path):
    """Stand-ins of the fast kernels compute what those say that they do, from what they would get."""
    path = tmp_path / "report.json"
    code, out, err = selftest("--sections", "fast", "--report", path, "--check-time", 120, library_path=driver)
    assert (code, err) == (0, ""), out
    passed, failed = rows_of(path, "fast")
    figures = {name: value for name, value in passed.items() if name not in FAST}
    assert FAST <= set(passed) and not failed
    assert len(figures) == 19 and all(value.startswith("fast ") and "; plain " in value for value in figures.values())


def test_a_wrong_fast_kernel_fails_the_checks_that_use_it(driver, tmp_path):
    path = tmp_path / "report.json"
    code, _, err = selftest("--sections", "fast", "--report", path, "--check-time", 120, library_path=driver,
                            skip="fp8_dense_64x32,int4_many_256x256,mxfp4_many_192x192,latent_merge,"
                                 "bf16_grouped_64x128_of_64")
    assert (code, err) == (1, "")
    passed, failed = rows_of(path, "fast")
    right = {"products with bf16 weights", "experts in FP8", "experts in FP8 by output"}
    assert FAST & set(passed) == right and set(failed) == FAST - right


@pytest.fixture(scope="module")
def rank_report(driver, tmp_path_factory):
    path = tmp_path_factory.mktemp("rank") / "report.json"
    code, out, err = selftest("--sections", "device,slice", "--reduced", "--gpu-kernels", "fast", "--report", path, library_path=driver)
    assert (code, err) == (0, ""), out
    return path


def test_a_rank_of_k2_is_timed(rank_report):
    passed, failed = rows_of(rank_report, "slice")
    assert not failed and all(f"{form}: decode, 3 rows after 64 tokens" in passed for form in ("FP8", "int4"))


def test_the_figures_of_a_gpu_become_tables_and_plots(rank_report, tmp_path, monkeypatch):
    """With times written here: a layer in FP8 takes twice, in int4 three times the time in which its bytes are read."""
    copied = 4.3e12
    report = json.loads(rank_report.read_text())
    [copy] = [row for row in report["sections"]["device"]["rows"] if row["name"] == "copy on the device"]
    copy["numbers"] = {"bytes_per_s": copied}
    decodes = [(4096, rows) for rows in (1, 64, 256)]
    # The slice of the page, whose widths are not those of the emulation.
    report["sections"]["slice"]["rows"] = [
        {"name": f"{form}: decode, {rows} rows after {context} tokens", "passed": True, "value": "", "numbers": {
            "rows": rows, "context": context, "layer_bytes": (size := gpu_figures.layer_bytes(form, 8, rows, context) * 1.1),
            "layer_us": times * size / copied * 1e6}}
        for form, times in (("FP8", 2), ("int4", 3)) for context, rows in decodes]
    report["sections"]["fast"] = {"rows": [
        {"name": "Fp8: [8192, 7168] to 4096", "passed": True, "numbers": {"operations": 1e12, "fast_us": 1000.0, "plain_us": 8000.0}},
        # As other GPUs than Hopper have it.
        {"name": "Int4: [1, 7168] to 4096", "passed": True, "numbers": {"bytes": 4.3e7, "plain_us": 40.0}}]}
    torch = {"version": "2", "device": report["device"], "sections": {"torch": {"rows": [
        *({"name": f"decode, {rows} rows after 4096 tokens, {form}", "passed": True, "numbers": {"layer_us": 1e4, "layer_bytes": 4.3e9}}
          for _, rows in decodes for form in ("eager", "compiled")),
        {"name": "Fp8: [8192, 7168] to 4096", "passed": True, "numbers": {"us": 900.0}}]}}}
    paths = [tmp_path / "report.json", tmp_path / "torch.json"]
    for path, content in zip(paths, (report, torch)):
        path.write_text(json.dumps(content))
    done = subprocess.run(["python3", REPOSITORY / "scripts/gpu_figures.py", *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cells = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines())}
    assert [cells["64 rows after 4096 tokens"][i] for i in (1, 3)] == ["2.00", "3.00"]
    assert cells["Fp8: [8192, 7168] to 4096"] == ["1000.0", "1000 TFLOP/s", "8000.0", "900.0", "0.90"]
    assert cells["Int4: [1, 7168] to 4096"] == ["-", "25 % of a copy", "40.0", "-", "-"]
    # 61 layers, each with two sums.
    between = float(cells["8 GPUs, int4, 64 sequences"][0].split()[0])
    layers = 61 * (3 * gpu_figures.layer_bytes("int4", 8, 64, 4096) / copied * 1e3 + 2 * 0.015)
    assert layers < between < layers * 1.06
    assert float(cells["16 GPUs, int4, 64 sequences"][0].split()[0]) > between / 2
    monkeypatch.setattr(gpu_figures, "DATA", tmp_path)
    gpu_figures.write_data(report, torch)
    assert "1 rows after 4096 tokens,2.00,3.00,10.00,10.00" in (tmp_path / "cuda_share.csv").read_text()
    for name in ("cuda_decode", "cuda_share"):
        assert plot_benchmarks.draw(*plot_benchmarks.read(tmp_path / f"{name}.csv")).startswith("<svg")


def test_the_bytes_of_a_rank_are_those_of_the_report():
    """Microseconds at 4.3 TB/s of a rank of eight at 1, 64 and 256 rows after 4,096 tokens."""
    for form, want in (("FP8", (21, 443, 780)), ("int4", (24, 291, 573))):
        found = [gpu_figures.layer_bytes(form, 8, rows, 4096) / 4.3e12 * 1e6 for rows in (1, 64, 256)]
        assert found == pytest.approx(want, rel=0.06)


def test_other_devices_have_no_fast_kernels(driver, tmp_path):
    path = tmp_path / "report.json"
    assert selftest("--sections", "fast", "--report", path, "--check-time", 120, library_path=driver, capability=80)[0] == 0
    passed, failed = rows_of(path, "fast")
    assert failed == {} and passed.pop("fast kernels") == "skipped: the device is not of compute capability 9.0"
    # Figures of the plain kernels alone.
    assert "Int4: [1, 256] to 256" in passed and all(text.startswith("plain ") for text in passed.values())
    found, log = score(driver, "--gpu-kernels", "fast", capability=80)
    assert "device 0: has compute capability 8.0; the fast kernels need 9.0, so the plain ones run" in log
    assert found == score(driver, capability=80)[0]
