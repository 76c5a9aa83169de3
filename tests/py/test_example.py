"""The example of a whole cluster runs as its page says: in one shell, in a network of its own, because its ports are fixed."""
import contextlib
import os
import re
import shutil
import signal
import subprocess

import pytest

from conftest import BIN, REPOSITORY
from test_docs import blocks, environment

PAGE = REPOSITORY / "docs/howto/example-cluster.md"
PROMTOOL = shutil.which("promtool") or REPOSITORY / ".tools/kube/promtool"
TIME = 180


def inside(script, folder):
    """Runs a script in a network namespace, and ends all that it started."""
    process = subprocess.Popen(["unshare", "-rn", "bash", "-euo", "pipefail", "-c", f"ip link set lo up\n{script}"], cwd=folder, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        return process.communicate(timeout=TIME)[0], process.returncode
    finally:
        # Nothing is left if all has ended.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_the_whole_cluster_runs(tmp_path):
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/demo").symlink_to(REPOSITORY / "models/demo")
    parts = list(blocks(PAGE))
    script = "\n".join(code for language, code, note in parts if (language, note) == ("sh", "test: example"))
    assert script.count("rein ") > 6
    checks = """
    echo; echo "without a key: $(curl -sS --cacert tls/ca.pem -o /dev/null -w '%{http_code}' https://127.0.0.1:8000/v1/models)"
    echo "without the authority: $(curl -sS https://127.0.0.1:8000/ready 2>&1 || true)"
    echo "without a certificate: $(curl -sS --cacert tls/ca.pem https://127.0.0.1:2379/version 2>&1 || true)"
    for port in 9100 9101 9102; do echo "metrics of $port: $(curl -sS http://127.0.0.1:$port/metrics | grep -c '^rein_')"; done
    kill -9 $(jobs -p)
    """
    output, code = inside(f"{script}\n{checks}", tmp_path)
    assert code == 0, output
    assert output.count('"object":"chat.completion"') == 2, output
    status = output[output.index("GROUP"):output.index("without a key")]
    assert len(re.findall(r"127\.0\.0\.1:800[01]", status)) == 2 and "demo" in status, output
    assert "without a key: 401" in output
    assert re.search(r"without the authority: .*(self.signed|unable to get local issuer|SSL)", output), output
    assert re.search(r"without a certificate: curl: \(\d+\)", output), output
    assert all(int(count) > 3 for count in re.findall(r"metrics of \d+: (\d+)", output)) and output.count("metrics of") == 3, output


@pytest.mark.skipif(not os.path.exists(PROMTOOL), reason="promtool is missing (Debian: apt-get download prometheus; scripts/setup.sh test)")
def test_prometheus_reads_the_scrape_configuration(tmp_path):
    subprocess.run([BIN, "certs", tmp_path / "tls"], check=True, capture_output=True)
    [config] = [code for _, code, note in blocks(PAGE) if note == "test: example prometheus.yml"]
    (tmp_path / "prometheus.yml").write_text(config)
    checked = subprocess.run([PROMTOOL, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
