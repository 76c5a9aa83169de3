"""CUDA without a GPU: the kernels on the CPU, and `rein selftest` over a driver that runs them there.

The kernels' own tests are one C++ binary. They are started from Python, so that a change of a kernel compiles no Rust.
"""
import json
import os
import subprocess

import pytest

from conftest import BIN, REPOSITORY


def script(what):
    done = subprocess.run([REPOSITORY / "scripts/cuda.sh", what], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernels_on_the_cpu():
    script("test")


@pytest.fixture(scope="session")
def driver():
    """The directory of the driver's libcuda.so.1."""
    script("driver")
    return REPOSITORY / "target/cuda/driver"


def test_models_of_the_backend(driver, tmp_path):
    """The unit tests that need a driver: without one they do nothing."""
    trace = tmp_path / "trace"
    command = ["cargo", "test", "--locked", "-p", "rein-kernels", "--features", "cuda", "--lib", "cuda::backend"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "REIN_FAKE_CUDA_TRACE": str(trace)}
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0 and "test result: ok" in done.stdout, done.stdout + done.stderr
    assert "cuGraphLaunch" in trace.read_text()


def selftest(*options, library_path, **settings):
    """Exit code, standard output and standard error. Settings are REIN_FAKE_CUDA_*."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library_path)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment |= {f"REIN_FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
    done = subprocess.run([BIN, "selftest", "--engine", "cuda", *map(str, options)], capture_output=True, text=True,
                          env=environment, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("options, settings, message", [
    ([], {"version": 12040},
     "the NVIDIA driver supports CUDA 12.4, expected 13.0 or later: install driver 580 or later"),
    ([], {"devices": 0}, "no CUDA device: the driver reports none"),
    (["--device", 3], {}, "device 3 does not exist: the driver reports device 0 only"),
    (["--device", 2], {"devices": 2}, "device 2 does not exist: the driver reports devices 0 to 1"),
    ([], {"capability": 75}, "device 0 (Rein's CPU emulation) has compute capability 7.5, expected 8.0 or later"),
])
def test_a_device_that_cannot_be_used_is_a_clear_error(driver, options, settings, message):
    code, out, err = selftest(*options, library_path=driver, **settings)
    assert (code, out, err) == (1, "", f"rein: {message}\n")


def test_without_a_driver(tmp_path):
    code, out, err = selftest(library_path=tmp_path)
    if "no CUDA driver was found" not in err:
        pytest.skip("this machine has a CUDA driver")
    assert (code, out) == (1, "") and "libcuda.so.1" in err and "580" in err


@pytest.mark.parametrize("capability, skipped", [(90, []), (100, ["ptx_wgmma_128", "ptx_wgmma_64"]), (
    80, ["ptx_bulk_copy", "ptx_tensor_copy", "ptx_wgmma_128", "ptx_wgmma_64"])])
def test_device_and_instructions(driver, tmp_path, capability, skipped):
    path = tmp_path / "report.json"
    code, out, err = selftest("--sections", "device,ptx", "--report", path, library_path=driver, capability=capability)
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
    wrong = "silu_mul_f32,linear_fp8,attention_bf16,draw_tokens"
    code, _, err = selftest("--sections", "ops", "--report", path, library_path=driver, skip=wrong)
    assert (code, err) == (1, "")
    rows = json.loads(path.read_text())["sections"]["ops"]["rows"]
    assert [row["name"] for row in rows if not row["passed"]] == [
        "silu_mul f32", "moe_route, moe f32", "draw f32", "linear FP8", "gqa_attention bf16", "mla_attention bf16",
        "moe Fp8, rounded alike", "draw bf16"]


def test_a_run_is_resumed(driver, tmp_path):
    path = tmp_path / "report.json"
    # A call of the driver fails in `device`; `ptx` does not call it.
    sections = ["--sections", "device,ptx"]
    code, out, _ = selftest(*sections, "--report", path, library_path=driver, fault="cuGraphLaunch")
    assert code == 1 and "## device: failed" in out and "cuGraphLaunch failed" in out and "## ptx: passed" in out
    code, out, err = selftest(*sections, "--resume", path, library_path=driver)
    assert (code, err) == (0, "") and "## device: passed" in out and "ptx: passed before" in out
    assert all(section["passed"] for section in json.loads(path.read_text())["sections"].values())
    path.write_text(path.read_text().replace("Rein's CPU emulation", "another device"))
    code, _, err = selftest("--resume", path, library_path=driver)
    assert code == 1 and "another device" in err


def test_a_fault_of_the_device_names_the_call(driver):
    code, out, _ = selftest("--sections", "ptx", library_path=driver, fault="cuLaunchKernel")
    text = "cuLaunchKernel failed: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"
    assert code == 1 and text in out


def test_exhausted_device_memory_is_told_in_bytes(driver):
    code, out, _ = selftest("--sections", "ptx", library_path=driver, memory=1000)
    text = "device memory is exhausted: 32768 bytes were asked for, 1000 of 1000 bytes are free"
    assert code == 1 and text in out
