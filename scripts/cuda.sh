#!/usr/bin/env bash
# Compiles the CUDA kernels, without a GPU.
#   scripts/cuda.sh build    compiles kernels/cuda for every architecture into target/cuda/rein.fatbin, the fast kernels
#                            into cubins beside it; fails if registers, spills or shared memory of a kernel differ from
#                            kernels/cuda/report.txt and kernels/cuda/fast/report.txt
#   scripts/cuda.sh report   the same, and writes the reports
#   scripts/cuda.sh test     compiles the kernels with g++ and tests them on the CPU
#   scripts/cuda.sh driver   makes target/cuda/driver/libcuda.so.1, a driver that runs the kernels on the CPU, and
#                            target/cuda/nccl/libnccl.so.2 and target/cuda/nvml/libnvidia-ml.so.1 for it
# NVCC names another compiler than the one that `scripts/setup.sh cuda` installs, REIN_CUDA_HEADERS another directory
# with the headers of the fast kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?expected build, report, test or driver}
out=target/cuda
headers=${REIN_CUDA_HEADERS:-.tools/cuda-headers}
mkdir -p "$out"

fail() { echo "cuda: $*" >&2; exit 1; }

# host_compile OUTPUT SOURCE FLAG...: the kernels for the CPU, as one translation unit: the headers are parsed once.
host_compile() {
    command -v g++ >/dev/null || fail "g++ is missing: install it (Debian: sudo apt-get install g++)"
    g++ -std=c++17 -O2 -g1 -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-psabi -DREIN_HOST "${@:3}" -o "$1" -x c++ "$2"
}

# once NAME COMMAND...: not again while the inputs are the same. Tests run in parallel, and processes may have the files
# open.
once() {
    exec 9> "$out/$1.lock"
    flock 9
    if [ "$(cat "$out/$1.stamp" 2>/dev/null)" != "$(inputs)" ]; then
        "${@:2}"
        inputs > "$out/$1.stamp"
    fi
    flock -u 9
}
make_host_tests() { host_compile "$out/host-tests" kernels/cuda/tests/main.cpp; }
host_tests() { once host-tests make_host_tests; }

inputs() { { find kernels/cuda scripts/cuda.sh scripts/fast_kernels.py -type f | sort | xargs cat; ls -d "$headers"; } 2>/dev/null | cksum; }

case $what in
    test)
        host_tests
        exec "$out/host-tests"
        ;;
    driver)
        library() {
            mkdir -p "$out/$1"
            host_compile "$out/$1/new" "kernels/cuda/tests/$3" -fPIC -shared -fvisibility=hidden "${@:4}"
            mv "$out/$1/new" "$out/$1/$2"
        }
        # All kernels, as the preprocessor leaves them.
        list_kernels() {
            g++ -std=c++17 -DREIN_HOST -E -P -x c++ kernels/cuda/kernels.cu | tr '\n' ' ' \
                | grep -oP 'extern "C"[^;{]*?\b\K\w+(?=\(const \w+ a\))' | sed 's/.*/KERNEL(&)/' > "$out/driver/kernels.inc"
            [ -s "$out/driver/kernels.inc" ] || fail "no kernel was found in kernels/cuda/kernels.cu"
        }
        libraries() {
            mkdir -p "$out/driver"
            list_kernels
            library driver libcuda.so.1 driver.cpp -I "$out/driver"
            # Beside the driver, not in its directory: a test chooses what there is.
            library nvml libnvidia-ml.so.1 nvml.cpp
            library nccl libnccl.so.2 nccl.cpp -ldl -lrt
        }
        once driver libraries
        exit
        ;;
    build | report) ;;
    *) fail "expected build, report, test or driver, got $what" ;;
esac

# Nothing to do if no input has changed since the last build.
[ "$what" = build ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$(inputs)" ] && exit 0
rm -f "$out/stamp"

nvcc=${NVCC:-$(echo .venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)}
[ -x "$nvcc" ] || fail "nvcc is missing: run scripts/setup.sh cuda, or set NVCC"

# The PTX is for later devices: their driver compiles it when it loads the kernels, as ptxas does here.
"$nvcc" -std=c++17 -O3 -arch=compute_80 -ptx -o "$out/rein.ptx" kernels/cuda/kernels.cu
for later in sm_103 sm_121; do
    "$(dirname "$nvcc")/ptxas" -arch="$later" -o "$out/later.cubin" "$out/rein.ptx" || fail "$later cannot run the PTX"
done
"$nvcc" -std=c++17 -O3 --Werror all-warnings -Xptxas=-v,--warning-as-error \
    -gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90a,code=sm_90a \
    -gencode=arch=compute_100a,code=sm_100a -fatbin -o "$out/rein.fatbin" kernels/cuda/kernels.cu 2> "$out/ptxas.txt" \
    || { cat "$out/ptxas.txt" >&2; fail "the kernels do not compile"; }
# The fast kernels, for sm_90a, from the headers that `scripts/setup.sh cuda` installs.
fast() {
    local library=$1 flags=(-std=c++20 -O3 -arch=sm_90a --expt-relaxed-constexpr)
    # What the libraries' code is warned for.
    flags+=(-diag-suppress 39,161,174,177,186,946)
    shift
    "$nvcc" "${flags[@]}" "$@" -ptx -o "$out/$library.raw.ptx" "kernels/cuda/fast/$library.cu" \
        || fail "kernels/cuda/fast/$library.cu does not compile"
    python3 scripts/fast_kernels.py rename "$out/$library.raw.ptx" "$out/$library.ptx"
    "$(dirname "$nvcc")/ptxas" -arch=sm_90a -v --warning-as-error -o "$out/$library.cubin" "$out/$library.ptx" \
        2> "$out/$library.txt" || { cat "$out/$library.txt" >&2; fail "kernels/cuda/fast/$library.cu does not compile"; }
    python3 scripts/fast_kernels.py report "$out/$library.ptx" "$out/$library.txt" >> "$out/fast_report.txt"
}
rm -f "$out"/{deep_gemm,flashinfer,humming}.cubin
if [ -d "$headers" ]; then
    echo "kernel, registers, spills, stack, shared memory, threads, offset:bytes of each parameter" > "$out/fast_report.txt"
    data=$headers/flashinfer/data
    fast deep_gemm -I "$headers/deep_gemm/include"
    fast flashinfer -use_fast_math -I "$data/include" -I "$data/cutlass/include" -I "$data/cccl/libcudacxx/include" \
        -I "$data/cccl/cub" -I "$data/cccl/thrust"
    fast humming -I "$headers/humming/include" -I "$headers/deep_gemm/include"
    if [ "$what" = report ]; then cp "$out/fast_report.txt" kernels/cuda/fast/report.txt; fi
    diff -u kernels/cuda/fast/report.txt "$out/fast_report.txt" \
        || fail "a fast kernel has changed: find out why, then run scripts/cuda.sh report"
else
    echo "cuda: without fast kernels for Hopper: $headers is missing (run scripts/setup.sh cuda)"
fi
{
    printf "%-28s %-8s %9s %6s %6s %6s\n" kernel arch registers spills stack shared
    awk -F"[ ,']+" '
        /Compiling entry function/ { kernel = $7; arch = $9 }
        /bytes stack frame/ { stack = $2; spills = $6 + $10 }
        /Used [0-9]+ registers/ {
            shared = 0
            for (i = 3; i <= NF; i++) if ($i == "smem") shared = $(i - 2)
            for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1)
            printf "%-28s %-8s %9d %6d %6d %6d\n", kernel, arch, registers, spills, stack, shared
        }' "$out/ptxas.txt" | sort
} > "$out/report.txt"
host_tests
"$out/host-tests" --expected "$out/ptx_expected.txt"
if [ "$what" = report ]; then cp "$out/report.txt" kernels/cuda/report.txt; fi
diff -u kernels/cuda/report.txt "$out/report.txt" \
    || fail "registers, spills or shared memory have changed: find out why, then run scripts/cuda.sh report"
inputs > "$out/stamp"
