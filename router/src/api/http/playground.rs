//! Serves the playground and the page of openapi.json, with their scripts, style sheets and icon, all compiled into the
//! binary.

use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::{HeaderName, header};

use super::{Shared, finish};
use crate::error::{Error, ErrorKind};

/// Allows these files and this server's API only. With trusted types, no script can turn text into markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const PAGE: &str = include_str!("../playground/index.html");
const DOCS: &str = include_str!("../playground/docs.html");

macro_rules! files {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../playground/", $name)))),*]
    };
}

const FILES: &[(&str, &str)] = files!(
    "api.js",
    "app.js",
    "code.js",
    "docs.css",
    "docs.js",
    "dom.js",
    "icon.svg",
    "inspect.js",
    "log.js",
    "markdown.js",
    "messages.js",
    "panel.js",
    "session.js",
    "store.js",
    "style.css",
    "tools.js"
);

pub async fn page() -> Response {
    served("index.html", PAGE)
}

/// The page of openapi.json.
pub async fn docs() -> Response {
    served("docs.html", DOCS)
}

pub async fn file(State(state): Shared, Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(file, _)| *file == name) {
        Some((name, text)) => served(name, text),
        None => {
            let error = Error::new(ErrorKind::NotFound, format!("the playground has no file '{name}'"));
            finish(&state, "none", Err(Error { code: Some("unknown_url"), ..error }))
        }
    }
}

fn served(name: &str, text: &'static str) -> Response {
    let kind = match name.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    };
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Browsers must not mix the files of two releases.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
