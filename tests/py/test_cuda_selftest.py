"""`rein selftest` over the driver that runs kernels on the CPU: what it finds, and what breaks in it."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import BIN, IS_DEBUG_BUILD, REPOSITORY
from fleet import until
from test_cuda import FIXTURES, driver, environment, fixtures, rows_of, selftest  # noqa: F401


def test_without_a_driver(tmp_path):
    code, out, err = selftest(library_path=tmp_path)
    if "no CUDA driver was found" not in err:
        pytest.skip("this machine has a CUDA driver")
    assert (code, out) == (1, "") and "libcuda.so.1" in err and "580" in err


@pytest.mark.parametrize("capability, skipped", [(90, []), (100, ["ptx_wgmma_128", "ptx_wgmma_64"]), (
    80, ["ptx_bulk_copy", "ptx_tensor_copy", "ptx_wgmma_128", "ptx_wgmma_64"])])
def test_device_and_instructions(driver, tmp_path, capability, skipped):
    path = tmp_path / "report.json"
    sections = ["--sections", "device,ptx"]
    code, out, err = selftest("--report", path, *sections, library_path=driver, capability=capability)
    assert (code, err) == (0, ""), out
    report = json.loads(path.read_text())
    assert report["device"] == "Rein's CPU emulation"
    passed = {name: section["passed"] for name, section in report["sections"].items()}
    assert passed == {"device": True, "ptx": True}
    rows = {row["name"]: row["value"] for row in report["sections"]["ptx"]["rows"]}
    assert sorted(name for name, value in rows.items() if value.startswith("skipped")) == skipped
    assert all(value.endswith("words agree") for name, value in rows.items() if name not in skipped)
    assert ("bf16 product, wgmma" in out) == (capability == 90)
    page = path.with_suffix(".md").read_text()
    assert page.startswith("# rein") and out.split() == page[page.index("## device"):].split()


def test_every_op_agrees_with_the_cpu(driver, tmp_path):
    path = tmp_path / "report.json"
    code, out, err = selftest("--sections", "ops", "--report", path, library_path=driver)
    assert (code, err) == (0, ""), out
    rows = json.loads(path.read_text())["sections"]["ops"]["rows"]
    assert rows[0]["name"] == "shapes" and "the small set" in rows[0]["value"]
    # Each in f32 and in bf16.
    for op in ["embed", "linear", "gqa_attention", "mla_attention", "moe_route, moe", "draw"]:
        assert {f"{op} f32", f"{op} bf16"} <= {row["name"] for row in rows}, op


def test_a_wrong_kernel_fails_the_ops_that_use_it(driver, tmp_path):
    path = tmp_path / "report.json"
    wrong = "silu_mul_f32,linear_fp8,attention_bf16,flash_bf16_64,flash_bf16_128,flash_split_bf16_64,flash_split_bf16_128,draw_tokens"
    code, _, err = selftest("--sections", "ops", "--report", path, library_path=driver, skip=wrong)
    assert (code, err) == (1, "")
    rows = json.loads(path.read_text())["sections"]["ops"]["rows"]
    assert any("wrong in 18 of them: " in row["value"] and " numbers differ, number " in row["value"] for row in rows)
    assert [row["name"] for row in rows if not row["passed"]] == [
        "silu_mul f32", "moe_route, moe f32", "moe with adapters f32", "draw f32", "gqa_attention bf16", "mla_attention bf16", "draw bf16",
        "linear FP8", "moe FP8, rounded alike", "moe FP8 with scales by output, rounded alike"]


def test_a_kernel_that_breaks_the_device_is_named_and_costs_no_other_check(driver, tmp_path):
    path = tmp_path / "report.json"
    code, _, _ = selftest("--sections", "ops,ptx", "--report", path, library_path=driver, fault="silu_mul_bf16:3")
    assert code == 1
    passed, failed = rows_of(path, "ops")
    assert list(failed) == ["silu_mul bf16", "moe_route, moe bf16", "moe with adapters bf16", "moe bf16, rounded alike",
                            "moe int4, f32 scales, rounded alike", "moe int4, bf16 scales, rounded alike",
                            "moe with gate of another form, rounded alike"]
    for value in failed.values():
        first, again = value.split("; with each kernel waited for: ")
        assert first.endswith("an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)")
        assert again.startswith("kernel silu_mul_bf16 (") and "cuStreamSynchronize failed" in again
    assert len(passed) == 27
    assert json.loads(path.read_text())["sections"]["ptx"]["passed"]


@pytest.mark.parametrize("settings, why", [
    ({"hang": "ptx_mma"}, "hangs: no result for 5 s"),
    ({"fault": "ptx_mma:0:0"}, "its process ended (signal: 6 (SIGABRT)"),
])
def test_a_check_that_hangs_or_crashes_is_ended_and_costs_no_other(driver, tmp_path, settings, why):
    path = tmp_path / "report.json"
    code, _, _ = selftest("--sections", "ptx", "--report", path, "--check-time", 5, library_path=driver, **settings)
    assert code == 1
    passed, failed = rows_of(path, "ptx")
    assert list(failed) == ["ptx_mma"] and len(passed) == 10
    first, again = failed["ptx_mma"].split("; with each kernel waited for: ")
    assert first.startswith(why) and again.startswith(why)
    assert again.endswith("the last was kernel ptx_mma (1 x 1 x 1 blocks of 128 threads, 32768 bytes of shared memory)")


def test_a_section_ends_in_time(driver, tmp_path):
    path = tmp_path / "report.json"
    code, _, _ = selftest("--sections", "ops", "--report", path, "--check-time", 1, library_path=driver, hang="embed_f32")
    assert code == 1
    section = json.loads(path.read_text())["sections"]["ops"]
    assert section["seconds"] < 30 and "checks were not run within 3 s" in section["rows"][-1]["value"]


def test_a_run_that_is_killed_leaves_no_process(driver, tmp_path):
    command = [BIN, "selftest", "--sections", "ptx", "--check-time", "600"]
    run = subprocess.Popen(command, env=environment(driver, hang="ptx_mma") | {"TMPDIR": str(tmp_path)},
                           stdout=subprocess.DEVNULL)
    children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children")
    until("no process for the checks", lambda: children.read_text())
    child = pathlib.Path(f"/proc/{children.read_text().split()[0]}")
    run.kill()
    run.wait()
    until("its process goes on", lambda: not child.exists())


def test_the_visible_devices_are_those_of_the_environment(driver, tmp_path):
    path = tmp_path / "report.json"
    options = ["--sections", "device", "--report", path, "--device", 1]
    code, _, err = selftest(*options, library_path=driver, devices=4, visible="3,1")
    assert (code, err) == (0, "")
    passed, _ = rows_of(path, "device")
    assert passed["device"].startswith("Rein's CPU emulation 1,")


def test_models_are_those_of_the_cpu_and_rows_are_invariant(driver, tmp_path):
    path, sections = tmp_path / "report.json", ["models", "invariance", "engine", "bench"]
    models = fixtures(tmp_path, "qwen3", "mistral", "kimi_k2_int4", "qwen3_embedding")
    options = ["--report", path, "--sections", ",".join(sections), "--fixtures", models, "--reduced", "--check-time", 120]
    code, out, err = selftest(*options, library_path=driver)
    assert (code, err) == (0, ""), out
    found = json.loads(path.read_text())["sections"]
    assert {name: (section["passed"], section["reduced"]) for name, section in found.items()} == {
        name: (True, True) for name in sections}
    # In f32 and bf16, each also op by op, and with an FP8 cache; quantized ones as they are. Embedding models have a row
    # for each type.
    assert len(found["models"]["rows"]) == 2 + (24 if models == FIXTURES else 5 + 5 + 2)
    assert "s, reduced sets)" in path.with_suffix(".md").read_text()


def test_a_wrong_kernel_fails_the_op_that_uses_it_in_a_model(driver, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mistral").symlink_to(FIXTURES / "mistral")
    options = ["--sections", "models", "--reduced", "--fixtures", tmp_path / "models", "--check-time", 120]
    options += ["--report", tmp_path / "report.json"]
    code, _, err = selftest(*options, library_path=driver, skip="flash_bf16_64,flash_split_bf16_64")
    assert (code, err) == (1, "")
    rows = json.loads((tmp_path / "report.json").read_text())["sections"]["models"]["rows"]
    assert {row["name"]: row["passed"] for row in rows} == {
        "mistral, f32": True, "mistral, f32, op by op": True, "mistral, bf16": False, "mistral, bf16, op by op": False,
        "mistral, FP8 KV cache": True}
    # Ops after it are right on what they get, which is NaN.
    assert "the worst of gqa_attention; gqa_attention, result " in rows[-2]["value"]


def test_the_bundle_has_all_that_a_run_needs(driver, tmp_path):
    if not IS_DEBUG_BUILD:
        pytest.skip("the binary under test is not the debug build")
    archive = tmp_path / "bundle.tar.gz"
    packed = subprocess.run([REPOSITORY / "scripts/selftest-bundle.sh"], capture_output=True, text=True, timeout=600,
                            env={**os.environ, "PROFILE": "dev", "OUT": str(archive)})
    assert packed.returncode == 0, packed.stderr
    subprocess.run(["tar", "xzf", archive, "-C", tmp_path], check=True)
    command = next(line.split() for line in packed.stdout.splitlines() if line.startswith("  ./rein selftest"))
    there = tmp_path / "rein-selftest"
    # The sections are shown by other tests; here one model runs from the archive.
    for model in (there / "models").iterdir():
        if model.name != "mistral":
            shutil.rmtree(model)
    done = subprocess.run([*command, "--sections", "ptx,models", "--reduced", "--check-time", "120"], cwd=there, capture_output=True, text=True,
                          env=environment(driver), timeout=300)
    assert done.returncode == 0 and "mistral, bf16" in done.stdout, done.stdout + done.stderr
    assert json.loads((there / "report.json").read_text())["sections"]["models"]["passed"]
    # The yardstick is there; it needs torch.
    [yardstick] = [line.split() for line in packed.stdout.splitlines() if "--out torch.json" in line]
    assert subprocess.run([*yardstick, "--help"], cwd=there, capture_output=True).returncode == 0


def test_a_run_is_resumed(driver, tmp_path):
    path = tmp_path / "report.json"
    # A call of the driver fails in `device`; `ptx` does not call it.
    sections = ["--sections", "device,ptx"]
    code, out, _ = selftest("--report", path, *sections, library_path=driver, fault="cuGraphLaunch")
    assert code == 1 and "## device: failed" in out and "cuGraphLaunch failed" in out and "## ptx: passed" in out
    code, out, err = selftest("--resume", path, *sections, library_path=driver)
    assert (code, err) == (0, "") and "## device: passed" in out and "ptx: passed before" in out
    assert all(section["passed"] for section in json.loads(path.read_text())["sections"].values())
    path.write_text(path.read_text().replace("Rein's CPU emulation", "another device"))
    code, _, err = selftest("--resume", path, library_path=driver)
    assert code == 1 and "another device" in err


def test_a_fault_of_the_device_names_the_call(driver):
    code, out, _ = selftest("--sections", "ptx", library_path=driver, fault="cuLaunchKernelEx")
    text = "cuLaunchKernelEx failed: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"
    assert code == 1 and text in out


def test_exhausted_device_memory_is_told_in_bytes(driver):
    code, out, _ = selftest("--sections", "ptx", library_path=driver, memory=1000)
    text = "device memory is exhausted: 32768 bytes were asked for, 1000 of 1000 bytes are free"
    assert code == 1 and text in out
