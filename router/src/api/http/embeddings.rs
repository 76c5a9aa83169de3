//! `/v1/embeddings` over HTTP.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    response::Response,
};
use rein_text::fields::ParsedBody;

use super::{Shared, finish, held_bytes, incoming, read};
use crate::{
    api::openai::{self, EmbeddingRequest},
    limits,
    request::{
        embed::{self, Embeddings},
        generate::RequestContext,
        model::ServedModel,
    },
    request_trace::Trace,
};

pub async fn create(State(state): Shared, Extension(trace): Extension<Trace>, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let (ParsedBody { value: EmbeddingRequest { job, encoding }, ignored, .. }, charge) =
            read(&state, request, &mut incoming, openai::embedding).await?;
        let (model, session) = (job.model.as_deref(), job.session.as_deref());
        let slots = embed::slots(&job, incoming.caller());
        let (context, model) = incoming.admit_sequences(&trace, model, job.priority, session, slots).await?;
        let mut context = RequestContext { memory_charge: Some(Arc::new(charge)), ..context };
        trace.record_request(model.name(), false);
        let charge = state.memory.open_charge(context.requester().caller);
        let embedded = embed::run(&mut context, model.clone(), job, charge).await?;
        let bytes = embedded.bytes();
        let requester = context.requester();
        let charge = state.memory.charge_answer(limits::IDS_PER_BYTE / 4 * bytes, &requester).await?;
        let write = move |model: &ServedModel| {
            let Embeddings { vectors, usage, charge: _charge } = embedded;
            Ok(openai::embedding_body(model.name(), &vectors, &usage, encoding))
        };
        let answer = model.run_text_work(bytes, &requester, write).await?;
        held_bytes(&state, answer, &ignored, context.permit, charge, &requester).await
    };
    finish(&state, "embeddings", state.admission.unless_aborted(answer).await)
}
