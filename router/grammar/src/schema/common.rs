//! Regular expressions that most schemas need, for a lexer in which they are parsed once.

use super::formats::{StringFormat, format};
use super::members::Punctuation;
use super::scalar;
use super::spelled::Quotes;
use crate::lark::GrammarForm;

/// Regular expressions that the grammars of most schemas have.
pub(crate) fn common_regexes() -> Vec<String> {
    let marks = Punctuation::ALL.map(|mark| mark.of_form(GrammarForm::Tolerant).to_owned());
    let spelled = |name| match format(name) {
        StringFormat::Known(format) => Some(format.spelled(Quotes::Json).to_owned()),
        _ => None,
    };
    let formats = ["date", "time", "date-time"].into_iter().filter_map(spelled);
    marks.into_iter().chain(scalar::common_regexes()).chain(formats).collect()
}
