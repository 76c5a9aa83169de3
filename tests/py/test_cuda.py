"""The CUDA kernels on the CPU: g++ compiles them with kernels/cuda/host.h, and one binary compares them with plain loops.

This is a test in Python, so that a change of a kernel compiles no Rust.
"""
import subprocess

from conftest import REPOSITORY


def test_kernels_on_the_cpu():
    done = subprocess.run([REPOSITORY / "scripts/cuda.sh", "test"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
