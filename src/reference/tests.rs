//! The pages that describe the command line: docs/reference/cli.md and config-file.md, and the example
//! configs of packaging/.

mod example;
mod option;
mod pages;

use std::path::Path;

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::config;
use option::CommandOption;

/// The commands that usually run with a config file.
const SERVERS: [&str; 4] = ["serve", "router", "worker", "controller"];

fn command() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// The commands in the order of `rein --help`.
fn shown_commands(command: &mut Command) -> impl Iterator<Item = &mut Command> {
    command.get_subcommands_mut().filter(|command| command.get_name() != "help")
}

/// Compares a page with its file; `make reference` writes the files.
pub fn assert_current(path: &str, generate: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let file = std::fs::read_to_string(&path).expect("a page");
    let generated = generate(&file);
    if std::env::var_os("REIN_UPDATE_REFERENCE").is_some() {
        return std::fs::write(&path, &generated).expect("written");
    }
    let differs = file.lines().zip(generated.lines()).find(|(old, new)| old != new);
    assert!(file == generated, "{} is out of date, first at {differs:?}; run `make reference`", path.display());
}

/// The page with this part between `<!-- generated: NAME -->` and `<!-- end -->`.
fn with_part(page: &str, name: &str, part: &str) -> String {
    let start = format!("<!-- generated: {name} -->\n");
    let (before, rest) = page.split_once(&start).expect("the start of the part");
    let (_, after) = rest.split_once("<!-- end -->").expect("the end of the part");
    format!("{before}{start}{part}<!-- end -->{after}")
}

#[test]
fn the_cli_page_is_current() {
    assert_current("docs/reference/cli.md", |page| with_part(page, "commands", &pages::commands(&mut command())));
}

#[test]
fn the_config_page_is_current() {
    assert_current("docs/reference/config-file.md", |page| with_part(page, "keys", &pages::config_keys(&command())));
}

#[test]
fn the_example_configs_are_current() {
    for (name, file, _) in example::EXAMPLES {
        assert_current(&format!("packaging/{file}.toml"), |_| example::of(&command(), name));
    }
}

#[test]
fn every_key_of_the_example_configs_is_accepted() {
    for (name, ..) in example::EXAMPLES {
        let text = example::of(&command(), name);
        // A line such as `#tp = 1` is a key with its default.
        let is_key = |line: &&str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains([' ', '.']));
        let keys: Vec<&str> = text.lines().map(|line| line.trim_start_matches('#')).filter(is_key).collect();
        assert!(keys.len() > 10, "{name}: {keys:?}");
        let path = std::env::temp_dir().join(format!("rein-example-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, keys.join("\n")).expect("written");
        let args = ["rein", name, "--config"].map(Into::into).into_iter().chain([path.clone().into()]);
        let parsed = config::defaults(&args.collect::<Vec<_>>());
        std::fs::remove_file(&path).expect("removed");
        parsed.expect("every key is an option of the command");
    }
}

#[test]
fn every_option_has_a_heading_and_a_plain_help_text() {
    let mut command = command();
    for command in shown_commands(&mut command) {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for (heading, options) in CommandOption::by_heading(command) {
            for option in options {
                let (name, help) = (option.usage(), option.help());
                assert!(!help.is_empty(), "{}: {name}", command.get_name());
                assert!(!help.ends_with('.'), "{}: {name}: clap's style has no full stop", command.get_name());
                let is_server = SERVERS.contains(&command.get_name());
                assert!(!is_server || heading != "Options" || name.starts_with("--config"), "{name} has no heading");
            }
        }
    }
}
