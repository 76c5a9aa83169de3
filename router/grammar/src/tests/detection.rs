//! Tests of format detection and of the format table.

use crate::{ModelDirFacts, PLAIN, Region, by_name, detect, formats};

fn name(template: Option<&str>, architecture: Option<&str>, special: &[&str]) -> Option<&'static str> {
    detect(&ModelDirFacts { template, architecture, special: &|s| special.contains(&s) }).map(|f| f.name)
}

#[test]
fn formats_are_detected_by_template_then_tokens_then_architecture() {
    let kimi = "{% for c in calls %}<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}";
    let qwen = "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
    let coder = "<tool_call>\n<function=example>\n<parameter=x> arguments";
    let glm = "<tool_call>{name}<arg_key> arguments";
    assert_eq!(name(Some(kimi), Some("DeepseekV3ForCausalLM"), &[]), Some("kimi_k2"));
    assert_eq!(name(Some(qwen), Some("Qwen3ForCausalLM"), &["<tool_call>"]), Some("hermes"));
    assert_eq!(name(Some(qwen), None, &["<|tool_calls_section_begin|>"]), Some("hermes"));
    assert_eq!(name(Some(coder), Some("Qwen3MoeForCausalLM"), &["<tool_call>"]), Some("qwen3_coder"));
    assert_eq!(name(Some(glm), None, &["<tool_call>"]), Some("glm47"));
    assert_eq!(name(None, None, &["<|tool_calls_section_begin|>"]), Some("kimi_k2"));
    assert_eq!(name(None, Some("KimiK25ForConditionalGeneration"), &[]), Some("kimi_k2"));
    assert_eq!(name(Some("{{ messages }}"), Some("MixtralForCausalLM"), &[]), None);
    // MiniCPM3 has the markers too, around a code block.
    let tokens = ["<|tool_call_start|>", "<|tool_call_end|>"];
    assert_eq!(name(Some("List of tools: {{ tools }}"), Some("Lfm2ForCausalLM"), &tokens), Some("lfm2"));
    let minicpm = "<|tool_call_start|>\n```python\n";
    assert_eq!(name(Some(minicpm), None, &[&tokens[..], &["<|thought_start|>"]].concat()), Some("minicpm3"));
}

/// Templates that differ from an older format's in one sign.
#[test]
fn newer_formats_are_not_taken_for_the_older_ones_that_they_resemble() {
    let coder = "<tool_call>\n<function=f>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>";
    let mimo = "<tool_call>\n<function=f>\n<parameter=example_parameter_1>value_1</parameter>";
    let seed = "<seed:tool_call>\n<function=f>\n<parameter=example_parameter_1>value_1</parameter>";
    let hy3 = "<tool_calls>\n<tool_call>{{ name }}<tool_sep>\n<arg_key>{{ k }}</arg_key>\n<arg_value>";
    let hunyuan = "<tool_calls>[{\"name\": \"func_name1\", \"arguments\": {}}]</tool_calls>{{ '<|extra_0|>' }}";
    let jamba = "<tool_calls>[\n{\"name\": \"f\", \"arguments\": {}}]</tool_calls>";
    let v4 = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=";
    let v4_1 = "{{ dsml }}｜DSML｜ and <｜DSML｜ calls>\n<｜DSML｜ invoke name=";
    let longcat = "<longcat_tool_call>{\"name\": <function-name>, \"arguments\": <args-dict>}</longcat_tool_call>";
    let longcat_2 = "<longcat_tool_call>{name}\n<longcat_arg_key>{{ k }}</longcat_arg_key>";
    let m2 = "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}<invoke name=";
    let m3 = "{%- set ns_token = ']<]minimax[>[' -%}{%- set toolcall_begin_token = ns_token ~ '<tool_call>' -%}";
    let cohere = "<cofl:tool_calls>{{ calls }}<cofl:value name=\"{{ k }}\" type=\"raw\">";
    let step3 = "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=";
    for (template, format) in [
        (cohere, "command_5"),
        (step3, "step3"),
        (m2, "minimax_m2"),
        (m3, "minimax_m3"),
        (coder, "qwen3_coder"),
        (mimo, "mimo_v2"),
        (seed, "seed_oss"),
        (hy3, "hy3"),
        (hunyuan, "hunyuan_a13b"),
        (jamba, "jamba"),
        (v4, "deepseek_v4"),
        (v4_1, "deepseek_v4_1"),
        (longcat, "longcat"),
        (longcat_2, "longcat_2"),
    ] {
        assert_eq!(name(Some(template), None, &[]), Some(format), "{template}");
    }
}

#[test]
fn the_table_is_consistent() {
    for f in formats() {
        assert!(std::ptr::eq(f, by_name(f.name).unwrap_or(PLAIN)), "{}: names are unique", f.name);
        assert!(!f.models.is_empty());
        if f.has_calls() {
            assert!(f.call.iter().any(|s| matches!(s, crate::Step::Args(_))), "{}", f.name);
        }
    }
    assert_eq!(PLAIN.name, "plain");
}

#[test]
fn prompts_may_end_inside_reasoning() {
    let kimi = by_name("kimi_k2").unwrap_or(PLAIN);
    assert_eq!(kimi.start_after("<|im_assistant|>assistant<|im_middle|><think>"), Region::Reasoning);
    assert_eq!(kimi.start_after("<|im_assistant|>assistant<|im_middle|><think></think>"), Region::Text);
    assert_eq!(kimi.start_after("say <think><|im_end|><|im_assistant|>assistant<|im_middle|>"), Region::Text);
    let hermes = by_name("hermes").unwrap_or(PLAIN);
    assert_eq!(hermes.start_after("<|im_start|>assistant\n<think>\n"), Region::Reasoning);
    assert_eq!(hermes.start_after("<|im_start|>assistant\n<think>\n\n</think>\n\n"), Region::Text);
}

#[test]
fn native_ids_follow_the_format() {
    let kimi = by_name("kimi_k2").unwrap_or(PLAIN);
    assert_eq!(kimi.native_id("get_weather", 3).as_deref(), Some("functions.get_weather:3"));
    assert_eq!(by_name("hermes").and_then(|f| f.native_id("get_weather", 3)), None);
    assert!(kimi.is_marker("<think>") && kimi.is_marker("<|tool_call_end|>") && !kimi.is_marker("<|im_end|>"));
}
