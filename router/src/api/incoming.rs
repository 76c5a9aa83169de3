//! A request between its head and its admission: whose it is, by when it has to be done, and its place.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    admission::{InFlightPermit, PendingRequest, keys::ApiCaller},
    error::Error,
    fleet::route,
    request::{generate::RequestContext, job::Generation},
    state::RouterState,
    trace::Trace,
};

pub struct IncomingRequest {
    state: Arc<RouterState>,
    began: Instant,
    deadline: Instant,
    caller: Option<ApiCaller>,
    place: PendingRequest,
    /// As the request's head names it.
    session: Option<u64>,
}

impl IncomingRequest {
    /// `wanted`: the time that the client gives it; `session`: the session that the head names.
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
            place: state.admission.enter(of_key)?,
            state: state.clone(),
            began,
            deadline: began + wanted.map_or(limit, |wanted| wanted.min(limit)),
            caller: caller.cloned(),
            session: session.filter(|name| !name.is_empty()).map(route::key),
        })
    }

    /// By when the request has to be done.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits for the request's turn.
    pub async fn permit(self) -> Result<InFlightPermit, Error> {
        let priority = priority(self.caller.as_ref(), None);
        self.place.admit(priority, self.deadline).await
    }

    /// The same, for a generation.
    pub async fn call(self, trace: &Trace, generation: &Generation) -> Result<RequestContext, Error> {
        let priority = priority(self.caller.as_ref(), generation.priority);
        let named = || generation.session.as_deref().map(route::key);
        Ok(RequestContext {
            trace: trace.clone(),
            began: self.began,
            deadline: self.deadline,
            permit: self.place.admit(priority, self.deadline).await?,
            metrics: self.state.metrics.clone(),
            fleet_metrics: self.state.fleet_metrics.clone(),
            retry_budget: self.state.retry_budget.clone(),
            session: self.session.or_else(named),
            held: None,
            stall: self.state.config.client_stall,
            caller: self.caller,
        })
    }
}

fn priority(caller: Option<&ApiCaller>, asked: Option<i64>) -> i64 {
    caller.map_or(asked.unwrap_or(0), |caller| caller.priority(asked))
}
