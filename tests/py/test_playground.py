"""The playground in Chromium: on a desk and on a phone, in light and dark, with the demo model and with answers that a test writes."""
import json
import pathlib
import re
import subprocess
import urllib.parse
import urllib.request

import pytest

from browser import BINARY, Browser, Gone, Page
from conftest import BIN, Server
from scripted import Scripted

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium here: scripts/setup.sh test installs it as root")
DESK, PHONE = 1280, 390
ANSWERED = "!document.querySelector('[role=log]').matches('[aria-busy=true]') && document.querySelector('.assistant .facts, .assistant .error')"
BUSY = "document.querySelector('#stop').offsetParent"
HOSTILE = """<img src=x onerror="window.hacked = 1"> <script>window.hacked = 1</script>

[a](javascript:window.hacked=1) [b](  JaVaScRiPt:alert(1)) [c](data:text/html,<script>1</script>) [d](vbscript:x) [e](//host/x) <javascript:alert(1)>
![i](https://tracker.example/pixel.png) [f](https://good.example/?q="><script>alert(1)</script>) `<b>code</b>` **<i onclick=x>bold</i>**

```html"><script>window.hacked = 1</script>
<script>window.hacked = 1</script>
```

| <script>window.hacked = 1</script> | [t](javascript:1) |
|---|---|
| <svg onload=alert(1)> | x |
"""


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


@pytest.fixture
def scripted(sim):
    server = Scripted(sim.http)
    yield server
    server.stop()


@pytest.fixture
def visit(browser):
    """Opens pages, and looks at their end whether any of them had an exception or broke its content security policy."""
    pages = []

    def visit(server, width=DESK, dark=False, height=800, **asked):
        pages.append(Page(browser, f"{server.http}/?{urllib.parse.urlencode(asked)}", width, height, dark))
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


# With the demo model


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_tool_call_with_reasoning_is_shown_and_continued(visit, demo, width):
    page = visit(demo, width, ask="What is the weather in Paris?", tool_choice="required", temperature="0", reasoning="true")
    page.until(ANSWERED)
    assert page.text(".call strong") == "get_weather" and '"city"' in page.text(".arguments")
    assert page.text(".reasoning summary") == "Reasoning" and not page.texts(".thoughts"), "reasoning is folded"
    assert re.search(r"Waits for tool results · \d+ prompt tokens.* · \d+ tokens \(\d+ reasoning\) · first token after .* · \d+ tokens/s", page.text(".assistant .facts"))
    page.fill("form.result textarea", '{"temperature": 21}')
    page.press("Enter")
    page.until("document.querySelectorAll('.assistant .facts').length >= 3")
    assert page.texts(".result pre") == ['{\n  "temperature": 21\n}']
    assert page.js("document.documentElement.scrollWidth") <= width


def test_an_answer_without_tools_is_text(visit, demo):
    page = visit(demo, ask="hello", example="No tools", temperature="0")
    page.until(ANSWERED)
    assert page.text(".markdown") and not page.texts(".call")


def test_a_request_that_the_server_refuses_shows_its_error(visit, demo):
    page = visit(demo, ask="hello", max_tokens="1000000")
    page.until(ANSWERED)
    assert "context" in page.text(".assistant .error")


def test_inspect_shows_the_prompt_and_the_grammars_report(visit, demo):
    page = visit(demo, ask="What is the weather in Paris?", temperature="0")
    page.until(ANSWERED)
    page.button("Inspect")
    page.button("Show the prompt")
    page.until("document.querySelectorAll('#inspect .block').length >= 2")
    blocks = page.texts("#inspect .block pre")
    assert "What is the weather in Paris?" in blocks[0] and "<|im_user|>" in blocks[0]
    assert re.fullmatch(r"[\d ]+", blocks[1])
    assert re.search(r"Checked\s+\d+\s+Refused\s+\d+\s+Forced\s+\d+", page.text(".report"))


# Keys


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    made = subprocess.run([BIN, "key", "--name", "a"], capture_output=True, text=True, check=True)
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(made.stdout)
    server = Server("--engine", "sim", "--api-keys", str(keys))
    server.key = made.stderr.strip()
    yield server
    server.stop()


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_server_with_keys_leads_to_the_key_field(visit, guarded, width):
    page = visit(guarded, width)
    assert page.js("document.activeElement.id") == "key" and page.text("#key-note") == "This server asks for an API key."
    page.type("wrong")
    page.press("Enter")
    page.until("document.querySelector('#key-note').innerText.startsWith('The server refuses this key')")
    page.fill("#key", guarded.key)
    page.press("Enter")
    page.until("document.querySelector('#model option')")
    close_panel(page)
    ask(page, "hello")
    page.until(ANSWERED)
    assert not page.texts(".assistant .error")
    kept = page.js("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
    assert guarded.key not in kept[0] and guarded.key in kept[1], "the key ends with the tab"
    page.open(guarded.http)
    assert page.texts("#key-note.error") == [], "a reload keeps the key"


def test_a_key_that_is_refused_later_leads_to_the_field_and_the_question_stays_out(visit, scripted):
    page = visit(scripted)
    scripted.answer(401, {"error": {"message": "the API key is not known"}})
    ask(page, "first")
    page.until("document.activeElement.id === 'key'")
    assert "not known" in page.text(".assistant .error")
    scripted.answer().send(content="fine").finish()
    page.button("Retry")
    page.until("document.querySelector('.markdown')")
    assert sent(scripted) == [("user", "first")] and not page.texts(".failed")


# Asking


def test_a_failed_question_stays_out_of_the_history(visit, scripted):
    page = visit(scripted)
    for wrong in (Answer500, lambda answer: answer.send(content="half").fail("the engine was lost"), lambda answer: answer.send(content="half").drop()):
        failing = scripted.answer(500, {"error": {"message": "no engine"}}) if wrong is Answer500 else wrong(scripted.answer())
        ask(page, "lost")
        page.until(ANSWERED)
        page.until("!document.querySelector('#send').hidden")
        assert failing and page.texts(".failed .bubble")[-1] == "lost"
        page.js("document.querySelector('#new').click()")
        scripted.answer().send(content="hi").finish()
        ask(page, "kept")
        page.until(ANSWERED)
        assert sent(scripted) == [("user", "kept")]
        page.js("document.querySelector('#new').click()")


Answer500 = object()


def test_the_history_goes_on_without_a_failed_question_in_its_middle(visit, scripted):
    page = visit(scripted)
    scripted.answer().send(content="one").finish()
    ask(page, "first")
    page.until(ANSWERED)
    scripted.answer().send(content="half").fail("the engine was lost")
    ask(page, "second")
    page.until("document.querySelector('.assistant .error')")
    assert "the engine was lost" in page.text(".assistant .error")
    scripted.answer().send(content="three").finish()
    ask(page, "third")
    page.until("document.querySelectorAll('.assistant .facts').length === 2 && !document.querySelector('#send').hidden")
    assert sent(scripted) == [("user", "first"), ("assistant", "one"), ("user", "third")]


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_enter_sends_and_never_stops_and_esc_stops(visit, scripted, width):
    page = visit(scripted, width)
    page.fill("#question", "two")
    page.press("Enter", shift=True)
    page.type("lines")
    assert page.js("document.querySelector('#question').value") == "two\nlines" and not scripted.requests
    answer = scripted.answer().send(content="a beginning")
    page.press("Enter")
    page.until("document.querySelector('.markdown')")
    assert sent(scripted) == [("user", "two\nlines")] and page.text(".bubble") == "two\nlines"
    ask(page, "next")
    page.press("Enter")
    answer.send(content=" and more")
    page.until("document.querySelector('.markdown')?.innerText === 'a beginning and more'")
    assert page.js("document.querySelector('#question').value") == "next", "what was typed meanwhile is kept"
    page.press("Escape")
    page.until("!document.querySelector('#send').hidden")
    assert answer.closed.wait(10), "the request is over"
    assert "Stopped" in page.text(".assistant .facts")
    scripted.answer().send(content="ok").finish()
    page.press("Enter")
    page.until("document.querySelectorAll('.markdown').length === 2")
    assert sent(scripted) == [("user", "two\nlines"), ("assistant", "a beginning and more"), ("user", "next")]


def test_an_answer_that_is_stopped_before_its_first_token_leaves_its_question_out(visit, scripted):
    page = visit(scripted)
    scripted.answer()
    ask(page, "slow")
    page.until(BUSY)
    page.click("#stop")
    page.until("document.querySelector('.failed')")
    scripted.answer().send(content="ok").finish()
    ask(page, "again")
    page.until("document.querySelector('.markdown')")
    assert sent(scripted) == [("user", "again")]


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_log_follows_the_answer_until_the_reader_scrolls_up(visit, scripted, width):
    page = visit(scripted, width)
    answer = scripted.answer()
    lines = lambda name, n: answer.send(content="\n\n".join(f"{name} {i}" for i in range(n)) + "\n\n")
    at_end = "(log => log.scrollHeight - log.scrollTop - log.clientHeight < 2)(document.querySelector('#log'))"
    lines("first", 60)
    ask(page, "long")
    page.until("document.querySelector('.markdown')?.innerText.includes('first 59')")
    page.until(at_end)
    page.js("document.querySelector('#log').scrollTop = 100")
    page.until("document.querySelector('#latest').offsetParent")
    lines("second", 60)
    page.until("document.querySelector('.markdown').innerText.includes('second 59')")
    assert page.js("document.querySelector('#log').scrollTop") == 100
    page.click("#latest")
    page.until(at_end)
    lines("third", 60)
    answer.finish()
    page.until("document.querySelector('.markdown').innerText.includes('third 59') && document.querySelector('.assistant .facts')")
    assert page.js(at_end) and not page.js("document.querySelector('#latest').offsetParent")


def test_a_question_can_be_edited_and_an_answer_asked_for_again(visit, scripted):
    page = visit(scripted)
    for text in ("one", "two"):
        scripted.answer().send(content=f"answer {text}").finish()
        ask(page, text)
        page.until(f"document.querySelector('.assistant:last-child .facts') && document.querySelector('#log').innerText.includes('answer {text}')")
    scripted.answer().send(content="answer two again").finish()
    page.button("Retry")
    page.until("document.querySelector('#log').innerText.includes('answer two again')")
    assert sent(scripted) == [("user", "one"), ("assistant", "answer one"), ("user", "two")]
    page.button("Edit", "document.querySelector('.assistant')")
    page.fill(".editor textarea", "my own words")
    page.press("Enter")
    page.until("document.querySelector('.markdown')?.innerText === 'my own words'")
    page.button("Edit", "document.querySelectorAll('.user')[1]")
    page.fill(".editor textarea", "never")
    page.press("Escape")
    assert page.texts(".bubble") == ["one", "two"]
    scripted.answer().send(content="answer three").finish()
    page.button("Edit", "document.querySelectorAll('.user')[1]")
    page.fill(".editor textarea", "three")
    page.press("Enter")
    page.until("document.querySelector('#log').innerText.includes('answer three')")
    assert sent(scripted) == [("user", "one"), ("assistant", "my own words"), ("user", "three")]
    assert page.texts(".bubble") == ["one", "three"]


# What models write


def test_text_of_the_model_never_becomes_markup(visit, scripted):
    page = visit(scripted)
    answer = scripted.answer().send(reasoning_content=HOSTILE)
    for letter in HOSTILE:
        answer.send(content=letter)
    answer.call(0, HOSTILE, HOSTILE, id=HOSTILE).finish("tool_calls", {"malformed": [HOSTILE]})
    ask(page, HOSTILE)
    page.until(ANSWERED)
    assert page.js("window.hacked") is None
    assert page.js("document.querySelectorAll('#log img, #log script, #log svg, #log iframe, #log i, #log b, #log [onerror], #log [onclick], #log [onload]').length") == 0
    links = page.js("[...document.querySelectorAll('#log a')].map(a => [a.textContent, a.protocol, a.rel])")
    assert sorted(text for text, *_ in links) == ["https://good.example/?q=", "image: i"]
    assert all(protocol == "https:" and rel == "noopener noreferrer" for _, protocol, rel in links)
    assert "<script>window.hacked = 1</script>" in page.text("#log .code pre")
    with urllib.request.urlopen(f"{scripted.http}/") as served:
        policy = served.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy


MARKDOWN = {
    "# One\n### Three\n": "<h3>One</h3><h3>Three</h3>",
    "a *b* **c** ***d*** ~~e~~ `f` snake_case_name 2*3*4": "<p>a <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <del>e</del> <code>f</code> snake_case_name 2<em>3</em>4</p>",
    "**open and `closed`": "<p>**open and <code>closed</code></p>",
    r"\*no\* 1 < 2 && 3 > 2": "<p>*no* 1 &lt; 2 &amp;&amp; 3 &gt; 2</p>",
    "*a `*` b*": "<p><em>a <code>*</code> b</em></p>",
    "one\ntwo\n\nthree": "<p>one<br>two</p><p>three</p>",
    "- a\n- b\n  - c\n\n    more\n- d": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p><p>more</p></li></ul></li><li><p>d</p></li></ul>",
    "3. a\n4. b\n   - [x] c\n   - [ ] d": '<ol start="3"><li>a</li><li>b<ul><li>☑ c</li><li>☐ d</li></ul></li></ol>',
    "> a\n> - b": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>",
    "---": "<hr>",
    "| a | b |\n|:--|--:|\n| 1 | *2* |\n| 3 |": "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><em>2</em></td></tr><tr><td>3</td><td></td></tr></tbody></table>",
    "[t](https://e.example/a_b_c \"x\") <https://e.example> see https://e.example/x. (https://e.example/y)":
        '<p><a href="https://e.example/a_b_c">t</a> <a href="https://e.example/">https://e.example</a> see <a href="https://e.example/x">https://e.example/x</a>. '
        '(<a href="https://e.example/y">https://e.example/y</a>)</p>',
    "```py\nif a < b:\n\n    pass\n```\nafter": "<pre><code>if a &lt; b:\n\n    pass</code></pre><p>after</p>",
    "- a\n  ```\n  code\n  ```": "<ul><li>a<pre><code>code</code></pre></li></ul>",
    "```\nopen": "<pre><code>open</code></pre>",
}


def test_markdown_becomes_elements(visit, sim):
    page = visit(sim)
    render = """async texts => {
      const { Markdown } = await import("./playground/markdown.js");
      return texts.map(text => {
        const markdown = new Markdown();
        // As it streams: the elements of a growing text are those of the whole text.
        for (let end = 0; end <= text.length; end++) markdown.update(text.slice(0, end));
        const whole = new Markdown();
        whole.update(text);
        if (whole.node.outerHTML !== markdown.node.outerHTML) return "streamed: " + markdown.node.outerHTML;
        for (const extra of whole.node.querySelectorAll(".code-bar")) extra.remove();
        for (const wrapper of whole.node.querySelectorAll("div")) wrapper.replaceWith(...wrapper.childNodes);
        for (const node of whole.node.querySelectorAll("*")) for (const { name } of [...node.attributes]) if (!["href", "start"].includes(name)) node.removeAttribute(name);
        return whole.node.innerHTML;
      });
    }"""
    shown = page.js(f"({render})({json.dumps(list(MARKDOWN))})")
    assert dict(zip(MARKDOWN, shown)) == MARKDOWN


def test_markdown_takes_any_text_in_time(visit, sim):
    page = visit(sim)
    pieces = ["*", "**a ", "_a _", "`", "``a` ", "[", "[a](", "![", "<", "<a", "> ", "- ", "  - ", "1. ", "# ", "|", "| a |\n|--", "~~", "\\", "https://", "(", "```\n", "\n", " ", "*a **b _c "]
    slowest = page.js(f"""(async pieces => {{
      const {{ Markdown }} = await import("./playground/markdown.js");
      let slowest = ["", 0];
      for (const piece of pieces) {{
        const text = piece.repeat(40000 / piece.length), began = performance.now();
        new Markdown().update(text);
        const took = performance.now() - began;
        if (took > slowest[1]) slowest = [piece, took];
      }}
      return slowest;
    }})({json.dumps(pieces)})""")
    assert slowest[1] < 5000, f"40,000 characters of {slowest[0]!r} take {slowest[1]} ms"


def test_calls_that_are_not_whole_are_told_as_such(visit, scripted):
    page = visit(scripted)
    whole = {"id": "functions.get_weather:2", "type": "function", "function": {"name": "get_weather", "arguments": '{"ci'}}
    answer = scripted.answer().call(0, "get_weather", '{"city": "Paris"}').call(1, "get_weather", '{"city": 3', id="b")
    cut = {"id": "b", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": 3'}}
    answer.finish("length", {"malformed": ["get_weather{{"], "incomplete_tool_calls": [cut, whole]})
    ask(page, "weather")
    page.until(ANSWERED)
    assert page.texts(".call .badge") == ["Incomplete: not executed", "Malformed call", "Incomplete: not executed"]
    assert page.texts("form.result") and len(page.texts("form.result")) == 1, "only a whole call gets a result"
    assert page.text(".assistant .facts").startswith("Cut at max tokens")


def test_relaxed_schemas_and_ignored_fields_are_told(visit, scripted):
    page = visit(scripted)
    scripted.answer(headers={"x-rein-relaxed": "get_weather#/not", "x-rein-ignored-fields": "thinking,seed"}).send(content="x").finish(invalid_response="at /a: no")
    ask(page, "x")
    page.until(ANSWERED)
    assert "Not enforced by the grammar: get_weather#/not" in page.texts(".facts")
    assert "Ignored by the server or the model's template: seed" in page.texts(".facts")
    assert "at /a: no" in page.text(".assistant .error")


# Tools


def test_results_are_typed_one_by_one_and_the_last_one_continues(visit, scripted):
    page = visit(scripted)
    scripted.answer().call(0, "get_weather", '{"city": "Paris"}').call(1, "get_weather", '{"city": "Oslo"}').finish("tool_calls")
    ask(page, "weather")
    page.until("document.querySelectorAll('form.result').length === 2")
    page.fill("form.result textarea", "sunny")
    page.button("Add result", "document.querySelector('.call')")
    page.until("document.querySelectorAll('form.result').length === 1")
    assert len(scripted.requests) == 1
    scripted.answer().send(content="done").finish()
    page.fill("form.result textarea", "rain")
    page.press("Enter")
    page.until("document.querySelector('.markdown')")
    messages = scripted.requests[-1]["messages"]
    assert [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"] == [("functions.get_weather:0", "sunny"), ("functions.get_weather:1", "rain")]
    assert [call["function"]["arguments"] for call in messages[1]["tool_calls"]] == ['{"city": "Paris"}', '{"city": "Oslo"}']
    scripted.answer().send(content="snow then").finish()
    page.button("Edit", "document.querySelector('.result')")
    page.fill(".editor textarea", "snow")
    page.press("Enter")
    page.until("document.querySelector('.markdown')?.innerText === 'snow then'")
    assert [m["content"] for m in scripted.requests[-1]["messages"] if m["role"] == "tool"] == ["snow", "rain"]


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_mock_results_can_be_sent_at_once(visit, scripted, width):
    page = visit(scripted, width)
    open_panel(page, "tools")
    page.fill("#mock-get_weather", '{"temperature": 3}')
    close_panel(page)
    scripted.answer().call(0, "get_weather", "{}").finish("tool_calls")
    ask(page, "weather")
    page.until("document.querySelector('form.result textarea')")
    assert page.js("document.querySelector('form.result textarea').value") == '{"temperature": 3}', "a mock result waits in the field"
    open_panel(page, "tools")
    page.click("#sendMocks")
    close_panel(page)
    scripted.answer().call(0, "get_weather", "{}", id="again").finish("tool_calls")
    scripted.answer().send(content="cold").finish()
    page.click("form.result button")
    page.until("document.querySelector('.markdown')?.innerText === 'cold'")
    assert [m["content"] for m in scripted.requests[-1]["messages"] if m["role"] == "tool"] == ['{"temperature": 3}'] * 2


def test_mock_results_end_after_some_rounds(visit, scripted):
    page = visit(scripted)
    open_panel(page, "tools")
    page.fill("#mock-get_weather", "1")
    page.click("#sendMocks")
    for i in range(8):
        scripted.answer().call(0, "get_weather", "{}", id=str(i)).finish("tool_calls")
    ask(page, "weather")
    page.until("document.querySelector('#toast:not([hidden])')")
    assert "8 answers in a row" in page.text("#toast") and len(scripted.requests) == 8


WRONG_TOOLS = {
    '[{"type": "function",}]': "Line 1, column 22: expected a name in double quotes, found",
    '[\n {"a" 1}\n]': 'Line 2, column 7: expected ":", found "1}"',
    '[1, 2': 'Line 1, column 6: expected "," or "]", found the end',
    '[tru]': "Line 1, column 2: expected a value",
    "{}": "Tools must be a JSON array",
    "[{}]": 'Tool 1: "type" must be "function"',
    '[{"type": "function", "function": {"name": ""}}]': 'Tool 1: "function.name" must be a text',
    '[{"type": "function", "function": {"name": "a"}}, {"type": "function", "function": {"name": "a"}}]': 'Tool 2: "function.name" "a" is declared twice',
    '[{"type": "function", "function": {"name": "a", "parameters": 3}}]': 'Tool 1: "function.parameters" must be a JSON schema',
}


def test_wrong_tools_are_told_where_they_are_written(visit, scripted):
    page = visit(scripted)
    open_panel(page, "tools")
    for text, wrong in WRONG_TOOLS.items():
        page.fill("#tools", text)
        assert page.text("#tools-note").startswith(wrong), (text, page.text("#tools-note"))
    open_panel(page, "settings")
    ask(page, "hello")
    page.until("document.activeElement.id === 'tools'")
    assert not scripted.requests and page.js("document.querySelector('#question').value") == "hello"


def test_the_request_has_what_the_settings_say(visit, scripted):
    page = visit(scripted)
    assert {"Max tokens", "Temperature", "Top p", "Seed", "Model", "System message", "API key"} <= set(page.texts("#settings label"))
    for field, value in {"#system": "Be brief.", "#maxTokens": "33", "#temperature": "0.5", "#topP": "0.9", "#seed": "7"}.items():
        page.fill(field, value)
    open_panel(page, "tools")
    page.js("""for (const [id, value] of [["examples", "Order"], ["toolChoice", "tool:order_items"]]) {
      document.querySelector("#" + id).value = value;
      for (const kind of ["input", "change"]) document.querySelector("#" + id).dispatchEvent(new Event(kind, { bubbles: true }));
    }""")
    page.click("#parallel")
    scripted.answer().send(content="ok").finish()
    ask(page, "hello")
    page.until(ANSWERED)
    body = scripted.requests[-1]
    wanted = {"max_tokens": 33, "temperature": 0.5, "top_p": 0.9, "seed": 7, "parallel_tool_calls": False, "thinking": False,
              "tool_choice": {"type": "function", "function": {"name": "order_items"}}}
    assert {name: body.get(name) for name in wanted} == wanted
    assert sent(scripted) == [("system", "Be brief."), ("user", "hello")] and [t["function"]["name"] for t in body["tools"]] == ["order_items"]
    open_panel(page, "settings")
    page.fill("#maxTokens", "")
    page.fill("#seed", "")
    scripted.answer().send(content="ok").finish()
    ask(page, "again")
    page.until("document.querySelectorAll('.markdown').length === 2")
    assert not {"max_tokens", "seed"} & set(scripted.requests[-1])


# Conversations


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_conversations_have_names_and_outlive_the_page(visit, scripted, width):
    page = visit(scripted, width)
    opener = lambda: page.click("#open-list") if width == PHONE else None
    for text in ("first question", "second question"):
        scripted.answer().send(content=f"re {text}").finish()
        ask(page, text)
        page.until(f"document.querySelector('.markdown')?.innerText === 're {text}' && {ANSWERED}")
        if text.startswith("first"):
            opener()
            page.click("#new")
    page.open(scripted.http)
    assert page.text(".bubble") == "second question"
    opener()
    assert page.texts("#conversations .open") == ["second question", "first question"]
    page.button("first question")
    assert page.text(".bubble") == "first question"
    opener()
    page.button("Rename")
    page.type("renamed")
    page.press("Enter")
    assert "renamed" in page.texts("#conversations .open")
    page.button("Delete")
    page.until("document.querySelector('.bubble')?.innerText === 'second question'")
    assert page.texts("#conversations .open") == ["second question"]
    page.button("Undo")
    assert "renamed" in page.texts("#conversations .open") and page.text(".bubble") == "first question"


def test_an_answer_goes_on_while_another_conversation_is_read(visit, scripted):
    page = visit(scripted)
    slow = scripted.answer().send(content="slow ")
    ask(page, "one")
    page.until("document.querySelector('.markdown')")
    page.click("#new")
    scripted.answer().send(content="quick").finish()
    ask(page, "two")
    page.until("document.querySelector('.markdown')?.innerText === 'quick'")
    slow.send(content="but sure").finish()
    page.button("one")
    page.until("document.querySelector('.markdown')?.innerText === 'slow but sure'")


def test_a_page_that_is_left_in_an_answer_keeps_what_there_was(visit, scripted):
    page = visit(scripted)
    scripted.answer().send(content="half")
    ask(page, "one")
    page.until("document.querySelector('.markdown')")
    page.open(scripted.http)
    page.until("document.querySelector('.assistant')")
    assert not page.js(BUSY) and page.texts(".failed")
    page.js("localStorage.setItem('rein.playground.conversation.x', '{broken'); localStorage.setItem('rein.playground.conversation.y', '{}')")
    page.open(scripted.http)
    assert page.texts("#conversations .open") == ["one"], "what cannot be read is left out"


# Everyone


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(visit, scripted, width, dark):
    page = visit(scripted, width, dark)
    axe = (pathlib.Path(pytest.importorskip("axe_core_python").__file__).parent / "axe.min.js").read_text()
    everything = "\n\n".join(text for text in MARKDOWN if "\n```" not in text) + "\n\n```py\nx = 1\n```"
    scripted.answer().send(reasoning_content="Hm.").send(content=everything).finish()
    ask(page, "text")
    page.until(ANSWERED)
    scripted.answer(500, {"error": {"message": "no engine"}})
    ask(page, "lost")
    page.until("document.querySelector('.assistant .error')")
    cut = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{"}}
    scripted.answer().call(0, "get_weather", "{}").call(1, "get_weather", "{}", id="b").finish("tool_calls", {"malformed": ["x"], "incomplete_tool_calls": [cut]})
    ask(page, "weather")
    page.until("document.querySelectorAll('form.result').length === 2")
    page.fill("form.result textarea", "sunny")
    page.press("Enter")
    page.until("document.querySelectorAll('form.result').length === 1")
    page.js("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    page.js(axe + "; true")

    def check(what):
        found = page.js("axe.run().then(({violations}) => violations.map(v => [v.id, v.impact, v.nodes.map(n => n.html + ' ' + n.failureSummary).slice(0, 3)]))")
        assert found == [], f"{what}: {json.dumps(found, indent=1)}"

    check("conversation")
    page.button("Edit", "document.querySelector('.user')")
    check("editor")
    page.press("Escape")
    page.button("Inspect")
    page.button("Show the prompt")
    page.until("document.querySelector('#inspect .block')")
    for tab in ("inspect", "settings", "tools"):
        open_panel(page, tab)
        check(tab)
    page.fill("#tools", "[")
    check("wrong tools")
    if width == PHONE:
        page.click("#close-panel")
        page.click("#open-list")
        check("list")
    page.button("Rename")
    check("rename")
    page.press("Escape")
    page.button("Delete")
    check("toast")


def test_drawers_open_and_close_on_a_phone(visit, sim):
    page = visit(sim, PHONE)
    assert page.js("document.documentElement.scrollWidth") == PHONE
    assert not page.texts("#new") and not page.texts("#maxTokens"), "drawers are closed"
    assert page.js("document.querySelector('#question').getBoundingClientRect().bottom < innerHeight")
    page.click("#open-panel")
    assert page.texts("#tab-settings") and page.js("document.querySelector('#panel').contains(document.activeElement)")
    page.press("Escape")
    assert not page.texts("#tab-settings") and page.js("document.activeElement.id") == "open-panel"
    page.click("#open-list")
    assert page.texts("#new")
    page.press("Escape")
    assert not page.texts("#new")


def test_tabs_follow_the_arrow_keys(visit, sim):
    page = visit(sim)
    page.click("#tab-settings")
    for tab, pane in (("tab-tools", "tools-pane"), ("tab-inspect", "inspect"), ("tab-settings", "settings")):
        page.press("ArrowRight")
        assert page.js("document.activeElement.id") == tab
        assert page.js("[...document.querySelectorAll('[role=tabpanel]')].filter(n => n.checkVisibility({visibilityProperty: true})).map(n => n.id)") == [pane]
