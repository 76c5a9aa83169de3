"""Rein's products of 512 rows with a bf16 weight of 2,048 x 2,048 on the CPU beside PyTorch's, in turn, in GFLOPS.

cargo build --release -p rein-kernels --example ops; python benches/products.py [THREADS]
"""
import re
import statistics
import subprocess
import sys
import time

import torch

ROUNDS = 3
ROWS, SIZE = 512, 2048


def of_torch(threads):
    torch.set_num_threads(threads)
    x, weight = torch.randn(ROWS, SIZE).bfloat16(), torch.randn(SIZE, SIZE).bfloat16()
    times = []
    end = time.monotonic() + 2
    while time.monotonic() < end:
        start = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        times.append(time.perf_counter() - start)
    return 2 * ROWS * SIZE * SIZE / statistics.median(times) / 1e9


def of_rein(threads):
    command = ["target/release/examples/ops", str(threads), "products"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(out.splitlines()[0])
    return {name: float(rate) for name, rate in re.findall(rf"^(\S+) {ROWS} x .*: (\d+) GFLOPS$", out, re.M)}


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    for _ in range(ROUNDS):
        torch_rate, rein = of_torch(threads), of_rein(threads)
        print(f"PyTorch bf16 {torch_rate:.0f}, Rein", ", ".join(f"{name} {rate:.0f}" for name, rate in rein.items()))
        print(f"bf16: {rein['Bf16'] / torch_rate:.2f} of PyTorch's rate")


if __name__ == "__main__":
    main()
