"""How the playground renders a model's text: as Markdown, never as HTML."""
import json
import urllib.request

from playground import ANSWERED, NO_BROWSER, ask, browser, scripted, visit

pytestmark = NO_BROWSER
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


def test_markdown_renders_any_text_in_bounded_time(visit, sim):
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


def test_incomplete_calls_are_marked(visit, scripted):
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


def test_relaxed_schemas_and_ignored_fields_are_shown(visit, scripted):
    page = visit(scripted)
    scripted.answer(headers={"x-rein-relaxed": "get_weather#/not", "x-rein-ignored-fields": "thinking,seed"}).send(content="x").finish(invalid_response="at /a: no")
    ask(page, "x")
    page.until(ANSWERED)
    assert "Not enforced by the grammar: get_weather#/not" in page.texts(".facts")
    assert "Ignored by the server or the model's template: seed" in page.texts(".facts")
    assert "at /a: no" in page.text(".assistant .error")
