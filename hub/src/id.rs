//! The name of a model on the Hub.

use std::fmt;
use std::str::FromStr;

/// Longest organization, name or revision.
const MAX_PART_CHARS: usize = 96;

/// `ORG/NAME`, or `ORG/NAME@REVISION` with a branch, a tag or a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    /// `ORG/NAME`.
    pub name: String,
    pub revision: Option<String>,
}

impl ModelId {
    /// The branch, tag or commit that is asked for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.revision {
            None => f.write_str(&self.name),
            Some(revision) => write!(f, "{}@{revision}", self.name),
        }
    }
}

impl FromStr for ModelId {
    type Err = ();

    /// Err: no name that the Hub allows.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, revision) = match text.split_once('@') {
            None => (text, None),
            Some((name, revision)) => (name, Some(revision)),
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_part = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && part.len() <= MAX_PART_CHARS
                && part.chars().all(allowed)
                && !part.contains("..")
                && !part.contains("--")
        };
        let (organization, model) = name.split_once('/').ok_or(())?;
        // Branches may contain slashes, such as refs/pr/1.
        let is_revision = |revision: &str| revision.split('/').all(is_part) && revision.len() <= MAX_PART_CHARS;
        if !is_part(organization) || !is_part(model) || !revision.is_none_or(is_revision) {
            return Err(());
        }
        Ok(ModelId { name: name.to_owned(), revision: revision.map(str::to_owned) })
    }
}
