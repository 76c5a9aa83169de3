//! Decides the format of a model. It does not load files.

use rein_grammar::{Format, ModelDirFacts, PLAIN};

use super::read_back;
use crate::model_text::ModelText;

impl ModelText {
    /// Returns the format of the model: the chosen one, else the one detected from its files, unless the template
    /// itself writes calls in another one: that of its `response_template`, or of the table. Adds the tokens that end a
    /// turn in this format to the stop tokens, because some configuration files do not name them.
    pub fn settle_format(&mut self, chosen: Option<&'static Format>) -> &'static Format {
        let format = chosen.or(self.detected).unwrap_or_else(|| self.detect_format());
        if chosen.is_none() {
            self.detected = Some(format);
        }
        let stops: Vec<u32> = format.stops.iter().filter_map(|stop| self.tokenizer.special_id(stop)).collect();
        self.stop_token_ids.extend(stops);
        self.stop_token_ids.sort_unstable();
        self.stop_token_ids.dedup();
        format
    }
    fn detect_format(&mut self) -> &'static Format {
        let special = |name: &str| self.has_special(name);
        let detect = ModelDirFacts {
            template: self.template.as_ref().map(|_| self.template_source()),
            architecture: Some(&self.architecture),
            special: &special,
        };
        let detected = rein_grammar::detect(&detect).unwrap_or(PLAIN);
        self.contradiction = read_back::contradiction(self, detected);
        let Some(contradiction) = &self.contradiction else { return detected };
        let derived = read_back::derived(self);
        let format = derived.or_else(|| read_back::fitting(self, detected)).unwrap_or(PLAIN);
        let (model, detected, format_name) = (&self.name, detected.name, format.name);
        if derived.is_some() {
            tracing::info!(model, detected, "the format is the one that the model's response_template describes");
        } else {
            tracing::warn!(
                model,
                detected,
                format = format_name,
                "not the detected format: {contradiction}; --format overrides this"
            );
        }
        format
    }
}
