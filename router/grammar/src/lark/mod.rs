//! Lark text for llguidance: the writer of rules and terminals, the parser of that text, and the estimate of its cost.
//! It knows neither formats nor schemas.

pub(crate) mod common;
mod price;
mod read;
mod terminals;

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::limits::{MAX_BLANKS, MAX_INDENT};
use crate::rules::Blanks;

pub(crate) use common::Common;
pub(crate) use price::{Price, is_costly_grammar, is_empty, parsing_steps, price, price_to_compile};
pub(crate) use read::read;
pub(crate) use terminals::{Spelling, check_lark, respell};

/// Every grammar begins with this: which tokens spell a text is left to the model.
pub(crate) const HEADER: &str = "%llguidance {\"no_forcing\": true}\n";

/// Text of any kind, at least one character.
pub(crate) const SOME_TEXT: &str = "(?s:.+)";

/// How much of what models write besides the format itself a grammar takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum GrammarForm {
    /// Whatever the parser reads as the same output.
    #[default]
    Tolerant,
    /// What the format itself, and a JSON writer, would write.
    Canonical,
}

impl GrammarForm {
    /// Blanks between tokens of JSON, or none.
    pub fn blanks(self) -> String {
        match self {
            GrammarForm::Tolerant => some_blanks() + "?",
            GrammarForm::Canonical => String::new(),
        }
    }

    /// Blanks and newlines between reasoning, text and calls, bounded; at least one.
    pub fn layout(self) -> String {
        match self {
            GrammarForm::Tolerant => layout(),
            GrammarForm::Canonical => r"\n{1,2}".to_owned(),
        }
    }
}

/// Collects rules and terminals; equal bodies become one rule.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub form: GrammarForm,
    /// Blanks between tokens of JSON; those of the form unless the client says.
    pub blanks: Blanks,
    text: String,
    names: HashMap<String, String>,
    /// The rules written for a group of parametric rules, by the group's text.
    groups: HashMap<String, (String, String, String)>,
    count: usize,
    /// Grammars that clients sent, by name.
    pub foreign: Vec<(String, String)>,
}

impl Writer {
    /// The rule with this body.
    pub fn rule(&mut self, body: &str) -> String {
        if let Some(name) = self.names.get(body) {
            return name.clone();
        }
        let name = self.reserve();
        self.define(&name, body);
        self.names.insert(body.to_owned(), name.clone());
        name
    }

    /// A name for a rule that is defined later, for recursion.
    pub fn reserve(&mut self) -> String {
        self.count += 1;
        format!("r{}", self.count)
    }

    pub fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.text, "{name}:{body}");
    }

    /// A rule that passes on its parameter.
    pub fn define_parametric(&mut self, name: &str, alternatives: &[String]) {
        // Without blanks and line breaks, which are lexemes for llguidance's parser.
        let _ = writeln!(self.text, "{name}::_:{}", alternatives.join("|"));
    }

    /// A lexeme.
    pub fn terminal(&mut self, body: &str) -> String {
        let key = format!("terminal {body}");
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        self.count += 1;
        let name = format!("T{}", self.count);
        self.define(&name, body);
        self.names.insert(key, name.clone());
        name
    }

    /// A lexeme that ends at its first match.
    pub fn lazy(&mut self, body: &str) -> String {
        let key = format!("lazy {body}");
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let terminal = self.terminal(body);
        let name = self.reserve();
        let _ = writeln!(self.text, "{name}[lazy]:{terminal}");
        self.names.insert(key, name.clone());
        name
    }

    pub fn regex(&mut self, regex: &str) -> String {
        self.terminal(&format!("/{regex}/"))
    }

    /// Three related rules, if they were written before.
    pub fn shared(&self, key: &str) -> Option<(String, String, String)> {
        self.groups.get(key).cloned()
    }

    pub fn share(&mut self, key: &str, names: (String, String, String)) {
        self.groups.insert(key.to_owned(), names);
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Blanks as allowed in JSON, bounded: a run of them, or a line break with indentation; at least one.
pub(crate) fn some_blanks() -> String {
    format!(r"([ \t]{{1,{MAX_BLANKS}}}|[ \t]{{0,{MAX_BLANKS}}}\r?\n[ \t]{{0,{MAX_INDENT}}})")
}

/// Blanks and newlines between reasoning, text and calls, bounded; at least one.
pub(crate) fn layout() -> String {
    format!(r"[ \t\r\n]{{1,{MAX_BLANKS}}}")
}

/// A client's regular expression for use between slashes.
pub(crate) fn client_regex(regex: &str) -> String {
    llguidance::regex_to_lark(&ascii_classes(regex), "")
}

/// The expression with ASCII classes for \d and \w, as in patterns of JSON Schema.
pub(crate) fn ascii_classes(regex: &str) -> String {
    let mut out = String::with_capacity(regex.len());
    let mut chars = regex.chars();
    while let Some(c) = chars.next() {
        out.push_str(&match (c, if c == '\\' { chars.next() } else { None }) {
            (_, Some('d')) => "[0-9]".to_owned(),
            (_, Some('D')) => "[^0-9]".to_owned(),
            (_, Some('w')) => "[0-9A-Za-z_]".to_owned(),
            (_, Some('W')) => "[^0-9A-Za-z_]".to_owned(),
            (_, Some(escaped)) => format!("\\{escaped}"),
            (c, None) => c.to_string(),
        });
    }
    out
}

/// A Lark string literal.
pub(crate) fn literal(text: &str) -> String {
    // `::` would look like a parameter when expressions are searched for one.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f").replace("::", ":\\u003a")
}

/// A regular expression that matches this text, for use between slashes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str(r"\n"),
            c if c.is_ascii_alphanumeric() || !c.is_ascii() || matches!(c, '_' | '<' | '>' | ' ') => out.push(c),
            c if c.is_ascii_control() => {
                let _ = write!(out, r"\x{:02x}", u32::from(c));
            }
            c => {
                out.push('\\');
                out.push(c);
            }
        }
    }
    out
}

/// Alternatives as one expression.
pub(crate) fn either(alternatives: &[String]) -> String {
    match alternatives {
        [one] => one.clone(),
        many => format!("({})", many.join("|")),
    }
}
