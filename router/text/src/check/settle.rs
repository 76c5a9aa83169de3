//! Decides the format of a model. It does not load files.

use rein_grammar::{Format, ModelDirFacts, PLAIN};

use super::read_back;
use crate::model_text::ModelText;

impl ModelText {
    /// Returns the format of the model: the chosen one, else the one detected from its files, unless the template
    /// itself writes calls in another one. Adds the tokens that end a turn in this format to the stop tokens, because
    /// some configuration files do not name them.
    pub fn settle_format(&mut self, chosen: Option<&'static Format>) -> &'static Format {
        let special = |name: &str| self.has_special(name);
        let detect = ModelDirFacts {
            template: self.template.as_ref().map(|_| self.template_source()),
            architecture: Some(&self.architecture),
            special: &special,
        };
        let format = match chosen {
            Some(chosen) => chosen,
            None => {
                let detected = rein_grammar::detect(&detect).unwrap_or(PLAIN);
                self.contradiction = read_back::contradiction(self, detected);
                match &self.contradiction {
                    Some(contradiction) => {
                        let format = read_back::fitting(self, detected).unwrap_or(PLAIN);
                        let model = &self.name;
                        tracing::warn!(
                            model,
                            detected = detected.name,
                            format = format.name,
                            "not the detected format: {contradiction}; --format overrides this"
                        );
                        format
                    }
                    None => detected,
                }
            }
        };
        let stops: Vec<u32> = format.stops.iter().filter_map(|stop| self.tokenizer.special_id(stop)).collect();
        self.stop_token_ids.extend(stops);
        self.stop_token_ids.sort_unstable();
        self.stop_token_ids.dedup();
        format
    }
}
