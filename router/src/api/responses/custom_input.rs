//! Reads the text of a custom tool's call out of its function's arguments, `{"input": "..."}`, as they are generated.

use serde_json::Value;

use super::tools::INPUT;

/// What comes before the text, apart from blanks between the tokens.
const OPENING: [&str; 4] = ["{", "\"input\"", ":", "\""];

#[derive(Debug, Default)]
pub struct CustomInput {
    /// The arguments, without those whose text was returned.
    arguments: String,
    /// How many bytes of `arguments` are decoded.
    read: usize,
    state: State,
    /// The first half of a surrogate pair.
    high: Option<u32>,
    /// The text that the last call returned.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// In the opening; how many of its tokens have been read.
    Opening(usize),
    Text,
    /// After the text.
    Closed,
    /// The arguments have another form.
    Other,
}

impl Default for State {
    fn default() -> Self {
        State::Opening(0)
    }
}

impl CustomInput {
    /// Adds arguments. Returns the text that they complete.
    pub fn push(&mut self, arguments: &str) -> &str {
        self.arguments.push_str(arguments);
        self.text.clear();
        while self.step() {}
        // In another form, the arguments are the text.
        if matches!(self.state, State::Text | State::Closed) {
            self.arguments.drain(..self.read);
            self.read = 0;
        }
        &self.text
    }

    /// Ends the arguments. Returns the rest of the text.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.flush_high();
        // Arguments in another form: an object with further members, or what a model without enforcement wrote.
        if self.state == State::Other {
            let parsed: Option<Value> = serde_json::from_str(&self.arguments).ok();
            let input = parsed.as_ref().and_then(|value| value.get(INPUT)?.as_str());
            self.text.push_str(input.unwrap_or(&self.arguments));
        }
        &self.text
    }

    /// Decodes one token or character. False: more arguments are needed, or nothing more is decoded.
    fn step(&mut self) -> bool {
        let token = match self.state {
            State::Opening(token) => token,
            State::Text => return self.step_text(),
            State::Closed | State::Other => return false,
        };
        let rest = &self.arguments[self.read..];
        let trimmed = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        let expected = OPENING[token];
        if trimmed.starts_with(expected) {
            self.read += rest.len() - trimmed.len() + expected.len();
            self.state = if token + 1 == OPENING.len() { State::Text } else { State::Opening(token + 1) };
            return true;
        }
        if !expected.starts_with(trimmed) {
            self.state = State::Other;
        }
        false
    }

    fn step_text(&mut self) -> bool {
        let rest = &self.arguments[self.read..];
        let plain = rest.find(['"', '\\']).unwrap_or(rest.len());
        if plain > 0 {
            self.flush_high();
            self.text.push_str(&self.arguments[self.read..self.read + plain]);
            self.read += plain;
            return true;
        }
        let mut chars = rest.chars();
        match chars.next() {
            Some('"') => {
                self.flush_high();
                self.read += 1;
                self.state = State::Closed;
                false
            }
            Some('\\') => match chars.next() {
                None => false,
                Some('u') => self.step_unicode(),
                Some(escape) => {
                    self.flush_high();
                    self.text.push(match escape {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        other => other,
                    });
                    self.read += 1 + escape.len_utf8();
                    true
                }
            },
            _ => false,
        }
    }

    /// `\uXXXX`; two of them can be one character.
    fn step_unicode(&mut self) -> bool {
        let digits = &self.arguments[self.read + 2..];
        let Some(unit) = digits.get(..4) else { return false };
        let Ok(unit) = u32::from_str_radix(unit, 16) else {
            // Not JSON: what was written is kept.
            self.flush_high();
            self.text.push_str("\\u");
            self.read += 2;
            return true;
        };
        self.read += 6;
        match (self.high.take(), unit) {
            (Some(high), 0xDC00..=0xDFFF) => {
                let point = 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00);
                self.text.push(char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (high, unit) => {
                self.high = high;
                self.flush_high();
                match unit {
                    0xD800..=0xDBFF => self.high = Some(unit),
                    unit => self.text.push(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)),
                }
            }
        }
        true
    }

    /// A first half without a second one is no character.
    fn flush_high(&mut self) {
        if self.high.take().is_some() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// The arguments of a call in the history, as models write them.
pub fn arguments(input: &str) -> String {
    format!("{{\"{INPUT}\": {}}}", Value::from(input))
}
