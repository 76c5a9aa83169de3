use serde_json::json;

use super::*;

fn of(body: Value) -> Result<ReasoningFields, Error> {
    let text = body.to_string();
    let found = Fields::of(&text)?.read(|fields| read(fields))?;
    assert_eq!(found.ignored, Vec::<String>::new());
    Ok(found.value)
}

#[test]
fn the_fields_of_all_apis_are_equivalent_and_must_agree() {
    let budget = |budget| ReasoningFields { budget: Some(budget), ..ReasoningFields::default() };
    for (body, meant) in [
        (json!({}), ReasoningFields::default()),
        (json!({"reasoning": {}, "thinking": null, "thinking_token_budget": -1}), ReasoningFields::default()),
        (json!({"thinking": true}), ReasoningFields { on: Some(true), ..ReasoningFields::default() }),
        (json!({"enable_thinking": false}), ReasoningFields { on: Some(false), ..ReasoningFields::default() }),
        (json!({"reasoning": {"enabled": true}}), ReasoningFields { on: Some(true), ..ReasoningFields::default() }),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 9}}), ReasoningFields { on: Some(true), ..budget(9) }),
        (json!({"thinking_token_budget": 0}), budget(0)),
        (json!({"thinking_budget": 5}), budget(5)),
        (json!({"thinking_budget_tokens": 5}), budget(5)),
        (
            json!({"reasoning": {"effort": "low", "max_tokens": 7, "exclude": true}}),
            ReasoningFields { effort: Some("low".into()), hide: true, ..budget(7) },
        ),
        (
            json!({"reasoning": {"effort": "low"}, "reasoning_effort": "low"}),
            ReasoningFields { effort: Some("low".into()), ..ReasoningFields::default() },
        ),
    ] {
        assert_eq!(of(body.clone()), Ok(meant), "{body}");
    }
    for (body, param, said) in [
        (
            json!({"thinking": true, "reasoning": {"enabled": false}}),
            "reasoning.enabled",
            "is false, but 'thinking' is true",
        ),
        (json!({"reasoning_effort": "low", "reasoning": {"effort": "high"}}), "reasoning.effort", "is high, but"),
        (json!({"thinking_budget": 5, "thinking_token_budget": 6}), "thinking_budget", "is 5, but"),
        (json!({"thinking_token_budget": -2}), "thinking_token_budget", "at least 0, got -2"),
        (json!({"reasoning": {"max_tokens": "x"}}), "reasoning.max_tokens", "an integer"),
        (json!({"reasoning": true}), "reasoning", "an object"),
        (json!({"enable_thinking": 1}), "enable_thinking", "a boolean"),
    ] {
        let error = of(body).expect_err(param);
        assert_eq!(error.param.as_deref(), Some(param));
        assert!(error.message.contains(said), "{error}");
    }
}

#[test]
fn keep_alone_turns_reasoning_on() {
    for (thinking, on) in [(json!({"keep": "all"}), true), (json!({"type": "disabled", "keep": "all"}), false)] {
        let text = json!({"thinking": thinking}).to_string();
        let found = Fields::of(&text).unwrap().read(|fields| read(fields)).unwrap();
        assert_eq!((found.value.on, found.ignored), (Some(on), vec!["thinking.keep".to_owned()]), "{thinking}");
    }
    for thinking in
        [json!({}), json!({"keep": null}), json!({"type": null, "keep": null}), json!({"type": "on", "keep": "all"})]
    {
        assert_eq!(of(json!({"thinking": thinking})).expect_err("no type").param.as_deref(), Some("thinking.type"));
    }
}
