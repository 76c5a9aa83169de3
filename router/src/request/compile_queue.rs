//! Schedules the compilation of grammars: cached grammars do not wait, small ones wait only for small ones, callers
//! take turns, and a compilation stops when its request ends. It must not know HTTP, gRPC or status codes.

use std::sync::Arc;

use rein_grammar::{Budget, Cancel, Compiled, Grammars, Response, RuleError, Rules};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use crate::{
    admission::keys::{self, ApiCaller},
    error::Error,
    fair::{FairSemaphore, Requester},
    limits,
};

/// Limits how many grammars one model compiles at once.
pub struct CompileQueue {
    /// Permits for first attempts. Each attempt ends within some milliseconds, even if it has not finished the grammar.
    first_attempts: FairSemaphore,
    /// Permits for large grammars, and for those that a first attempt did not finish.
    long_compiles: FairSemaphore,
}

/// Cancels the compilation when its request ends.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl CompileQueue {
    pub fn new() -> Self {
        Self {
            first_attempts: FairSemaphore::new(limits::SHORT_COMPILES),
            long_compiles: FairSemaphore::new(limits::LONG_COMPILES),
        }
    }

    /// Compiles the grammar of these rules. None: there is nothing to enforce.
    pub async fn compile(
        &self,
        grammars: &Arc<Grammars>,
        rules: impl Into<Arc<Rules>>,
        caller: Option<&ApiCaller>,
        deadline: Instant,
    ) -> Result<Option<Compiled>, Error> {
        let (rules, requester) = (rules.into(), keys::requester(caller, deadline));
        let until_deadline = async {
            let small = rules_bytes(&rules) <= limits::SMALL_GRAMMAR_BYTES;
            if small && let Some(known) = grammars.known(&rules) {
                return Ok(known);
            }
            if small {
                match attempt(&self.first_attempts, &requester, grammars, &rules, Budget::first_attempt).await? {
                    Err(RuleError::Unfinished) => {}
                    compiled => return compiled.map_err(rule_error),
                }
            }
            // The long grammars of one API key are compiled one at a time, so that they cannot fill the queue.
            let _permit = match caller {
                Some(caller) => Some(caller.long_grammars().acquire(&requester).await?),
                None => None,
            };
            attempt(&self.long_compiles, &requester, grammars, &rules, Budget::whole).await?.map_err(rule_error)
        };
        timeout_at(deadline, until_deadline).await.unwrap_or_else(|_| Err(Error::deadline()))
    }
}

/// Compiles off the async threads. The work holds the permit, and ends soon after its request is dropped.
async fn attempt(
    permits: &FairSemaphore,
    requester: &Requester,
    grammars: &Arc<Grammars>,
    rules: &Arc<Rules>,
    budget: fn(Cancel) -> Budget,
) -> Result<Result<Option<Compiled>, RuleError>, Error> {
    let permit = permits.acquire(requester).await?;
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

fn rule_error(error: RuleError) -> Error {
    let field = match &error {
        RuleError::Invalid { field, .. }
        | RuleError::Unenforceable { field, .. }
        | RuleError::TooLarge { field, .. }
        | RuleError::TooCostly { field, .. } => field,
        RuleError::Format { field, .. } => *field,
        // A spent budget gives another error. Only the request's deadline leaves a compilation unfinished.
        RuleError::Unfinished => return Error::deadline(),
    };
    Error { code: Some("unenforceable"), ..Error::invalid(field, error.to_string()) }
}

/// Approximate size of the schemas and grammars, in bytes.
fn rules_bytes(rules: &Rules) -> usize {
    let tools = rules.tools.iter().map(|tool| tool.name.len() + tool.parameters.as_ref().map_or(0, value_bytes));
    let response = match &rules.response {
        None | Some(Response::JsonObject) => 0,
        Some(Response::JsonSchema { schema: value, .. } | Response::StructuralTag(value)) => value_bytes(value),
        Some(Response::Regex(text) | Response::Lark(text)) => text.len(),
        Some(Response::Choice(all)) => all.iter().map(String::len).sum(),
    };
    tools.sum::<usize>() + response
}

/// Bytes of the texts in a value, and a few for each other value.
fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + value_bytes(value)).sum(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests;
