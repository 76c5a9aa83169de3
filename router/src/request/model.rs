//! A served model: its text side, tool-call format, grammars and engines. It must not know HTTP, gRPC or status codes.

use std::{fmt::Write, ops::Deref, sync::Arc, time::SystemTime};

use rand::{Rng, distr::Alphanumeric};
use rein_grammar::{self as grammar, Blanks, Compiled, Enforcement, Format, Grammars, JsonStyle, Response, Rules};
use rein_proto::{
    internal::{self, EngineInfo, LoraInfo, Start},
    v1,
};
use rein_text::{
    check::check,
    model_text::{ControlTokens, ModelText, ReasoningMarkers, RenderedPrompt, TextError},
    template::{Reason, RenderInput, TemplateError},
    tokenize::{Encode, EncodeLimit, TokenizeError},
};
use ring::digest::{Digest, SHA256};
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, info_span};

use crate::{
    admission::keys::ApiCaller,
    blocking_pool::BlockingPool,
    error::Error,
    fair::{FairSemaphore, Requester},
    fleet::pool::EnginePool,
    limits,
    memory::MemoryLimits,
    request::{compile_queue::CompileQueue, job::out_of_vocabulary},
};

/// Random characters in the id of a call.
const CALL_ID_CHARS: usize = 24;

/// Bytes of the digest in `system_fingerprint`.
const FINGERPRINT_BYTES: usize = 5;

/// The engine kind that accepts scripts.
const SCRIPTED_KIND: &str = "sim";

/// A model under one of its names: its own, or that of a LoRA adapter.
pub struct ServedModel {
    shared: Arc<ModelParts>,
    /// The adapter that its sequences have.
    pub lora: Option<LoraInfo>,
}

impl Deref for ServedModel {
    type Target = ModelParts;

    fn deref(&self) -> &ModelParts {
        &self.shared
    }
}

/// What a model has under all its names.
pub struct ModelParts {
    pub text: ModelText,
    pub format: &'static Format,
    pub enforcement: Enforcement,
    pub json: JsonStyle,
    /// Answers in JSON have at most a space after a comma or a colon.
    pub few_blanks: bool,
    pub mask_always: bool,
    /// Accept requests with tools even if the template does not show the tools to the model.
    pub allow_dropped_tools: bool,
    /// Err: why grammars cannot be enforced with this tokenizer's vocabulary.
    grammars: Result<ModelGrammars, String>,
    pub pool: Arc<EnginePool>,
    /// Seconds since 1970.
    pub created: u64,
    /// What the template writes before a tool's result.
    pub result_marker: Option<String>,
    /// Digest of this release and the model's text files.
    digest: Digest,
    /// Control tokens that messages cannot produce. None: the operator allows them.
    controls: Option<ControlTokens>,
    text_pool: BlockingPool,
    /// The longest text that is tokenized.
    text_bytes: usize,
    compile_queue: CompileQueue,
    /// Permits for checking tokens against slow grammars.
    slow_matches: FairSemaphore,
    /// Validates finished calls and responses in place of the request's own grammar, as if that had a gap.
    #[cfg(test)]
    pub validator: std::sync::OnceLock<Compiled>,
}

/// Grammars over the model's vocabulary.
struct ModelGrammars {
    /// For chat turns, in the model's format.
    turns: Arc<Grammars>,
    /// For plain completions.
    texts: Arc<Grammars>,
}

/// Limits that the model and its engine set together.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub vocab: u32,
    pub context: u32,
    /// The engine emits the tokens of the request's `script`.
    pub scripted: bool,
}

impl ServedModel {
    pub fn new(
        mut text: ModelText,
        pool: EnginePool,
        policy: &ModelPolicy,
        memory: &MemoryLimits,
    ) -> Result<Self, TextError> {
        text.prompt_cache = rein_text::tokenize::PromptCache::new(memory.prompts);
        let format = text.settle_format(policy.format);
        if text.template.is_some() {
            check(&text, format).warn();
        }
        let grammars = text.vocabulary(format).map(|vocab| {
            let vocab = Arc::new(vocab);
            // A quarter of the cache is for completions.
            let texts = Grammars::new(&grammar::BARE, vocab.clone()).with_cache(memory.grammars / 4);
            let turns = Grammars::new(format, vocab).with_cache(memory.grammars / 4 * 3);
            let turns = match policy.max_tools {
                Some(max_tools) => turns.with_max_tools(max_tools),
                None => turns,
            };
            ModelGrammars { turns: Arc::new(turns), texts: Arc::new(texts) }
        });
        let controls = match policy.allow_control_tokens {
            true => None,
            false => Some(ControlTokens::new(
                &text,
                |text| format.is_marker(text) || format.spells_markers_with(text),
                reasoning_markers(format),
            )?),
        };
        let shared = ModelParts {
            digest: digest(&text),
            result_marker: text.result_marker(),
            text,
            format,
            enforcement: policy.enforcement,
            json: policy.json,
            few_blanks: policy.few_blanks,
            mask_always: policy.mask_always,
            allow_dropped_tools: policy.allow_dropped_tools,
            grammars,
            pool: Arc::new(pool),
            created: now(),
            controls,
            text_pool: BlockingPool::within(memory.texts),
            text_bytes: memory.text(),
            compile_queue: CompileQueue::new(),
            slow_matches: FairSemaphore::new(limits::SLOW_MATCHES),
            #[cfg(test)]
            validator: std::sync::OnceLock::new(),
        };
        Ok(ServedModel { shared: Arc::new(shared), lora: None })
    }

    /// The same with a LoRA adapter.
    pub fn with_lora(&self, lora: LoraInfo) -> Self {
        ServedModel { shared: self.shared.clone(), lora: Some(lora) }
    }

    pub fn reasoning_markers(&self) -> Option<ReasoningMarkers> {
        reasoning_markers(self.format)
    }

    pub fn name(&self) -> &str {
        self.lora.as_ref().map_or(self.base_name(), |lora| &lora.name)
    }

    /// The model's own name.
    pub fn base_name(&self) -> &str {
        &self.text.name
    }

    /// The start of a sequence, with its adapter.
    pub fn named_start(&self, start: Start) -> Start {
        match &self.lora {
            None => start,
            Some(lora) => Start { lora: lora.name.clone(), lora_digest: lora.digest, ..start },
        }
    }

    /// The digest of its adapter; 0: it has none.
    pub fn lora_digest(&self) -> u64 {
        self.lora.as_ref().map_or(0, |lora| lora.digest)
    }

    pub async fn bounds(&self) -> Result<Bounds, Error> {
        Ok(self.bounds_from(&self.pool.info().await?))
    }

    fn bounds_from(&self, info: &EngineInfo) -> Bounds {
        let text = self.text.max_context.and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX);
        let context = info.max_context.min(text);
        Bounds { vocab: info.vocab_size, context, scripted: info.kind == SCRIPTED_KIND }
    }

    /// The bounds of a model that generates.
    pub async fn generation_bounds(&self) -> Result<Bounds, Error> {
        let info = self.pool.info().await?;
        if info.embedding_size > 0 {
            let message = format!(
                "the model '{}' computes embeddings and does not generate; use /v1/embeddings or another model",
                self.name()
            );
            return Err(Error { code: Some("model_not_supported"), ..Error::invalid("model", message) });
        }
        Ok(self.bounds_from(&info))
    }

    /// The bounds of a model for embeddings, and the numbers of an embedding.
    pub async fn embedding_bounds(&self) -> Result<(Bounds, usize), Error> {
        let info = self.pool.info().await?;
        if info.embedding_size == 0 {
            let message = format!(
                "the model '{}' generates and does not compute embeddings; use a model that is served with --task embed",
                self.name()
            );
            return Err(Error { code: Some("model_not_supported"), ..Error::invalid("model", message) });
        }
        Ok((self.bounds_from(&info), info.embedding_size as usize))
    }

    /// Renders and tokenizes a conversation on this thread; [`Self::run_text_work`] runs it for a large one.
    pub fn render(&self, input: &RenderInput, bound: EncodeLimit) -> Result<RenderedPrompt, Error> {
        let rendered = match &self.controls {
            Some(controls) => self.text.render_sanitized_within(input, controls, bound),
            None => self.text.render_within(input, bound),
        };
        rendered.map_err(|error| text_error(error, "messages"))
    }

    /// Runs work on a text of this many bytes: inline if it is small, else off the async threads.
    pub async fn run_text_work<T: Send + 'static>(
        self: &Arc<Self>,
        bytes: usize,
        requester: &Requester,
        work: impl FnOnce(&ServedModel) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if bytes <= limits::INLINE_TEXT_BYTES {
            return work(self);
        }
        let model = self.clone();
        self.text_pool.run(bytes, requester, move || work(&model)).await
    }

    /// The tokenizer's bound for a text of this many bytes and at most `most` tokens. Short texts are tokenized whole,
    /// so that the error has their exact number of tokens.
    pub fn bound(&self, bytes: usize, deadline: Instant, most: Option<usize>) -> EncodeLimit {
        let bound = EncodeLimit::until(deadline).bytes(self.text_bytes);
        most.filter(|_| bytes > limits::COUNTED_TEXT_BYTES).map_or(bound, |most| bound.tokens(most))
    }

    /// Tokenizes a text off the async threads if it is long; see [`Self::encode_here`].
    pub async fn encode(
        self: &Arc<Self>,
        text: String,
        add_special_tokens: bool,
        param: &'static str,
        requester: &Requester,
    ) -> Result<Vec<u32>, Error> {
        let (bytes, bound) = (text.len(), self.bound(text.len(), requester.deadline, None));
        let encode = move |model: &ServedModel| model.encode_here(&text, add_special_tokens, param, bound);
        self.run_text_work(bytes, requester, encode).await
    }

    /// Tokenizes a text on this thread; control tokens spelled in it become control tokens. `param` is the field that
    /// holds the text.
    pub fn encode_here(
        &self,
        text: &str,
        add_special_tokens: bool,
        param: &str,
        bound: EncodeLimit,
    ) -> Result<Vec<u32>, Error> {
        let how = Encode { add_special_tokens, parse_special: true };
        let ids = info_span!("tokenize").in_scope(|| self.text.tokenizer.encode_within(text, how, bound));
        ids.map_err(|error| text_error(TextError::Tokenize(error), param))
    }

    /// Tokenizes a short text on this thread; control tokens spelled in it become control tokens.
    pub fn tokens(&self, text: &str, param: &str) -> Result<Vec<u32>, Error> {
        let ids = self.text.tokenizer.encode(text, Encode { add_special_tokens: false, parse_special: true });
        ids.map_err(|error| text_error(TextError::Tokenize(error), param))
    }

    /// Compiles the grammar of a chat turn. None: there is nothing to enforce.
    pub async fn compile(
        &self,
        rules: Arc<Rules>,
        caller: Option<&ApiCaller>,
        deadline: Instant,
    ) -> Result<Option<Compiled>, Error> {
        self.compile_with(rules, caller, deadline, |grammars| &grammars.turns).await
    }

    /// The blanks of an answer in JSON; `asked` by the request.
    pub fn blanks(&self, asked: Option<Blanks>) -> Blanks {
        asked.unwrap_or(if self.few_blanks { Blanks::Few } else { Blanks::Any })
    }

    /// Compiles the grammar of a plain text, without reasoning and calls.
    pub async fn compile_text(
        &self,
        response: Option<Response>,
        blanks: Option<Blanks>,
        caller: Option<&ApiCaller>,
        deadline: Instant,
    ) -> Result<Option<Compiled>, Error> {
        let rules = Arc::new(Rules { response, json: self.json, blanks: self.blanks(blanks), ..Rules::default() });
        self.compile_with(rules, caller, deadline, |grammars| &grammars.texts).await
    }

    async fn compile_with(
        &self,
        rules: Arc<Rules>,
        caller: Option<&ApiCaller>,
        deadline: Instant,
        select: impl Fn(&ModelGrammars) -> &Arc<Grammars>,
    ) -> Result<Option<Compiled>, Error> {
        if !rules.binds() {
            return Ok(None);
        }
        let grammars = match &self.grammars {
            Ok(grammars) => select(grammars),
            Err(cause) => return Err(Error::internal("grammars cannot be enforced on this model's vocabulary", cause)),
        };
        let compiled = self.compile_queue.compile(grammars, rules, caller, deadline);
        compiled.instrument(info_span!("grammar")).await
    }

    /// Runs slow grammar work on a blocking thread, once a permit is free, unless the deadline passes first. Work that
    /// has started keeps its permit until it ends.
    pub async fn run_slow_match<T: Send + 'static>(
        &self,
        requester: &Requester,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let failed = |cause: &dyn std::fmt::Display| Error::internal("the grammar of this request failed", cause);
        let permit = self.slow_matches.acquire(requester).await?;
        let work = move || {
            let _permit = permit;
            work()
        };
        match timeout_at(requester.deadline, tokio::task::spawn_blocking(work)).await {
            Ok(done) => done.map_err(|panic| failed(&panic)),
            Err(_) => Err(Error::deadline()),
        }
    }

    /// Under another fingerprint, the same seed may draw other tokens. `kind` is the engine's.
    pub fn system_fingerprint(&self, kind: &str) -> String {
        let lora = self.lora.as_ref().map(|lora| lora.digest.to_le_bytes().to_vec()).unwrap_or_default();
        let whole = ring::digest::digest(&SHA256, &[self.digest.as_ref(), kind.as_bytes(), &lora].concat());
        whole.as_ref().iter().take(FINGERPRINT_BYTES).fold("fp_".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The id of a call: the format's own id, counted over the conversation, or a random one.
    pub fn call_id(&self, name: &str, index: usize) -> String {
        self.format.native_id(name, index).unwrap_or_else(|| random_call_id("call_"))
    }

    /// The token's bytes; empty for ids beyond the tokenizer's vocabulary.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.text.tokenizer.token_bytes(id).map(|bytes| bytes.into_owned()).unwrap_or_default()
    }

    /// Decodes tokens to bytes, control tokens spelled out. Every id must be in the tokenizer's vocabulary.
    pub fn detokenize(&self, ids: &[u32]) -> Result<Vec<u8>, Error> {
        let tokenizer = &self.text.tokenizer;
        let mut bytes = 0;
        for (i, &id) in ids.iter().enumerate() {
            let out = || out_of_vocabulary(format!("tokens[{i}]"), id, tokenizer.vocab_size() as u32);
            bytes += tokenizer.token_bytes(id).ok_or_else(out)?.len();
        }
        if bytes > self.text_bytes {
            let most = self.text_bytes;
            let message = format!("'tokens' may decode to at most {most} bytes of text, got {bytes}");
            return Err(Error::invalid("tokens", message));
        }
        Ok(tokenizer.decode(ids))
    }

    /// Decodes tokens to text, control tokens spelled out.
    pub fn decode(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.text.tokenizer.decode(ids)).into_owned()
    }

    pub fn logprob(&self, logprob: internal::TokenLogprob) -> v1::TokenLogprob {
        let top = |top: internal::TopLogprob| v1::TopLogprob {
            id: top.id,
            token: self.token_bytes(top.id),
            logprob: top.logprob,
        };
        v1::TokenLogprob {
            id: logprob.id,
            token: self.token_bytes(logprob.id),
            logprob: logprob.logprob,
            top: logprob.top.into_iter().map(top).collect(),
            rank: logprob.rank,
            text_offset: None,
        }
    }
}

/// An id for a call: the prefix and random characters.
pub fn random_call_id(prefix: &str) -> String {
    let random = rand::rng().sample_iter(Alphanumeric).take(CALL_ID_CHARS).map(char::from);
    prefix.chars().chain(random).collect()
}

/// How a model's output is parsed and constrained.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelPolicy {
    /// None: the detected format.
    pub format: Option<&'static Format>,
    pub enforcement: Enforcement,
    pub json: JsonStyle,
    /// Answers in JSON have at most a space after a comma or a colon.
    pub few_blanks: bool,
    /// Compute a mask at every step instead of after a refusal: slower, for comparison.
    pub mask_always: bool,
    /// Tokenize control tokens that messages spell as control tokens. False: as text.
    pub allow_control_tokens: bool,
    /// Accept requests with tools even if the template does not show the tools to the model.
    pub allow_dropped_tools: bool,
    /// Tools per request whose calls are enforced. None: the default.
    pub max_tools: Option<usize>,
}

fn digest(text: &ModelText) -> Digest {
    let ModelText { generation, stop_token_ids, vocab_size, architecture, max_context, .. } = text;
    let settings = (env!("CARGO_PKG_VERSION"), generation, stop_token_ids, vocab_size, architecture, max_context);
    ring::digest::digest(&SHA256, format!("{settings:?} {}", text.template_source()).as_bytes())
}

fn reasoning_markers(format: &Format) -> Option<ReasoningMarkers> {
    let reasoning = format.reasoning.as_ref()?;
    Some(ReasoningMarkers {
        open: rein_grammar::spelled(reasoning.open),
        close: rein_grammar::spelled(reasoning.close),
    })
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn text_error(error: TextError, param: &str) -> Error {
    match error {
        TextError::Template(TemplateError { reason: Reason::TooLarge, message, .. }) => {
            Error { code: Some("context_length_exceeded"), ..Error::invalid("messages", message) }
        }
        TextError::Template(TemplateError { message, param, .. }) => Error {
            code: Some("template_error"),
            ..Error::invalid(param.unwrap_or_else(|| "messages".into()), message)
        },
        TextError::Tokenize(error @ TokenizeError::TooLong { .. }) => {
            Error { code: Some("context_length_exceeded"), ..Error::invalid(param, error.to_string()) }
        }
        TextError::Tokenize(TokenizeError::TooMany { least, most }) => {
            let message = format!("the prompt has at least {least} tokens, but this model's context is {most} tokens");
            Error { code: Some("context_length_exceeded"), ..Error::invalid(param, message) }
        }
        TextError::Tokenize(TokenizeError::Late) => Error::deadline(),
        other => Error::internal("the text could not be tokenized", other),
    }
}
