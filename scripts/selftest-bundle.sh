#!/usr/bin/env bash
# Packs what `rein selftest` needs on a machine with a GPU and without Rust: the stripped binary, which contains the
# CUDA kernels, the small models, and the yardstick in torch. Prints the commands to run there.
# PROFILE=dev packs the debug build; OUT names another archive than target/selftest.tar.gz.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-release} out=${OUT:-target/selftest.tar.gz}
fail() { echo "selftest-bundle: $*" >&2; exit 1; }

[ -s target/cuda/rein.fatbin ] || fail "target/cuda/rein.fatbin is missing: run make cuda"
cargo build --locked --profile "$profile" --bin rein
built=target/$([ "$profile" = dev ] && echo debug || echo "$profile")/rein

work=$(mktemp -d "${TMPDIR:-/tmp}/rein-selftest.XXXXXX")
trap 'rm -rf "$work"' EXIT
dir=$work/rein-selftest
mkdir -p "$dir/models"
strip -o "$dir/rein" "$built"
cp -r tests/fixtures/models/. "$dir/models/"
mkdir "$dir/models/demo"
# The demo model also answers requests there.
cp models/demo/*.json models/demo/*.jinja models/demo/*.safetensors "$dir/models/demo/"
cp benches/k2_slice.py "$dir/"
mkdir -p "$(dirname "$out")"
tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out" rein-selftest

# As much as can be carried to such a machine at once.
limit=$((64 << 20)) size=$(stat -c %s "$out")
[ "$size" -le "$limit" ] || fail "$out has $size bytes, more than $limit"
glibc=$(objdump -T "$dir/rein" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
cat <<END
$out: $((size >> 20)) MiB. On the machine with the GPU, which needs ${glibc/_/ } and the NVIDIA driver 580 or later:

  tar xzf $(basename "$out") && cd rein-selftest
  ./rein selftest --engine cuda --fixtures models --report report.json

A run that is cut off continues with --resume report.json in place of --report. The fast kernels beside torch, for
scripts/gpu_figures.py:

  ./rein selftest --engine cuda --fixtures models --sections device,fast,slice --report fast.json
  python3 k2_slice.py --out torch.json

To serve the demo model:

  ./rein serve --engine cuda --model models/demo
END
