use super::*;
use crate::args::Command;

fn with_file(toml: &str, args: &[&str]) -> Result<clap::ArgMatches, String> {
    let values = toml.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let command = apply(Cli::command(), Path::new("rein.toml"), "serve", values).map_err(|e| e.to_string())?;
    command.try_get_matches_from(args).map_err(|e| e.to_string())
}

fn serve(matches: clap::ArgMatches) -> crate::args::ServeArgs {
    match Cli::from_arg_matches(&matches).expect("parses").command {
        Command::Serve(args) => *args,
        other => panic!("not serve: {other:?}"),
    }
}

#[test]
fn a_flag_wins_over_the_file() {
    let file = "model = 'm'\ntp = 2\nmax-sequences = 5\nno-prefix-cache = true\nallow-control-tokens = true\n";
    let args = serve(with_file(file, &["rein", "serve", "--tp", "4"]).expect("valid"));
    assert_eq!((args.model.tp, args.engine.max_sequences, args.engine.no_prefix_cache), (4, 5, true));
    assert_eq!((args.api.allow_control_tokens, args.model.weights.model), (true, PathBuf::from("m")));
}

#[test]
fn bad_files_are_refused_by_key() {
    let unknown = with_file("model = 'm'\nspeed = 9\n", &["rein", "serve"]).expect_err("unknown key");
    assert!(unknown.contains("`speed`"), "{unknown}");
    let range = with_file("model = 'm'\ntp = 0\n", &["rein", "serve"]).expect_err("out of range");
    assert!(range.contains("--tp"), "{range}");
    let table = with_file("model = 'm'\n[tp]\na = 1\n", &["rein", "serve"]).expect_err("a table");
    assert!(table.contains("`tp`"), "{table}");
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}
