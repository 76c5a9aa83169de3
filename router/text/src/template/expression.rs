//! Rewrites the expressions inside a tag so that minijinja evaluates them as Jinja2 does. Everything else is copied,
//! and the engine's parser still checks the syntax.
//!
//! - Escapes in string literals are resolved as in Python.
//! - `a % b` (which may format a string), `'ab' * n` (which may be empty) and `x[a:b:c]` become function calls. In
//!   templates that mark text as safe, so does `a + b`, because Jinja2 escapes the other operand.
//! - `x.items` without a call is the method of the dict, even if the dict has that key. `x['items']` is the method only
//!   if the dict does not have the key.
//! - Unary plus is removed, and a printed tuple gets parentheses.

use super::views::METHODS;

/// Names of the functions that replace operators.
pub(super) const MODULO: &str = "__modulo";
pub(super) const REPEAT: &str = "__repeat";
pub(super) const ADD: &str = "__add";
pub(super) const SLICE: &str = "__slice";
pub(super) const ATTRIBUTE: &str = "__attribute";
pub(super) const ITEM: &str = "__item";

/// Nesting of brackets up to which expressions are rewritten; the engine rejects deeper ones.
const MAX_DEPTH: usize = 100;

/// Properties of the whole template that affect its expressions.
#[derive(Debug, Default)]
pub(super) struct FilterContext {
    /// The template marks text as safe or escapes it.
    pub markup: bool,
}

impl FilterContext {
    pub fn of(source: &str) -> Self {
        let filter = |rest: &str| {
            let rest = rest.trim_start();
            let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
            matches!(word, "safe" | "e" | "escape" | "forceescape")
        };
        FilterContext { markup: source.split('|').skip(1).any(filter) }
    }
}

/// Rewrites the code of a tag, without the signs for whitespace control. `printed`: it is the content of a `{{ }}`.
pub(super) fn rewrite(code: &str, context: &FilterContext, printed: bool) -> String {
    let mut rewriter = Rewriter { code, at: 0, out: String::with_capacity(code.len() + 32), context, depth: 0 };
    let separators = rewriter.until_closing_bracket();
    let Rewriter { at, mut out, .. } = rewriter;
    out.push_str(&code[at..]);
    match printed && separators.comma {
        true => format!(" ({}) ", out.trim()),
        false => out,
    }
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Length of the string literal that the code starts with.
pub(super) fn string_len(code: &str) -> usize {
    let quote = code.chars().next();
    let mut escaped = false;
    for (at, c) in code.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if Some(c) == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    code.len()
}

struct Rewriter<'a> {
    code: &'a str,
    at: usize,
    out: String,
    context: &'a FilterContext,
    depth: usize,
}

/// The separators between two brackets.
#[derive(Default)]
struct Separators {
    comma: bool,
    /// Offsets in the output.
    colons: Vec<usize>,
}

impl Rewriter<'_> {
    fn rest(&self) -> &str {
        &self.code[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn push(&mut self, len: usize) {
        self.out.push_str(&self.code[self.at..self.at + len]);
        self.at += len;
    }

    fn whitespace(&mut self) {
        let len = self.rest().len() - self.rest().trim_start().len();
        self.push(len);
    }

    fn word(&self) -> &str {
        let rest = self.rest();
        &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())]
    }

    /// Copies and rewrites everything up to a closing bracket: operands, operators, words, commas, colons.
    fn until_closing_bracket(&mut self) -> Separators {
        let mut separators = Separators::default();
        loop {
            self.whitespace();
            let Some(c) = self.peek() else { return separators };
            if matches!(c, ')' | ']' | '}') {
                return separators;
            }
            if self.at_operand() {
                self.sum();
                continue;
            }
            match c {
                ',' => separators.comma = true,
                ':' => separators.colons.push(self.out.len()),
                _ => {}
            }
            let len = if is_word(c) { self.word().len() } else { c.len_utf8() };
            self.push(len);
        }
    }

    fn at_operand(&self) -> bool {
        match self.peek() {
            Some('"' | '\'' | '(' | '[' | '{' | '-' | '+') => true,
            Some(c) if is_word(c) => {
                !matches!(self.word(), "and" | "or" | "not" | "in" | "is" | "if" | "else" | "elif" | "recursive")
            }
            _ => false,
        }
    }

    /// Copies an operator if an operand follows it. `unlike`: a longer operator with the same beginning.
    fn operator(&mut self, operator: &str, unlike: &str) -> bool {
        let (at, len) = (self.at, self.out.len());
        self.whitespace();
        if self.rest().starts_with(operator) && (unlike.is_empty() || !self.rest().starts_with(unlike)) {
            self.push(operator.len());
            self.whitespace();
            if self.at_operand() {
                return true;
            }
        }
        self.at = at;
        self.out.truncate(len);
        false
    }

    /// Turns `left operator right` at the end of the output into `function(left, right)`.
    fn call(&mut self, function: &str, start: usize, left_end: usize, right_start: usize) {
        let right = self.out.split_off(right_start);
        let between = self.out.split_off(left_end);
        let lines = between.matches('\n').count();
        let left = self.out.split_off(start);
        self.out.push_str(&format!("{function}({left}, {}{right})", "\n".repeat(lines)));
    }

    fn sum(&mut self) {
        let start = self.out.len();
        self.concatenation();
        loop {
            let end = self.out.len();
            let plus = self.operator("+", "");
            if !plus && !self.operator("-", "") {
                return;
            }
            let right = self.out.len();
            self.concatenation();
            if plus && self.context.markup {
                self.call(ADD, start, end, right);
            }
        }
    }

    fn concatenation(&mut self) {
        self.product();
        while self.operator("~", "") {
            self.product();
        }
    }

    fn product(&mut self) {
        let start = self.out.len();
        self.power();
        loop {
            let end = self.out.len();
            let times = self.operator("*", "**");
            let modulo = !times && self.operator("%", "");
            if !times && !modulo && !self.operator("//", "") && !self.operator("/", "//") {
                return;
            }
            let right = self.out.len();
            self.power();
            let first = |at: usize| self.out[at..].chars().next().unwrap_or_default();
            let (left, right_first) = (first(start), first(right));
            let literal = |c: char| matches!(c, '"' | '\'' | '[');
            if times && (literal(left) || literal(right_first)) {
                self.call(REPEAT, start, end, right);
            } else if modulo && !left.is_ascii_digit() && (literal(left) || !right_first.is_ascii_digit()) {
                self.call(MODULO, start, end, right);
            }
        }
    }

    fn power(&mut self) {
        self.signed();
        while self.operator("**", "") {
            self.signed();
        }
    }

    fn signed(&mut self) {
        while let Some(sign @ ('-' | '+')) = self.peek() {
            self.push(1);
            self.whitespace();
            if sign == '+' && self.at_operand() {
                let len = self.out.trim_end().len();
                self.out.remove(len - 1);
            }
        }
        let start = self.out.len();
        match self.peek() {
            Some('"' | '\'') => self.strings(),
            Some('(' | '[' | '{') => {
                self.bracket();
            }
            Some(c) if c.is_ascii_digit() => self.number(),
            Some(c) if is_word(c) => self.push(self.word().len()),
            _ => return,
        }
        self.postfixes(start);
        self.filters();
    }

    fn number(&mut self) {
        self.push(self.word().len());
        if self.rest().starts_with('.') && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) {
            self.push(1);
            self.push(self.word().len());
        }
        if self.out.ends_with(['e', 'E'])
            && self.rest().starts_with(['-', '+'])
            && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit())
        {
            self.push(1);
            self.push(self.word().len());
        }
    }

    fn strings(&mut self) {
        loop {
            let literal = &self.code[self.at..self.at + string_len(self.rest())];
            self.at += literal.len();
            write_literal(&mut self.out, literal);
            let blanks = self.rest().len() - self.rest().trim_start().len();
            if !self.rest()[blanks..].starts_with(['"', '\'']) {
                return;
            }
            self.push(blanks);
        }
    }

    /// Copies a bracket with its content; `None` if it is not closed.
    fn bracket(&mut self) -> Option<Separators> {
        if self.depth == MAX_DEPTH {
            self.push(self.rest().len());
            return None;
        }
        self.push(1);
        self.depth += 1;
        let separators = self.until_closing_bracket();
        self.depth -= 1;
        self.peek()?;
        self.push(1);
        Some(separators)
    }

    fn postfixes(&mut self, start: usize) {
        loop {
            let blanks = self.rest().len() - self.rest().trim_start().len();
            let next = self.rest()[blanks..].chars().next();
            match next {
                Some('.') => {
                    self.push(blanks);
                    self.attribute(start);
                }
                Some('(') => {
                    self.push(blanks);
                    if self.bracket().is_none() {
                        return;
                    }
                }
                Some('[') => {
                    self.push(blanks);
                    let open = self.out.len();
                    let Some(separators) = self.bracket() else { return };
                    match separators.colons[..] {
                        [first] => self.slice(start, open, first, None),
                        [first, second] => self.slice(start, open, first, Some(second)),
                        _ => self.item(start, open),
                    }
                }
                _ => return,
            }
        }
    }

    fn attribute(&mut self, start: usize) {
        let end = self.out.len();
        self.push(1);
        self.whitespace();
        let name = self.word().to_owned();
        let called = self.rest()[name.len()..].trim_start().starts_with('(');
        if called || !METHODS.contains(&name.as_str()) {
            self.push(name.len());
            return;
        }
        self.at += name.len();
        let value = self.out[start..end].to_owned();
        self.out.truncate(start);
        self.out.push_str(&format!("{ATTRIBUTE}({value}, '{name}')"));
    }

    /// Rewrites `x['items']` for names of dict methods.
    fn item(&mut self, start: usize, open: usize) {
        let key = self.out[open + 1..self.out.len() - 1].trim();
        let name = key.strip_prefix(['"', '\'']).and_then(|key| key.strip_suffix(['"', '\'']));
        if let Some(name) = name.filter(|name| METHODS.contains(name)) {
            let call = format!("{ITEM}({}, '{name}')", &self.out[start..open]);
            self.out.truncate(start);
            self.out.push_str(&call);
        }
    }

    /// Rewrites `x[a:b:c]`: the engine has no negative steps, and takes a part of nothing.
    fn slice(&mut self, start: usize, open: usize, first: usize, second: Option<usize>) {
        let part = |from: usize, to: usize| match self.out[from..to].trim() {
            "" => "none",
            text => text,
        };
        let close = self.out.len() - 1;
        let value = &self.out[start..open];
        let call = format!(
            "{SLICE}({value}, {}, {}, {})",
            part(open + 1, first),
            part(first + 1, second.unwrap_or(close)),
            second.map_or("none", |second| part(second + 1, close))
        );
        self.out.truncate(start);
        self.out.push_str(&call);
    }

    fn filters(&mut self) {
        loop {
            let blanks = self.rest().len() - self.rest().trim_start().len();
            let rest = &self.rest()[blanks..];
            if !rest.starts_with('|') || rest.starts_with("||") {
                return;
            }
            self.push(blanks + 1);
            self.whitespace();
            self.push(self.word().len());
            let blanks = self.rest().len() - self.rest().trim_start().len();
            if self.rest()[blanks..].starts_with('(') {
                self.push(blanks);
                if self.bracket().is_none() {
                    return;
                }
            }
        }
    }
}

/// Writes a string literal: resolves Python's escapes and escapes again what the engine requires.
fn write_literal(out: &mut String, literal: &str) {
    let quote = literal.chars().next().unwrap_or('"');
    let Some(text) = literal[1..].strip_suffix(quote).filter(|text| text.contains('\\')) else {
        out.push_str(literal);
        return;
    };
    let (mut continued, mut chars) = (0, text.chars());
    out.push(quote);
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let code = |chars: &mut std::str::Chars, base: u32, min: usize, max: usize| {
            let digits: String = chars.clone().take(max).take_while(|c| c.is_digit(base)).collect();
            let code = u32::from_str_radix(&digits, base).ok().filter(|_| digits.len() >= min)?;
            (0..digits.len()).for_each(|_| {
                chars.next();
            });
            Some(code)
        };
        let kind = chars.clone().next();
        let resolved = match kind {
            Some('0'..='7') => code(&mut chars, 8, 1, 3),
            // The engine resolves surrogate pairs.
            Some('u') if chars.as_str()[1..].starts_with(['d', 'D']) => None,
            Some(c @ ('x' | 'u' | 'U')) => {
                let width = match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let mut ahead = chars.clone();
                ahead.next();
                let resolved = code(&mut ahead, 16, width, width);
                if resolved.is_some() {
                    chars = ahead;
                }
                resolved
            }
            Some(c) => {
                let simple = "ntrbfav".find(c).and_then(|at| "\n\t\r\x08\x0c\x07\x0b".chars().nth(at));
                if simple.is_some() || c == '\n' {
                    chars.next();
                }
                if c == '\n' {
                    continued += 1;
                    continue;
                }
                simple.map(u32::from)
            }
            None => None,
        };
        match (resolved.and_then(char::from_u32), kind) {
            (Some('\n'), _) => out.push_str("\\n"),
            (Some('\r'), _) => out.push_str("\\r"),
            (Some(c), _) => {
                if c == quote || c == '\\' {
                    out.push('\\');
                }
                out.push(c);
            }
            (None, Some(c @ ('\\' | '\'' | '"'))) => {
                chars.next();
                if c == quote || c == '\\' {
                    out.push('\\');
                }
                out.push(c);
            }
            // Invalid in Python; the engine rejects it too.
            (None, Some('x' | 'u' | 'U')) => out.push('\\'),
            (None, _) => out.push_str("\\\\"),
        }
    }
    out.push(quote);
    // Keep the line numbers.
    out.push_str(&"\n".repeat(continued));
}
