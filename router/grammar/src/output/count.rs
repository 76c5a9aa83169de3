//! Running numbers in a grammar. A rule's parameter holds the number of the next call as decimal digits of four bits
//! each, so that ten conditions per digit spell it and one compiled grammar serves every conversation: the first number
//! is read from [`prefix`] before any output.

use crate::lark::Writer;
use crate::limits::MAX_COUNT_DIGITS;

/// Rules for a number that counts calls.
pub(super) struct Count {
    /// Spells the number.
    pub digits: String,
}

impl Count {
    pub fn new(w: &mut Writer) -> Self {
        let digit: Vec<String> = (0..MAX_COUNT_DIGITS)
            .map(|at| {
                let name = w.reserve();
                let range = format!("[{}:{}]", at * 4, at * 4 + 4);
                let alternatives: Vec<_> = (0..10).map(|d| format!("\"{d}\"%if eq({range},{d})")).collect();
                w.define_parametric(&name, &alternatives);
                name
            })
            .collect();
        let digits = w.reserve();
        let alternatives: Vec<_> = (0..MAX_COUNT_DIGITS)
            .map(|top| {
                let spelled: Vec<_> = (0..=top).rev().map(|at| format!("{}::_", digit[at])).collect();
                let above = (top + 1) * 4;
                let small = format!("eq([{above}:64],0)");
                let leads = format!("ge([{}:{}],1)", top * 4, above);
                let condition = if top == 0 { small } else { format!("and({small},{leads})") };
                format!("{}%if {condition}", spelled.join(" "))
            })
            .collect();
        w.define_parametric(&digits, &alternatives);
        Self { digits }
    }

    /// A rule that is `next` with the number incremented. Nothing follows the highest number.
    pub fn advance(&self, w: &mut Writer, next: &str) -> String {
        let names: Vec<String> = (0..MAX_COUNT_DIGITS).map(|_| w.reserve()).collect();
        for (at, name) in names.iter().enumerate() {
            let range = format!("[{}:{}]", at * 4, at * 4 + 4);
            let mut alternatives = vec![format!("{next}::incr({range})%if lt({range},9)")];
            if let Some(carry) = names.get(at + 1) {
                alternatives.push(format!("{carry}::bit_and({:#x})%if eq({range},9)", !(0xf_u64 << (at * 4))));
            }
            w.define_parametric(name, &alternatives);
        }
        names[0].clone()
    }

    /// A start rule that reads the first number, spelled with these ten tokens, and continues with `next`.
    pub fn start(&self, w: &mut Writer, next: &str, tokens: &[u32]) -> String {
        let mut after = next.to_owned();
        for at in 0..MAX_COUNT_DIGITS {
            let name = w.reserve();
            let read = |(digit, token): (usize, &u32)| match digit << (at * 4) {
                0 => format!("<[{token}]>{after}::_"),
                bits => format!("<[{token}]>{after}::bit_or({bits:#x})"),
            };
            let alternatives: Vec<_> = tokens.iter().enumerate().map(read).collect();
            w.define_parametric(&name, &alternatives);
            after = name;
        }
        format!("{after}::0x0")
    }
}

/// The tokens that [`Count::start`] reads, highest digit first.
pub(crate) fn prefix(first: usize, tokens: &[u32]) -> Option<Vec<u32>> {
    let digits = format!("{first:0width$}", width = MAX_COUNT_DIGITS);
    (digits.len() == MAX_COUNT_DIGITS)
        .then(|| digits.bytes().filter_map(|b| tokens.get(usize::from(b - b'0')).copied()).collect())
}
