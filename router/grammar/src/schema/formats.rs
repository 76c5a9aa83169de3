//! The `format` keyword of strings, as regular expressions.

use std::sync::OnceLock;

use regex_syntax::hir::Hir;

use super::pattern::whole;
use super::spelled::{Quotes, spelled};

/// What a format requires.
pub(super) enum StringFormat {
    /// The texts that satisfy it.
    Known(&'static FormatTexts),
    /// A format of JSON Schema for which there is no regular expression here.
    NotExpressible,
    /// It constrains nothing.
    Unknown,
}

const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?([zZ]|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])";
const IPV4: &str = "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const POINTER: &str = "(/([^~/]|~[01])*)*";

/// The texts of a format. They are parsed and spelled once per process, because many tools declare the same few
/// formats.
pub(super) struct FormatTexts {
    pub texts: Hir,
    spelled: [OnceLock<String>; Quotes::COUNT],
}

impl FormatTexts {
    pub fn spelled(&self, quotes: Quotes) -> &str {
        self.spelled[quotes as usize].get_or_init(|| spelled(&self.texts, quotes))
    }
}

/// The formats that have a regular expression here.
const KNOWN: [&str; 13] = [
    "date",
    "time",
    "date-time",
    "duration",
    "ipv4",
    "ipv6",
    "uuid",
    "hostname",
    "email",
    "uri",
    "uri-reference",
    "json-pointer",
    "relative-json-pointer",
];

pub(super) fn format(name: &str) -> StringFormat {
    static TEXTS: [OnceLock<Option<FormatTexts>>; KNOWN.len()] = [const { OnceLock::new() }; KNOWN.len()];
    match KNOWN.iter().position(|known| *known == name) {
        Some(at) => {
            let parsed = || whole(&regex(name)?).map(|texts| FormatTexts { texts, spelled: Default::default() });
            TEXTS[at].get_or_init(parsed).as_ref().map_or(StringFormat::NotExpressible, StringFormat::Known)
        }
        None if NOT_EXPRESSIBLE.contains(&name) => StringFormat::NotExpressible,
        None => StringFormat::Unknown,
    }
}

/// The formats of JSON Schema that have no regular expression here.
const NOT_EXPRESSIBLE: [&str; 6] = ["idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-template"];

/// A regular expression of the whole text; none for an unknown name.
fn regex(name: &str) -> Option<String> {
    Some(match name {
        "date" => date(),
        "time" => TIME.to_owned(),
        "date-time" => format!("({})[tT]{TIME}", date()),
        "duration" => {
            let time = "T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S)";
            let date = "([0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}D)";
            format!("P({date}({time})?|{time}|[0-9]{{1,9}}W)")
        }
        "ipv4" => IPV4.to_owned(),
        "ipv6" => ipv6(),
        "uuid" => "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}".to_owned(),
        "hostname" => host(),
        "email" => {
            // At most 64 characters before the `@`: plain ones only, or up to 32 with dots between them.
            let plain = "[a-zA-Z0-9!#$%&'*+\\-\\/=?\\^_`{|}~]";
            format!("({plain}{{1,64}}|{plain}(\\.?{plain}){{0,31}})@{}", host())
        }
        "uri" => format!("[a-zA-Z][a-zA-Z0-9+.\\-]*:{}", after_scheme(":")),
        "uri-reference" => {
            let absolute = format!("[a-zA-Z][a-zA-Z0-9+.\\-]*:{}", after_scheme(":"));
            // Without a scheme, the first segment of a path has no colon.
            format!("({absolute}|{})", after_scheme(""))
        }
        "json-pointer" => POINTER.to_owned(),
        "relative-json-pointer" => format!("(0|[1-9][0-9]{{0,8}})(#|{POINTER})"),
        _ => return None,
    })
}

/// A day of the Gregorian calendar.
fn date() -> String {
    let year = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
    let day = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
    let fours = "(0[48]|[2468][048]|[13579][26])";
    format!("({year}-{day}|([0-9]{{2}}{fours}|{fours}00)-02-29)")
}

/// A name has at most 253 characters: 4 labels of at most 61 each, or 10 of at most 23. No label has two hyphens in a
/// row, which announce an encoded one.
fn host() -> String {
    let name = |pairs: u32, parts: u32| {
        let part = format!("[a-zA-Z0-9]([a-zA-Z0-9]|-[a-zA-Z0-9]){{0,{pairs}}}");
        format!("{part}(\\.{part}){{0,{}}}", parts - 1)
    };
    format!("({}|{})", name(30, 4), name(11, 10))
}

fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut all = vec![format!("({group}:){{7}}({group}|:)"), format!("({group}:){{6}}{IPV4}")];
    // `::` stands for one group or more.
    for before in 0..=6 {
        let lead = if before == 0 { String::new() } else { format!("({group}(:{group}){{{}}})", before - 1) };
        all.push(format!("{lead}::({group}(:{group}){{0,{}}})?", 6 - before));
        if before < 6 {
            all.push(format!("{lead}::({group}:){{0,{}}}{IPV4}", 5 - before));
        }
    }
    format!("({})", all.join("|"))
}

/// The part of a URI after its scheme; `colon` if the first segment of a path may contain one.
fn after_scheme(colon: &str) -> String {
    let plain = "a-zA-Z0-9._~!$&'()*+,;=\\-";
    let encoded = "%[0-9a-fA-F]{2}";
    let letter = format!("([{plain}:@]|{encoded})");
    let first = format!("([{plain}@{colon}]|{encoded})");
    let name = format!("([{plain}]|{encoded})*");
    let authority = format!("(([{plain}:]|{encoded})*@)?({name}|\\[{}\\])(:[0-9]{{0,4}})?", ipv6());
    let more = format!("(/{letter}*)*");
    let tail = format!("([{plain}:@/?]|{encoded})*");
    format!("(//{authority}{more}|/({letter}+{more})?|{first}+{more})?(\\?{tail})?(#{tail})?")
}

#[cfg(test)]
mod tests;
