//! The format table for people: the output of `rein formats`, and docs/reference/formats.md.

use serde_json::{Value, json};

use crate::format::{CallIdStyle, CallPosition, Codec, Format, Markers, Step, marker};
use crate::formats::formats;
use crate::models::{Recommendation, recommendations};
use crate::render::{Call, RenderOptions, Turn, render, render_text};

/// A format, described.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub models: &'static [&'static str],
    /// All its markers; a tokenizer may have them as added tokens.
    pub markers: Vec<&'static str>,
    /// Ids of calls on the wire.
    pub ids: &'static str,
    /// What parser and grammar guarantee.
    pub guarantees: Vec<&'static str>,
    /// The vendors' recommendations for its models, and where their templates are.
    pub recommendations: Vec<&'static Recommendation>,
    /// A turn with one call, as the renderer writes it.
    pub example: String,
}

impl Format {
    pub fn describe(&self) -> Description {
        let mut guarantees = Vec::new();
        if self.has_calls() {
            guarantees.push(match (self.markers, self.announced()) {
                (Markers::Special, _) => "calls begin with special tokens: text cannot forge one",
                (Markers::Either, true) => "calls begin with letters, as one token or several",
                (Markers::Either, false) => "no marker begins a call: only declared names count",
            });
            guarantees.push(match self.codec() {
                Codec::Json | Codec::Object { .. } => "arguments are JSON",
                Codec::Params(_) => "arguments are raw values: strings unquoted, other types as JSON, by the schema",
                Codec::Python => "arguments are Python literals",
                Codec::Code => "the argument is the rest of the output",
            });
            guarantees.push(if self.many { "several calls per turn" } else { "one call per turn" });
            match self.calls {
                CallPosition::AfterText => guarantees.push("text may come before calls"),
                CallPosition::BeforeText => guarantees.push("text may come after calls"),
                CallPosition::InsteadOfText => guarantees.push("a turn is text or calls"),
            }
        }
        let mut markers: Vec<_> = self.all_steps().filter_map(marker).collect();
        markers.sort_unstable();
        markers.dedup();
        Description {
            markers,
            name: self.name,
            aliases: self.aliases,
            models: self.models,
            ids: match self.ids {
                CallIdStyle::None => "none",
                CallIdStyle::Header => "the call's header",
                CallIdStyle::NineAlphanumeric => "nine letters or digits",
                CallIdStyle::Ordinal => "a count from 0",
            },
            guarantees,
            recommendations: recommendations(self.name).collect(),
            example: self.example(),
        }
    }

    /// Whether a marker precedes calls.
    fn announced(&self) -> bool {
        self.begin.iter().chain(self.call).any(|s| matches!(s, Step::Tok(_)))
    }

    fn example(&self) -> String {
        let calls = match self.has_calls() {
            true => vec![Call { name: "f".into(), arguments: "{\"a\": \"x\"}".into() }],
            false => Vec::new(),
        };
        let text = if calls.is_empty() { "text" } else { "" };
        render_text(&render(self, &Turn { reasoning: None, text: text.into(), calls }, RenderOptions::default()))
    }
}

impl Description {
    pub fn json(&self) -> Value {
        json!({
            "name": self.name,
            "aliases": self.aliases,
            "models": self.models,
            "markers": self.markers,
            "ids": self.ids,
            "guarantees": self.guarantees,
            "recommendations": self.recommendations.iter().map(|known| json!({
                "model": known.model,
                "temperature": known.temperature,
                "top_p": known.top_p,
                "top_k": known.top_k,
                "note": known.note,
                "source": known.url(),
            })).collect::<Vec<_>>(),
            "example": self.example,
        })
    }
}

/// docs/reference/formats.md: the table inside the prose of `formats.md`.
pub fn markdown() -> String {
    let mut table = String::from("| format | other names | models | ids | guaranteed |\n|---|---|---|---|---|\n");
    let mut models = String::from("| model | format | recommended sampling | card and template |\n|---|---|---|---|\n");
    let mut wire = String::new();
    for format in formats() {
        let d = format.describe();
        let cell = |words: &[&str]| words.join(", ").replace('|', "\\|").replace('*', "\\*");
        let guarantees = d.guarantees.join("; ");
        table.push_str(&format!(
            "| `{}` | {} | {} | {} | {guarantees} |\n",
            d.name,
            cell(d.aliases),
            cell(d.models),
            d.ids
        ));
        for known in &d.recommendations {
            let words = [known.sampling(), known.note.to_owned()];
            let words: Vec<String> = words.into_iter().filter(|words| !words.is_empty()).collect();
            models.push_str(&format!(
                "| {} | `{}` | {} | [{}]({}) |\n",
                known.model,
                d.name,
                words.join("; "),
                known.repository,
                known.url()
            ));
        }
        wire.push_str(&format!("{:<18} {}\n", d.name, Value::from(d.example.as_str())));
    }
    include_str!("formats.md").replace("TABLE\n", &table).replace("MODELS\n", &models).replace("WIRE\n", &wire)
}
