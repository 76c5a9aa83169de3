//! Implements Python's `format % arguments`.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::filters::invalid;
use super::methods::{Align, pad};
use super::python;

/// Largest width and precision of a field.
const MAX_WIDTH: usize = 1 << 12;

#[derive(Default)]
struct FieldSpec {
    left: bool,
    plus: bool,
    blank: bool,
    zero: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// `format % arguments`: a tuple has one argument per field, a mapping has those of `%(name)s`, and any other value is
/// the only argument.
pub(super) fn format(template: &Value, arguments: &Value) -> Result<Value, Error> {
    let Some(text) = template.as_str() else {
        return Err(invalid(format!("unsupported operand for %: {}", template.kind())));
    };
    let list: Vec<Value> = match arguments.is_tuple() {
        true => arguments.try_iter()?.collect(),
        false => vec![arguments.clone()],
    };
    let mut next = list.iter();
    let mut named = false;
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut key = None;
        if chars.next_if_eq(&'(').is_some() {
            key = Some(chars.by_ref().take_while(|c| *c != ')').collect::<String>());
        }
        let mut spec = FieldSpec::default();
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => spec.left = true,
                '+' => spec.plus = true,
                ' ' => spec.blank = true,
                '0' => spec.zero = true,
                _ => spec.alternate = true,
            }
        }
        let number = |chars: &mut std::iter::Peekable<std::str::Chars>| {
            let mut n = 0_usize;
            while let Some(digit) = chars.next_if(char::is_ascii_digit).and_then(|c| c.to_digit(10)) {
                n = (n * 10 + digit as usize).min(MAX_WIDTH);
            }
            n
        };
        spec.width = number(&mut chars);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(&mut chars));
        }
        while chars.next_if(|c| matches!(c, 'h' | 'l' | 'L')).is_some() {}
        let kind = chars.next().ok_or_else(|| invalid("incomplete format"))?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match key {
            Some(key) => {
                named = true;
                let value = arguments.get_attr(&key).ok().filter(|value| !value.is_undefined());
                value.ok_or_else(|| invalid(format!("format: no argument {key:?}")))?
            }
            None => next.next().cloned().ok_or_else(|| invalid("not enough arguments for format string"))?,
        };
        out.push_str(&spec.field(kind, &value)?);
    }
    if !named && next.next().is_some() && arguments.kind() != ValueKind::Map {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    Ok(Value::from(out))
}

impl FieldSpec {
    fn field(&self, kind: char, value: &Value) -> Result<String, Error> {
        match kind {
            's' => Ok(self.text(&python::str_of(value))),
            'r' | 'a' => {
                let mut repr = String::new();
                python::write_repr(&mut repr, value);
                Ok(self.text(&repr))
            }
            'c' => match value.as_str() {
                Some(text) if text.chars().count() == 1 => Ok(self.text(text)),
                _ => Err(invalid("%c requires a character")),
            },
            'd' | 'i' | 'u' => self.integer(value, |n| n.to_string(), ""),
            'x' => self.integer(value, |n| format!("{n:x}"), "0x"),
            'X' => self.integer(value, |n| format!("{n:X}"), "0X"),
            'o' => self.integer(value, |n| format!("{n:o}"), "0o"),
            'f' | 'F' => {
                let x = number(value)?;
                let mut digits = String::new();
                let _ = write!(digits, "{:.*}", self.precision.unwrap_or(6), x.abs());
                Ok(self.signed(x.is_sign_negative(), "", &digits))
            }
            'e' | 'E' => {
                let x = number(value)?;
                let text = format!("{:.*e}", self.precision.unwrap_or(6), x.abs());
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or(0);
                let sign = if exponent < 0 { '-' } else { '+' };
                let digits = format!("{mantissa}{kind}{sign}{:02}", exponent.abs());
                Ok(self.signed(x.is_sign_negative(), "", &digits))
            }
            other => Err(invalid(format!("unsupported format character '{other}'"))),
        }
    }

    fn text(&self, text: &str) -> String {
        let text: String = text.chars().take(self.precision.unwrap_or(usize::MAX)).collect();
        pad(&text, self.width, ' ', if self.left { Align::Left } else { Align::Right })
    }

    fn integer(&self, value: &Value, digits: impl Fn(u128) -> String, prefix: &str) -> Result<String, Error> {
        let n = match value.kind() {
            ValueKind::Bool => i128::from(value.is_true()),
            _ => match python::as_float(value) {
                Some(x) => x as i128,
                None => i128::try_from(value.clone())
                    .map_err(|_| invalid(format!("%d format: a real number is required, not {}", value.kind())))?,
            },
        };
        let mut text = digits(n.unsigned_abs());
        if let Some(precision) = self.precision {
            text = pad(&text, precision, '0', Align::Right);
        }
        Ok(self.signed(n < 0, if self.alternate { prefix } else { "" }, &text))
    }

    fn signed(&self, negative: bool, prefix: &str, digits: &str) -> String {
        let sign = match (negative, self.plus, self.blank) {
            (true, _, _) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        };
        let head = format!("{sign}{prefix}");
        if self.zero && !self.left {
            let width = self.width.saturating_sub(head.len());
            return format!("{head}{}", pad(digits, width, '0', Align::Right));
        }
        let text = format!("{head}{digits}");
        pad(&text, self.width, ' ', if self.left { Align::Left } else { Align::Right })
    }
}

fn number(value: &Value) -> Result<f64, Error> {
    python::as_float(value)
        .or_else(|| f64::try_from(value.clone()).ok())
        .or_else(|| python::number(value).and_then(|n| n.text.parse().ok()))
        .ok_or_else(|| invalid(format!("must be real number, not {}", value.kind())))
}
