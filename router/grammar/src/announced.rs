//! What must follow a marker that is spelled in prose for a call to begin, as regular expressions: from there on the
//! parser reads a call and the grammar enforces one. Before, the marker may be a mere mention. It does not parse.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use regex_automata::Anchored;
use regex_automata::hybrid::dfa::DFA;
use regex_automata::util::start::Config;

use crate::format::{Codec, Format, Markers, Member, Step, marker};
use crate::lark::escape;
use crate::limits::{MAX_BLANKS, MAX_INDENT};
use crate::unmarked::{bare, ignored_members, keys};

/// Bytes after a marker within which a call must begin: as many blanks as the grammar allows around each literal, and
/// the longest literals and keys.
const MOST_BEFORE_NAME: usize = 6 * (MAX_BLANKS + 2 + MAX_INDENT) + 128;

/// Bytes of a call's header that tell it from prose.
const TELLING_LETTERS: usize = 32;

/// Blanks as the parser reads them around literals, and as JSON has them.
const BLANKS: &str = r"[ \t\r\n\x0c]*";
const WRITTEN_BLANKS: &str = r"[ \t\r\n]*";
/// The beginning of another format's call: with more of it, it could not be refused in time to write the right one.
const FOREIGN: &str = r#"(\[[ \t\r\n\x0c]*)?\{[ \t\r\n\x0c]*["']"#;
/// The letters of a name that nothing separates from its marker, and what must follow to tell it from prose.
const BARE_NAME: &str = r#"[^\x00-\x20"'`<>{}()\[\]\x7f]+"#;

/// The markers of a format that begin calls when they are spelled in prose.
pub(crate) fn announcing(format: &Format) -> Vec<&'static str> {
    if format.markers == Markers::Special || bare(format).is_some() {
        return Vec::new();
    }
    let mut all: Vec<_> = [format.begin, format.call].iter().filter_map(|steps| marker(steps.first()?)).collect();
    all.dedup();
    all
}

/// All markers up to where a call has begun.
pub(crate) fn opening_markers(format: &Format) -> Vec<&'static str> {
    if announcing(format).is_empty() {
        return Vec::new();
    }
    let begins = |step: &&Step| !matches!(step, Step::Name | Step::Args(_));
    let mut all: Vec<_> = format.begin.iter().chain(format.call.iter().take_while(begins)).filter_map(marker).collect();
    if announcing(format).iter().any(|tok| until_name(format, tok).is_none()) {
        all.extend(after_name(format));
    }
    all
}

/// Whether calls in Markdown's code are only shown. Not if they are code blocks themselves, or models write them in
/// code blocks in place of the tags of their template.
pub(crate) fn sees_code(format: &Format) -> bool {
    let fenced = |tok: &&str| until_name(format, tok).is_some_and(|regex| regex.contains('`'));
    // Where text has its own markers, a code block is inside of them.
    !format.opens
        && !format.text.is_needed()
        && !announcing(format).is_empty()
        && !announcing(format).iter().any(fenced)
}

/// What follows such a marker, or a later one of a call, up to the tool's name, as the parser reads it. None: the name
/// follows at once.
pub(crate) fn until_name(format: &Format, tok: &str) -> Option<String> {
    // Models omit quotes and brackets, unless nothing else shows a call.
    let quoted = |steps: &[Step]| matches!(steps, [Step::Tok(first), Step::Lit("\""), Step::Name, ..] if *first == tok);
    let only_quote = format.begin.first().and_then(marker) != Some(tok) && quoted(format.call);
    let omitted = |c: char| !only_quote && matches!(c, '"' | '\'' | '[');
    let literal = |literal: &str| {
        let word = |word: &str| {
            let letter = |c: char| escape(&c.to_string()) + if omitted(c) { "?" } else { "" };
            BLANKS.to_owned() + &word.chars().map(letter).collect::<String>()
        };
        literal.split_ascii_whitespace().map(word).collect()
    };
    before_name(format, tok, BLANKS, literal, |members, _| {
        object(members.iter().filter_map(Member::name).flatten().next().unwrap_or(&"name"))
    })
}

/// The same as the grammar takes it, with any number of blanks: counting them costs the lexer many states.
pub(crate) fn until_written_name(format: &Format, tok: &str) -> Option<String> {
    // As the grammar has them elsewhere.
    let flexible = |c: char| c.is_ascii_whitespace() || matches!(c, '[' | ']' | ',');
    let literal = |literal: &str| match literal.chars().all(flexible) {
        true => {
            let signs = literal.split_ascii_whitespace().map(|sign| escape(sign) + WRITTEN_BLANKS);
            WRITTEN_BLANKS.to_owned() + &signs.collect::<String>()
        }
        false => escape(literal),
    };
    before_name(format, tok, "", literal, |members, ignored| {
        let blanks = WRITTEN_BLANKS;
        let first = ignored_members(ignored, blanks, |member| format!("{member}{blanks},{blanks}"));
        let names = keys(members.iter().filter_map(Member::name).flatten());
        format!("{blanks}\\{{{blanks}{first}{names}{blanks}:{blanks}\"")
    })
}

/// The steps after this marker.
fn header_after(format: &Format, tok: &str) -> Option<Vec<&'static Step>> {
    let after = |steps: &'static [Step]| {
        let at = steps.iter().position(|step| marker(step) == Some(tok))?;
        Some(&steps[at + 1..])
    };
    match after(format.begin) {
        Some(rest) => Some(rest.iter().chain(format.call).collect()),
        None => after(format.call).map(|rest| rest.iter().collect()),
    }
}

/// Whether the name follows this marker at once, perhaps in quotes.
pub(crate) fn is_before_name(format: &Format, tok: &str) -> bool {
    let steps = header_after(format, tok).unwrap_or_default();
    matches!(steps.as_slice(), [Step::Name, ..] | [Step::Lit("\""), Step::Name, ..])
}

/// The number of steps after this marker that tell a call from prose, if another marker follows before the name: the
/// lexer would spend its fuel of a step on more letters.
pub(crate) fn told_after(format: &Format, tok: &str) -> Option<usize> {
    let steps = header_after(format, tok)?;
    let name = steps.iter().position(|step| matches!(step, Step::Name | Step::Args(_)))?;
    let mut letters = tok.len();
    let told = steps[..name].iter().position(|step| {
        letters += if let Step::Tok(text) | Step::Lit(text) = step { text.len() } else { 0 };
        letters >= TELLING_LETTERS
    })?;
    steps[told + 1..name].iter().any(|step| matches!(step, Step::Tok(_))).then_some(told + 1)
}

fn before_name(
    format: &Format,
    tok: &str,
    blanks: &str,
    literal: impl Fn(&str) -> String,
    object: impl Fn(&'static [Member], &'static [&'static str]) -> String,
) -> Option<String> {
    let steps = header_after(format, tok)?;
    let steps = &steps[..told_after(format, tok).unwrap_or(steps.len())];
    let mut regex = String::new();
    for step in steps {
        match step {
            Step::Lit(text) => regex.push_str(&literal(text)),
            Step::Tok(marker) => regex.push_str(&format!("{blanks}{}", escape(marker))),
            Step::Args(Codec::Object { members, ignored }) => {
                regex.push_str(&object(members, ignored));
                break;
            }
            Step::Args(_) => {
                regex.push_str(&format!("{blanks}\\{{"));
                break;
            }
            // Models write other ids than the template.
            Step::Index | Step::Ordinal if !blanks.is_empty() => regex.push_str("[A-Za-z0-9_.-]+"),
            Step::Index | Step::Ordinal => regex.push_str("[0-9]+"),
            Step::Name => break,
            _ => {}
        }
    }
    (!regex.is_empty()).then_some(regex)
}

/// A key that is not this one.
fn other_than(key: &str) -> String {
    key.chars().rev().fold(r#"[^"'\n]+"#.to_owned(), |rest, c| {
        let c = escape(&c.to_string());
        format!(r#"([^"'\n{c}][^"'\n]*|{c}{rest})?"#)
    })
}

/// An object that may be a call, up to its first value; up to the name if that comes first.
fn object(name: &str) -> String {
    let quote = r#"["']"#;
    let (named, other) = (escape(name), other_than(name));
    let first = format!("{named}{quote}{BLANKS}:{BLANKS}{quote}|{other}{quote}{BLANKS}:");
    format!("{BLANKS}(\\[{BLANKS})?\\{{{BLANKS}{quote}({first})")
}

/// What follows such a marker where a call begins.
pub(crate) fn beginning(format: &Format, tok: &str) -> String {
    let own = until_name(format, tok).unwrap_or_else(|| match format.codec() {
        Codec::Python => format!(r"{BLANKS}{BARE_NAME}{BLANKS}\("),
        _ => format!(r#"{BLANKS}{BARE_NAME}{BLANKS}({}|\{{{BLANKS}["}}])"#, one_of(&after_name(format))),
    });
    match format.codec() {
        Codec::Object { .. } => own,
        // The parser reads another format's call there.
        _ => format!("({own}|{BLANKS}{FOREIGN})"),
    }
}

/// What stands between such a marker and a name that follows at once: nothing, or the blanks that the format writes.
pub(crate) fn until_bare_name(format: &Format, tok: &str) -> &'static str {
    let written = until_written_name(format, tok);
    if written.is_some() { WRITTEN_BLANKS } else { "" }
}

/// What must follow a name that nothing else announces: the marker before the arguments; without one, the first marker
/// of an argument or the one that ends the call.
fn after_name(format: &Format) -> Vec<&'static str> {
    let (before, after) = format.around_arguments();
    if let Some(separator) = before.iter().skip_while(|step| **step != Step::Name).find_map(marker) {
        return vec![separator];
    }
    let first = match format.codec() {
        Codec::Params(steps) => steps.iter().find_map(marker),
        _ => None,
    };
    first.into_iter().chain(after.iter().find_map(marker)).collect()
}

/// One of these markers.
fn one_of(markers: &[&str]) -> String {
    markers.iter().map(|marker| escape(marker)).collect::<Vec<_>>().join("|")
}

/// The first marker of the section, or else of a call, with blanks.
pub(crate) fn opener(format: &Format) -> String {
    let first = announcing(format).first().map(|tok| escape(tok)).unwrap_or_default();
    format!("{first}{BLANKS}")
}

/// How calls begin after one of a format's markers.
struct Beginning {
    /// Something precedes the name.
    has_header: bool,
    /// As the parser reads it, and as the grammar takes it.
    automata: [Option<DFA>; 2],
}

/// Made when it is first needed: formats may come from files.
fn beginning_after(format: &'static Format, tok: &'static str) -> Arc<Beginning> {
    /// By the format's place in memory, and by marker.
    type Known = HashMap<(usize, &'static str), Arc<Beginning>>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let begun = beginning(format, tok);
        let written = until_written_name(format, tok);
        let automata = [DFA::new(&begun).ok(), DFA::new(&written.unwrap_or(begun)).ok()];
        Arc::new(Beginning { has_header: until_name(format, tok).is_some(), automata })
    };
    known.entry((std::ptr::from_ref(format).addr(), tok)).or_insert_with(make).clone()
}

/// Whether something precedes the name after this marker of the format.
pub(crate) fn has_header(format: &'static Format, tok: &'static str) -> bool {
    beginning_after(format, tok).has_header
}

/// Whether a call begins with this text after the marker. None: more of it must be known. `as_written`: only as the
/// grammar takes it.
pub(crate) fn begins(format: &'static Format, tok: &'static str, after: &[u8], as_written: bool) -> Option<bool> {
    if format.markers == Markers::Special {
        return Some(true);
    }
    let beginning = beginning_after(format, tok);
    let Some(dfa) = &beginning.automata[usize::from(as_written)] else { return Some(true) };
    let mut cache = dfa.create_cache();
    let known = &after[..after.len().min(MOST_BEFORE_NAME)];
    let mut state = dfa.start_state(&mut cache, &Config::new().anchored(Anchored::Yes)).ok()?;
    for b in known {
        state = dfa.next_state(&mut cache, state, *b).ok()?;
        // A match is known one byte later.
        if state.is_match() {
            return Some(true);
        }
        if state.is_dead() || state.is_quit() {
            return Some(false);
        }
    }
    let end = dfa.next_eoi_state(&mut cache, state).ok()?;
    match end.is_match() {
        true => Some(true),
        false if known.len() < after.len() => Some(false),
        false => None,
    }
}
