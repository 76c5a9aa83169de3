//! The work of reading case-insensitive expressions, told without reading them: every parser of regular expressions
//! looks up the other spellings of each character of a class, one by one.

use regex_syntax::ast::{self, Ast, ClassSetBinaryOp, ClassSetItem, Visitor, parse::Parser};

/// Characters of Unicode.
const ALL: u64 = 0x11_0000;

/// The number of characters that are looked up. 0: the expression is case-sensitive. `insensitive`: flags outside of
/// the expression make it case-insensitive.
pub(crate) fn folded_characters(regex: &str, insensitive: bool) -> u64 {
    if !insensitive && !sets_flag(regex) {
        return 0;
    }
    let count = Count { insensitive, ..Count::default() };
    match Parser::new().parse(regex) {
        Ok(parsed) => ast::visit(&parsed, count).expect("counting has no errors"),
        // Lookaround and back references, which other parsers read.
        Err(_) => ALL.saturating_mul(regex.matches(['[', '\\']).count() as u64),
    }
}

/// Whether `(?i)`, `(?si:` or the like is in the expression.
fn sets_flag(regex: &str) -> bool {
    let flags = |rest: &str| rest.chars().take_while(char::is_ascii_alphabetic).any(|flag| flag == 'i');
    regex.split("(?").skip(1).any(flags)
}

/// The characters in case-insensitive classes of all regular expressions of a Lark grammar, also of those within
/// strings, as in a JSON schema.
pub(crate) fn folded_characters_of_lark(lark: &str) -> u64 {
    let mut all = 0u64;
    let mut rest = lark;
    while let Some(at) = rest.find(['"', '/', '#']) {
        let (delimiter, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        if delimiter == b'#' || (delimiter == b'/' && after.starts_with('/')) {
            rest = after.split_once('\n').map_or("", |(_, next)| next);
            continue;
        }
        let end = unescaped(after, delimiter).unwrap_or(after.len());
        let (text, next) = (&after[..end], after.get(end + 1..).unwrap_or_default());
        all = all.saturating_add(match delimiter {
            b'/' => {
                let flags = next.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
                folded_characters(text, flags.contains('i'))
            }
            _ => serde_json::from_str(&format!("\"{text}\"")).map_or(0, |text: String| folded_characters(&text, false)),
        });
        rest = next;
    }
    all
}

/// Where the delimiter stands without a backslash before it.
fn unescaped(text: &str, delimiter: u8) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let found = !escaped && byte == delimiter;
        escaped = !escaped && byte == b'\\';
        found
    })
}

#[derive(Debug, Default)]
struct Count {
    insensitive: bool,
    characters: u64,
    /// Brackets within brackets: the outer ones look up the characters of the inner ones again.
    depth: u64,
}

impl Count {
    fn flags(&mut self, flags: &ast::Flags) {
        self.insensitive |= flags.flag_state(ast::Flag::CaseInsensitive) == Some(true);
    }

    fn add(&mut self, characters: u64) {
        self.characters = self.characters.saturating_add(characters.saturating_mul(self.depth.max(1)));
    }
}

impl Visitor for Count {
    type Output = u64;
    type Err = ();

    fn finish(self) -> Result<u64, ()> {
        Ok(if self.insensitive { self.characters } else { 0 })
    }

    fn visit_pre(&mut self, part: &Ast) -> Result<(), ()> {
        match part {
            Ast::Flags(set) => self.flags(&set.flags),
            Ast::Group(group) => group.flags().into_iter().for_each(|flags| self.flags(flags)),
            Ast::ClassUnicode(_) => self.add(ALL),
            Ast::ClassBracketed(_) => self.depth = 1,
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), ()> {
        match item {
            ClassSetItem::Empty(_) | ClassSetItem::Union(_) => {}
            ClassSetItem::Literal(_) => self.add(1),
            ClassSetItem::Range(range) => self.add(1 + u64::from(range.end.c as u32) - u64::from(range.start.c as u32)),
            ClassSetItem::Ascii(class) if !class.negated => self.add(128),
            ClassSetItem::Ascii(_) | ClassSetItem::Unicode(_) | ClassSetItem::Perl(_) => self.add(ALL),
            ClassSetItem::Bracketed(_) => self.depth += 1,
        }
        Ok(())
    }

    fn visit_class_set_item_post(&mut self, item: &ClassSetItem) -> Result<(), ()> {
        if matches!(item, ClassSetItem::Bracketed(_)) {
            self.depth -= 1;
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &ClassSetBinaryOp) -> Result<(), ()> {
        self.add(2 * ALL);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
