//! Writes free text: where it ends, and what it must not contain.

use super::Output;
use super::marker::{GrammarPart, join};
use crate::announced::{self, announcing, opening_markers, sees_code, until_bare_name, until_name};
use crate::code_blocks::{ShortCalls, TextEnds, TextPlace, write_text};
use crate::format::marker;
use crate::lark::{SOME_TEXT, escape, literal};
use crate::unmarked::{BareBeginning, bare, bare_beginnings};

/// How prose ends: a marker, or text that begins a call without one, and what follows it.
#[derive(Clone)]
pub(super) struct Exit {
    pub marker: GrammarPart,
    pub rest: String,
    pub kind: ExitKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExitKind {
    /// A marker, wherever it stands.
    Marker,
    /// Letters that begin a call outside code only: markers with what confirms them.
    Announced,
    /// The same without what precedes a later marker of the call.
    Later,
    /// As `Later`, with the name of a tool, so that there are many.
    Short,
    /// What all calls without a marker begin with, up to the name; `rest` begins with the names.
    Lead,
}

impl Exit {
    pub fn is_marked(&self) -> bool {
        matches!(self.kind, ExitKind::Marker | ExitKind::Announced | ExitKind::Later)
    }
}

/// What text must not contain, because the parser would read it as the beginning of a call, or as a marker.
#[derive(Clone, Default)]
pub(super) struct RefusedText {
    pub anywhere: Vec<String>,
    pub outside_code: Vec<String>,
}

/// Letters of a name that tell a call from prose, where nothing else does. More would cost a lexeme per tool.
const TELLING_LETTERS: usize = 3;

/// The beginnings of the names, without those that begin with another one.
pub(super) fn beginnings<'n>(names: &[&'n str]) -> Vec<&'n str> {
    let first = |name: &&'n str| name.char_indices().nth(TELLING_LETTERS).map_or(*name, |(at, _)| &name[..at]);
    let mut all: Vec<&str> = names.iter().map(first).collect();
    all.sort_unstable();
    // Sorted, a text comes after what it begins with.
    all.dedup_by(|name, before| name.starts_with(&**before));
    all
}

impl Output<'_, '_> {
    /// Free text up to one of the exits, or to the end, after which `end` follows. The text must not contain `refused`,
    /// and as a whole not look like `not`.
    pub fn prose(
        &mut self,
        mut exits: Vec<Exit>,
        end: Option<&str>,
        refused: &RefusedText,
        not: Option<&str>,
        place: TextPlace,
    ) -> Vec<String> {
        if sees_code(self.marking.format) && !self.is_canonical() && !refused.outside_code.is_empty() {
            return self.prose_with_code(exits, end, refused, not, place);
        }
        let not = not.map(|not| format!("~/{not}/"));
        let Some(lead) = exits.iter().position(|exit| exit.kind == ExitKind::Lead) else {
            let refused = [&refused.anywhere[..], &refused.outside_code].concat();
            return self.text_up_to(&exits, end, &refused, not.as_slice());
        };
        // The letters with which every call begins may be text too: only the name after them tells. So the text stops
        // at each place where they stand; there, a call follows, or more text. All that is refused begins with them.
        let BareBeginning { lead: begins, tails } = bare_beginnings(self.marking.format, &self.tool_names());
        let refused = [begins];
        let goes_on = self.work.writer.reserve();
        let next = format!("{goes_on}{}", self.pass);
        let named = std::mem::replace(&mut exits[lead].rest, next);
        let all = self.text_up_to(&exits, end, &refused, not.as_slice());
        let unnamed = format!("~/({})(?s:.*)/", tails.join("|"));
        let mut more = self.text_up_to(&exits, end, &refused, &[unnamed]);
        more.push(named);
        self.define(&goes_on, &more);
        all
    }

    /// Text up to one of the exits, or to the end, after which `end` follows. It contains nothing that matches one of
    /// `refused`; `unlike` are terms that it must satisfy as a whole.
    fn text_up_to(&mut self, exits: &[Exit], end: Option<&str>, refused: &[String], unlike: &[String]) -> Vec<String> {
        let mut without = unlike.to_vec();
        if !refused.is_empty() {
            // By its name: the list of all tools stands in it.
            let refused = self.work.writer.terminal(&format!("/(?s:.*)({})(?s:.*)/", refused.join("|")));
            without.insert(0, format!("~{refused}"));
        }
        let body = |any: &str, kind: ExitKind| {
            // It ends where the first refused text begins, so it contains none.
            let without = if kind == ExitKind::Lead { unlike } else { &without };
            [&[any.to_owned()], without].concat().join(" & ")
        };
        let w = &mut *self.work.writer;
        let text = w.terminal(&body(&format!("/{SOME_TEXT}/"), ExitKind::Marker));
        let mut all: Vec<String> = end.map(|end| format!("{text}? {end}")).into_iter().collect();
        for Exit { marker, rest, kind } in exits {
            all.push(match marker {
                GrammarPart::Token(id) => format!("{text}? <[{id}]> {rest}"),
                GrammarPart::Text(letters) => {
                    let upto = w.lazy(&format!("({}) {}", body("/(?s:.*)/", *kind), literal(letters)));
                    format!("{upto} {rest}")
                }
                GrammarPart::Regex(regex) => {
                    let upto = w.lazy(&format!("({}) /{regex}/", body("/(?s:.*)/", *kind)));
                    format!("{upto} {rest}")
                }
                other => format!("{text}? {} {rest}", join(w, std::slice::from_ref(other))),
            });
        }
        all
    }

    /// As `prose`, in which calls begin outside code only.
    fn prose_with_code(
        &mut self,
        exits: Vec<Exit>,
        end: Option<&str>,
        refused: &RefusedText,
        not: Option<&str>,
        place: TextPlace,
    ) -> Vec<String> {
        let (mut calls, mut later_calls, mut markers) = (Vec::new(), Vec::new(), Vec::new());
        let (lead, called) = self.marking.short_beginning(&self.tool_names()).unwrap_or_default();
        let mut short = ShortCalls { lead, calls: Vec::new(), called };
        let w = &mut *self.work.writer;
        let mut tails: Vec<String> = end.iter().map(|end| (*end).to_owned()).collect();
        for Exit { marker, rest, kind } in exits {
            let letters = match marker {
                GrammarPart::Text(letters) => escape(&letters),
                GrammarPart::Regex(regex) => regex,
                other => {
                    tails.push(format!("{} {rest}", join(w, &[other])));
                    continue;
                }
            };
            match kind {
                ExitKind::Marker => markers.push((letters, rest)),
                ExitKind::Later => later_calls.push((letters, rest)),
                ExitKind::Short => match letters.strip_prefix(&short.lead) {
                    Some(tail) if !short.lead.is_empty() => short.calls.push((tail.to_owned(), rest)),
                    _ => later_calls.push((letters, rest)),
                },
                ExitKind::Announced | ExitKind::Lead => calls.push((letters, rest)),
            }
        }
        // Markers without a meaning in text. Those that begin calls are letters, or have one.
        let opening = opening_markers(self.marking.format);
        let mut tokens: Vec<String> = self
            .marking
            .format
            .call_steps()
            .filter_map(marker)
            .filter(|letters| !opening.contains(letters))
            .filter_map(|letters| Some(format!("<[{}]>", self.marking.vocab.special_id(letters)?)))
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        let whole = format!("{}{}", short.lead, short.called);
        let has_short = !short.calls.is_empty();
        let refused_outside: Vec<String> =
            refused.outside_code.iter().filter(|text| !has_short || **text != whole).cloned().collect();
        let ends = TextEnds {
            tails: &tails,
            tokens: &tokens,
            calls: &calls,
            later_calls: &later_calls,
            short: has_short.then_some(&short),
            opener: &announced::opener(self.marking.format),
            markers: &markers,
            refused: &refused_outside,
            refused_anywhere: &refused.anywhere,
        };
        write_text(w, &ends, place, not)
    }

    pub fn tool_names(&self) -> Vec<&str> {
        self.rules.tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    /// What text must not contain, because the parser would read it as the beginning of a call.
    pub fn call_beginnings(&self) -> RefusedText {
        let mut refused = RefusedText::default();
        if !self.tools {
            return refused;
        }
        let (format, names) = (self.marking.format, self.tool_names());
        for letters in announcing(format).into_iter().chain(self.marking.short_marker()) {
            let begun = announced::beginning(format, letters);
            refused.outside_code.push(format!("{}{begun}", escape(letters)));
            if until_name(format, letters).is_none() {
                let names: Vec<String> = beginnings(&names).into_iter().map(escape).collect();
                let blanks = until_bare_name(format, letters);
                refused.outside_code.push(format!("{}{blanks}({})", escape(letters), names.join("|")));
            }
        }
        refused.outside_code.extend(self.marking.short_beginning(&names).map(|(lead, tail)| lead + &tail));
        if bare(format).is_some() && !names.is_empty() {
            refused.anywhere.extend(bare_beginnings(format, &names).whole());
        }
        refused
    }
}
