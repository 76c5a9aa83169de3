"""The engines, started once, and a checkpoint for them."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "py"))

import checkpoint  # noqa: E402
from fleet import Fleet  # noqa: E402
from processes import ENGINES, Adapter, Router, start_llama, start_sglang, start_vllm  # noqa: E402


def pytest_sessionstart(session):
    if not ENGINES.exists():
        pytest.exit("REIN_ENGINES_DIR must name the directory of the engines: run make engines", 1)


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def model(directory):
    """The checkpoint's directory and its GGUF file."""
    return checkpoint.write(directory)


@pytest.fixture(scope="session")
def etcd(directory):
    fleet = Fleet(directory, workers=0, group_size=1, routers=0)
    yield fleet.etcd_url
    fleet.close()


@pytest.fixture(scope="session")
def vllm(directory, model):
    process = start_vllm(directory, model[0])
    yield process.wait()
    process.stop()


@pytest.fixture(scope="session")
def sglang(directory, model):
    process = start_sglang(directory, model[0])
    yield process.wait()
    process.stop()


@pytest.fixture(scope="session")
def llama(directory, model):
    process = start_llama(directory, model[1])
    yield process.wait()
    process.stop()


@pytest.fixture(scope="session", params=["vllm", "sglang", "llama-server"])
def engine(request):
    """An engine's kind and its process."""
    return request.param, request.getfixturevalue({"llama-server": "llama"}.get(request.param, request.param))


@pytest.fixture(scope="session")
def adapter(directory, model, etcd, engine):
    started = Adapter(directory, model[0], *engine, etcd)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def router(directory, model, engine):
    started = Router(directory, model[0], [engine], "--format", "hermes")
    yield started
    started.stop()
