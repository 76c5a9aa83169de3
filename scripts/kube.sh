#!/usr/bin/env bash
# Builds what tests/kube needs, and prints the directory of the programs: the control plane of Kubernetes, its etcd, and
# the LeaderWorkerSet controller. They are kept outside of the tree, in $XDG_CACHE_HOME/rein-kube: a build takes long,
# and changes only with the versions in tests/kube.
set -euo pipefail
cd "$(dirname "$0")/../tests/kube"
fail() { echo "kube: $*" >&2; exit 1; }
command -v go >/dev/null || fail "Go is missing: install 1.26 or later (https://go.dev/dl)"

version=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\)$|\1|p' go.mod)
[ -n "$version" ] || fail "go.mod does not name a version of k8s.io/kubernetes"
directory=${XDG_CACHE_HOME:-$HOME/.cache}/rein-kube/$version-$(cat go.mod go.sum crds.txt | cksum | cut -d' ' -f1)
if [ ! -x "$directory/lws" ]; then
    echo "kube: building Kubernetes $version and etcd into $directory" >&2
    rm -rf "$directory.new"
    mkdir -p "$directory.new"
    IFS=. read -r major minor _ <<< "${version#v}"
    flags=
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags="$flags -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"
    done
    # One package at a time, so that other work on this machine goes on.
    nice -n 15 go build -p "${JOBS:-1}" -trimpath -ldflags "-s -w$flags" -o "$directory.new/" \
        go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager k8s.io/kubernetes/cmd/kube-scheduler >&2
    mv "$directory.new/server" "$directory.new/etcd"
    # It is a module of its own, for an older Kubernetes, with the checksums of its own go.sum.
    lws=$(sed -n 's|^\(sigs.k8s.io/lws\) \(v[0-9.]*\) .*|\1@\2|p' crds.txt)
    source=$(go mod download -json "$lws" | sed -n 's|.*"Dir": "\(.*\)",|\1|p')
    (cd "$source" && nice -n 15 go build -p "${JOBS:-1}" -trimpath -ldflags '-s -w' -o "$directory.new/lws" ./cmd) >&2
    rm -rf "$directory"
    mv "$directory.new" "$directory"
fi
echo "$directory"
