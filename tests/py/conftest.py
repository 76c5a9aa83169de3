"""A served demo model for the client tests. REIN_BIN names the binary (make test sets it)."""
import os
import pathlib
import signal
import subprocess

import pytest

# Steps of all sizes take minutes on the emulated GPU; test_cuda.py tests them with small limits.
os.environ.setdefault("REIN_NO_PREPARE", "true")
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = os.path.abspath(os.environ.get("REIN_BIN", REPOSITORY / "target/debug/rein"))
# Packages of the debug build can be made.
IS_DEBUG_BUILD = pathlib.Path(BIN).resolve().parent in (REPOSITORY / "target/debug", REPOSITORY / "target/tested")


class Server:
    def __init__(self, *extra, model=REPOSITORY / "models/demo", http="127.0.0.1:0", grpc="127.0.0.1:0", binary=BIN, command="serve"):
        command = [str(binary), command, "--model", str(model), "--http", http, "--grpc", grpc, *extra]
        environment = {**os.environ, "REIN_LOG": "warn"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.http = self._announced("rein: http listening on ")
        self.grpc = self._announced("rein: grpc listening on ")

    def _announced(self, prefix):
        line = self.process.stdout.readline().strip()
        assert line.startswith(prefix), f"{prefix!r} expected, got {line!r}"
        return line.removeprefix(prefix)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="session")
def demo():
    """The demo model on the CPU engine."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def sim():
    """The sim engine: no weights, 2 ms per step."""
    server = Server("--engine", "sim", "--sim-step-us", "2000")
    yield server
    server.stop()
