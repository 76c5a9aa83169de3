"""Alarms fire when they should, and only then; the dashboard shows every metric; generated files are current."""
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from chart import BIN, CHART, KUBE, NAMESPACE, REPOSITORY, of_kind
from test_program import metrics_table

PROMTOOL = shutil.which("promtool") or KUBE / "promtool"
needs_promtool = pytest.mark.skipif(not pathlib.Path(PROMTOOL).exists(), reason="promtool is missing (Debian: apt-get download prometheus; scripts/setup.sh test)")
ROUTER = f'namespace="{NAMESPACE}",service="rein-router"'


def series(text):
    """A series of a router of this release."""
    metric, _, labels = text.partition("{")
    return f"{metric}{{{ROUTER}{',' + labels.rstrip('}') if labels else ''}}}"


# For each alarm: series over minutes that fire it, series that do not, and perhaps others that do. `0+1x20` grows by 1 a minute.
FIRING = {
    "ReinNoGroupServes": ({'rein_engines{model="k2",standing="serving"}': "0x20"}, {'rein_engines{model="k2",standing="serving"}': "1x20"}),
    "ReinGroupsOfOneModelDiffer": ({'rein_engine_kinds{model="k2"}': "2x90"}, {'rein_engine_kinds{model="k2"}': "2x30 1x60"}),
    "ReinAnEngineDoesNotAnswer": ({'rein_engine_up{model="k2",engine="k2-1"}': "0x20"}, {'rein_engine_up{model="k2",engine="k2-1"}': "1x20"}),
    "ReinResumesRise": ({"rein_resumed_total": "0+1x20"}, {"rein_resumed_total": "9x20"}),
    "ReinRetriesRunOut": ({"rein_retry_budget_exhausted_total": "0+1x20"}, {"rein_retry_budget_exhausted_total": "9x20"}),
    "ReinResumesFail": ({"rein_resume_failed_total": "0+1x20"}, {"rein_resume_failed_total": "9x20"}),
    "ReinAGroupReformsAgainAndAgain": ({'rein_engine_epoch{model="k2",engine="k2-1"}': "0+1x20"}, {'rein_engine_epoch{model="k2",engine="k2-1"}': "1x10 2x10"}),
    "ReinACertificateExpires": ({'rein_certificate_expiry_seconds{usage="peer"}': "604000x20"}, {'rein_certificate_expiry_seconds{usage="peer"}': "605000x20"}),
    "ReinWorkersLost": ({'rein_controller_decisions_total{kind="lost"}': "0x5 1x15"}, {'rein_controller_decisions_total{kind="drain"}': "0+1x20"}),
    "ReinAnEngineBehindAnAdapterIsLost": ({'rein_engine_lost{model="k2",engine="engines/0"}': "1x20"}, {'rein_engine_lost{model="k2",engine="engines/0"}': "0x20"}),
    # A router in front of engines has no controller, and needs none.
    "ReinNoController": (
        {"rein_controller_active": "0x20"},
        {'rein_engine_up{model="k2",engine="engines/0"}': "1x20"},
        {'rein_worker_ready{worker="w0",standing="leads"}': "1x20"},
    ),
    "ReinTheQueueIsFull": ({'rein_requests_shed_total{reason="full"}': "0+1x20"}, {'rein_requests_total{status="200"}': "0+9x20"}),
    "ReinClientsStall": ({"rein_stalled_total": "0+1x20"}, {"rein_stalled_total": "1x20"}),
    "ReinFirstTokensLate": (
        {'rein_time_to_first_token_seconds_bucket{le="10"}': "0+1x20", 'rein_time_to_first_token_seconds_bucket{le="30"}': "0+10x20", 'rein_time_to_first_token_seconds_bucket{le="+Inf"}': "0+10x20"},
        {'rein_time_to_first_token_seconds_bucket{le="10"}': "0+10x20", 'rein_time_to_first_token_seconds_bucket{le="30"}': "0+10x20", 'rein_time_to_first_token_seconds_bucket{le="+Inf"}': "0+10x20"},
    ),
    "ReinKVCacheFull": (
        {'rein_engine_used_blocks{model="k2",engine="k2-1"}': "99x20", 'rein_engine_blocks{model="k2",engine="k2-1"}': "100x20", 'rein_engine_preemptions_total{model="k2",engine="k2-1"}': "0+1x20"},
        {'rein_engine_used_blocks{model="k2",engine="k2-1"}': "99x20", 'rein_engine_blocks{model="k2",engine="k2-1"}': "100x20", 'rein_engine_preemptions_total{model="k2",engine="k2-1"}': "5x20"},
    ),
    "ReinSlowGrammars": (
        {'rein_grammar_compile_seconds_bucket{le="1"}': "0+1x20", 'rein_grammar_compile_seconds_bucket{le="5"}': "0+10x20", 'rein_grammar_compile_seconds_bucket{le="+Inf"}': "0+10x20"},
        {'rein_grammar_compile_seconds_bucket{le="1"}': "0+10x20", 'rein_grammar_compile_seconds_bucket{le="5"}': "0+10x20", 'rein_grammar_compile_seconds_bucket{le="+Inf"}': "0+10x20"},
    ),
    "ReinResponsesAreLost": ({"rein_responses_lost_total": "0+1x20"}, {"rein_responses_lost_total": "9x20"}),
    "ReinServerErrors": ({'rein_requests_total{status="500"}': "0+1x20"}, {'rein_requests_total{status="503"}': "0+1x20"}),
    "ReinCallsAreLost": (
        {'rein_tool_calls_total{model="k2",outcome="valid"}': "0+90x20", 'rein_tool_calls_total{model="k2",outcome="incomplete"}': "0+10x20"},
        {'rein_tool_calls_total{model="k2",outcome="valid"}': "0+99x20", 'rein_tool_calls_total{model="k2",outcome="incomplete"}': "0+1x20"},
    ),
    "ReinInvalidCalls": ({"rein_grammar_invalid_calls_total": "0+1x20"}, {"rein_grammar_invalid_calls_total": "3x20"}),
    "ReinMalformedCalls": ({'rein_malformed_total{model="k2",format="kimi_k2"}': "0+1x20"}, {'rein_malformed_total{model="k2",format="kimi_k2"}': "2x20"}),
    "ReinCallsAreDeliveredAsText": ({'rein_lookalike_calls_total{model="k2",format="hermes"}': "0+1x20"}, {'rein_lookalike_calls_total{model="k2",format="hermes"}': "2x20"}),
    "ReinModelsWriteResultsThemselves": ({'rein_self_written_results_total{model="k2",format="hermes"}': "0+1x20"}, {'rein_self_written_results_total{model="k2",format="hermes"}': "2x20"}),
    "ReinManyRefusals": ({"rein_grammar_tokens_refused_total": "0+10x20", "rein_grammar_tokens_checked_total": "0+100x20"}, {"rein_grammar_tokens_refused_total": "0+1x20", "rein_grammar_tokens_checked_total": "0+100x20"}),
    "ReinAnEngineKeepsNoPrefixCache": ({'rein_engine_prefix_cache{model="k2",engine="engines/0"}': "0x20"}, {'rein_engine_prefix_cache{model="k2",engine="engines/0"}': "1x20"}),
    "ReinAnEngineIsSilentAboutItsCache": ({'rein_engine_block_events{model="k2",engine="engines/0"}': "0x20"}, {'rein_engine_block_events{model="k2",engine="engines/0"}': "1x20"}),
    "ReinAnswersEndWithErrorsOrAtTheLengthLimit": (
        {'rein_finished_total{model="k2",reason="capacity_lost"}': "0+2x20", 'rein_finished_total{model="k2",reason="stop"}': "0+98x20"},
        {'rein_finished_total{model="k2",reason="length"}': "0+2x20", 'rein_finished_total{model="k2",reason="stop"}': "0+98x20"},
    ),
}


def rules():
    return of_kind("blue-green", "PrometheusRule")[0]["spec"]


def promtool(*arguments):
    return subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True)


@needs_promtool
def test_alarms_fire_when_they_should(tmp_path):
    alarms = {rule["alert"]: rule for group in rules()["groups"] for rule in group["rules"]}
    assert set(alarms) == set(FIRING)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    checked = promtool("check", "rules", tmp_path / "rules.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    wrong = []
    for name, cases in FIRING.items():
        at = "85m" if name == "ReinGroupsOfOneModelDiffer" else "15m"
        for fires, values in zip((True, False, True), cases):
            # Another release in trouble must not fire this release's alarms.
            strange = {metric.replace("{", '{namespace="other",', 1) if "{" in metric else f'{metric}{{namespace="other"}}': value for metric, value in cases[0].items()}
            given = [{"series": series(metric), "values": value} for metric, value in values.items()] + [{"series": metric, "values": value} for metric, value in strange.items()]
            # An unknown expected alarm makes promtool list those that fire.
            test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [{"interval": "1m", "input_series": given, "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": [] if not fires else [{"exp_labels": {"nosuch": "label"}}]}]}]}
            (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
            done = promtool("test", "rules", tmp_path / "test.yaml")
            got = re.search(r"got:\s*\[(.*)", done.stdout + done.stderr, re.S)
            fired = bool(got and "Labels" in got[1].split("]")[0])
            if fired != fires or (not fires and done.returncode != 0):
                wrong.append((name, fires, done.stdout + done.stderr))
    assert not wrong, "\n".join(f"{name}: expected {'to fire' if fires else 'silence'}\n{text}" for name, fires, text in wrong)


def test_a_model_that_may_sleep_raises_no_alarm():
    def expression(name):
        rules = of_kind(name, "PrometheusRule")[0]["spec"]["groups"][0]["rules"]
        return next(rule["expr"] for rule in rules if rule["alert"] == "ReinNoGroupServes")

    assert 'model!~"qwen3-30b-a3b"' in expression("fleet") and "model!" not in expression("blue-green")


def anchors(page):
    return {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in page.read_text().splitlines() if line.startswith("#")}


def test_every_alarm_has_a_runbook():
    for group in rules()["groups"]:
        for rule in group["rules"]:
            page, _, anchor = rule["annotations"]["runbook_url"].removeprefix("https://docs.example/rein/").partition("#")
            assert anchor in anchors(REPOSITORY / "docs" / page), rule["alert"]
            assert len(rule["annotations"]["description"]) > 60
    # No URL is better than one that leads nowhere.
    for rule in of_kind("fleet", "PrometheusRule")[0]["spec"]["groups"][0]["rules"]:
        assert sorted(rule["annotations"]) == ["description", "summary"]


def test_the_dashboard_shows_every_metric():
    board = json.loads(next(iter(of_kind("blue-green", "ConfigMap")[0]["data"].values())))
    shown = " ".join(target["expr"] for panel in board["panels"] for target in panel.get("targets", []))
    missing = [metric for metric in metrics_table() if not metric.endswith(("_count", "_sum")) and not re.search(rf"\b{metric}\b", shown)]
    assert not missing
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places) and len({panel["id"] for panel in board["panels"]}) == len(places)


def test_generated_files_are_current():
    done = subprocess.run([sys.executable, REPOSITORY / "scripts/chart.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (CHART / "files/alerts.yaml").exists()


def of_machines(command, *options):
    return subprocess.run([BIN, command, *options], capture_output=True, text=True, check=True).stdout


def test_machines_have_the_alarms_and_the_dashboard_of_the_chart():
    chart = {rule["alert"]: rule for rule in rules()["groups"][0]["rules"]}
    machines = {rule["alert"]: rule for rule in yaml.safe_load(of_machines("alarms", "--runbooks", "https://docs.example/"))["groups"][0]["rules"]}
    assert set(machines) == set(chart) and all(machines[name]["labels"] == chart[name]["labels"] for name in chart)
    assert all(rule["annotations"]["runbook_url"].startswith("https://docs.example/howto/watch.md#") for rule in machines.values())
    text = of_machines("alarms", "--select", 'job="llm",env=~"a|b"')
    assert 'job="llm",env=~"a|b"' in text and not re.search(r"RELEASE|AWAKE|RUNBOOKS|\\\\", text)
    board, of_chart = json.loads(of_machines("dashboard")), json.loads((CHART / "files/dashboard.json").read_text())
    assert [panel["title"] for panel in board["panels"]] == [panel["title"] for panel in of_chart["panels"]]
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(expressions) > 50 and all('{job=~"rein.*"}' in expression for expression in expressions)
    assert "$release" not in json.dumps(board) and "{{pod}}" not in json.dumps(board)
    wrong = subprocess.run([BIN, "alarms", "--select", "{job}"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "expected matchers such as" in wrong.stderr


@needs_promtool
def test_promtool_reads_the_alarms_and_expressions_of_machines(tmp_path):
    (tmp_path / "rules.yaml").write_text(of_machines("alarms"))
    checked = promtool("check", "rules", tmp_path / "rules.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    board = json.loads(of_machines("dashboard", "--select", 'job="a"'))
    expressions = [target["expr"].replace("$__rate_interval", "5m") for panel in board["panels"] for target in panel.get("targets", [])]
    recorded = [{"record": f"panel:{i}", "expr": expression} for i, expression in enumerate(expressions)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    checked = promtool("check", "rules", tmp_path / "panels.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # An alarm fires for the jobs of the matchers, and for no other.
    for job, silent in (("rein-routers", False), ("other", True)):
        values = {"series": f'rein_engines{{job="{job}",model="k2",standing="serving"}}', "values": "0x20"}
        test = {"rule_files": ["rules.yaml"], "tests": [{"interval": "1m", "input_series": [values], "alert_rule_test": [{"eval_time": "15m", "alertname": "ReinNoGroupServes", "exp_alerts": []}]}]}
        (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
        done = promtool("test", "rules", tmp_path / "test.yaml")
        assert (done.returncode == 0) == silent, (job, done.stdout, done.stderr)
