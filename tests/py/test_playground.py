"""The playground in Chromium, with a desktop and a phone viewport: calls, keys, questions, conversations."""
import json
import re
import subprocess
import sys

import pytest

from conftest import BIN, Server
from playground import ANSWERED, BUSY, DESK, NO_BROWSER, PHONE, ask, browser, close_panel, open_panel, scripted, sent, visit

pytestmark = NO_BROWSER


# With the demo model


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_tool_call_with_reasoning_is_shown_and_continued(visit, demo, width):
    page = visit(demo, width, ask="What is the weather in Paris?", tool_choice="required", temperature="0", reasoning="true")
    page.until(ANSWERED)
    assert page.text(".call strong") == "get_weather" and '"city"' in page.text(".arguments")
    assert page.text(".reasoning summary") == "Reasoning" and not page.texts(".thoughts"), "reasoning is folded"
    assert page.text(".assistant .who") == "demo"
    assert re.search(r"Waits for tool results · \d+ prompt tokens.* · \d+ tokens \(\d+ reasoning\) · first token after .* · \d+ tokens/s", page.text(".assistant .facts"))
    page.fill("form.result textarea", '{"temperature": 21}')
    page.press("Enter")
    page.until("document.querySelectorAll('.assistant .facts').length >= 3")
    assert page.texts(".result pre") == ['{\n  "temperature": 21\n}']
    assert "Waits for tool results" not in page.text("#log .assistant .facts"), "the first answer waits no more"
    assert page.js("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_an_example_question_is_asked_when_it_is_tapped(visit, demo, width):
    page = visit(demo, width)
    page.until("document.querySelector('.questions button')")
    assert "What is the weather in Paris?" in page.texts(".questions button")
    hint = page.text("#hint")
    assert ("Shift+Enter" in hint) == (width == DESK)
    if width == PHONE:
        assert page.js("document.querySelector('#hint').offsetHeight") < 30, "one line"
    page.button("What is the weather in Paris?")
    page.until(ANSWERED)
    assert page.text(".bubble") == "What is the weather in Paris?" and not page.texts(".questions")


def test_example_questions_are_those_of_the_declared_tools(visit, sim):
    page = visit(sim)
    open_panel(page, "tools")
    page.js("(e => { e.value = 'No tools'; e.dispatchEvent(new Event('change')); })(document.querySelector('#examples'))")
    assert page.texts(".questions button") == ["What is a mixture-of-experts model?"]


def test_a_short_answer_has_no_rate(visit, scripted):
    page = visit(scripted)
    for tokens in (19, 20):
        answer = scripted.answer().send(content="a")
        ask(page, "x")
        page.until("document.querySelector('.assistant:last-of-type .markdown')")
        answer.finish(tokens=tokens)
        page.until(ANSWERED)
        page.until(f"document.querySelector('#log').innerText.includes('{tokens} tokens')")
    rates = [facts for facts in page.texts(".assistant .facts") if "tokens" in facts]
    assert [("tokens/s" in facts) for facts in rates] == [False, True], rates


def test_a_request_can_be_repeated_as_curl_and_as_python(visit, demo, tmp_path):
    page = visit(demo, ask="What's the weather in \"Paris\"? $HOME \\n", tool_choice="required", temperature="0", reasoning="false")
    page.until(ANSWERED)
    called = page.text(".arguments")
    page.button("Inspect")
    made = {}
    for kind in ("curl", "Python"):
        # The clipboard of a page without the focus of a window cannot be read.
        page.js("navigator.clipboard.writeText = async text => { window.copied = text; }")
        page.button(f"Copy as {kind}")
        page.until("window.copied")
        made[kind] = page.js("window.copied")
        page.js("delete window.copied")
    (tmp_path / "again.py").write_text(made["Python"])
    run = lambda *command: subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    answered = json.loads(run("bash", "-c", made["curl"]))
    call = answered["choices"][0]["message"]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == json.loads(called)
    assert call["arguments"] in run(sys.executable, str(tmp_path / "again.py")).replace("\\'", "'")


def test_an_answer_without_tools_is_text(visit, demo):
    page = visit(demo, ask="hello", example="No tools", temperature="0")
    page.until(ANSWERED)
    assert page.text(".markdown") and not page.texts(".call")


def test_an_error_of_the_server_is_shown(visit, demo):
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
    counted = dict(re.findall(r"(Checked|Refused|Forced)\s+(\d+)", page.text(".report")))
    ids = blocks[2].split()
    assert len(page.texts(".tokens .token:not(del)")) == len(ids)
    assert len(page.texts(".tokens .forced")) == int(counted["Forced"]) and len(page.texts(".tokens del")) == int(counted["Refused"])
    page.button("Next")
    assert page.text(".decision").startswith(f"Token 2 of {len(ids)}, ") and f"({ids[1]})" in page.text(".decision")
    page.button("Previous")
    page.button("Previous")
    assert page.text(".decision").startswith(f"Token 1 of {len(ids)}, "), "there is none before the first"


def test_decisions_show_refused_and_masked_tokens(visit, scripted):
    page = visit(scripted)
    token = lambda id, text, kind, *refused: {"id": id, "token": text, "kind": kind, "refused": [{"position": 0, "id": i, "token": t} for i, t in refused]}
    decisions = [token(1, "a", "drawn"), token(2, "<b>\n", "masked", (7, "no"), (8, "nor")), token(3, " c", "forced")]
    report = {"checked": 4, "refused": 2, "forced": 1, "held": 0, "masks": 1, "microseconds": 3.0, "refusals": [], "decisions": decisions}
    scripted.answer().send(content="x").finish(grammar=report)
    ask(page, "x")
    page.until(ANSWERED)
    assert scripted.requests[-1]["return_decisions"] is True
    page.button("Inspect")
    assert page.text(".tokens") == "anonor<b>⏎\n␣c"
    assert page.text(".decision") == 'Token 2 of 3, "<b>\\n" (2): drawn under the grammar\'s mask. Refused here before: "no" (7), "nor" (8).'
    page.click(".tokens .forced")
    assert page.text(".decision") == 'Token 3 of 3, " c" (3): not drawn: the grammar left no other token.'
    assert "decisions" not in page.js("JSON.stringify(localStorage)"), "they are too much to keep"
    page.open(scripted.http)
    page.button("Inspect")
    assert not page.texts(".tokens") and "until the page is closed" in page.text("#inspect")


# Keys


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    made = subprocess.run([BIN, "key", "create", "a"], capture_output=True, text=True, check=True)
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


def test_a_rejected_key_leads_to_the_key_field_and_the_question_is_not_added(visit, scripted):
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


def test_a_failed_question_is_not_added_to_the_history(visit, scripted):
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


def test_the_history_continues_without_a_failed_question(visit, scripted):
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
def test_enter_sends_but_never_stops_and_esc_stops(visit, scripted, width):
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


def test_a_question_stopped_before_the_first_token_is_not_added(visit, scripted):
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
def test_the_log_scrolls_with_the_answer_until_the_user_scrolls_up(visit, scripted, width):
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


def test_a_question_can_be_edited_and_an_answer_regenerated(visit, scripted):
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


# Conversations


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_conversations_have_names_and_survive_a_reload(visit, scripted, width):
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


def test_an_answer_continues_while_another_conversation_is_shown(visit, scripted):
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


def test_leaving_the_page_during_an_answer_keeps_the_partial_answer(visit, scripted):
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
