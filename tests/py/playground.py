"""Helpers of the playground's tests: open pages, and act on them like a user."""
import urllib.parse

import pytest

from browser import BINARY, Browser, Gone, Page
from scripted import Scripted

NO_BROWSER = pytest.mark.skipif(BINARY is None, reason="no Chromium here: scripts/setup.sh test installs it as root")
DESK, PHONE = 1280, 390
ANSWERED = "!document.querySelector('[role=log]').matches('[aria-busy=true]') && document.querySelector('.assistant .facts, .assistant .error')"
BUSY = "document.querySelector('#stop').offsetParent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A working browser. Tests are skipped if no browser is installed, or if it cannot open an empty page."""
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


@pytest.fixture
def scripted(sim):
    server = Scripted(sim.http)
    yield server
    server.stop()


@pytest.fixture
def visit(browser):
    """Opens pages. At the end, asserts that none had an exception or violated its content security policy."""
    pages = []

    def visit(server, width=DESK, dark=False, height=800, path="/", **asked):
        pages.append(Page(browser, f"{server.http}{path}?{urllib.parse.urlencode(asked)}", width, height, dark))
        return pages[-1]

    yield visit
    complaints = [complaint for page in pages for complaint in page.complaints()]
    for page in pages:
        page.close()
    assert not complaints


def ask(page, text):
    page.fill("#question", text)
    page.press("Enter")


def sent(scripted):
    """The roles and contents of the latest request's messages."""
    return [(message["role"], message["content"]) for message in scripted.requests[-1]["messages"]]


def open_panel(page, tab=None):
    if page.width < 600 and page.js("!document.body.matches('.panel-open')"):
        page.click("#open-panel")
    if tab:
        page.click(f"#tab-{tab}")


def close_panel(page):
    if page.width < 600:
        page.click("#close-panel")
