//! When grammars are compiled: what was compiled before needs no turn, small schemas wait for small ones only, and
//! nothing is compiled for a request that has ended. It knows no status codes.

use std::sync::Arc;

use rein_grammar::{Budget, Cancel, Compiled, Grammars, Response, RuleError, Rules};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use crate::{admission::keys::ApiCaller, error::Error, limits};

/// The turns of one model's compilations.
pub struct CompileQueue {
    /// First attempts: each ends within some milliseconds, finished or not.
    first: Arc<Semaphore>,
    /// What a first attempt did not finish, and what is long.
    long: Arc<Semaphore>,
}

/// Tells the compilation when its request has gone.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl CompileQueue {
    pub fn new() -> Self {
        Self {
            first: Arc::new(Semaphore::new(limits::GRAMMARS_AT_FIRST)),
            long: Arc::new(Semaphore::new(limits::LONG_GRAMMARS)),
        }
    }

    /// The grammar of these rules; None: there is nothing to enforce.
    pub async fn compile(
        &self,
        grammars: &Arc<Grammars>,
        rules: Rules,
        caller: Option<&ApiCaller>,
        deadline: Instant,
    ) -> Result<Option<Compiled>, Error> {
        let until_deadline = async {
            let small = bytes(&rules) <= limits::SMALL_GRAMMAR_BYTES;
            let rules = Arc::new(rules);
            if small && let Some(known) = grammars.known(&rules) {
                return Ok(known);
            }
            if small {
                match attempt(&self.first, grammars, &rules, Budget::first_attempt).await? {
                    Err(RuleError::Unfinished) => {}
                    compiled => return compiled.map_err(refused),
                }
            }
            // One caller's long grammars come one after the other, so that they do not fill the queue of all.
            let _turn = match caller {
                Some(caller) => Some(turn(caller.long_grammars()).await?),
                None => None,
            };
            attempt(&self.long, grammars, &rules, Budget::whole).await?.map_err(refused)
        };
        timeout_at(deadline, until_deadline).await.unwrap_or_else(|_| Err(Error::deadline()))
    }
}

/// Compiles off the async threads. The permit goes with the work, which ends soon after its request is given up.
async fn attempt(
    permits: &Arc<Semaphore>,
    grammars: &Arc<Grammars>,
    rules: &Arc<Rules>,
    budget: fn(Cancel) -> Budget,
) -> Result<Result<Option<Compiled>, RuleError>, Error> {
    let permit = turn(permits.clone()).await?;
    let cancel = CancelOnDrop(Cancel::default());
    let (grammars, rules, span, cancelled) = (grammars.clone(), rules.clone(), Span::current(), cancel.0.clone());
    let work = move || {
        let _permit = permit;
        span.in_scope(|| match grammars.known(&rules) {
            Some(known) => Ok(known),
            None => grammars.compile_within(&rules, &mut budget(cancelled)).map(Some),
        })
    };
    tokio::task::spawn_blocking(work).await.map_err(|panic| Error::internal("the grammar could not be compiled", panic))
}

async fn turn(permits: Arc<Semaphore>) -> Result<tokio::sync::OwnedSemaphorePermit, Error> {
    permits.acquire_owned().await.map_err(|closed| Error::internal("the grammar could not be compiled", closed))
}

fn refused(error: RuleError) -> Error {
    let field = match &error {
        RuleError::Invalid { field, .. }
        | RuleError::Unenforceable { field, .. }
        | RuleError::TooLarge { field, .. } => field,
        RuleError::Format { field, .. } => *field,
        // Only its deadline ends a compilation before its budget does.
        RuleError::Unfinished => return Error::deadline(),
    };
    Error { code: Some("unenforceable"), ..Error::invalid(field, error.to_string()) }
}

/// Enough of the size to tell a long schema from a short one.
fn bytes(rules: &Rules) -> usize {
    let tools = rules.tools.iter().map(|tool| tool.name.len() + tool.parameters.as_ref().map_or(0, size));
    let response = match &rules.response {
        None | Some(Response::JsonObject) => 0,
        Some(Response::JsonSchema { schema: value, .. } | Response::StructuralTag(value)) => size(value),
        Some(Response::Regex(text) | Response::Lark(text)) => text.len(),
        Some(Response::Choice(all)) => all.iter().map(String::len).sum(),
    };
    tools.sum::<usize>() + response
}

/// Bytes of the texts in a value, and some for each of the others.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + size(value)).sum(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests;
