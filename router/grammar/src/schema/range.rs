//! Decimal numbers between bounds, as regular expressions.

use crate::lark::either;

/// Digits before the point, and the least number that has more.
const WHOLE: usize = 20;
const BEYOND: f64 = 1e20;
/// Digits after the point.
const FRACTION: usize = 20;
/// Below this, floating point has every integer.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;
/// Significant digits that floating point keeps apart.
const EXACT: usize = 14;

/// One end of a range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub value: f64,
    pub inclusive: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Above,
    Below,
}

/// Numbers from `low` to `high`, without exponents, as a lexeme; none if no number lies between, or none that is known
/// exactly. Near a bound that is excluded, no digits come that floating point would round to it.
pub(super) fn between(low: Option<Bound>, high: Option<Bound>, whole: bool) -> Option<String> {
    let past = |b: Bound| if b.inclusive || b.value.fract() != 0.0 { 0.0 } else { 1.0 };
    let least = low.map(|b| b.value.ceil() + past(b));
    let most = high.map(|b| b.value.floor() - past(b));
    let inexact = [least, most].iter().flatten().any(|value| value.abs() >= EXACT_INTEGERS);
    if whole && (inexact || least.zip(most).is_some_and(|(least, most)| least > most)) {
        return None;
    }
    if low.is_some_and(|b| b.value >= BEYOND) || high.is_some_and(|b| b.value <= -BEYOND) {
        return None;
    }
    // The largest double, which some write for no bound at all, would be an expression of its 309 digits.
    let (low, high) = (low.filter(|b| b.value > -BEYOND), high.filter(|b| b.value < BEYOND));
    let zero = Bound { value: 0.0, inclusive: true };
    let excluded = [low, high].into_iter().flatten().filter(|b| !b.inclusive);
    let widest = excluded.map(|b| decimal(b.value).0.len()).max();
    let digits = if whole { 0 } else { widest.map_or(FRACTION, |whole| EXACT.saturating_sub(whole)) };
    let mirrored = |b: Bound| Bound { value: -b.value, ..b };
    let mut parts = Vec::new();
    // Below zero, larger numbers have smaller digits.
    if low.is_none_or(|b| b.value < 0.0) {
        let from = high.filter(|b| b.value <= 0.0).map_or(zero, mirrored);
        parts.extend(positive(from, low.map(mirrored), digits).map(|part| format!("(\"-\" {part})")));
    }
    if high.is_none_or(|b| b.value > 0.0 || (b.value == 0.0 && b.inclusive)) {
        let from = low.filter(|b| b.value >= 0.0).unwrap_or(zero);
        parts.extend(positive(from, high, digits));
    }
    (!parts.is_empty()).then(|| either(&parts))
}

/// Neither bound is negative.
fn positive(low: Bound, high: Option<Bound>, digits: usize) -> Option<String> {
    if let Some(high) = high
        && (low.value > high.value || (low.value == high.value && !(low.inclusive && high.inclusive)))
    {
        return None;
    }
    let low = format!("/{}/", beside(low, Side::Above, digits));
    Some(match high {
        None => low,
        Some(high) => format!("({low} & /{}/)", beside(high, Side::Below, digits)),
    })
}

/// A number's digits before and after the point, without zeros that say nothing.
fn decimal(value: f64) -> (String, String) {
    let text = format!("{}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    (whole.to_owned(), fraction.trim_end_matches('0').to_owned())
}

/// What lies on this side of a bound that is not negative.
fn beside(bound: Bound, side: Side, digits: usize) -> String {
    let (whole, fraction) = decimal(bound.value);
    let any = match digits {
        0 => String::new(),
        n => format!(r"(\.[0-9]{{1,{n}}})?"),
    };
    let mut all: Vec<String> = wholes(&whole, side).into_iter().map(|other| format!("{other}{any}")).collect();
    all.extend(fractions(&fraction, side, bound.inclusive, digits).map(|rest| format!("{whole}{rest}")));
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
    use super::*;
    use crate::enforce::Bench;
    use crate::{Response, Rules};

    #[test]
    fn bounds_that_no_number_reaches_are_none() {
        let bound = |value| Some(Bound { value, inclusive: true });
        assert_eq!(between(bound(f64::MIN), bound(f64::MAX), false), between(None, None, false));
        assert_eq!(between(bound(0.0), bound(f64::MAX), false), between(bound(0.0), None, false));
        assert_eq!(between(bound(1e300), None, false), None);
        assert_eq!((between(bound(4.2), bound(4.8), true), between(None, bound(1e17), true)), (None, None));
    }

    /// Numbers around the bounds, spelled in several lengths, against floating point.
    #[test]
    fn what_is_between_is_what_compares_so() {
        let bounds = [-12.5, -5.0, -0.05, 0.0, 0.1, 0.75, 1.0, 5.0, 9.995, 10.0, 99.5, 100.0, 1234.25];
        let mut texts = Vec::new();
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
        texts.retain(|t| t.split_once('.').is_none_or(|(_, f)| f.len() <= 8));
        let bench = Bench::new(crate::PLAIN, false);
        for (i, low) in bounds.iter().enumerate() {
            for high in &bounds[i..] {
                let inclusive = i % 2 == 0;
                let (low, high) = (Bound { value: *low, inclusive }, Bound { value: *high, inclusive: !inclusive });
                for whole in [false, true] {
                    let Some(expression) = between(Some(low), Some(high), whole) else { continue };
                    let response = Some(Response::Lark(format!("start: NUMBER\nNUMBER: {expression}")));
                    let rules = Rules { response, ..Rules::default() };
                    for text in texts.iter().step_by(5) {
                        let value: f64 = text.parse().unwrap_or(f64::NAN);
                        let above = value > low.value || (inclusive && value == low.value);
                        let below = value < high.value || (!inclusive && value == high.value);
                        // Zero with a sign is not offered everywhere.
                        if value == 0.0 && text.starts_with('-') {
                            continue;
                        }
                        let written = !whole || !text.contains('.');
                        assert_eq!(
                            bench.takes(&rules, text),
                            above && below && written,
                            "{low:?} {high:?} {text} {expression}"
                        );
                    }
                }
            }
        }
    }
}
