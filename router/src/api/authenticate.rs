//! Authenticates HTTP and gRPC requests by API key, if the operator has configured keys. Health, metrics and the
//! playground's files need no key.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use chrono::Utc;
use http::{HeaderMap, HeaderValue, Method, header};
use tokio::time::Instant;

use crate::{
    admission::keys::{ApiCaller, Rate},
    api::status::{grpc_status, http_response},
    error::Error,
    state::RouterState,
};

/// Paths that need no key: they hold no secrets, and monitoring systems have no key.
const PUBLIC_PATHS: [&str; 7] = ["/", "/docs", "/health", "/metrics", "/openapi.json", "/ready", "/version"];
/// The playground's files. Its API requests carry a key.
const PUBLIC_FOLDER: &str = "/playground/";
const PUBLIC_SERVICE: &str = "/grpc.health.v1.Health/";
const X_API_KEY: &str = "x-api-key";
/// Maximum length of an API key, in bytes.
const KEY_BYTES: usize = 512;

pub async fn http(State(state): State<Arc<RouterState>>, request: Request, next: Next) -> Response {
    if is_public(request.uri().path()) {
        return next.run(request).await;
    }
    // Requests for models do not count against the key's rate limits.
    let counts = request.method() != Method::GET;
    let refuse = |error: Error| {
        let response = http_response(&error);
        state.surfaces.request("http", "key", response.status().as_u16());
        response
    };
    check_key(&state, request, next, counts, refuse).await
}

/// Whether a path is served without a key.
pub fn is_public(path: &str) -> bool {
    PUBLIC_PATHS.contains(&path) || path.starts_with(PUBLIC_FOLDER)
}

pub async fn grpc(State(state): State<Arc<RouterState>>, request: Request, next: Next) -> Response {
    if request.uri().path().starts_with(PUBLIC_SERVICE) {
        return next.run(request).await;
    }
    let refuse = |error: Error| {
        let status = grpc_status(&error);
        state.surfaces.request("grpc", "key", status.code() as i32 as u16);
        status.into_http()
    };
    check_key(&state, request, next, true, refuse).await
}

async fn check_key(
    state: &RouterState,
    mut request: Request,
    next: Next,
    counts: bool,
    refuse: impl FnOnce(Error) -> Response,
) -> Response {
    let Some(keys) = &state.config.keys else { return next.run(request).await };
    let caller: ApiCaller = match keys.authenticate(key(request.headers()), Utc::now()) {
        Ok(caller) => caller,
        Err(error) => return refuse(error),
    };
    let begun = if counts { caller.begin().await } else { Ok(()) };
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
    set_rate_headers(&caller, response.headers_mut());
    response
}

/// The key of `Authorization: Bearer KEY` or `x-api-key: KEY`.
fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let key = authorization.or_else(|| headers.get(X_API_KEY)?.to_str().ok().map(str::trim))?;
    (1..=KEY_BYTES).contains(&key.len()).then_some(key.as_bytes())
}

/// Sets the OpenAI API's headers with the key's rate limits and what remains of them.
fn set_rate_headers(caller: &ApiCaller, headers: &mut HeaderMap) {
    let names = [
        ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
        ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    ];
    for (rate, names) in caller.rates(Instant::now()).into_iter().zip(names) {
        let Some(Rate { limit, remaining, reset }) = rate else { continue };
        let values = [limit.to_string(), remaining.to_string(), format!("{:.3}s", reset.as_secs_f64())];
        for (name, value) in names.into_iter().zip(values) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
