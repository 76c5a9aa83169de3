//! Style as a test: what clippy cannot see.

mod modules;
mod names;
mod prose;
mod skips;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rein_grammar::{Format, formats};

const MAX_LINES: usize = 600;
/// Files that are tables; each row reads on its own.
const TABLES: &[&str] = &["router/grammar/src/formats.rs"];
/// Crates and what they must never depend on (docs/architecture.md, "What each part knows").
const NEVER: &[(&str, &[&str])] = &[
    ("router/Cargo.toml", &["rein-worker", "rein-kernels", "rein-adapter"]),
    ("worker/Cargo.toml", &["rein-router", "rein-text", "rein-grammar", "axum", "minijinja"]),
    ("router/text/Cargo.toml", &["tokio", "rein-proto", "rein-router", "tonic", "prost"]),
    ("router/grammar/Cargo.toml", &["tokio", "rein-proto", "rein-text", "tonic", "prost"]),
    ("kernels/Cargo.toml", &["tokio", "rein-proto", "tonic", "prost"]),
    ("proto/Cargo.toml", &["tokio"]),
    ("adapter/Cargo.toml", &["rein-router", "rein-text", "rein-grammar", "rein-worker", "rein-control-plane", "axum"]),
    ("control-plane/Cargo.toml", &["rein-router", "rein-worker", "rein-kernels"]),
    ("hub/Cargo.toml", &["rein-router", "rein-worker", "rein-adapter", "rein-control-plane", "rein-measure", "clap"]),
    ("gguf/Cargo.toml", &["rein-router", "rein-worker", "rein-kernels", "rein-text", "tokio", "clap"]),
    ("measure/Cargo.toml", &["rein-router", "rein-worker", "rein-control-plane"]),
];
const BANNED_WORDS: &[&str] = &["Manager", "Helper", "utils"];
/// Crates whose non-test code stands on a request path.
const REQUEST_PATH: &[&str] = &[
    "router/src",
    "router/text/src",
    "router/grammar/src",
    "worker/src",
    "adapter/src",
    "measure/src",
    "hub/src",
    "gguf/src",
    "src",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files that git would commit.
fn files(extensions: &[&str]) -> Vec<PathBuf> {
    let output = std::process::Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
    let files: Vec<PathBuf> = String::from_utf8(output.stdout)
        .expect("utf-8 paths")
        .lines()
        .map(PathBuf::from)
        .filter(|p| p.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) && root().join(p).is_file())
        .collect();
    assert!(!files.is_empty(), "no files with {extensions:?}");
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A source file without its items under `#[cfg(test)]`; their lines stay, empty, so that numbers hold.
fn without_tests(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let block = line == "#[cfg(test)]" && lines.peek().is_some_and(|next| next.ends_with('{'));
        if block {
            while lines.next().is_some_and(|l| l != "}") {
                out.push('\n');
            }
            out.push('\n');
        }
        out.push_str(if block { "" } else { line });
        out.push('\n');
    }
    out
}

/// Unit tests stand in `tests.rs` or `tests/` beside their module, the others in `tests`.
fn is_test(path: &Path) -> bool {
    let holds_tests = |part: &std::ffi::OsStr| ["tests", "benches", "examples"].iter().any(|folder| part == *folder);
    path.ends_with("tests.rs") || path.components().any(|part| holds_tests(part.as_os_str()))
}

fn assert_none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn files_stay_under_600_lines() {
    let long = files(&["rs", "py", "cu"])
        .into_iter()
        .filter(|p| !TABLES.iter().any(|t| p == Path::new(t)))
        .map(|p| (read(&p).lines().count(), p))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .map(|(lines, p)| format!("{}: {lines} lines", p.display()))
        .collect();
    assert_none("files past 600 lines", long);
}

#[test]
fn dependencies_point_one_way() {
    let mut wrong = Vec::new();
    for (manifest, banned) in NEVER {
        let table: toml::Table = read(Path::new(manifest)).parse().expect("manifest");
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(deps) = table.get(section).and_then(|d| d.as_table()) else { continue };
            wrong.extend(
                deps.keys().filter(|d| banned.contains(&d.as_str())).map(|d| format!("{manifest}: {section}.{d}")),
            );
        }
    }
    assert_none("forbidden dependencies", wrong);
}

#[test]
fn unsafe_code_lives_in_kernels_only() {
    let found = files(&["rs"])
        .into_iter()
        .filter(|p| !p.starts_with("kernels") && !p.ends_with("tidy.rs"))
        .flat_map(|p| {
            let text = read(&p);
            let hits: Vec<String> = text
                .lines()
                .enumerate()
                .filter(|(_, l)| l.contains("unsafe {") || l.contains("unsafe fn") || l.contains("allow(unsafe_code"))
                .map(|(n, _)| format!("{}:{}", p.display(), n + 1))
                .collect();
            hits
        })
        .collect();
    assert_none("unsafe outside kernels/", found);
    for manifest in files(&["toml"]).into_iter().filter(|p| p.ends_with("Cargo.toml") && !p.starts_with("kernels")) {
        let text = read(&manifest);
        assert!(
            text.contains("[lints]\nworkspace = true"),
            "{} does not take the workspace's lints",
            manifest.display()
        );
    }
}

/// `"a record is a struct of strings and numbers")`: why there is no failure.
fn is_reason(expected: &str) -> bool {
    let text = expected.strip_prefix('"').and_then(|text| text.split('"').next());
    text.is_some_and(|text| text.split(' ').count() >= 3)
}

/// Where a failure is impossible, `expect` says why.
#[test]
fn no_unwrap_on_a_request_path() {
    let found = files(&["rs"])
        .into_iter()
        .filter(|p| REQUEST_PATH.iter().any(|r| p.starts_with(r)) && !is_test(p))
        .flat_map(|p| {
            let text = read(&p);
            let hits: Vec<String> = without_tests(&text)
                .lines()
                .enumerate()
                .filter(|(_, l)| !l.trim_start().starts_with("//") && !l.contains("LazyLock"))
                .filter(|(_, l)| {
                    let banned = [".unwrap()", "unbounded_channel", "unbounded()"].iter().any(|b| l.contains(b));
                    banned || l.split(".expect(").skip(1).any(|expected| !is_reason(expected))
                })
                .map(|(n, l)| format!("{}:{}: {}", p.display(), n + 1, l.trim()))
                .collect();
            hits
        })
        .collect();
    assert_none("unwrap or unbounded queue", found);
}

#[test]
fn nothing_unfinished_or_vaguely_named() {
    let found = files(&["rs"])
        .into_iter()
        .filter(|p| !p.ends_with("tidy.rs"))
        .flat_map(|p| {
            let text = read(&p);
            let hits: Vec<String> = text
                .lines()
                .enumerate()
                .filter(|(_, l)| {
                    l.contains("TODO")
                        || l.contains("FIXME")
                        || l.contains("assert!(true)")
                        || BANNED_WORDS.iter().any(|w| {
                            l.contains(&format!("struct {w}"))
                                || l.contains(&format!("mod {w}"))
                                || (l.contains("struct ") && l.contains(&format!("{w} {{")))
                        })
                })
                .map(|(n, l)| format!("{}:{}: {}", p.display(), n + 1, l.trim()))
                .collect();
            hits
        })
        .collect();
    assert_none("unfinished code", found);
}

#[test]
fn one_file_has_ptx() {
    let holds = |p: &PathBuf| p.starts_with("kernels/cuda") && !p.ends_with("ptx.cuh") && read(p).contains("asm");
    let found = files(&["cu", "cuh", "h"]).into_iter().filter(holds).map(|p| p.display().to_string());
    assert_none("PTX outside kernels/cuda/ptx.cuh", found.collect());
}

/// The markers of all formats that cannot be taken for words or punctuation of other code.
fn telling_markers() -> BTreeSet<&'static str> {
    let of_format = |format: &Format| [format.call_markers(), format.other_markers(), format.stops.to_vec()].concat();
    let markers = formats().iter().flat_map(of_format);
    markers.filter(|marker| marker.contains(['|', '｜', '_']) && marker.len() > 4).collect()
}

#[test]
fn a_marker_is_spelled_in_one_place() {
    let markers = telling_markers();
    assert!(markers.len() > 40, "{markers:?}");
    let found = files(&["rs"])
        .into_iter()
        .filter(|p| !is_test(p) && !p.ends_with("router/grammar/src/formats.rs"))
        // Requests of `rein verify` in which a user's text spells markers.
        .filter(|p| !p.starts_with("measure/src/verify/generate"))
        // Tokens that llama.cpp takes as the end of a text, whatever a file says of them.
        .filter(|p| !p.ends_with("gguf/src/tokenizer.rs"))
        // Tokens that vocabularies of Mistral have without listing them.
        .filter(|p| !p.ends_with("router/text/src/tokenize/tekken.rs"))
        .filter_map(|p| {
            let text = without_tests(&read(&p));
            let code: Vec<&str> = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
            let spelled = markers.iter().find(|marker| code.iter().any(|line| line.contains(**marker)))?;
            Some(format!("{}: {spelled}", p.display()))
        })
        .collect();
    assert_none("markers outside the format table", found);
}

#[test]
fn unit_tests_stand_beside_their_module() {
    let mut found = Vec::new();
    for path in files(&["rs"]) {
        let text = read(&path);
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let module = lines.peek().and_then(|next| next.split("mod ").nth(1)).filter(|_| line == "#[cfg(test)]");
            if module.is_some_and(|module| module != "tests;") {
                found.push(format!("{}: a test module is `mod tests;`, in tests.rs", path.display()));
            }
        }
        if path.to_str().is_some_and(|name| name.ends_with("_test.rs") || name.ends_with("_tests.rs")) {
            found.push(format!("{}: unit tests stand in tests.rs, others in tests/it", path.display()));
        }
    }
    assert_none("tests out of place", found);
}

#[test]
fn no_paths_of_a_machine() {
    // Where scratch files live, and where this checkout does.
    let mut roots: Vec<String> = ["/tmp/", "/opt/", "/srv/", "/mnt/"].map(String::from).to_vec();
    roots.push(format!("{}/", root().display()));
    roots.extend(root().parent().filter(|p| p.parent().is_some()).map(|p| format!("{}/", p.display())));
    let found = files(&["rs", "py", "md", "toml", "sh", "proto", "json", "jinja"])
        .into_iter()
        // Templates of others.
        .filter(|p| !p.ends_with("tidy.rs") && !p.starts_with("tests/fixtures/templates"))
        .filter(|p| !(p.starts_with("tests/fixtures/models") && p.ends_with("chat_template.jinja")))
        .filter(|p| {
            let text = read(p);
            roots.iter().any(|r| text.contains(r.as_str()))
        })
        .map(|p| p.display().to_string())
        .collect();
    assert_none("paths of a machine", found);
}
