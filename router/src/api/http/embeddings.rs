//! `/v1/embeddings` over HTTP.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    response::Response,
};
use rein_text::fields::ParsedBody;

use super::{Shared, finish, held, incoming, json_bytes, read, with_ignored_fields};
use crate::{
    api::openai::{self, EmbeddingRequest},
    request::{
        embed::{self, Embeddings},
        generate::RequestContext,
        model::ServedModel,
    },
    request_trace::Trace,
};

pub async fn create(State(state): Shared, Extension(trace): Extension<Trace>, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request)?;
        let (ParsedBody { value: EmbeddingRequest { job, encoding }, ignored, .. }, charge) =
            read(&state, request, &mut incoming, openai::embedding).await?;
        let (model, session) = (job.model.as_deref(), job.session.as_deref());
        let slots = embed::slots(&job, incoming.caller());
        let (context, model) = incoming.admit_sequences(&trace, model, job.priority, session, slots).await?;
        let mut context = RequestContext { memory_charge: Some(Arc::new(charge)), ..context };
        trace.record_request(model.name(), false);
        let embedded = embed::run(&mut context, model.clone(), job, state.memory.open_charge()).await?;
        let bytes = embedded.bytes();
        let write = move |model: &ServedModel| {
            let Embeddings { vectors, usage, charge: _charge } = embedded;
            Ok(openai::embedding_body(model.name(), &vectors, &usage, encoding))
        };
        let answer = model.run_text_work(bytes, &context.requester(), write).await?;
        Ok(held(&state, with_ignored_fields(json_bytes(answer), &ignored), context.permit))
    };
    finish(&state, "embeddings", state.admission.unless_aborted(answer).await)
}
