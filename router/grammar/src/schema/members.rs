//! Sequences of members, for objects, arrays of distinct constants, and arguments. A rule's parameter has one bit per
//! member that was written (llguidance's parametric rules).

use std::borrow::Cow;
use std::sync::LazyLock;

use super::Compiler;
use crate::lark::{GrammarForm, Writer};
use crate::limits::{MAX_ANY_ORDER, MAX_INDENT};
use crate::rules::Blanks;

/// Bits of a rule's parameter.
const PARAMETER_BITS: usize = 64;

/// A member that may occur once.
pub(super) struct MemberRule {
    pub rule: String,
    pub required: bool,
}

/// Punctuation of JSON, with the blanks around it.
#[derive(Clone, Copy)]
pub(super) enum Punctuation {
    Comma,
    Colon,
    ObjectStart,
    ObjectEnd,
    ArrayStart,
    ArrayEnd,
}

impl Punctuation {
    pub const ALL: [Self; 6] =
        [Self::Comma, Self::Colon, Self::ObjectStart, Self::ObjectEnd, Self::ArrayStart, Self::ArrayEnd];

    pub fn regex(self, form: GrammarForm, blanks: &Blanks) -> Cow<'static, str> {
        match blanks {
            Blanks::Any => self.of_form(form).into(),
            Blanks::Few => match self {
                Punctuation::Comma | Punctuation::Colon => self.between("", " ?", ""),
                _ => self.between("", "", ""),
            }
            .into(),
            Blanks::Pattern(blanks) => self.between(blanks, blanks, blanks).into(),
        }
    }

    pub fn of_form(self, form: GrammarForm) -> &'static str {
        static TOLERANT: LazyLock<[String; Punctuation::ALL.len()]> = LazyLock::new(|| {
            let blanks = GrammarForm::Tolerant.blanks();
            Punctuation::ALL.map(|mark| mark.between(&blanks, &blanks, &blanks))
        });
        // On one line, or with each member on a line of its own.
        static CANONICAL: LazyLock<[String; Punctuation::ALL.len()]> = LazyLock::new(|| {
            let line = format!(r"(\n[ \t]{{0,{MAX_INDENT}}})?");
            let space = format!(r"( |\n[ \t]{{0,{MAX_INDENT}}})?");
            Punctuation::ALL.map(|mark| match mark {
                Punctuation::Colon => ": ?".to_owned(),
                Punctuation::Comma => mark.between("", &space, ""),
                _ => mark.between("", &line, &line),
            })
        });
        match form {
            GrammarForm::Tolerant => &TOLERANT[self as usize],
            GrammarForm::Canonical => &CANONICAL[self as usize],
        }
    }

    /// With blanks before a comma or colon, after it or what opens, and before what closes.
    fn between(self, before: &str, after: &str, closing: &str) -> String {
        match self {
            Punctuation::Comma => format!("{before},{after}"),
            Punctuation::Colon => format!("{before}:{after}"),
            Punctuation::ObjectStart => format!(r"\{{{after}"),
            Punctuation::ObjectEnd => format!(r"{closing}\}}"),
            Punctuation::ArrayStart => format!(r"\[{after}"),
            Punctuation::ArrayEnd => format!(r"{closing}\]"),
        }
    }
}

/// How members are written in their object.
pub(super) struct Layout {
    pub comma: String,
    /// After the last member; may be empty.
    pub close: String,
    pub min: usize,
    pub max: usize,
    /// Undeclared members, after all required ones, and how many.
    pub other: Option<String>,
    pub others: usize,
    /// Members come in the order of the schema.
    pub in_order: bool,
}

impl Compiler<'_, '_, '_> {
    pub(super) fn punctuation(&mut self, mark: Punctuation) -> String {
        let Writer { form, blanks, .. } = &*self.work.writer;
        let regex = mark.regex(*form, blanks);
        if let Some(tags) = self.tags() {
            return match mark {
                Punctuation::ObjectStart => self.container("dict"),
                Punctuation::ArrayStart => self.container("list"),
                Punctuation::ObjectEnd | Punctuation::ArrayEnd => self.end_tag(tags),
                Punctuation::Comma | Punctuation::Colon => String::new(),
            };
        }
        match (self.element_mark(), mark) {
            (None, _) => self.w().regex(&regex),
            (Some(first), Punctuation::ObjectStart | Punctuation::ArrayStart) => self.first_mark(first),
            (Some(_), Punctuation::ArrayEnd) => "\"\"".to_owned(),
            (Some(_), Punctuation::Comma | Punctuation::Colon | Punctuation::ObjectEnd) => String::new(),
        }
    }

    pub(super) fn comma(&mut self) -> String {
        self.punctuation(Punctuation::Comma)
    }

    pub(super) fn colon(&mut self) -> String {
        self.punctuation(Punctuation::Colon)
    }

    pub(super) fn open(&mut self) -> String {
        self.punctuation(Punctuation::ObjectStart)
    }

    pub(super) fn close(&mut self) -> String {
        self.punctuation(Punctuation::ObjectEnd)
    }

    pub(super) fn closed_empty(&mut self) -> String {
        let (open, close) = (self.open(), self.close());
        self.w().rule(&format!("{open} {close}"))
    }

    /// Members in any order, each at most once, then `layout.close`.
    pub(super) fn sequence(&mut self, mut members: Vec<MemberRule>, layout: Layout) -> String {
        let Layout { comma, close, min, max, other, others, in_order } = layout;
        if members.is_empty() {
            return match other {
                Some(other) if max > 0 => {
                    let more = times(&format!("({comma} {other})"), min.saturating_sub(1), max - 1);
                    let some = format!("{other} {more} {close}");
                    match (min, close.is_empty()) {
                        (0, true) => format!("({some})?"),
                        (0, false) => format!("({close} | {some})"),
                        _ => some,
                    }
                }
                _ => close,
            };
        }
        if in_order || members.len() > MAX_ANY_ORDER {
            return self.in_order(&members, &comma, &close, other.as_deref().map(|other| (other, others)));
        }
        // Required members have the lowest bits, so that one condition covers them.
        members.sort_by_key(|m| !m.required);
        let required = members.iter().filter(|m| m.required).count();
        let mut done = Vec::new();
        if required > 0 {
            done.push(format!("is_ones([0:{required}])"));
        }
        if min > required {
            done.push(format!("bit_count_ge(_, {min})"));
        }
        let room = (max < members.len()).then(|| format!("bit_count_lt(_, {max})"));
        // The bits above those of the members count undeclared ones.
        let (low, high) = (members.len(), members.len() + (others + 1).ilog2() as usize + 1);
        let few = (other.is_some() && high <= PARAMETER_BITS).then(|| format!("lt([{low}:{high}],{others})"));
        // No comma unless something may follow it.
        let more_may_come = match (&other, &few) {
            (Some(_), Some(few)) => format!(" %if or(bit_count_lt([0:{low}],{low}),{few})"),
            (Some(_), None) => String::new(),
            (None, _) => format!(" %if bit_count_lt(_, {})", max.min(members.len())),
        };
        let w = self.w();
        let key = format!(
            "{comma} {close} {done:?} {room:?} {other:?} {others} {}",
            members.iter().map(|m| m.rule.as_str()).collect::<Vec<_>>().join("\n")
        );
        if let Some((first, ..)) = w.shared(&key) {
            return first;
        }
        let (next, more) = (w.reserve(), w.reserve());
        let mut alternatives: Vec<String> = members
            .iter()
            .enumerate()
            .map(|(i, m)| {
                let free = format!("bit_clear({i})");
                let condition = room.as_ref().map_or(free.clone(), |room| format!("and({free}, {room})"));
                format!("{} {next}::set_bit({i}) %if {condition}", m.rule)
            })
            .collect();
        // Undeclared members come last, and are not endless: a model that has left out a required member would go on
        // to invent others.
        alternatives.extend(other.map(|other| {
            let last = (required > 0).then(|| format!("is_ones([0:{required}])"));
            let count = few.as_ref().map_or_else(|| "_".to_owned(), |_| format!("incr([{low}:{high}])"));
            let condition = match (last, few) {
                (Some(last), Some(few)) => format!(" %if and({last},{few})"),
                (Some(one), None) | (None, Some(one)) => format!(" %if {one}"),
                (None, None) => String::new(),
            };
            format!("{other} {next}::{count}{condition}")
        }));
        w.define_parametric(&more, &alternatives);
        let done = match done.as_slice() {
            [] => String::new(),
            [one] => format!(" %if {one}"),
            [a, b, ..] => format!(" %if and({a}, {b})"),
        };
        let end = if close.is_empty() { "\"\"" } else { close.as_str() };
        w.define_parametric(&next, &[format!("{end}{done}"), format!("{comma} {more}::_{more_may_come}")]);
        // Before the first member no bit is set, so the conditions are known.
        let first = match (done.is_empty(), max > 0) {
            (true, true) => w.rule(&format!("{end} | {more}::0x0")),
            (true, false) => end.to_owned(),
            (false, _) => format!("{more}::0x0"),
        };
        w.share(&key, (first.clone(), next, more));
        first
    }

    /// Members in the order of the schema.
    fn in_order(&mut self, members: &[MemberRule], comma: &str, close: &str, other: Option<(&str, usize)>) -> String {
        let end = if close.is_empty() { "\"\"" } else { close };
        // After a member, and before the first.
        let mut tail = match other {
            Some((other, most)) => format!("{} {end}", times(&format!("({comma} {other})"), 0, most)),
            None => end.to_owned(),
        };
        let mut head = match other {
            Some((other, most)) => {
                let more = times(&format!("({comma} {other})"), 0, most.saturating_sub(1));
                format!("({end} | {other} {more} {end})")
            }
            None => end.to_owned(),
        };
        for member in members.iter().rev() {
            let w = self.work.writer as &mut Writer;
            let rest = w.rule(&tail);
            let skipped = w.rule(&head);
            let m = &member.rule;
            tail = if member.required { format!("{comma} {m} {rest}") } else { format!("{comma} {m} {rest} | {rest}") };
            head = if member.required { format!("{m} {rest}") } else { format!("{m} {rest} | {skipped}") };
        }
        self.w().rule(&head)
    }
}

/// An expression repeated this often.
pub(super) fn times(group: &str, min: usize, max: usize) -> String {
    const MOST: usize = i32::MAX as usize;
    match (min.min(MOST), max) {
        (_, 0) => String::new(),
        (0, max) if max >= MOST => format!("{group}*"),
        (min, max) if max >= MOST => format!("{group}{{{min},}}"),
        (min, max) => format!("{group}{{{min},{max}}}"),
    }
}
