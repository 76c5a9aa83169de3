"""Prints the licences of the libraries that the binary contains, for its packages.

The list comes from `cargo metadata`: every crate from which `rein` is built, without those that only tests use. A crate
whose licence is not in ALLOWED is an error. This script does not judge licence texts."""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CDLA-Permissive-2.0", "ISC", "MIT", "MIT-0", "Unicode-3.0", "Unlicense", "Zlib",
}
FILES = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)


def main():
    metadata = json.loads(subprocess.run(
        ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={host()}"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    crates = [packages[id] for id in linked(metadata) if packages[id]["source"]]
    crates.sort(key=lambda crate: (crate["name"], crate["version"]))
    refused = [f"{c['name']} {c['version']}: {c['license']}" for c in crates if not is_allowed(c["license"] or "")]
    if refused:
        sys.exit("licences that are not in ALLOWED:\n  " + "\n  ".join(refused))
    print(f"The binary `rein` contains {len(crates)} libraries. Each is listed with its licence; equal texts are printed once.\n")
    texts = {}
    for crate in crates:
        print(f"{crate['name']} {crate['version']}: {crate['license']}  {crate['repository'] or ''}".rstrip())
        for file in license_files(crate):
            texts.setdefault(file.read_text(errors="replace").strip(), []).append(f"{crate['name']} {crate['version']}")
    # What CUDA kernels are compiled from: Apache-2.0, whose text is that of many crates, and BSD-3-Clause.
    texts.setdefault((ROOT / "NOTICE").read_text().strip(), []).append("CUDA kernels")
    for text, users in texts.items():
        print(f"\n{'=' * 100}\n{', '.join(users)}\n{'-' * 100}\n{text}")


def host():
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return re.search(r"^host: (.+)$", version, re.MULTILINE)[1]


def linked(metadata):
    """The ids of the packages that the root package needs, without development and build dependencies."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, open_ids = set(), [metadata["resolve"]["root"]]
    while open_ids:
        package = open_ids.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                open_ids.append(dependency["pkg"])
    return found


def is_allowed(expression):
    """Whether an SPDX expression can be met with allowed licences. `/` is an old way to write OR."""
    alternatives = re.split(r"\s+OR\s+|/", expression)
    return any(all(part.strip("() ") in ALLOWED for part in re.split(r"\s+AND\s+", one)) for one in alternatives)


def license_files(crate):
    directory = pathlib.Path(crate["manifest_path"]).parent
    return sorted(path for path in directory.iterdir() if path.is_file() and FILES.match(path.name))


if __name__ == "__main__":
    main()
