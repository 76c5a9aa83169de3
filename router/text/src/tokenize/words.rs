//! Splits text into the words of a byte-level tokenizer. The library's own steps do the same and keep the position of
//! each byte in the text, which prompts do not need and which takes longer than all else.

use std::sync::LazyLock;

use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::bytes::alphabet;

static ALPHABET: LazyLock<[char; 256]> = LazyLock::new(alphabet);

/// The steps of a pre-tokenizer that splits by patterns and then spells bytes.
#[derive(Clone, Copy)]
pub(super) struct WordSplitter<'a> {
    splits: &'a [PreTokenizerWrapper],
}

impl<'a> WordSplitter<'a> {
    /// None: the pre-tokenizer has other steps, which the library takes.
    pub fn of(pre_tokenizer: Option<&'a PreTokenizerWrapper>) -> Option<Self> {
        let steps = match pre_tokenizer? {
            PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref(),
            one => std::slice::from_ref(one),
        };
        let (PreTokenizerWrapper::ByteLevel(last), splits) = steps.split_last()? else { return None };
        let isolates = |step: &PreTokenizerWrapper| match step {
            PreTokenizerWrapper::Split(split) => !split.invert && split.behavior == SplitDelimiterBehavior::Isolated,
            _ => false,
        };
        let known = !last.add_prefix_space && !last.use_regex && splits.iter().all(isolates);
        known.then_some(WordSplitter { splits })
    }

    /// Passes on each word, spelled in the alphabet of the tokenizer's vocabulary.
    pub fn words<E>(self, text: &str, each: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        self.split(text, &mut String::new(), each)
    }

    fn split<E>(self, text: &str, word: &mut String, each: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        if text.is_empty() {
            return Ok(());
        }
        let Some((PreTokenizerWrapper::Split(first), splits)) = self.splits.split_first() else {
            word.clear();
            word.extend(text.bytes().map(|byte| ALPHABET[usize::from(byte)]));
            return each(word);
        };
        let rest = WordSplitter { splits };
        let mut done = 0;
        for (from, to) in first.regex.find_iter(text) {
            rest.split(&text[done..from], word, each)?;
            rest.split(&text[from..to], word, each)?;
            done = to;
        }
        rest.split(&text[done..], word, each)
    }
}

#[cfg(test)]
mod tests;
