//! What an expression costs llguidance, told before it is compiled. llguidance asks for each conjunction whether anything
//! matches it, and its fuel is only looked at between two derivatives; one derivative of a conjunction combines every way
//! in which each conjunct can go on.

use std::collections::HashMap;

use llguidance::derivre::raw::{DerivCache, ExprSet, RelevanceCache};
use llguidance::derivre::{AlphabetInfo, ExprRef};

use super::read::{Conjunction, conjunction};
use crate::budget::Budget;
use crate::limits::{MAX_OVERLAP, MAX_TEXT_FUEL, MAX_WALK_FUEL};
use crate::rules::RuleError;

/// What is known of an expression's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Price {
    Affordable,
    /// Nothing matches it.
    Empty,
    /// It cannot be compiled, or not matched, at a bounded cost.
    Costly,
}

/// The price of a terminal's body.
pub(crate) fn price(body: &str, budget: &mut Budget) -> Result<Price, RuleError> {
    appraise(body, budget, true)
}

/// The price without that of matching.
pub(crate) fn price_to_compile(body: &str, budget: &mut Budget) -> Result<Price, RuleError> {
    appraise(body, budget, false)
}

/// Whether nothing matches a terminal's body. Not if that is hard to tell.
pub(crate) fn is_empty(body: &str, budget: &mut Budget) -> Result<bool, RuleError> {
    Ok(price_to_compile(body, budget)? == Price::Empty)
}

fn appraise(body: &str, budget: &mut Budget, walks: bool) -> Result<Price, RuleError> {
    let Some(Conjunction { builder, conjuncts, whole }) = conjunction(body) else { return Ok(Price::Affordable) };
    if overlap(&mut builder.clone().into_exprset(), &conjuncts) > MAX_OVERLAP {
        return Ok(Price::Costly);
    }
    if conjuncts.len() == 1 && builder.exprset().is_positive(whole) {
        return Ok(Price::Affordable);
    }
    let (_, set, all) = AlphabetInfo::from_exprset(builder.into_exprset(), &[whole]);
    let mut text = Text { start: set.cost(), set, derivatives: DerivCache::new(), relevant: RelevanceCache::new() };
    let price = match text.may_match(all[0], MAX_TEXT_FUEL) {
        None => Price::Costly,
        Some(false) => Price::Empty,
        Some(true) if walks && !text.walk(all[0]) => Price::Costly,
        Some(true) => Price::Affordable,
    };
    budget.spend(text.spent())?;
    Ok(price)
}

/// Derivatives of an expression, as llguidance's lexer takes them.
struct Text {
    set: ExprSet,
    start: u64,
    derivatives: DerivCache,
    relevant: RelevanceCache,
}

impl Text {
    fn spent(&self) -> u64 {
        self.set.cost() - self.start
    }

    /// None: it takes more fuel to tell.
    fn may_match(&mut self, expression: ExprRef, fuel: u64) -> Option<bool> {
        self.relevant.is_non_empty_limited(&mut self.set, expression, fuel).ok()
    }

    /// Whether some steps through texts that the expression matches, each time for whatever may follow, are done on little
    /// fuel. What a mask takes is a multiple of it.
    fn walk(&mut self, start: ExprRef) -> bool {
        const STEPS: usize = 24;
        /// Prime, so that steps do not turn in a circle.
        const STRIDE: usize = 97;
        let end = self.spent() + MAX_WALK_FUEL;
        let mut at = start;
        for step in 0..STEPS {
            let mut next = Vec::new();
            for byte in 0..=255 {
                let after = self.derivatives.derivative(&mut self.set, at, byte);
                let Some(may_match) = self.may_match(after, end.saturating_sub(self.spent())) else { return false };
                if may_match {
                    next.push(after);
                }
            }
            match next.len() {
                0 => break,
                many => at = next[step * STRIDE % many],
            }
        }
        self.spent() <= end
    }
}

/// In how many ways conjuncts (each with the largest count of its repetitions) go on at one place, the most ambiguous
/// left out.
fn overlap(set: &mut ExprSet, conjuncts: &[(ExprRef, u64)]) -> u64 {
    combined(conjuncts.iter().map(|(one, count)| Ways::new(set, *count).of(*one).most))
}

fn combined(ways: impl Iterator<Item = u64>) -> u64 {
    let (mut all, mut largest) = (1_u64, 1);
    for one in ways {
        // The larger of the two stays out.
        all = all.saturating_mul(one.min(largest));
        largest = largest.max(one);
    }
    all
}

/// Whether a conjunction anywhere among the expressions of a client's grammar is too ambiguous. `text`: the grammar.
pub(crate) fn is_costly_grammar(mut set: ExprSet, text: &str) -> bool {
    let mut ways = Ways::new(&mut set, largest_count(text));
    (1..ways.set.len() as u32).map(ExprRef::new).any(|expression| {
        let conjuncts =
            if tag(ways.set, expression) == Tag::And { ways.set.get_args(expression).to_vec() } else { return false };
        combined(conjuncts.into_iter().map(|one| ways.of(one).most)) > MAX_OVERLAP
    })
}

/// The largest number in braces.
pub(super) fn largest_count(text: &str) -> u64 {
    let within = text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(inner, _)| inner);
    let numbers = within.flat_map(|inner| inner.split(',')).filter_map(|number| number.trim().parse().ok());
    numbers.max().unwrap_or(1).max(1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Empty,
    Bytes,
    ByteConcat,
    Not,
    Repeat,
    Concat,
    Or,
    And,
    Other,
}

fn tag(set: &ExprSet, expression: ExprRef) -> Tag {
    // The type of a tag has no public name.
    match format!("{:?}", set.get_tag(expression)).as_str() {
        "EmptyString" => Tag::Empty,
        "Byte" | "ByteSet" => Tag::Bytes,
        "ByteConcat" => Tag::ByteConcat,
        "Not" => Tag::Not,
        "Repeat" => Tag::Repeat,
        "Concat" => Tag::Concat,
        "Or" => Tag::Or,
        "And" => Tag::And,
        _ => Tag::Other,
    }
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// No text that it matches is the beginning of another: a repetition of it is read in one way only.
    prefix_free: bool,
    /// In how many ways it may go on at one place, at most.
    most: u64,
    /// Places within it, repetitions spelled out.
    places: u64,
}

struct Ways<'s> {
    set: &'s mut ExprSet,
    /// The largest count of a repetition.
    count: u64,
    known: HashMap<ExprRef, Known>,
}

impl<'s> Ways<'s> {
    fn new(set: &'s mut ExprSet, count: u64) -> Self {
        Self { set, count, known: HashMap::new() }
    }

    /// Children are older than what is made of them, so that the depth of an expression is no depth of calls.
    fn of(&mut self, expression: ExprRef) -> Known {
        let mut open = vec![expression];
        while let Some(&next) = open.last() {
            let missing: Vec<ExprRef> =
                self.set.get_args(next).iter().copied().filter(|one| !self.known.contains_key(one)).collect();
            if missing.is_empty() {
                open.pop();
                let known = self.one(next);
                self.known.insert(next, known);
            } else {
                open.extend(missing);
            }
        }
        self.known[&expression]
    }

    fn one(&mut self, expression: ExprRef) -> Known {
        /// Bytes of a literal that stand in one node, about.
        const LITERAL: u64 = 8;
        let args = self.set.get_args(expression).to_vec();
        let parts: Vec<Known> = args.iter().map(|one| self.known[one]).collect();
        let sum = |of: fn(&Known) -> u64| parts.iter().map(of).fold(0, u64::saturating_add);
        let (most, places) = (sum(|part| part.most), sum(|part| part.places));
        match tag(self.set, expression) {
            Tag::Empty | Tag::Bytes | Tag::Other => Known { prefix_free: true, most: 1, places: 1 },
            Tag::ByteConcat => Known { places: places.saturating_add(LITERAL), ..parts[0] },
            Tag::Not => Known { prefix_free: false, most: 1, places },
            Tag::And => Known {
                prefix_free: false,
                most: parts.iter().map(|part| part.most).fold(1, u64::saturating_mul),
                places: parts.iter().map(|part| part.places).fold(1, u64::saturating_mul),
            },
            Tag::Or => {
                let apart = self.apart(&args);
                let prefix_free = apart && parts.iter().all(|part| part.prefix_free);
                let highest = parts.iter().map(|part| part.most).max().unwrap_or(1);
                Known { prefix_free, most: if prefix_free { highest } else { most }, places }
            }
            Tag::Concat => {
                let [first, second] = parts.as_slice() else {
                    return Known { prefix_free: false, most: places, places };
                };
                let most = match first.prefix_free {
                    true => first.most.max(second.most),
                    false => first.most.saturating_add(second.places),
                };
                Known { prefix_free: first.prefix_free && second.prefix_free, most, places }
            }
            Tag::Repeat => {
                let places = places.saturating_mul(self.repeated(expression, args[0]));
                let free = parts.iter().all(|part| part.prefix_free);
                Known { prefix_free: false, most: if free { most } else { places }, places }
            }
        }
    }

    /// How often the expression repeats its part, at most. The library tells counts below ten by the weights that it gives
    /// them.
    fn repeated(&mut self, expression: ExprRef, part: ExprRef) -> u64 {
        const TOLD: u32 = 10;
        match self.set.get_weight(expression).checked_sub(self.set.get_weight(part)) {
            Some(few) if few < TOLD => u64::from(few.max(1)),
            _ => self.count,
        }
    }

    /// Whether the first byte tells the alternatives apart.
    fn apart(&self, alternatives: &[ExprRef]) -> bool {
        let mut taken = [false; 256];
        alternatives.iter().all(|one| {
            let mut first = *one;
            while tag(self.set, first) == Tag::Concat {
                first = self.set.get_args(first)[0];
            }
            let first = self.set.get(first);
            (0..=255_u8).filter(|byte| !first.surely_no_match(*byte)).all(|byte| {
                let before = std::mem::replace(&mut taken[usize::from(byte)], true);
                !before
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Price {
        price(body, &mut Budget::default()).expect("a budget")
    }

    #[test]
    fn ordinary_constraints_are_affordable() {
        for body in [
            "/[^\"\\\\x00-\\x1f]*/ & /[a-zA-Z0-9_]+/ & /(?s:.{1,64})/",
            r"/[a-z]+/ & /(?s:.{0,5000})/",
            r"/(\p{L}{1,50} )+/ & /(?s:.{3,200})/",
            r"/[^@\s]+@[^@\s]+\.[a-z]{2,6}/ & /(?s:.{0,254})/",
            r#"/(?s:.*)/ & ~("a" | "b" | "abc")"#,
            r"/(?s:.+)/ & ~/(?s:.*)(x|y)(?s:.*)/",
        ] {
            assert_eq!(of(body), Price::Affordable, "{body}");
        }
    }

    #[test]
    fn what_would_explode_is_told_before() {
        let many =
            |i: usize| format!("/(?s:.*)([{}-z]{{1,9}}x.*|[a-y]{{2,8}}.*|(?s:.)[c-w].*)/", char::from(b'a' + i as u8));
        let all: Vec<String> = (0..12).map(many).collect();
        assert_eq!(of(&all.join(" & ")), Price::Costly);
        assert_eq!(of(r"/(\S+\s+){0,99}\S+/ & /(?s:.{0,5000})/"), Price::Costly);
    }

    #[test]
    fn contradictions_are_told() {
        assert_eq!(of("/a+/ & ~/a+/"), Price::Empty);
        assert_eq!(of(r"/[a-z]{4}/ & /(?s:.{5,})/"), Price::Empty);
    }

    #[test]
    fn counts_are_read() {
        assert_eq!([largest_count("a{3,77} {x} b{12}"), largest_count("{,")], [77, 1]);
    }
}
