use serde_json::json;

use super::*;

fn checked(modules: &Value, pooling: &Value) -> Result<(), String> {
    let dir = std::env::temp_dir().join(format!("rein-pooling-{}", uuid()));
    std::fs::create_dir_all(dir.join("1_Pooling")).unwrap();
    std::fs::write(dir.join("modules.json"), modules.to_string()).unwrap();
    std::fs::write(dir.join("1_Pooling/config.json"), pooling.to_string()).unwrap();
    let checked = check(&dir);
    std::fs::remove_dir_all(dir).unwrap();
    checked
}

fn uuid() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
}

fn modules(names: &[&str]) -> Value {
    let module = |name: &&str| {
        let path = if *name == "Pooling" { "1_Pooling" } else { "" };
        json!({"path": path, "type": format!("sentence_transformers.models.{name}")})
    };
    names.iter().map(module).collect()
}

#[test]
fn only_the_last_token_is_pooled() {
    let all = modules(&["Transformer", "Pooling", "Normalize"]);
    let flags =
        |mode: &str| json!({"pooling_mode_lasttoken": mode == "lasttoken", "pooling_mode_mean_tokens": mode == "mean"});
    assert_eq!(checked(&all, &flags("lasttoken")), Ok(()));
    assert_eq!(checked(&all, &json!({"pooling_mode": "lasttoken"})), Ok(()));
    let mean = "--task embed: 1_Pooling/config.json: the pooling mode must be lasttoken, got mean_tokens";
    assert_eq!(checked(&all, &flags("mean")), Err(mean.into()));
    assert!(checked(&all, &json!({"pooling_mode": "cls"})).unwrap_err().ends_with("got cls"));
    assert!(checked(&all, &json!({})).unwrap_err().ends_with("got none"));
}

#[test]
fn other_modules_are_refused_and_a_directory_without_modules_is_not() {
    let error = checked(&modules(&["Transformer", "Pooling", "Dense"]), &json!({"pooling_mode": "lasttoken"}));
    assert!(error.unwrap_err().contains("\"sentence_transformers.models.Dense\""));
    assert_eq!(check(Path::new("/nonexistent")), Ok(()));
}
