"""`rein verify URL [URL]`: the proof in one command, without files."""
import json
import re
import subprocess

import pytest

from conftest import BIN, Server


@pytest.fixture(scope="module")
def unenforced():
    server = Server("--enforcement", "off")
    yield server
    server.stop()


def verify(folder, *arguments):
    return subprocess.run([BIN, "verify", *arguments], cwd=folder, capture_output=True, text=True, timeout=300)


def test_one_endpoint_is_verified_without_files(demo, tmp_path):
    run = verify(tmp_path, demo.http, "--limit", "24", "--stream", "only")
    assert run.returncode == 0, run.stderr
    [out] = tmp_path.glob("rein-verify-2*")
    assert len((out / "samples.jsonl").read_text().splitlines()) == 24
    [directory] = [path for path in out.iterdir() if path.is_dir()]
    assert re.search(r"schema accuracy +100\.00 %", run.stdout) and str(directory.relative_to(tmp_path) / "report.html") in run.stdout
    assert (directory / "report.html").exists()


def test_two_endpoints_are_compared_and_the_reasons_named(demo, unenforced, tmp_path):
    run = verify(tmp_path, unenforced.http + "/v1", demo.http, "--limit", "40", "--out", "proof", "--stream", "only", "--temperature", "0")
    assert run.returncode == 0, run.stderr
    results = [json.loads(line) for line in next((tmp_path / "proof").glob("1-*/results.jsonl")).read_text().splitlines()]
    wrong = [result for result in results if any(problem["kind"] == "schema" for problem in result["problems"])]
    assert wrong
    # A reason: how often, the first one, and its line.
    count, path, line = re.search(r"^ +(\d+) schema +first: .*\((proof/1-\S+/results\.jsonl):(\d+)\)$", run.stdout, re.M).groups()
    assert int(count) == len(wrong)
    named = json.loads((tmp_path / path).read_text().splitlines()[int(line) - 1])
    assert named in wrong
    table = run.stdout[run.stdout.rindex("endpoint"):]
    before, after = re.search(r"schema accuracy +([\d.]+) % +([\d.]+) %", table).groups()
    assert float(before) < 60 and float(after) == 100
    # Schemas and expectations judge: no run is the reference.
    assert "reference" not in table and "calls as expected" in table
    assert (tmp_path / "proof/compare.html").exists() and "proof/compare.html" in run.stdout


def test_a_share_that_is_too_low_is_told_by_the_exit_code(unenforced, demo, tmp_path):
    run = verify(tmp_path, unenforced.http, demo.http, "--limit", "16", "--stream", "only", "--min-schema-accuracy", "0.99", "--temperature", "0")
    assert run.returncode == 3 and "--min-schema-accuracy" in run.stderr


@pytest.mark.parametrize("arguments, says", [(["http://127.0.0.1:9"], "127.0.0.1:9"), (["--generate", "3"], "--out: must name a directory"),
                                             (["http://a", "--base-url", "http://b"], "cannot be used with"), ([], "required")])
def test_errors_say_what_is_missing(tmp_path, arguments, says):
    run = verify(tmp_path, *arguments)
    assert run.returncode != 0 and says in run.stderr
