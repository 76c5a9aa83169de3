//! Plots as inline SVG. Colours are classes of the page's style sheet, so that they follow light and dark.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const LABEL: f64 = 190.0;
/// Room for the figure behind a bar.
const FIGURE: f64 = 110.0;
const ROW: f64 = 24.0;

/// Text for HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // What XML does not allow, and what would turn the line around.
            c if (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c) => {
                out.push('\u{fffd}');
            }
            c => out.push(c),
        }
    }
    out
}

fn svg(height: f64, title: &str, inner: &str) -> String {
    let title = escape(title);
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">{inner}</svg>")
}

fn label(out: &mut String, y: f64, text: &str) {
    let _ = write!(out, "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>", LABEL - 8.0, escape(text));
}

pub struct Bar {
    pub name: String,
    /// Of the whole width.
    pub share: f64,
    pub figure: String,
    pub class: &'static str,
}

/// One bar per row.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    let mut out = String::new();
    let full = WIDTH - LABEL - FIGURE;
    for (row, bar) in bars.iter().enumerate() {
        let y = row as f64 * ROW;
        let width = (bar.share.clamp(0.0, 1.0) * full).max(if bar.share > 0.0 { 2.0 } else { 0.0 });
        let middle = y + ROW * 0.68;
        label(&mut out, middle, &bar.name);
        let _ = write!(
            out,
            "<rect class=\"track\" x=\"{LABEL}\" y=\"{:.1}\" width=\"{full:.1}\" height=\"14\" rx=\"2\"/>\
             <rect class=\"{}\" x=\"{LABEL}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\" rx=\"2\"/>\
             <text x=\"{:.1}\" y=\"{middle:.1}\">{}</text>",
            y + 5.0,
            bar.class,
            y + 5.0,
            LABEL + full + 8.0,
            escape(&bar.figure)
        );
    }
    svg(bars.len() as f64 * ROW, title, &out)
}

pub struct Part {
    pub name: &'static str,
    pub class: &'static str,
}

/// One bar per row, cut into parts; each row fills the width.
pub fn stacks(title: &str, parts: &[Part], rows: &[(String, Vec<usize>)]) -> String {
    let mut out = String::new();
    let full = WIDTH - LABEL - 8.0;
    for (row, (name, counts)) in rows.iter().enumerate() {
        let y = row as f64 * 34.0;
        label(&mut out, y + 20.0, name);
        let sum = counts.iter().sum::<usize>().max(1) as f64;
        let mut x = LABEL;
        for (part, count) in parts.iter().zip(counts).filter(|(_, c)| **c > 0) {
            let width = *count as f64 / sum * full;
            let _ = write!(
                out,
                "<g><title>{}: {count}</title><rect class=\"{}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"22\"/>",
                part.name,
                part.class,
                y + 4.0,
                (width - 1.5).max(1.0)
            );
            if width > 34.0 {
                let middle = x + width / 2.0;
                let _ = write!(out, "<text class=\"on\" x=\"{middle:.1}\" y=\"{:.1}\">{count}</text>", y + 20.0);
            }
            out.push_str("</g>");
            x += width;
        }
    }
    let mut legend = String::from("<p class=\"legend\">");
    for part in parts {
        let _ = write!(
            legend,
            "<span><svg viewBox=\"0 0 10 10\"><rect class=\"{}\" width=\"10\" height=\"10\"/></svg>{}</span> ",
            part.class, part.name
        );
    }
    svg(rows.len() as f64 * 34.0, title, &out) + &legend + "</p>"
}

pub struct PlotLine {
    pub name: &'static str,
    pub class: &'static str,
    pub values: Vec<f64>,
}

/// The share of values up to x, one line each, over a logarithmic x in milliseconds.
pub fn distributions(title: &str, lines: &[PlotLine]) -> String {
    let (left, right, top, bottom, height) = (46.0, 16.0, 10.0, 42.0, 240.0);
    let values = || lines.iter().flat_map(|l| l.values.iter().copied()).filter(|v| *v > 0.0);
    let (low, high) = values().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return String::new();
    }
    // A little room, so that equal values are not at the edge.
    let (low, high) = ((low * 0.8).log10(), (high * 1.25).log10());
    let x = |v: f64| left + (v.max(1e-9).log10() - low) / (high - low) * (WIDTH - left - right);
    let y = |share: f64| top + (1.0 - share) * (height - top - bottom);
    let mut out = String::new();
    for share in [0.0, 0.5, 0.9, 1.0] {
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} %</text>",
            WIDTH - right,
            y(share),
            y(share),
            left - 6.0,
            y(share) + 4.0,
            share * 100.0
        );
    }
    for value in ticks(low, high) {
        let text = if value >= 1e3 { format!("{} s", value / 1e3) } else { format!("{value} ms") };
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{top}\" y2=\"{}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            x(value),
            x(value),
            height - bottom,
            x(value),
            height - bottom + 16.0
        );
    }
    let mut legend = String::from("<p class=\"legend\">");
    for line in lines.iter().filter(|l| !l.values.is_empty()) {
        let mut values = line.values.clone();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let mut points = format!("{:.1},{:.1}", x(values[0]), y(0.0));
        // More points than pixels tell nothing.
        let step = (n / 400).max(1);
        for (i, value) in values.iter().enumerate().filter(|(i, _)| i % step == 0 || i + 1 == n) {
            let _ = write!(points, " {:.1},{:.1}", x(*value), y((i + 1) as f64 / n as f64));
        }
        let _ = write!(
            out,
            "<polyline class=\"{}\" points=\"{points}\"><title>{}</title></polyline>",
            line.class, line.name
        );
        let _ = write!(
            legend,
            "<span><svg viewBox=\"0 0 10 10\"><line class=\"{}\" x1=\"0\" y1=\"5\" x2=\"10\" y2=\"5\"/></svg>{}</span> ",
            line.class, line.name
        );
    }
    svg(height, title, &out) + &legend + "</p>"
}

/// 1, 2, 5 times powers of ten; powers alone where there are many.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = (low.floor() as i32)..=(high.ceil() as i32);
    let steps: &[f64] = if high - low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = powers.flat_map(|p| steps.iter().map(move |s| s * 10f64.powi(p)));
    let inside = all.filter(|v| (low..=high).contains(&v.log10()));
    // Powers of ten are not exact in binary; what is printed should be.
    inside.map(|v| format!("{v:.6}").parse().unwrap_or(v)).collect()
}
