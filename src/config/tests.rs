use super::*;
use crate::args::Command;

fn with_file(toml: &str, args: &[&str]) -> Result<clap::ArgMatches, String> {
    let values = toml.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let command = apply(Cli::command(), Path::new("rein.toml"), "serve", values).map_err(|e| e.to_string())?;
    command.try_get_matches_from(args.iter()).map_err(|e| e.to_string())
}

fn serve(matches: clap::ArgMatches) -> crate::args::ServeArgs {
    match cli(&matches).expect("parses").command {
        Command::Serve(args) => *args,
        other => panic!("not serve: {other:?}"),
    }
}

#[test]
fn a_flag_takes_precedence_over_the_file() {
    let file = "model = 'm'\ntp = 2\nmax-sequences = 5\nno-prefix-cache = true\nallow-control-tokens = true\n";
    let args = serve(with_file(file, &["rein", "serve", "--tp", "4"]).expect("valid"));
    assert_eq!((args.model.tp, args.engine.max_sequences, args.engine.no_prefix_cache), (4, 5, true));
    assert_eq!((args.api.tool_calls.allow_control_tokens, args.model.weights.model), (true, PathBuf::from("m")));
}

#[test]
fn host_and_port_replace_parts_of_http_unless_http_is_given_by_a_stronger_source() {
    let http = |file: &str, flags: &[&str]| {
        let args = [&["rein", "serve", "--model", "m"], flags].concat();
        serve(with_file(file, &args).expect("valid")).api.network.http.to_string()
    };
    assert_eq!(http("", &["--host", "0.0.0.0", "--port", "9000"]), "0.0.0.0:9000");
    assert_eq!(http("", &["--port", "9000"]), "127.0.0.1:9000");
    assert_eq!(http("", &["--http", "0.0.0.0:80", "--port", "9000"]), "0.0.0.0:9000");
    assert_eq!(http("http = '0.0.0.0:80'\n", &["--port", "9000"]), "0.0.0.0:9000");
    assert_eq!(http("http = '0.0.0.0:80'\nport = 81\n", &[]), "0.0.0.0:81");
    assert_eq!(http("host = '0.0.0.0'\nport = 81\n", &["--http", "127.0.0.1:9000"]), "127.0.0.1:9000");
}

#[test]
fn errors_name_the_key_of_an_invalid_value() {
    let unknown = with_file("model = 'm'\nspeed = 9\n", &["rein", "serve"]).expect_err("unknown key");
    assert!(unknown.contains("`speed`"), "{unknown}");
    let range = with_file("model = 'm'\ntp = 0\n", &["rein", "serve"]).expect_err("out of range");
    assert!(range.contains("--tp"), "{range}");
    let table = with_file("model = 'm'\n[tp]\na = 1\n", &["rein", "serve"]).expect_err("a table");
    assert!(table.contains("`tp`"), "{table}");
}

#[test]
fn the_declaration_of_the_command_line_is_valid() {
    Cli::command().debug_assert();
}
