//! Renders report.html, the template of the HTML pages of `rein verify`. It does not know what the pages contain.

use minijinja::value::Serde;
use std::fmt::Write;

use minijinja::{AutoEscape, Environment, Error, Output, State, UndefinedBehavior, Value, escape_formatter};
use serde::Serialize;

const TEMPLATE: &str = include_str!("report.html");

/// `variables`: the variables of the template.
pub fn render(variables: &impl Serialize) -> Result<String, Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(format);
    environment.add_filter("percent", |value: Option<f64>| percent(value));
    environment.add_filter("ms", |value: f64| format!("{value:.0} ms"));
    // For coordinates in a plot.
    environment.add_filter("px", |value: f64| format!("{value:.1}"));
    environment.render_str(TEMPLATE, Value::from(Serde(variables)))
}

pub fn percent(value: Option<f64>) -> String {
    value.map_or("–".into(), |v| format!("{:.2} %", v * 100.0))
}

/// Escapes text, except for slashes. Replaces control characters that XML does not allow or that change the direction
/// of the text.
fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let Some(text) = value.as_str().filter(|_| !value.is_safe()) else { return escape_formatter(out, state, value) };
    for c in text.chars() {
        match c {
            '&' => out.write_str("&amp;")?,
            '<' => out.write_str("&lt;")?,
            '>' => out.write_str("&gt;")?,
            '"' => out.write_str("&quot;")?,
            '\'' => out.write_str("&#x27;")?,
            '\n' | '\t' => out.write_char(c)?,
            '\u{202a}'..='\u{202e}' => out.write_char('\u{fffd}')?,
            c if c.is_control() => out.write_char('\u{fffd}')?,
            c => out.write_char(c)?,
        }
    }
    Ok(())
}
