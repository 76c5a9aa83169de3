//! Constraints on the text of a string.

use regex_syntax::hir::Hir;

use super::formats::{FormatTexts, StringFormat, format};
use super::pattern::{Reading, found_in, literal, of_length};
use super::spelled::{Quotes, spelled, spelling_price};
use super::{Compiler, Dialect, Schema};
use crate::budget::Budget;
use crate::json_schema::{count, each};
use crate::lark::{Price, is_empty, price, price_to_compile};
use crate::rules::RuleError;

/// A set of texts.
#[derive(Clone)]
pub(super) enum Texts {
    Own(Hir),
    Format(&'static FormatTexts),
}

impl Texts {
    fn takes_empty(&self) -> bool {
        takes_empty(match self {
            Self::Own(texts) => texts,
            Self::Format(format) => &format.texts,
        })
    }

    fn regex(&self, quotes: Quotes) -> String {
        match self {
            Self::Own(texts) => regex(texts, quotes),
            Self::Format(format) => format!("/{}/", format.spelled(quotes)),
        }
    }
}

fn takes_empty(texts: &Hir) -> bool {
    texts.properties().minimum_len() == Some(0)
}

fn regex(texts: &Hir, quotes: Quotes) -> String {
    format!("/{}/", spelled(texts, quotes))
}

/// The constraints of a schema on the text of a string.
#[derive(Default)]
pub(super) struct TextConstraints {
    /// Sets that contain it.
    pub all: Vec<Texts>,
    /// Sets that do not contain it.
    pub none: Vec<Hir>,
}

impl TextConstraints {
    pub fn is_free(&self) -> bool {
        self.all.is_empty() && self.none.is_empty()
    }

    pub fn takes_empty(&self) -> bool {
        self.all.iter().all(Texts::takes_empty) && !self.none.iter().any(takes_empty)
    }

    /// The cost of matching such a text, and whether there is one.
    pub fn price(&self, budget: &mut Budget) -> Result<Price, RuleError> {
        // A test holds that each format is affordable.
        if matches!(self.all.as_slice(), [Texts::Format(_)]) && self.none.is_empty() {
            return Ok(Price::Affordable);
        }
        match self.can_be_spelled(budget)? {
            true => price(&self.expression(Quotes::Raw), budget),
            false => Ok(Price::Costly),
        }
    }

    /// Spends the steps of spelling such a text. False: there are not enough.
    fn can_be_spelled(&self, budget: &mut Budget) -> Result<bool, RuleError> {
        let own = self.all.iter().filter_map(|texts| match texts {
            Texts::Own(texts) => Some(texts),
            Texts::Format(_) => None,
        });
        let steps: u64 = own.chain(&self.none).map(spelling_price).sum();
        let left = budget.left();
        if steps > left && !budget.gives_up() {
            return Ok(false);
        }
        // What cannot be afforded uses up the budget, which ends a first attempt.
        budget.spend(steps.min(left))?;
        Ok(true)
    }

    /// The cost of compiling such a text. Keys are short, so the cost of each token is left to its own limit.
    pub fn price_to_compile(&self, budget: &mut Budget) -> Result<Price, RuleError> {
        match self.can_be_spelled(budget)? {
            true => price_to_compile(&self.expression(Quotes::Raw), budget),
            false => Ok(Price::Costly),
        }
    }

    /// Whether there is no such text. False if that is hard to decide.
    pub fn is_empty(&self, budget: &mut Budget) -> Result<bool, RuleError> {
        is_empty(&self.expression(Quotes::Raw), budget)
    }

    /// An expression of terminals.
    pub fn expression(&self, quotes: Quotes) -> String {
        let mut all: Vec<String> = self.all.iter().map(|texts| texts.regex(quotes)).collect();
        if all.is_empty() {
            all.push(regex(&of_length(0, None), quotes));
        }
        if !self.none.is_empty() {
            let none: Vec<_> = self.none.iter().map(|texts| regex(texts, quotes)).collect();
            all.push(format!("~({})", none.join(" | ")));
        }
        all.join(" & ")
    }
}

impl Compiler<'_, '_, '_> {
    /// The constraints on a string's text that can be expressed and are cheap to match. None: nothing satisfies them.
    pub(super) fn texts(&mut self, flat: &Schema, path: &str) -> Result<Option<TextConstraints>, RuleError> {
        let mut constraints = TextConstraints::default();
        let mut keywords = Vec::new();
        for keyword in ["minLength", "maxLength", "pattern", "format"] {
            for value in flat.get(keyword).map(each).unwrap_or_default() {
                let texts = match keyword {
                    "minLength" => count(flat, keyword).map(|min| Texts::Own(of_length(min, None))),
                    "maxLength" => count(flat, keyword).map(|max| Texts::Own(of_length(0, Some(max)))),
                    "pattern" => value.as_str().and_then(|one| found_in(one, Reading::Narrow)).map(Texts::Own),
                    _ => match value.as_str().map(format) {
                        Some(StringFormat::Known(texts)) => Some(Texts::Format(texts)),
                        Some(StringFormat::NotExpressible) => None,
                        Some(StringFormat::Unknown) | None => continue,
                    },
                };
                match texts.filter(|_| !self.work.loose) {
                    Some(texts) => {
                        constraints.all.push(texts);
                        keywords.push(keyword);
                    }
                    None => self.relax(path, keyword),
                }
            }
        }
        // Lengths cost most in combination: they are omitted first.
        while !keywords.is_empty() {
            match constraints.price(self.work.budget)? {
                Price::Affordable => break,
                Price::Empty => return Ok(None),
                Price::Costly => {
                    let sized = keywords.iter().rposition(|keyword| matches!(*keyword, "minLength" | "maxLength"));
                    let at = sized.unwrap_or(keywords.len() - 1);
                    constraints.all.remove(at);
                    let keyword = keywords.remove(at);
                    self.relax_costly(path, keyword);
                }
            }
        }
        Ok(Some(constraints))
    }

    /// The constraints without these texts, if they can be spelled at a bounded cost.
    pub(super) fn excluding<'v>(
        &mut self,
        mut constraints: TextConstraints,
        texts: impl Iterator<Item = &'v str>,
        path: &str,
    ) -> Result<TextConstraints, RuleError> {
        let excluded = TextConstraints { all: Vec::new(), none: texts.map(literal).collect() };
        match excluded.can_be_spelled(self.work.budget)? {
            true => constraints.none.extend(excluded.none),
            false => self.relax_costly(path, "not"),
        }
        Ok(constraints)
    }

    /// A string with such a text, in any spelling.
    pub(super) fn quoted_text(&mut self, constraints: &TextConstraints) -> String {
        let body = match self.dialect {
            Dialect::Bare(mark) => return self.marked(&constraints.expression(Quotes::Raw), mark),
            Dialect::Json | Dialect::Elements(_) | Dialect::Tagged(_) => constraints.expression(Quotes::Json),
            Dialect::Python => {
                format!("({}) | ({})", constraints.expression(Quotes::Double), constraints.expression(Quotes::Single))
            }
        };
        self.w().terminal(&body)
    }
}

/// Whether no text matches both patterns. False if that is hard to decide.
pub(super) fn exclusive(a: &str, b: &str, budget: &mut Budget) -> Result<bool, RuleError> {
    let all: Option<Vec<_>> =
        [a, b].map(|pattern| found_in(pattern, Reading::Wide).map(Texts::Own)).into_iter().collect();
    all.map_or(Ok(false), |all| TextConstraints { all, none: Vec::new() }.is_empty(budget))
}
