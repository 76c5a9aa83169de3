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
    request::{generate::RequestContext, job::Generation, model::ServedModel},
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
    pub async fn new(
        state: &Arc<RouterState>,
        caller: Option<&ApiCaller>,
        wanted: Option<Duration>,
        session: Option<&str>,
    ) -> Result<Self, Error> {
        let began = Instant::now();
        let limit = state.config.request_time;
        let of_key = match caller {
            Some(caller) => Some(caller.enter().await?),
            None => None,
        };
        Ok(IncomingRequest {
            pending: state.admission.enter(keys::caller_name(caller), of_key)?,
            state: state.clone(),
            began,
            deadline: began + wanted.map_or(limit, |wanted| wanted.min(limit)),
            caller: caller.cloned(),
            session: session.filter(|name| !name.is_empty()).map(route::key),
        })
    }

    /// The owner of its API key, if the server has keys.
    pub fn caller(&self) -> Option<&ApiCaller> {
        self.caller.as_ref()
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

    /// Waits until an engine serves the model, if that is expected.
    async fn await_engine(&mut self, model: &str) -> Result<(), Error> {
        if self.state.awaits_engine(model) {
            self.pending.await_engine(self.state.served(model), self.deadline).await?;
        }
        Ok(())
    }

    /// The name of the model that is asked for. Until the first of fixed engines has told it, the request waits.
    async fn name_of(&mut self, model: Option<&str>) -> Result<String, Error> {
        if self.state.awaits_first_model() {
            self.pending.await_engine(self.state.first_model(), self.deadline).await?;
        }
        self.state.known(model, self.caller.as_ref())
    }

    /// Waits for an in-flight slot. The name of the model may be omitted if there is only one.
    pub async fn admit(mut self, model: Option<&str>) -> Result<(InFlightPermit, Arc<ServedModel>), Error> {
        let name = self.name_of(model).await?;
        // Texts need only the model's files.
        if self.state.named(&name).is_none() {
            let _counted = self.state.demand.enter(&name);
            self.await_engine(&name).await?;
        }
        let priority = priority(self.caller.as_ref(), None);
        let permit = self.pending.admit(1, priority, self.deadline).await?;
        Ok((permit, self.state.model(&name)?))
    }

    /// Waits for the in-flight slots of a generation with this many choices.
    pub async fn admit_generation(
        self,
        trace: &Trace,
        model: Option<&str>,
        generation: &Generation,
        choices: usize,
    ) -> Result<(RequestContext, Arc<ServedModel>), Error> {
        trace.record_generation(&generation.sampling, &generation.limits, generation.n);
        self.admit_sequences(trace, model, generation.priority, generation.session.as_deref(), choices).await
    }

    /// Waits for this many in-flight slots. `priority` and `session` are those that the body asks for.
    pub async fn admit_sequences(
        mut self,
        trace: &Trace,
        model: Option<&str>,
        priority: Option<i64>,
        session: Option<&str>,
        slots: usize,
    ) -> Result<(RequestContext, Arc<ServedModel>), Error> {
        let name = self.name_of(model).await?;
        let counted = Arc::new(self.state.demand.enter(&name));
        self.await_engine(&name).await?;
        let priority = self::priority(self.caller.as_ref(), priority);
        let named = || session.map(route::key);
        // More are refused when the request is checked.
        let slots = slots.min(limits::COMPLETION_CHOICES);
        let permit = self.pending.admit(slots, priority, self.deadline).await?;
        let context = RequestContext {
            trace: trace.clone(),
            began: self.began,
            deadline: self.deadline,
            permit,
            counted,
            metrics: self.state.metrics.clone(),
            fleet_metrics: self.state.fleet_metrics.clone(),
            tool_holds: self.state.tool_holds.clone(),
            retry_budget: self.state.retry_budget.clone(),
            session: self.session.or_else(named),
            memory_charge: None,
            matcher_memory: self.state.memory.matchers.clone(),
            stall_timeout: self.state.config.client_stall,
            caller: self.caller,
        };
        Ok((context, self.state.model(&name)?))
    }
}

fn priority(caller: Option<&ApiCaller>, asked: Option<i64>) -> i64 {
    caller.map_or(asked.unwrap_or(0), |caller| caller.priority(asked))
}
