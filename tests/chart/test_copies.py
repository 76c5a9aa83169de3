"""The init container that copies weights: a restart copies nothing, and a cut copy is never served."""
import os
import shutil
import signal
import subprocess
import time

import pytest

from chart import containers

SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]


class Pod:
    """Runs the command of the rendered init container on this machine, below another directory."""

    def __init__(self, volume, name, shell):
        init = next(one for _, _, one in containers("copies") if one["name"] == "weights")
        env = {one["name"]: one["value"].replace("$(POD_NAME)", name).replace("/weights", str(volume)) for one in init["env"] if "value" in one}
        self.place, self.incoming = env["REIN_WEIGHTS_PLACE"], env["REIN_WEIGHTS"]
        self.env = {**os.environ, **env}
        assert init["command"][:2] == ["/bin/sh", "-c"] and init["command"][3] == "weights"
        self.start = [*shell, "-c", init["command"][2], "weights"]

    def run(self, command):
        return subprocess.Popen([*self.start, "sh", "-c", command], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request):
    return request.param


COPY = 'echo run >> "$REIN_WEIGHTS_PLACE.runs"; echo config > "$REIN_WEIGHTS/config.json"'


def runs(pod):
    return open(pod.place + ".runs").read().count("run")


def test_a_restart_copies_nothing(tmp_path, shell):
    pod = Pod(tmp_path, "rein-demo-0", shell)
    for _ in range(2):
        process = pod.run(COPY)
        output = process.communicate()[0]
        assert process.returncode == 0, output
    assert "nothing to copy" in output and runs(pod) == 1
    assert sorted(os.listdir(pod.place)) == [".complete", "config.json"] and not os.path.exists(pod.incoming)


def test_a_failed_copy_fails_the_pod(tmp_path, shell):
    pod = Pod(tmp_path, "rein-demo-0", shell)
    process = pod.run(f"{COPY}; exit 3")
    process.communicate()
    assert process.returncode == 3 and not os.path.exists(pod.place)


def test_a_cut_copy_is_never_in_place(tmp_path, shell):
    pod = Pod(tmp_path, "rein-demo-0", shell)
    process = pod.run(f"{COPY}; sleep 60")
    while not os.path.exists(f"{pod.incoming}/config.json"):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not os.path.exists(pod.place)
    again = pod.run(f"test ! -e $REIN_WEIGHTS/config.json; {COPY}")
    assert again.communicate() and again.returncode == 0
    assert runs(pod) == 2 and sorted(os.listdir(pod.place)) == [".complete", "config.json"]


def test_two_pods_of_a_node_share_a_directory(tmp_path, shell):
    pods = [Pod(tmp_path, f"rein-demo-{number}", shell) for number in range(2)]
    processes = [pod.run(f"{COPY}; sleep 0.3") for pod in pods]
    for process in processes:
        output = process.communicate()[0]
        assert process.returncode == 0, output
    assert sorted(os.listdir(pods[0].place)) == [".complete", "config.json"]
    assert sorted(name for name in os.listdir(tmp_path)) == ["r1", "r1.runs"]


def test_a_directory_of_somebody_else_is_not_touched(tmp_path, shell):
    pod = Pod(tmp_path, "rein-demo-0", shell)
    os.mkdir(pod.place)
    open(f"{pod.place}/config.json", "w").close()
    process = pod.run(COPY)
    output = process.communicate()[0]
    assert process.returncode == 1 and "delete it" in output and os.listdir(pod.place) == ["config.json"]
