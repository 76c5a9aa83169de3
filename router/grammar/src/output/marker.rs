//! Turns steps of the format table into parts of a grammar for one vocabulary.

use crate::announced::announcing;
use crate::format::{Format, Markers, Step, marker};
use crate::lark::{GrammarForm, Writer, escape, literal, some_blanks};
use crate::schema::quoted;
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
    pub form: GrammarForm,
}

/// A marker that the vocabulary lacks although the format needs it as one token.
#[derive(Debug)]
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
                Step::Lit(l) => out.push(lit(l, self.form)),
                _ => {}
            }
        }
        Ok(out)
    }

    /// The same in each way in which it may be written: by a token or its letters, and as another marker with the same
    /// meaning.
    pub fn variants(&self, steps: &[Step]) -> Result<Vec<Vec<GrammarPart>>, Missing> {
        let usual = self.plain(steps)?;
        let alternatives = steps.iter().all(|s| matches!(s, Step::Tok(_) | Step::Maybe(_)));
        if self.format.markers == Markers::Special || !alternatives || self.form == GrammarForm::Canonical {
            return Ok(vec![usual]);
        }
        let mut all = Vec::new();
        for letters in steps.iter().filter_map(marker) {
            let token = self.vocab.special_id(letters).map(GrammarPart::Token);
            all.extend(token.into_iter().chain([GrammarPart::Text(letters.to_owned())]).map(|part| vec![part]));
        }
        Ok(all)
    }

    /// A marker, and its letters if they count as well.
    pub fn variants_of(&self, part: &GrammarPart) -> Vec<GrammarPart> {
        let letters = match part {
            GrammarPart::Token(id) if self.format.markers == Markers::Either && self.form == GrammarForm::Tolerant => {
                self.format.call_steps().filter_map(marker).find(|m| self.vocab.special_id(m) == Some(*id))
            }
            _ => None,
        };
        [part.clone()].into_iter().chain(letters.map(|letters| GrammarPart::Text(letters.to_owned()))).collect()
    }

    /// The markers that must not be spelled in prose.
    pub fn letters(&self) -> Vec<&'static str> {
        if self.format.markers == Markers::Special {
            return Vec::new();
        }
        let mut all: Vec<_> = self.format.all_steps().filter_map(marker).collect();
        all.sort_unstable();
        all.dedup();
        let text = &self.format.text;
        let optional = |m: &&str| {
            !text.is_needed() && text.open.iter().chain(text.close).any(|s| matches!(s, Step::Maybe(t) if *t == *m))
        };
        all.retain(|m| !optional(m));
        all
    }

    /// The second marker of a call, if its letters count and something else than the name follows.
    pub fn short_marker(&self) -> Option<&'static str> {
        let (before, _) = self.format.around_arguments();
        let letters = before.iter().skip(1).rev().find_map(marker)?;
        let named = before.contains(&Step::Name);
        (!named && !announcing(self.format).is_empty() && self.vocab.special_id(letters).is_none()).then_some(letters)
    }

    /// The second marker of a call, if its letters count, and what follows it up to where the name of one of these
    /// tools has ended.
    pub fn short_beginning(&self, tools: &[&str]) -> Option<(String, String)> {
        let (before, _) = self.format.around_arguments();
        let at = before.iter().position(|s| *s == Step::Name)?;
        let ([.., Step::Tok(_), Step::Tok(letters)] | [.., Step::Tok(_), Step::Lit(_), Step::Tok(letters)]) =
            &before[..at]
        else {
            return None;
        };
        let spelled = self.format.markers == Markers::Either && !tools.is_empty();
        let names = tools.iter().map(|name| escape(name)).collect::<Vec<_>>().join("|");
        spelled.then(|| (escape(letters), format!(r#"["']?({names})["']?[ \t]*[>\n]"#)))
    }
}

/// The pieces of a call after its name, and after the literal that ends the name.
pub(super) fn after_name<'p>(name: &str, call: &'p [GrammarPart]) -> &'p [GrammarPart] {
    let named = |part: &GrammarPart| matches!(part, GrammarPart::Text(t) if t == name || *t == quoted(name));
    let at = call.iter().position(named).map_or(0, |at| at + 1);
    let in_object = matches!(call.get(at.wrapping_sub(1)), Some(GrammarPart::Text(t)) if t != name);
    let ended = !in_object && matches!(call.get(at), Some(GrammarPart::Text(_)));
    &call[at + usize::from(ended)..]
}

/// A literal of the table. Blanks, brackets and commas of an array are as flexible as in JSON.
pub(super) fn lit(text: &str, form: GrammarForm) -> GrammarPart {
    let free = |c: char| c.is_ascii_whitespace() || matches!(c, '[' | ']' | ',');
    if !text.chars().all(free) {
        return GrammarPart::Text(text.to_owned());
    }
    if form == GrammarForm::Canonical {
        return canonical(text);
    }
    let mut regex = form.blanks();
    for c in text.chars().filter(|c| !c.is_ascii_whitespace()) {
        regex.push_str(&escape(&c.to_string()));
        regex.push_str(&form.blanks());
    }
    GrammarPart::Regex(regex)
}

/// Such a literal, of which models may omit the blanks.
fn canonical(text: &str) -> GrammarPart {
    if text.trim().is_empty() {
        return if text.is_empty() { GrammarPart::Text(String::new()) } else { GrammarPart::Maybe(escape(text)) };
    }
    let mut regex = String::new();
    for run in text.as_bytes().chunk_by(|a, b| a.is_ascii_whitespace() == b.is_ascii_whitespace()) {
        let run = String::from_utf8_lossy(run);
        regex.push_str(&if run.trim().is_empty() { format!("({})?", escape(&run)) } else { escape(&run) });
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
    let empty = |part: &GrammarPart| matches!(part, GrammarPart::Regex(r) | GrammarPart::Text(r) | GrammarPart::Maybe(r) if r.is_empty());
    let run: Vec<GrammarPart> = run.iter().filter(|part| !empty(part)).cloned().collect();
    if run.is_empty() {
        return None;
    }
    let exact: Option<String> =
        run.iter().map(|p| if let GrammarPart::Text(t) = p { Some(t.as_str()) } else { None }).collect();
    if let Some(exact) = exact {
        return (!exact.is_empty()).then(|| literal(&exact));
    }
    let blank = GrammarPart::Regex(GrammarForm::Tolerant.blanks());
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
