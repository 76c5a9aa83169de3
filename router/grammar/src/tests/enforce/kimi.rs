//! The rules that a grammar enforces, one by one, in one format.

use serde_json::json;

use super::{Bench, STOP, rules, tool};
use crate::{Enforcement, Matcher, Region, Rules, ToolChoice};

const BEGIN: &str = "⟦<|tool_calls_section_begin|>⟧⟦<|tool_call_begin|>⟧";
const END: &str = "⟦<|tool_call_end|>⟧⟦<|tool_calls_section_end|>⟧";
const NEXT: &str = "⟦<|tool_call_end|>⟧⟦<|tool_call_begin|>⟧";
const ARGUMENTS: &str = "⟦<|tool_call_argument_begin|>⟧";

fn bench() -> Bench {
    Bench::new(crate::by_name("kimi_k2").expect("kimi"), false)
}

fn two() -> Rules {
    let weather = json!({"type": "object", "required": ["city"],
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    rules(vec![tool("get_weather", weather), tool("get", json!({"type": "object", "properties": {}}))])
}

fn one(name: &str, number: usize, arguments: &str) -> String {
    format!("{BEGIN}functions.{name}:{number}{ARGUMENTS}{arguments}{END}")
}

#[test]
fn everything_is_send_and_sync() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<crate::Grammars>();
    assert_send_and_sync::<crate::Compiled>();
    assert_send_and_sync::<crate::Vocab>();
    fn assert_send<T: Send>() {}
    assert_send::<Matcher>();
}

#[test]
fn text_reasoning_and_calls_are_accepted() {
    let (b, r) = (bench(), two());
    assert!(b.takes(&r, ""));
    assert!(b.takes(&r, "Hello, the weather.\n"));
    assert!(b.takes(&r, "⟦<think>⟧so⟦</think>⟧Hello"));
    assert!(b.takes(&r, "⟦<think>⟧never closed"));
    let call = one("get_weather", 0, r#"{"city": "Paris"}"#);
    assert!(b.takes(&r, &call));
    assert!(b.takes(&r, &format!("Let me look.{call}")));
    assert!(b.takes(&r, &format!("⟦<think>⟧so⟦</think>⟧Let me look.{call}")));
    assert!(b.takes(&r, &format!("⟦<think>⟧so{call}")), "straight from reasoning");
    assert!(b.takes(&r, &one("get", 0, "{}")));
    let twice =
        format!("{BEGIN}functions.get:0{ARGUMENTS}{{}}{NEXT}functions.get_weather:1{ARGUMENTS}{{\"city\":\"\"}}{END}");
    assert!(b.takes(&r, &twice));
    assert!(b.takes(&Rules { start: Region::Reasoning, ..two() }, &format!("so⟦</think>⟧text{call}")));
    assert!(b.takes(&Rules { start: Region::Reasoning, ..two() }, &format!("so{call}")));
}

#[test]
fn letters_do_not_count_as_markers() {
    let (b, r) = (bench(), two());
    assert!(b.takes(&r, "<|tool_calls_section_begin|><|tool_call_begin|>functions.rm:0"));
    assert!(b.takes(&r, "</think><think>"));
}

#[test]
fn special_tokens_out_of_place_are_rejected() {
    let (b, r) = (bench(), two());
    for (text, good) in [
        ("a⟦<|tool_call_begin|>⟧a", "a<|tool_call_begin|>"),
        ("⟦<|tool_call_begin|>⟧functions.ge:0", "<|tool_call_begin|>functions.ge"),
        ("a⟦<|tool_call_argument_begin|>⟧", "a"),
        ("a⟦<|other|>⟧", "a"),
        ("⟦<think>⟧a⟦<|other|>⟧", "<think>a"),
    ] {
        assert_eq!(b.prefix(&r, text), good, "{text}");
    }
    let call = one("get", 0, "{}");
    let shown = b.tokens.show(&b.tokens.text(&call));
    for last in [Rules { parallel: false, ..two() }, Rules { choice: ToolChoice::Named("get".into()), ..two() }] {
        assert_eq!(b.prefix(&last, &format!("{call}more")), shown, "nothing follows the section");
    }
}

/// Whatever the parser reads as text and valid calls is accepted.
#[test]
fn what_follows_a_call_is_accepted() {
    let (b, r) = (bench(), two());
    let call = one("get", 0, "{}");
    let second = one("get", 1, "{}");
    for text in [
        format!("{call}more"),
        format!("{call}\n\n{second}"),
        format!("{call}Now the other.{second}Done."),
        format!("{call}⟦<think>⟧so⟦</think>⟧{second}"),
        format!("⟦<think>⟧so{call}⟦</think>⟧text"),
        format!("a⟦<think>⟧so⟦</think>⟧b{call}"),
        format!("a⟦</think>⟧b{call}"),
        // Without the markers of the section.
        format!("a⟦<|tool_call_begin|>⟧functions.get:0{ARGUMENTS}{{}}⟦<|tool_call_end|>⟧b{second}"),
    ] {
        assert!(b.takes(&r, &text), "{text}: {}", b.prefix(&r, &text));
        let demanded = Rules { choice: ToolChoice::Required, ..two() };
        assert_eq!(b.takes(&demanded, &text), text.starts_with('⟦'), "{text}");
    }
    assert!(!b.takes(&r, &format!("{call}more{call}")), "calls are numbered");
}

#[test]
fn only_declared_names_with_the_running_number_are_accepted() {
    let (b, r) = (bench(), two());
    assert!(!b.takes(&r, &one("rm", 0, "{}")));
    assert!(!b.takes(&r, &one("get_weather2", 0, r#"{"city":"x"}"#)));
    assert!(!b.takes(&r, &one("get_", 0, "{}")));
    assert!(!b.takes(&r, &one("get", 1, "{}")));
    for before in [9, 10, 99, 305, 999, 8999] {
        let r = Rules { calls_before: before, ..two() };
        let text = format!(
            "{BEGIN}functions.get:{before}{ARGUMENTS}{{}}{NEXT}functions.get:{}{ARGUMENTS}{{}}{END}",
            before + 1
        );
        assert!(b.takes(&r, &text), "{text}");
        assert!(!b.takes(&r, &one("get", before + 1, "{}")));
        assert!(!b.takes(&r, &one("get", 0, "{}")));
        assert!(!b.takes(&r, &text.replace(&format!(":{}", before + 1), &format!(":{before}"))));
    }
    assert!(b.compile(&Rules { calls_before: 10_000, ..two() }).matcher().is_err());
}

#[test]
fn arguments_satisfy_the_schema() {
    let (b, r) = (bench(), two());
    for good in [
        r#"{"city": "Paris"}"#,
        r#"{"days":3,"city":"x"}"#,
        "{\n    \"city\": \"x\",\n    \"days\": -3\n}",
        r#" { "city" : "é\u00e9\n\ud83d\ude00" , "days" : 0 } "#,
    ] {
        assert!(b.takes(&r, &one("get_weather", 0, good)), "{good}");
    }
    for bad in [
        "{}",
        "[]",
        r#"{"days": 3}"#,
        r#"{"city": 3}"#,
        r#"{"city": "a", "days": "3"}"#,
        r#"{"city": "a", "days": 1.5}"#,
        r#"{"city": "a", "city": "b"}"#,
        r#"{"city": "a", "country": "b"}"#,
        r#"{"city": "a",}"#,
        r#"{"city": "\ud83d"}"#,
        r#"{"city": "a"}}"#,
        "",
    ] {
        assert!(!b.takes(&r, &one("get_weather", 0, bad)), "{bad}");
    }
    assert!(!b.takes(&r, &one("get", 0, r#"{"x": 1}"#)));
    let names = Rules { enforcement: Enforcement::Names, ..two() };
    assert!(b.takes(&names, &one("get", 0, r#"{"x": [1, {"y": null}]}"#)));
    assert!(!b.takes(&names, &one("get", 0, "[1]")));
    assert!(!b.takes(&names, &one("rm", 0, "{}")));
    assert!(b.grammars.compile(&Rules { enforcement: Enforcement::Off, ..two() }).expect("off").is_none());
}

#[test]
fn tool_choice_is_enforced() {
    let b = bench();
    let call = one("get", 0, "{}");
    let with = |choice: ToolChoice| Rules { choice, ..two() };
    let none = with(ToolChoice::None);
    assert!(b.takes(&none, "⟦<think>⟧a⟦</think>⟧text"));
    assert!(!b.takes(&none, &call));
    assert_eq!(b.prefix(&none, "⟦<think>⟧a⟦<|tool_calls_section_begin|>⟧"), "<think>a");
    let required = with(ToolChoice::Required);
    assert!(!b.takes(&required, "") && !b.takes(&required, "text") && !b.takes(&required, "⟦<think>⟧a"));
    assert!(b.takes(&required, &call) && b.takes(&required, &format!("\n\n{call}")));
    assert_eq!(b.prefix(&required, &format!("text{call}")), "", "text comes before no call that is demanded");
    assert_eq!(b.prefix(&required, &format!("⟦<think>⟧a⟦</think>⟧\nI{call}")), "<think>a</think>\n");
    assert!(b.takes(&required, &format!("⟦<think>⟧a⟦</think>⟧{call}")));
    let named = with(ToolChoice::Named("get".into()));
    assert!(
        b.takes(&named, &call) && !b.takes(&named, &one("get_weather", 0, r#"{"city":""}"#)) && !b.takes(&named, "")
    );
    let allowed = |required| with(ToolChoice::Allowed { names: vec!["get".into()], required });
    assert!(b.takes(&allowed(false), "") && !b.takes(&allowed(true), ""));
    assert!(!b.takes(&allowed(false), &one("get_weather", 0, r#"{"city":""}"#)));
    let single = Rules { parallel: false, ..two() };
    assert!(b.takes(&single, &call));
    assert!(
        !b.takes(&single, &format!("{BEGIN}functions.get:0{ARGUMENTS}{{}}{NEXT}functions.get:1{ARGUMENTS}{{}}{END}"))
    );
    assert!(b.grammars.compile(&with(ToolChoice::Named("rm".into()))).is_err());
    assert!(b.grammars.compile(&rules(Vec::new())).expect("nothing").is_none());
}

#[test]
fn a_rejected_token_does_not_change_the_state() {
    let b = bench();
    let mut m = b.matcher(&two());
    let ids = b.tokens.text(&one("get_weather", 0, r#"{"city": "Paris"}"#));
    for id in &ids {
        let before = m.mask().expect("mask");
        for other in (0..b.tokens.words.len() as u32).step_by(3) {
            let allowed = before[other as usize / 8] >> (other % 8) & 1 == 1;
            if !allowed {
                assert_eq!(m.accept(other), Ok(false), "{:?}", b.tokens.show(&[other]));
            } else {
                assert_eq!(m.clone().accept(other), Ok(true), "{:?}", b.tokens.show(&[other]));
            }
        }
        assert_eq!(m.mask().expect("mask"), before);
        assert_eq!(m.accept(*id), Ok(true));
    }
    assert!(!m.is_stopped() && m.may_stop(), "text may follow");
    let mut m = b.matcher(&Rules { parallel: false, ..two() });
    assert_eq!(b.run(&mut m, &ids), (ids.len(), true));
    assert!(m.is_stopped());
    let stop = b.tokens.special(STOP);
    assert_eq!(m.accept(ids[0]), Ok(false));
    let mut only = vec![0; b.tokens.words.len().div_ceil(8)];
    only[stop as usize / 8] |= 1 << (stop % 8);
    assert_eq!(m.mask(), Ok(only));
    assert_eq!(m.accept(stop), Ok(true));
    assert_eq!(m.accept(stop), Ok(false));
    assert_eq!(m.accept(u32::MAX), Ok(false));
}

#[test]
fn tokens_without_an_alternative_are_forced() {
    let b = bench();
    let mut m =
        b.matcher(&Rules { choice: ToolChoice::Named("get_weather".into()), start: Region::Reasoning, ..two() });
    let mut forced = 0;
    assert_eq!(m.accept(b.tokens.special("<|tool_calls_section_begin|>")), Ok(true));
    let mut out = Vec::new();
    loop {
        let ids = m.forced();
        if ids.is_empty() {
            break;
        }
        for id in ids {
            let mask = m.mask().expect("mask");
            assert_eq!(mask[id as usize / 8] >> (id % 8) & 1, 1, "mask has no {:?}", b.tokens.show(&[id]));
            assert_eq!(m.accept(id), Ok(true), "forced {:?}", b.tokens.show(&[id]));
            out.push(id);
            forced += 1;
        }
    }
    let text = b.tokens.show(&out);
    assert_eq!((text.as_str(), forced), ("<|tool_call_begin|>", 1), "models omit the prefix of the name");
    let named = Rules { choice: ToolChoice::Named("get_weather".into()), ..two() };
    let mut canonical = b.compile(&named).canonical().expect("a canonical form");
    canonical.follow(&[b.tokens.special("<|tool_calls_section_begin|>")]);
    let text = b.tokens.show(&canonical.forced());
    assert!(text.starts_with("<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"), "{text:?}");
    // Forcing does not narrow what is accepted: bytes count, not tokens.
    let mut m = b.matcher(&Rules { choice: ToolChoice::Named("get_weather".into()), ..two() });
    for id in b.tokens.text("⟦<|tool_calls_section_begin|>⟧⟦<|tool_call_begin|>⟧") {
        m.forced();
        assert_eq!(m.accept(id), Ok(true));
    }
    m.forced();
    for byte in b"functions" {
        assert_eq!(m.accept(u32::from(*byte)), Ok(true), "{}", char::from(*byte));
        m.forced();
    }
}

#[test]
fn grammars_are_cached() {
    let b = bench();
    let first = b.compile(&two());
    let second = b.compile(&Rules { calls_before: 7, ..two() });
    assert!(std::ptr::eq(first.lark(), second.lark()), "one grammar for every conversation");
}
