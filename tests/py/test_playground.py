"""The playground in a headless Chromium: the page asks the demo model, and what it shows is checked."""
import re
import shutil
import subprocess
import urllib.parse

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: scripts/setup.sh test installs it as root")


def show(demo, **asked):
    """The page's DOM after its answer has come."""
    url = f"{demo.http}/?{urllib.parse.urlencode(asked)}"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def texts(dom, cls):
    return re.findall(rf'<(?:div|span) class="{cls}"[^>]*>(.*?)</(?:div|span)>', dom, re.S)


def test_a_call_is_told_apart_from_text_and_reasoning(demo):
    dom = show(demo, ask="What is the weather in Paris?", choice="required", temperature="0", thinking="true", ids="true")
    assert "get_weather" in dom and texts(dom, "region reasoning"), dom
    assert any('"city"' in arguments or "&quot;city&quot;" in arguments for arguments in texts(dom, "arguments")), dom
    assert "finish: tool_calls" in texts(dom, "note done")[0]
    assert re.match(r"grammar: \d+ checked, \d+ refused", texts(dom, "note grammar")[0])
    assert re.fullmatch(r"[\d ]+", texts(dom, "ids")[0])


def test_text_without_tools(demo):
    dom = show(demo, ask="hello", preset="none", temperature="0")
    assert texts(dom, "region text")[0] and not texts(dom, "arguments")


def test_an_error_is_shown(demo):
    dom = show(demo, ask="hello", limit="1000000")
    assert "context" in texts(dom, "note error")[0]
