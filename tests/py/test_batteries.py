"""Prompts are token-exact: runs all batteries."""
import json

import conversations
import fragments
import template_battery
import tokenizer_battery


def test_templates_render_as_in_transformers():
    total = template_battery.run(template_battery.templates())
    assert total["same"] > 3000
    assert not total["diff"] and not total["only-rein-errors"], total


def test_fragments_match_transformers():
    table = json.loads(fragments.PATH.read_text(encoding="utf-8"))
    assert fragments.expectations(table) == table["cases"]


def test_served_conversations_match_a_careful_user_of_transformers():
    total = template_battery.run(template_battery.templates(), raw=False)
    assert total["same"] > 3000
    assert not total["diff"] and not total["only-rein-errors"], total


def test_long_conversations_render_as_in_transformers():
    """1,000 messages and 2 MiB; once with system messages, which some templates append to one text."""
    text = "word " * 420
    turns = [conversations.user(text), conversations.assistant(text)] * 500 + [conversations.user("Go on.")]
    histories = {"turns": turns, "systems": [conversations.system(text)] * 900 + turns[-101:]}
    cases = [(name, messages, conversations.TOOLS["one"], True, conversations.SPECIAL) for name, messages in histories.items()]
    # Templates of this folder print a conversation several times, which exceeds the limit of a prompt.
    models = [path for path in template_battery.templates() if path.parent.parent != template_battery.REPOSITORY / "tests/py"]
    total = template_battery.run(models, cases=cases)
    assert total["same"] >= len(models)
    assert not total["diff"] and not total["only-rein-errors"], total


def test_tokenizers_agree_with_the_reference():
    assert tokenizer_battery.run(["kimi", "tiktoken", *tokenizer_battery.BUILDERS]) == 0
