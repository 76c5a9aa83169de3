//! Every source file belongs to a crate: a file that no `mod` declares is never compiled.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::{assert_none, files, read};

/// Where a crate starts: what Cargo finds by itself below the folder of a manifest. A module that stands beside such a
/// file is declared by it.
fn is_crate_root(path: &Path, crates: &BTreeSet<PathBuf>) -> bool {
    let inside = |folder: &PathBuf| path.strip_prefix(folder).ok().map(Path::to_owned);
    let Some(inner) = crates.iter().filter_map(inside).min_by_key(|inner| inner.components().count()) else {
        return false;
    };
    let parts: Vec<_> = inner.iter().filter_map(|part| part.to_str()).collect();
    matches!(
        parts.as_slice(),
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["tests" | "benches" | "examples", _]
            | ["tests" | "benches" | "examples", _, "main.rs"]
    )
}

/// Resolves `..` as the compiler does.
fn normalized(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            part => out.push(part),
        }
    }
    out
}

/// The files that the `mod` items of a file may mean. Modules inside of others are folders.
fn declared(path: &Path, is_root: bool) -> Vec<PathBuf> {
    let beside = path.parent().unwrap_or(Path::new(""));
    let folder = if is_root || path.ends_with("mod.rs") { beside.to_owned() } else { path.with_extension("") };
    let (mut found, mut inline, mut attribute) = (Vec::new(), Vec::<&str>::new(), None);
    let text = read(path);
    for line in text.lines() {
        let code = line.trim_start();
        if !code.is_empty() {
            inline.truncate((line.len() - code.len()) / 4);
        }
        let item = code.strip_prefix("pub").map_or(code, |rest| rest.trim_start_matches(|c| c != ' ').trim_start());
        if let Some(name) = item.strip_prefix("mod ") {
            if let Some(name) = name.strip_suffix(';') {
                let folder = inline.iter().fold(folder.clone(), |folder, name| folder.join(name));
                match attribute.take() {
                    Some(file) => found.push(normalized(&beside.join(file))),
                    None => found.extend([folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")]),
                }
            } else if let Some(name) = name.strip_suffix(" {") {
                inline.push(name);
            }
        } else if let Some(file) = code.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            attribute = Some(file);
        }
    }
    found
}

#[test]
fn every_source_file_is_compiled() {
    let all: BTreeSet<PathBuf> = files(&["rs"]).into_iter().collect();
    let manifests = files(&["toml"]).into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let crates = manifests.filter_map(|path| path.parent().map(Path::to_owned)).collect();
    let roots: Vec<PathBuf> = all.iter().filter(|path| is_crate_root(path, &crates)).cloned().collect();
    assert!(roots.len() > 10, "{roots:?}");

    let (mut reached, mut open) = (BTreeSet::new(), roots.clone());
    while let Some(path) = open.pop() {
        if reached.insert(path.clone()) {
            let is_root = roots.contains(&path);
            open.extend(declared(&path, is_root).into_iter().filter(|path| all.contains(path)));
        }
    }
    let orphans = all.difference(&reached).map(|path| path.display().to_string()).collect();
    assert_none("source files that no `mod` declares", orphans);
}
