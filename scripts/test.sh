#!/usr/bin/env bash
# Runs all checks and tests in stages, and prints how long each took: also when one fails.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
# Files of tests that compute: more of them at a time than there are processors would run into each other's time limits.
computing=(agents batteries claude_code closure codex cuda cuda_fast cuda_ranks cuda_selftest dialects dist enforcement hostile)
computing=("${computing[@]/#/tests/py/test_}")
computing=("${computing[@]/%/.py}")
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

# tests NAME COMMAND...: a stage that others do not build on. All of them run, so that one report names all that fails.
failed=0
tests() { stage "$@" || failed=1; }

# pytest FILES_AT_A_TIME ARGUMENT...: and the slowest tests.
pytest() { "$python" -m pytest -q -rs -n "$1" --dist loadfile --durations=20 --durations-min=1 "${@:2}"; }

# One compiler for lints and code: the crates of the workspace are compiled once, their dependencies without lints.
clippy_driver() {
    local driver
    driver=$(rustup which clippy-driver 2>/dev/null || command -v clippy-driver) || return 1
    export RUSTC_WORKSPACE_WRAPPER=$driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
}

# Installing waits for the network, and cargo compiles its last crates one after the other: both at once. The crate that
# embeds the CUDA kernels waits for them (kernels/build.rs). Cargo would compile it and those above it again if a file
# had changed after its build script began, so what is made meanwhile gets the time before.
compile() {
    local lock=$PWD/target/cuda/lock
    mkdir -p target/cuda
    exec 8> "$lock" && touch "$lock"
    flock 8
    {
        local made=0
        { scripts/setup.sh test && scripts/cuda.sh build; } || made=$?
        find target/cuda -maxdepth 1 -type f -newer "$lock" -exec touch -r "$lock" {} +
        exec 8>&-
        [ "$made" = 0 ] && nice scripts/cuda.sh driver
    } &
    local others=$! compiled=0
    # Only those who make the kernels hold the lock.
    exec 8>&-
    REIN_CUDA_LOCK=$lock cargo test --workspace --all-targets --locked --no-run || compiled=$?
    wait "$others" && return "$compiled"
}

# What fails in seconds comes first.
stage "format, modules, protos" make texts
clippy_driver || { echo "test: clippy is missing: rustup component add clippy" >&2; exit 1; }
stage "install, compile with lints, CUDA kernels" compile
tests "tests in Rust" scripts/rust_tests.py
# The tested binary has a name of its own: tests of packages run cargo, which replaces the one in target/debug.
mkdir -p target/tested && ln -f target/debug/rein target/tested/rein
export REIN_BIN=$PWD/target/tested/rein
tests "tests in Python that compute" pytest 2 "${computing[@]}"
tests "tests in Python that wait" pytest 4 tests/py "${computing[@]/#/--ignore=}"
tests "tests of the chart" pytest 4 tests/chart
exit "$failed"
