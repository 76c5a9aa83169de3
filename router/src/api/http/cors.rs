//! Cross-origin requests: web pages of the origins that the operator allows may call the API and read its headers.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use crate::{config::Origin, state::RouterState};

/// Seconds for which a browser may cache a preflight response.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, OPTIONS");
/// The headers that a page may send, if the browser does not name any.
const HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, x-api-key, x-request-id, x-request-timeout, x-rein-session, traceparent",
);

/// Answers preflight requests, and adds CORS headers to every response, errors included.
pub async fn allow(State(state): State<Arc<RouterState>>, request: Request, next: Next) -> Response {
    let origins = &state.config.cors_origins;
    if origins.is_empty() {
        return next.run(request).await;
    }
    let allowed = allowed(origins, request.headers());
    let is_preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match &allowed {
        // Preflight requests carry no API key, so they are answered before authentication.
        Some(_) if is_preflight => preflight(request.headers()),
        _ => next.run(request).await,
    };
    let exposed = exposed(response.headers());
    let headers = response.headers_mut();
    if !origins.contains(&Origin::Any) {
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(allowed) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        if let Some(exposed) = exposed.filter(|_| !is_preflight) {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
    response
}

/// The value of `access-control-allow-origin`, if the request's origin is allowed.
fn allowed(origins: &[Origin], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    if origins.contains(&Origin::Any) {
        return Some(HeaderValue::from_static("*"));
    }
    let asked = origin.to_str().ok()?;
    let known = |one: &Origin| matches!(one, Origin::Of(known) if known.eq_ignore_ascii_case(asked));
    origins.iter().any(known).then(|| origin.clone())
}

fn preflight(asked: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // Any header may be allowed: pages send API keys themselves, browsers never add them.
    let wanted = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or(HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    response
}

/// The response headers that pages may read besides the standard ones.
fn exposed(headers: &HeaderMap) -> Option<HeaderValue> {
    let own = |name: &&HeaderName| name.as_str().starts_with("x-") || *name == header::RETRY_AFTER;
    let names: Vec<&str> = headers.keys().filter(own).map(HeaderName::as_str).collect();
    HeaderValue::from_str(&names.join(", ")).ok().filter(|_| !names.is_empty())
}
