//! The vocabulary of a model for the grammars of a format. It compiles none.

use std::collections::HashSet;

use rein_grammar::{Format, Vocab};

use crate::model_text::ModelText;
use crate::tokenize::Encode;

impl ModelText {
    /// Which tokens are control tokens depends on the format.
    ///
    /// # Errors
    /// Why there is none.
    pub fn vocabulary(&self, format: &'static Format) -> Result<Vocab, String> {
        let template = self.template_source();
        // An added token in the template structures the conversation, unless the format spells its markers with it.
        let structural =
            |text: &str| !text.trim().is_empty() && template.contains(text) && !format.spells_markers_with(text);
        let tokenizer = &self.tokenizer;
        let control: HashSet<u32> = tokenizer
            .added_tokens()
            .filter(|(id, text)| format.is_control(text, tokenizer.is_control(*id)) || structural(text))
            .map(|(id, _)| id)
            .chain(self.stop_token_ids.iter().copied())
            .collect();
        let tokens = (0..self.vocab_size as u32).map(|id| {
            let bytes = tokenizer.token_bytes(id).map(|bytes| bytes.into_owned()).unwrap_or_default();
            (bytes, control.contains(&id))
        });
        let (tokenizer, controls) = (tokenizer.clone(), control.clone());
        // Models emit an added token that is text as one token, as in training. Nothing is forced that the tokenizer
        // cannot encode.
        let encode = move |text: &str| {
            let encode = |how| tokenizer.encode(text, how).unwrap_or(Vec::new());
            let whole = encode(Encode::TEMPLATED);
            if whole.iter().any(|id| controls.contains(id)) { encode(Encode::TEXT) } else { whole }
        };
        Vocab::new(tokens, &self.stop_token_ids, Some(Box::new(encode))).map_err(|error| error.to_string())
    }
}
