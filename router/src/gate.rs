//! Who comes in: every request but those for health and metrics bears a key, where there are keys.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderValue, Method};
use tokio::time::Instant;

use crate::{Core, error::Error, grpc, http as http_surface, keys::Caller};

/// Nothing here is secret, and whoever watches or scrapes has no key.
pub const OPEN: [&str; 5] = ["/", "/health", "/ready", "/metrics", "/openapi.json"];
const OPEN_SERVICE: &str = "/grpc.health.v1.Health/";

pub async fn http(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    // Looking at the list of models is free.
    let counts = request.method() != Method::GET;
    let refuse = |error: Error| {
        let response = http_surface::error_response(&error);
        core.metrics.request("http", "key", response.status().as_u16());
        response
    };
    pass(&core, request, next, counts, refuse).await
}

pub async fn grpc(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    if request.uri().path().starts_with(OPEN_SERVICE) {
        return next.run(request).await;
    }
    let refuse = |error: Error| {
        let status = grpc::status(&error);
        core.metrics.request("grpc", "key", status.code() as i32 as u16);
        status.into_http()
    };
    pass(&core, request, next, true, refuse).await
}

async fn pass(
    core: &Core,
    mut request: Request,
    next: Next,
    counts: bool,
    refuse: impl FnOnce(Error) -> Response,
) -> Response {
    let Some(keys) = &core.config.keys else { return next.run(request).await };
    let caller: Caller = match keys.authenticate(request.headers()) {
        Ok(caller) => caller,
        Err(error) => return refuse(error),
    };
    let begun = if counts { caller.begin(Instant::now()) } else { Ok(()) };
    let mut response = match begun {
        Ok(()) => {
            request.extensions_mut().insert(caller.clone());
            next.run(request).await
        }
        Err(error) => {
            tracing::debug!(key = caller.name(), "{}", error.message);
            refuse(error)
        }
    };
    for (name, value) in caller.rate_headers(Instant::now()) {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
