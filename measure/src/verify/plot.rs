//! Computes the layout of the plot of times, which report.html draws. It does not know what is measured.

use serde::Serialize;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = WIDTH - 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = HEIGHT - 42.0;
/// Approximate maximum number of points per line; more would not be visible.
const POINTS: usize = 400;

#[derive(Serialize)]
pub struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    height: f64,
    shares: Vec<Tick>,
    times: Vec<Tick>,
    lines: Vec<Line>,
}

#[derive(Serialize)]
struct Tick {
    at: f64,
    text: String,
}

#[derive(Serialize)]
struct Line {
    name: &'static str,
    class: &'static str,
    points: Vec<(f64, f64)>,
}

/// Plots cumulative distributions over a logarithmic axis in milliseconds. Each line has a name, a CSS class and
/// values. None without values.
pub fn distributions(lines: [(&'static str, &'static str, Vec<f64>); 3]) -> Option<Plot> {
    let values = || lines.iter().flat_map(|(.., values)| values.iter().copied()).filter(|v| *v > 0.0);
    let (low, high) = values().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return None;
    }
    // Margins, so that a single value is not at the edge.
    let (low, high) = ((low * 0.8).log10(), (high * 1.25).log10());
    let x = |v: f64| LEFT + (v.max(1e-9).log10() - low) / (high - low) * (RIGHT - LEFT);
    let y = |share: f64| TOP + (1.0 - share) * (BOTTOM - TOP);
    let share = |share: f64| Tick { at: y(share), text: format!("{:.0} %", share * 100.0) };
    let time = |value: f64| {
        let text = if value >= 1e3 { format!("{} s", value / 1e3) } else { format!("{value} ms") };
        Tick { at: x(value), text }
    };
    let line = |(name, class, mut values): (&'static str, &'static str, Vec<f64>)| {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let step = (n / POINTS).max(1);
        let shown = values.iter().enumerate().filter(|(i, _)| i % step == 0 || i + 1 == n);
        let points = shown.map(|(i, value)| (x(*value), y((i + 1) as f64 / n as f64)));
        let first = values.first().map(|first| (x(*first), y(0.0)));
        Line { name, class, points: first.into_iter().chain(points).collect() }
    };
    Some(Plot {
        left: LEFT,
        right: RIGHT,
        top: TOP,
        bottom: BOTTOM,
        height: HEIGHT,
        shares: [0.0, 0.5, 0.9, 1.0].map(share).into(),
        times: ticks(low, high).into_iter().map(time).collect(),
        lines: lines.into_iter().filter(|(.., values)| !values.is_empty()).map(line).collect(),
    })
}

/// Ticks at 1, 2 and 5 times powers of ten; at powers of ten alone for a wide range.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = (low.floor() as i32)..=(high.ceil() as i32);
    let steps: &[f64] = if high - low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = powers.flat_map(|p| steps.iter().map(move |s| s * 10f64.powi(p)));
    let inside = all.filter(|v| (low..=high).contains(&v.log10()));
    // Rounds away the binary error of powers of ten, so that labels are exact.
    inside.map(|v| format!("{v:.6}").parse().unwrap_or(v)).collect()
}
