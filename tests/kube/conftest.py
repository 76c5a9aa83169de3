"""One control plane for all tests."""
import pytest

from control_plane import PROGRAMS, ControlPlane
from hollow import HollowNodes


def pytest_sessionstart(session):
    if not (PROGRAMS / "kube-apiserver").exists():
        pytest.exit("REIN_KUBE must name the directory of kube-apiserver and others: run make test-kube", 1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    made = ControlPlane(tmp_path_factory.mktemp("kube"))
    try:
        made.add_definitions()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def nodes(plane):
    made = HollowNodes(plane)
    yield made
    made.stop()
