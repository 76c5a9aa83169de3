//! The table of formats: the only code that spells markers. It does not parse or compile them.

use crate::format::{
    Builtin, CallIdStyle, CallPosition, Codec, DetectionSigns, Format, Markers, Member, ModelDirFacts, Reasoning, Step,
    Tags, Wrap,
};
use CallPosition::{AfterText, BeforeText, InsteadOfText};
use Codec::{Bare, Code, Elements, Json, Keyed, Object, Params, Python, Tagged};
use Markers::{Either, Special};
use Step::{Args, Id, Index, IsString, Key, Lit, Maybe, Name, Ordinal, Tok, Type, Value};

const NO_WRAP: Wrap = Wrap { open: &[], close: &[] };
const THINK: Option<Reasoning> =
    Some(Reasoning { lead: "", open: &[Tok("<think>")], close: &[Tok("</think>")], layout: ["", "", ""] });
/// Newlines around the markers, as in Qwen's templates.
const SPACED_THINK: Option<Reasoning> =
    Some(Reasoning { lead: "", open: &[Tok("<think>")], close: &[Tok("</think>")], layout: ["\n", "\n", "\n\n"] });
const NAME: Member = Member::Name(&["name"]);
const OBJECT: Codec =
    Object { members: &[NAME, Member::Arguments(&["arguments", "parameters"])], ignored: &["id", "type"] };
const WITH_ID: Codec = Object {
    members: &[NAME, Member::Arguments(&["arguments", "parameters"]), Member::Id(&["id"])],
    ignored: &["type"],
};
const PARAMETERS: Codec =
    Object { members: &[NAME, Member::Arguments(&["parameters", "arguments"])], ignored: &["id", "type"] };

/// The common fields of the entries below; each states what differs.
const BASE: Format = Format {
    name: "plain",
    aliases: &[],
    models: &["models that call no tools"],
    markers: Either,
    reasoning: None,
    text: NO_WRAP,
    preamble: None,
    calls: AfterText,
    opens: false,
    many: true,
    lead: "",
    begin: &[],
    between: &[],
    end: &[],
    call: &[],
    also: &[],
    builtins: &[],
    finish: &[],
    ids: CallIdStyle::None,
    stops: &[],
    letter_first: false,
    signs: DetectionSigns { template: &[], not: &[], special: None, architectures: &[] },
};

static FORMATS: &[Format] = &[
    Format {
        name: "kimi_k2",
        letter_first: true,
        aliases: &["kimi_k2_thinking", "kimi_k25"],
        models: &["Kimi-K2*", "Kimi-K2-Thinking", "Kimi-K2.5", "Kimi-K2.6"],
        markers: Special,
        reasoning: THINK,
        begin: &[Tok("<|tool_calls_section_begin|>")],
        end: &[Tok("<|tool_calls_section_end|>")],
        call: &[
            Tok("<|tool_call_begin|>"),
            Lit("functions."),
            Name,
            Lit(":"),
            Index,
            Tok("<|tool_call_argument_begin|>"),
            Args(Json),
            Tok("<|tool_call_end|>"),
        ],
        ids: CallIdStyle::Header,
        signs: DetectionSigns {
            template: &["<|tool_calls_section_begin|>"],
            not: &[],
            special: Some("<|tool_calls_section_begin|>"),
            architectures: &["KimiK2ForCausalLM", "KimiK25ForConditionalGeneration"],
        },
        ..BASE
    },
    Format {
        name: "kimi_k3",
        letter_first: true,
        models: &["Kimi-K3*"],
        markers: Special,
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<|open|>"), Lit("think"), Tok("<|sep|>")],
            close: &[Tok("<|close|>"), Lit("think"), Tok("<|sep|>")],
            layout: ["", "", ""],
        }),
        text: Wrap {
            open: &[Tok("<|open|>"), Lit("response"), Tok("<|sep|>")],
            close: &[Tok("<|close|>"), Lit("response"), Tok("<|sep|>")],
        },
        begin: &[Tok("<|open|>"), Lit("tools"), Tok("<|sep|>")],
        end: &[Tok("<|close|>"), Lit("tools"), Tok("<|sep|>")],
        call: &[
            Tok("<|open|>"),
            Lit("call tool=\""),
            Name,
            Lit("\" index=\""),
            Ordinal,
            Lit("\""),
            Tok("<|sep|>"),
            Args(Params(&[
                Tok("<|open|>"),
                Lit("argument key=\""),
                Key,
                Lit("\" type=\""),
                Type,
                Lit("\""),
                Tok("<|sep|>"),
                Value,
                Tok("<|close|>"),
                Lit("argument"),
                Tok("<|sep|>"),
            ])),
            Tok("<|close|>"),
            Lit("call"),
            Tok("<|sep|>"),
        ],
        finish: &[Tok("<|close|>"), Lit("message"), Tok("<|sep|>")],
        stops: &["<|end_of_msg|>"],
        signs: DetectionSigns {
            template: &["<|open|>", "<|sep|>"],
            not: &[],
            special: Some("<|end_of_msg|>"),
            architectures: &["KimiK3ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "minimax_m3",
        models: &["MiniMax-M3*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<mm:think>")],
            close: &[Tok("</mm:think>")],
            layout: ["", "", ""],
        }),
        lead: "\n",
        begin: &[Tok("]<]minimax[>[<tool_call>"), Lit("\n")],
        end: &[Tok("]<]minimax[>[</tool_call>")],
        call: &[
            Tok("]<]minimax[>[<invoke name="),
            Lit("\""),
            Name,
            Lit("\">"),
            Args(Elements(&[Tok("]<]minimax[>[")])),
            Tok("]<]minimax[>[</invoke>"),
            Lit("\n"),
        ],
        signs: DetectionSigns {
            template: &["]<]minimax[>[", "<tool_call>"],
            not: &["<minimax:tool_call>"],
            special: None,
            architectures: &["MiniMaxM3ForCausalLM", "MiniMaxM3SparseForConditionalGeneration"],
        },
        ..BASE
    },
    Format {
        name: "qwen3_coder",
        aliases: &["qwen3_xml", "qwen35", "nemotron3", "step3p5"],
        models: &["Qwen3-Coder*", "Qwen3.5*", "Qwen3.6*", "Nemotron-3*", "Step-3.5*"],
        reasoning: SPACED_THINK,
        lead: "\n\n",
        between: &[Lit("\n")],
        call: &[
            Tok("<tool_call>"),
            Lit("\n"),
            Tok("<function="),
            Name,
            Lit(">\n"),
            Args(Params(&[Tok("<parameter="), Key, Lit(">\n"), Value, Lit("\n"), Tok("</parameter>"), Lit("\n")])),
            Tok("</function>"),
            Lit("\n"),
            Tok("</tool_call>"),
        ],
        signs: DetectionSigns {
            template: &["<tool_call>", "<function="],
            not: &["<seed:tool_call>", "<parameter=example_parameter_1>value_1</parameter>"],
            special: None,
            architectures: &["Qwen3NextForCausalLM", "NemotronHForCausalLM"],
        },
        ..BASE
    },
    // Like qwen3_coder, but a value is everything between its tags, newlines included.
    Format {
        name: "mimo_v2",
        aliases: &["mimo"],
        models: &["MiMo-V2*"],
        reasoning: THINK,
        lead: "\n",
        between: &[Lit("\n")],
        call: &[
            Tok("<tool_call>"),
            Lit("\n"),
            Tok("<function="),
            Name,
            Lit(">\n"),
            Args(Params(&[Tok("<parameter="), Key, Lit(">"), Value, Tok("</parameter>"), Lit("\n")])),
            Tok("</function>"),
            Lit("\n"),
            Tok("</tool_call>"),
        ],
        signs: DetectionSigns {
            template: &["<tool_call>", "<parameter=example_parameter_1>value_1</parameter>"],
            not: &["<seed:tool_call>"],
            special: None,
            architectures: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "glm45",
        aliases: &["glm4_moe", "glm46", "ling3", "poolside_v1"],
        models: &["GLM-4.5*", "GLM-4.6*", "Ling-3*", "Laguna*"],
        reasoning: Some(Reasoning {
            lead: "\n",
            open: &[Tok("<think>")],
            close: &[Tok("</think>")],
            layout: ["", "", "\n"],
        }),
        lead: "\n",
        between: &[Lit("\n")],
        call: &[
            Tok("<tool_call>"),
            Name,
            Lit("\n"),
            Args(Params(&[
                Tok("<arg_key>"),
                Key,
                Tok("</arg_key>"),
                Lit("\n"),
                Tok("<arg_value>"),
                Value,
                Tok("</arg_value>"),
                Lit("\n"),
            ])),
            Tok("</tool_call>"),
        ],
        stops: &["<|observation|>", "<|user|>"],
        signs: DetectionSigns {
            template: &["<tool_call>", "<arg_key>", "<arg_key>{{ k }}</arg_key>\n"],
            not: &["<tool_sep>"],
            special: None,
            architectures: &["Glm4MoeForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "glm47",
        aliases: &["glm5"],
        models: &["GLM-4.7*", "GLM-5*"],
        reasoning: THINK,
        call: &[
            Tok("<tool_call>"),
            Name,
            Args(Params(&[Tok("<arg_key>"), Key, Tok("</arg_key>"), Tok("<arg_value>"), Value, Tok("</arg_value>")])),
            Tok("</tool_call>"),
        ],
        stops: &["<|observation|>", "<|user|>"],
        signs: DetectionSigns {
            template: &["<tool_call>", "<arg_key>"],
            not: &["<tool_sep>"],
            special: Some("<arg_key>"),
            architectures: &["GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "hy3",
        aliases: &["hy_v3"],
        models: &["Hy3*"],
        reasoning: THINK,
        lead: "\n",
        begin: &[Tok("<tool_calls>"), Lit("\n")],
        end: &[Tok("</tool_calls>")],
        call: &[
            Tok("<tool_call>"),
            Name,
            Tok("<tool_sep>"),
            Lit("\n"),
            Args(Params(&[
                Tok("<arg_key>"),
                Key,
                Tok("</arg_key>"),
                Lit("\n"),
                Tok("<arg_value>"),
                Value,
                Tok("</arg_value>"),
                Lit("\n"),
            ])),
            Tok("</tool_call>"),
            Lit("\n"),
        ],
        signs: DetectionSigns {
            template: &["<tool_sep>"],
            not: &[],
            special: Some("<tool_sep>"),
            architectures: &["HYV3ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "longcat",
        aliases: &["longcat_flash"],
        models: &["LongCat-Flash*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<longcat_think>")],
            close: &[Tok("</longcat_think>")],
            layout: ["\n", "\n", "\n"],
        }),
        lead: "\n",
        between: &[Lit("\n")],
        call: &[Tok("<longcat_tool_call>"), Lit("\n"), Args(OBJECT), Lit("\n"), Tok("</longcat_tool_call>")],
        signs: DetectionSigns {
            template: &["<longcat_tool_call>"],
            not: &["<longcat_arg_key>"],
            special: Some("<longcat_tool_call>"),
            architectures: &["LongcatFlashForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "longcat_2",
        models: &["LongCat-2*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<longcat_think>")],
            close: &[Tok("</longcat_think>")],
            layout: ["\n", "\n", "\n"],
        }),
        lead: "\n",
        between: &[Lit("\n")],
        call: &[
            Tok("<longcat_tool_call>"),
            Name,
            Lit("\n"),
            Args(Params(&[
                Tok("<longcat_arg_key>"),
                Key,
                Tok("</longcat_arg_key>"),
                Lit("\n"),
                Tok("<longcat_arg_value>"),
                Value,
                Tok("</longcat_arg_value>"),
                Lit("\n"),
            ])),
            Tok("</longcat_tool_call>"),
        ],
        signs: DetectionSigns {
            template: &["<longcat_tool_call>", "<longcat_arg_key>"],
            not: &[],
            special: Some("<longcat_arg_key>"),
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "hermes",
        aliases: &["qwen25", "qwen3", "granite4"],
        models: &["Hermes-2-Pro*", "Hermes-3*", "Qwen2.5*", "QwQ*", "Qwen3-*", "granite-4*", "EXAONE-4*", "Reka-Edge*"],
        lead: "\n",
        between: &[Lit("\n")],
        call: HERMES_CALL,
        reasoning: SPACED_THINK,
        signs: DetectionSigns {
            template: &["<tool_call>", "arguments"],
            // Other formats that put something else between the same tags.
            not: &["<function=", "<arg_key>", "<tool_call>[", "<response>"],
            special: None,
            architectures: &["GraniteMoeHybridForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "mistral_v11",
        models: &["Mistral-Small-3.2*"],
        markers: Special,
        call: &[Tok("[TOOL_CALLS]"), Name, Tok("[CALL_ID]"), Id, Tok("[ARGS]"), Args(Json)],
        ids: CallIdStyle::NineAlphanumeric,
        signs: DetectionSigns { template: &["[TOOL_CALLS]", "[CALL_ID]"], not: &[], special: None, architectures: &[] },
        ..BASE
    },
    Format {
        name: "mistral_v13",
        aliases: &["mistral_v15"],
        models: &["Magistral*", "Devstral-2*", "Ministral-3*", "Mistral-Large-3*"],
        markers: Special,
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("[THINK]")],
            close: &[Tok("[/THINK]")],
            layout: ["", "", ""],
        }),
        call: &[Tok("[TOOL_CALLS]"), Name, Tok("[ARGS]"), Args(Json)],
        ids: CallIdStyle::NineAlphanumeric,
        signs: DetectionSigns {
            template: &["[TOOL_CALLS]", "[ARGS]"],
            not: &["[CALL_ID]"],
            special: Some("[ARGS]"),
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "mistral_v3",
        aliases: &["mistral_v7"],
        models: &["Mistral-7B-Instruct-v0.3", "Mixtral-8x22B*", "Mistral-Large-2407", "Mistral-Large-2411"],
        markers: Special,
        begin: &[Tok("[TOOL_CALLS]"), Lit(" [")],
        between: &[Lit(", ")],
        end: &[Lit("]")],
        call: &[Args(WITH_ID)],
        ids: CallIdStyle::NineAlphanumeric,
        signs: DetectionSigns { template: &["[TOOL_CALLS] ["], not: &["[ARGS]"], special: None, architectures: &[] },
        ..BASE
    },
    Format {
        name: "mistral_v3_tekken",
        aliases: &["mistral_nemo", "mistral_v7_tekken"],
        models: &["Mistral-Nemo*", "Mistral-Small-2501", "Pixtral*"],
        markers: Special,
        begin: &[Tok("[TOOL_CALLS]"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]")],
        call: &[Args(WITH_ID)],
        ids: CallIdStyle::NineAlphanumeric,
        signs: DetectionSigns {
            template: &["[TOOL_CALLS]"],
            not: &["[ARGS]"],
            special: Some("[TOOL_CALLS]"),
            architectures: &["MistralForCausalLM", "MixtralForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "deepseek_v3_2",
        models: &["DeepSeek-V3.2*"],
        reasoning: THINK,
        lead: "\n\n",
        begin: &[Tok("<｜DSML｜function_calls>"), Lit("\n")],
        end: &[Tok("</｜DSML｜function_calls>")],
        call: DSML_CALL,
        signs: DetectionSigns {
            template: &["｜DSML｜", "function_calls"],
            not: &[],
            special: None,
            architectures: &["DeepseekV32ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "deepseek_v4",
        models: &["DeepSeek-V4*"],
        reasoning: THINK,
        lead: "\n\n",
        begin: &[Tok("<｜DSML｜tool_calls>"), Lit("\n")],
        end: &[Tok("</｜DSML｜tool_calls>")],
        call: DSML_CALL,
        signs: DetectionSigns {
            template: &["｜DSML｜", "tool_calls>"],
            not: &["function_calls", "｜ calls>"],
            special: Some("｜DSML｜"),
            architectures: &["DeepseekV4ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "deepseek_v4_1",
        models: &["DeepSeek-V4.1*"],
        reasoning: THINK,
        lead: "\n\n",
        begin: &[Tok("<｜DSML｜ calls>"), Lit("\n")],
        end: &[Tok("</｜DSML｜ calls>")],
        call: SPACED_DSML_CALL,
        signs: DetectionSigns {
            template: &["｜DSML｜", " calls>"],
            not: &["function_calls", "｜tool_calls>"],
            special: None,
            architectures: &["DeepseekV41ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "deepseek_v3",
        aliases: &["deepseek_r1"],
        models: &["DeepSeek-V3-0324", "DeepSeek-R1-0528", "DeepSeek-R1"],
        markers: Special,
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<think>")],
            close: &[Tok("</think>")],
            layout: ["\n", "\n", "\n\n"],
        }),
        begin: &[Tok("<｜tool▁calls▁begin｜>")],
        between: &[Lit("\n")],
        end: &[Tok("<｜tool▁calls▁end｜>")],
        call: &[
            Tok("<｜tool▁call▁begin｜>"),
            Lit("function"),
            Tok("<｜tool▁sep｜>"),
            Name,
            Lit("\n```json\n"),
            Args(Json),
            Lit("\n```"),
            Tok("<｜tool▁call▁end｜>"),
        ],
        signs: DetectionSigns {
            template: &["<｜tool▁calls▁begin｜>", "```json"],
            not: &[],
            special: None,
            architectures: &["DeepseekV3ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "deepseek_v3_1",
        models: &["DeepSeek-V3.1*"],
        markers: Special,
        reasoning: THINK,
        begin: &[Tok("<｜tool▁calls▁begin｜>")],
        end: &[Tok("<｜tool▁calls▁end｜>")],
        call: &[Tok("<｜tool▁call▁begin｜>"), Name, Tok("<｜tool▁sep｜>"), Args(Json), Tok("<｜tool▁call▁end｜>")],
        signs: DetectionSigns {
            template: &["<｜tool▁calls▁begin｜>"],
            not: &["```json"],
            special: Some("<｜tool▁calls▁begin｜>"),
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "gpt_oss",
        aliases: &["harmony", "openai"],
        models: &["gpt-oss-20b", "gpt-oss-120b"],
        markers: Special,
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<|channel|>"), Lit("analysis"), Tok("<|message|>")],
            close: &[Tok("<|end|>"), Tok("<|start|>"), Lit("assistant")],
            layout: ["", "", ""],
        }),
        text: Wrap { open: &[Tok("<|channel|>"), Lit("final"), Tok("<|message|>")], close: &[] },
        preamble: Some(Wrap {
            open: &[Tok("<|channel|>"), Lit("commentary"), Tok("<|message|>")],
            close: &[Tok("<|end|>"), Tok("<|start|>"), Lit("assistant")],
        }),
        many: false,
        call: &[
            Tok("<|channel|>"),
            Lit("commentary to=functions."),
            Name,
            Lit(" "),
            Tok("<|constrain|>"),
            Lit("json"),
            Tok("<|message|>"),
            Args(Json),
        ],
        // The template's own.
        also: &[
            &[Lit(" to=functions."), Name, Tok("<|channel|>"), Lit("commentary json"), Tok("<|message|>")],
            &[
                Lit(" to=functions."),
                Name,
                Tok("<|channel|>"),
                Lit("commentary "),
                Tok("<|constrain|>"),
                Lit("json"),
                Tok("<|message|>"),
            ],
        ],
        stops: &["<|return|>", "<|call|>"],
        signs: DetectionSigns {
            template: &["<|channel|>", "<|message|>"],
            not: &[],
            special: Some("<|channel|>"),
            architectures: &["GptOssForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "minimax_m2",
        models: &["MiniMax-M2*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<think>")],
            close: &[Tok("</think>")],
            layout: ["\n", "\n", "\n\n"],
        }),
        lead: "\n",
        begin: &[Tok("<minimax:tool_call>"), Lit("\n")],
        end: &[Tok("</minimax:tool_call>")],
        call: &[
            Tok("<invoke name="),
            Lit("\""),
            Name,
            Lit("\">\n"),
            Args(Params(&[Tok("<parameter name="), Lit("\""), Key, Lit("\">"), Value, Tok("</parameter>"), Lit("\n")])),
            Tok("</invoke>"),
            Lit("\n"),
        ],
        stops: &["[e~["],
        signs: DetectionSigns {
            template: &["minimax:tool_call"],
            not: &[],
            special: Some("<minimax:tool_call>"),
            architectures: &["MiniMaxM2ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "step3",
        models: &["Step3", "step3-fp8"],
        reasoning: SPACED_THINK,
        lead: "\n",
        begin: &[Tok("<｜tool_calls_begin｜>"), Lit("\n")],
        end: &[Tok("<｜tool_calls_end｜>")],
        call: &[
            Tok("<｜tool_call_begin｜>"),
            Lit("function"),
            Tok("<｜tool_sep｜><steptml:invoke name="),
            Lit("\""),
            Name,
            Lit("\">\n"),
            Args(Params(&[
                Tok("<steptml:parameter name="),
                Lit("\""),
                Key,
                Lit("\">"),
                Value,
                Tok("</steptml:parameter>"),
                Lit("\n"),
            ])),
            Tok("</steptml:invoke>"),
            Tok("<｜tool_call_end｜>"),
            Lit("\n"),
        ],
        signs: DetectionSigns {
            template: &["<｜tool_calls_begin｜>", "steptml:invoke"],
            not: &[],
            special: Some("<｜tool_calls_begin｜>"),
            architectures: &["Step3TextForCausalLM", "Step3VLForConditionalGeneration"],
        },
        ..BASE
    },
    Format {
        name: "seed_oss",
        models: &["Seed-OSS*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<seed:think>")],
            close: &[Tok("</seed:think>")],
            layout: ["\n", "\n", "\n"],
        }),
        lead: "\n",
        between: &[Lit("\n")],
        call: &[
            Tok("<seed:tool_call>"),
            Lit("\n"),
            Tok("<function="),
            Name,
            Lit(">\n"),
            Args(Params(&[Tok("<parameter="), Key, Lit(">"), Value, Tok("</parameter>"), Lit("\n")])),
            Tok("</function>"),
            Lit("\n"),
            Tok("</seed:tool_call>"),
        ],
        stops: &["<seed:eos>"],
        signs: DetectionSigns {
            template: &["<seed:tool_call>"],
            not: &[],
            special: Some("<seed:tool_call>"),
            architectures: &["SeedOssForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "llama_pythonic",
        aliases: &["pythonic", "llama4_pythonic"],
        models: &["Llama-3.2*", "Llama-4*", "ToolACE*"],
        calls: InsteadOfText,
        begin: &[Maybe("<|python_start|>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]"), Maybe("<|python_end|>")],
        call: &[Name, Lit("("), Args(Python), Lit(")")],
        stops: &["<|eom_id|>", "<|eot_id|>", "<|eom|>", "<|eot|>"],
        signs: DetectionSigns {
            template: &["[func_name1(params_name1=params_value1"],
            not: &[],
            special: Some("<|python_start|>"),
            architectures: &["Llama4ForConditionalGeneration"],
        },
        ..BASE
    },
    Format {
        name: "llama_json",
        aliases: &["llama3_json"],
        models: &["Llama-3.1*", "Llama-3.2*", "Llama-3.3*"],
        calls: InsteadOfText,
        many: false,
        begin: &[Maybe("<|python_tag|>")],
        // These models normally write one call; two calls are separated like this.
        between: &[Lit("; ")],
        call: &[Args(PARAMETERS)],
        builtins: &[
            Builtin {
                names: &["brave_search", "wolfram_alpha"],
                call: &[Tok("<|python_tag|>"), Name, Lit(".call("), Args(Python), Lit(")")],
            },
            Builtin { names: &["code_interpreter", "ipython", "python"], call: &[Tok("<|python_tag|>"), Args(Code)] },
        ],
        stops: &["<|eom_id|>", "<|eot_id|>"],
        signs: DetectionSigns {
            template: &["<|start_header_id|>", "\"parameters\""],
            not: &["<tool_call>"],
            special: Some("<|python_tag|>"),
            architectures: &["LlamaForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "olmo3",
        models: &["Olmo-3*"],
        reasoning: SPACED_THINK,
        lead: "\n",
        begin: &[Tok("<function_calls>"), Lit("\n")],
        between: &[Lit("\n")],
        end: &[Lit("\n"), Tok("</function_calls>")],
        call: &[Name, Lit("("), Args(Python), Lit(")")],
        signs: DetectionSigns {
            template: &["<function_calls>"],
            not: &["｜DSML｜"],
            special: None,
            architectures: &["Olmo3ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "xlam",
        models: &["xLAM-2*"],
        calls: InsteadOfText,
        begin: &[Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]")],
        call: &[Args(OBJECT)],
        signs: DetectionSigns {
            template: &["make calls in a single JSON array"],
            not: &[],
            special: None,
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "hunyuan_a13b",
        models: &["Hunyuan-A13B*"],
        reasoning: SPACED_THINK,
        text: Wrap { open: &[Maybe("<answer>")], close: &[Maybe("</answer>")] },
        begin: &[Tok("<tool_calls>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]"), Tok("</tool_calls>")],
        call: &[Args(OBJECT)],
        stops: &["<|eos|>"],
        signs: DetectionSigns {
            template: &["<tool_calls>", "<|extra_0|>"],
            not: &[],
            special: None,
            architectures: &["HunYuanMoEV1ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "ernie45",
        models: &["ERNIE-4.5*"],
        reasoning: SPACED_THINK,
        text: Wrap { open: &[Maybe("<response>\n")], close: &[Maybe("\n</response>\n")] },
        lead: "\n",
        between: &[Lit("\n")],
        call: HERMES_CALL,
        signs: DetectionSigns {
            template: &["<tool_call>", "<response>"],
            not: &[],
            special: None,
            architectures: &["Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "gigachat3_1",
        models: &["GigaChat3.1*"],
        markers: Special,
        many: false,
        call: &[Tok("<|function_call|>"), Args(OBJECT)],
        signs: DetectionSigns {
            template: &["<|function_call|>"],
            not: &[],
            special: Some("<|function_call|>"),
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "gigachat3",
        models: &["GigaChat3-*"],
        many: false,
        call: &[Tok("<|message_sep|>\n\nfunction call<|role_sep|>\n"), Args(OBJECT)],
        signs: DetectionSigns {
            template: &["function call", "<|role_sep|>"],
            not: &["<|function_call|>"],
            special: None,
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "jamba",
        models: &["AI21-Jamba-1.5*", "Jamba*"],
        begin: &[Tok("<tool_calls>"), Lit("[\n    ")],
        between: &[Lit(",\n    ")],
        end: &[Lit("\n]"), Tok("</tool_calls>")],
        call: &[Args(OBJECT)],
        stops: &["<|eom|>"],
        signs: DetectionSigns {
            template: &["<tool_calls>"],
            not: &["｜DSML｜", "<tool_sep>", "<|extra_0|>"],
            special: Some("<tool_calls>"),
            architectures: &["JambaForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "internlm2",
        aliases: &["internlm25"],
        models: &["InternLM2.5*", "internlm3*"],
        many: false,
        call: &[Tok("<|action_start|>"), Tok("<|plugin|>"), Lit("\n"), Args(PARAMETERS), Tok("<|action_end|>")],
        signs: DetectionSigns {
            template: &["<|plugin|>"],
            not: &[],
            special: Some("<|action_start|>"),
            architectures: &["InternLM2ForCausalLM", "InternLM3ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "granite_20b_fc",
        models: &["granite-20b-functioncalling"],
        calls: InsteadOfText,
        between: &[Lit("\n")],
        call: &[Tok("<function_call>"), Lit(" "), Args(OBJECT)],
        signs: DetectionSigns {
            template: &["<function_call>"],
            not: &[],
            special: None,
            architectures: &["GPTBigCodeForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "granite",
        aliases: &["granite_3_0"],
        models: &["granite-3.0*"],
        begin: &[Tok("<|tool_call|>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]")],
        call: &[Args(OBJECT)],
        signs: DetectionSigns {
            template: &["<|tool_call|>", "<|start_of_role|>"],
            not: &[],
            special: None,
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "granite_3_2",
        models: &["granite-3.2*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("Here is my thought process:"), Maybe("Here's my thought process:")],
            close: &[Tok("Here is my response:"), Maybe("Here's my response:")],
            layout: ["\n\n", "\n\n", "\n\n"],
        }),
        begin: &[Tok("<tool_call>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]")],
        call: &[Args(OBJECT)],
        signs: DetectionSigns {
            template: &["<|start_of_role|>", "Here is my thought process:"],
            not: &[],
            special: None,
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "granite_3_3",
        models: &["granite-3.3*"],
        reasoning: THINK,
        text: Wrap { open: &[Maybe("<response>")], close: &[Maybe("</response>")] },
        begin: &[Tok("<tool_call>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]")],
        call: &[Args(OBJECT)],
        signs: DetectionSigns {
            template: &["<|start_of_role|>", "<response>"],
            not: &["</tool_call>"],
            special: None,
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "granite_3_1",
        models: &["granite-3.1*"],
        reasoning: THINK,
        begin: &[Tok("<tool_call>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]")],
        call: &[Args(OBJECT)],
        signs: DetectionSigns {
            template: &["<|start_of_role|>", "<tool_call>"],
            not: &["</tool_call>"],
            special: None,
            architectures: &["GraniteForCausalLM", "GraniteMoeForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "lfm2",
        aliases: &["lfm2_5", "lfm25"],
        models: &["LFM2*", "LFM2.5*"],
        markers: Special,
        reasoning: THINK,
        begin: &[Tok("<|tool_call_start|>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]"), Tok("<|tool_call_end|>")],
        call: &[Name, Lit("("), Args(Python), Lit(")")],
        stops: &["<|im_end|>"],
        signs: DetectionSigns {
            template: &["<|tool_call_start|>"],
            not: &["```python"],
            special: Some("<|tool_call_start|>"),
            architectures: &["Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration"],
        },
        ..BASE
    },
    Format {
        name: "minicpm3",
        models: &["MiniCPM3*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<|thought_start|>")],
            close: &[Tok("<|thought_end|>")],
            layout: ["\n", "\n", "\n"],
        }),
        calls: BeforeText,
        begin: &[Tok("<|tool_call_start|>"), Lit("\n```python\n")],
        between: &[Lit("\n")],
        end: &[Lit("\n```\n"), Tok("<|tool_call_end|>"), Lit("\n")],
        call: &[Name, Lit("("), Args(Python), Lit(")")],
        signs: DetectionSigns {
            template: &["<|tool_call_start|>", "```python"],
            not: &[],
            special: Some("<|thought_start|>"),
            architectures: &["MiniCPM3ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "minicpm5",
        models: &["MiniCPM5*"],
        reasoning: SPACED_THINK,
        lead: "\n",
        between: &[Lit("\n")],
        call: &[
            Tok("<function name="),
            Lit("\""),
            Name,
            Lit("\">"),
            Args(Params(&[Tok("<param name="), Lit("\""), Key, Lit("\">"), Value, Tok("</param>")])),
            Tok("</function>"),
        ],
        signs: DetectionSigns {
            template: &["<function name=", "<param name="],
            not: &[],
            special: None,
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "gemma4",
        models: &["gemma-4*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<|channel>"), Lit("thought\n")],
            close: &[Tok("<channel|>")],
            layout: ["", "\n", ""],
        }),
        call: &[Tok("<|tool_call>"), Lit("call:"), Name, Args(Bare(&[Tok("<|\"|>")])), Tok("<tool_call|>")],
        stops: &["<turn|>", "<|tool_response>"],
        signs: DetectionSigns {
            template: &["<|tool_call>call:"],
            not: &[],
            special: Some("<|tool_call>"),
            architectures: &["Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "functiongemma",
        models: &["functiongemma*"],
        call: &[
            Tok("<start_function_call>"),
            Lit("call:"),
            Name,
            Args(Bare(&[Tok("<escape>")])),
            Tok("<end_function_call>"),
        ],
        stops: &["<end_of_turn>", "<start_function_response>"],
        signs: DetectionSigns {
            template: &["<start_function_call>"],
            not: &[],
            special: Some("<start_function_call>"),
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "apertus",
        models: &["Apertus*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<|inner_prefix|>")],
            close: &[Tok("<|inner_suffix|>")],
            layout: ["", "", ""],
        }),
        markers: Special,
        begin: &[Tok("<|tools_prefix|>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]"), Tok("<|tools_suffix|>")],
        call: &[Args(Keyed)],
        stops: &["<|assistant_end|>"],
        signs: DetectionSigns {
            template: &["<|tools_prefix|>"],
            not: &[],
            special: Some("<|tools_prefix|>"),
            architectures: &["ApertusForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "phi4_mini",
        models: &["Phi-4-mini*"],
        begin: &[Tok("<|tool_call|>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]"), Tok("<|/tool_call|>")],
        call: &[Args(OBJECT)],
        stops: &["<|end|>"],
        signs: DetectionSigns {
            template: &["<|tool_call|>", "<|/tool_call|>"],
            not: &["functools"],
            special: Some("<|/tool_call|>"),
            architectures: &["Phi3ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "functools",
        aliases: &["phi4_mini_functools"],
        models: &["Phi-4-mini* with the functools prompt"],
        calls: InsteadOfText,
        begin: &[Tok("functools[")],
        between: &[Lit(", ")],
        end: &[Lit("]")],
        call: &[Args(OBJECT)],
        stops: &["<|end|>"],
        signs: DetectionSigns { template: &["functools"], not: &[], special: None, architectures: &[] },
        ..BASE
    },
    Format {
        name: "command_r7b",
        aliases: &["command_a", "cohere2"],
        models: &["c4ai-command-r7b*", "c4ai-command-a*"],
        markers: Special,
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<|START_THINKING|>")],
            close: &[Tok("<|END_THINKING|>")],
            layout: ["", "", ""],
        }),
        text: Wrap { open: &[Tok("<|START_RESPONSE|>")], close: &[Tok("<|END_RESPONSE|>")] },
        calls: InsteadOfText,
        begin: &[Tok("<|START_ACTION|>"), Lit("[\n    ")],
        between: &[Lit(",\n    ")],
        end: &[Lit("\n]"), Tok("<|END_ACTION|>")],
        call: &[Args(Object {
            members: &[
                Member::Id(&["tool_call_id"]),
                Member::Name(&["tool_name", "name"]),
                Member::Arguments(&["parameters", "arguments"]),
            ],
            ignored: &["type"],
        })],
        ids: CallIdStyle::Ordinal,
        signs: DetectionSigns {
            template: &["<|START_ACTION|>"],
            not: &[],
            special: Some("<|START_ACTION|>"),
            architectures: &["Cohere2ForCausalLM"],
        },
        ..BASE
    },
    Format {
        name: "command_5",
        aliases: &["cohere_command4", "cmd5"],
        models: &["c4ai-command-a-plus*", "command-5*"],
        reasoning: Some(Reasoning {
            lead: "",
            open: &[Tok("<|START_THINKING|>")],
            close: &[Tok("<|END_THINKING|>")],
            layout: ["", "", ""],
        }),
        text: Wrap { open: &[Tok("<|START_TEXT|>")], close: &[Tok("<|END_TEXT|>")] },
        begin: &[Tok("<cofl:tool_calls>")],
        end: &[Tok("</cofl:tool_calls>")],
        call: &[
            Tok("<cofl:tool_call id="),
            Lit("\""),
            Index,
            Lit("\" name=\""),
            Name,
            Lit("\">"),
            Args(Tagged(Tags { open: "<cofl:value", close: "</cofl:value>" })),
            Tok("</cofl:tool_call>"),
        ],
        signs: DetectionSigns {
            template: &["<cofl:tool_calls>", "<cofl:value"],
            not: &[],
            special: Some("<cofl:tool_calls>"),
            architectures: &[],
        },
        ..BASE
    },
    Format {
        name: "nemotron_v2",
        aliases: &["nemotron_nano_v2"],
        models: &["NVIDIA-Nemotron-Nano-9B-v2", "NVIDIA-Nemotron-Nano-12B-v2"],
        reasoning: SPACED_THINK,
        begin: &[Tok("<TOOLCALL>"), Lit("[")],
        between: &[Lit(", ")],
        end: &[Lit("]"), Tok("</TOOLCALL>")],
        call: &[Args(OBJECT)],
        stops: &["<SPECIAL_12>"],
        signs: DetectionSigns { template: &["<TOOLCALL>"], not: &[], special: Some("<TOOLCALL>"), architectures: &[] },
        ..BASE
    },
    // Models that write the object of a call without the tags of their own template. A template does not tell.
    Format {
        name: "hermes_json",
        aliases: &["qwen25_coder"],
        models: &["Qwen2.5-Coder*"],
        opens: true,
        reasoning: SPACED_THINK,
        lead: "\n",
        between: &[Lit("\n")],
        call: HERMES_CALL,
        ..BASE
    },
    Format { reasoning: SPACED_THINK, ..BASE },
];

const HERMES_CALL: &[Step] = &[Tok("<tool_call>"), Lit("\n"), Args(OBJECT), Lit("\n"), Tok("</tool_call>")];

/// The call of DeepSeek's markup, whose tags may begin with a blank.
macro_rules! dsml_call {
    ($blank:literal) => {
        &[
            Tok(concat!("<｜DSML｜", $blank, "invoke name=")),
            Lit("\""),
            Name,
            Lit("\">\n"),
            Args(Params(&[
                Tok(concat!("<｜DSML｜", $blank, "parameter name=")),
                Lit("\""),
                Key,
                Lit("\" string=\""),
                IsString,
                Lit("\">"),
                Value,
                Tok(concat!("</｜DSML｜", $blank, "parameter>")),
                Lit("\n"),
            ])),
            Tok(concat!("</｜DSML｜", $blank, "invoke>")),
            Lit("\n"),
        ]
    };
}

const DSML_CALL: &[Step] = dsml_call!("");
const SPACED_DSML_CALL: &[Step] = dsml_call!(" ");

/// Reasoning and text only: for models without a known tool format.
pub static PLAIN: &Format = &FORMATS[FORMATS.len() - 1];

/// Text only: for completions without turns.
pub static BARE: Format = BASE;

/// Tokens that end a turn, by a token that identifies the tokenizer. They do not depend on the format, and the
/// configuration files of such checkpoints name only some of them.
static TURN_ENDS: &[(&str, &[&str])] = &[
    // The tokenizer of Kimi names [EOS], its configuration <|im_end|>.
    ("<|im_middle|>", &["[EOS]", "<|im_end|>"]),
];

/// The tokens of a tokenizer that end a turn, in addition to those that its configuration and the [`Format`] name.
/// `special` tells whether the tokenizer has an added token with this text.
pub fn turn_ends(special: impl Fn(&str) -> bool) -> impl Iterator<Item = &'static str> {
    TURN_ENDS.iter().filter(move |(sign, _)| special(sign)).flat_map(|(_, ends)| ends.iter().copied())
}

/// All formats, for listing.
pub fn formats() -> &'static [Format] {
    FORMATS
}

/// A format by its name in the table, or by an alias.
pub fn by_name(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|f| f.name == name || f.aliases.contains(&name))
}

/// Detects the format of a model directory: by its template, then by added tokens, then by architecture. The
/// architecture counts only without a template: an unknown template belongs to a fine-tune with another format. None:
/// unknown; [`PLAIN`] reads its output without calls.
pub fn detect(model: &ModelDirFacts<'_>) -> Option<&'static Format> {
    let by_template = |f: &&Format| {
        let signs = &f.signs;
        model.template.is_some_and(|t| {
            !signs.template.is_empty()
                && signs.template.iter().all(|s| t.contains(s))
                && !signs.not.iter().any(|s| t.contains(s))
        })
    };
    let by_token = |f: &&Format| f.signs.special.is_some_and(|s| (model.special)(s));
    let by_architecture = |f: &&Format| model.architecture.is_some_and(|a| f.signs.architectures.contains(&a));
    FORMATS
        .iter()
        .find(by_template)
        .or_else(|| FORMATS.iter().find(by_token))
        .or_else(|| FORMATS.iter().find(|f| model.template.is_none() && by_architecture(f)))
}
