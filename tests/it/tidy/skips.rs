//! A test that cannot do its work fails, or is ignored with a reason: one that returns early has asserted nothing.

use super::{assert_none, files, is_test, read, root};

/// What a test reads of its machine.
const READS: &[&str] = &["fs::read", "read_to_string(", "read_dir(", "File::open", "::load(", "is_dir()", "dlopen("];
/// What hides that it is not there.
const HIDES: &[&str] = &["else { return", "else { continue", ".ok()", "unwrap_or_default()", "into_iter().flatten()"];

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Whether what follows this line's last brace runs elsewhere: a closure, a task, a function.
fn runs_elsewhere(line: &str) -> bool {
    let head = line.trim_end_matches('{').trim_end();
    head.ends_with('|') || head.ends_with("move") || head.ends_with("async") || line.contains("fn ")
}

/// Numbers of lines in tests at which a test returns before its end.
fn early_returns(text: &str) -> Vec<usize> {
    let (mut found, mut depth, mut elsewhere, mut marked) = (Vec::new(), None, Vec::new(), false);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        elsewhere.retain(|&outer| indent(line) > outer);
        match depth {
            None => {
                marked |= line.trim_start().starts_with("#[test]") || line.contains("#[tokio::test");
                if marked && line.contains("fn ") {
                    (depth, marked) = (Some(indent(line)), false);
                }
            }
            Some(outer) if indent(line) == outer && line.trim() == "}" => depth = None,
            Some(_) => {
                let returns = line.trim() == "return;" || line.contains("{ return;") || line.contains("{ return }");
                if returns && elsewhere.is_empty() {
                    found.push(number + 1);
                }
                if line.ends_with('{') && runs_elsewhere(line) {
                    elsewhere.push(indent(line));
                }
            }
        }
    }
    found
}

#[test]
fn tests_do_not_return_early() {
    let example = "#[test]\nfn t() {\n    let Ok(x) = f() else { return };\n    g(|| {\n        return;\n    });\n    if y {\n        return;\n    }\n}\nfn f() {\n    return;\n}\n";
    assert_eq!(early_returns(example), [3, 8]);
    let mut found = Vec::new();
    for path in files(&["rs"]).into_iter().filter(|path| is_test(path) && !path.ends_with("tidy/skips.rs")) {
        let text = read(&path);
        found.extend(early_returns(&text).into_iter().map(|line| format!("{}:{line}", path.display())));
        let hidden = |line: &&str| READS.iter().any(|r| line.contains(r)) && HIDES.iter().any(|h| line.contains(h));
        found.extend(text.lines().filter(hidden).map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    for path in files(&["py"]).into_iter().filter(|path| path.starts_with("tests")) {
        let mut in_test = false;
        for (number, line) in read(&path).lines().enumerate() {
            if indent(line) == 0 && !line.is_empty() {
                in_test = line.starts_with("def test_");
            }
            let nothing = line.trim() == "return" && indent(line) <= 12 || line.ends_with(": return");
            if in_test && nothing {
                found.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert_none("tests that end before their assertions, or hide that a file is missing", found);
}

/// `#[ignore = "needs ...: FILE"]`, where FILE runs it.
#[test]
fn an_ignored_test_names_what_runs_it() {
    let mut found = Vec::new();
    for path in files(&["rs"]).into_iter().filter(|path| !path.ends_with("tidy/skips.rs")) {
        let text = read(&path);
        for line in text.lines().filter(|line| line.trim_start().starts_with("#[ignore")) {
            let by = line.split_once("#[ignore = \"needs ").and_then(|(_, why)| why.strip_suffix("\"]"));
            let runs = by.and_then(|why| why.split_once(": ")).map(|(_, file)| root().join(file));
            if !runs.is_some_and(|file| file.is_file()) {
                found.push(format!("{}: {line}", path.display()));
            }
        }
    }
    assert_none("ignored tests that nothing runs", found);
}
