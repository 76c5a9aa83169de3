use rein_grammar::by_name;

use super::*;
use crate::model_text::ModelOverrides;
use crate::tests::model_dir::model_dir;

const KIMI: &str = "{% if tools %}<|control|>{{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: \
    {%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}\
    {%- if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>\
    {{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}<|im_end|>{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";

fn report(template: &str, format: &str) -> CheckReport {
    let dir = model_dir(template);
    let text = ModelText::load(&dir, &ModelOverrides { name: Some("m".into()), ..ModelOverrides::default() });
    std::fs::remove_dir_all(dir).unwrap();
    check(&text.unwrap(), by_name(format).unwrap())
}

fn finding(report: &CheckReport, check: &str) -> (Verdict, String) {
    let finding = report.findings.iter().find(|finding| finding.check == check).unwrap();
    (finding.verdict, finding.message.clone())
}

#[test]
fn a_complete_template_has_no_findings() {
    let report = report(KIMI, "kimi_k2");
    let bad: Vec<_> = report.findings.iter().filter(|f| f.verdict > Verdict::Fine && f.check != "revision").collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(report.template_sha256.as_deref(), Some(sha256_hex(KIMI.as_bytes()).as_str()));
}

#[test]
fn every_fault_is_reported_by_its_check() {
    let instead = |part: &str, other: &str| {
        assert!(KIMI.contains(part), "{part}");
        KIMI.replace(part, other)
    };
    for (template, format, check, verdict, words) in [
        (instead("{{ tools | tojson }}", ""), "kimi_k2", "tools", Verdict::Broken, "never shows the tools"),
        (
            instead("if tools", "if tools and messages | length > 1"),
            "kimi_k2",
            "tools",
            Verdict::Broken,
            "drops the tools in a chat with a first user message",
        ),
        (
            instead("{{ m.content or '' }}", "{{ (m.content or '') if m.role != 'tool' }}"),
            "kimi_k2",
            "results",
            Verdict::Broken,
            "drops tool results",
        ),
        (
            instead("{{ m.role }}:", "{{ m.role if m.role != 'tool' else raise_exception('no results') }}:"),
            "kimi_k2",
            "results",
            Verdict::Broken,
            "no results",
        ),
        (
            instead("c.function.arguments | tojson", "c.function.name"),
            "kimi_k2",
            "arguments",
            Verdict::Broken,
            "does not show the arguments",
        ),
        (
            instead("{{ m.content or '' }}", "{{ raise_exception('silent') if not m.content }}{{ m.content }}"),
            "kimi_k2",
            "content",
            Verdict::Broken,
            "silent",
        ),
        (instead("{{ m.reasoning_content }}", ""), "kimi_k2", "reasoning", Verdict::Warning, "drops the reasoning"),
        (
            instead("assistant: {% endif %}", "{% endif %}"),
            "kimi_k2",
            "generation prompt",
            Verdict::Warning,
            "does not end where an answer begins",
        ),
        (
            instead("{% if tools %}", "{% if tools | length %}"),
            "kimi_k2",
            "plain chat",
            Verdict::Warning,
            "rejects a chat without tools",
        ),
        (KIMI.to_owned(), "deepseek_v3", "markers", Verdict::Broken, "are never detected"),
        (KIMI.to_owned(), "plain", "format", Verdict::Broken, "--format"),
        (KIMI.to_owned(), "hermes", "read back", Verdict::Broken, "does not detect a simple call"),
        (
            instead("{{ c.function.arguments | tojson }}", "{{ {'x': c.function.arguments} | tojson }}"),
            "kimi_k2",
            "read back",
            Verdict::Broken,
            "parses a simple call as",
        ),
        (
            instead("{% for c in m.tool_calls %}", "{% for c in m.tool_calls[:1] %}"),
            "kimi_k2",
            "read back",
            Verdict::Broken,
            "the template writes two calls",
        ),
        (KIMI.to_owned(), "kimi_k2", "revision", Verdict::Warning, "detected by its behaviour"),
    ] {
        let (found, message) = finding(&report(&template, format), check);
        assert!(found == verdict && message.contains(words), "{check} {words}: {found:?} {message}");
    }
}

/// A template that explains one format and writes calls as `call` does.
fn explaining(signs: &str, call: &str) -> String {
    format!(
        "{{% if tools %}}{signs}{{{{ tools | tojson }}}}{{% endif %}}{{% for m in messages %}}{{{{ m.role }}}}: \
         {{{{- m.content or '' }}}}{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}<|im_end|>{{% endfor %}}\
         {{% if add_generation_prompt %}}assistant: {{% endif %}}"
    )
}

#[test]
fn a_format_that_the_template_contradicts_is_not_used() {
    let hermes = "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
    let object = "<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>";
    let coder = "<tool_call>\n<function=example>\n<parameter=x>\n";
    let parameters = "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}\
        <parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>";
    let unknown =
        "]<]x[>[<tool_call>\n]<]x[>[<invoke name=\"{{ c.function.name }}\">{{ c.function.arguments | tojson }}";
    let m3 = "{% set ns = ']<]minimax[>[' %}{% set begin = ns ~ '<tool_call>' %}";
    let elements = "{% set ns = ']<]minimax[>[' %}{% macro put(name, v) %}{{ ns }}<{{ name }}>\
        {%- if v is mapping %}{% for k, w in v.items() %}{{ put(k, w) }}{% endfor %}\
        {%- elif v is string or v is number %}{{ v if v is string else v | tojson }}\
        {%- else %}{% for w in v %}{{ put('item', w) }}{% endfor %}{% endif %}{{ ns }}</{{ name }}>{% endmacro %}\
        {{- ns }}<tool_call>\n{{ ns }}<invoke name=\"{{ c.function.name }}\">\
        {%- for k, v in c.function.arguments.items() %}{{ put(k, v) }}{% endfor %}{{ ns }}</invoke>\n{{ ns }}</tool_call>";
    for (signs, call, format, why) in [
        (hermes, object, "hermes", ""),
        (coder, parameters, "qwen3_coder", ""),
        (coder, object, "hermes", "the grammar of qwen3_coder takes"),
        (hermes, unknown, "plain", "the template writes calls that hermes does not read"),
        // MiniMax-M3's template writes so.
        (m3, elements, "minimax_m3", ""),
        // A template without calls contradicts nothing.
        (hermes, "", "hermes", ""),
    ] {
        let dir = model_dir(&explaining(signs, call));
        let mut text = ModelText::load(&dir, &ModelOverrides::default()).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
        let settled = text.settle_format(None);
        assert_eq!(settled.name, format, "{signs:?} {call:?} {:?}", text.contradiction);
        let found = text.contradiction.clone().unwrap_or_default();
        assert!(found.contains(why) && found.is_empty() == why.is_empty(), "{found}");
        let (verdict, message) = finding(&check(&text, settled), "format");
        let expected = match (why, format) {
            ("", _) => Verdict::Fine,
            (_, "plain") => Verdict::Broken,
            _ => Verdict::Warning,
        };
        assert_eq!(verdict, expected, "{message}");
        assert_eq!(text.settle_format(by_name("glm45")).name, "glm45");
    }
}

/// A checkpoint of a family that the table does not have: tags of its own around each argument.
#[test]
fn a_response_template_makes_a_format() {
    let call = "<hey:call>\n<fn={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}\
        <arg={{ k }}>{{ v if v is string else v | tojson }}</arg>\n{% endfor %}</fn>\n</hey:call>";
    let described = json!({"start_anchor": "assistant: ", "fields": {
        "thinking": {"open": "<mm>", "close": "</mm>"},
        "tool_calls": {
            "open_pattern": r"<hey:call>\s*<fn=(?P<name>[^>]+)>", "close_pattern": r"</fn>\s*</hey:call>", "repeats": true,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<arg=(?P<key>[^>]+)>\s*(?P<value>.*?)\s*</arg>"},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<|im_end|>"},
    }});
    for (described, format, says) in [
        (described, "response_template", "response_template describes"),
        (
            json!({"fields": {"tool_calls": {"open": "<a>"}}}),
            "plain",
            "the template writes calls that kimi_k2 does not read",
        ),
    ] {
        let dir = model_dir(&explaining("Tools: ", call));
        let file = dir.join("tokenizer_config.json");
        let mut config: Json = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        config["response_template"] = described;
        std::fs::write(&file, config.to_string()).unwrap();
        let mut text = ModelText::load(&dir, &ModelOverrides::default()).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
        let settled = text.settle_format(None);
        assert_eq!(settled.name, format, "{:?}", text.contradiction);
        let report = check(&text, settled);
        let (_, message) = finding(&report, "format");
        assert!(message.contains(says), "{message}");
        if settled.name == "response_template" {
            let (verdict, message) = finding(&report, "read back");
            assert_eq!(verdict, Verdict::Fine, "{message}");
            // The layout is that of the template: a value has no line breaks around it.
            let call = rein_grammar::Call { name: "f".into(), arguments: r#"{"a": "x"}"#.into() };
            let turn = rein_grammar::Turn { calls: vec![call], ..rein_grammar::Turn::default() };
            let written = rein_grammar::render_text(&rein_grammar::render(settled, &turn, Default::default()));
            assert_eq!(written, "<hey:call>\n<fn=f>\n<arg=a>x</arg>\n</fn>\n</hey:call>");
        }
    }
}

#[test]
fn without_a_template_there_are_no_tool_calls() {
    let dir = model_dir("");
    std::fs::write(dir.join("tokenizer_config.json"), r#"{"eos_token": "<|im_end|>"}"#).unwrap();
    let text = ModelText::load(&dir, &ModelOverrides::default());
    std::fs::remove_dir_all(dir).unwrap();
    let report = check(&text.unwrap(), by_name("plain").unwrap());
    assert_eq!((report.worst(), report.findings.len()), (Verdict::Broken, 1));
}

#[test]
fn outdated_checkpoints_are_reported() {
    let dir = model_dir("{{ messages }}");
    let text = ModelText::load(&dir, &ModelOverrides::default());
    std::fs::remove_dir_all(dir).unwrap();
    let text = ModelText { revision: Some("09d5f937b41ae72c90d7155c9a901e2b5831dfaf".into()), ..text.unwrap() };
    let (verdict, message) = finding(&check(&text, by_name("kimi_k2").unwrap()), "revision");
    assert!(verdict == Verdict::Warning && message.contains("94a4053eb8863059dd8afc00937f054e1365abbd"), "{message}");
}
