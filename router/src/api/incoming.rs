//! A request from its headers to its admission: its API key, deadline, session and place in the queue.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    admission::{
        InFlightPermit, PendingRequest,
        keys::{self, ApiCaller},
    },
    error::Error,
    fair::Requester,
    fleet::route,
    limits,
    request::{generate::RequestContext, job::Generation},
    request_trace::Trace,
    state::RouterState,
};

/// A request that has not been admitted yet.
pub struct IncomingRequest {
    state: Arc<RouterState>,
    began: Instant,
    deadline: Instant,
    caller: Option<ApiCaller>,
    pending: PendingRequest,
    /// The session that the headers name.
    session: Option<u64>,
}

impl IncomingRequest {
    /// `wanted` is the client's timeout, `session` the session that the headers name.
    pub fn new(
        state: &Arc<RouterState>,
        caller: Option<&ApiCaller>,
        wanted: Option<Duration>,
        session: Option<&str>,
    ) -> Result<Self, Error> {
        let began = Instant::now();
        let limit = state.config.request_time;
        let of_key = caller.map(ApiCaller::enter).transpose()?;
        Ok(IncomingRequest {
            pending: state.admission.enter(keys::caller_name(caller), of_key)?,
            state: state.clone(),
            began,
            deadline: began + wanted.map_or(limit, |wanted| wanted.min(limit)),
            caller: caller.cloned(),
            session: session.filter(|name| !name.is_empty()).map(route::key),
        })
    }

    /// Whose request it is, and when it must be finished.
    pub fn requester(&self) -> Requester {
        keys::requester(self.caller.as_ref(), self.deadline)
    }

    /// Runs `work`, which reads the request's body. Err: the request left the full queue for another one.
    pub async fn unless_evicted<T>(&mut self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            result = work => result,
            evicted = self.pending.evicted() => Err(evicted),
        }
    }

    /// Waits for an in-flight slot.
    pub async fn admit(self) -> Result<InFlightPermit, Error> {
        let priority = priority(self.caller.as_ref(), None);
        self.pending.admit(1, priority, self.deadline).await
    }

    /// Waits for the in-flight slots of a generation with this many choices.
    pub async fn admit_generation(
        self,
        trace: &Trace,
        generation: &Generation,
        choices: usize,
    ) -> Result<RequestContext, Error> {
        let priority = priority(self.caller.as_ref(), generation.priority);
        let named = || generation.session.as_deref().map(route::key);
        Ok(RequestContext {
            trace: trace.clone(),
            began: self.began,
            deadline: self.deadline,
            // More are refused when the request is checked.
            permit: self.pending.admit(choices.min(limits::COMPLETION_CHOICES), priority, self.deadline).await?,
            metrics: self.state.metrics.clone(),
            fleet_metrics: self.state.fleet_metrics.clone(),
            retry_budget: self.state.retry_budget.clone(),
            session: self.session.or_else(named),
            memory_charge: None,
            matcher_memory: self.state.memory.matchers.clone(),
            stall_timeout: self.state.config.client_stall,
            caller: self.caller,
        })
    }
}

fn priority(caller: Option<&ApiCaller>, asked: Option<i64>) -> i64 {
    caller.map_or(asked.unwrap_or(0), |caller| caller.priority(asked))
}
