//! The config file. Its values become the defaults of the command's options, so that the same code parses and checks
//! values from the file, the environment and the command line. This module knows no option by name.

mod habits;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use thiserror::Error;

use crate::args::Cli;
use crate::stderr;

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read the config file {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path}: unknown key `{key}`; expected a long option of `rein {command}` without the dashes")]
    UnknownKey { path: PathBuf, key: String, command: String },
    #[error("{path}: `{key}` must be a string, a number, a boolean or a list of these")]
    Type { path: PathBuf, key: String },
}

/// Parses the command line, with the values of the config file (if one is given) as defaults.
pub fn parse(args: Vec<OsString>) -> Result<Cli, Box<dyn std::error::Error>> {
    let matches = defaults(&args)?.try_get_matches_from(&args).unwrap_or_else(|error| {
        let words: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        match habits::explain(&Cli::command(), &error, &words) {
            Some(text) => exit(&clap::Error::raw(ErrorKind::UnknownArgument, text + "\n")),
            None => exit(&error),
        }
    });
    Ok(cli(&matches).unwrap_or_else(|error| exit(&error)))
}

/// Shows help, or what is wrong with the command line, and ends the process.
fn exit(error: &clap::Error) -> ! {
    if error.use_stderr() && stderr::is_json() {
        stderr::error(error.to_string().trim_end());
        std::process::exit(error.exit_code());
    }
    error.exit()
}

/// The declaration of the command line, with the values of the config file as defaults.
pub fn defaults(args: &[OsString]) -> Result<clap::Command, ConfigError> {
    let command = Cli::command();
    let (Some(path), Some(name)) = (config_path(args), subcommand(&command, args)) else { return Ok(command) };
    let values = read(&path)?;
    apply(command, &path, &name, values)
}

fn cli(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    if let (Some(network), Some((_, options))) = (cli.command.network_mut(), matches.subcommand()) {
        network.apply_host_and_port(|option| options.value_source(option));
    }
    if let (Some((model, first)), Some((name, options))) = (cli.command.model_mut(), matches.subcommand()) {
        let error = |kind, text: String| Err(clap::Error::raw(kind, text + "\n"));
        if let Some(first) = first.take() {
            if options.value_source("model") == Some(ValueSource::CommandLine) {
                return error(ErrorKind::ArgumentConflict, "the model is given twice: as MODEL and as --model".into());
            }
            *model = first;
        }
        if model.as_os_str().is_empty() {
            let example = "a directory, or ORG/NAME of the Hugging Face Hub, such as";
            let text = format!("the model is missing: {example} `rein {name} Qwen/Qwen3-0.6B`, also by --model");
            return error(ErrorKind::MissingRequiredArgument, text);
        }
    }
    Ok(cli)
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
