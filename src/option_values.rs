//! Parsers for option values whose type alone does not make them valid.

use std::net::IpAddr;

use http::Uri;
use rein_control_plane::records::is_valid_name;
use rein_measure::option_values::seconds;
use tokio_rustls::rustls::pki_types::ServerName;

/// Seconds from 0.1 to 86400, one day.
pub fn deadline(text: &str) -> Result<f64, String> {
    let within = seconds(text).ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    within.ok_or_else(|| "must be a number of seconds from 0.1 to 86400".into())
}

/// A number greater than 1.
pub fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor.is_finite() && factor > 1.0 => Ok(factor),
        _ => Err("must be a number greater than 1".into()),
    }
}

/// GiB, more than none.
pub fn gib(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gib) if gib > 0.0 && gib <= 65_536.0 => Ok(gib),
        _ => Err("must be a number of GiB above 0, at most 65536".into()),
    }
}

/// An etcd endpoint: `HOST:PORT`, or with a scheme.
pub fn etcd(text: &str) -> Result<String, String> {
    let example = "expected HOST:PORT, such as 10.0.0.5:2379, or https://HOST:PORT";
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let whole = format!("{scheme}://{rest}").parse::<Uri>().ok();
    let bare = |uri: &Uri| {
        matches!(scheme, "http" | "https")
            && uri.port().is_some()
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
    };
    match whole.is_some_and(|uri| bare(&uri)) {
        true => Ok(text.to_owned()),
        false => Err(example.into()),
    }
}

/// The URL of an OpenTelemetry collector.
pub fn collector(text: &str) -> Result<String, String> {
    let uri = text.parse::<Uri>().ok();
    let complete =
        |uri: Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|h| !h.is_empty());
    match uri.is_some_and(complete) {
        true => Ok(text.to_owned()),
        false => Err("expected a URL, such as http://127.0.0.1:4317".into()),
    }
}

/// A host name or IP address that others can reach, without scheme and port.
pub fn host(text: &str) -> Result<String, String> {
    let address = text.parse::<IpAddr>();
    match (&address, ServerName::try_from(text)) {
        (Ok(address), _) if address.is_unspecified() => {
            Err("other processes cannot reach this address; expected this machine's host name or IP address".into())
        }
        (Ok(_), _) | (Err(_), Ok(ServerName::DnsName(_))) => Ok(text.to_owned()),
        _ => Err("expected a host name or an IP address, without scheme and port".into()),
    }
}

/// A further name of a model, and the model's own.
pub fn alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((alias, model)) if !alias.is_empty() && !model.is_empty() => Ok((alias.to_owned(), model.to_owned())),
        _ => Err("expected NAME=MODEL, such as gpt-4o=moonshotai/Kimi-K2-Instruct".into()),
    }
}

/// The name of a LoRA adapter, and its directory.
pub fn named_dir(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, dir)) if !name.is_empty() && !dir.is_empty() => Ok((name.to_owned(), dir.to_owned())),
        _ => Err("expected NAME=DIR, such as sql=/adapters/sql".into()),
    }
}

pub fn name(text: &str) -> Result<String, String> {
    match is_valid_name(text) {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 63 letters, digits, '-', '_' and '.', beginning with a letter or a digit".into()),
    }
}

#[cfg(test)]
mod tests;
