//! Markdown's code in prose: blocks between fences, and spans between backticks. A call that is only shown there is
//! not made. The parser follows text byte by byte; in the grammar code is a lexeme, so that what begins a call is
//! looked for in the rest only. This module knows no formats.

use crate::lark::Writer;

/// Backticks of a fence, at least.
const FENCE: usize = 3;

/// The beginning of a block around calls.
const LAYOUT: &str = r"```[A-Za-z_]*[ \t\r\n]*";
/// The end of a block around a call, at the beginning of the text after the call.
const BLOCK_END: &str = r"```[ \t\r]*\n";
/// A span that nothing closes, up to the end of its line.
const UNCLOSED: &str = r"`{1,2}([^`\n]+)?\n";

/// Code of one kind.
struct CodeKind {
    open: &'static str,
    /// What it holds after its first character, and the beginning of its end.
    inner: &'static str,
    part_of_end: &'static str,
    first: &'static str,
    end: &'static str,
}

/// A span within a line, blocks of three backticks, and blocks of more. Fewer backticks do not close a block.
const KINDS: [CodeKind; 3] = [
    CodeKind { open: "`{1,2}", first: r"[^`\n]", inner: r"[^`\n]", part_of_end: "", end: "`+" },
    CodeKind { open: "`{3}", first: "[^`]", inner: "([^`]|`{1,2}[^`])", part_of_end: "`{0,2}", end: "`{3,}" },
    CodeKind { open: "`{4,}", first: "[^`]", inner: "([^`]|`{1,3}[^`])", part_of_end: "`{0,3}", end: "`{4,}" },
];

impl CodeKind {
    fn whole(&self) -> String {
        format!("{}{}{}*{}", self.open, self.first, self.inner, self.end)
    }

    /// The rest of a text that ends in it.
    fn unfinished(&self) -> String {
        format!("{}({}{}*{})?", self.open, self.first, self.inner, self.part_of_end)
    }
}

/// Any code that is whole.
fn whole_code() -> String {
    KINDS.each_ref().map(CodeKind::whole).join("|")
}

/// How a text begins, for calls that a code block encloses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextPlace {
    Beginning,
    /// After a call: a fence without the name of a language ends the block around that call.
    AfterCall,
    /// Reasoning, in which no block encloses a call.
    Reasoning,
}

/// What the text of one region has been so far.
#[derive(Debug, Clone)]
pub(crate) struct CodeBlocks {
    code: Code,
    /// Number of backticks that the text ends with.
    run: usize,
    layout: Option<Layout>,
    block_end: Option<Layout>,
}

/// What the text was in before the backticks at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    No,
    Span,
    /// Until at least this number of backticks.
    Block(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Blank,
    /// A part of a fence.
    Ticks(usize),
    /// After a fence.
    Fenced,
    /// After blanks in the block.
    Begun,
}

impl CodeBlocks {
    pub fn new(place: TextPlace) -> Self {
        let begins = |is: bool| is.then_some(Layout::Blank);
        Self {
            code: Code::No,
            run: 0,
            layout: begins(place != TextPlace::Reasoning),
            block_end: begins(place == TextPlace::AfterCall),
        }
    }

    pub fn feed(&mut self, text: &str) {
        for b in text.bytes() {
            if self.block_end == Some(Layout::Fenced) && b == b'\n' {
                *self = Self::new(TextPlace::Beginning);
                continue;
            }
            if b == b'`' {
                self.run += 1;
            } else {
                self.code = self.after_run();
                self.run = 0;
                if b == b'\n' && self.code == Code::Span {
                    self.code = Code::No;
                }
            }
            self.block_end = self.block_end.and_then(|layout| layout.then(b));
            self.layout = self.layout.and_then(|layout| match (layout, b) {
                (Layout::Fenced, b) if b.is_ascii_alphabetic() || b == b'_' => Some(layout),
                (Layout::Fenced, b' ' | b'\t' | b'\r' | b'\n') => Some(Layout::Begun),
                _ => layout.then(b),
            });
        }
    }

    /// Whether a call may begin here.
    pub fn is_outside(&self) -> bool {
        self.after_run() == Code::No || self.is_layout()
    }

    /// Whether a call may begin here because all before it is layout, and not if there were more.
    pub fn is_enclosing(&self) -> bool {
        self.after_run() != Code::No && self.is_layout()
    }

    fn is_layout(&self) -> bool {
        matches!(self.layout, Some(Layout::Blank | Layout::Fenced | Layout::Begun))
    }

    fn after_run(&self) -> Code {
        match (self.run, self.code) {
            (0, code) => code,
            (n, Code::No) if n >= FENCE => Code::Block(n.min(FENCE + 1)),
            (_, Code::No) => Code::Span,
            (n, Code::Block(least)) if n < least => Code::Block(least),
            _ => Code::No,
        }
    }
}

impl Layout {
    fn then(self, b: u8) -> Option<Self> {
        match (self, b) {
            (Layout::Blank, b' ' | b'\t' | b'\r' | b'\n') => Some(Layout::Blank),
            (Layout::Blank, b'`') => Some(Layout::Ticks(1)),
            (Layout::Ticks(n), b'`') if n + 1 == FENCE => Some(Layout::Fenced),
            (Layout::Ticks(n), b'`') => Some(Layout::Ticks(n + 1)),
            (Layout::Fenced, b' ' | b'\t' | b'\r') => Some(Layout::Fenced),
            (Layout::Begun, b' ' | b'\t' | b'\r' | b'\n') => Some(Layout::Begun),
            _ => None,
        }
    }
}

/// How a text may go on at some place of it.
pub(crate) struct TextEnds<'a> {
    /// What may follow the text, wherever it ends.
    pub tails: &'a [String],
    /// Tokens that belong to the text.
    pub tokens: &'a [String],
    /// What ends the text outside code: regular expressions, and what follows them.
    pub calls: &'a [(String, String)],
    /// The same where the text before does not end with `opener`, which would belong to the call.
    pub later_calls: &'a [(String, String)],
    pub opener: &'a str,
    /// Likewise, for many calls that begin with the same letters.
    pub short: Option<&'a ShortCalls>,
    /// What ends the text anywhere, likewise.
    pub markers: &'a [(String, String)],
    /// What text must not contain outside code, and anywhere.
    pub refused: &'a [String],
    pub refused_anywhere: &'a [String],
}

/// Calls whose first letters may be text too: only what follows them tells. They share the lexeme of the text before
/// them, which one lexeme for each tool would repeat.
pub(crate) struct ShortCalls {
    /// The letters, as a regular expression.
    pub lead: String,
    /// What follows them in a call, as regular expressions, and what follows that.
    pub calls: Vec<(String, String)>,
    /// What follows them in a call of any declared tool.
    pub called: String,
}

/// Writes text with code in it. `not`: what the text must not look like. Returns the alternatives.
pub(crate) fn write_text(w: &mut Writer, ends: &TextEnds<'_>, place: TextPlace, not: Option<&str>) -> Vec<String> {
    let without = |w: &mut Writer, all: &[String]| {
        // By its name: the list of all tools stands in it.
        let refused = (!all.is_empty()).then(|| w.terminal(&format!("/(?s:.*)({})(?s:.*)/", all.join("|"))));
        refused.map(|refused| format!(" & ~{refused}")).unwrap_or_default()
    };
    let anywhere = without(w, ends.refused_anywhere);
    let outside = without(w, &[ends.refused_anywhere, ends.refused].concat());
    let not = not.map(|not| format!(" & ~/{not}/")).unwrap_or_default();
    let then = |lexeme: &str, ends: &[String]| ends.iter().map(|end| format!("{lexeme} {end}")).collect::<Vec<_>>();
    let up_to = |w: &mut Writer, text: &str, ends: &[(String, String)]| -> Vec<String> {
        ends.iter().map(|(regex, next)| format!("{} {next}", w.lazy(&format!("({text}) /{regex}/")))).collect()
    };

    let (text, after_code, code, goes_on) = (w.reserve(), w.reserve(), w.reserve(), w.reserve());
    let before_short = outside;
    // Where such letters are, the text goes on elsewhere.
    let leads: Vec<String> = ends.short.iter().map(|short| short.lead.clone()).collect();
    let outside = without(w, &[ends.refused_anywhere, ends.refused, &leads].concat());
    // Outside code; code follows.
    let plain = |w: &mut Writer, not: &str| {
        let lexeme = w.terminal(&format!("/[^`]+/{outside}{not}"));
        let mut all = [ends.tails.to_vec(), then(&lexeme, ends.tails)].concat();
        all.push(format!("{lexeme} {code}"));
        all.extend(ends.tokens.iter().map(|token| format!("{lexeme}? {token} {text}")));
        all.extend(up_to(w, &format!("/[^`]*/{outside}{not}"), ends.calls));
        let alone = format!("/[^`]*/{outside}{not} & ~/(?s:.*)({})/", ends.opener);
        all.extend(up_to(w, &alone, ends.later_calls));
        let alone = format!("/[^`]*/{before_short}{not} & ~/(?s:.*)({})/", ends.opener);
        all.extend(leads.iter().map(|lead| format!("{} {goes_on}", w.lazy(&format!("({alone}) /{lead}/")))));
        all.extend(up_to(w, &format!("/[^`]*/{outside}{not}"), ends.markers));
        all
    };
    let again = plain(w, "");
    w.define(&after_code, &again.join("|"));
    let after_line = [again, vec![code.clone()]].concat();
    w.define(&text, &after_line.join("|"));
    if let Some(short) = ends.short {
        let mut all: Vec<String> = short.calls.iter().map(|(tail, next)| format!("{} {next}", w.regex(tail))).collect();
        all.extend(plain(w, &format!(" & ~/({})(?s:.*)/", short.called)));
        all.push(code.clone());
        w.define(&goes_on, &all.join("|"));
    }
    let lexeme = |w: &mut Writer, regex: &str| w.terminal(&format!("/{regex}/{anywhere}"));
    let whole = lexeme(w, &whole_code());
    let mut all = vec![format!("{whole} {after_code}"), format!("{} {text}", lexeme(w, UNCLOSED))];
    for kind in &KINDS {
        let unfinished = lexeme(w, &kind.unfinished());
        all.extend(then(&unfinished, ends.tails));
        all.extend(up_to(w, &format!("/{}/{anywhere}", kind.unfinished()), ends.markers));
        if ends.tokens.is_empty() {
            continue;
        }
        // A token within code.
        let rest = w.reserve();
        let CodeKind { inner, end, part_of_end, .. } = kind;
        let more = lexeme(w, &format!("{inner}+{part_of_end}"));
        let mut after = [ends.tails.to_vec(), then(&more, ends.tails)].concat();
        after.push(format!("{} {after_code}", lexeme(w, &format!("{inner}*{end}"))));
        if kind.part_of_end.is_empty() {
            after.push(format!("{} {text}", lexeme(w, &format!(r"{inner}*\n"))));
        }
        after.extend(up_to(w, &format!("/{inner}*/{anywhere}"), ends.markers));
        after.extend(ends.tokens.iter().map(|token| format!("{more}? {token} {rest}")));
        w.define(&rest, &after.join("|"));
        all.extend(ends.tokens.iter().map(|token| format!("{unfinished} {token} {rest}")));
    }
    w.define(&code, &all.join("|"));
    if place == TextPlace::Reasoning {
        return after_line;
    }

    // At the beginning, fences may be layout around calls.
    let blank = w.regex(r"[ \t\r\n]+");
    let mut fenced = vec![code.clone()];
    for (regex, next) in ends.calls.iter().chain(ends.later_calls) {
        fenced.push(format!("{} {next}", w.lazy(&format!("/{LAYOUT}{regex}/"))));
    }
    if let Some(ShortCalls { lead, calls, .. }) = ends.short {
        let lexeme = |w: &mut Writer, tail: &str| w.lazy(&format!("/{LAYOUT}{lead}{tail}/"));
        fenced.extend(calls.iter().map(|(tail, next)| format!("{} {next}", lexeme(w, tail))));
    }
    let beginning = |w: &mut Writer, not: &str, fenced: &[String]| {
        let fenced = w.rule(&fenced.join("|"));
        [plain(w, not), vec![format!("{blank}? {fenced}")]].concat()
    };
    if place == TextPlace::AfterCall {
        let again = beginning(w, "", &fenced);
        let again = w.rule(&again.join("|"));
        fenced.push(format!("{} {again}", w.lazy(&format!("/{BLOCK_END}/"))));
    }
    beginning(w, &not, &fenced)
}

#[cfg(test)]
mod tests;
