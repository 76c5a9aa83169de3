//! The parameters of a generation, with every default filled in, for one prompt.

use rein_grammar::Compiled;
use rein_proto::{
    internal::{self, Start},
    protocol,
    splitmix::{STRIDE, mix},
    v1,
};
use rein_text::{
    model_text::ReasoningMarkers,
    stop_strings::{Stop, StopStrings},
};
use tokio::time::Instant;

use super::Grammar;
use super::choice::{SteeredOutput, ThinkingBudget};
use crate::{
    error::Error,
    limits,
    request::{
        grammar_session::{self, GrammarSession, Restrictions},
        job::{Generation, Truncation},
        model::{Bounds, ServedModel},
    },
};

/// The parameters of a generation, with every default filled in, for one prompt.
#[derive(Debug, Clone)]
pub struct Plan {
    sampling: internal::Sampling,
    pub(super) limits: internal::Limits,
    pub(super) named_stop_ids: Vec<u32>,
    pub(super) stops: StopStrings,
    /// Stops that are markers of calls: see [`Plan::defer_marker_stops`].
    pub(super) marker_stops: Vec<(&'static str, Stop)>,
    pub(super) n: u32,
    pub(super) logprobs: Option<u32>,
    pub(super) prompt_logprobs: Option<u32>,
    pub(super) token_ids: bool,
    pub(super) grammar_report: bool,
    pub(super) report_prompt: bool,
    pub(super) decisions: bool,
    pub(super) cache_salt: String,
    script: Vec<u32>,
    restrictions: Restrictions,
    thinking: Option<ThinkingBudget>,
    /// A JSON answer is finished within `max_tokens`.
    finishes: bool,
    vocab: usize,
    /// Compute the prompt's logprobs and generate nothing.
    pub(super) score_only: bool,
}

/// Defaults that depend on the API, not on the request.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// The request field that holds the prompt.
    pub prompt: &'static str,
    /// None: the model's generation_config.json, then what the context allows.
    pub max_tokens: Option<u32>,
}

impl Plan {
    pub fn new(
        generation: &Generation,
        model: &ServedModel,
        bounds: Bounds,
        prompt: usize,
        defaults: Defaults,
        restrictions: Restrictions,
    ) -> Result<Self, Error> {
        let requested = &generation.limits;
        let score_only = requested.max_tokens == Some(0);
        let defaults =
            Defaults { max_tokens: defaults.max_tokens.or(model.text.generation.max_new_tokens), ..defaults };
        let max_tokens = max_tokens(generation, bounds, prompt, defaults)?;
        let eos: &[u32] = if requested.ignore_eos { &[] } else { &model.text.stop_token_ids };
        let mut stop_token_ids = [eos, &requested.stop_token_ids].concat();
        stop_token_ids.sort_unstable();
        stop_token_ids.dedup();
        // Three quarters of an answer that is to be finished may be reasoning.
        let reasoning = generation.finish_structured.then(|| max_tokens - max_tokens / limits::FINISHING_SHARE);
        if !generation.script.is_empty() && !bounds.scripted {
            return Err(Error::unsupported("script", "only the sim engine supports a script"));
        }
        Ok(Plan {
            sampling: sampling(&generation.sampling, model),
            limits: internal::Limits {
                max_tokens,
                min_tokens: requested.min_tokens.unwrap_or(0),
                ignore_eos: stop_token_ids.is_empty(),
                stop_token_ids,
            },
            named_stop_ids: requested.stop_token_ids.clone(),
            stops: StopStrings::new(requested.stop.clone(), requested.include_stop),
            marker_stops: Vec::new(),
            n: generation.choices(),
            logprobs: generation.logprobs,
            prompt_logprobs: generation.prompt_logprobs,
            token_ids: generation.return_token_ids,
            grammar_report: generation.return_grammar || generation.return_decisions,
            decisions: generation.return_decisions,
            report_prompt: generation.report_prompt,
            cache_salt: generation.cache_salt.clone().unwrap_or_default(),
            script: generation.script.clone(),
            restrictions,
            thinking: thinking(generation, model, reasoning)?,
            finishes: generation.finish_structured,
            vocab: bounds.vocab as usize,
            score_only,
        })
    }

    /// For requests that can call tools: a stop that is a marker of the format's calls ends the answer after the call
    /// that contains the marker, not inside it. The engine does not get such stops.
    pub fn defer_marker_stops(&mut self, model: &ServedModel) {
        let eos = &model.text.stop_token_ids;
        let token = |id: &&u32| !eos.contains(id);
        let token = self.named_stop_ids.iter().filter(token).filter_map(|id| {
            let marker = model.format.call_marker(model.text.tokenizer.special(*id)?)?;
            Some((marker, Stop::Token(*id)))
        });
        let text = |text: &String| Some((model.format.call_marker(text)?, Stop::Text(text.clone())));
        self.marker_stops = token.chain(self.stops.strings().iter().filter_map(text)).collect();
        let deferred = |id: &u32| self.marker_stops.iter().any(|(_, stop)| *stop == Stop::Token(*id));
        self.limits.stop_token_ids.retain(|id| !deferred(id));
        self.limits.ignore_eos = self.limits.stop_token_ids.is_empty();
    }

    /// A marker of reasoning is no stop where a call is required: the answer would end without one.
    pub fn ignore_reasoning_stops(&mut self, model: &ServedModel) {
        let Some(ReasoningMarkers { open, close }) = model.reasoning_markers() else { return };
        let is_marker = |id: &u32| model.text.tokenizer.special(*id).is_some_and(|name| name == open || name == close);
        self.limits.stop_token_ids.retain(|id| !is_marker(id));
    }

    /// Without its caller.
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
            // The choices of a prompt share its logprobs, so only the first computes them.
            prompt_logprobs: if choice.is_multiple_of(self.n) { width(self.prompt_logprobs) } else { -1 },
            finish_is_proposal: self.is_checked(grammar),
            script: self.script.clone(),
            protocol: protocol::NUMBER,
            version: protocol::VERSION.into(),
            ..Start::default()
        }
    }

    /// Whether the router checks drawn tokens.
    fn is_checked(&self, grammar: Option<&Grammar>) -> bool {
        grammar.is_some() || !self.restrictions.is_empty() || self.thinking.is_some()
    }

    fn masks_always(&self, grammar: Option<&Grammar>) -> bool {
        self.restrictions.has_allow_list() || grammar.is_some_and(|grammar| grammar.always_mask)
    }

    pub(super) fn steered_output(&self, grammar: Option<&Grammar>) -> Result<Option<SteeredOutput>, Error> {
        if !self.is_checked(grammar) {
            return Ok(None);
        }
        let compiled = grammar.map(|grammar| &grammar.compiled);
        let rules = grammar_session::SessionRules {
            matcher: compiled.map(Compiled::matcher).transpose().map_err(Error::from_matcher)?,
            // Masks at every step are for comparison, and take the place of no refused draw.
            canonical: compiled.filter(|_| !self.masks_always(grammar)).cloned(),
            loosened: compiled.cloned(),
            restrictions: self.restrictions.clone(),
            call_opening: compiled.map(|compiled| compiled.opening().to_vec()).unwrap_or_default(),
            stop_ids: self.limits.stop_token_ids.clone(),
            vocab: self.vocab,
            always_mask: self.masks_always(grammar),
        };
        let (max_tokens, thinking) = (self.limits.max_tokens, self.thinking.clone());
        let json = compiled.is_some_and(Compiled::answers_json);
        let session = GrammarSession::new(rules);
        let session = if self.decisions { session.with_decisions() } else { session };
        Ok(Some(SteeredOutput { session, max_tokens, thinking, json, finishes: self.finishes, growth: None }))
    }
}

/// The restrictions of a request, for all its prompts: bad words may have much text. As in vLLM, a bad word is the
/// tokens that spell it, once at the beginning of a text and once after a space.
pub fn restrictions(
    requested: &v1::Sampling,
    model: &ServedModel,
    bounds: Bounds,
    deadline: Instant,
) -> Result<Restrictions, Error> {
    let mut words = Vec::new();
    for word in &requested.bad_words {
        if Instant::now() >= deadline {
            return Err(Error::deadline());
        }
        let bare = model.tokens(word.trim_start(), "bad_words")?;
        let spaced = model.tokens(&format!(" {}", word.trim_start()), "bad_words")?;
        // If the space is a token of its own, the tokens after it are those of the bare word.
        if spaced.len() == bare.len() && spaced.first() != bare.first() {
            words.push(spaced);
        }
        words.push(bare);
    }
    Ok(Restrictions::new(&requested.allowed_token_ids, words, bounds.vocab as usize))
}

/// The reasoning budget: the request's, at most `most`. None: there is none, or the model's format has no reasoning.
fn thinking(generation: &Generation, model: &ServedModel, most: Option<u32>) -> Result<Option<ThinkingBudget>, Error> {
    let budget = generation.thinking_token_budget;
    let (Some(tokens), Some(markers)) = (budget.or(most), model.reasoning_markers()) else {
        return Ok(None);
    };
    let tokens = most.map_or(tokens, |most| tokens.min(most));
    let ids = |text: &str| model.tokens(text, "thinking_token_budget");
    let (open, close) = (ids(&markers.open)?, ids(&markers.close)?);
    let open = open.first().copied().filter(|_| open.len() == 1);
    Ok(Some(ThinkingBudget { tokens, open, close }))
}

/// Drops the beginning of the prompt, as `truncate_prompt_tokens` requests.
pub fn truncate(prompt: &mut Vec<u32>, generation: &Generation, bounds: Bounds) {
    let requested = &generation.limits;
    let keep = match generation.truncate_prompt_tokens {
        None => return,
        Some(Truncation::To(tokens)) => tokens,
        Some(Truncation::Fitting) => {
            let generated = requested.max_tokens.unwrap_or(1).max(requested.min_tokens.unwrap_or(0)).max(1);
            bounds.context.saturating_sub(generated).max(1)
        }
    };
    let surplus = prompt.len().saturating_sub(keep as usize);
    prompt.drain(..surplus);
}

fn max_tokens(generation: &Generation, bounds: Bounds, prompt: usize, defaults: Defaults) -> Result<u32, Error> {
    let (context, requested) = (bounds.context, generation.limits.max_tokens);
    if prompt == 0 {
        return Err(Error::invalid(defaults.prompt, format!("'{}' must have at least one token", defaults.prompt)));
    }
    // A default is raised to `min_tokens`. A requested limit is not below it: validation has checked that.
    let least = generation.limits.min_tokens.unwrap_or(0).max(1);
    let wanted = match requested {
        Some(requested) => format!("'{}' asks for {requested} more", generation.max_tokens_param()),
        None if least > 1 => format!("'min_tokens' asks for {least} more"),
        None => "at least 1 more must be generated".to_owned(),
    };
    let room = (context as usize).saturating_sub(prompt);
    let requested = match generation.fit_max_tokens {
        true => requested.map(|requested| requested.min(room.try_into().unwrap_or(u32::MAX)).max(least)),
        false => requested,
    };
    if (context as usize) < prompt || (requested.unwrap_or(least) as usize) > room {
        let message =
            format!("the prompt has {prompt} tokens and {wanted}, but this model's context is {context} tokens");
        return Err(Error { code: Some("context_length_exceeded"), ..Error::invalid(defaults.prompt, message) });
    }
    // `room` is at most `context`, so it fits into u32. Engines need a limit of at least 1, even to score a prompt
    // only.
    Ok(requested.or(defaults.max_tokens.map(|default| default.max(least))).unwrap_or(u32::MAX).min(room as u32).max(1))
}

/// The request's value, else that of the model's generation_config.json, else the API's default.
fn sampling(requested: &v1::Sampling, model: &ServedModel) -> internal::Sampling {
    let seed = requested.seed.unwrap_or_else(rand::random);
    let model = &model.text.generation;
    let greedy = (model.do_sample == Some(false)).then_some(0.0);
    let mut logit_bias: Vec<_> =
        requested.logit_bias.iter().map(|(&token, &bias)| internal::LogitBias { token, bias }).collect();
    logit_bias.sort_unstable_by_key(|bias| bias.token);
    internal::Sampling {
        temperature: requested.temperature.or(greedy).or(model.temperature).unwrap_or(1.0),
        top_p: requested.top_p.or(model.top_p).unwrap_or(1.0),
        top_k: requested.top_k.or(model.top_k).unwrap_or(0),
        min_p: requested.min_p.or(model.min_p).unwrap_or(0.0),
        repetition_penalty: requested.repetition_penalty.or(model.repetition_penalty).unwrap_or(1.0),
        presence_penalty: requested.presence_penalty.unwrap_or(0.0),
        frequency_penalty: requested.frequency_penalty.unwrap_or(0.0),
        logit_bias,
        seed,
    }
}

/// The first choice uses the request's seed itself, so that it is the same for every `n`.
fn derived_seed(seed: u64, choice: u32) -> u64 {
    if choice == 0 {
        return seed;
    }
    mix(seed.wrapping_add(u64::from(choice - 1).wrapping_mul(STRIDE)))
}

#[cfg(test)]
mod tests;
