//! A request's generation with every default filled in, for one prompt.

use rein_grammar::Compiled;
use rein_proto::{
    internal::{self, Start},
    protocol, v1,
};
use rein_text::stop_strings::{Stop, StopStrings};

use super::Grammar;
use crate::{
    error::Error,
    hash::{STRIDE, mix},
    request::{
        choice::{SteeredOutput, ThinkingBudget},
        grammar_session::{self, GrammarSession, Restrictions},
        job::{Generation, Truncation},
        model::{Bounds, ServedModel},
    },
};

/// A request's generation with every default filled in, for one prompt.
#[derive(Debug, Clone)]
pub struct Plan {
    sampling: internal::Sampling,
    pub(super) limits: internal::Limits,
    pub(super) named_stop_ids: Vec<u32>,
    pub(super) stops: StopStrings,
    /// Stops that are markers of calls: see [`Plan::spare_calls`].
    pub(super) marker_stops: Vec<(&'static str, Stop)>,
    pub(super) n: u32,
    pub(super) logprobs: Option<u32>,
    pub(super) prompt_logprobs: Option<u32>,
    pub(super) token_ids: bool,
    pub(super) grammar_report: bool,
    pub(super) decisions: bool,
    pub(super) cache_salt: String,
    script: Vec<u32>,
    restrictions: Restrictions,
    thinking: Option<ThinkingBudget>,
    vocab: usize,
    /// Compute the prompt and generate nothing.
    pub(super) score_only: bool,
}

/// What depends on the surface and not on the request.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// The request field that holds the prompt.
    pub prompt: &'static str,
    /// None: the model's generation_config, then as many as the context takes.
    pub max_tokens: Option<u32>,
}

impl Plan {
    pub fn new(
        generation: &Generation,
        model: &ServedModel,
        bounds: Bounds,
        prompt: usize,
        defaults: Defaults,
        seed: u64,
    ) -> Result<Self, Error> {
        let asked = &generation.limits;
        let score_only = asked.max_tokens == Some(0);
        let defaults =
            Defaults { max_tokens: defaults.max_tokens.or(model.text.generation.max_new_tokens), ..defaults };
        let max_tokens = max_tokens(generation, bounds, prompt, defaults)?;
        let eos: &[u32] = if asked.ignore_eos { &[] } else { &model.text.stop_token_ids };
        let mut stop_token_ids = [eos, &asked.stop_token_ids].concat();
        stop_token_ids.sort_unstable();
        stop_token_ids.dedup();
        if !generation.script.is_empty() && !bounds.scripted {
            return Err(Error::unsupported("script", "only the sim engine takes one"));
        }
        Ok(Plan {
            sampling: sampling(&generation.sampling, model, seed),
            limits: internal::Limits {
                max_tokens,
                min_tokens: asked.min_tokens.unwrap_or(0),
                ignore_eos: stop_token_ids.is_empty(),
                stop_token_ids,
            },
            named_stop_ids: asked.stop_token_ids.clone(),
            stops: StopStrings::new(asked.stop.clone(), asked.include_stop),
            marker_stops: Vec::new(),
            n: generation.choices(),
            logprobs: generation.logprobs,
            prompt_logprobs: generation.prompt_logprobs,
            token_ids: generation.return_token_ids,
            grammar_report: generation.return_grammar || generation.return_decisions,
            decisions: generation.return_decisions,
            cache_salt: generation.cache_salt.clone().unwrap_or_default(),
            script: generation.script.clone(),
            restrictions: restrictions(&generation.sampling, model, bounds)?,
            thinking: thinking(generation, model)?,
            vocab: bounds.vocab as usize,
            score_only,
        })
    }

    /// Where tools can be called: a stop that is a marker of the format's calls ends the answer behind the call that
    /// the marker is a part of, and never inside it. The engine does not know such a stop.
    pub fn spare_calls(&mut self, model: &ServedModel) {
        let eos = &model.text.stop_token_ids;
        let token = |id: &&u32| !eos.contains(id);
        let token = self.named_stop_ids.iter().filter(token).filter_map(|id| {
            let marker = model.format.call_marker(model.text.tokenizer.special(*id)?)?;
            Some((marker, Stop::Token(*id)))
        });
        let text = |text: &String| Some((model.format.call_marker(text)?, Stop::Text(text.clone())));
        self.marker_stops = token.chain(self.stops.strings().iter().filter_map(text)).collect();
        let spared = |id: &u32| self.marker_stops.iter().any(|(_, stop)| *stop == Stop::Token(*id));
        self.limits.stop_token_ids.retain(|id| !spared(id));
        self.limits.ignore_eos = self.limits.stop_token_ids.is_empty();
    }

    pub(super) fn start(&self, request_id: &str, choice: u32, prompt: &[u32], grammar: Option<&Grammar>) -> Start {
        let width = |wanted: Option<u32>| wanted.map_or(-1, |n| n as i32);
        Start {
            request_id: format!("{request_id}-{choice}"),
            prompt: prompt.to_vec(),
            resume: Vec::new(),
            sampling: Some(internal::Sampling {
                seed: derived_seed(self.sampling.seed, choice % self.n),
                ..self.sampling.clone()
            }),
            limits: Some(self.limits.clone()),
            hold: self.score_only || self.masks_always(grammar),
            cache_salt: self.cache_salt.clone(),
            logprobs: width(self.logprobs),
            // The choices of a prompt share its logprobs.
            prompt_logprobs: if choice.is_multiple_of(self.n) { width(self.prompt_logprobs) } else { -1 },
            finish_is_proposal: self.is_guided(grammar),
            script: self.script.clone(),
            protocol: protocol::NUMBER,
            version: protocol::VERSION.into(),
        }
    }

    /// Whether drawn tokens are judged.
    fn is_guided(&self, grammar: Option<&Grammar>) -> bool {
        grammar.is_some() || !self.restrictions.is_empty() || self.thinking.is_some()
    }

    fn masks_always(&self, grammar: Option<&Grammar>) -> bool {
        self.restrictions.are_narrow() || grammar.is_some_and(|grammar| grammar.always)
    }

    pub(super) fn steered(&self, grammar: Option<&Grammar>) -> Result<Option<SteeredOutput>, Error> {
        if !self.is_guided(grammar) {
            return Ok(None);
        }
        let compiled = grammar.map(|grammar| &grammar.compiled);
        let rules = grammar_session::SessionRules {
            matcher: compiled.map(Compiled::matcher).transpose().map_err(Error::from_matcher)?,
            restrictions: self.restrictions.clone(),
            opening: compiled.map(|compiled| compiled.opening().to_vec()).unwrap_or_default(),
            stop_ids: self.limits.stop_token_ids.clone(),
            vocab: self.vocab,
            always: self.masks_always(grammar),
        };
        let (max_tokens, thinking) = (self.limits.max_tokens, self.thinking.clone());
        let session = GrammarSession::new(rules);
        let session = if self.decisions { session.with_decisions() } else { session };
        Ok(Some(SteeredOutput { session, max_tokens, thinking }))
    }
}

/// A bad word is refused as vLLM refuses it: as the tokens that spell it, at the beginning of a text and after a blank.
fn restrictions(asked: &v1::Sampling, model: &ServedModel, bounds: Bounds) -> Result<Restrictions, Error> {
    let mut words = Vec::new();
    for word in &asked.bad_words {
        let bare = model.tokens(word.trim_start(), "bad_words")?;
        let spaced = model.tokens(&format!(" {}", word.trim_start()), "bad_words")?;
        // A blank of its own would be refused wherever the word could begin.
        if spaced.len() == bare.len() && spaced.first() != bare.first() {
            words.push(spaced);
        }
        words.push(bare);
    }
    Ok(Restrictions::new(&asked.allowed_token_ids, words, bounds.vocab as usize))
}

/// None: no budget, or the model's format has no reasoning.
fn thinking(generation: &Generation, model: &ServedModel) -> Result<Option<ThinkingBudget>, Error> {
    let (Some(tokens), Some(markers)) = (generation.thinking_token_budget, model.reasoning_markers()) else {
        return Ok(None);
    };
    let ids = |text: &str| model.tokens(text, "thinking_token_budget");
    let (open, close) = (ids(&markers.open)?, ids(&markers.close)?);
    let open = open.first().copied().filter(|_| open.len() == 1);
    Ok(Some(ThinkingBudget { tokens, open, close }))
}

/// Keeps the prompt's end, as the request asks.
pub fn truncate(prompt: &mut Vec<u32>, generation: &Generation, bounds: Bounds) {
    let asked = &generation.limits;
    let keep = match generation.truncate_prompt_tokens {
        None => return,
        Some(Truncation::To(tokens)) => tokens,
        Some(Truncation::Fitting) => {
            let generated = asked.max_tokens.unwrap_or(1).max(asked.min_tokens.unwrap_or(0)).max(1);
            bounds.context.saturating_sub(generated).max(1)
        }
    };
    let surplus = prompt.len().saturating_sub(keep as usize);
    prompt.drain(..surplus);
}

fn max_tokens(generation: &Generation, bounds: Bounds, prompt: usize, defaults: Defaults) -> Result<u32, Error> {
    let (context, asked) = (bounds.context, generation.limits.max_tokens);
    if prompt == 0 {
        return Err(Error::invalid(defaults.prompt, format!("'{}' gives a prompt of no tokens", defaults.prompt)));
    }
    // A default gives way to what the request says; a limit of its own is not below 'min_tokens'.
    let least = generation.limits.min_tokens.unwrap_or(0).max(1);
    let wanted = match asked {
        Some(asked) => format!("'{}' asks for {asked} more", generation.max_tokens_param()),
        None if least > 1 => format!("'min_tokens' asks for {least} more"),
        None => "at least 1 more is to be generated".to_owned(),
    };
    let room = (context as usize).saturating_sub(prompt);
    if (context as usize) < prompt || (asked.unwrap_or(least) as usize) > room {
        let message =
            format!("the prompt has {prompt} tokens and {wanted}, but this model's context is {context} tokens");
        return Err(Error { code: Some("context_length_exceeded"), ..Error::invalid(defaults.prompt, message) });
    }
    // `room` is below `context`, so it fits. An engine is asked for at least one token, also if it is stopped before.
    Ok(asked.or(defaults.max_tokens.map(|default| default.max(least))).unwrap_or(u32::MAX).min(room as u32).max(1))
}

/// The request's word, then the model's generation_config, then the API's default.
fn sampling(asked: &v1::Sampling, model: &ServedModel, seed: u64) -> internal::Sampling {
    let model = &model.text.generation;
    let greedy = (model.do_sample == Some(false)).then_some(0.0);
    let mut logit_bias: Vec<_> =
        asked.logit_bias.iter().map(|(&token, &bias)| internal::LogitBias { token, bias }).collect();
    logit_bias.sort_unstable_by_key(|bias| bias.token);
    internal::Sampling {
        temperature: asked.temperature.or(greedy).or(model.temperature).unwrap_or(1.0),
        top_p: asked.top_p.or(model.top_p).unwrap_or(1.0),
        top_k: asked.top_k.or(model.top_k).unwrap_or(0),
        min_p: asked.min_p.or(model.min_p).unwrap_or(0.0),
        repetition_penalty: asked.repetition_penalty.or(model.repetition_penalty).unwrap_or(1.0),
        presence_penalty: asked.presence_penalty.unwrap_or(0.0),
        frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
        logit_bias,
        seed,
    }
}

/// The first choice draws with the request's seed, so that it is the same whatever `n` is.
fn derived_seed(seed: u64, choice: u32) -> u64 {
    if choice == 0 {
        return seed;
    }
    mix(seed.wrapping_add(u64::from(choice - 1).wrapping_mul(STRIDE)))
}

#[cfg(test)]
mod tests;
