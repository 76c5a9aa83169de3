#!/usr/bin/env bash
# Runs all checks and tests in stages, and prints how long each took: also when one fails.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
# Two files of tests at a time: most of them wait more than they compute. The slowest tests are listed.
pytest=(-m pytest -q -rs -n 2 --dist loadfile --durations=20 --durations-min=1)
table=
report() { printf '\nseconds  stage\n%s' "$table"; }
trap report EXIT

stage() {
    local name=$1 began=$SECONDS status=0
    shift
    "$@" || status=$?
    table+="$(printf '%7d  %s' $((SECONDS - began)) "$name")"
    [ "$status" = 0 ] || table+=" (failed)"
    table+=$'\n'
    return "$status"
}

# Installing waits for the network and compiling for processors: both at once.
compile() {
    scripts/setup.sh test &
    local installs=$! compiled=0
    cargo test --workspace --locked --no-run || compiled=$?
    wait "$installs" && return "$compiled"
}

stage "install and compile" compile
stage "lint, CUDA kernels" make lint cuda
stage "tests in Rust" cargo test --workspace --locked
# The tested binary has a name of its own: tests of packages run cargo, which replaces the one in target/debug.
mkdir -p target/tested && ln -f target/debug/rein target/tested/rein
export REIN_BIN=$PWD/target/tested/rein
stage "tests in Python" "$python" "${pytest[@]}" tests/py
stage "tests of the chart" "$python" "${pytest[@]}" tests/chart
