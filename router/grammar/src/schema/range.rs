//! Decimal numbers between bounds, as regular expressions. The bounds are compared as decimals, not as floating point.

use crate::budget::Budget;
use std::cmp::Ordering;

use serde_json::Value;

use super::pattern::whole;
use super::text::{Said, Texts};
use crate::lark::either;

/// Digits before the point, and the least number that has more.
const WHOLE: usize = 20;
const BEYOND: u128 = 100_000_000_000_000_000_000;
/// Digits after the point.
const FRACTION: usize = 20;
/// Up to this, floating point has every integer.
pub(super) const EXACT_INTEGERS: u128 = 1 << f64::MANTISSA_DIGITS;
/// Significant digits that floating point keeps apart, and the least integer that has more.
const EXACT: usize = 14;
const FAR: u128 = 100_000_000_000_000;

/// A decimal number that is not negative. The fraction has no zeros at its end.
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
    /// None: it is no number.
    pub fn new(value: &Value, inclusive: bool) -> Option<Self> {
        let number = value.as_number()?;
        let text = match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float}"),
            _ => number.to_string(),
        };
        let (negative, size) = text.strip_prefix('-').map_or((false, text.as_str()), |size| (true, size));
        let (whole, fraction) = size.split_once('.').unwrap_or((size, ""));
        // What has more digits than that is beyond all that are written.
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

/// How two numbers compare. What is no number equals everything.
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

/// What lies between two bounds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Range {
    /// Only numbers that are longer than those that are written.
    Beyond,
    Nothing,
    /// A lexeme.
    Numbers(String),
}

/// Numbers from `low` to `high`. Near a bound that is excluded, no digits come that floating point would round to it.
pub(super) fn between(low: Option<Bound>, high: Option<Bound>, whole: bool) -> Range {
    if low.as_ref().is_some_and(|b| b.is_beyond() && !b.negative)
        || high.as_ref().is_some_and(|b| b.is_beyond() && b.negative)
    {
        return Range::Beyond;
    }
    // The largest double, which some write for no bound at all, would be an expression of its 309 digits.
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
        // Far from what floating point rounds, a fraction may come.
        let edge =
            |negative| Bound { negative, size: Decimal { whole: FAR, fraction: String::new() }, inclusive: true };
        let near = |bound: &Option<Bound>, edge: Bound, side| match bound {
            Some(bound) if bound.compare(&edge) == side => bound.clone(),
            _ => edge,
        };
        let (low, high) = (near(&low, edge(true), Ordering::Greater), near(&high, edge(false), Ordering::Less));
        if low.compare(&high).is_lt()
            && let Range::Numbers(near) = between(Some(low), Some(high), false)
        {
            parts.push(near);
        }
    }
    // Below zero, larger numbers have smaller digits.
    if low.as_ref().is_none_or(|b| b.negative) {
        let from = high.clone().filter(|b| b.negative || b.size == Decimal::ZERO);
        let from = from.map_or(Bound::zero(true), Bound::mirrored);
        parts.extend(positive(from, low.clone().map(Bound::mirrored), digits).map(|part| format!("(\"-\" {part})")));
    }
    if high.as_ref().is_none_or(|b| !b.negative && (b.size != Decimal::ZERO || b.inclusive)) {
        let from = low.filter(|b| !b.negative).unwrap_or(Bound::zero(true));
        parts.extend(positive(from, high, digits));
    }
    if parts.is_empty() { Range::Nothing } else { Range::Numbers(either(&parts)) }
}

/// Neither bound is negative.
fn positive(low: Bound, high: Option<Bound>, digits: usize) -> Option<String> {
    let (above, mut below) = (beside(&low, Side::Above, digits), None);
    if let Some(high) = &high {
        let regex = beside(high, Side::Below, digits);
        if first_integer(&low) > last_integer(high)? {
            // No integer lies between the bounds: only a fraction may.
            (digits > 0).then_some(())?;
            let both = [&above, &regex].map(|regex| whole(regex).map(Texts::Own));
            let both = both.into_iter().collect::<Option<Vec<_>>>()?;
            (!Said { all: both, none: Vec::new() }.is_empty(&mut Budget::default()).unwrap_or(false)).then_some(())?;
        }
        below = Some(regex);
    }
    let mut all = vec![match below {
        None => format!("/{above}/"),
        Some(below) => format!("(/{above}/ & /{below}/)"),
    }];
    // Numbers with an exponent, where all of these are on the right side of the bounds.
    if digits > 0 && low.size == Decimal::ZERO {
        // Rounded, these are 1 at most.
        let one = Decimal { whole: 1, fraction: String::new() };
        if high.as_ref().is_none_or(|high| high.size > one || (high.size == one && high.inclusive)) {
            all.push(r"/[1-9](\.[0-9]{1,20})?[eE]-(0[1-9]|[1-9][0-9]?)/".to_owned());
        }
        if high.is_none() {
            all.push(r"/[1-9](\.[0-9]{1,20})?[eE]\+?[0-9]{1,2}/".to_owned());
        }
    }
    Some(either(&all))
}

/// The least integer that a bound which is not negative leaves above it.
fn first_integer(low: &Bound) -> u128 {
    low.size.whole + u128::from(!low.inclusive || !low.size.fraction.is_empty())
}

/// The largest integer that a bound which is not negative leaves below it; none if there is none.
fn last_integer(high: &Bound) -> Option<u128> {
    match high.inclusive || !high.size.fraction.is_empty() {
        true => Some(high.size.whole),
        false => high.size.whole.checked_sub(1),
    }
}

/// What lies on this side of a bound that is not negative.
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

/// Integers on this side of this one, which is not among them.
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

/// What may follow the bound's own digits before the point. None: nothing may.
fn fractions(bound: &str, side: Side, inclusive: bool, digits: usize) -> Option<String> {
    // Beyond the digits that may be written, the bound itself lies between two numbers.
    let (bound, cut) = (&bound[..bound.len().min(digits)], bound.len() > digits);
    let left = digits - bound.len();
    let mut all = Vec::new();
    for (i, digit) in bound.bytes().enumerate() {
        let class = beyond(digit, side, b'0');
        all.extend(class.map(|class| format!(r"\.{}{class}[0-9]{{0,{}}}", &bound[..i], digits - i - 1)));
    }
    match side {
        Side::Above if left > 0 => all.push(format!(r"\.{bound}[0-9]{{0,{}}}[1-9][0-9]{{0,{}}}", left - 1, left - 1)),
        // Any beginning of the bound is below it.
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

/// The digits on this side of one.
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
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::enforce::Bench;
    use crate::{Response, Rules};

    fn bound(value: Value, inclusive: bool) -> Option<Bound> {
        Bound::new(&value, inclusive)
    }

    #[test]
    fn bounds_that_no_number_reaches_are_none() {
        let of = |value| bound(value, true);
        assert_eq!(between(of(json!(f64::MIN)), of(json!(f64::MAX)), false), between(None, None, false));
        assert_eq!(between(of(json!(0)), of(json!(f64::MAX)), false), between(of(json!(0)), None, false));
        assert_eq!(between(of(json!(1e300)), None, false), Range::Beyond);
        assert_eq!(between(of(json!(4.2)), of(json!(4.8)), true), Range::Nothing);
        assert_eq!(between(of(json!(5)), bound(json!(5), false), false), Range::Nothing);
    }

    /// Whether each text is taken by the schema of a response.
    fn takes(bench: &Bench, schema: &Value, texts: &BTreeSet<String>, mut check: impl FnMut(&str, bool)) {
        let response = Some(Response::JsonSchema { schema: schema.clone(), strict: true });
        let compiled = match bench.grammars.compile(&Rules { response, ..Rules::default() }) {
            Ok(compiled) => compiled.expect("a grammar"),
            // Nothing satisfies it.
            Err(_) => return texts.iter().for_each(|text| check(text, false)),
        };
        let start = compiled.matcher().expect("a matcher");
        for text in texts {
            let ids = bench.tokens.encode(text.as_bytes());
            check(text, bench.run(&mut start.clone(), &ids) == (ids.len(), true));
        }
    }

    /// Integers around bounds of every size, against the comparison of integers.
    #[test]
    fn integers_between_bounds_are_those_that_compare_so() {
        let bench = Bench::new(crate::PLAIN, false);
        let bounds: &[i128] = &[
            -10_000_000_000_000_001,
            -1000,
            -10,
            -1,
            0,
            1,
            9,
            10,
            99,
            100,
            105,
            9_007_199_254_740_993,
            10_000_000_000_000_000,
            9_223_372_036_854_775_807,
            18_446_744_073_709_551_615,
        ];
        let near = bounds.iter().flat_map(|b| [b - 11, b - 10, b - 2, b - 1, *b, b + 1, b + 2, b + 9, b + 10]);
        let texts: BTreeSet<String> = near.map(|n| n.to_string()).collect();
        let number =
            |n: i128| u64::try_from(n).map_or_else(|_| json!(i64::try_from(n).expect("a bound")), |n| json!(n));
        for (i, low) in bounds.iter().enumerate() {
            for high in &bounds[i..] {
                for (least, most) in [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")] {
                    let schema = json!({"type": "integer", least: number(*low), most: number(*high)});
                    takes(&bench, &schema, &texts, |text, taken| {
                        let n: i128 = text.parse().expect("a number");
                        let valid = if least == "minimum" { n >= *low && n <= *high } else { n > *low && n < *high };
                        assert_eq!(taken, valid, "{schema}: {text}");
                    });
                }
            }
        }
    }

    /// Bounds with fractions and exponents, multiples, and what is not to be.
    #[test]
    fn odd_bounds_of_integers() {
        let bench = Bench::new(crate::PLAIN, false);
        let texts: BTreeSet<String> = (-130..=130)
            .chain([999_999_999_999_999, 10_000_000_000_000_000, 10_000_000_000_000_001])
            .map(|n: i64| n.to_string())
            .collect();
        for schema in [
            json!({"type": "integer", "minimum": 1e1}),
            json!({"type": "integer", "maximum": 1e16}),
            json!({"type": "integer", "exclusiveMaximum": 1e16, "minimum": -2.5}),
            json!({"type": "integer", "minimum": -2.5, "maximum": 2.5}),
            json!({"type": "integer", "exclusiveMinimum": -2.0, "exclusiveMaximum": 2.0}),
            json!({"type": "integer", "minimum": 5, "exclusiveMinimum": 5}),
            json!({"type": "integer", "minimum": -30, "maximum": 30, "multipleOf": 7}),
            json!({"type": "integer", "maximum": 10, "multipleOf": 5}),
            json!({"type": "integer", "exclusiveMinimum": 100, "multipleOf": 2}),
            json!({"type": "integer", "minimum": 0, "maximum": 9, "not": {"enum": [0, 4, 9]}}),
            json!({"type": "integer", "not": {"const": 0}}),
            json!({"type": "integer", "minimum": 0.1, "maximum": 0.9}),
        ] {
            let judge = crate::Judge::new(&schema).expect("a schema");
            takes(&bench, &schema, &texts, |text, taken| {
                let value = serde_json::from_str(text).expect("JSON");
                let valid = judge.violations(&value, 1).is_empty();
                // Multiples are taken as far as floating point has them all.
                if !(schema.get("multipleOf").is_some() && text.len() > 15) {
                    assert_eq!(taken, valid, "{schema}: {text}");
                }
            });
        }
    }

    /// Numbers around the bounds, spelled in several lengths and ways.
    #[test]
    fn numbers_between_bounds_are_those_that_compare_so() {
        let bench = Bench::new(crate::PLAIN, false);
        let bounds = [-12.5, -5.0, -0.05, 0.0, 0.1, 0.75, 1.0, 5.0, 9.995, 10.0, 99.5, 100.0, 1234.25];
        let mut texts = BTreeSet::new();
        for b in bounds.iter().copied().chain([2.0, 50.0]) {
            for d in [0.0, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 9.0, 90.0] {
                texts.extend([
                    format!("{}", b + d),
                    format!("{}", b - d),
                    format!("{:.3}", b + d),
                    format!("{:.1}", b - d),
                ]);
            }
        }
        texts.extend(["1e-7", "-1e-7", "1.5e3", "-2E+5", "0e1", "9.99e-1", "1e16"].map(str::to_owned));
        texts.retain(|t| t.split_once('.').is_none_or(|(_, f)| f.len() <= 8));
        let texts: BTreeSet<String> = texts
            .into_iter()
            .enumerate()
            .filter(|(i, t)| i % 5 == 0 || t.contains(['e', 'E']))
            .map(|(_, t)| t)
            .collect();
        for (i, low) in bounds.iter().enumerate() {
            for high in bounds[i..].iter().map(|b| Some(*b)).chain([None]) {
                let (least, most) =
                    if i % 2 == 0 { ("minimum", "exclusiveMaximum") } else { ("exclusiveMinimum", "maximum") };
                let mut schema = json!({"type": "number", least: low});
                if let Some(high) = high {
                    schema[most] = json!(high);
                }
                let judge = crate::Judge::new(&schema).expect("a schema");
                takes(&bench, &schema, &texts, |text, taken| {
                    let value = serde_json::from_str(text).expect("JSON");
                    let valid = judge.violations(&value, 1).is_empty();
                    // Zero with a sign, and some exponents, are not offered everywhere.
                    let odd = text.contains(['e', 'E']) || (text.starts_with('-') && text.parse() == Ok(0.0));
                    assert!(if odd { valid || !taken } else { taken == valid }, "{schema}: {text}: {taken}");
                });
            }
        }
        let small = json!({"type": "number", "exclusiveMinimum": 0});
        let texts = ["1e-7", "2.5E-05", "0.0", "-1e-3", "3e10"].map(str::to_owned).into();
        takes(&bench, &small, &texts, |text, taken| {
            assert_eq!(taken, !text.starts_with("-") && text != "0.0", "{text}")
        });
    }
}
