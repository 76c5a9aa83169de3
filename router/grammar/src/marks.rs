//! What the parser looks for, compiled from a format's steps. It does not parse.

use crate::announced::sees_code;
use crate::codec::params::Shape;
use crate::format::{CallPosition, Codec, Format, Markers, Step, marker};
use crate::header::label;
use crate::scan::FRAME;
use crate::unmarked::{bare, bare_list};

/// The meaning of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Think,
    EndThink,
    TextOpen,
    TextClose,
    /// Begins the tool section.
    Begin,
    End,
    /// The first marker of a call.
    Open,
    /// A later marker of a call, before the name: models omit what precedes it.
    Inner,
    /// A later marker of a call, after the name.
    Argument,
    Param,
    ParamInner,
    ParamEnd,
    /// After the arguments.
    Close,
    /// Has no meaning.
    Ignored,
}

impl Mark {
    /// Whether it ends text and reasoning.
    pub fn enters_calls(self) -> bool {
        matches!(self, Mark::Begin | Mark::Open | Mark::Inner)
    }

    pub fn is_tool(self) -> bool {
        !matches!(self, Mark::Think | Mark::EndThink | Mark::TextOpen | Mark::TextClose | Mark::Ignored)
    }
}

/// How a call starts inside its section without a marker of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inline {
    Object,
    Name,
}

/// What ends a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderEnd {
    Mark(&'static str),
    /// This character or the end of the line.
    Char(char),
    /// The `{` of the arguments, which belongs to them.
    Brace,
    /// Whatever marker the arguments start with.
    Arguments,
}

/// A boundary that consists of a marker, words and a marker, in formats whose boundaries start with the same marker.
#[derive(Debug)]
pub(crate) struct Phrase {
    pub mark: Mark,
    pub opener: &'static str,
    pub steps: &'static [Step],
}

#[derive(Debug)]
pub(crate) struct Blocks {
    pub openers: Vec<&'static str>,
    pub ends: Vec<&'static str>,
    pub phrases: Vec<Phrase>,
}

impl Blocks {
    /// The boundary of a head: by the attribute that names something, otherwise by its word.
    pub fn classify(&self, opener: Option<&str>, head: &str) -> Option<&Phrase> {
        let phrases = || self.phrases.iter().filter(|p| opener.is_none_or(|o| p.opener == o));
        let named = |p: &&Phrase| p.label().is_some_and(|l| find_word(head, l));
        let worded = |p: &&Phrase| {
            let word =
                p.steps.iter().find_map(|s| if let Step::Lit(l) = s { l.split_whitespace().next() } else { None });
            p.label().is_none() && word.is_some_and(|w| head.split_whitespace().any(|h| h == w))
        };
        phrases().find(named).or_else(|| phrases().find(worded))
    }

    /// The attribute that names the tool, which may come before the call's first marker.
    pub fn call(&self) -> Option<&Phrase> {
        self.phrases.iter().find(|p| p.mark == Mark::Open)
    }
}

impl Phrase {
    pub fn label(&self) -> Option<&'static str> {
        self.attribute().map(|(key, _)| key)
    }

    /// The attribute that names something, and the prefix of its value.
    pub fn attribute(&self) -> Option<(&'static str, &'static str)> {
        let at = self.steps.iter().position(|s| matches!(s, Step::Name | Step::Key))?;
        match self.steps[..at].last() {
            Some(Step::Lit(l)) => label(l),
            _ => None,
        }
    }

    /// Its words without attributes.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        let literals = self.steps.iter().filter_map(|s| if let Step::Lit(l) = s { Some(*l) } else { None });
        literals.flat_map(str::split_whitespace).filter(|word| !word.contains('='))
    }
}

fn find_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(n, _)| !text[..n].ends_with(|c: char| c.is_alphanumeric()))
}

#[derive(Debug)]
pub(crate) struct Lexicon {
    pub marks: Vec<(Mark, &'static str)>,
    /// Bytes that a marker or a special token may start with.
    pub leads: [bool; 256],
    pub blocks: Option<Blocks>,
    pub inline: Option<Inline>,
    /// Whether the name precedes the arguments.
    pub names_in_header: bool,
    pub shape: Option<Shape>,
    pub header_end: HeaderEnd,
    /// The marker before the name. Empty if it is the call's first marker, or there is none.
    pub name_mark: &'static str,
    /// Markers after the arguments, in order.
    pub post: Vec<&'static str>,
    /// Literals around calls without blanks, longest first.
    pub layout: Vec<&'static str>,
    /// Ends a section that no marker ends.
    pub closer: Option<char>,
    /// No marker ends calls, so that text may follow them.
    pub open_ended: bool,
    /// Calls start without a marker: with this character, at the start of the text.
    pub bare: Option<char>,
    /// Models omit the marker before a list of calls.
    pub bare_list: bool,
    /// What is not a call is text, because the markers are letters that may be meant literally.
    pub doubtful: bool,
    /// Calls in code are text.
    pub sees_code: bool,
    /// The literal after the marker that begins reasoning.
    pub title: &'static str,
    /// The common prefix of all markers of the section, if they have one: opening and closing.
    pub namespace: Option<[String; 2]>,
}

impl Lexicon {
    pub fn new(format: &'static Format) -> Self {
        let (pre, post) = format.around_arguments();
        let name = pre.iter().position(|s| *s == Step::Name);
        let shape = match format.codec() {
            Codec::Params(steps) => Shape::of(steps),
            _ => None,
        };
        let toks = |steps: &'static [Step]| -> Vec<&'static str> { steps.iter().filter_map(marker).collect() };
        let blocks = blocks(format);
        let mut marks: Vec<(Mark, &'static str)> = Vec::new();
        let mut add = |mark: Mark, tok: Option<&&'static str>| {
            if let Some(tok) = tok
                && !marks.iter().any(|(_, m)| m == tok)
            {
                marks.push((mark, tok));
            }
        };
        let rest = |add: &mut dyn FnMut(Mark, Option<&&'static str>), steps| {
            toks(steps).iter().skip(1).for_each(|t| add(Mark::Ignored, Some(t)));
        };
        if let Some(r) = &format.reasoning {
            for (mark, steps) in [(Mark::Think, r.open), (Mark::EndThink, r.close)] {
                add(mark, toks(steps).first());
                steps.iter().filter(|s| matches!(s, Step::Maybe(_))).for_each(|s| add(mark, marker(s).as_ref()));
            }
        }
        for wrap in [Some(&format.text), format.preamble.as_ref()].into_iter().flatten() {
            add(Mark::TextOpen, toks(wrap.open).first());
            add(Mark::TextClose, toks(wrap.close).first());
        }
        add(Mark::Begin, toks(format.begin).first());
        if marker_first(format.call) {
            add(Mark::Open, toks(format.call).first());
        }
        for (i, step) in pre.iter().enumerate() {
            let mark = if name.is_none_or(|n| i < n) { Mark::Inner } else { Mark::Argument };
            add(mark, marker(step).as_ref());
        }
        if let Some(shape) = &shape {
            add(Mark::Param, Some(&shape.open));
            add(Mark::ParamInner, shape.key_mark.as_ref());
            add(Mark::ParamInner, shape.value_mark.as_ref());
            add(Mark::ParamEnd, Some(&shape.close));
        }
        toks(post).iter().for_each(|t| add(Mark::Close, Some(t)));
        add(Mark::End, toks(format.end).first());
        rest(&mut add, format.begin);
        rest(&mut add, format.end);
        toks(format.finish).iter().for_each(|t| add(Mark::Ignored, Some(t)));
        if let Some(blocks) = &blocks {
            marks.retain(|(_, m)| !blocks.openers.contains(m) && !blocks.ends.contains(m));
        }

        let mut leads = [false; 256];
        leads[usize::from(FRAME)] = true;
        if format.markers == Markers::Either {
            for lead in marks.iter().filter_map(|(_, m)| m.as_bytes().first()) {
                leads[usize::from(*lead)] = true;
            }
        }
        let inline = match format.call.first() {
            Some(Step::Args(Codec::Object { .. } | Codec::Keyed)) => Some(Inline::Object),
            Some(Step::Name) => Some(Inline::Name),
            _ => None,
        };
        let spelled = |steps: &'static [Step]| steps.iter().any(|s| matches!(s, Step::Tok(_)));
        let cores = |steps: &'static [Step]| {
            steps
                .iter()
                .filter_map(|s| if let Step::Lit(l) = s { Some(l.trim()) } else { None })
                .filter(|l| !l.is_empty())
        };
        let around = [format.begin, format.between, format.end, post];
        let mut layout: Vec<&'static str> = around.into_iter().flat_map(cores).collect();
        layout.sort_by_key(|l| std::cmp::Reverse(l.len()));
        let open_ended = blocks.is_none() && !spelled(format.end) && !spelled(post);
        Lexicon {
            header_end: header_end(pre, name, format.codec()),
            name_mark: name
                .and_then(|n| pre[..n].iter().rev().find_map(marker))
                .filter(|m| toks(pre).first() != Some(m))
                .unwrap_or_default(),
            names_in_header: name.is_some(),
            post: toks(post),
            closer: if spelled(format.end) { None } else { cores(format.end).next().and_then(|l| l.chars().next()) },
            open_ended,
            bare: bare(format),
            bare_list: bare_list(format),
            doubtful: format.calls == CallPosition::InsteadOfText && format.markers == Markers::Either,
            sees_code: sees_code(format),
            title: match format.reasoning.as_ref().map(|reasoning| reasoning.open) {
                Some([Step::Tok(_), Step::Lit(title)]) => title,
                _ => "",
            },
            namespace: namespace(format),
            marks,
            leads,
            blocks,
            inline,
            shape,
            layout,
        }
    }

    pub fn mark(&self, text: &str) -> Option<Mark> {
        self.marks.iter().find(|(_, m)| *m == text).map(|(mark, _)| *mark)
    }

    /// The text without the literals around calls at its ends.
    pub fn without_layout<'a>(&self, text: &'a str) -> &'a str {
        let mut text = text.trim();
        loop {
            let shorter = self.layout.iter().find_map(|l| text.strip_prefix(l).or_else(|| text.strip_suffix(l)));
            match shorter {
                Some(t) => text = t.trim(),
                None => return text,
            }
        }
    }
}

fn marker_first(steps: &[Step]) -> bool {
    matches!(steps.first(), Some(Step::Tok(_)))
}

fn header_end(pre: &'static [Step], name: Option<usize>, codec: Codec) -> HeaderEnd {
    let after = &pre[name.map_or(pre.len(), |n| n + 1)..];
    if let Some(mark) = after.iter().rev().find_map(marker) {
        return HeaderEnd::Mark(mark);
    }
    if matches!(codec, Codec::Json | Codec::Bare(_)) {
        return HeaderEnd::Brace;
    }
    let last = after.iter().rev().find_map(|s| if let Step::Lit(l) = s { l.trim().chars().next_back() } else { None });
    last.map_or(HeaderEnd::Arguments, HeaderEnd::Char)
}

/// None: each of the format's boundaries has its own first marker.
fn blocks(format: &'static Format) -> Option<Blocks> {
    let (pre, post) = format.around_arguments();
    let params: &'static [Step] = match format.codec() {
        Codec::Params(steps) => steps,
        _ => &[],
    };
    let value = params.iter().position(|s| *s == Step::Value);
    let (head, tail) = value.map_or((params, &[][..]), |n| (&params[..n], &params[n + 1..]));
    let mut lists: Vec<(Mark, &'static [Step])> = Vec::new();
    if let Some(r) = &format.reasoning {
        lists.extend([(Mark::Think, r.open), (Mark::EndThink, r.close)]);
    }
    for wrap in [Some(&format.text), format.preamble.as_ref()].into_iter().flatten() {
        lists.extend([(Mark::TextOpen, wrap.open), (Mark::TextClose, wrap.close)]);
    }
    lists.extend([
        (Mark::Begin, format.begin),
        (Mark::End, format.end),
        (Mark::Open, pre),
        (Mark::Param, head),
        (Mark::ParamEnd, tail),
        (Mark::Close, post),
        (Mark::Ignored, format.finish),
    ]);
    let firsts: Vec<&str> =
        lists.iter().filter(|(_, l)| !l.is_empty()).filter_map(|(_, l)| marker(l.first()?)).collect();
    let shared = |tok: &str| firsts.iter().filter(|f| **f == tok).count() > 1;
    if !lists.iter().any(|(m, l)| *m == Mark::Open && l.first().and_then(marker).is_some_and(shared)) {
        return None;
    }
    let (mut openers, mut ends, mut phrases) = (Vec::new(), Vec::new(), Vec::new());
    for (mark, list) in lists {
        for (i, step) in list.iter().enumerate() {
            let Some(tok) = marker(step) else { continue };
            if list.get(i + 1).is_some_and(|s| marker(s).is_none()) {
                openers.push(tok);
            } else if i > 0 && marker(&list[i - 1]).is_none() {
                ends.push(tok);
            }
        }
        let words = |s: &Step| marker(s).is_none();
        if let Some(opener) = list.first().and_then(marker)
            && list.get(1).is_some_and(words)
        {
            let end = list.iter().rposition(|s| marker(s).is_some()).unwrap_or(list.len());
            phrases.push(Phrase { mark, opener, steps: &list[1..end.max(1)] });
        }
    }
    ends.retain(|e| !openers.contains(e));
    Some(Blocks { openers, ends, phrases })
}

/// The common letters of the section's and the calls' markers after the bracket, up to a sign: `｜DSML｜`, not
/// `tool_call`.
fn namespace(format: &'static Format) -> Option<[String; 2]> {
    let (Some(Step::Tok(begin)), Some(Step::Tok(call))) = (format.begin.first(), format.call.first()) else {
        return None;
    };
    if format.markers == Markers::Special {
        return None;
    }
    let common: String = begin.chars().zip(call.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let inner = common.strip_prefix('<').filter(|c| c.len() > 1 && !c.ends_with(word))?;
    Some([common.clone(), format!("</{inner}")])
}
