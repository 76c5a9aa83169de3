"""The packages of `make dist`, made from the debug build. Each is installed into an empty root directory and started there."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from conftest import BIN, IS_DEBUG_BUILD, REPOSITORY, Server
from test_docs import addressed, blocks

# The code of the install page that these tests run.
PAGE = {note.removeprefix("dist: "): code for _, code, note in blocks(REPOSITORY / "docs/start/install.md") if note.startswith("dist:")}
WHEELHOUSE = REPOSITORY / ".tools/wheelhouse"


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    if not IS_DEBUG_BUILD:
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
    parts = ("router", "worker", "controller", "adapter")
    assert (control / "conffiles").read_text().split() == [f"/etc/rein/{name}.toml" for name in ("rein", *parts)]
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", control / script)
    unit = (root / "usr/lib/systemd/system/rein.service").read_text()
    start = next(line.removeprefix("ExecStart=").split() for line in unit.splitlines() if line.startswith("ExecStart="))
    # The unit's command, in the root, with another model and free ports.
    assert start == ["/usr/bin/rein", "--config", "/etc/rein/rein.toml", "serve"]
    assert "demo" in serves_the_demo_model(root / "usr/bin/rein", "--config", str(root / "etc/rein/rein.toml"))
    for part in parts:
        unit = (root / f"usr/lib/systemd/system/rein-{part}.service").read_text()
        assert f"ExecStart=/usr/bin/rein --config /etc/rein/{part}.toml {part}\n" in unit and f"Rein, the {part}" in unit
        # The command reads its file before it checks its options.
        done = subprocess.run([root / "usr/bin/rein", "--config", root / f"etc/rein/{part}.toml", part, "--etcd", "bad"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "--etcd" in done.stderr, (part, done)
    if shutil.which("systemd-analyze"):
        for unit in (root / "usr/lib/systemd/system").iterdir():
            # The command's own path must exist.
            here = tmp_path / unit.name
            here.write_text(unit.read_text().replace("/usr/bin/rein", str(root / "usr/bin/rein")))
            checked = subprocess.run(["systemd-analyze", "verify", "--man=no", here], capture_output=True, text=True)
            assert (checked.returncode, checked.stderr) == (0, ""), checked
    assert "ReinNoGroupServes" in (root / "usr/share/doc/rein/rein-alarms.yaml").read_text()
    for path in ("usr/share/man/man1/rein-serve.1.gz", "usr/share/doc/rein/copyright", "usr/share/doc/rein/THIRD-PARTY-LICENSES.gz"):
        assert (root / path).exists(), path


@pytest.fixture(scope="module")
def installed(packages, tmp_path_factory):
    """A folder in which the page's commands install the wheel and its oldest dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copy(only(packages, "rein-*.whl"), folder)
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    offline = {**os.environ, "PATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELHOUSE)}
    run("bash", "-euo", "pipefail", "-c", PAGE["install the wheel"], cwd=folder, env=offline)
    run("rein-venv/bin/pip", "install", "types-grpcio", "types-protobuf", cwd=folder, env=offline)
    return folder


@pytest.fixture(scope="module")
def server(installed):
    shutil.copytree(REPOSITORY / "models/demo", installed / "demo")
    server = Server(model=installed / "demo", binary=installed / "rein-venv/bin/rein")
    yield server
    server.stop()


def test_the_wheel_has_the_binary_of_the_archive_and_its_licences(packages, installed):
    with tarfile.open(only(packages, "rein-*.tar.gz")) as archive:
        members = {pathlib.PurePath(member.name).name: archive.extractfile(member).read() for member in archive if member.isfile()}
    assert (installed / "rein-venv/bin/rein").read_bytes() == members["rein"]
    licences = only(installed, "rein-venv/lib/python*/site-packages/rein-*.dist-info/licenses")
    for file in ("LICENSE", "THIRD-PARTY-LICENSES"):
        assert (licences / file).read_bytes() == members[file]


def test_the_typed_client_works_with_the_oldest_dependencies(server, installed):
    metadata = only(installed, "rein-venv/lib/python*/site-packages/rein-*.dist-info/METADATA").read_text()
    oldest = re.findall(r"^Requires-Dist: (\w+)>=([\d.]+)", metadata, flags=re.M)
    assert [name for name, _ in oldest] == ["grpcio", "protobuf"]
    versions = run(installed / "rein-venv/bin/pip", "list", "--format=freeze")
    assert all(f"{name}=={version}\n" in versions for name, version in oldest), (oldest, versions)
    output = run(installed / "rein-venv/bin/python", "-c", addressed(PAGE["typed client"], server), cwd=installed)
    assert "get_weather" in output and "Paris" in output


def test_the_typed_client_works_with_the_dependencies_of_the_tests(server, installed, tmp_path):
    run(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", tmp_path, only(installed, "rein-*.whl"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    output = run(sys.executable, "-c", addressed(PAGE["typed client"], server), cwd=installed, env=environment)
    assert "get_weather" in output and "Paris" in output


def test_the_stubs_are_typed(installed):
    def mypy(code):
        (installed / "client.py").write_text(code)
        return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--python-executable", "rein-venv/bin/python", "client.py"],
                              cwd=installed, capture_output=True, text=True)

    done = mypy(PAGE["typed client"])
    assert done.returncode == 0, done.stdout + done.stderr
    for right, wrong, error in [("parameters_json=schema", "parameters_json=1", "arg-type"), (".Chat(request", ".Chat(tool", "arg-type"),
                                ("event.arguments_delta.text", "event.arguments_delta.txt", "attr-defined")]:
        done = mypy(PAGE["typed client"].replace(right, wrong))
        assert done.returncode == 1 and f"[{error}]" in done.stdout, done.stdout + done.stderr
