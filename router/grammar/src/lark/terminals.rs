//! Rewrites the terminals of a client's Lark grammar, so that it describes its texts in another spelling, such as
//! inside a JSON string.

use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

use super::escape;
use crate::json_schema::{folded_characters, whole};
use crate::limits::{MAX_LEXER_FUEL, MAX_REGEX_FOLDS, MAX_SPELLED_GRAMMAR_BYTES};

/// Terminals of Lark's standard library (`lark/grammars/common.lark`), as far as llguidance has them.
const COMMON: &[(&str, &str)] = &[
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9A-Fa-f]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("_EXP", "[eE][+-]?[0-9]+"),
    ("FLOAT", r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"),
    ("SIGNED_FLOAT", r"[+-]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"),
    ("NUMBER", r"[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"),
    ("SIGNED_NUMBER", r"[+-]?([0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"),
    ("ESCAPED_STRING", r#""([^"\\]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("C_COMMENT", r"/\*[^*]*\*+([^/*][^*]*\*+)*/"),
    ("SQL_COMMENT", r"--[^\n]*"),
];

/// What the terminals of a grammar become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Terminals: each string and each regular expression as an expression between slashes.
    Terminals,
    /// Rules: each as an expression of rules. Names of terminals become names of rules.
    Rules,
}

/// Spells the texts of a terminal. None: that takes too much work.
pub(crate) type Spell<'s> = dyn FnMut(&Hir) -> Option<String> + 's;

/// The grammar with other terminals, and without comments. What a spelling cannot keep is rejected: negation, other
/// grammars, special tokens.
///
/// # Errors
/// The problem, for the client.
pub(crate) fn respell(lark: &str, spelling: Spelling, spell: &mut Spell<'_>) -> Result<String, String> {
    let mut out = String::with_capacity(2 * lark.len());
    let mut scan = Scan {
        rest: lark,
        prefix: unused_prefix(lark),
        ignored: Vec::new(),
        spelling,
        ignores: spelling == Spelling::Rules && lark.contains("%ignore"),
        in_terminal: false,
    };
    let mut begins_line = true;
    while let Some(c) = scan.rest.chars().next() {
        fits(&out)?;
        let begins = begins_line;
        begins_line = c == '\n' || begins && matches!(c, ' ' | '\t' | '\r' | '?' | '!');
        match c {
            '#' => scan.line(),
            '/' if scan.rest.starts_with("//") => scan.line(),
            '"' => {
                let spelled = scan.spelled(Scan::string, spell)?;
                scan.part(&mut out, &spelled);
            }
            '/' => {
                let spelled = scan.spelled(Scan::regex, spell)?;
                scan.part(&mut out, &spelled);
            }
            '%' => scan.directive(&mut out, spell)?,
            '<' => return Err("special tokens (<...>) cannot be used in the grammar of a string".into()),
            '@' => return Err("references to other grammars (@...) cannot be used in the grammar of a string".into()),
            '&' if spelling == Spelling::Rules => {
                return Err("conjunctions (&) cannot be used in the grammar of a string".into());
            }
            '~' => {
                // With a number it repeats; before a terminal it negates.
                let rest = scan.rest[1..].trim_start_matches([' ', '\t']);
                if !rest.starts_with(|c: char| c.is_ascii_digit()) {
                    return Err("negation (~) cannot be used in the grammar of a string".into());
                }
                out.push('~');
                scan.rest = rest;
            }
            c if c.is_ascii_alphanumeric() || c == '_' => {
                let word = scan.word();
                let (name, terminal) = (scan.name(word), is_terminal(word));
                if begins && scan.rest.trim_start_matches([' ', '\t']).starts_with([':', '[', '.', '{']) {
                    scan.in_terminal = terminal;
                    out.push_str(&name);
                } else if terminal {
                    scan.part(&mut out, &name);
                } else {
                    out.push_str(&name);
                }
            }
            c => {
                out.push(c);
                scan.rest = &scan.rest[c.len_utf8()..];
            }
        }
    }
    fits(&out)?;
    if scan.ignores {
        let _ = write!(out, "\n{}: ({})*\n", scan.ignored_name(), scan.ignored.join(" | "));
    }
    Ok(out)
}

fn fits(spelled: &str) -> Result<(), String> {
    match spelled.len() <= MAX_SPELLED_GRAMMAR_BYTES {
        true => Ok(()),
        false => Err(format!("its spellings in a string take more than {MAX_SPELLED_GRAMMAR_BYTES} bytes")),
    }
}

/// Whether llguidance accepts a grammar on its own. Returns what it costs, in steps of a budget.
///
/// # Errors
/// llguidance's message, for the client.
pub(crate) fn check_lark(lark: &str) -> Result<u64, String> {
    let grammar = GrammarInit::Serialized(TopLevelGrammar::from_lark(lark.to_owned()));
    let limits = ParserLimits { initial_lexer_fuel: MAX_LEXER_FUEL, ..ParserLimits::default() };
    let checked = catch_unwind(AssertUnwindSafe(|| grammar.to_internal(None, limits)));
    let cost = checked.map(|(grammar, lexer)| lexer.cost() + grammar.num_symbols() as u64);
    cost.map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase())
}

/// What no name of the grammar begins with.
fn unused_prefix(lark: &str) -> String {
    let mut prefix = "t_".to_owned();
    while lark.contains(&prefix) {
        prefix.insert(0, 't');
    }
    prefix
}

/// The rest of a grammar.
struct Scan<'a> {
    rest: &'a str,
    spelling: Spelling,
    /// Of the names of rules that replace terminals.
    prefix: String,
    /// What the grammar ignores, as expressions of rules.
    ignored: Vec<String>,
    /// Whether what is ignored is written after each part of a rule. (`%ignore` would allow it inside a terminal, too,
    /// which is several lexemes here.)
    ignores: bool,
    in_terminal: bool,
}

impl<'a> Scan<'a> {
    /// Skips to the end of the line.
    fn line(&mut self) {
        self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
    }

    /// Up to the delimiter with which it begins, without both. A backslash escapes the next character.
    fn quoted(&mut self) -> Result<&'a str, String> {
        let delimiter = self.rest.as_bytes()[0];
        let mut at = 1;
        loop {
            match self.rest.as_bytes().get(at) {
                None | Some(b'\n') => {
                    let shown: String = self.rest.chars().take(40).take_while(|c| *c != '\n').collect();
                    return Err(format!("{shown} has no end on its line"));
                }
                Some(b'\\') => at += 2,
                Some(b) if *b == delimiter => break,
                Some(_) => at += 1,
            }
        }
        let (inner, rest) = (&self.rest[1..at], &self.rest[at + 1..]);
        self.rest = rest;
        Ok(inner)
    }

    /// Reads a terminal and spells it.
    fn spelled(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Hir, String>,
        spell: &mut Spell<'_>,
    ) -> Result<String, String> {
        let texts = read(self)?;
        self.respelled(&texts, spell)
    }

    fn respelled(&self, texts: &Hir, spell: &mut Spell<'_>) -> Result<String, String> {
        let spelled = spell(texts).ok_or("its terminals take too much work to spell in a string")?;
        Ok(match self.spelling {
            Spelling::Terminals => format!("/{spelled}/"),
            Spelling::Rules => spelled,
        })
    }

    /// Writes a terminal, and in a rule what is ignored after it.
    fn part(&self, out: &mut String, terminal: &str) {
        match self.ignores && !self.in_terminal {
            true => out.extend(["(", terminal, " ", &self.ignored_name(), ")"]),
            false => out.push_str(terminal),
        }
    }

    fn ignored_name(&self) -> String {
        format!("{}0", self.prefix)
    }

    /// The name as it is in the result.
    fn name(&self, name: &str) -> String {
        match is_terminal(name) && self.spelling == Spelling::Rules {
            true => format!("{}{}", self.prefix, name.to_ascii_lowercase()),
            false => name.to_owned(),
        }
    }

    fn word(&mut self) -> &'a str {
        let end =
            self.rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-')).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn takes(&mut self, sign: &str) -> bool {
        self.blanks();
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// A string in JSON's syntax, which may also have `\x41` and the flag `i`, or a range of two characters.
    fn string(&mut self) -> Result<Hir, String> {
        let text = self.text()?;
        if let Some(rest) = self.rest.strip_prefix('i') {
            self.rest = rest;
            return regex(&format!("(?i:{})", escape(&text)));
        }
        let after = self.rest.trim_start_matches([' ', '\t']);
        let Some(upto) = after.strip_prefix("..").map(|rest| rest.trim_start_matches([' ', '\t'])) else {
            return Ok(Hir::literal(text.into_bytes()));
        };
        self.rest = upto;
        let last = if upto.starts_with('"') { self.text()? } else { String::new() };
        match (one_character(&text), one_character(&last)) {
            (Some(from), Some(to)) if from <= to => {
                Ok(Hir::class(Class::Unicode(ClassUnicode::new([ClassUnicodeRange::new(from, to)]))))
            }
            _ => Err(format!("the range from {text:?} must go to a later character, such as \"a\"..\"z\"")),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        let inner = self.quoted()?;
        let json = format!("\"{}\"", inner.replace(r"\\", r"\u005c").replace(r"\x", r"\u00"));
        serde_json::from_str(&json).map_err(|error| format!("the string \"{inner}\" is invalid: {error}"))
    }

    fn regex(&mut self) -> Result<Hir, String> {
        let inner = self.quoted()?;
        let end = self.rest.find(|c: char| !"imslux".contains(c)).unwrap_or(self.rest.len());
        let (flags, rest) = self.rest.split_at(end);
        self.rest = rest;
        match flags {
            "" => regex(inner),
            flags => regex(&format!("(?{flags}:{inner})")),
        }
    }

    /// A line that begins with `%`. Imports become definitions.
    fn directive(&mut self, out: &mut String, spell: &mut Spell<'_>) -> Result<(), String> {
        self.takes("%");
        match self.word() {
            "ignore" => self.ignore(out, spell),
            "import" => self.import(out, spell),
            name => Err(format!("%{name} cannot be used in the grammar of a string")),
        }
    }

    /// What is ignored must be runs of characters, so that it ends wherever something else begins.
    fn ignore(&mut self, out: &mut String, spell: &mut Spell<'_>) -> Result<(), String> {
        if self.spelling == Spelling::Terminals {
            out.push_str("%ignore");
            return Ok(());
        }
        self.blanks();
        let texts = match self.rest.chars().next() {
            Some('"') => self.string()?,
            Some('/') => self.regex()?,
            _ => {
                let name = self.word();
                let known = COMMON.iter().find(|(known, _)| *known == name);
                let (_, texts) = known.ok_or_else(|| format!("%ignore {name}: {IGNORED}"))?;
                regex(texts)?
            }
        };
        let character = match texts.kind() {
            HirKind::Repetition(repetition) => &*repetition.sub,
            _ => &texts,
        };
        match character.kind() {
            HirKind::Class(_) => {}
            HirKind::Literal(one) if std::str::from_utf8(&one.0).is_ok_and(|one| one_character(one).is_some()) => {}
            _ => return Err(format!("%ignore {texts}: {IGNORED}")),
        }
        let rule = self.respelled(character, spell)?;
        self.ignored.push(rule);
        Ok(())
    }

    /// `%import common.NAME`, `%import common.NAME -> OTHER` or `%import common (NAME, NAME)`.
    fn import(&mut self, out: &mut String, spell: &mut Spell<'_>) -> Result<(), String> {
        self.blanks();
        let from = self.word();
        let mut names = Vec::new();
        if self.takes(".") {
            let name = self.word();
            let own = if self.takes("->") {
                self.blanks();
                self.word()
            } else {
                name
            };
            names.push((name, own));
        } else if self.takes("(") {
            loop {
                self.blanks();
                let name = self.word();
                names.push((name, name));
                if !self.takes(",") {
                    break;
                }
            }
            self.takes(")");
        }
        for (name, own) in names {
            let known = COMMON.iter().find(|(known, _)| from == "common" && *known == name);
            let Some((_, texts)) = known else {
                return Err(format!("%import {from}.{name} is unknown; terminals of Lark's 'common' can be imported"));
            };
            let spelled = self.respelled(&regex(texts)?, spell)?;
            out.extend([&self.name(own), ": ", &spelled, "\n"]);
        }
        Ok(())
    }
}

const IGNORED: &str = "the grammar of a string can only ignore runs of characters, such as common.WS or /[ \\t]+/";

fn one_character(text: &str) -> Option<char> {
    let mut all = text.chars();
    all.next().filter(|_| all.next().is_none())
}

fn regex(regex: &str) -> Result<Hir, String> {
    let folds = folded_characters(regex, false);
    if folds > MAX_REGEX_FOLDS {
        return Err(format!("its case-insensitive classes have {folds} characters; the limit is {MAX_REGEX_FOLDS}"));
    }
    // In Lark, a slash is escaped.
    let texts =
        whole(&regex.replace(r"\/", "/")).ok_or_else(|| format!("the regular expression /{regex}/ is invalid"))?;
    match texts.properties().look_set().is_empty() {
        true => Ok(texts),
        false => Err(format!("the regular expression /{regex}/ may have no anchors")),
    }
}

#[cfg(test)]
mod tests;
