#!/usr/bin/env bash
# Makes packages of `rein` in target/dist: an archive, a Debian package and a Python wheel.
# PROFILE=dev packages the debug build; OUT names another directory.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-packaged} out=${OUT:-target/dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$out/work
rm -rf "$work"
mkdir -p "$work"

cargo build --locked --profile "$profile" --bin rein
built=target/$([ "$profile" = dev ] && echo debug || echo "$profile")/rein
version=$(cargo pkgid) version=${version##*[@#]}
arch=$(uname -m)

# The files that all packages share.
share=$work/share
mkdir -p "$share"
strip -o "$share/rein" "$built"
python3 scripts/licenses.py > "$share/THIRD-PARTY-LICENSES"
cp LICENSE NOTICE "$share/"
"$share/rein" man "$share/man"
"$share/rein" alarms > "$share/rein-alarms.yaml"
"$share/rein" dashboard > "$share/rein-dashboard.json"
for shell in bash fish zsh; do "$share/rein" completions $shell > "$share/rein.$shell"; done

archive() {
    local name=rein-$version-$arch-linux
    mkdir -p "$work/$name"
    cp -r "$share/." "$work/$name/"
    tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out/$name.tar.gz" "$name"
}

# dpkg-deb comes with Debian. cargo-deb would have to be compiled first.
debian() {
    local dir=$work/deb glibc man part parts='router worker controller adapter'
    glibc=$(objdump -T "$share/rein" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
    install -D -m755 "$share/rein" "$dir/usr/bin/rein"
    install -D -m644 packaging/rein.service "$dir/usr/lib/systemd/system/rein.service"
    install -D -m644 packaging/rein.toml "$dir/etc/rein/rein.toml"
    # The parts of a cluster run as the same service, each with its command and its file.
    for part in $parts; do
        sed -e "s/^Description=.*/Description=Rein, the $part of a cluster/" -e "s/rein-serve(1)/rein-$part(1)/" \
            -e "s#/rein.toml serve#/$part.toml $part#" packaging/rein.service \
            | install -D -m644 /dev/stdin "$dir/usr/lib/systemd/system/rein-$part.service"
        install -D -m644 "packaging/$part.toml" "$dir/etc/rein/$part.toml"
    done
    install -D -m644 -t "$dir/usr/share/doc/rein/compose" packaging/compose/*.yaml
    install -D -m644 -t "$dir/usr/share/doc/rein" "$share"/rein-alarms.yaml "$share"/rein-dashboard.json
    install -D -m644 packaging/debian/copyright "$dir/usr/share/doc/rein/copyright"
    gzip -9n < "$share/THIRD-PARTY-LICENSES" | install -D -m644 /dev/stdin "$dir/usr/share/doc/rein/THIRD-PARTY-LICENSES.gz"
    for man in "$share"/man/*.1; do
        gzip -9n < "$man" | install -D -m644 /dev/stdin "$dir/usr/share/man/man1/$(basename "$man").gz"
    done
    install -D -m644 "$share/rein.bash" "$dir/usr/share/bash-completion/completions/rein"
    install -D -m644 "$share/rein.fish" "$dir/usr/share/fish/vendor_completions.d/rein.fish"
    install -D -m644 "$share/rein.zsh" "$dir/usr/share/zsh/vendor-completions/_rein"
    install -D -m755 -t "$dir/DEBIAN" packaging/debian/{postinst,prerm,postrm}
    printf '/etc/rein/%s.toml\n' rein $parts > "$dir/DEBIAN/conffiles"
    cat > "$dir/DEBIAN/control" <<CONTROL
Package: rein
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: the authors of Rein <rein@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$dir" | cut -f1)
Depends: adduser, libc6 (>= ${glibc#GLIBC_}), libgcc-s1
Section: net
Priority: optional
Description: server of language models, alone or as a cluster
 Rein serves language models over an OpenAI-compatible HTTP API and gRPC. Tool calls always satisfy the schemas of their
 tools. The service rein.service serves the model that /etc/rein/rein.toml names; rein-router, rein-worker, rein-controller
 and rein-adapter are the parts of a cluster. None is started on installation.
CONTROL
    dpkg-deb --root-owner-group --build "$dir" "$out/rein_${version}_$(dpkg --print-architecture).deb" >/dev/null
}

# The wheel has the binary and typed Python stubs of the public protos. maturin packages what cargo built above. It
# would compile `rein` again to strip it, so the shared binary replaces the unstripped one.
wheel() {
    local dir=$work/wheel tools=$PWD/.tools/wheel/bin stubs grpcio protobuf
    stubs=$dir/python/rein
    mkdir -p "$stubs/v1"
    touch "$stubs/__init__.py" "$stubs/v1/__init__.py" "$stubs/py.typed"
    PATH=$tools:$PATH python -m grpc_tools.protoc -I proto/proto --python_out="$dir/python" --grpc_python_out="$dir/python" \
        --mypy_out=quiet:"$dir/python" --mypy_grpc_out=quiet:"$dir/python" proto/proto/rein/v1/*.proto
    # The generated code refuses older versions. protobuf supports the code of its own and of the previous major
    # version.
    grpcio=$(sed -n "s/^GRPC_GENERATED_VERSION = '\(.*\)'/\1/p" "$stubs"/v1/*_pb2_grpc.py | sort -u)
    protobuf=$(sed -n 's/^# Protobuf Python Version: //p' "$stubs"/v1/*_pb2.py | sort -u)
    cp LICENSE "$share/THIRD-PARTY-LICENSES" "$dir/"
    cat > "$dir/pyproject.toml" <<PYPROJECT
[project]
name = "rein"
dynamic = ["version"]
description = "Model server for mixture-of-experts language models, with typed stubs of its gRPC API"
license = "Apache-2.0"
license-files = ["LICENSE", "THIRD-PARTY-LICENSES"]
requires-python = ">=3.10"
dependencies = ["grpcio>=$grpcio", "protobuf>=$protobuf,<$((${protobuf%%.*} + 2))"]

[build-system]
requires = ["maturin>=1.16,<2"]
build-backend = "maturin"

[tool.maturin]
bindings = "bin"
manifest-path = "$PWD/Cargo.toml"
module-name = "rein"
python-source = "python"
# It would list the libraries of all platforms. THIRD-PARTY-LICENSES lists those in the binary.
sbom = { rust = false }
PYPROJECT
    (cd "$dir" && "$tools/maturin" build -q --locked --profile "$profile" --compression-method stored -o unstripped)
    "$tools/wheel" unpack -d "$dir/unpacked" "$dir"/unstripped/rein-*.whl >/dev/null
    cp "$share/rein" "$dir"/unpacked/rein-*/rein-*.data/scripts/rein
    "$tools/wheel" pack -d "$out" "$dir"/unpacked/rein-* >/dev/null
}

archive
debian
wheel
rm -rf "$work"
ls -l "$built" "$out" | awk 'NF > 5 { printf "dist: %7.1f MB  %s\n", $5 / 1e6, $9 }'
