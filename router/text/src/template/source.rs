//! Finds the template sources of a model, in the same order as transformers.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value as Json;

use super::MAX_TEMPLATE_BYTES;
use super::error::{Reason, TemplateError};
use crate::regular_file;

/// Template sources by name. A single template has the name `default`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    pub templates: BTreeMap<String, String>,
}

impl Sources {
    pub fn single(source: &str) -> Self {
        Sources { templates: BTreeMap::from([("default".to_owned(), source.to_owned())]) }
    }

    /// Reads one template file.
    pub fn from_file(path: &Path) -> Result<Self, TemplateError> {
        Ok(Self::single(&read(path)?))
    }

    /// Reads a model directory: `chat_template.jinja` and `additional_chat_templates/*.jinja`, else `chat_template` of
    /// `tokenizer_config.json` (a string, or a list of templates with names), else `chat_template.json`. Empty if there
    /// is no template.
    pub fn from_model(dir: &Path, tokenizer_config: &Json) -> Result<Self, TemplateError> {
        let mut templates = BTreeMap::new();
        let file = dir.join("chat_template.jinja");
        if file.exists() {
            templates.insert("default".to_owned(), read(&file)?);
        }
        let more = fs::read_dir(dir.join("additional_chat_templates")).into_iter().flatten().flatten();
        for path in more.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "jinja")) {
            if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
                templates.insert(name.to_owned(), read(&path)?);
            }
        }
        if !templates.is_empty() {
            return Ok(Sources { templates });
        }
        if let Some(templates) = tokenizer_config.get("chat_template").filter(|t| !t.is_null()) {
            return from_config(templates);
        }
        let file = dir.join("chat_template.json");
        if !file.exists() {
            return Ok(Sources::default());
        }
        let json: Json = serde_json::from_str(&read(&file)?)
            .map_err(|e| TemplateError::new(Reason::Syntax, format!("chat_template.json: {e}")))?;
        from_config(json.get("chat_template").unwrap_or(&Json::Null))
    }
}

fn from_config(templates: &Json) -> Result<Sources, TemplateError> {
    match templates {
        Json::String(source) => Ok(Sources::single(source)),
        Json::Array(named) => {
            let mut templates = BTreeMap::new();
            for entry in named {
                let field = |name: &str| entry.get(name).and_then(Json::as_str).map(str::to_owned);
                let (Some(name), Some(source)) = (field("name"), field("template")) else {
                    return Err(bad("each entry of the list must have the strings name and template"));
                };
                templates.insert(name, source);
            }
            Ok(Sources { templates })
        }
        _ => Err(bad("must be a string or a list of {name, template}")),
    }
}

fn bad(message: &str) -> TemplateError {
    TemplateError::new(Reason::Syntax, format!("chat_template of tokenizer_config.json: {message}"))
}

fn read(path: &Path) -> Result<String, TemplateError> {
    regular_file::read_text(path, "a chat template", MAX_TEMPLATE_BYTES as u64).map_err(|error| {
        let reason = if error.kind() == ErrorKind::FileTooLarge { Reason::TooLarge } else { Reason::Missing };
        TemplateError::new(reason, format!("{}: {error}", path.display()))
    })
}
