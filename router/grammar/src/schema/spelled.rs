//! Sets of texts in their spellings: raw, or as strings in which any character may be escaped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

use super::pattern::push_class;

/// What surrounds a text, and therefore how its characters may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quotes {
    /// Nothing: each character stands for itself.
    Raw,
    Json,
    /// Of Python.
    Double,
    Single,
}

impl Quotes {
    pub const COUNT: usize = Self::Single as usize + 1;

    /// The mark before and after the text.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Raw => "",
            Self::Json | Self::Double => "\"",
            Self::Single => "'",
        }
    }
}

/// Escapes of one letter, and their meaning.
const JSON_ESCAPES: &[(char, char)] =
    &[('"', '"'), ('\\', '\\'), ('/', '/'), ('b', '\u{8}'), ('f', '\u{c}'), ('n', '\n'), ('r', '\r'), ('t', '\t')];
const PYTHON_ESCAPES: &[(char, char)] =
    &[('"', '"'), ('\'', '\''), ('\\', '\\'), ('b', '\u{8}'), ('f', '\u{c}'), ('n', '\n'), ('r', '\r'), ('t', '\t')];
/// From here on, characters need two escapes in JSON.
const ASTRAL: u32 = 0x10000;

/// A regular expression, for use between slashes, of all spellings of these texts, including quotes.
pub(super) fn spelled(texts: &Hir, quotes: Quotes) -> String {
    let mut out = quotes.mark().to_owned();
    write(texts, quotes, &mut out);
    out.push_str(quotes.mark());
    out
}

/// The steps for spelling these texts in a string: most are for the hexadecimal digits of classes.
pub(super) fn spelling_price(texts: &Hir) -> u64 {
    const CLASS: u64 = 1_000;
    const RANGE: u64 = 40;
    const CHARACTER: u64 = 100;
    match texts.kind() {
        HirKind::Empty | HirKind::Look(_) => 0,
        HirKind::Literal(literal) => CHARACTER * literal.0.len() as u64,
        HirKind::Class(class) => CLASS + RANGE * ranges(class) as u64,
        HirKind::Repetition(repetition) => spelling_price(&repetition.sub),
        HirKind::Capture(group) => spelling_price(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().map(spelling_price).sum(),
    }
}

fn ranges(class: &Class) -> usize {
    match class {
        Class::Unicode(class) => class.ranges().len(),
        Class::Bytes(class) => class.ranges().len(),
    }
}

fn write(hir: &Hir, quotes: Quotes, out: &mut String) {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => out.push_str("(?:)"),
        HirKind::Literal(literal) => {
            for c in String::from_utf8_lossy(&literal.0).chars() {
                character(&ClassUnicode::new([ClassUnicodeRange::new(c, c)]), quotes, out);
            }
        }
        HirKind::Class(Class::Unicode(class)) => character(class, quotes, out),
        HirKind::Class(Class::Bytes(class)) => {
            character(&class.to_unicode_class().unwrap_or_else(ClassUnicode::empty), quotes, out);
        }
        HirKind::Repetition(repetition) => {
            // A class is written as one unit.
            let class = matches!(repetition.sub.kind(), HirKind::Class(_));
            out.push_str(if class { "" } else { "(?:" });
            write(&repetition.sub, quotes, out);
            out.push_str(if class { "" } else { ")" });
            let _ = match (repetition.min, repetition.max) {
                (min, Some(max)) if min == max => write!(out, "{{{min}}}"),
                (min, Some(max)) => write!(out, "{{{min},{max}}}"),
                (min, None) => write!(out, "{{{min},}}"),
            };
        }
        HirKind::Capture(group) => write(&group.sub, quotes, out),
        HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, quotes, out)),
        HirKind::Alternation(options) => {
            for (i, option) in options.iter().enumerate() {
                out.push_str(if i == 0 { "(?:" } else { "|" });
                write(option, quotes, out);
            }
            out.push(')');
        }
    }
}

/// One character of a class.
fn character(class: &ClassUnicode, quotes: Quotes, out: &mut String) {
    if quotes == Quotes::Raw {
        return bracketed(class, out);
    }
    let ways: Vec<_> = unescaped(class, quotes).into_iter().chain(escapes(class, quotes)).collect();
    out.push_str("(?:");
    match ways.is_empty() {
        true => bracketed(class, out),
        false => out.push_str(&ways.join("|")),
    }
    out.push(')');
}

/// The characters of a class that may stand in a string without an escape. None: there are none.
pub(super) fn unescaped(class: &ClassUnicode, quotes: Quotes) -> Option<String> {
    let mut raw = class.clone();
    let quote = if quotes == Quotes::Single { '\'' } else { '"' };
    let escaped = [('\0', '\x1f'), ('\\', '\\'), (quote, quote)];
    raw.difference(&ClassUnicode::new(escaped.map(|(from, to)| ClassUnicodeRange::new(from, to))));
    let mut out = String::new();
    bracketed(&raw, &mut out);
    (!raw.ranges().is_empty()).then_some(out)
}

/// The escapes of the characters of a class. None: there are none.
pub(super) fn escapes(class: &ClassUnicode, quotes: Quotes) -> Option<String> {
    let letters = match quotes {
        Quotes::Raw => return None,
        Quotes::Json => JSON_ESCAPES,
        Quotes::Double | Quotes::Single => PYTHON_ESCAPES,
    };
    let has = |c: char| class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&c));
    let mut ways = Vec::new();
    let letters: Vec<_> = letters.iter().filter(|(_, meant)| has(*meant)).map(|(letter, _)| *letter).collect();
    if !letters.is_empty() {
        let mut way = String::new();
        bracketed(&ClassUnicode::new(letters.into_iter().map(|c| ClassUnicodeRange::new(c, c))), &mut way);
        ways.push(way);
    }
    let (plain, pairs) = code_units(class);
    if !plain.is_empty() {
        ways.push(format!("u{}", hex(&plain, 4)));
    }
    if quotes == Quotes::Json {
        ways.extend(pairs.iter().map(|(low, high)| format!(r"u{}\\u{low}", hex(high, 4))));
    }
    match ways.as_slice() {
        [] => None,
        [way] => Some(format!(r"\\{way}")),
        ways => Some(format!(r"\\(?:{})", ways.join("|"))),
    }
}

fn bracketed(class: &ClassUnicode, out: &mut String) {
    match class.ranges() {
        [one] if one.start() == one.end() && one.start().is_ascii_alphanumeric() => out.push(one.start()),
        _ => push_class(out, class),
    }
}

/// Ranges of numbers.
type Ranges = Vec<(u32, u32)>;

/// The class in UTF-16: single code units, and of surrogate pairs the first unit, by the spelling of the second.
fn code_units(class: &ClassUnicode) -> (Ranges, BTreeMap<String, Ranges>) {
    const HIGH: u32 = 0xd800;
    const LOW: u32 = 0xdc00;
    let (mut plain, mut seconds) = (Ranges::new(), BTreeMap::<u32, Ranges>::new());
    let mut whole = Ranges::new();
    for range in class.ranges() {
        let (start, end) = (u32::from(range.start()), u32::from(range.end()));
        if start < ASTRAL {
            let end = end.min(ASTRAL - 1);
            // No character is a surrogate.
            plain.extend([(start, end.min(0xd7ff)), (start.max(0xe000), end)].into_iter().filter(|(a, b)| a <= b));
        }
        if end >= ASTRAL {
            let (start, end) = (start.max(ASTRAL) - ASTRAL, end - ASTRAL);
            let (first, last) = (start >> 10, end >> 10);
            let from = |high: u32| if high == first { start & 0x3ff } else { 0 };
            let to = |high: u32| if high == last { end & 0x3ff } else { 0x3ff };
            let partial = |high: &u32| (from(*high), to(*high)) != (0, 0x3ff);
            for high in [first, last].into_iter().filter(partial).collect::<std::collections::BTreeSet<_>>() {
                seconds.entry(HIGH + high).or_default().push((LOW + from(high), LOW + to(high)));
            }
            let (first, last) = (first + u32::from(partial(&first)), last + 1 - u32::from(partial(&last)));
            if first < last {
                whole.push((HIGH + first, HIGH + last - 1));
            }
        }
    }
    let mut pairs = BTreeMap::<String, Ranges>::new();
    for (high, lows) in seconds {
        pairs.entry(hex(&lows, 4)).or_default().push((high, high));
    }
    if !whole.is_empty() {
        pairs.entry(hex(&[(LOW, LOW + 0x3ff)], 4)).or_default().extend(whole);
    }
    pairs.values_mut().for_each(|ranges| ranges.sort_unstable());
    (plain, pairs)
}

/// Numbers with this number of hexadecimal digits, in either case.
fn hex(ranges: &[(u32, u32)], digits: u32) -> String {
    if digits == 0 {
        return String::new();
    }
    let size = 1_u32 << (4 * (digits - 1));
    // Every number: one alternative, found without looking at each of them.
    if ranges.iter().any(|&(low, high)| low == 0 && high == 16 * size - 1) {
        let all: Vec<u32> = (0..16).collect();
        return format!("{}{}", digit_class(&all), hex(&[(0, size - 1)], digits - 1));
    }
    // First digits with the same rest are grouped.
    let mut firsts: Vec<(String, Vec<u32>)> = Vec::new();
    for digit in 0..16 {
        let (low, high) = (digit * size, (digit + 1) * size - 1);
        let within = ranges.iter().filter(|(a, b)| *a <= high && *b >= low);
        let rest: Ranges = within.map(|(a, b)| ((*a).max(low) - low, (*b).min(high) - low)).collect();
        if rest.is_empty() {
            continue;
        }
        let rest = hex(&rest, digits - 1);
        match firsts.iter_mut().find(|(known, _)| *known == rest) {
            Some((_, all)) => all.push(digit),
            None => firsts.push((rest, vec![digit])),
        }
    }
    let ways: Vec<String> = firsts.iter().map(|(rest, all)| format!("{}{rest}", digit_class(all))).collect();
    match ways.as_slice() {
        [one] => one.clone(),
        many => format!("(?:{})", many.join("|")),
    }
}

fn digit_class(digits: &[u32]) -> String {
    let cases = |digit: &u32| {
        let lower = char::from_digit(*digit, 16);
        lower.into_iter().flat_map(|c| [c, c.to_ascii_uppercase()]).map(|c| ClassUnicodeRange::new(c, c))
    };
    let mut out = String::new();
    bracketed(&ClassUnicode::new(digits.iter().flat_map(cases)), &mut out);
    out
}

#[cfg(test)]
mod tests;
