//! A request between its head and its admission: whose it is, by when it has to be done, and its place.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    admission::{Permit, Place, keys::Caller},
    error::Error,
    fleet::route,
    request::{generate::RequestContext, job::Generation},
    state::Core,
    trace::Trace,
};

pub struct Arrival {
    core: Arc<Core>,
    began: Instant,
    deadline: Instant,
    caller: Option<Caller>,
    place: Place,
    /// As the request's head names it.
    session: Option<u64>,
}

impl Arrival {
    /// `wanted`: the time that the client gives it; `session`: the session that the head names.
    pub fn new(
        core: &Arc<Core>,
        caller: Option<&Caller>,
        wanted: Option<Duration>,
        session: Option<&str>,
    ) -> Result<Self, Error> {
        let began = Instant::now();
        let limit = core.config.request_time;
        let of_key = caller.map(Caller::enter).transpose()?;
        Ok(Arrival {
            place: core.admission.enter(of_key)?,
            core: core.clone(),
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
    pub async fn permit(self) -> Result<Permit, Error> {
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
            metrics: self.core.metrics.clone(),
            fleet_metrics: self.core.fleet_metrics.clone(),
            effort: self.core.effort.clone(),
            session: self.session.or_else(named),
            held: None,
            stall: self.core.config.client_stall,
            caller: self.caller,
        })
    }
}

fn priority(caller: Option<&Caller>, asked: Option<i64>) -> i64 {
    caller.map_or(asked.unwrap_or(0), |caller| caller.priority(asked))
}
