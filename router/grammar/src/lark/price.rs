//! Estimates what an expression costs llguidance before it is compiled. llguidance checks each conjunction for a match,
//! and its fuel is only checked between two derivatives, while one derivative of a conjunction combines every way in
//! which each conjunct can continue.

use std::collections::HashMap;

use llguidance::derivre::raw::{DerivCache, ExprSet, RelevanceCache};
use llguidance::derivre::{AlphabetInfo, ExprRef};

use super::read::{Conjunction, conjunction, largest_count};
use crate::budget::Budget;
use crate::limits::{MAX_OVERLAP, MAX_TEXT_FUEL, MAX_WALK_FUEL};
use crate::rules::RuleError;

/// The estimated cost of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Price {
    Affordable,
    /// Nothing matches it.
    Empty,
    /// It cannot be compiled, or not matched, at a bounded cost.
    Costly,
}

/// The steps for parsing a terminal's body.
pub(crate) fn parsing_steps(body: &str) -> u64 {
    const STEPS_PER_BYTE: u64 = 2;
    STEPS_PER_BYTE * body.len() as u64
}

/// The cost of a terminal's body.
pub(crate) fn price(body: &str, budget: &mut Budget) -> Result<Price, RuleError> {
    appraise(body, budget, true)
}

/// The cost of compiling, without that of matching.
pub(crate) fn price_to_compile(body: &str, budget: &mut Budget) -> Result<Price, RuleError> {
    appraise(body, budget, false)
}

/// Whether nothing matches a terminal's body. False if that is hard to decide.
pub(crate) fn is_empty(body: &str, budget: &mut Budget) -> Result<bool, RuleError> {
    Ok(price_to_compile(body, budget)? == Price::Empty)
}

fn appraise(body: &str, budget: &mut Budget, walks: bool) -> Result<Price, RuleError> {
    budget.spend(parsing_steps(body))?;
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

    /// None: deciding takes more fuel.
    fn may_match(&mut self, expression: ExprRef, fuel: u64) -> Option<bool> {
        self.relevant.is_non_empty_limited(&mut self.set, expression, fuel).ok()
    }

    /// Whether a walk of some steps through texts that the expression matches is cheap. Each step tries all next bytes,
    /// so a mask costs a multiple of a step.
    fn walk(&mut self, start: ExprRef) -> bool {
        const STEPS: usize = 24;
        /// Prime, so that the steps do not repeat in a cycle.
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

/// The number of ways in which conjuncts (each with its largest repetition count) continue at one place, without the
/// most ambiguous one.
fn overlap(set: &mut ExprSet, conjuncts: &[(ExprRef, u64)]) -> u64 {
    combined(conjuncts.iter().map(|(one, count)| Ways::new(set, *count).of(*one).most))
}

fn combined(ways: impl Iterator<Item = u64>) -> u64 {
    let (mut all, mut largest) = (1_u64, 1);
    for one in ways {
        // The larger of the two is left out.
        all = all.saturating_mul(one.min(largest));
        largest = largest.max(one);
    }
    all
}

/// Whether a conjunction among the expressions of a client's grammar is too ambiguous. `text` is the grammar.
pub(crate) fn is_costly_grammar(mut set: ExprSet, text: &str) -> bool {
    let mut ways = Ways::new(&mut set, largest_count(text));
    (1..ways.set.len() as u32).map(ExprRef::new).any(|expression| {
        let conjuncts =
            if tag(ways.set, expression) == Tag::And { ways.set.get_args(expression).to_vec() } else { return false };
        combined(conjuncts.into_iter().map(|one| ways.of(one).most)) > MAX_OVERLAP
    })
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
    /// No text that it matches is a prefix of another one: a repetition of it can be read in only one way.
    prefix_free: bool,
    /// The largest number of ways in which it continues at one place.
    most: u64,
    /// Number of places within it, with repetitions expanded.
    places: u64,
}

struct Ways<'s> {
    set: &'s mut ExprSet,
    /// The largest repetition count.
    count: u64,
    known: HashMap<ExprRef, Known>,
}

impl<'s> Ways<'s> {
    fn new(set: &'s mut ExprSet, count: u64) -> Self {
        Self { set, count, known: HashMap::new() }
    }

    /// Children are created before their parents, so that this needs no recursion over the depth of an expression.
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
        /// Approximate bytes of a literal in one node.
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

    /// How often the expression repeats its part, at most. The library encodes counts below ten as weights.
    fn repeated(&mut self, expression: ExprRef, part: ExprRef) -> u64 {
        const DISTINGUISHED: u32 = 10;
        match self.set.get_weight(expression).checked_sub(self.set.get_weight(part)) {
            Some(few) if few < DISTINGUISHED => u64::from(few.max(1)),
            _ => self.count,
        }
    }

    /// Whether the first byte distinguishes the alternatives.
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
mod tests;
