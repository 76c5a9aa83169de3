//! The variables of the Hub's own tools.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use http::{HeaderValue, Uri};

use crate::HubError;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

#[derive(Debug, Clone)]
pub struct HubSettings {
    /// URL without a trailing slash.
    pub endpoint: String,
    /// Directory of the cache, `~/.cache/huggingface/hub` by default.
    pub cache: PathBuf,
    /// `Bearer TOKEN`.
    pub authorization: Option<HeaderValue>,
    pub offline: bool,
}

impl HubSettings {
    /// `variable` reads the environment.
    pub fn from_env(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let text = |name: &'static str| match variable(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => match value.into_string() {
                Ok(value) => Ok(Some(value.trim().to_owned())),
                Err(_) => Err(HubError::Variable { variable: name, what: "must be UTF-8".into() }),
            },
        };
        let cache_home = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
        let home = path("HF_HOME").or_else(|| Some(cache_home()?.join("huggingface")));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.or_else(|| Some(home.as_ref()?.join("hub"))).ok_or(HubError::Home)?;
        let token = match text("HF_TOKEN")? {
            Some(token) => Some(token),
            None => {
                let file = path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
                file.and_then(|file| fs::read_to_string(file).ok()).map(|token| token.trim().to_owned())
            }
        };
        let authorization = token.filter(|token| !token.is_empty()).map(|token| {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| HubError::Variable {
                variable: "HF_TOKEN",
                what: "contains characters that are not allowed in an HTTP header".into(),
            })?;
            value.set_sensitive(true);
            Ok(value)
        });
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let url = endpoint.parse::<Uri>().ok();
        if !url.is_some_and(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some()) {
            let what = format!("expected a URL such as {DEFAULT_ENDPOINT}, got {endpoint:?}");
            return Err(HubError::Variable { variable: "HF_ENDPOINT", what });
        }
        let is_true = |value: String| matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
        let offline = text("HF_HUB_OFFLINE")?.or(text("TRANSFORMERS_OFFLINE")?).is_some_and(is_true);
        Ok(HubSettings { endpoint, cache, authorization: authorization.transpose()?, offline })
    }
}
