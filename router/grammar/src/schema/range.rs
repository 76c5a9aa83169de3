//! Decimal numbers between bounds, as regular expressions. Bounds are compared as decimals, not as floating point.

use crate::budget::Budget;
use std::cmp::Ordering;

use serde_json::Value;

use super::pattern::whole;
use super::text::{TextConstraints, Texts};
use crate::lark::either;
use crate::rules::RuleError;

/// Digits before the point, and the smallest number with more.
const WHOLE: usize = 20;
const BEYOND: u128 = 100_000_000_000_000_000_000;
/// Digits after the point.
const FRACTION: usize = 20;
/// Floating point represents every integer up to this.
pub(super) const EXACT_INTEGERS: u128 = 1 << f64::MANTISSA_DIGITS;
/// Significant digits that floating point keeps apart, and the smallest integer with more.
const EXACT: usize = 14;
const FAR: u128 = 100_000_000_000_000;

/// A non-negative decimal number. The fraction has no trailing zeros.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Decimal {
    whole: u128,
    fraction: String,
}

impl Decimal {
    const ZERO: Decimal = Decimal { whole: 0, fraction: String::new() };
}

/// One end of a range.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    negative: bool,
    size: Decimal,
    pub inclusive: bool,
}

impl Bound {
    /// None: not a number.
    pub fn new(value: &Value, inclusive: bool) -> Option<Self> {
        let number = value.as_number()?;
        let text = match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float}"),
            _ => number.to_string(),
        };
        let (negative, size) = text.strip_prefix('-').map_or((false, text.as_str()), |size| (true, size));
        let (whole, fraction) = size.split_once('.').unwrap_or((size, ""));
        // A number with more digits is beyond all that can be written.
        let whole = whole.parse().unwrap_or(u128::MAX);
        let size = Decimal { whole, fraction: fraction.trim_end_matches('0').to_owned() };
        Some(Self { negative: negative && size != Decimal::ZERO, size, inclusive })
    }

    fn zero(inclusive: bool) -> Self {
        Self { negative: false, size: Decimal::ZERO, inclusive }
    }

    fn mirrored(mut self) -> Self {
        self.negative = !self.negative && self.size != Decimal::ZERO;
        self
    }

    fn is_beyond(&self) -> bool {
        self.size.whole >= BEYOND
    }

    pub fn compare(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, false) => self.size.cmp(&other.size),
            (true, true) => other.size.cmp(&self.size),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }
}

/// Compares two numbers. A value that is not a number equals everything.
pub(super) fn order(a: &Value, b: &Value) -> Ordering {
    match (Bound::new(a, true), Bound::new(b, true)) {
        (Some(a), Some(b)) => a.compare(&b),
        _ => Ordering::Equal,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Above,
    Below,
}

/// The numbers between two bounds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NumberRange {
    /// Only numbers with more digits than can be written.
    Beyond,
    Nothing,
    /// A lexeme.
    Numbers(String),
}

/// Numbers from `low` to `high`. Near an excluded bound, digits that floating point would round to it are left out.
pub(super) fn between(
    low: Option<Bound>,
    high: Option<Bound>,
    whole: bool,
    budget: &mut Budget,
) -> Result<NumberRange, RuleError> {
    if low.as_ref().is_some_and(|b| b.is_beyond() && !b.negative)
        || high.as_ref().is_some_and(|b| b.is_beyond() && b.negative)
    {
        return Ok(NumberRange::Beyond);
    }
    // The largest double, which some schemas use for no bound, would become an expression of its 309 digits.
    let (low, high) = (low.filter(|b| !b.is_beyond()), high.filter(|b| !b.is_beyond()));
    let bounds = || [&low, &high].into_iter().flatten();
    let rounded = bounds().any(|b| b.size.whole > EXACT_INTEGERS);
    let digits = if whole || rounded {
        0
    } else {
        let widest = bounds().filter(|b| !b.inclusive).map(|b| b.size.whole.to_string().len()).max();
        widest.map_or(FRACTION, |whole| EXACT.saturating_sub(whole))
    };
    let mut parts = Vec::new();
    if rounded && !whole {
        // Far from rounding errors of floating point, a fraction may follow.
        let edge =
            |negative| Bound { negative, size: Decimal { whole: FAR, fraction: String::new() }, inclusive: true };
        let near = |bound: &Option<Bound>, edge: Bound, side| match bound {
            Some(bound) if bound.compare(&edge) == side => bound.clone(),
            _ => edge,
        };
        let (low, high) = (near(&low, edge(true), Ordering::Greater), near(&high, edge(false), Ordering::Less));
        if low.compare(&high).is_lt()
            && let NumberRange::Numbers(near) = between(Some(low), Some(high), false, budget)?
        {
            parts.push(near);
        }
    }
    // Below zero, larger numbers have smaller digits.
    if low.as_ref().is_none_or(|b| b.negative) {
        let from = high.clone().filter(|b| b.negative || b.size == Decimal::ZERO);
        let from = from.map_or(Bound::zero(true), Bound::mirrored);
        let part = positive(from, low.clone().map(Bound::mirrored), digits, budget)?;
        parts.extend(part.map(|part| format!("(\"-\" {part})")));
    }
    if high.as_ref().is_none_or(|b| !b.negative && (b.size != Decimal::ZERO || b.inclusive)) {
        let from = low.filter(|b| !b.negative).unwrap_or(Bound::zero(true));
        parts.extend(positive(from, high, digits, budget)?);
    }
    Ok(if parts.is_empty() { NumberRange::Nothing } else { NumberRange::Numbers(either(&parts)) })
}

/// Neither bound is negative.
fn positive(low: Bound, high: Option<Bound>, digits: usize, budget: &mut Budget) -> Result<Option<String>, RuleError> {
    let (above, mut below) = (beside(&low, Side::Above, digits), None);
    if let Some(high) = &high {
        let regex = beside(high, Side::Below, digits);
        let Some(last) = last_integer(high) else { return Ok(None) };
        if first_integer(&low) > last {
            // No integer lies between the bounds: only a fraction may.
            let both = [&above, &regex].map(|regex| whole(regex).map(Texts::Own));
            let both = both.into_iter().collect::<Option<Vec<_>>>().filter(|_| digits > 0);
            let Some(all) = both else { return Ok(None) };
            if (TextConstraints { all, none: Vec::new() }).is_empty(budget)? {
                return Ok(None);
            }
        }
        below = Some(regex);
    }
    let mut all = vec![match below {
        None => format!("/{above}/"),
        Some(below) => format!("(/{above}/ & /{below}/)"),
    }];
    // Numbers with an exponent, if all of them are within the bounds.
    if digits > 0 && low.size == Decimal::ZERO {
        // Rounded, these are at most 1.
        let one = Decimal { whole: 1, fraction: String::new() };
        if high.as_ref().is_none_or(|high| high.size > one || (high.size == one && high.inclusive)) {
            all.push(r"/[1-9](\.[0-9]{1,20})?[eE]-(0[1-9]|[1-9][0-9]?)/".to_owned());
        }
        if high.is_none() {
            all.push(r"/[1-9](\.[0-9]{1,20})?[eE]\+?[0-9]{1,2}/".to_owned());
        }
    }
    Ok(Some(either(&all)))
}

/// The smallest integer above a non-negative bound.
fn first_integer(low: &Bound) -> u128 {
    low.size.whole + u128::from(!low.inclusive || !low.size.fraction.is_empty())
}

/// The largest non-negative integer below a non-negative bound, if there is one.
fn last_integer(high: &Bound) -> Option<u128> {
    match high.inclusive || !high.size.fraction.is_empty() {
        true => Some(high.size.whole),
        false => high.size.whole.checked_sub(1),
    }
}

/// Numbers on this side of a non-negative bound.
fn beside(bound: &Bound, side: Side, digits: usize) -> String {
    let whole = bound.size.whole.to_string();
    let any = match digits {
        0 => String::new(),
        n => format!(r"(\.[0-9]{{1,{n}}})?"),
    };
    let mut all: Vec<String> = wholes(&whole, side).into_iter().map(|other| format!("{other}{any}")).collect();
    all.extend(fractions(&bound.size.fraction, side, bound.inclusive, digits).map(|rest| format!("{whole}{rest}")));
    all.join("|")
}

/// Integers on this side of this one, excluding it.
fn wholes(bound: &str, side: Side) -> Vec<String> {
    let mut all = Vec::new();
    for (i, digit) in bound.bytes().enumerate() {
        let lowest = if i == 0 && bound.len() > 1 { b'1' } else { b'0' };
        let rest = times("[0-9]", bound.len() - i - 1);
        all.extend(beyond(digit, side, lowest).map(|class| format!("{}{class}{rest}", &bound[..i])));
    }
    match side {
        Side::Above if bound.len() < WHOLE => all.push(format!("[1-9][0-9]{{{},{}}}", bound.len(), WHOLE - 1)),
        Side::Below if bound.len() > 1 => all.push(format!("0|[1-9][0-9]{{0,{}}}", bound.len() - 2)),
        _ => {}
    }
    all.iter().map(|one| format!("({one})")).collect()
}

/// What may follow the bound's digits before the point. None: nothing may.
fn fractions(bound: &str, side: Side, inclusive: bool, digits: usize) -> Option<String> {
    // Beyond the digits that can be written, the bound itself lies between two numbers.
    let (bound, cut) = (&bound[..bound.len().min(digits)], bound.len() > digits);
    let left = digits - bound.len();
    let mut all = Vec::new();
    for (i, digit) in bound.bytes().enumerate() {
        let class = beyond(digit, side, b'0');
        all.extend(class.map(|class| format!(r"\.{}{class}[0-9]{{0,{}}}", &bound[..i], digits - i - 1)));
    }
    match side {
        Side::Above if left > 0 => all.push(format!(r"\.{bound}[0-9]{{0,{}}}[1-9][0-9]{{0,{}}}", left - 1, left - 1)),
        // Every prefix of the bound is below it.
        Side::Below if !bound.is_empty() => {
            all.push(String::new());
            all.extend((1..bound.len()).map(|n| format!(r"\.{}", &bound[..n])));
        }
        _ => {}
    }
    let whole_cut = cut && side == Side::Below;
    if (inclusive && !cut) || whole_cut {
        match (bound.is_empty(), left) {
            (true, 0) => all.push(String::new()),
            (true, _) => all.push(format!(r"(\.0{{1,{left}}})?")),
            (false, _) => all.push(format!(r"\.{bound}0{{0,{left}}}")),
        }
    }
    (!all.is_empty()).then(|| format!("({})", all.join("|")))
}

/// The digits on this side of one digit.
fn beyond(digit: u8, side: Side, lowest: u8) -> Option<String> {
    let (from, to) = match side {
        Side::Above => (digit + 1, b'9'),
        Side::Below => (lowest, digit.wrapping_sub(1)),
    };
    (from <= to).then(|| format!("[{}-{}]", char::from(from), char::from(to)))
}

fn times(class: &str, n: usize) -> String {
    match n {
        0 => String::new(),
        n => format!("{class}{{{n}}}"),
    }
}

#[cfg(test)]
mod tests;
