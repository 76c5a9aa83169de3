"""The packages of `make dist`, made from the debug build: each is installed into an empty root and started from there."""
import os
import pathlib
import subprocess
import sys
import tarfile

import pytest

from conftest import BIN, REPOSITORY, Server


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    if pathlib.Path(BIN).resolve() != (REPOSITORY / "target/debug/rein").resolve():
        pytest.skip("the binary under test is not the debug build")
    out = tmp_path_factory.mktemp("dist")
    run(REPOSITORY / "scripts/dist.sh", env={**os.environ, "PROFILE": "dev", "OUT": str(out)})
    return out


def only(folder, pattern):
    found = list(folder.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def serves_the_demo_model(binary, *options):
    server = Server(*options, binary=binary)
    try:
        return run(sys.executable, "-c", "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read())",
                   server.http + "/v1/models")
    finally:
        server.stop()


def test_the_archive_has_a_stripped_binary_and_its_licences(packages, tmp_path):
    with tarfile.open(only(packages, "rein-*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = only(tmp_path, "rein-*")
    assert (folder / "rein").stat().st_size < pathlib.Path(BIN).stat().st_size
    licences = (folder / "THIRD-PARTY-LICENSES").read_text()
    assert "tokio" in licences and "Permission is hereby granted" in licences and (folder / "LICENSE").exists()
    assert (folder / "man/rein-serve.1").exists() and (folder / "rein.bash").exists()
    assert "demo" in serves_the_demo_model(folder / "rein")


def test_the_debian_package_serves_with_its_example_config(packages, tmp_path):
    package = only(packages, "rein_*.deb")
    fields = run("dpkg-deb", "--field", package)
    assert "Package: rein\n" in fields and "Depends: adduser, libc6 (>= 2." in fields
    root, control = tmp_path / "root", tmp_path / "control"
    run("dpkg-deb", "--extract", package, root)
    run("dpkg-deb", "--control", package, control)
    assert (control / "conffiles").read_text() == "/etc/rein/rein.toml\n"
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", control / script)
    unit = (root / "usr/lib/systemd/system/rein.service").read_text()
    start = next(line.removeprefix("ExecStart=").split() for line in unit.splitlines() if line.startswith("ExecStart="))
    # The unit's command, in the root, with another model and free ports.
    assert start == ["/usr/bin/rein", "--config", "/etc/rein/rein.toml", "serve"]
    assert "demo" in serves_the_demo_model(root / "usr/bin/rein", "--config", str(root / "etc/rein/rein.toml"))
    for path in ("usr/share/man/man1/rein-serve.1.gz", "usr/share/doc/rein/copyright", "usr/share/doc/rein/THIRD-PARTY-LICENSES.gz"):
        assert (root / path).exists(), path
