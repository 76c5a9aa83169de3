//! The format table for people: the output of `rein formats`, and docs/reference/formats.md.

use serde_json::{Value, json};

use crate::announced::{announcing, sees_code};
use crate::format::{CallIdStyle, CallPosition, Codec, Format, Markers, Member, Step, marker};
use crate::formats::formats;
use crate::models::{Recommendation, recommendations};
use crate::render::{Call, RenderOptions, Turn, render, render_text};

/// A format, described.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub models: &'static [&'static str],
    /// The markers that a tokenizer may have as added tokens.
    pub markers: Vec<&'static str>,
    /// Ids of calls on the wire.
    pub ids: &'static str,
    /// What parser and grammar guarantee.
    pub guarantees: Vec<&'static str>,
    /// The vendors' recommendations for its models, and where their templates are.
    pub recommendations: Vec<&'static Recommendation>,
    /// A turn with one call, as the renderer writes it.
    pub example: String,
    /// What begins a call. Empty: the format has no calls.
    pub opens: Vec<String>,
    /// What text, and the value of an argument, may not contain.
    pub not_in_text: &'static str,
    pub not_in_values: String,
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
                Codec::Json | Codec::Keyed | Codec::Object { .. } => "arguments are JSON",
                Codec::Params(_) => "arguments are raw values: strings unquoted, other types as JSON, by the schema",
                Codec::Python => "arguments are Python literals",
                Codec::Bare(_) => "arguments are objects with names without quotes and strings between two marks",
                Codec::Elements(_) => "arguments are nested elements: text and tags, by the schema",
                Codec::Tagged(_) => "arguments are nested elements whose tags name types",
                Codec::Code => "the argument is the rest of the output",
            });
            guarantees.push(if self.many { "several calls per turn" } else { "one call per turn" });
            match self.calls {
                CallPosition::AfterText => guarantees.push("text may come before calls"),
                CallPosition::BeforeText => guarantees.push("text may come after calls"),
                CallPosition::InsteadOfText => guarantees.push("a turn is text or calls"),
            }
        }
        Description {
            markers: self.token_markers(),
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
            opens: self.openings(),
            not_in_text: self.not_in_text(),
            not_in_values: self.not_in_values(),
        }
    }

    /// What begins a call, with `NAME` for that of a declared tool.
    fn openings(&self) -> Vec<String> {
        let until_name = |steps: &[Step]| {
            let mut written = String::new();
            for step in steps {
                match step {
                    Step::Tok(text) | Step::Lit(text) => written.push_str(text),
                    Step::Name => return written + "NAME",
                    Step::Args(Codec::Keyed) => return written + "{\"NAME\"",
                    Step::Args(Codec::Object { members, .. }) => {
                        let key = members.iter().filter_map(Member::name).flatten().next().unwrap_or(&"name");
                        return format!("{written}{{\"{key}\": \"NAME\"");
                    }
                    _ => {}
                }
            }
            written
        };
        let mut all = Vec::new();
        if self.markers == Markers::Special {
            all.extend([self.begin, self.call].map(until_name));
        } else if self.has_calls() {
            all.push(until_name(&[self.begin, self.call].concat()));
            if announcing(self).len() > 1 {
                all.push(until_name(self.call));
            }
        }
        if self.opens {
            all.push("{\"name\": \"NAME\"".to_owned());
        }
        all.retain(|text| !text.trim().is_empty());
        all.dedup();
        all
    }

    fn not_in_text(&self) -> &'static str {
        match self.markers {
            _ if !self.has_calls() => "",
            Markers::Special => "nothing: these are tokens, their letters are text",
            Markers::Either if sees_code(self) => "these, outside Markdown's code",
            Markers::Either => "these, in code too",
        }
    }

    fn not_in_values(&self) -> String {
        if let Some(mark) = self.string_mark() {
            return format!("`{mark}`");
        }
        let steps = match self.codec() {
            Codec::Params(steps) => steps,
            Codec::Tagged(tags) => return format!("`{}`", tags.close),
            _ => return "nothing".to_owned(),
        };
        let value = steps.iter().position(|step| *step == Step::Value).unwrap_or_default();
        let end = steps[value..].iter().find_map(marker).unwrap_or_default();
        match self.markers {
            Markers::Special => format!("the token `{end}`"),
            Markers::Either => format!("`{end}` before a marker of the call"),
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
            "opens": self.opens,
            "not_in_text": self.not_in_text,
            "not_in_values": self.not_in_values,
        })
    }
}

/// docs/reference/formats.md: the table inside the prose of `formats.md`.
pub fn markdown() -> String {
    let mut table = String::from("| format | other names | models | ids | guaranteed |\n|---|---|---|---|---|\n");
    let mut models = String::from("| model | format | recommended sampling | card and template |\n|---|---|---|---|\n");
    let mut wire = String::new();
    let mut limits = String::from(
        "| format | a call begins with | text may not contain | a value may not contain |\n|---|---|---|---|\n",
    );
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
        if format.has_calls() {
            let code = |text: &String| {
                let lines: Vec<_> = text.trim_end().split('\n').map(str::trim_start).collect();
                format!("`{}`", lines.join("⏎"))
            };
            let opens = d.opens.iter().map(code).collect::<Vec<_>>().join(" or ");
            let row = format!("`{}` | {opens} | {} | {}", d.name, d.not_in_text, d.not_in_values);
            let row = row.replace("<|", "<\\|").replace("|>", "\\|>");
            limits.push_str(&format!("| {row} |\n"));
        }
        wire.push_str(&format!("{:<18} {}\n", d.name, Value::from(d.example.as_str())));
    }
    let page = include_str!("formats.md").replace("TABLE\n", &table).replace("MODELS\n", &models);
    page.replace("LIMITS\n", &limits).replace("WIRE\n", &wire)
}
