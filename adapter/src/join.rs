//! Whether an engine fits a model, before it gets a sequence: its model, its context, and that it tokenizes as the
//! router does. It does not know sequences.

use std::fmt::Display;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;

use crate::connection::EngineHttp;
use crate::dialect::{EngineDialect, EngineFacts, error_text, plain};
use crate::limits;

/// Tokens per block of an engine that does not say, and the fewest that are counted as a block: SGLang's pages have one
/// token by default.
const BLOCK_SIZE: u32 = 16;

/// The model that the router renders and tokenizes for.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// None: the engine's own name of its only model.
    pub served_name: Option<String>,
    pub vocab_size: usize,
    /// The context that the model's files allow, or that the operator wants.
    pub context: Option<usize>,
    /// The engine must have at least this context.
    pub least_context: Option<usize>,
    /// Texts with their ids. One of them should have all others: a new connection is asked for the longest.
    pub probes: Vec<(String, Vec<u32>)>,
}

/// An engine that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    pub served_name: String,
    /// The model's name in the engine's requests.
    pub model: String,
    pub version: String,
    pub vocab_size: usize,
    pub context: usize,
    /// Tokens per block: a multiple of the engine's own blocks.
    pub block_size: u32,
    /// Tokens per block of the engine.
    pub engine_block: u32,
    /// Blocks that the engine's cache holds.
    pub blocks: u32,
    pub slots: u32,
    pub prefix_cache: bool,
    /// The engine has said that it keeps no prefix cache: each refused token computes the whole prompt again.
    pub lacks_cache: bool,
}

impl Joined {
    /// Engines of one kind give the same tokens.
    pub fn kind(&self, dialect: EngineDialect) -> String {
        format!("{} {}, {}", dialect.name(), self.version, self.model)
    }

    /// Whether this is the same engine, perhaps started again. How much its cache holds and how many sequences it
    /// computes may differ: both depend on the memory that was free.
    pub fn is_same(&self, other: &Joined) -> bool {
        Joined { blocks: other.blocks, slots: other.slots, ..self.clone() } == *other
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineJoinError {
    /// It may answer later.
    #[error("{0}")]
    Unanswered(String),
    /// It does not fit.
    #[error("the engine at {url} is refused: {problem}")]
    Refused { url: String, problem: String },
}

/// Asks the engine what it is, and compares.
pub async fn join(
    http: &EngineHttp,
    dialect: EngineDialect,
    deployment: &Deployment,
) -> Result<Joined, EngineJoinError> {
    let refused = |problem: String| EngineJoinError::Refused {
        url: http.url().to_owned(),
        problem: plain(&problem, limits::PROBLEM_CHARS),
    };
    let paths = dialect.probes();
    let models = required(http, paths.models).await?;
    let version = optional(http, paths.version).await?;
    let metrics = optional(http, "/metrics").await?;
    let facts = dialect.facts(&models, version.as_deref(), metrics.as_deref()).map_err(&refused)?;
    let joined = compare(facts, deployment).map_err(&refused)?;
    for (text, ids) in &deployment.probes {
        let body = dialect.tokenize_body(text, &joined.model);
        let answer = answered(http, Method::POST, paths.tokenize, body).await?;
        let tokens = tokens(&answer).map_err(|error| refused(format!("{}: {error}", paths.tokenize)))?;
        if tokens != *ids {
            let problem = format!(
                "its tokenizer differs: for {text:?} it gives {}, the model's files give {}; serve the files of the \
                 same checkpoint",
                shown(&tokens),
                shown(ids)
            );
            return Err(refused(problem));
        }
    }
    Ok(joined)
}

/// The ids in an answer of [`crate::dialect::ProbePaths::tokenize`].
pub fn tokens(answer: &[u8]) -> Result<Vec<u32>, String> {
    #[derive(Deserialize)]
    struct Tokens {
        tokens: Vec<u32>,
    }
    let answer: Result<Tokens, _> = serde_json::from_slice(answer);
    answer.map(|answer| answer.tokens).map_err(|error| format!("the answer is not understood: {error}"))
}

fn compare(facts: EngineFacts, deployment: &Deployment) -> Result<Joined, String> {
    let EngineFacts { models, version, context, block_size, blocks, slots, prefix_cache } = facts;
    let model = match (models.as_slice(), &deployment.served_name) {
        ([], _) => return Err("it lists no model".into()),
        ([only], _) => only,
        (several, Some(name)) => several.iter().find(|model| *model == name).ok_or_else(|| {
            format!("it lists the models {}, none of which is {name}; set --served-name", several.join(", "))
        })?,
        (several, None) => {
            return Err(format!("it lists the models {}; set --served-name to one of them", several.join(", ")));
        }
    };
    if model.len() > limits::MODEL_NAME_BYTES {
        let (found, most) = (model.len(), limits::MODEL_NAME_BYTES);
        return Err(format!("the name of its model has {found} bytes; the limit is {most}"));
    }
    let own = context.ok_or("it does not tell its context length; is it of the kind in --engine KIND=URL?")?;
    let context = deployment.context.map_or(own, |context| context.min(own));
    if let Some(least) = deployment.least_context.filter(|least| own < *least) {
        return Err(format!("its context is {own} tokens, --max-context asks for {least}"));
    }
    if context < 2 {
        return Err(format!("its context must be at least 2 tokens, got {context}"));
    }
    if block_size == Some(0) {
        return Err("its block size must be at least 1 token, got 0".into());
    }
    let engine_block = block_size.unwrap_or(BLOCK_SIZE);
    let block_size = engine_block.saturating_mul(BLOCK_SIZE.div_ceil(engine_block));
    // Without a number, the cache is assumed to hold the contexts of all slots.
    let tokens = match blocks {
        Some(blocks) => blocks as usize * engine_block as usize,
        None => own.saturating_mul(slots.unwrap_or(1) as usize),
    };
    Ok(Joined {
        served_name: deployment.served_name.as_ref().unwrap_or(model).clone(),
        model: model.clone(),
        version: version.map_or_else(|| "unknown version".into(), |version| plain(&version, limits::VERSION_CHARS)),
        vocab_size: deployment.vocab_size,
        context,
        block_size,
        engine_block,
        blocks: u32::try_from(tokens / block_size as usize).unwrap_or(u32::MAX),
        slots: slots.unwrap_or(limits::MAX_SEQUENCES as u32).max(1),
        prefix_cache: prefix_cache.unwrap_or(true),
        lacks_cache: prefix_cache == Some(false),
    })
}

fn shown(ids: &[u32]) -> String {
    const MOST: usize = 12;
    match ids.len() > MOST {
        true => format!("{:?} and {} more", &ids[..MOST], ids.len() - MOST),
        false => format!("{ids:?}"),
    }
}

async fn answered(http: &EngineHttp, method: Method, path: &str, body: Bytes) -> Result<Bytes, EngineJoinError> {
    let said = |what: &dyn Display| format!("{}{path}: {what}", http.url());
    match http.call(method, path, body).await {
        Ok((StatusCode::OK, body)) => Ok(body),
        Ok((status, body)) if status == StatusCode::SERVICE_UNAVAILABLE => {
            Err(EngineJoinError::Unanswered(said(&format!("503: {}", error_text(&body)))))
        }
        Ok((status, body)) => {
            let advice = match status.as_u16() {
                401 | 403 => "; set REIN_ENGINE_KEY",
                404 => "; is this the kind of engine that --engine names?",
                _ => "",
            };
            let problem = format!("{path} answers {}: {}{advice}", status.as_u16(), error_text(&body));
            Err(EngineJoinError::Refused { url: http.url().to_owned(), problem })
        }
        Err(error) => Err(EngineJoinError::Unanswered(error.0)),
    }
}

async fn required(http: &EngineHttp, path: &str) -> Result<Bytes, EngineJoinError> {
    answered(http, Method::GET, path, Bytes::new()).await
}

/// None: the engine has no such page.
async fn optional(http: &EngineHttp, path: &str) -> Result<Option<Bytes>, EngineJoinError> {
    match answered(http, Method::GET, path, Bytes::new()).await {
        Ok(body) => Ok(Some(body)),
        Err(EngineJoinError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
