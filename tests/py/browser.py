"""A headless Chromium for tests: with pages of any size in light or dark mode, controlled over the debugging pipe."""
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
KEYS = {"Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "ArrowRight": ("ArrowRight", 39, ""), "Tab": ("Tab", 9, "")}


class Gone(Exception):
    """The browser ended, or did not answer in time."""


class Browser:
    """Chromium over its debugging pipe: JSON messages that end in a zero byte, read from descriptor 3, written to 4."""

    FLAGS = ("--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking "
             "--disable-component-update --disable-sync").split()
    ANSWER_TIME = 120  # seconds

    def __init__(self, profile):
        to_browser, from_browser = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser[0], from_browser[1])]
        place = lambda: [os.dup2(end, fd) for end, fd in zip(ends, (3, 4))]
        self.log = open(profile / "stderr", "w+b")
        command = [BINARY, *self.FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(command, preexec_fn=place, pass_fds=(3, 4), stderr=self.log)
        for fd in [*ends, to_browser[0], from_browser[1]]:
            os.close(fd)
        self.write, self.read, self.held, self.last = to_browser[1], from_browser[0], b"", 0
        self.events = []

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
            self.events.append(answer)


class Page:
    """A page with storage of its own."""

    def __init__(self, browser, url, width=1280, height=800, dark=False):
        self.browser, self.width = browser, width
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Page.enable")
        self.open(url)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def open(self, url):
        self.call("Page.navigate", url=url)
        # A page that is still navigating away drops evaluations.
        for _ in range(100):
            at = self.call("Runtime.evaluate", expression="location.href + document.readyState", returnByValue=True)
            if at["result"].get("value", "").endswith("complete") and "about:blank" not in at["result"]["value"]:
                break
        self.until("document.querySelector('#model option, #key-note.error, #toast:not([hidden]), #paths > details')")

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, condition, seconds=30):
        """Waits until an expression is true in the page."""
        look = f"""new Promise(done => {{
          const end = performance.now() + {seconds * 1000};
          const look = () => ({condition}) ? done(true) : performance.now() > end ? done(false) : setTimeout(look, 10);
          look();
        }})"""
        assert self.js(look), f"{condition} does not become true; the page says:\n{self.js('document.body.innerText')}"

    def click(self, selector):
        """Clicks the middle of an element. An element that covers it gets the click."""
        self._click(f"document.querySelector({json.dumps(selector)})")

    def button(self, label, within="document"):
        """Clicks the last button that has this label; tabs do not count as buttons."""
        buttons = f'[...{within}.querySelectorAll("button:not([role=tab])")]'
        self._click(f"{buttons}.filter(node => node.textContent === {json.dumps(label)} && node.checkVisibility({{visibilityProperty: true}})).at(-1)")

    def _click(self, node):
        self.until(node)
        x, y = self.js(f"""(node => {{
          node.scrollIntoView({{block: "nearest", inline: "nearest"}});
          const box = node.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})({node})""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, name, shift=False):
        key, code, text = KEYS[name]
        same = dict(key=key, code=key, windowsVirtualKeyCode=code, modifiers=8 if shift else 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", **same, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def fill(self, selector, text):
        """Replaces the text of a field, as if typed."""
        field = f"document.querySelector({json.dumps(selector)})"
        self.js(f"(field => {{ field.focus(); field.select(); document.execCommand('delete'); }})({field})")
        if text:
            self.type(text)

    def texts(self, selector):
        return self.js(f"[...document.querySelectorAll({json.dumps(selector)})].filter(n => n.checkVisibility({{visibilityProperty: true}})).map(n => n.innerText)")

    def text(self, selector):
        found = self.texts(selector)
        assert found, f"no {selector} on the page:\n{self.js('document.body.innerText')}"
        return found[0]

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def complaints(self):
        """Exceptions and console errors, such as violations of the content security policy."""
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"])
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["source"] in ("security", "violation", "javascript"):
                found.append(event["params"]["entry"])
        return found
