//! The work of a render is bounded, whatever the conversation. Hostile conversations have as many messages as allowed,
//! and one long text.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::super::cpu_time::thread_cpu_time;
use super::{ChatTemplate, Reason, RenderInput, TemplateOptions};
use crate::limits::{MESSAGES, TEMPLATE_CPU_TIME};

/// Templates that work on all the text so far, or on the longest text, for each message.
const QUADRATIC: &[&str] = &[
    "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + '\\n\\n' + m.content %}{% endfor %}",
    "{% set ns = namespace(t='') %}{%- for m in messages if m.content -%}{% set ns.t = ns.t ~ m.content %}{% endfor %}",
    "{% set ns = namespace(t=[]) %}{% for m in messages %}{% set ns.t = ns.t + [m] %}{% endfor %}{{ ns.t|length }}",
    "{% for m in messages %}{% if messages[0].content|trim == m.content %}{% else %}{{ m.role }}{% endif %}{% endfor %}",
    "{% for m in messages if m.content in messages[0].content|replace('x', 'y') %}{{ m.content }}{% endfor %}",
    "{% for m in messages recursive %}{{ messages[0].content[1:]|length }}{{ loop([]) }}{% else %}-{% endfor %}",
    "{{ messages|selectattr('content', 'in', messages[0].content)|list|length }}",
    "{{ messages|map(attribute='content')|map('trim', messages[0].content)|list|length }}",
    "{% macro all(ms) %}{% for m in ms %}{% if messages[0].content|upper is none %}{% endif %}{% endfor %}{% endmacro %}{{ all(messages) }}",
];

fn hostile(longest: usize) -> RenderInput {
    let content = |i| if i == 0 { "x".repeat(longest) } else { "12345678".to_owned() };
    let messages: Vec<Json> = (0..MESSAGES).map(|i| json!({"role": "user", "content": content(i)})).collect();
    RenderInput { messages, ..RenderInput::default() }
}

/// The error, and the CPU time of the render.
fn refused(source: &str, options: TemplateOptions, input: &RenderInput) -> (Reason, Option<String>, Duration) {
    let template = ChatTemplate::from_source(source, options).unwrap();
    let began = thread_cpu_time();
    let error = template.render(input).expect_err(source);
    (error.reason, error.param, thread_cpu_time() - began)
}

#[test]
fn a_render_ends_at_its_limit_of_cpu_time() {
    let most = Duration::from_millis(100);
    let input = hostile(1 << 20);
    for source in QUADRATIC {
        let options = TemplateOptions { cpu_time: most, ..TemplateOptions::default() };
        let (reason, param, took) = refused(source, options, &input);
        assert_eq!((reason, param.as_deref()), (Reason::CpuTime, Some("messages")), "{source}");
        assert!(took < 5 * most, "{source}: {took:?}");
    }
}

#[test]
fn the_default_limit_holds_for_the_largest_body() {
    let (reason, _, took) = refused(QUADRATIC[0], TemplateOptions::default(), &hostile(24 << 20));
    assert_eq!(reason, Reason::CpuTime);
    assert!(took < 2 * TEMPLATE_CPU_TIME, "{took:?}");
}

#[test]
fn long_conversations_render() {
    let text = "word ".repeat(420);
    let messages = (0..1_000).map(|_| json!({"role": "user", "content": text})).collect();
    let input = RenderInput { messages, ..RenderInput::default() };
    let all = text.repeat(1_000);
    let source = |append: &str| {
        format!(
            "{{% set ns = namespace(t='') %}}{{% for m in messages %}}{{% set ns.t = ns.t {append} m.content %}}{{% endfor %}}{{{{ ns.t }}}}"
        )
    };
    for source in [source("~"), source("+"), "{% for m in messages if true %}{{ m.content }}{% endfor %}".to_owned()] {
        let template = ChatTemplate::from_source(&source, TemplateOptions::default()).unwrap();
        assert!(template.render(&input).unwrap() == all, "{source}");
    }
}
