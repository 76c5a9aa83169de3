//! Grammars of requests, compiled and kept.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use crate::format::{Codec, Format, Step};
use crate::lark::{First, Written, count_prefix, read, write};
use crate::limits::{MAX_CACHED_GRAMMARS, MAX_GRAMMAR_BYTES, MAX_NAME_BYTES, MAX_SCHEMAS_BYTES, MAX_TOOLS};
use crate::matcher::{Matcher, MatcherError};
use crate::rules::{Choice, Enforcement, Relaxation, Response, RuleError, Rules, Tool, Violation};
use crate::schema;
use crate::validate::{self, Validators};
use crate::vocab::Vocab;

/// The grammars of one model.
pub struct Grammars {
    format: &'static Format,
    vocab: Arc<Vocab>,
    cache: Mutex<Cache>,
    /// Two, so that the key of a grammar is 128 bits that nobody outside can aim at.
    hashers: [RandomState; 2],
}

type Key = [u64; 2];

#[derive(Default)]
struct Cache {
    entries: HashMap<Key, (Arc<Shared>, u64)>,
    clock: u64,
}

/// What requests with the same tools share.
struct Shared {
    /// Never advanced: each request gets a copy.
    fresh: Matcher,
    relaxations: Vec<Relaxation>,
    validators: Validators,
    first: First,
    lark: String,
    /// What opens a call, where one is demanded.
    opening: Vec<u32>,
}

/// The grammar of a request.
#[derive(Clone)]
pub struct Compiled {
    shared: Arc<Shared>,
    calls_before: usize,
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
        let hashers = [RandomState::new(), RandomState::new()];
        Self { format, vocab, cache: Mutex::default(), hashers }
    }

    /// The grammar of a request; none where there is nothing to enforce.
    pub fn compile(&self, rules: &Rules) -> Result<Option<Compiled>, RuleError> {
        if !rules.binds() {
            return Ok(None);
        }
        if !self.format.has_calls() && rules.response.is_none() && !rules.must_call() {
            // Tools that nobody can call: fine if nobody shall, and for the prompt's sake.
            if rules.choice == Choice::None {
                return Ok(None);
            }
        }
        let key = self.key(rules);
        let calls_before = rules.calls_before;
        if let Some(shared) = self.cached(key) {
            return Ok(Some(Compiled { shared, calls_before }));
        }
        check(rules)?;
        let shared = Arc::new(self.build(rules)?);
        self.keep(key, shared.clone());
        Ok(Some(Compiled { shared, calls_before }))
    }

    fn build(&self, rules: &Rules) -> Result<Shared, RuleError> {
        let mut loose = false;
        loop {
            let written = match write(self.format, &self.vocab, rules, loose) {
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
            match self.parser(&written) {
                Ok(fresh) => {
                    let Written { relaxations, first, lark, .. } = written;
                    let validators = Validators::new(rules);
                    let opening = if rules.must_call() { self.opening() } else { Vec::new() };
                    return Ok(Shared { fresh, relaxations, validators, first, lark, opening });
                }
                Err(_) if !loose => loose = true,
                Err(problem) => {
                    let field = match &rules.response {
                        None => "tools",
                        Some(Response::Regex(_)) => "structured_outputs.regex",
                        Some(Response::Choice(_)) => "structured_outputs.choice",
                        Some(Response::Lark(_)) => "structured_outputs.grammar",
                        Some(Response::StructuralTag(_)) => "structural_tag",
                        Some(Response::JsonObject | Response::JsonSchema { .. }) => "response_format",
                    };
                    return Err(RuleError::invalid(field, problem));
                }
            }
        }
    }

    /// The tokens up to and with the first marker of a call, as the renderer writes it after text.
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
        // Nothing announces a call: its own first letters do.
        let object = matches!(self.format.codec(), Codec::Object { .. } | Codec::Json);
        if object && !text.trim_end().ends_with('{') {
            text.push('{');
        }
        ids.extend(self.vocab.encode(&text));
        ids
    }

    fn parser(&self, written: &Written) -> Result<Matcher, String> {
        let factory = self.vocab.factory();
        let read = if written.foreign.is_empty() { read(&written.lark, factory.limits()) } else { None };
        let parser = match read {
            Some(grammar) => factory.create_parser_from_init_default(grammar),
            None => factory.create_parser(by_text(written)),
        };
        let mut parser = parser.map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())?;
        parser.start_without_prompt();
        // A client's own grammar may name any token.
        Ok(Matcher::new(parser, self.vocab.clone(), written.foreign.is_empty()))
    }

    fn key(&self, rules: &Rules) -> Key {
        let Rules { tools, choice, parallel, response, start, calls_before: _, enforcement } = rules;
        let mut text = format!("{choice:?} {parallel} {start:?} {enforcement:?}");
        for Tool { name, parameters, strict } in tools {
            let _ = write!(text, " {name:?} {strict} ");
            if let Some(parameters) = parameters {
                let _ = write!(text, "{parameters}");
            }
        }
        let _ = match response {
            Some(Response::JsonSchema { schema, strict }) => write!(text, " schema {strict} {schema}"),
            other => write!(text, " {other:?}"),
        };
        self.hashers.each_ref().map(|state| state.hash_one(&text))
    }

    fn cached(&self, key: Key) -> Option<Arc<Shared>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.clock += 1;
        let now = cache.clock;
        let (shared, used) = cache.entries.get_mut(&key)?;
        *used = now;
        Some(shared.clone())
    }

    fn keep(&self, key: Key, shared: Arc<Shared>) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.clock += 1;
        let now = cache.clock;
        if cache.entries.len() >= MAX_CACHED_GRAMMARS
            && let Some(oldest) = cache.entries.iter().min_by_key(|(_, (_, used))| *used).map(|(k, _)| *k)
        {
            cache.entries.remove(&oldest);
        }
        cache.entries.insert(key, (shared, now));
    }
}

/// For llguidance's own reader.
fn by_text(written: &Written) -> TopLevelGrammar {
    let main = GrammarWithLexer::from_lark(written.lark.clone());
    let foreign = written.foreign.iter().map(|(name, lark)| GrammarWithLexer {
        name: Some(name.clone()),
        lark_grammar: Some(lark.clone()),
        ..GrammarWithLexer::default()
    });
    TopLevelGrammar { grammars: std::iter::once(main).chain(foreign).collect(), max_tokens: None }
}

impl Compiled {
    /// A matcher at the start of the output.
    pub fn matcher(&self) -> Result<Matcher, MatcherError> {
        self.begun(self.shared.fresh.clone())
    }

    fn begun(&self, mut matcher: Matcher) -> Result<Matcher, MatcherError> {
        let first = match self.shared.first {
            First::Nothing => None,
            First::Conversation => Some(self.calls_before),
            First::Turn => Some(1),
        };
        if let Some(first) = first {
            let prefix = count_prefix(first, &matcher.vocab().digits())
                .ok_or_else(|| MatcherError::Limit(format!("the conversation has {first} calls already")))?;
            matcher.begin(&prefix)?;
        }
        Ok(matcher)
    }

    /// How a model that wants to end its turn, but has to call a tool, goes on. Empty: no call is demanded.
    pub fn opening(&self) -> &[u32] {
        &self.shared.opening
    }

    /// What the grammar leaves to validation.
    pub fn relaxations(&self) -> &[Relaxation] {
        &self.shared.relaxations
    }

    /// Validates finished arguments.
    pub fn validate(&self, name: &str, arguments: &str) -> Result<(), Violation> {
        self.shared.validators.call(name, arguments)
    }

    /// Whether a finished response is held against anything.
    pub fn judges_response(&self) -> bool {
        self.shared.validators.judges_response()
    }

    /// Whether so many bytes of a tool's arguments, or of the response, are judged in less than a millisecond.
    pub fn judges_quickly(&self, tool: Option<&str>, bytes: usize) -> bool {
        self.shared.validators.is_quick(tool, bytes)
    }

    /// Validates a finished response.
    pub fn validate_response(&self, text: &str) -> Result<(), Violation> {
        self.shared.validators.response(text)
    }

    /// The grammar in llguidance's syntax, for people.
    pub fn lark(&self) -> &str {
        &self.shared.lark
    }
}

/// A strict schema has to be enforced wholly.
fn strictly(rules: &Rules, relaxations: &[Relaxation]) -> Result<(), RuleError> {
    let strict_response = matches!(rules.response, Some(Response::JsonSchema { strict: true, .. }));
    let strict = |tool: &str| match tool {
        "" => strict_response,
        name => rules.tools.iter().any(|t| t.strict && t.name == name),
    };
    match relaxations.iter().find(|r| strict(&r.tool)) {
        None => Ok(()),
        Some(Relaxation { tool, path, keyword }) => Err(RuleError::Unenforceable {
            field: match tool.as_str() {
                "" => "response_format.json_schema.schema".into(),
                name => format!("tools[{name}].function.parameters"),
            },
            path: if path.is_empty() { "the root".into() } else { path.clone() },
            keyword: keyword.clone(),
            reason: "the schema is strict, and the grammar has no means for this keyword".into(),
        }),
    }
}

fn check(rules: &Rules) -> Result<(), RuleError> {
    if rules.tools.len() > MAX_TOOLS {
        let (found, limit) = (rules.tools.len(), MAX_TOOLS);
        return Err(RuleError::TooLarge { field: "tools".into(), what: "the number of tools", found, limit });
    }
    let mut names = std::collections::HashSet::new();
    let mut bytes = 0;
    for tool in &rules.tools {
        let field = format!("tools[{}].function", tool.name);
        if tool.name.is_empty() || tool.name.len() > MAX_NAME_BYTES {
            return Err(RuleError::invalid(field, format!("a name has 1 to {MAX_NAME_BYTES} bytes")));
        }
        if !names.insert(&tool.name) {
            return Err(RuleError::invalid(field, "two tools have this name"));
        }
        let wanted = rules.enforced(tool) == Enforcement::NamesAndArguments;
        if let Some(parameters) = tool.parameters.as_ref().filter(|p| wanted && !p.is_null()) {
            let field = field + ".parameters";
            bytes += schema::check(parameters, &field)?;
            validate::check(parameters, &field)?;
        }
    }
    if let Some(Response::JsonSchema { schema, .. }) = &rules.response {
        bytes += schema::check(schema, "response_format.json_schema.schema")?;
        validate::check(schema, "response_format.json_schema.schema")?;
    }
    if bytes > MAX_SCHEMAS_BYTES {
        let (found, limit) = (bytes, MAX_SCHEMAS_BYTES);
        return Err(RuleError::TooLarge {
            field: "tools".into(),
            what: "the size of all schemas in bytes",
            found,
            limit,
        });
    }
    let unknown = |name: &String| !names.contains(name);
    match &rules.choice {
        Choice::Named(name) if unknown(name) => {
            Err(RuleError::invalid("tool_choice", format!("no tool {name:?} is declared")))
        }
        Choice::Allowed { names, .. } if names.iter().any(unknown) => {
            Err(RuleError::invalid("tool_choice", "it allows a tool that is not declared"))
        }
        _ if rules.must_call() && rules.callable().is_empty() => {
            Err(RuleError::invalid("tool_choice", "a call is demanded, but no tool can be called"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
impl Grammars {
    /// The same matcher as llguidance's own reader makes it; none where that made it in the first place.
    pub(crate) fn matcher_by_text(&self, compiled: &Compiled) -> Option<Matcher> {
        let factory = self.vocab.factory();
        let lark = &compiled.shared.lark;
        read(lark, factory.limits())?;
        let grammars = vec![GrammarWithLexer::from_lark(lark.clone())];
        let mut parser = factory.create_parser(TopLevelGrammar { grammars, max_tokens: None }).expect("a grammar");
        parser.start_without_prompt();
        Some(compiled.begun(Matcher::new(parser, self.vocab.clone(), true)).expect("a matcher"))
    }
}
