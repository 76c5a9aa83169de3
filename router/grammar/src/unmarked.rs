//! How calls begin that no marker announces, as regular expressions: the grammar enforces from there on, and the parser
//! reads exactly these as calls. It does not parse.

use crate::format::{Codec, Format, Member, Step};
use crate::lark::escape;
use crate::schema::quoted;

/// How a call begins that no marker announces. None: all calls have a marker.
pub(crate) fn bare(format: &Format) -> Option<char> {
    let marked = |steps: &[Step]| steps.iter().any(|s| matches!(s, Step::Tok(_)));
    match format.call.first() {
        _ if marked(format.begin) => None,
        Some(Step::Args(Codec::Object { .. })) if format.begin.iter().any(lists) => Some('['),
        Some(Step::Args(Codec::Object { .. })) => Some('{'),
        Some(Step::Name) => Some('['),
        _ => None,
    }
}

/// Whether models omit the marker before a list of calls.
pub(crate) fn bare_list(format: &Format) -> bool {
    matches!(format.call.first(), Some(Step::Args(Codec::Object { .. })))
        && format.begin.iter().any(|s| matches!(s, Step::Tok(_)))
        && format.begin.iter().any(lists)
}

/// Whether a step begins a list.
fn lists(step: &Step) -> bool {
    matches!(step, Step::Lit(literal) if literal.trim() == "[")
}

/// The mark of a code block.
pub(crate) const OPENING_FENCE: &str = "```";

/// Whether a character may stand around calls that begin an output without a marker, beside [`OPENING_FENCE`].
pub(crate) fn is_opening_layout(b: u8) -> bool {
    b.is_ascii_whitespace() || b",[]".contains(&b)
}

/// The same as a regular expression.
pub(crate) const OPENING_LAYOUT: &str = r"([ \t\r\n,\[\]]|```[A-Za-z_]*)*";

/// Blanks of any kind.
const BLANKS: &str = r"[ \t\r\n]*";
/// Simple values of members that are not reported.
const IGNORED_VALUE: &str = r#"("[^"\\\x00-\x1f]*"|0|[1-9][0-9]{0,19}|null)"#;
/// Such members before the name, at most.
pub(crate) const IGNORED_MEMBERS: usize = 2;

/// How a call of one of these tools begins in text where no marker precedes it, as regular expressions. The parser
/// reads exactly these as calls.
pub(crate) struct BareBeginning {
    /// Up to where the name begins: the same for all tools, and perhaps text.
    pub lead: String,
    /// From the name to the arguments, and with no arguments.
    pub tails: Vec<String>,
}

impl BareBeginning {
    /// Each whole beginning.
    pub fn whole(&self) -> impl Iterator<Item = String> {
        self.tails.iter().map(|tail| format!("{}{tail}", self.lead))
    }
}

pub(crate) fn bare_beginnings(format: &Format, tools: &[&str]) -> BareBeginning {
    let named = |written: fn(&str) -> String| match tools {
        [one] => escape(&written(one)),
        many => format!("({})", many.iter().map(|name| escape(&written(name))).collect::<Vec<_>>().join("|")),
    };
    match format.codec() {
        Codec::Object { members, ignored } => {
            let before = ignored_members(ignored, BLANKS, |member| format!("{member}{BLANKS},{BLANKS}"));
            let between = ignored_members(ignored, BLANKS, |member| format!("{BLANKS},{BLANKS}{member}"));
            let names = keys(members.iter().filter_map(Member::name).flatten());
            let arguments = keys(members.iter().filter_map(Member::arguments).flatten());
            let list = if bare(format) == Some('[') { format!(r"\[{BLANKS}") } else { String::new() };
            let named = named(|name| quoted(name).split_off(1));
            let named = format!("{named}{between}{BLANKS}");
            BareBeginning {
                lead: format!(r#"{list}\{{{BLANKS}{before}{names}{BLANKS}:{BLANKS}""#),
                tails: vec![format!("{named},{BLANKS}{arguments}{BLANKS}:"), format!(r"{named}\}}")],
            }
        }
        _ => BareBeginning {
            lead: r"\[".to_owned(),
            tails: vec![format!(r"{BLANKS}{}{BLANKS}\(", named(str::to_owned))],
        },
    }
}

/// Whether calls that no marker announces begin with a bracket and their name.
pub(crate) fn lead_is_sign(format: &Format) -> bool {
    bare(format).is_some() && !matches!(format.codec(), Codec::Object { .. })
}

/// A regular expression for a few members that are not reported; `place` adds the comma before or after one.
pub(crate) fn ignored_members(keys_of: &[&str], blanks: &str, place: impl Fn(String) -> String) -> String {
    if keys_of.is_empty() {
        return String::new();
    }
    let member = place(simple_member(keys_of, blanks));
    format!("({member}){{0,{IGNORED_MEMBERS}}}")
}

/// A regular expression for a member with one of these keys and a simple value.
pub(crate) fn simple_member(keys_of: &[&str], blanks: &str) -> String {
    format!("{}{blanks}:{blanks}{IGNORED_VALUE}", keys(keys_of.iter()))
}

/// A regular expression for one of these keys, as JSON writes it.
pub(crate) fn keys<'k>(keys: impl Iterator<Item = &'k &'k str>) -> String {
    let all: Vec<_> = keys.map(|k| escape(&quoted(k))).collect();
    format!("({})", all.join("|"))
}
