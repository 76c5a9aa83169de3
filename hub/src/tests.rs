use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::*;

#[test]
fn model_ids_are_distinguished_from_paths() {
    let id = |text: &str| text.parse::<ModelId>().ok().map(|id| (id.name.clone(), id.revision().to_owned()));
    let of = |name: &str, revision: &str| Some((name.to_owned(), revision.to_owned()));
    assert_eq!(id("moonshotai/Kimi-K2"), of("moonshotai/Kimi-K2", "main"));
    assert_eq!(id("Qwen/Qwen3-0.6B@v1.0"), of("Qwen/Qwen3-0.6B", "v1.0"));
    assert_eq!(id("a/b@refs/pr/7"), of("a/b", "refs/pr/7"));
    let paths = ["model", "./model", "../a/b", "/models/demo", "a/b/c", "a/", "a b/c", "a/.b", "", "a/b@", "a/b@/c"];
    for path in paths.into_iter().chain(["a/b@../c", "a/b@c//d", "a/b..c", "a/b--c", "a/b@c d", "@c", "a@b"]) {
        assert_eq!(id(path), None, "{path}");
    }
}

#[test]
fn the_directory_of_a_snapshot_tells_the_models_name() {
    let name = |dir: &str| name_of(Path::new(dir));
    assert_eq!(name("/c/models--Qwen--Qwen3-0.6B/snapshots/0123").as_deref(), Some("Qwen/Qwen3-0.6B"));
    assert_eq!(name("/c/datasets--a--b/snapshots/0123"), None);
    assert_eq!(name("/c/models--a--b/blobs/0123"), None);
    assert_eq!(name("/models/demo"), None);
}

fn settings(variables: &[(&str, &str)]) -> Result<HubSettings, HubError> {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    HubSettings::from_env(|name| variables.get(name).map(OsString::from))
}

#[test]
fn the_variables_of_the_hubs_tools_are_read_in_their_order() {
    let cache = |variables: &[(&str, &str)]| settings(variables).map(|settings| settings.cache).ok();
    let is = |path: &str| Some(PathBuf::from(path));
    assert_eq!(cache(&[("HOME", "/h")]), is("/h/.cache/huggingface/hub"));
    assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), is("/x/huggingface/hub"));
    assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/f")]), is("/f/hub"));
    assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), is("/c"));
    assert_eq!(cache(&[("HUGGINGFACE_HUB_CACHE", "/old")]), is("/old"));
    assert_eq!(cache(&[]), None);

    let of = |name, value| settings(&[("HOME", "/h"), (name, value)]);
    let endpoint = |value| of("HF_ENDPOINT", value).map(|settings| settings.endpoint);
    assert_eq!(endpoint("").ok().as_deref(), Some("https://huggingface.co"));
    assert_eq!(endpoint("http://mirror:8080/hf/").ok().as_deref(), Some("http://mirror:8080/hf"));
    for wrong in ["mirror", "ftp://mirror", "http://"] {
        assert!(endpoint(wrong).is_err_and(|error| error.to_string().starts_with("HF_ENDPOINT: ")), "{wrong}");
    }
    for (value, offline) in [("1", true), ("true", true), ("ON", true), ("Yes", true), ("0", false), ("", false)] {
        assert!(of("HF_HUB_OFFLINE", value).is_ok_and(|settings| settings.offline == offline), "{value}");
    }
    assert!(of("HF_TOKEN", "secret").is_ok_and(|settings| !format!("{settings:?}").contains("secret")));
}
