//! Regular expressions that most grammars have, parsed once. Parsing them again took a tenth of a compilation.

use std::collections::HashMap;

use llguidance::derivre::{ExprRef, RegexAst};
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};

/// Each grammar's lexer starts with a copy of `spec`, in which `known` are parsed.
pub(crate) struct Common {
    pub(super) spec: LexerSpec,
    pub(super) class: LexemeClass,
    known: HashMap<String, ExprRef>,
}

impl Common {
    /// None: llguidance rejects one of the expressions.
    pub(crate) fn new(regexes: &[String]) -> Option<Self> {
        let mut spec = LexerSpec::new().ok()?;
        let class = spec.setup_lexeme_class(RegexAst::NoMatch).ok()?;
        spec.regex_builder.unicode(true).utf8(true);
        spec.no_forcing = true;
        let known = regexes.iter().map(|regex| Some((regex.clone(), spec.regex_builder.mk_regex(regex).ok()?)));
        let known = known.collect::<Option<_>>()?;
        Some(Self { spec, class, known })
    }

    pub(super) fn known(&self, regex: &str) -> Option<ExprRef> {
        self.known.get(regex).copied()
    }
}

/// Regular expressions of every output, whatever its format and schemas.
pub(crate) fn regexes() -> Vec<String> {
    vec![super::layout(), super::some_blanks(), super::SOME_TEXT.to_owned()]
}
