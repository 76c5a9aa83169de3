"""Prompts are token-exact: both batteries, all in agreement."""
import template_battery
import tokenizer_battery


def test_templates_render_as_in_transformers():
    total = template_battery.run(template_battery.templates())
    assert total["same"] > 3000
    assert not total["diff"] and not total["only-rein-errors"], total


def test_tokenizers_agree_with_the_reference():
    assert tokenizer_battery.run(["kimi", "tiktoken", *tokenizer_battery.BUILDERS]) == 0
