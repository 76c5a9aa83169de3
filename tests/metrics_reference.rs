//! The tables of docs/reference/metrics.md, generated from what a process writes to /metrics.
//!
//! With REIN_UPDATE_DOCS set, a test rewrites the page. Otherwise the page must be up to date.

use std::fmt::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const PAGE: &str = "docs/reference/metrics.md";

/// Metrics that every process has. The page lists them once.
const COMMON: [&str; 3] = ["rein_build_info", "process_start_time_seconds", "rein_certificate_expiry_seconds"];

/// Holds a section of the page to these metrics, of which each has a sample.
pub fn check(section: &str, written: &str) {
    // Tests of one program run at once.
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = manifest.ancestors().map(|dir| dir.join(PAGE)).find(|page| page.exists()).expect("the page");
    let text = std::fs::read_to_string(&page).expect("the page");
    let (begin, end) = (format!("<!-- metrics: {section} -->\n"), "<!-- end -->\n");
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{begin} in {PAGE}"));
    let (table, after) = rest.split_once(end).expect("the end of the section");
    let expected = self::table(written, section == "All processes");
    if std::env::var_os("REIN_UPDATE_DOCS").is_some() {
        std::fs::write(&page, [before, &begin, &expected, end, after].concat()).expect("the page is writable");
    } else {
        assert_eq!(table, expected, "{PAGE} is out of date: run the tests again with REIN_UPDATE_DOCS=1");
    }
}

/// `common`: of the common metrics, otherwise of the others.
fn table(written: &str, common: bool) -> String {
    let mut table = String::from("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n");
    for line in written.lines() {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else { continue };
        if COMMON.contains(&name) != common {
            continue;
        }
        let help = written.lines().find_map(|line| line.strip_prefix(&format!("# HELP {name} ")));
        let help = help.unwrap_or_else(|| panic!("{name} has no help"));
        let sample = |line: &&str| {
            let rest = line.strip_prefix(name).map(|rest| rest.strip_prefix("_count").unwrap_or(rest));
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        let sample = written.lines().find(sample).unwrap_or_else(|| panic!("{name} has no sample"));
        let labels = sample.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap_or_default());
        let labels: Vec<String> =
            labels.split(',').filter_map(|label| Some(format!("`{}`", label.split_once('=')?.0))).collect();
        let unit = ["seconds", "bytes", "tokens"].into_iter().find(|unit| {
            let plain = name.strip_suffix("_total").unwrap_or(name);
            plain.ends_with(&format!("_{unit}"))
        });
        let _ =
            writeln!(table, "| `{name}` | {kind} | {} | {} | {help} |", labels.join(", "), unit.unwrap_or_default());
    }
    table
}
