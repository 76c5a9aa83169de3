"""Prompts are token-exact: runs all batteries."""
import json

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


def test_tokenizers_agree_with_the_reference():
    assert tokenizer_battery.run(["kimi", "tiktoken", *tokenizer_battery.BUILDERS]) == 0
