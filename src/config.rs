//! Values from a TOML file become the defaults of the command's flags, so that file, environment and flags are parsed
//! and checked by the same code and end in the same struct.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, FromArgMatches};
use thiserror::Error;

use crate::args::Cli;

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read the config file {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path}: unknown key `{key}`; the keys are the long options of `rein {command}`")]
    UnknownKey { path: PathBuf, key: String, command: String },
    #[error("{path}: `{key}` must be a string, a number, a boolean or a list of those")]
    Type { path: PathBuf, key: String },
}

/// Parses the command line, with the config file's values (if one is named) as defaults.
pub fn parse(args: Vec<OsString>) -> Result<Cli, Box<dyn std::error::Error>> {
    let mut command = Cli::command();
    if let Some(path) = config_path(&args) {
        let name = subcommand(&command, &args);
        if let Some(name) = name {
            let values = read(&path)?;
            command = apply(command, &path, &name, values)?;
        }
    }
    let matches = command.get_matches_from(args);
    Ok(Cli::from_arg_matches(&matches)?)
}

fn config_path(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().map(PathBuf::from);
        }
        if let Some(path) = arg.to_str().and_then(|a| a.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    std::env::var_os("REIN_CONFIG").map(PathBuf::from)
}

fn subcommand(command: &clap::Command, args: &[OsString]) -> Option<String> {
    args.iter().skip(1).filter_map(|a| a.to_str()).find(|a| command.find_subcommand(a).is_some()).map(str::to_owned)
}

fn read(path: &Path) -> Result<toml::Table, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    text.parse().map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })
}

fn apply(
    mut command: clap::Command,
    path: &Path,
    name: &str,
    values: toml::Table,
) -> Result<clap::Command, ConfigError> {
    for (key, value) in values {
        let id = key.replace('-', "_");
        let known = command.find_subcommand(name).is_some_and(|c| c.get_arguments().any(|a| a.get_id() == id.as_str()));
        if !known {
            return Err(ConfigError::UnknownKey { path: path.into(), key, command: name.into() });
        }
        let texts = match texts(&value) {
            Some(texts) => texts,
            None => return Err(ConfigError::Type { path: path.into(), key }),
        };
        command = command.mut_subcommand(name, |c| {
            c.mut_arg(id, |arg| arg.required(false).default_values(texts.into_iter().map(clap::builder::OsStr::from)))
        });
    }
    Ok(command)
}

fn texts(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(s) => Some(vec![s.clone()]),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Some(vec![value.to_string()]),
        toml::Value::Array(items) => {
            items.iter().map(|v| texts(v).filter(|t| t.len() == 1).map(|mut t| t.remove(0))).collect()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
