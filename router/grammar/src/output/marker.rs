//! Turns steps of the format table into parts of a grammar for one vocabulary.

use crate::format::{Format, Markers, Step};
use crate::lark::{Writer, blanks, escape, literal, some_blanks};
use crate::vocab::Vocab;

/// A part of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GrammarPart {
    /// A special token.
    Token(u32),
    Text(String),
    /// A regular expression.
    Regex(String),
    /// A regular expression, or nothing.
    Maybe(String),
    /// A rule, or a group of rules.
    Rule(String),
}

/// How the markers of a format are tokenized in a vocabulary.
pub(super) struct Marking<'a> {
    pub format: &'static Format,
    pub vocab: &'a Vocab,
}

/// A marker that the vocabulary lacks although the format needs it as one token.
pub(super) struct Missing(pub &'static str);

impl Marking<'_> {
    pub fn marker(&self, text: &'static str) -> Result<GrammarPart, Missing> {
        match (self.vocab.special_id(text), self.format.markers) {
            (Some(id), _) => Ok(GrammarPart::Token(id)),
            (None, Markers::Either) => Ok(GrammarPart::Text(text.to_owned())),
            (None, Markers::Special) => Err(Missing(text)),
        }
    }

    /// Steps that do not belong to a call.
    pub fn plain(&self, steps: &[Step]) -> Result<Vec<GrammarPart>, Missing> {
        let mut out = Vec::new();
        for step in steps {
            match step {
                Step::Tok(t) => out.push(self.marker(t)?),
                Step::Maybe(t) => {
                    if let Some(id) = self.vocab.special_id(t) {
                        out.push(GrammarPart::Rule(format!("<[{id}]>?")));
                    }
                }
                Step::Lit(l) => out.push(lit(l)),
                _ => {}
            }
        }
        Ok(out)
    }

    /// The markers that must not be spelled in prose, except `except`.
    pub fn spellings(&self, except: Option<&str>) -> Vec<&'static str> {
        if self.format.markers == Markers::Special {
            return Vec::new();
        }
        let mut all: Vec<_> = self.format.all_steps().filter_map(crate::format::marker).collect();
        all.sort_unstable();
        all.dedup();
        let text = &self.format.text;
        let optional = |m: &&str| {
            !text.is_needed() && text.open.iter().chain(text.close).any(|s| matches!(s, Step::Maybe(t) if *t == *m))
        };
        all.retain(|m| Some(*m) != except && !optional(m));
        all
    }
}

/// A literal of the table. Blanks, brackets and commas of an array are as flexible as in JSON.
pub(super) fn lit(text: &str) -> GrammarPart {
    let free = |c: char| c.is_ascii_whitespace() || matches!(c, '[' | ']' | ',');
    if !text.chars().all(free) {
        return GrammarPart::Text(text.to_owned());
    }
    let mut regex = blanks();
    for c in text.chars().filter(|c| !c.is_ascii_whitespace()) {
        regex.push_str(&escape(&c.to_string()));
        regex.push_str(&blanks());
    }
    GrammarPart::Regex(regex)
}

/// A sequence as an expression: adjacent text becomes one lexeme.
pub(super) fn join(w: &mut Writer, pieces: &[GrammarPart]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut i = 0;
    while let Some(piece) = pieces.get(i) {
        match piece {
            GrammarPart::Token(id) => out.push(format!("<[{id}]>")),
            GrammarPart::Rule(rule) => out.push(rule.clone()),
            GrammarPart::Text(_) | GrammarPart::Regex(_) | GrammarPart::Maybe(_) => {
                let letters = |p: &&GrammarPart| !matches!(p, GrammarPart::Token(_) | GrammarPart::Rule(_));
                let run = pieces[i..].iter().take_while(letters).count();
                out.extend(lexeme(w, &pieces[i..i + run]));
                i += run;
                continue;
            }
        }
        i += 1;
    }
    out.join(" ")
}

fn lexeme(w: &mut Writer, run: &[GrammarPart]) -> Option<String> {
    let exact: Option<String> =
        run.iter().map(|p| if let GrammarPart::Text(t) = p { Some(t.as_str()) } else { None }).collect();
    if let Some(exact) = exact {
        return (!exact.is_empty()).then(|| literal(&exact));
    }
    let blank = GrammarPart::Regex(blanks());
    // A lexeme must not be empty.
    if run.iter().all(|p| *p == blank) {
        return Some(format!("{}?", w.regex(&some_blanks())));
    }
    if run.iter().all(|p| *p == blank || matches!(p, GrammarPart::Maybe(_))) {
        let each = run.iter().map(|p| if let GrammarPart::Maybe(r) = p { w.regex(r) } else { w.regex(&some_blanks()) });
        return Some(each.map(|lexeme| format!("{lexeme}?")).collect::<Vec<_>>().join(" "));
    }
    let regex: String = run
        .iter()
        .map(|p| match p {
            GrammarPart::Text(t) => escape(t),
            GrammarPart::Regex(r) => r.clone(),
            GrammarPart::Maybe(r) => format!("({r})?"),
            GrammarPart::Token(_) | GrammarPart::Rule(_) => String::new(),
        })
        .collect();
    Some(w.regex(&regex))
}
