//! The habits of model families since 2025, with the outputs of other servers' tests and of the models' own
//! descriptions. As in `families.rs`, `«x»` is the special token `x`.

use super::families::check;

/// Xiaomi's template: "The value enclosed between parameter tags is preserved exactly as-is, including newlines and
/// spaces." The first case is that of SGLang's detector.
#[test]
fn mimo_is_read() {
    let cases = [
        (
            "<tool_call>\n<function=f>\n<parameter=s>pwd && ls</parameter>\n</function>\n</tool_call>",
            r#"C(f|-|{"s": "pwd && ls"})"#,
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=s>\n x\n</parameter>\n<parameter=n>3</parameter>\n</function>\n</tool_call>",
            r#"C(f|-|{"s": "\n x\n", "n": 3})"#,
        ),
        ("<think>so</think>Hi", "R(so)T(Hi)"),
        ("It writes <tool_call> and <function=name>.", "T(It writes <tool_call> and <function=name>.)"),
    ];
    check("mimo_v2", &cases);
}

/// The second and third cases are those of vLLM's tests of its parser `hy_v3`.
#[test]
fn hy3_is_read() {
    let cases = [
        (
            "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>s</arg_key>\n<arg_value>a b</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>search<tool_sep>\n</tool_call>\n</tool_calls>",
            r#"C(f|-|{"s": "a b", "n": 3})C(search|-|{})"#,
        ),
        ("<tool_calls><tool_call>f<tool_sep></tool_call></tool_calls>", "C(f|-|{})"),
        ("<tool_calls>\n<tool_call>f<tool_sep>\n</tool_call>\n</tool_calls>", "C(f|-|{})"),
        ("So.\n«<tool_calls>»\n«<tool_call>»f«<tool_sep>»\n«</tool_call>»\n«</tool_calls>»", "T(So.)C(f|-|{})"),
        ("A <tool_call> in <tool_calls> is text.", "T(A <tool_call> in <tool_calls> is text.)"),
        ("<tool_call>f<tool_sep>\n</tool_call>", "C(f|-|{})"),
    ];
    check("hy3", &cases);
}

/// The blank in the tags is the model's (SGLang's detector of DeepSeek-V4.1).
#[test]
fn deepseek_v4_1_is_read() {
    let cases = [
        (
            "Hm.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"s\" string=\"true\">3</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"n\" string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
            r#"T(Hm.)C(f|-|{"s": "3", "n": 3})"#,
        ),
        (
            "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"search\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
            "C(f|-|{})C(search|-|{})",
        ),
        ("The block <｜DSML｜ calls> holds them.", "T(The block <｜DSML｜ calls> holds them.)"),
    ];
    check("deepseek_v4_1", &cases);
}

/// LongCat-Flash's model card has JSON between the tags, LongCat-2.0 writes tags for each argument.
#[test]
fn longcat_is_read() {
    let json = [
        (
            "<longcat_tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</longcat_tool_call>\n<longcat_tool_call>{\"name\": \"search\", \"arguments\": {}}</longcat_tool_call>",
            r#"C(f|-|{"n": 3})C(search|-|{})"#,
        ),
        ("<longcat_think>\nso\n</longcat_think>\nHi", "R(so)T(Hi)"),
    ];
    check("longcat", &json);
    let tags = [
        (
            "Let me help.\n<longcat_tool_call>f\n<longcat_arg_key>s</longcat_arg_key>\n<longcat_arg_value>value1</longcat_arg_value>\n</longcat_tool_call>",
            r#"T(Let me help.)C(f|-|{"s": "value1"})"#,
        ),
        (
            "<longcat_tool_call>f<longcat_arg_key>s</longcat_arg_key><longcat_arg_value>Paris</longcat_arg_value><longcat_arg_key>n</longcat_arg_key><longcat_arg_value>3</longcat_arg_value></longcat_tool_call>",
            r#"C(f|-|{"s": "Paris", "n": 3})"#,
        ),
    ];
    check("longcat_2", &tags);
}

#[test]
fn lists_of_hunyuan_and_xlam_are_read() {
    let hunyuan = [
        (
            "<think>\nso\n</think>\n\n<tool_calls>[{\"name\": \"f\", \"arguments\": {\"n\": 3}}, {\"name\": \"search\", \"arguments\": {}}]</tool_calls>",
            r#"R(so)C(f|-|{"n": 3})C(search|-|{})"#,
        ),
        ("<answer>Hi</answer>", "T(Hi)"),
    ];
    check("hunyuan_a13b", &hunyuan);
    let xlam = [
        (
            r#"[{"name": "f", "arguments": {"n": 3}}, {"name": "search", "arguments": {}}]"#,
            r#"C(f|-|{"n": 3})C(search|-|{})"#,
        ),
        ("[1, 2]", "T([1, 2])"),
        (r#"[{"name": "Ada"}]"#, r#"T([{"name": "Ada"}])"#),
    ];
    check("xlam", &xlam);
}

/// The first case is that of SGLang's detector.
#[test]
fn minicpm5_is_read() {
    let cases = [
        (
            r#"<function name="f"><param name="s">北京</param><param name="t">2024-06-27</param></function>"#,
            r#"C(f|-|{"s": "北京", "t": "2024-06-27"})"#,
        ),
        (
            "So.\n<function name=\"f\"><param name=\"n\">3</param></function>\n<function name=\"search\"></function>",
            r#"T(So.)C(f|-|{"n": 3})C(search|-|{})"#,
        ),
        ("The tag <function name=NAME> is text.", "T(The tag <function name=NAME> is text.)"),
    ];
    check("minicpm5", &cases);
}

/// The mark of strings is a token of its own; as letters it is read too. The last case is Google's own of
/// FunctionGemma.
#[test]
fn gemma_is_read() {
    let gemma = [
        (
            "«<|tool_call>»call:f{l:[1,«<|\"|>»a, b}«<|\"|>»],n:3,o:{k:true},s:«<|\"|>»say \"hi\"\n<tool_call|>«<|\"|>»}«<tool_call|>»",
            r#"C(f|-|{"l": [1, "a, b}"], "n": 3, "o": {"k": true}, "s": "say \"hi\"\n<tool_call|>"})"#,
        ),
        (
            "<|tool_call>call:search{}<tool_call|><|tool_call>call:f{s:<|\"|>x<|\"|>}<tool_call|>",
            r#"C(search|-|{})C(f|-|{"s": "x"})"#,
        ),
        ("«<|channel>»thought\nso\n«<channel|>»Hi", "R(so)T(Hi)"),
        ("Hi.«<|tool_call>»call:f{s:«<|\"|>»x", r#"T(Hi.)C?(f|-|{"s": "x)"#),
        ("A call begins with <|tool_call> and ends.", "T(A call begins with <|tool_call> and ends.)"),
    ];
    check("gemma4", &gemma);
    let function_gemma =
        [("<start_function_call>call:f{s:<escape>London<escape>}<end_function_call>", r#"C(f|-|{"s": "London"})"#)];
    check("functiongemma", &function_gemma);
}

/// The template of Olmo 3 (vLLM's examples): one call per line.
#[test]
fn olmo3_is_read() {
    let cases = [
        (
            "So.\n<function_calls>\nf(s='x', n=3)\nsearch()\n</function_calls>",
            r#"T(So.)C(f|-|{"s": "x", "n": 3})C(search|-|{})"#,
        ),
        ("<function_calls>f(b=true)</function_calls>", r#"C(f|-|{"b": true})"#),
        ("Put it in <function_calls> and close it.", "T(Put it in <function_calls> and close it.)"),
    ];
    check("olmo3", &cases);
}

/// The cases of llama.cpp's tests of its Apertus parser.
#[test]
fn apertus_is_read() {
    let cases = [
        ("«<|tools_prefix|>»[{\"f\": {\"n\": 1}}]«<|tools_suffix|>»", r#"C(f|-|{"n": 1})"#),
        (
            "«<|inner_prefix|>»I'm\nthinking«<|inner_suffix|>»«<|tools_prefix|>»[{\"f\": {\"n\": 1}}, {\"search\": {}}]«<|tools_suffix|>»",
            r#"R(I'm
thinking)C(f|-|{"n": 1})C(search|-|{})"#,
        ),
        ("«<|inner_prefix|>»so«<|inner_suffix|>»Hello, world!", "R(so)T(Hello, world!)"),
        ("«<|tools_prefix|>»[{\"f\": {\"s\": \"x", r#"C?(f|-|{"s": "x)"#),
    ];
    check("apertus", &cases);
}

/// Models of the GLM form that omit the line break after the name (SGLang's detector of Ling 3, vLLM's of Laguna).
#[test]
fn ling_and_laguna_are_read() {
    let cases = [
        ("<tool_call>f<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>", r#"C(f|-|{"n": 3})"#),
        ("<tool_call>f</tool_call>", "C(f|-|{})"),
        ("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>  x\n</arg_value>\n</tool_call>", r#"C(f|-|{"s": "  x\n"})"#),
    ];
    check("glm45", &cases);
}

/// The calls of the first case are those that llama.cpp's issues report, of the second those of mlx-lm's parser. The
/// mark is a token, and its letters are the same.
#[test]
fn minimax_m3_is_read() {
    let cases = [
        (
            "<mm:think>so</mm:think>Hi.\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>date]<]minimax[>[</s>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            r#"R(so)T(Hi.)C(f|-|{"s": "date"})"#,
        ),
        (
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">\n]<]minimax[>[<s>Paris]<]minimax[>[</s>\n]<]minimax[>[<n>3]<]minimax[>[</n>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            r#"C(f|-|{"s": "Paris", "n": 3})"#,
        ),
        (
            "«]<]minimax[>[»<tool_call>\n«]<]minimax[>[»<invoke name=\"f\">«]<]minimax[>[»<l>«]<]minimax[>[»<item>a«]<]minimax[>[»</item>«]<]minimax[>[»<item>«]<]minimax[>[»<k>1«]<]minimax[>[»</k>«]<]minimax[>[»</item>«]<]minimax[>[»</l>«]<]minimax[>[»<b>true«]<]minimax[>[»</b>«]<]minimax[>[»</invoke>\n«]<]minimax[>[»<invoke name=\"search\">«]<]minimax[>[»</invoke>\n«]<]minimax[>[»</tool_call>",
            r#"C(f|-|{"l": ["a", {"k": 1}], "b": true})C(search|-|{})"#,
        ),
        // Names with hyphens, which vLLM's parser lost; tags in a string are its text.
        (
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<o>]<]minimax[>[<-A>2]<]minimax[>[</-A>]<]minimax[>[</o>]<]minimax[>[<s>a <b>c</b> ]<] d]<]minimax[>[</s>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            r#"C(f|-|{"o": {"-A": 2}, "s": "a <b>c</b> ]<] d"})"#,
        ),
        // Empty lists, objects and strings are told apart by the schema.
        (
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<l>]<]minimax[>[</l>]<]minimax[>[<s>]<]minimax[>[</s>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            r#"C(f|-|{"l": [], "s": ""})"#,
        ),
        ("A <tool_call> and an <invoke name=\"f\"> are text.", "T(A <tool_call> and an <invoke name=\"f\"> are text.)"),
    ];
    check("minimax_m3", &cases);
}

/// The forms that vLLM's descriptions of its parsers give.
#[test]
fn ernie_and_gigachat_are_read() {
    let ernie = [
        (
            "<think>\nso\n</think>\n\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"search\", \"arguments\": {}}\n</tool_call>\n",
            r#"R(so)C(f|-|{"n": 3})C(search|-|{})"#,
        ),
        ("<think>\nabc\n</think>\n\n\n<response>\ndef\n</response>\n", "R(abc)T(def)"),
        ("def", "T(def)"),
    ];
    check("ernie45", &ernie);
    let giga = [
        ("Hi.«<|function_call|>»{\"name\": \"f\", \"arguments\": {\"n\": 3}}", r#"T(Hi.)C(f|-|{"n": 3})"#),
        ("The token <|function_call|> is text.", "T(The token <|function_call|> is text.)"),
    ];
    check("gigachat3_1", &giga);
    let giga = [
        (
            "Hi.«<|message_sep|>\n\n»function call«<|role_sep|>\n»{\"name\": \"f\", \"arguments\": {\"n\": 3}}",
            r#"T(Hi.)C(f|-|{"n": 3})"#,
        ),
        ("A function call.", "T(A function call.)"),
    ];
    check("gigachat3", &giga);
}

/// The form of SGLang's and vLLM's parsers of Step-3, with and without line breaks. The last case is one of SGLang's
/// tests: a value may hold `<`.
#[test]
fn step3_is_read() {
    let cases = [
        (
            "<think>\nso\n</think>\n\nHi.\n<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\">\n<steptml:parameter name=\"s\">a b</steptml:parameter>\n<steptml:parameter name=\"n\">3</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"search\">\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
            r#"R(so)T(Hi.)C(f|-|{"s": "a b", "n": 3})C(search|-|{})"#,
        ),
        (
            "«<｜tool_calls_begin｜>»«<｜tool_call_begin｜>»function«<｜tool_sep｜>»<steptml:invoke name=\"f\"><steptml:parameter name=\"s\">x</steptml:parameter></steptml:invoke>«<｜tool_call_end｜>»«<｜tool_calls_end｜>»",
            r#"C(f|-|{"s": "x"})"#,
        ),
        (
            "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\"><steptml:parameter name=\"s\">if a < b: print(a)</steptml:parameter><steptml:parameter name=\"t\">x</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
            r#"C(f|-|{"s": "if a < b: print(a)", "t": "x"})"#,
        ),
        ("The token <｜tool_call_begin｜> begins one.", "T(The token <｜tool_call_begin｜> begins one.)"),
    ];
    check("step3", &cases);
}

/// The first and second case are those of the tests of Cohere's own parser (`cohere-melody`), whose template writes
/// the form.
#[test]
fn command_5_is_read() {
    let cases = [
        (
            r#"<|START_THINKING|>searching<|END_THINKING|><cofl:tool_calls><cofl:tool_call id="0" name="f"><cofl:value name="s" type="raw">echo "Hello" >> foo.txt && exit</cofl:value><cofl:value name="n" type="json">3</cofl:value><cofl:value name="float example" type="json">3.14</cofl:value><cofl:value name="o" type="dict"><cofl:value name="fresh" type="json">true</cofl:value><cofl:value name="tags" type="list"><cofl:value type="raw">music</cofl:value><cofl:value type="raw">Sudan</cofl:value></cofl:value></cofl:value><cofl:value name="missing" type="json">null</cofl:value><cofl:value name="empty_dict" type="dict"></cofl:value><cofl:value name="empty_list" type="list"></cofl:value></cofl:tool_call></cofl:tool_calls>"#,
            r#"R(searching)C(f|-|{"s": "echo \"Hello\" >> foo.txt && exit", "n": 3, "float example": 3.14, "o": {"fresh": true, "tags": ["music", "Sudan"]}, "missing": null, "empty_dict": {}, "empty_list": []})"#,
        ),
        ("<|START_THINKING|>Let me think.<|END_THINKING|><|START_TEXT|>Hi.<|END_TEXT|>", "R(Let me think.)T(Hi.)"),
        (
            "«<|START_THINKING|>»so«<|END_THINKING|>»«<cofl:tool_calls>»\n<cofl:tool_call id=\"call_0\" name=\"f\">\n<cofl:value name=\"s\" type=\"raw\"></cofl:value>\n</cofl:tool_call>\n<cofl:tool_call id=\"1\" name=\"search\"></cofl:tool_call>\n«</cofl:tool_calls>»",
            r#"R(so)C(f|-|{"s": ""})C(search|-|{})"#,
        ),
        (
            r#"<cofl:tool_calls><cofl:tool_call id="0" name="f"><cofl:value name="l" type="list"><cofl:value type="raw">a</cofl:va"#,
            r#"C?(f|-|{"l": ["a)"#,
        ),
    ];
    check("command_5", &cases);
}
