//! An incremental JSON recognizer: byte by byte, without a tree and without look-back.

/// Nesting limit, the same as serde_json's.
const MAX_DEPTH: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fed {
    More,
    /// The outermost value ended with this byte.
    Done,
    /// No JSON text continues with this byte.
    Bad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Value,
    FirstItem,
    FirstKey,
    Key,
    Colon,
    AfterValue,
    String { key: bool },
    Escape { key: bool },
    Unicode { key: bool, left: u8 },
    Number(Number),
    Word(&'static [u8]),
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Int,
    Dot,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentInt,
}

/// Reads one JSON value. A number as the outermost value has no end, so it is never done.
#[derive(Debug)]
pub(crate) struct Json {
    /// Open containers; true for an object.
    stack: Vec<bool>,
    at: At,
    /// The last byte ended a number without being part of it.
    pub number_ended: bool,
}

impl Json {
    pub fn new() -> Self {
        Self { stack: Vec::new(), at: At::Value, number_ended: false }
    }

    pub fn depth(&self) -> usize {
        self.stack.len()
    }

    /// Whether it is inside a string, where every character belongs to the string.
    pub fn in_string(&self) -> bool {
        matches!(self.at, At::String { .. } | At::Escape { .. } | At::Unicode { .. })
    }

    /// Whether it is inside the string of a member's key.
    pub fn in_key(&self) -> bool {
        matches!(self.at, At::String { key: true } | At::Escape { key: true } | At::Unicode { key: true, .. })
    }

    /// Whether the next non-blank character starts a value.
    pub fn wants_value(&self) -> bool {
        matches!(self.at, At::Value | At::FirstItem)
    }

    /// Whether a value has just ended inside an open container.
    pub fn after_value(&self) -> bool {
        self.at == At::AfterValue
    }

    pub fn feed(&mut self, b: u8) -> Fed {
        self.number_ended = false;
        if let At::Number(n) = self.at {
            if let Some(next) = n.next(b) {
                self.at = At::Number(next);
                return Fed::More;
            }
            if !n.may_end() {
                return Fed::Bad;
            }
            self.number_ended = true;
            self.at = At::AfterValue;
        }
        match self.at {
            At::String { key } => match b {
                b'"' if key => self.at = At::Colon,
                b'"' => return self.close_value(),
                b'\\' => self.at = At::Escape { key },
                _ => {}
            },
            At::Escape { key } => match b {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at = At::String { key },
                b'u' => self.at = At::Unicode { key, left: 4 },
                _ => return Fed::Bad,
            },
            At::Unicode { key, left } if b.is_ascii_hexdigit() => {
                self.at = if left == 1 { At::String { key } } else { At::Unicode { key, left: left - 1 } };
            }
            At::Word(rest) if rest.first() == Some(&b) => match &rest[1..] {
                [] => return self.close_value(),
                rest => self.at = At::Word(rest),
            },
            At::Unicode { .. } | At::Word(_) | At::Number(_) | At::Done => return Fed::Bad,
            _ if matches!(b, b' ' | b'\t' | b'\n' | b'\r') => {}
            At::FirstItem if b == b']' => return self.close_container(),
            At::FirstKey if b == b'}' => return self.close_container(),
            At::Value | At::FirstItem => return self.open_value(b),
            At::FirstKey | At::Key => match b {
                b'"' => self.at = At::String { key: true },
                _ => return Fed::Bad,
            },
            At::Colon => match b {
                b':' => self.at = At::Value,
                _ => return Fed::Bad,
            },
            At::AfterValue => match (b, self.stack.last()) {
                (b',', Some(true)) => self.at = At::Key,
                (b',', Some(false)) => self.at = At::Value,
                (b'}', Some(true)) | (b']', Some(false)) => return self.close_container(),
                _ => return Fed::Bad,
            },
        }
        Fed::More
    }

    fn open_value(&mut self, b: u8) -> Fed {
        self.at = match b {
            b'{' | b'[' if self.stack.len() == MAX_DEPTH => return Fed::Bad,
            b'{' => {
                self.stack.push(true);
                At::FirstKey
            }
            b'[' => {
                self.stack.push(false);
                At::FirstItem
            }
            b'"' => At::String { key: false },
            b'-' => At::Number(Number::Minus),
            b'0' => At::Number(Number::Zero),
            b'1'..=b'9' => At::Number(Number::Int),
            b't' => At::Word(b"rue"),
            b'f' => At::Word(b"alse"),
            b'n' => At::Word(b"ull"),
            _ => return Fed::Bad,
        };
        Fed::More
    }

    fn close_container(&mut self) -> Fed {
        self.stack.pop();
        self.close_value()
    }

    fn close_value(&mut self) -> Fed {
        if self.stack.is_empty() {
            self.at = At::Done;
            return Fed::Done;
        }
        self.at = At::AfterValue;
        Fed::More
    }
}

impl Number {
    fn next(self, b: u8) -> Option<Number> {
        use Number::*;
        Some(match (self, b) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Int, b'0'..=b'9') => Int,
            (Zero | Int, b'.') => Dot,
            (Dot | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Int | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => ExponentSign,
            (Exponent | ExponentSign | ExponentInt, b'0'..=b'9') => ExponentInt,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Number::Zero | Number::Int | Number::Fraction | Number::ExponentInt)
    }
}

/// Appends one byte of JSON text. A control character inside a string, which JSON forbids but models write, is escaped.
pub(crate) fn push_escaped(out: &mut Vec<u8>, b: u8, in_string: bool) {
    match b {
        b'\n' if in_string => out.extend_from_slice(b"\\n"),
        b'\t' if in_string => out.extend_from_slice(b"\\t"),
        b'\r' if in_string => out.extend_from_slice(b"\\r"),
        0..0x20 if in_string => out.extend_from_slice(format!("\\u{b:04x}").as_bytes()),
        _ => out.push(b),
    }
}

/// The text as a JSON object, trimmed and with control characters in its strings escaped. None: it is not an object.
pub(crate) fn object(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    if text.first() != Some(&b'{') {
        return None;
    }
    let mut json = Json::new();
    let mut out = Vec::with_capacity(text.len());
    for (i, &b) in text.iter().enumerate() {
        let in_string = json.in_string();
        match json.feed(b) {
            Fed::More => push_escaped(&mut out, b, in_string),
            Fed::Done if i + 1 == text.len() => {
                out.push(b);
                return Some(out);
            }
            Fed::Done | Fed::Bad => return None,
        }
    }
    None
}

/// Decodes the text as a JSON string.
pub(crate) fn string(text: &[u8]) -> Option<String> {
    let mut clean = Vec::with_capacity(text.len());
    for &b in text.trim_ascii() {
        push_escaped(&mut clean, b, true);
    }
    serde_json::from_slice(&clean).ok()
}
