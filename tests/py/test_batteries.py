"""Prompts are token-exact: the batteries, all in agreement."""
import json

import fragments
import template_battery
import tokenizer_battery


def test_templates_render_as_in_transformers():
    total = template_battery.run(template_battery.templates())
    assert total["same"] > 3000
    assert not total["diff"] and not total["only-rein-errors"], total


def test_the_fragments_expect_what_transformers_gives():
    table = json.loads(fragments.PATH.read_text(encoding="utf-8"))
    assert fragments.expectations(table) == table["cases"]


def test_conversations_are_served_as_a_careful_user_would_render_them():
    total = template_battery.run(template_battery.templates(), raw=False)
    assert total["same"] > 3000
    assert not total["diff"] and not total["only-rein-errors"], total


def test_tokenizers_agree_with_the_reference():
    assert tokenizer_battery.run(["kimi", "tiktoken", *tokenizer_battery.BUILDERS]) == 0
