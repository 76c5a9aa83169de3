"""The playground in a headless Chromium: the page asks the demo model, and what it shows is checked."""
import fcntl
import json
import os
import re
import select
import shutil
import subprocess
import urllib.parse

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: scripts/setup.sh test installs it as root")
SETTLED = """new Promise(done => {
  const look = () => document.querySelector(".done, .error") ? done(document.documentElement.outerHTML) : setTimeout(look, 20);
  look();
})"""


class Gone(Exception):
    """The browser ended, or did not answer in time."""


class Browser:
    """Chromium over its debugging pipe: JSON messages that end in a zero byte, read from descriptor 3, written to 4."""

    FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking --disable-component-update --disable-sync".split()
    ANSWER_TIME = 120  # seconds

    def __init__(self, profile):
        to_browser, from_browser = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser[0], from_browser[1])]
        place = lambda: [os.dup2(end, fd) for end, fd in zip(ends, (3, 4))]
        self.log = open(profile / "stderr", "w+b")
        self.process = subprocess.Popen([BROWSER, *self.FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"], preexec_fn=place, pass_fds=(3, 4), stderr=self.log)
        for fd in [*ends, to_browser[0], from_browser[1]]:
            os.close(fd)
        self.write, self.read, self.held, self.last = to_browser[1], from_browser[0], b"", 0

    def stop(self):
        self.process.kill()
        code = self.process.wait()
        for fd in (self.write, self.read):
            os.close(fd)
        self.log.seek(0)
        return f"exit status {code}: {self.log.read().decode(errors='replace')[-2000:]}"

    def call(self, method, session=None, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params, **({"sessionId": session} if session else {})}
        try:
            os.write(self.write, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise Gone(method)
        while True:
            while b"\0" not in self.held:
                if not select.select([self.read], [], [], self.ANSWER_TIME)[0]:
                    raise Gone(f"{method}: no answer in {self.ANSWER_TIME} s")
                got = os.read(self.read, 1 << 16)
                if not got:
                    raise Gone(method)
                self.held += got
            text, _, self.held = self.held.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.last:
                assert "error" not in answer, answer
                return answer["result"]

    def show(self, url):
        """The page's DOM once its answer, or an error, stands there."""
        target = self.call("Target.createTarget", url=url)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        # A page that is still about to be left forgets what it was asked.
        for _ in range(100):
            at = self.call("Runtime.evaluate", session, expression="location.href + document.readyState", returnByValue=True)
            if at["result"]["value"] == url + "complete":
                break
        result = self.call("Runtime.evaluate", session, expression=SETTLED, awaitPromise=True, returnByValue=True)
        return result["result"]["value"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser that answers. One that cannot start here, even to open an empty page, is no browser: like a missing one, it skips these tests."""
    tries = []
    while len(tries) < 3:
        browser = Browser(tmp_path_factory.mktemp("chromium"))
        try:
            browser.call("Target.createTarget", url="about:blank")
            break
        except Gone as why:
            tries.append(f"{why}; {browser.stop()}")
    else:
        pytest.skip("Chromium does not start here:\n" + "\n".join(tries))
    yield browser
    browser.stop()


def show(browser, demo, **asked):
    return browser.show(f"{demo.http}/?{urllib.parse.urlencode(asked)}")


def texts(dom, cls):
    return re.findall(rf'<(?:div|span) class="{cls}"[^>]*>(.*?)</(?:div|span)>', dom, re.S)


def test_a_call_is_told_apart_from_text_and_reasoning(browser, demo):
    dom = show(browser, demo, ask="What is the weather in Paris?", choice="required", temperature="0", thinking="true", ids="true")
    assert "get_weather" in dom and texts(dom, "region reasoning"), dom
    assert any('"city"' in arguments or "&quot;city&quot;" in arguments for arguments in texts(dom, "arguments")), dom
    assert "finish: tool_calls" in texts(dom, "note done")[0]
    assert re.match(r"grammar: \d+ checked, \d+ refused", texts(dom, "note grammar")[0])
    assert re.fullmatch(r"[\d ]+", texts(dom, "ids")[0])


def test_text_without_tools(browser, demo):
    dom = show(browser, demo, ask="hello", preset="none", temperature="0")
    assert texts(dom, "region text")[0] and not texts(dom, "arguments")


def test_an_error_is_shown(browser, demo):
    dom = show(browser, demo, ask="hello", limit="1000000")
    assert "context" in texts(dom, "note error")[0]
