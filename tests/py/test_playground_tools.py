"""Tools and settings in the playground's panel, and accessibility checks with axe."""
import json
import pathlib

import pytest

from playground import ANSWERED, DESK, NO_BROWSER, PHONE, ask, browser, close_panel, open_panel, scripted, sent, visit
from test_playground_text import MARKDOWN

pytestmark = NO_BROWSER


def test_results_are_entered_one_by_one_and_the_last_one_continues(visit, scripted):
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


def test_mock_results_stop_after_a_number_of_rounds(visit, scripted):
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


def test_errors_in_tools_are_shown_beside_the_field(visit, scripted):
    page = visit(scripted)
    open_panel(page, "tools")
    for text, wrong in WRONG_TOOLS.items():
        page.fill("#tools", text)
        assert page.text("#tools-note").startswith(wrong), (text, page.text("#tools-note"))
    open_panel(page, "settings")
    ask(page, "hello")
    page.until("document.activeElement.id === 'tools'")
    assert not scripted.requests and page.js("document.querySelector('#question').value") == "hello"


def test_the_request_contains_the_settings(visit, scripted):
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
    kinds = [{"id": i, "token": kind, "kind": kind, "refused": [{"position": i, "id": 9, "token": "no"}]} for i, kind in enumerate(("drawn", "masked", "forced"))]
    report = {"checked": 4, "refused": 3, "forced": 1, "held": 0, "masks": 1, "microseconds": 3.0, "refusals": [], "decisions": kinds}
    answer = scripted.answer().call(0, "get_weather", "{}").call(1, "get_weather", "{}", id="b")
    answer.finish("tool_calls", {"malformed": ["x"], "incomplete_tool_calls": [cut]}, grammar=report)
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
