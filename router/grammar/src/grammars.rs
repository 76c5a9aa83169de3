//! Compiles and caches the grammars of requests. It does not know prompts or engines.

use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use crate::announced::opening_markers;
use crate::assemble::{NoMatcher, parser};
use crate::budget::{Budget, Cancel};
use crate::cache::{Cache, Key, key_of};
use crate::canonical::Canonical;
use crate::check::{check, strictly};
use crate::format::{Codec, Format, Step};
use crate::held::Held;
use crate::lark::GrammarForm;
use crate::limits::{
    MAX_CACHED_BYTES, MAX_GRAMMAR_BYTES, MAX_QUICK_GRAMMAR_BYTES, MAX_TOOLS, REGEX_BYTES_PER_STEP, TRIAL_TOKENS,
};
use crate::matcher::{Matcher, MatcherError};
use crate::output::{First, Written, count_prefix, write};
use crate::rules::{Cause, Enforcement, Relaxation, Response, RuleError, Rules, ToolChoice, Violation};
use crate::validate::Validators;
use crate::vocab::Vocab;

/// The grammars of one model.
pub struct Grammars {
    format: &'static Format,
    vocab: Arc<Vocab>,
    /// With the markers that begin calls as text, which prose may mention.
    letters: Option<Arc<Vocab>>,
    max_tools: usize,
    cache: Cache<Arc<Shared>>,
}

/// What requests with the same rules share.
struct Shared {
    /// Never advanced: each request gets a copy.
    fresh: Matcher,
    relaxations: Vec<Relaxation>,
    narrowed: u64,
    validators: Validators,
    first: First,
    lark: String,
    /// The tokens that begin a call, if one is required.
    opening: Vec<u32>,
    /// Approximate memory, without the regular expression that validates responses.
    bytes: usize,
    /// How the canonical form is made, when it is first needed.
    source: Source,
    /// Empty: it could not be made, or is the same.
    canonical: OnceLock<Vec<Matcher>>,
}

impl Shared {
    /// Approximate memory of what is made when it is first needed, without the validators.
    fn grown(&self) -> usize {
        let forms = self.canonical.get().map_or(&[][..], Vec::as_slice);
        forms.iter().map(|form| PARSER_BYTES + form.bytes() + RULE_BYTES * self.lark.len()).sum()
    }
}

/// Of what a grammar is made.
struct Source {
    format: &'static Format,
    vocab: Arc<Vocab>,
    tolerant_vocab: Arc<Vocab>,
    rules: Rules,
    loose: bool,
}

/// Approximate memory of a compiled grammar per byte of its text.
const RULE_BYTES: usize = 20;
/// Approximate memory of a parser besides its lexer and its rules.
const PARSER_BYTES: usize = 48 << 10;

/// The grammar of a request.
#[derive(Clone)]
pub struct Compiled {
    shared: Arc<Shared>,
    calls_before: usize,
    begun: String,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("relaxations", &self.shared.relaxations).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("format", &self.format.name).finish_non_exhaustive()
    }
}

impl Grammars {
    pub fn new(format: &'static Format, vocab: Arc<Vocab>) -> Self {
        // Strings are one text with their marks.
        let marked = format.string_mark().and_then(|mark| vocab.with_text(|text| text == mark));
        let vocab = marked.map_or(vocab, Arc::new);
        let first = opening_markers(format);
        let letters = vocab.with_text(|text| first.contains(&text)).map(Arc::new);
        Self {
            format,
            vocab,
            letters,
            max_tools: MAX_TOOLS,
            cache: Cache::of_growing(MAX_CACHED_BYTES, |shared| shared.grown()),
        }
    }

    /// Keeps so many bytes of compiled grammars.
    #[must_use]
    pub fn with_cache(self, bytes: usize) -> Self {
        Self { cache: Cache::of_growing(bytes, |shared| shared.grown()), ..self }
    }

    /// Refuses requests with more tools.
    #[must_use]
    pub fn with_max_tools(self, max_tools: usize) -> Self {
        Self { max_tools, ..self }
    }

    /// The grammar of a request. None: nothing to enforce.
    pub fn compile(&self, rules: &Rules) -> Result<Option<Compiled>, RuleError> {
        match self.known(rules) {
            Some(known) => Ok(known),
            None => self.compile_within(rules, &mut Budget::default()).map(Some),
        }
    }

    /// The result if it needs no compilation: a cached grammar, or nothing to enforce.
    pub fn known(&self, rules: &Rules) -> Option<Option<Compiled>> {
        if !self.binds(rules) {
            return Some(None);
        }
        let shared = self.cache.get(self.key(rules))?;
        Some(Some(Compiled { shared, calls_before: rules.calls_before, begun: rules.begun.clone() }))
    }

    fn binds(&self, rules: &Rules) -> bool {
        // Tools that cannot be written are accepted if none may be called: they are only part of the prompt.
        let for_the_prompt = !self.format.has_calls()
            && rules.response.is_none()
            && !rules.must_call()
            && rules.choice == ToolChoice::None;
        rules.binds() && !for_the_prompt
    }

    /// Compiles the grammar of a request that is not [known](Self::known), within the budget.
    pub fn compile_within(&self, rules: &Rules, budget: &mut Budget) -> Result<Compiled, RuleError> {
        budget.go_on()?;
        let (meant, mended) = rules.meant();
        check(&meant, self.max_tools)?;
        let shared = Arc::new(self.build(&meant, mended, budget)?);
        self.cache.keep(self.key(rules), shared.clone(), shared.bytes + shared.validators.regex_bytes());
        Ok(Compiled { shared, calls_before: rules.calls_before, begun: rules.begun.clone() })
    }

    /// `mended`: what is relaxed before anything is compiled. If the tools are too many for a grammar of their schemas,
    /// their names are enforced, and their arguments are left to validation.
    fn build(&self, rules: &Rules, mended: Vec<Relaxation>, budget: &mut Budget) -> Result<Shared, RuleError> {
        let refused = match self.build_whole(rules, rules, mended.clone(), budget) {
            Err(error) if error.is_of_size() => error,
            built => return built,
        };
        if rules.enforcement != Enforcement::NamesAndArguments || rules.tools.iter().all(|tool| tool.strict) {
            return Err(refused);
        }
        let names = Rules { enforcement: Enforcement::Names, ..rules.clone() };
        let left = rules.tools.iter().filter(|tool| !tool.strict).map(|tool| Relaxation {
            tool: tool.name.clone(),
            path: String::new(),
            keyword: "properties".into(),
            cause: Cause::Cost,
        });
        let relaxations = mended.into_iter().chain(left).collect();
        self.build_whole(&names, rules, relaxations, budget).map_err(|_| refused)
    }

    /// `validated`: the rules by which finished calls and responses are validated.
    fn build_whole(
        &self,
        rules: &Rules,
        validated: &Rules,
        mended: Vec<Relaxation>,
        budget: &mut Budget,
    ) -> Result<Shared, RuleError> {
        let mut loose = false;
        let vocab = self.tolerant_vocab(rules);
        loop {
            let written = match write(self.format, vocab, rules, GrammarForm::Tolerant, false, loose, budget) {
                Err(RuleError::TooLarge { .. }) if !loose => {
                    loose = true;
                    continue;
                }
                other => other?,
            };
            strictly(rules, &written.relaxations)?;
            if written.lark.len() > MAX_GRAMMAR_BYTES {
                let (found, limit) = (written.lark.len(), MAX_GRAMMAR_BYTES);
                return Err(RuleError::TooLarge {
                    field: "tools".into(),
                    what: "the size of the grammar",
                    found,
                    limit,
                });
            }
            match parser(vocab, &written, budget).and_then(|fresh| self.tried(fresh, &written, rules)) {
                Ok(mut fresh) => {
                    let Written { narrowed, first, lark, .. } = written;
                    let mut relaxations = mended;
                    relaxations.extend(written.relaxations);
                    let validators = Validators::new(validated);
                    budget.spend((validators.regex_bytes() / REGEX_BYTES_PER_STEP) as u64)?;
                    let opening = if rules.must_call() { self.opening() } else { Vec::new() };
                    let bytes = PARSER_BYTES + fresh.measure() + RULE_BYTES * lark.len() + validators.bytes();
                    let source = Source {
                        format: self.format,
                        vocab: self.vocab.clone(),
                        tolerant_vocab: vocab.clone(),
                        rules: rules.clone(),
                        loose,
                    };
                    let canonical = OnceLock::new();
                    return Ok(Shared {
                        fresh,
                        relaxations,
                        narrowed,
                        validators,
                        first,
                        lark,
                        opening,
                        bytes,
                        source,
                        canonical,
                    });
                }
                Err(NoMatcher::Rule(error)) => return Err(error),
                // The whole budget may show that the request is valid.
                Err(NoMatcher::Grammar(_) | NoMatcher::Size(_)) if budget.gives_up() => {
                    return Err(RuleError::Unfinished);
                }
                Err(NoMatcher::Grammar(_) | NoMatcher::Size(_)) if !loose => loose = true,
                Err(NoMatcher::Size(problem)) if written.foreign.is_empty() => {
                    return Err(RuleError::TooCostly { field: field(rules).into(), problem });
                }
                Err(NoMatcher::Grammar(problem) | NoMatcher::Size(problem)) => {
                    return Err(RuleError::invalid(field(rules), problem));
                }
            }
        }
    }

    /// In the canonical form, markers are their tokens. Clients' grammars may name any token.
    fn tolerant_vocab(&self, rules: &Rules) -> &Arc<Vocab> {
        let names_tokens = matches!(rules.response, Some(Response::StructuralTag(_) | Response::Lark(_)));
        self.letters.as_ref().filter(|_| !rules.tools.is_empty() && !names_tokens).unwrap_or(&self.vocab)
    }

    /// The tokens up to and including the first marker of a call, as the renderer writes it after text.
    fn opening(&self) -> Vec<u32> {
        let mut text = self.format.lead.to_owned();
        let mut ids = Vec::new();
        for step in self.format.begin.iter().chain(self.format.call) {
            match step {
                Step::Lit(literal) => text.push_str(literal),
                Step::Tok(marker) => {
                    match self.vocab.special_id(marker) {
                        Some(id) => {
                            ids = self.vocab.encode(&text);
                            ids.push(id);
                        }
                        None => ids = self.vocab.encode(&(text + marker)),
                    }
                    return ids;
                }
                Step::Maybe(_) => {}
                _ => break,
            }
        }
        // Without a marker, a call's own first letters begin it.
        let object = matches!(self.format.codec(), Codec::Object { .. } | Codec::Keyed | Codec::Json);
        if object && !text.trim_end().ends_with('{') {
            text.push('{');
        }
        ids.extend(self.vocab.encode(&text));
        ids
    }

    /// The matcher, if it can generate anything. A client's own grammar must also show that it makes progress.
    fn tried(&self, mut fresh: Matcher, written: &Written, rules: &Rules) -> Result<Matcher, NoMatcher> {
        let foreign = !written.foreign.is_empty();
        let own = matches!(rules.response, Some(Response::Regex(_) | Response::StructuralTag(_))) || foreign;
        if let Some(problem) = fresh.emptiness(foreign, own) {
            return Err(NoMatcher::Grammar(problem));
        }
        if own {
            let trial = begun(fresh.clone(), written.first, 0).and_then(|mut trial| trial.walk(TRIAL_TOKENS));
            // Relaxing schemas would not help.
            trial.map_err(|error| NoMatcher::Rule(RuleError::invalid(field(rules), error.to_string())))?;
        }
        Ok(fresh)
    }

    fn key(&self, rules: &Rules) -> Key {
        // A new field is part of the key, unless the compiled grammar does not depend on it.
        let Rules {
            tools,
            choice,
            parallel,
            response,
            start,
            calls_before: _,
            begun: _,
            enforcement,
            reasons,
            json,
            blanks,
        } = rules;
        let tools = tools.key();
        let mut text =
            format!("{choice:?} {parallel} {start:?} {enforcement:?} {reasons} {json:?} {blanks:?} {tools:?}")
                .into_bytes();
        // Writing to memory does not fail, and neither does JSON with text as keys.
        if let Some(Response::JsonSchema { schema, strict }) = response {
            let _ = write!(text, " schema {strict} ");
            let _ = serde_json::to_writer(&mut text, schema);
        } else {
            let _ = write!(text, " {response:?}");
        }
        key_of(&text)
    }
}

/// The request's field from which the grammar is made.
fn field(rules: &Rules) -> &'static str {
    match &rules.response {
        None => "tools",
        Some(Response::Regex(_)) => "structured_outputs.regex",
        Some(Response::Choice(_)) => "structured_outputs.choice",
        Some(Response::Lark(_)) => "structured_outputs.grammar",
        Some(Response::StructuralTag(_)) => "structural_tag",
        Some(Response::JsonObject | Response::JsonSchema { .. }) => "response_format",
    }
}

impl Compiled {
    /// A matcher at the start of the output.
    pub fn matcher(&self) -> Result<Matcher, MatcherError> {
        self.at_start(&self.shared.fresh)
    }

    /// A matcher that has read what precedes the output.
    fn at_start(&self, fresh: &Matcher) -> Result<Matcher, MatcherError> {
        let mut matcher = begun(fresh.clone(), self.shared.first, self.calls_before)?;
        if !self.begun.is_empty() {
            let ids = matcher.vocab().encode(&self.begun);
            matcher.begin(&ids)?;
        }
        Ok(matcher)
    }

    /// A matcher of the same grammar without the constraints of strings and numbers, for an output that met a limit in
    /// them. None: a strict schema must be enforced completely, or they are left out already.
    pub fn loosened(&self) -> Option<Matcher> {
        self.at_start(&self.shared.source.loosened()?).ok()
    }

    /// Whether the response follows a grammar that the client wrote.
    pub fn is_clients_grammar(&self) -> bool {
        matches!(self.shared.source.rules.response, Some(Response::Lark(_) | Response::StructuralTag(_)))
    }

    /// Text with which the response has begun before the output.
    pub fn begun(&self) -> &str {
        &self.begun
    }

    /// A matcher of the grammar's canonical form at the start of the output: no blanks, spellings, reasoning and short
    /// forms but those that the format itself writes. It is made when it is first needed. None: the grammar has no
    /// other form.
    pub fn canonical(&self) -> Option<Canonical> {
        let Shared { canonical, source, .. } = &*self.shared;
        let fresh = canonical.get_or_init(|| source.canonical()).iter();
        let forms: Vec<Matcher> = fresh.filter_map(|fresh| self.at_start(fresh).ok()).collect();
        (!forms.is_empty()).then(|| Canonical::new(forms))
    }

    /// Whether [`Self::canonical`] would do work that grows with the request.
    pub fn owes_canonical(&self) -> bool {
        self.shared.canonical.get().is_none() && self.shared.lark.len() > MAX_QUICK_GRAMMAR_BYTES
    }

    /// How a model that wants to end its turn, but must call a tool, continues. Empty: no call is required.
    pub fn opening(&self) -> &[u32] {
        &self.shared.opening
    }

    /// What the grammar leaves to validation.
    pub fn relaxations(&self) -> &[Relaxation] {
        &self.shared.relaxations
    }

    /// Objects in the tools' schemas that declare members and do not say whether they take others: the grammar takes
    /// the declared ones only (docs/decisions/0003).
    pub fn narrowed(&self) -> u64 {
        self.shared.narrowed
    }

    /// Approximate memory, including a copy of its matcher.
    pub fn bytes(&self) -> usize {
        self.shared.bytes
    }

    /// Approximate memory that its cached parts take now.
    #[cfg(test)]
    pub fn cached_bytes(&self) -> usize {
        self.shared.bytes + self.shared.validators.regex_bytes() + self.shared.grown()
    }

    /// Approximate memory of each matcher at its start. The rest of the grammar is shared.
    pub fn matcher_bytes(&self) -> usize {
        self.shared.fresh.bytes()
    }

    /// How much of a tool's calls is held until it is validated.
    pub fn held(&self, name: &str) -> Held {
        self.shared.validators.held(name, &self.shared.relaxations)
    }

    /// Validates a [held](Self::held) value against its schemas.
    pub fn validate_value(&self, name: &str, schemas: &[String], text: &str) -> Result<(), Violation> {
        self.shared.validators.value(name, schemas, text)
    }

    /// Validates complete arguments.
    pub fn validate(&self, name: &str, arguments: &str) -> Result<(), Violation> {
        self.shared.validators.call(name, arguments)
    }

    /// Whether the answer's text is one JSON value.
    pub fn answers_json(&self) -> bool {
        self.shared.source.answers_json()
    }

    /// Whether a complete response is validated.
    pub fn validates_response(&self) -> bool {
        self.shared.validators.validates_response()
    }

    /// Whether this many bytes of a tool's arguments, or of the response, are validated in less than a millisecond.
    pub fn validates_quickly(&self, tool: Option<&str>, bytes: usize) -> bool {
        self.shared.validators.is_quick(tool, bytes)
    }

    /// Validates a complete response.
    pub fn validate_response(&self, text: &str) -> Result<(), Violation> {
        self.shared.validators.response(text)
    }

    /// The grammar in llguidance's syntax, for people.
    pub fn lark(&self) -> &str {
        &self.shared.lark
    }
}

impl Source {
    fn answers_json(&self) -> bool {
        matches!(self.rules.response, Some(Response::JsonObject | Response::JsonSchema { .. }))
    }

    /// See [`Compiled::loosened`].
    fn loosened(&self) -> Option<Matcher> {
        let Self { format, tolerant_vocab: vocab, rules, loose, .. } = self;
        let strict = matches!(rules.response, Some(Response::JsonSchema { strict: true, .. }))
            || rules.tools.iter().any(|tool| tool.strict);
        if *loose || strict {
            return None;
        }
        // An answer waits for it, perhaps on an async thread.
        let mut budget = Budget::first_attempt(Cancel::default());
        let written = write(format, vocab, rules, GrammarForm::Tolerant, false, true, &mut budget).ok()?;
        // What a client's own grammar costs would stay.
        written.foreign.is_empty().then(|| parser(vocab, &written, &mut budget).ok()).flatten()
    }

    /// With the members of objects in the order of their schemas, then in any.
    fn canonical(&self) -> Vec<Matcher> {
        let Self { format, vocab, rules, loose, .. } = self;
        if rules.callable().is_empty() && !self.answers_json() {
            return Vec::new();
        }
        let mut texts = Vec::new();
        let mut made = |in_order| {
            let mut budget = Budget::default();
            let written = write(format, vocab, rules, GrammarForm::Canonical, in_order, *loose, &mut budget).ok()?;
            let repeated = texts.contains(&written.lark);
            texts.push(written.lark.clone());
            // Clients' own grammars have one form.
            if repeated || !written.foreign.is_empty() {
                return None;
            }
            let mut form = parser(vocab, &written, &mut budget).ok()?;
            form.measure();
            Some(form)
        };
        [true, false].into_iter().filter_map(&mut made).collect()
    }
}

/// The matcher at the start of the output.
fn begun(mut matcher: Matcher, first: First, calls_before: usize) -> Result<Matcher, MatcherError> {
    let first = match first {
        First::Nothing => None,
        First::Conversation => Some(calls_before),
        First::Turn => Some(1),
    };
    if let Some(first) = first {
        let prefix = count_prefix(first, &matcher.vocab().digits())
            .ok_or_else(|| MatcherError::Limit(format!("the conversation has {first} calls already")))?;
        matcher.begin(&prefix)?;
    }
    Ok(matcher)
}

#[cfg(test)]
impl Grammars {
    /// The same matcher as made by llguidance's own parser. None if that parser made it in the first place.
    pub(crate) fn matcher_by_text(&self, compiled: &Compiled) -> Option<Matcher> {
        let vocab = &compiled.shared.source.tolerant_vocab;
        let factory = vocab.factory();
        let lark = &compiled.shared.lark;
        crate::assemble::read(lark)?;
        let grammars = vec![llguidance::api::GrammarWithLexer::from_lark(lark.clone())];
        let mut parser =
            factory.create_parser(llguidance::api::TopLevelGrammar { grammars, max_tokens: None }).expect("a grammar");
        parser.start_without_prompt();
        let matcher = Matcher::new(parser, vocab.clone(), true);
        Some(begun(matcher, compiled.shared.first, compiled.calls_before).expect("a matcher"))
    }
}
