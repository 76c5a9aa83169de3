//! The table of formats: the only code that spells a marker.

use crate::format::{Codec, Detect, Format, Markers, Reasoning, Signs, Step};
use Codec::{Json, Object};
use Step::{Args, Index, Lit, Name, Tok};

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";

static FORMATS: [Format; 3] = [
    Format {
        name: "kimi_k2",
        models: &["Kimi-K2*", "Kimi-K2-Thinking", "Kimi-K2.5", "Kimi-K2.6"],
        markers: Markers::Special,
        reasoning: Some(Reasoning { open: THINK, close: END_THINK, layout: ["", "", ""] }),
        lead: "",
        begin: &[Tok("<|tool_calls_section_begin|>")],
        between: &[],
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
        header_is_id: true,
        signs: Signs {
            template: &["<|tool_calls_section_begin|>"],
            not: &[],
            special: Some("<|tool_calls_section_begin|>"),
            architectures: &["KimiK2ForCausalLM", "KimiK25ForConditionalGeneration"],
        },
    },
    Format {
        name: "hermes",
        models: &["Hermes-2-Pro*", "Hermes-3*", "Qwen2.5*", "QwQ*", "Qwen3-*", "granite-4*", "EXAONE-4*"],
        markers: Markers::Either,
        reasoning: Some(Reasoning { open: THINK, close: END_THINK, layout: ["\n", "\n", "\n\n"] }),
        lead: "\n",
        begin: &[],
        between: &[Lit("\n")],
        end: &[],
        call: &[
            Tok("<tool_call>"),
            Lit("\n"),
            Args(Object { name: &["name"], arguments: &["arguments", "parameters"], ignored: &["id", "type"] }),
            Lit("\n"),
            Tok("</tool_call>"),
        ],
        header_is_id: false,
        signs: Signs {
            template: &["<tool_call>", "arguments"],
            // Others that put something else between the same tags.
            not: &["<function=", "<arg_key>"],
            special: None,
            architectures: &["GraniteMoeHybridForCausalLM"],
        },
    },
    Format {
        name: "plain",
        models: &["models that call no tools"],
        markers: Markers::Either,
        reasoning: Some(Reasoning { open: THINK, close: END_THINK, layout: ["\n", "\n", "\n\n"] }),
        lead: "",
        begin: &[],
        between: &[],
        end: &[],
        call: &[],
        header_is_id: false,
        signs: Signs { template: &[], not: &[], special: None, architectures: &[] },
    },
];

/// Reasoning and text only: what a model without a known tool format is read with.
pub static PLAIN: &Format = &FORMATS[FORMATS.len() - 1];

/// All formats, for listing.
pub fn formats() -> &'static [Format] {
    &FORMATS
}

/// A format by its name in the table.
pub fn by_name(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|f| f.name == name)
}

/// The format of a model directory: by what its template spells, then by added tokens, then by architecture. None: not
/// known; [`PLAIN`] reads it without tool calls.
pub fn detect(model: &Detect<'_>) -> Option<&'static Format> {
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
        .or_else(|| FORMATS.iter().find(by_architecture))
}
