//! Patterns of JSON Schema (ECMA-262) as sets of texts.

use std::fmt::Write as _;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};

use crate::json_schema::folded_characters;
pub(super) use crate::json_schema::whole;
use crate::limits::MAX_PATTERN_FOLDS;

/// Limit of expanded placements of a pattern's anchors.
const MAX_WAYS: usize = 64;

/// What every engine considers white space, and what some engine does: ECMA-262, Python and Rust differ.
const SURELY_BLANK: &str = r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}";
const MAYBE_BLANK: &str =
    r"\t-\r\x{1c}-\x{1f} \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";

/// Which texts to accept where engines differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Those in which every engine finds the pattern.
    Narrow,
    /// Those in which some engine does.
    Wide,
}

/// The text itself.
pub(super) fn literal(text: &str) -> Hir {
    Hir::literal(text.as_bytes())
}

/// All texts with this number of characters.
pub(super) fn of_length(min: usize, max: Option<usize>) -> Hir {
    if max.is_some_and(|max| min > max) {
        return Hir::fail();
    }
    let bound = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let sub = Box::new(any_character());
    Hir::repetition(Repetition { min: bound(min), max: max.map(bound), greedy: true, sub })
}

fn any_character() -> Hir {
    Hir::class(Class::Unicode(ClassUnicode::new([ClassUnicodeRange::new('\0', char::MAX)])))
}

/// The texts in which a pattern matches. None: it is not regular (lookaround, back references),
/// invalid, or costs too much to read.
pub(super) fn found_in(pattern: &str, reading: Reading) -> Option<Hir> {
    let pattern = with_blanks_spelled(pattern, reading)?;
    let regex = jsonschema_regex::to_rust_regex(&pattern).ok()?;
    if folded_characters(&regex, false) > MAX_PATTERN_FOLDS {
        return None;
    }
    let hir = whole(&regex)?;
    let all = ways(&hir)?;
    let rest = |anchored: bool| if anchored { Hir::empty() } else { of_length(0, None) };
    Some(Hir::alternation(
        all.into_iter().map(|way| Hir::concat(vec![rest(way.start), way.text, rest(way.end)])).collect(),
    ))
}

/// The pattern with `\s` and `\S`, and each class that contains them, as ranges.
fn with_blanks_spelled(pattern: &str, reading: Reading) -> Option<String> {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let (atom, after) = rest.split_at(match c {
            '\\' => 1 + rest[1..].chars().next()?.len_utf8(),
            '[' => bracket(rest)?,
            c => c.len_utf8(),
        });
        rest = after;
        let escapes = atom.starts_with(['[', '\\']);
        if escapes && (atom.contains(r"\s") || atom.contains(r"\S")) {
            let mut class = read_as(atom, SURELY_BLANK)?;
            let other = read_as(atom, MAYBE_BLANK)?;
            match reading {
                Reading::Narrow => class.intersect(&other),
                Reading::Wide => class.union(&other),
            }
            push_class(&mut out, &class);
        } else {
            out.push_str(atom);
        }
    }
    Some(out)
}

/// The length of the class at the start of the text.
fn bracket(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => return Some(i + 1),
            _ => {}
        }
    }
    None
}

/// A class, or `\s` or `\S` alone, where `blank` defines white space.
fn read_as(atom: &str, blank: &str) -> Option<ClassUnicode> {
    let mut other = String::new();
    push_ranges(&mut other, &class_of(&whole(&format!("[^{blank}]"))?)?);
    let atom = if atom.starts_with('[') { atom.to_owned() } else { format!("[{atom}]") };
    // A backslash escapes the next character.
    let mut spelled = String::new();
    let mut chars = atom.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('s')) => spelled.push_str(blank),
            ('\\', Some('S')) => spelled.push_str(&other),
            (c, next) => spelled.extend(std::iter::once(c).chain(next)),
        }
    }
    class_of(&whole(&jsonschema_regex::to_rust_regex(&spelled).ok()?)?)
}

fn class_of(hir: &Hir) -> Option<ClassUnicode> {
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class.clone()),
        HirKind::Class(Class::Bytes(class)) => class.to_unicode_class(),
        HirKind::Literal(one) => {
            let one = std::str::from_utf8(&one.0).ok()?.chars().next()?;
            Some(ClassUnicode::new([ClassUnicodeRange::new(one, one)]))
        }
        _ => None,
    }
}

pub(super) fn push_class(out: &mut String, class: &ClassUnicode) {
    if class.ranges().is_empty() {
        out.push_str(r"[^\x00-\x{10ffff}]");
        return;
    }
    out.push('[');
    push_ranges(out, class);
    out.push(']');
}

/// Ranges for use between brackets.
fn push_ranges(out: &mut String, class: &ClassUnicode) {
    for range in class.ranges() {
        push_end(out, range.start());
        if range.end() > range.start() {
            out.push('-');
            push_end(out, range.end());
        }
    }
}

fn push_end(out: &mut String, c: char) {
    if c.is_ascii_alphanumeric() {
        out.push(c);
    } else {
        let _ = write!(out, r"\x{{{:x}}}", u32::from(c));
    }
}

/// A pattern without anchors, and whether the text must begin and end with it.
#[derive(Clone)]
struct Way {
    start: bool,
    text: Hir,
    end: bool,
}

impl Way {
    /// One after the other. None: an anchor between them cannot hold.
    fn then(&self, next: &Way) -> Option<Way> {
        let empty = |hir: &Hir| hir.properties().minimum_len() == Some(0);
        let Way { start, text, end } = self;
        if (*end && !empty(&next.text)) || (next.start && !empty(text)) {
            return None;
        }
        let mut parts = Vec::new();
        if !next.start {
            parts.push(text.clone());
        }
        if !*end {
            parts.push(next.text.clone());
        }
        // A part for which an anchor leaves no room is empty.
        Some(Way { start: *start || next.start, text: Hir::concat(parts), end: *end || next.end })
    }
}

/// A pattern as alternatives with anchors only at their ends. None: it has others, or too many.
fn ways(hir: &Hir) -> Option<Vec<Way>> {
    if hir.properties().look_set().is_empty() {
        return Some(vec![Way { start: false, text: hir.clone(), end: false }]);
    }
    let all = match hir.kind() {
        HirKind::Look(Look::Start) => vec![Way { start: true, text: Hir::empty(), end: false }],
        HirKind::Look(Look::End) => vec![Way { start: false, text: Hir::empty(), end: true }],
        HirKind::Capture(group) => ways(&group.sub)?,
        HirKind::Alternation(options) => options.iter().map(ways).collect::<Option<Vec<_>>>()?.concat(),
        HirKind::Concat(parts) => {
            let mut all = vec![Way { start: false, text: Hir::empty(), end: false }];
            for part in parts {
                let next = ways(part)?;
                all = all.iter().flat_map(|way| next.iter().filter_map(|next| way.then(next))).collect();
                if all.len() > MAX_WAYS {
                    return None;
                }
            }
            all
        }
        HirKind::Repetition(Repetition { min: 0, max: Some(1), sub, .. }) => {
            let mut all = ways(sub)?;
            all.push(Way { start: false, text: Hir::empty(), end: false });
            all
        }
        _ => return None,
    };
    (all.len() <= MAX_WAYS).then_some(all)
}
