//! `rein alarms` and `rein dashboard`: Prometheus' rules and Grafana's dashboard for clusters on machines. Both come
//! from the chart's files, whose placeholders select one release; here a matcher of the operator does.

use std::error::Error;

use clap::Args;
use serde_json::{Value, json};

use crate::terminal;

const ALARMS: &str = include_str!("../helm/rein/files/alerts.yaml");
const DASHBOARD: &str = include_str!("../helm/rein/files/dashboard.json");
/// How the chart's dashboard selects a release.
const OF_RELEASE: &str = r#"namespace="$namespace",service=~"$release-(router|workers|controller)""#;

#[derive(Debug, Clone, Args)]
pub struct AlarmArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    /// URL of the directory `docs`, to which each alarm's runbook is relative [default: a path in the repository]
    #[arg(long, value_name = "URL", default_value = "docs")]
    pub runbooks: String,
}

/// Whose metrics are meant.
#[derive(Debug, Clone, Args)]
pub struct SelectArgs {
    /// Matchers of the cluster's metrics in Prometheus' form, without braces
    #[arg(long, value_name = "MATCHERS", default_value = "job=~\"rein.*\"", value_parser = matchers)]
    pub select: String,
}

/// Matchers such as `job="rein",env=~"prod|test"`.
fn matchers(text: &str) -> Result<String, String> {
    // Rules quote expressions with apostrophes.
    match text.contains(['{', '}', '\'', '\n']) || !text.contains('=') || text.matches('"').count() % 2 == 1 {
        true => Err("expected matchers such as job=\"rein\" or job=~\"rein.*\",env=\"prod\"".into()),
        false => Ok(text.to_owned()),
    }
}

pub fn alarms(args: &AlarmArgs) -> Result<(), Box<dyn Error>> {
    // The chart leaves out models that are scaled to zero.
    let rules = ALARMS.replace(",AWAKE", "").replace("RELEASE", &args.select.select);
    let rules = rules.replace("RUNBOOKS", args.runbooks.trim_end_matches('/'));
    terminal::out(rules.trim_end());
    Ok(())
}

pub fn dashboard(args: &SelectArgs) -> Result<(), Box<dyn Error>> {
    let mut board: Value = serde_json::from_str(DASHBOARD)?;
    let is_ours = |variable: &Value| variable["name"] == "datasource";
    let variables = board["templating"]["list"].as_array().into_iter().flatten().filter(|one| is_ours(one)).cloned();
    board["templating"]["list"] = variables.collect::<Vec<_>>().into();
    for panel in board["panels"].as_array_mut().into_iter().flatten() {
        for target in panel.get_mut("targets").and_then(Value::as_array_mut).into_iter().flatten() {
            for (field, from, to) in
                [("expr", OF_RELEASE, args.select.as_str()), ("legendFormat", "{{pod}}", "{{instance}}")]
            {
                target[field] = json!(target[field].as_str().unwrap_or_default().replace(from, to));
            }
        }
    }
    terminal::out(serde_json::to_string_pretty(&board)?);
    Ok(())
}
