#!/usr/bin/env python3
"""Runs the Rust tests of the workspace, several test binaries at a time, and prints how long each took.

    scripts/rust_tests.py

Binaries are those that `cargo test --workspace --all-targets` builds, without benches and examples; each runs in its package's
directory, as cargo would run it. Most of them wait part of the time, and cargo would run one after the other.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ["cargo", "test", "--workspace", "--all-targets", "--locked", "--no-run", "--message-format", "json-render-diagnostics"]
# The longest ones first, so that none of them is alone at the end.
LONGEST = ["rein_grammar", "it", "rein_control_plane", "rein_router", "rein_text"]


def binaries():
    built = subprocess.run(BUILD, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    for line in built.stdout.splitlines():
        made = json.loads(line)
        if made.get("executable") and made["profile"]["test"] and set(made["target"]["kind"]) & {"lib", "bin", "test"}:
            yield made["target"]["name"], made["executable"], pathlib.Path(made["manifest_path"]).parent


def run(binary):
    name, executable, directory = binary
    began = time.monotonic()
    done = subprocess.run([executable], cwd=directory, capture_output=True, text=True, errors="replace", check=False,
                          env={**os.environ, "CARGO_MANIFEST_DIR": str(directory)})
    return name, done, time.monotonic() - began


def main():
    found = sorted(binaries(), key=lambda binary: LONGEST.index(binary[0]) if binary[0] in LONGEST else len(LONGEST))
    failed = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for future in concurrent.futures.as_completed([pool.submit(run, binary) for binary in found]):
            name, done, seconds = future.result()
            result = next((line for line in done.stdout.splitlines() if line.startswith("test result: ")), f"exit status {done.returncode}")
            print(f"{seconds:6.1f} s  {name}: {result.removeprefix('test result: ')}", flush=True)
            if done.returncode:
                failed.append(name)
                print(done.stdout, done.stderr, sep="\n", flush=True)
    assert len(found) > 8, f"only {len(found)} test binaries"
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
