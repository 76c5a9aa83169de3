//! What people read: module docs, plain words, links that lead somewhere, and lines that fit a screen.

use std::path::{Path, PathBuf};

use super::{assert_none, files, read, root};

/// Columns of a line of prose.
const COLUMNS: usize = 120;
/// Phrases of riddling prose, in lower case, and what to write instead (STYLE: subject, verb, object; the field's terms).
const BANNED: &[(&str, &str)] = &[
    ("come of", "result in, cause"),
    ("comes of", "results in"),
    ("came of", "resulted in"),
    ("goes on on", "resumes on"),
    ("go on on", "resume on"),
    ("stood in for", "replaced"),
    ("is stood in", "is replaced"),
    ("who comes second", "the second process"),
    ("whoever comes", "a later caller"),
    ("in the house", "in flight"),
    ("the echo", "follow-on retries"),
    ("of these nothing", "none of them"),
    ("nothing is to come", "there are no further"),
    ("begun anew", "restarted, was reset"),
    ("begins anew", "restarts, is reset"),
    ("begin anew", "restart"),
    ("put together anew", "reformed"),
    ("a word of", "a message of"),
    ("without a word", "silently"),
    ("nobody hears", "has no receiver"),
    ("comes home", "is returned"),
    ("come home", "are returned"),
    ("bear witness", "confirm"),
    ("for good and all", "permanently"),
    ("in the stead", "instead"),
    ("be had", "be obtained"),
    ("stand in the way", "block"),
    ("stands in the way", "blocks"),
];

/// Every place where prose may stand, by extension.
const PROSE: &[&str] =
    &["rs", "md", "proto", "html", "py", "js", "css", "sh", "toml", "yaml", "service", "cu", "cuh", "h"];

/// Files that are not prose of this project, or are a part of a page.
fn quotes(path: &Path) -> bool {
    let quoting = ["tests/it/tidy", "tests/fixtures", "models", "router/grammar/src/formats.md"];
    path != Path::new("models/demo/README.md") && quoting.iter().any(|quoting| path.starts_with(quoting))
}

#[test]
fn every_module_says_what_it_does() {
    let lacks = |path: &PathBuf| {
        let text = read(path);
        let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
        !first.is_some_and(|line| line.starts_with("//! "))
    };
    // `tests.rs` beside a module tests that module.
    let files = files(&["rs"]).into_iter().filter(|path| !path.ends_with("tests.rs"));
    let found = files.filter(lacks).map(|path| path.display().to_string()).collect();
    assert_none("files without a module doc in their first line", found);
}

/// The text as one line, so that a phrase is found across line ends, without comment markers.
fn flat(text: &str) -> String {
    let strip = |line: &str| {
        let line = line.trim();
        let markers = ["///", "//!", "//", "#", "/*", "*"];
        let line = markers.iter().find_map(|marker| line.strip_prefix(marker)).unwrap_or(line);
        line.trim().to_lowercase()
    };
    text.lines().map(strip).collect::<Vec<_>>().join(" ")
}

fn has_phrase(flat: &str, phrase: &str) -> bool {
    let is_edge = |c: Option<char>| !c.is_some_and(char::is_alphanumeric);
    flat.match_indices(phrase)
        .any(|(at, _)| is_edge(flat[..at].chars().next_back()) && is_edge(flat[at + phrase.len()..].chars().next()))
}

#[test]
fn prose_is_plain() {
    let mut found = Vec::new();
    for path in files(PROSE).into_iter().filter(|path| !quotes(path)) {
        let text = flat(&read(&path));
        for (phrase, better) in BANNED.iter().filter(|(phrase, _)| has_phrase(&text, phrase)) {
            found.push(format!("{}: {phrase:?}; write: {better}", path.display()));
        }
    }
    assert_none("riddling phrases", found);
}

/// How a line of comment begins in a file of this type, in a page or in code.
fn comment_markers(path: &Path) -> &'static [&'static str] {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("sh" | "toml" | "yaml" | "service") => &["#"],
        Some("css") => &["/*", "*"],
        _ => &["//"],
    }
}

/// Lines of prose with their columns: of Markdown outside of tables, code and links, and of comments.
fn prose_lines(path: &Path, text: &str) -> Vec<(usize, usize)> {
    let markdown = path.extension().is_some_and(|extension| extension == "md");
    let markers = comment_markers(path);
    let mut code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let is_prose = if markdown {
            if trimmed.starts_with("```") {
                code = !code;
            }
            !code && !trimmed.starts_with('|') && !trimmed.starts_with('<') && !line.starts_with("    ")
        } else {
            markers.iter().any(|marker| trimmed.starts_with(marker))
        };
        // A link or a path cannot be broken.
        let breakable = trimmed.split(' ').filter(|word| !word.is_empty()).count() > 2;
        if is_prose && breakable {
            lines.push((number + 1, line.chars().count()));
        }
    }
    lines
}

#[test]
fn prose_fits_in_120_columns() {
    let mut found = Vec::new();
    // Lines of Python and HTML mix prose with code.
    let checked = |path: &PathBuf| !quotes(path) && path.extension().is_none_or(|kind| kind != "py" && kind != "html");
    for path in files(PROSE).into_iter().filter(checked) {
        for (number, columns) in prose_lines(&path, &read(&path)) {
            if columns > COLUMNS {
                found.push(format!("{}:{number}: {columns} columns", path.display()));
            }
        }
    }
    assert_none("lines of prose that are too long", found);
}

/// The targets of Markdown links, with the line that they are in.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut code = false;
    let mut links = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        let targets = line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split([')', ' ']).next());
        links.extend(targets.filter(|_| !code).map(|target| (number + 1, target.to_owned())));
    }
    links
}

/// The anchor that GitHub and mdBook make of a heading.
fn anchor(heading: &str) -> String {
    let keep = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    };
    heading.trim_start_matches('#').trim().chars().filter_map(keep).collect()
}

fn anchors(text: &str) -> Vec<String> {
    let mut code = false;
    let mut anchors = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if !code && line.starts_with('#') {
            anchors.push(anchor(line));
        }
    }
    anchors
}

#[test]
fn links_of_the_docs_lead_somewhere() {
    let mut broken = Vec::new();
    for path in files(&["md"]).into_iter().filter(|path| !quotes(path)) {
        let text = read(&path);
        for (number, target) in links(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, fragment) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { path.clone() } else { path.parent().unwrap_or(Path::new("")).join(file) };
            let there = root().join(&file);
            let is_page = file.extension().is_some_and(|extension| extension == "md");
            let anchored = || !is_page || anchors(&read(&file)).contains(&fragment.to_owned());
            if !there.exists() || !fragment.is_empty() && !anchored() {
                broken.push(format!("{}:{number}: {target}", path.display()));
            }
        }
    }
    assert_none("links that lead nowhere", broken);
}
