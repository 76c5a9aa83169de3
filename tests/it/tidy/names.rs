//! Type names that a module shares with others have one meaning in the whole workspace. Generated protobuf types are
//! not counted: their package qualifies them (`v1::Sampling`).

use std::collections::{BTreeMap, BTreeSet};

use super::{assert_none, files, is_test, read, without_tests};

/// The type that a line declares for other modules: `pub`, `pub(crate)`, `pub(super)` or `pub(in ...)`.
fn declared(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = rest.strip_prefix(' ').or_else(|| rest.strip_prefix('(')?.split_once(") ").map(|(_, rest)| rest))?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (!name.is_empty()).then_some(name)
}

#[test]
fn shared_type_names_are_unique() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in files(&["rs"]).into_iter().filter(|path| !is_test(path)) {
        for (number, line) in without_tests(&read(&path)).lines().enumerate() {
            if let Some(name) = declared(line) {
                places.entry(name.to_owned()).or_default().insert(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(places.len() > 300, "only {} types found", places.len());
    let several = places.into_iter().filter(|(_, places)| places.len() > 1);
    let found = several.map(|(name, places)| format!("{name}: {}", places.into_iter().collect::<Vec<_>>().join(", ")));
    assert_none("type names with several meanings", found.collect());
}
