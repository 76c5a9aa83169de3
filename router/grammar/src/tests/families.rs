//! The habits of each model family. As in `lenient.rs`, `«x»` is the special token `x`; everything else is text.

use serde_json::json;

use super::{Random, cuts, parse, pieces, short};
use crate::{Format, PLAIN, ParserOptions, Region, Tool, by_name};

pub(super) fn format(name: &str) -> &'static Format {
    by_name(name).unwrap_or(PLAIN)
}

fn tools() -> Vec<Tool> {
    let parameters = Some(json!({"properties": {
        "s": {"type": "string"}, "t": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"},
        "l": {"type": "array"}, "o": {"type": ["object", "null"]}, "m": {"anyOf": [{"type": "string"}, {"type": "null"}]}
    }}));
    ["f", "search", "ns.tool-x"]
        .map(|n| Tool { name: n.into(), parameters: parameters.clone(), ..Tool::default() })
        .into()
}

pub(super) fn check_from(name: &str, start: Region, cases: &[(&str, &str)]) {
    let format = format(name);
    assert_eq!(format.name, name);
    for (output, want) in cases {
        let pieces = pieces(output);
        for cut in cuts(&pieces, &mut Random::new(7)) {
            let options = ParserOptions { start, tools: tools().into(), parse_tools: true };
            assert_eq!(short(&parse(format, options, &cut)), *want, "{name}: {output:?} cut as {cut:?}");
        }
    }
}

pub(super) fn check(name: &str, cases: &[(&str, &str)]) {
    check_from(name, Region::Text, cases);
}

#[test]
fn qwen3_coder_is_read() {
    let cases = [
        (
            "Hi.\n\n<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
            r#"T(Hi.)C(f|-|{"s": "x", "n": 3})"#,
        ),
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>", "C(f|-|{})"),
        // The first marker is missing, or the last one.
        ("Hi.\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>", r#"T(Hi.)C(f|-|{"n": 3})"#),
        ("<function=f>\n</function>\n<function=search>\n</function>\nBye", "C(f|-|{})C(search|-|{})T(\nBye)"),
        ("use <function=nobody> here", "T(use <function=nobody> here)"),
        // Newlines beyond the template's one on each side belong to the value.
        ("<function=f><parameter=s>\n\n x \n\n</parameter></function>", r#"C(f|-|{"s": "\n x \n"})"#),
        ("<function=f><parameter=s>x</parameter></function>", r#"C(f|-|{"s": "x"})"#),
        // Python's words, and values that are not literals.
        (
            "<function=f>\n<parameter=b>\nTrue\n</parameter>\n<parameter=o>\nNone\n</parameter>\n<parameter=l>\n['a', 1]\n</parameter>\n</function>",
            r#"C(f|-|{"b": true, "o": null, "l": ["a", 1]})"#,
        ),
        ("<function=f><parameter=n>\nthree\n</parameter></function>", r#"C(f|-|{"n": "three"})"#),
        (
            "<function=f><parameter=m>\nnull\n</parameter><parameter=s>\nnull\n</parameter></function>",
            r#"C(f|-|{"m": null, "s": "null"})"#,
        ),
        ("<function=f><parameter=x>\n5\n</parameter></function>", r#"C(f|-|{"x": "5"})"#),
        // Markers in a value, with no other marker after them.
        (
            "<function=f><parameter=s>\na </parameter> b <parameter=q> </function> c\n</parameter>\n</function>",
            r#"C(f|-|{"s": "a </parameter> b <parameter=q> </function> c"})"#,
        ),
        // Missing end markers.
        (
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n<parameter=n>\n3\n</function>\n</tool_call>",
            r#"C(f|-|{"s": "x", "n": 3})"#,
        ),
        ("<tool_call>\n<function=f\n<parameter=s\nx\n</parameter>\n</function>", r#"C(f|-|{"s": "x"})"#),
        ("<tool_call>\n<function=f>\n<parameter=s>\nx", r#"C?(f|-|{"s": "x)"#),
        ("<tool_call>\n<function=f>\n<parameter=n>\n12", r#"C?(f|-|{"n": 12)"#),
        ("<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n", r#"C?(f|-|{"s": "x")"#),
        (
            "<tool_call>\n<function=f>\nwhy\n<parameter=n>3</parameter></function></tool_call>",
            r#"C(f|-|{"n": 3})M(why
)"#,
        ),
        // JSON that was escaped once more.
        (r#"<function=f><parameter=l>[{\"a\": 1}]</parameter></function>"#, r#"C(f|-|{"l": [{"a": 1}]})"#),
        // The whole object in place of single arguments.
        ("<function=f>\n{\"n\": 3}\n</function>", r#"C(f|-|{"n": 3})"#),
        ("<think>\nuse <tool_call>?\n</think>\n\nno", "R(use <tool_call>?)T(no)"),
        ("<think>\nuse\n<tool_call>\n<function=f>\n</function>\n</tool_call>", "R(use)C(f|-|{})"),
    ];
    check("qwen3_coder", &cases);
}

/// Without a marker, only what a grammar can tell from text is a call.
#[test]
fn calls_in_text_are_those_that_the_grammar_enforces() {
    let cases = [
        ("llama_json", r#"Use {"name": "f", "parameters": {}}"#, r#"T(Use )C(f|-|{})"#),
        ("llama_json", r#"{"type": "function", "name": "f", "parameters": {"s": "x"}}"#, r#"C(f|-|{"s": "x"})"#),
        ("llama_json", "```json\n{\"name\": \"f\", \"parameters\": {}}\n```", "T(```json\n)C(f|-|{})T(```)"),
        ("llama_json", r#"{"parameters": {}, "name": "f"}"#, r#"T({"parameters": {}, "name": "f"})"#),
        ("llama_json", r#"{"n\u0061me": "f", "parameters": {}}"#, r#"T({"n\u0061me": "f", "parameters": {}})"#),
        ("llama_json", r#"{"name": "f", "parameters": "{}"}"#, r#"T({"name": "f", "parameters": "{}"})"#),
        ("llama_json", r#"{"name": "f", "age": 3}"#, r#"T({"name": "f", "age": 3})"#),
        ("llama_pythonic", "Use [f()]", "T(Use )C(f|-|{})"),
        ("granite", r#"[{"arguments": {}, "name": "f"}]"#, r#"T([{"arguments": {}, "name": "f"}])"#),
    ];
    for (name, text, want) in cases {
        let options = ParserOptions { start: Region::Text, tools: tools().into(), parse_tools: true };
        assert_eq!(short(&parse(format(name), options, &pieces(text))), want, "{name}: {text}");
    }
}

/// Without declarations, whatever is written as a call is one.
#[test]
fn without_a_list_of_tools_every_name_is_accepted() {
    let cases = [
        ("llama_json", r#"{"name": "any", "parameters": {"a": [1]}}"#, r#"C(any|-|{"a": [1]})"#),
        ("llama_json", r#"{"name": "any"}"#, r#"T({"name": "any"})"#),
        ("llama_json", r#"{"answer": {"name": "any"}}"#, r#"T({"answer": {"name": "any"}})"#),
        ("llama_pythonic", "[any(a='x'), other()]", r#"C(any|-|{"a": "x"})C(other|-|{})"#),
        ("llama_pythonic", "[1, 2] and [x]", "T([1, 2] and [x])"),
        ("mistral_v3", r#"[{"name": "any", "arguments": {}}]"#, "C(any|-|{})"),
        (
            "qwen3_coder",
            "<function=any>\n<parameter=a>\nx\n<parameter=b>\ny\n</parameter>\n</function>",
            r#"C(any|-|{"a": "x", "b": "y"})"#,
        ),
        ("qwen3_coder", "see <function= in the manual", "T(see <function= in the manual)"),
    ];
    for (name, output, want) in cases {
        for cut in cuts(&pieces(output), &mut Random::new(7)) {
            let options = ParserOptions { parse_tools: true, ..ParserOptions::default() };
            assert_eq!(short(&parse(format(name), options, &cut)), want, "{name}: {output:?} cut as {cut:?}");
        }
    }
}

#[test]
fn a_number_for_an_id_means_the_only_tool() {
    let format = format("kimi_k2");
    let output = pieces("«<|tool_call_begin|>»0«<|tool_call_argument_begin|>»{}«<|tool_call_end|>»");
    let one = |tools: &[Tool]| {
        short(&parse(
            format,
            ParserOptions { tools: tools.to_vec().into(), parse_tools: true, ..ParserOptions::default() },
            &output,
        ))
    };
    assert_eq!(one(&tools()[..1]), "C(f|functions.f:0|{})");
    assert_eq!(one(&tools()[..2]), "C(0|-|{})");
}

#[test]
fn glm_is_read() {
    let cases = [
        (
            "\n<think>Hm.</think>\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a\nb</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            r#"R(Hm.)C(f|-|{"s": "a\nb", "n": 3})"#,
        ),
        ("<tool_call>f\n</tool_call>", "C(f|-|{})"),
        ("<tool_call>f</tool_call>\n<tool_call>search</tool_call>", "C(f|-|{})C(search|-|{})"),
        // The value's first marker is missing.
        ("<tool_call>f\n<arg_key>s</arg_key>\nx</arg_value>\n</tool_call>", r#"C(f|-|{"s": "x"})"#),
        ("<think>call <tool_call>?</think>\nno", "R(call <tool_call>?)T(no)"),
        (
            "<tool_call>f<arg_key>s</arg_key><arg_value></tool_call> in it</arg_value></tool_call>",
            r#"C(f|-|{"s": "</tool_call> in it"})"#,
        ),
        ("<tool_call>no name at all</tool_call>", "T(<tool_call>no name at all</tool_call>)"),
        ("<tool_call>f{\"n\": 1}</tool_call>", r#"C(f|-|{"n": 1})"#),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}}</tool_call>", r#"C(f|-|{"n":1})"#),
    ];
    check("glm45", &cases);
    check(
        "glm47",
        &[("<tool_call>f<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>ok", r#"C(f|-|{"n": 3})T(ok)"#)],
    );
    check_from("glm47", Region::Reasoning, &[("Hm.</think><tool_call>f</tool_call>", "R(Hm.)C(f|-|{})")]);
}

#[test]
fn mistral_is_read() {
    let cases = [
        (
            r#"«[TOOL_CALLS]» [{"name": "f", "arguments": {"n": 1}, "id": "abcDEF123"}, {"name": "search", "arguments": {}, "id": "x"}]"#,
            r#"C(f|abcDEF123|{"n": 1})C(search|x|{})"#,
        ),
        (r#"ok«[TOOL_CALLS]»[{"name": "f", "arguments": {}}]"#, "T(ok)C(f|-|{})"),
        // The list without its marker, if it consists only of calls.
        (r#"[{"name": "f", "arguments": {"n": 1}}]"#, r#"C(f|-|{"n": 1})"#),
        (r#" [{"name": "nobody", "arguments": {"n": 1}}]"#, r#"T( [{"name": "nobody", "arguments": {"n": 1}}])"#),
        (r#"[{"name": "f", "arguments": {}}] is how"#, r#"T([{"name": "f", "arguments": {}}] is how)"#),
        (r#"[{"name": "f", "arguments": {}}"#, r#"T([{"name": "f", "arguments": {}})"#),
        ("[1, 2]", "T([1, 2])"),
        ("[citation needed]", "T([citation needed])"),
        (r#"«[TOOL_CALLS]» {"name": "f", "arguments": {}} bye"#, "C(f|-|{})T(bye)"),
        (r#"«[TOOL_CALLS]» [{"name": "f", "arguments": {"n": 1}"#, r#"C?(f|-|{"n": 1})"#),
        (r#"«[TOOL_CALLS]» [{"name": "f", "arguments": {"n": 1"#, r#"C?(f|-|{"n": 1)"#),
        ("«[TOOL_CALLS]» [oops]", "M( [oops)"),
        ("«[TOOL_CALLS]» []", ""),
        // The form of newer models.
        (r#"«[TOOL_CALLS]»f«[ARGS]»{"n": 1}«[TOOL_CALLS]»search{}"#, r#"C(f|-|{"n": 1})C(search|-|{})"#),
        (r#"«[TOOL_CALLS]»nobody{"n": 1} or so"#, r#"M(nobody)M({"n": 1} )T(or so)"#),
    ];
    check("mistral_v3", &cases);
    let cases = [
        (
            r#"Hi«[TOOL_CALLS]»f«[CALL_ID]»abcDEF123«[ARGS]»{"n": 1}«[TOOL_CALLS]»search«[CALL_ID]»x«[ARGS]»{}"#,
            r#"T(Hi)C(f|abcDEF123|{"n": 1})C(search|x|{})"#,
        ),
        (r#"«[TOOL_CALLS]»f«[ARGS]»{}"#, "C(f|-|{})"),
        (r#"«[TOOL_CALLS]»f{"n": 1}"#, r#"C(f|-|{"n": 1})"#),
        (r#"«[TOOL_CALLS]»f«[CALL_ID]»a«[ARGS]»{"n": "#, r#"C?(f|a|{"n": )"#),
    ];
    check("mistral_v11", &cases);
    let cases = [
        (r#"«[THINK]»Hm.«[/THINK]»«[TOOL_CALLS]»f«[ARGS]»{} «[TOOL_CALLS]»f«[ARGS]»{}"#, "R(Hm.)C(f|-|{})C(f|-|{})"),
        (r#"«[THINK]»Hm.«[TOOL_CALLS]»f«[ARGS]»{}"#, "R(Hm.)C(f|-|{})"),
        (r#"«[TOOL_CALLS]»f«[ARGS]»{} done"#, "C(f|-|{})T(done)"),
        // The form of older models.
        (
            r#"«[TOOL_CALLS]» [{"name": "f", "arguments": {"n": 1}}, {"name": "search"}]"#,
            r#"C(f|-|{"n":1})C(search|-|{})"#,
        ),
        (r#"«[TOOL_CALLS]»f«[CALL_ID]»x1«[ARGS]»{"n": 1}"#, r#"M(x1)C(f|-|{"n": 1})"#),
        (r#"«[TOOL_CALLS]»f«[ARGS]»{"n": oops} more"#, r#"C?(f|-|{"n": )M(oops} more)"#),
    ];
    check("mistral_v13", &cases);
}

#[test]
fn llama_is_read() {
    let cases = [
        (r#"{"name": "f", "parameters": {"n": 1}}"#, r#"C(f|-|{"n": 1})"#),
        (r#"{"name": "f", "arguments": {"n": 1}}«<|eot_id|>»"#, r#"C(f|-|{"n": 1})"#),
        (r#"«<|python_tag|>»{"name": "f", "parameters": "{\"n\": 1}"}"#, r#"C(f|-|{"n": 1})"#),
        (r#"{"name": "f", "parameters": {}}; {"name": "search", "parameters": {}}"#, "C(f|-|{})C(search|-|{})"),
        (r#"{"name": "f", "parameters": {}}{"name": "search", "parameters": {}}"#, "C(f|-|{})C(search|-|{})"),
        (r#"{"type": "function", "name": "f", "parameters": {}}"#, "C(f|-|{})"),
        // An undeclared name, or an incomplete call, is text; after the marker, any complete call is one.
        (r#"{"name": "nobody", "parameters": {}}"#, r#"T({"name": "nobody", "parameters": {}})"#),
        (r#"«<|python_tag|>»{"name": "nobody", "parameters": {}}"#, "C(nobody|-|{})"),
        (r#"{"answer": 42} is it"#, r#"T({"answer": 42} is it)"#),
        (r#"{"name": "f", "age": 3}"#, r#"T({"name": "f", "age": 3})"#),
        ("{ braces } and so on", "T({ braces } and so on)"),
        // Also after text.
        (r#"Use {"name": "f", "parameters": {}}"#, "T(Use )C(f|-|{})"),
        (
            r#"{x} {{{"name": "f", "parameters": {"n": 1}} or {"name": "search", "parameters": {}} {"name": "nobody"} so."#,
            r#"T({x} {{)C(f|-|{"n": 1})T(or )C(search|-|{})T({"name": "nobody"} so.)"#,
        ),
        (r#"«<|python_tag|>»brave_search.call(query="x")"#, r#"M(brave_search.call(query="x"))"#),
        (r#"«<|python_tag|>»x = {"a": 1}; print(x)"#, r#"M(x = )M({"a": 1}; print(x))"#),
        // Invalid calls are never text.
        (r#"{"name": "f", "parameters": {"n": oops, "o": {"x": 1}}}"#, r#"C?(f|-|{"n": )M(oops, "o": )M({"x": 1}}})"#),
        (r#"{"name": "f", "parameters": {"s": 'a'}}"#, r#"C?(f|-|{"s": )M('a'}})"#),
        (r#"{"name": "f", "parameters": {"n": 1}} bye"#, r#"C(f|-|{"n": 1})T(bye)"#),
        (r#"{"name": "f", "parameters": {"n": 1"#, r#"C?(f|-|{"n": 1)"#),
        (r#"{"name": "sea"#, r#"T({"name": "sea)"#),
        ("  hello", "T(  hello)"),
    ];
    check("llama_json", &cases);
    let cases = [
        (r#"[f(s="x", n=1), search()]"#, r#"C(f|-|{"s": "x", "n": 1})C(search|-|{})"#),
        (
            r#"«<|python_start|>»[f(b=True, o=None, l=['a', {'k': (1,)}])]«<|python_end|>»"#,
            r#"C(f|-|{"b": true, "o": null, "l": ["a", {"k": [1]}]})"#,
        ),
        ("[f(s='it\\'s \"x\"')]", r#"C(f|-|{"s": "it's \"x\""})"#),
        ("[f(s=')]')]", r#"C(f|-|{"s": ")]"})"#),
        ("[f()]", "C(f|-|{})"),
        ("[ f ( n = 1 ) ]", r#"C(f|-|{"n": 1})"#),
        ("[nobody(n=1)]", "T([nobody(n=1)])"),
        ("[1] see f(n=1)", "T([1] see f(n=1))"),
        (
            "x[1]: [f(n=1), search()] [f] and [f()].",
            r#"T(x[1]: )C(f|-|{"n": 1})C(search|-|{})T( [f] and )C(f|-|{})T(.)"#,
        ),
        ("[f]", "T([f])"),
        ("[f(1)]", "T([f(1)])"),
        ("f(n=1)", "T(f(n=1))"),
        ("[f(n=1", r#"C?(f|-|{"n": )M(1)"#),
        ("[f(s=\"x", r#"C?(f|-|{"s": "x)"#),
        ("[f(n=celsius)]", r#"C?(f|-|{"n": )M(celsius))"#),
    ];
    check("llama_pythonic", &cases);
}

#[test]
fn lists_of_objects_are_read() {
    check(
        "jamba",
        &[
            (
                "Hi<tool_calls>[\n    {\"name\": \"f\", \"arguments\": {\"n\": 1}},\n    {\"name\": \"f\", \"arguments\": {}}\n]</tool_calls>",
                r#"T(Hi)C(f|-|{"n": 1})C(f|-|{})"#,
            ),
            ("«<tool_calls>»[{\"name\": \"f\", \"arguments\": \"{}\"}]«</tool_calls>»", "C(f|-|{})"),
            (
                "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_calls>]\"}}",
                r#"C(f|-|{"s": "</tool_calls>]"})"#,
            ),
        ],
    );
    check(
        "granite_3_1",
        &[
            (r#"<tool_call>[{"name": "f", "arguments": {}}]"#, "C(f|-|{})"),
            (
                r#"Hi <tool_call> [{"name": "f", "arguments": {}}, {"name": "search", "arguments": {}}]"#,
                "T(Hi )C(f|-|{})C(search|-|{})",
            ),
            (r#"<think>Hm.</think><tool_call>{"name": "f", "arguments": {}}"#, "R(Hm.)C(f|-|{})"),
        ],
    );
    check(
        "granite_3_2",
        &[
            ("Here is my thought process:\n\nHm.\n\nHere is my response:\n\nHi.", "R(Hm.)T(Hi.)"),
            ("Here's my thought process:\nHm.\nHere's my response:\nHi.", "R(Hm.)T(Hi.)"),
            ("Hi. Here is my thought process: none.", "T(Hi. Here is my thought process: none.)"),
            ("Here is my tho", "T(Here is my tho)"),
            (
                "Here is my thought process:\nHm.\nHere is my response:\n<tool_call>[{\"name\": \"f\", \"arguments\": {}}]",
                "R(Hm.)C(f|-|{})",
            ),
        ],
    );
    check(
        "granite_3_3",
        &[
            ("<think>Hm.</think><response>Hi.</response>", "R(Hm.)T(Hi.)"),
            ("<think>Hm.</think>\n<response>Hi.</response>\n", "R(Hm.)T(Hi.)"),
            ("<response>Hi <response> and </response> there.</response>", "T(Hi <response> and </response> there.)"),
            ("<response>Hi.", "T(Hi.)"),
            ("Hi <response>.</response>", "T(Hi <response>.</response>)"),
            (
                "<think>Hm.</think><response>Hi.</response><tool_call>[{\"name\": \"f\", \"arguments\": {}}]",
                "R(Hm.)T(Hi.)C(f|-|{})",
            ),
        ],
    );
    check("granite", &[(r#"«<|tool_call|>»[{"name": "f", "arguments": {"n": 1}}]"#, r#"C(f|-|{"n": 1})"#)]);
    check("phi4_mini", &[(r#"«<|tool_call|>»[{"name": "f", "arguments": {}}]«<|/tool_call|>»"#, "C(f|-|{})")]);
    check(
        "nemotron_v2",
        &[(
            "<think>\nHm.\n</think>\n\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]</TOOLCALL>",
            r#"R(Hm.)C(f|-|{"n": 1})"#,
        )],
    );
    check(
        "functools",
        &[
            (
                r#"functools[{"name": "f", "parameters": {"n": 1}}, {"name": "f", "arguments": {}}]"#,
                r#"C(f|-|{"n": 1})C(f|-|{})"#,
            ),
            (r#"functools[{"name": "nobody", "arguments": {}}]"#, "C(nobody|-|{})"),
            ("the functools[cache] module", "T(the functools[cache] module)"),
            (r#"functools[{"name": "f"#, r#"T(functools[{"name": "f)"#),
        ],
    );
    check(
        "granite_20b_fc",
        &[
            (
                "<function_call> {\"name\": \"f\", \"arguments\": {\"n\": 1}}\n<function_call> {\"name\": \"f\", \"arguments\": {}}",
                r#"C(f|-|{"n": 1})C(f|-|{})"#,
            ),
            ("write <function_call> before it", "T(write <function_call> before it)"),
            ("<function_call> {\"x\": 1}", "T(<function_call> {\"x\": 1})"),
            ("<function_call> {\"name\": \"no_function\", \"arguments\": {}}", "C(no_function|-|{})"),
        ],
    );
    check(
        "internlm2",
        &[
            (
                "Hi«<|action_start|>»«<|plugin|>»\n{\"name\": \"f\", \"parameters\": {\"n\": 1}}«<|action_end|>»",
                r#"T(Hi)C(f|-|{"n": 1})"#,
            ),
            ("«<|plugin|>»\n{\"name\": \"f\", \"arguments\": {}}«<|action_end|>»", "C(f|-|{})"),
        ],
    );
    check(
        "command_r7b",
        &[
            (
                "«<|START_THINKING|>»plan«<|END_THINKING|>»«<|START_ACTION|>»[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"n\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"f\", \"parameters\": {}}\n]«<|END_ACTION|>»",
                r#"R(plan)C(f|0|{"n": 1})C(f|1|{})"#,
            ),
            ("«<|START_RESPONSE|>»Hi.«<|END_RESPONSE|>»", "T(Hi.)"),
            ("«<|START_THINKING|>»a«<|END_THINKING|>»«<|START_RESPONSE|>»Hi.", "R(a)T(Hi.)"),
        ],
    );
}

/// The first case is that of Liquid's documentation (docs.liquid.ai, key concepts, tool use).
#[test]
fn lfm2_is_read() {
    let cases = [
        (
            "«<|tool_call_start|>»[search(candidate_id=\"12345\")]«<|tool_call_end|>»Checking the current status.",
            r#"C(search|-|{"candidate_id": "12345"})T(Checking the current status.)"#,
        ),
        (
            "Let me see.«<|tool_call_start|>»[f(a='x', n=[1, 2]), search(s=None)]«<|tool_call_end|>»",
            r#"T(Let me see.)C(f|-|{"a": "x", "n": [1, 2]})C(search|-|{"s": null})"#,
        ),
        (
            "«<|tool_call_start|>»[f()]«<|tool_call_end|>»\n«<|tool_call_start|>»[f(n=1)]«<|tool_call_end|>»",
            r#"C(f|-|{})C(f|-|{"n": 1})"#,
        ),
        (
            "The letters <|tool_call_start|>[f()]<|tool_call_end|>.",
            "T(The letters <|tool_call_start|>[f()]<|tool_call_end|>.)",
        ),
    ];
    check("lfm2", &cases);
}

#[test]
fn minicpm3_is_read() {
    let cases = [
        (
            "«<|thought_start|>»\nHm.\n«<|thought_end|>»\n«<|tool_call_start|>»\n```python\nf(n=1)\nsearch(s='x', class_='y')\n```\n«<|tool_call_end|>»\nDone.",
            r#"R(Hm.)C(f|-|{"n": 1})C(search|-|{"s": "x", "class": "y"})T(Done.)"#,
        ),
        ("<|tool_call_start|>\n```python\nf()\n```\n<|tool_call_end|>", "C(f|-|{})"),
        ("Just text.", "T(Just text.)"),
        ("<|tool_call_start|>\n```python\nf(n=1", r#"C?(f|-|{"n": )M(1)"#),
    ];
    check("minicpm3", &cases);
}

#[test]
fn deepseek_is_read() {
    let cases = [
        (
            "Hi«<｜tool▁calls▁begin｜>»«<｜tool▁call▁begin｜>»function«<｜tool▁sep｜>»f\n```json\n{\"n\": 1}\n```«<｜tool▁call▁end｜>»\n«<｜tool▁call▁begin｜>»function«<｜tool▁sep｜>»search\n```json\n{}\n```«<｜tool▁call▁end｜>»«<｜tool▁calls▁end｜>»",
            r#"T(Hi)C(f|-|{"n": 1})C(search|-|{})"#,
        ),
        ("«<｜tool▁call▁begin｜>»f\n```json\n{}\n```«<｜tool▁call▁end｜>»", "C(f|-|{})"),
        (
            "«<｜tool▁call▁begin｜>»function«<｜tool▁sep｜>»f\n{\"s\": \"```\"}«<｜tool▁call▁end｜>»",
            "C(f|-|{\"s\": \"```\"})",
        ),
    ];
    check("deepseek_v3", &cases);
    let cases = [(
        "Hm.«</think>»«<｜tool▁calls▁begin｜>»«<｜tool▁call▁begin｜>»f«<｜tool▁sep｜>»{\"n\": 1}«<｜tool▁call▁end｜>»«<｜tool▁call▁begin｜>»f«<｜tool▁sep｜>»{}«<｜tool▁call▁end｜>»«<｜tool▁calls▁end｜>»",
        r#"R(Hm.)C(f|-|{"n": 1})C(f|-|{})"#,
    )];
    check_from("deepseek_v3_1", Region::Reasoning, &cases);
    check(
        "deepseek_v3_1",
        &[("«<｜tool▁call▁begin｜>»functions.f«<｜tool▁sep｜>»{}«<｜tool▁call▁end｜>»", "C(f|-|{})")],
    );
    let call = |open: &str, close: &str| {
        format!(
            "Hi.\n\n{open}<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n{close}"
        )
    };
    let want = r#"T(Hi.)C(f|-|{"s": "5", "n": 5})"#;
    for (open, close) in [
        ("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
        ("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"),
        ("<｜DSML｜toolcalls>\n", "</｜DSML｜toolcalls>"),
        ("<｜DSML｜ function_calls>\n", "</｜DSML｜ function_calls>"),
        ("", ""),
        ("<«｜DSML｜»function_calls>\n", "</«｜DSML｜»function_calls>"),
    ] {
        let output = call(open, close);
        check("deepseek_v3_2", &[(output.as_str(), want)]);
        check("deepseek_v4", &[(output.as_str(), want)]);
    }
    // One argument that wraps the others, as an object, as its text, or as the value of the only one.
    let wrapped = |key: &str, string: bool, value: &str| {
        format!(
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"{key}\" string=\"{string}\">{value}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        )
    };
    for (output, want) in [
        (wrapped("arguments", false, r#"{"n": 10000000000000000000001}"#), r#"C(f|-|{"n": 10000000000000000000001})"#),
        (wrapped("input", true, r#"{"s": "x\ny"}"#), r#"C(f|-|{"s": "x\ny"})"#),
        (wrapped("arguments", false, r#"{"other": 1}"#), r#"C(f|-|{"arguments": {"other": 1}})"#),
        (wrapped("arguments", true, "ls -la"), r#"C(f|-|{"arguments": "ls -la"})"#),
        (
            wrapped("arguments", true, "x").replace(
                "</｜DSML｜invoke>",
                "<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>",
            ),
            r#"C(f|-|{"arguments": "x", "n": 1})"#,
        ),
        (
            "<｜DSML｜invoke name=\"f\">\n{\"arguments\": {\"n\": 1}}\n</｜DSML｜invoke>".to_owned(),
            r#"C(f|-|{"n": 1})"#,
        ),
        (
            "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"arguments\" string=\"true\">x".to_owned(),
            r#"C?(f|-|{"arguments": "x)"#,
        ),
    ] {
        check("deepseek_v3_2", &[(output.as_str(), want)]);
    }
    check("deepseek_v3_2", &[("a <｜DSML｜ b", "T(a <｜DSML｜ b)"), ("<｜DSML", "T(<｜DSML)")]);
}

#[test]
fn minimax_and_seed_are_read() {
    for q in ["\"", "'", ""] {
        let output = format!(
            "Hi.\n<minimax:tool_call>\n<invoke name={q}f{q}>\n<parameter name={q}s{q}>x\n</parameter>\n<parameter name={q}n{q}>3</parameter>\n</invoke>\n<invoke name={q}search{q}>\n</invoke>\n</minimax:tool_call>"
        );
        check("minimax_m2", &[(output.as_str(), r#"T(Hi.)C(f|-|{"s": "x\n", "n": 3})C(search|-|{})"#)]);
    }
    check("minimax_m2", &[("<invoke name=\"f\"></invoke>ok", "C(f|-|{})T(ok)")]);
    let cases = [
        (
            "<seed:think>\nHm.\n</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=s>\nx</parameter>\n<parameter=b>False</parameter>\n</function>\n</seed:tool_call>",
            r#"R(Hm.)C(f|-|{"s": "\nx", "b": false})"#,
        ),
        ("<function=f>\n</function>\n</seed:tool_call>", "C(f|-|{})"),
    ];
    check("seed_oss", &cases);
}

#[test]
fn outputs_of_hermes_json_may_begin_with_calls() {
    let f = r#"{"name": "f", "arguments": {"s": "x"}}"#;
    let call = r#"C(f|-|{"s": "x"})"#;
    let cases = [
        (format!("```json\n{f}\n```"), call.to_owned()),
        (format!("\n```\n{f}\n```\n"), call.to_owned()),
        (f.to_owned(), call.to_owned()),
        (format!("[{f}, {f}]"), format!("{call}{call}")),
        (format!("```json\n{f}\n{f}\n```\nDone."), format!("{call}{call}T(Done.)")),
        (format!("```json\n{f}\n```\n```json\n{f}\n```"), format!("{call}{call}")),
        (format!("{f}\nThat is it."), format!("{call}T(That is it.)")),
        (format!("<tool_call>\n{f}\n</tool_call>"), call.to_owned()),
        (format!("```json\n<tool_call>\n{f}\n</tool_call>\n```"), format!("T(```json){call}T(\n```)")),
        // What is none of a declared tool, or not at the beginning, is text.
        (format!("See:\n```json\n{f}\n```"), format!("T(See:\n```json\n{f}\n```)")),
        ("```json\n{\"a\": 1}\n```".to_owned(), "T(```json\n{\"a\": 1}\n```)".to_owned()),
        ("```python\nf()\n```".to_owned(), "T(```python\nf()\n```)".to_owned()),
        (r#"{"name": "nobody", "arguments": {}}"#.to_owned(), r#"T({"name": "nobody", "arguments": {}})"#.to_owned()),
        (format!("{f}\n```python\nx\n```"), format!("{call}T(```python\nx\n```)")),
        ("``".to_owned(), "T(``)".to_owned()),
        ("[1]".to_owned(), "T([1])".to_owned()),
    ];
    for (output, want) in cases {
        for cut in cuts(&pieces(&output), &mut Random::new(7)) {
            let options = ParserOptions { start: Region::Text, tools: tools().into(), parse_tools: true };
            assert_eq!(short(&parse(format("hermes_json"), options, &cut)), want, "{output:?} cut as {cut:?}");
        }
    }
}
