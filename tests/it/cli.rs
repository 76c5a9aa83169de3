//! The commands that read and print, and their errors for bad input.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use super::process::{demo_model, rein, repository, run};

fn fixture(name: &str) -> String {
    repository().join("tests/fixtures/models").join(name).display().to_string()
}

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn help_lists_every_command_and_option() {
    let help = run(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout);
    for word in ["serve", "score", "render", "check", "formats", "parse", "accept", "bench", "verify", "--config"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let serve = run(&["serve", "--help"]);
    let text = String::from_utf8_lossy(&serve.stdout);
    for word in ["--model", "--tp", "--engine", "--http", "--grpc", "--quantize", "REIN_TP"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn a_model_that_is_no_directory_is_looked_for_on_the_hub() {
    for command in ["serve", "check", "render"] {
        let args = [command, "--model", "no-such-organization/no-such-model"];
        let output =
            rein().env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent").args(args).output().expect("rein runs");
        assert_eq!(output.status.code(), Some(1), "{command}");
        let error = stderr(&output);
        let expected = "rein: --model: no-such-organization/no-such-model is no directory, so a model of the Hub: ";
        assert!(error.starts_with(expected) && error.contains("HF_HUB_OFFLINE is set"), "{command}: {error}");
    }
}

#[test]
fn status_without_etcd_is_one_plain_line() {
    for command in [&["status"][..], &["drain", "worker-1"]] {
        // The discard port of the loopback interface, on which nothing listens.
        let output = run(&[command, &["--etcd", "127.0.0.1:9"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let expected = "rein: --etcd: cannot reach etcd at 127.0.0.1:9; start etcd, or set --etcd to its endpoints \
                        (REIN_LOG=debug shows the cause)\n";
        assert_eq!(stderr(&output), expected);
    }
}

#[test]
fn completions_and_man_pages_cover_every_command() {
    let commands = ["serve", "router", "worker", "controller", "status", "verify", "completions"];
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        for word in commands.iter().chain(&["max-in-flight"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let dir = std::env::temp_dir().join(format!("rein-man-{}", std::process::id()));
    let output = run(&["man", &dir.display().to_string()]);
    assert!(output.status.success(), "{}", stderr(&output));
    for command in commands {
        let page = std::fs::read_to_string(dir.join(format!("rein-{command}.1"))).expect(command);
        assert!(page.contains(".SH OPTIONS"), "{command}: {page}");
        let help = run(&[command, "--help"]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for variable in help.split("[env: ").skip(1).filter_map(|rest| rest.split(['=', ']']).next()) {
            assert!(page.contains(variable), "{command}: {variable} in {page}");
        }
    }
    std::fs::remove_dir_all(&dir).expect("cleans up");
}

#[test]
fn the_usage_of_verify_names_what_it_needs() {
    let output = run(&["verify", "--help"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for usage in ["[OPTIONS] --samples <FILE> --out <DIR>", "--generate <N>", "--compare <DIR> <DIR>... --out <DIR>"] {
        assert!(text.contains(&format!("rein verify {usage}")), "{usage} in {text}");
    }
}

#[test]
fn check_reports_whether_a_model_is_fit_for_tool_calls() {
    let demo = demo_model().display().to_string();
    let fit = run(&["check", "--model", &demo]);
    let table = String::from_utf8_lossy(&fit.stdout).into_owned();
    assert!(
        fit.status.success() && !table.contains("BROKEN") && table.contains("read back"),
        "{table}{}",
        stderr(&fit)
    );

    let template = repository().join("tests/fixtures/models/qwen3/chat_template.jinja").display().to_string();
    let unfit = run(&["check", "--model", &demo, "--chat-template", &template, "--format", "kimi_k2", "--json"]);
    assert_eq!(unfit.status.code(), Some(1), "{}", stderr(&unfit));
    let report: serde_json::Value = serde_json::from_slice(&unfit.stdout).expect("json");
    let broken = report["findings"].as_array().expect("findings").iter().filter(|f| f["verdict"] == "broken");
    let broken: Vec<_> = broken.map(|f| f["check"].as_str().expect("a name")).collect();
    assert!(broken.contains(&"tools") && broken.contains(&"read back"), "{broken:?}");
}

#[test]
fn score_agrees_with_transformers() {
    let mut compared = 0;
    for entry in std::fs::read_dir(repository().join("tests/fixtures/models")).expect("fixtures") {
        let dir = entry.expect("entry").path();
        // A model for embeddings has no head to score with; tests/py/test_embeddings.py compares its vectors.
        if dir.join("embeddings.json").exists() {
            continue;
        }
        let reference = std::fs::read_to_string(dir.join("reference.json")).expect("reference");
        let reference: serde_json::Value = serde_json::from_str(&reference).expect("json");
        let scored = score(&dir, &reference["tokens"].to_string(), &["--dtype", "f32"]);
        assert_eq!(scored["tokens"], reference["tokens"]);
        for (ours, theirs) in pairs(&scored["logprobs"], &reference["logprobs"]) {
            assert!((ours - theirs).abs() < 1e-3, "{}: {ours} and {theirs}", dir.display());
            compared += 1;
        }
    }
    assert!(compared > 100, "only {compared} log-probabilities were compared");
}

fn score(dir: &Path, tokens: &str, extra: &[&str]) -> serde_json::Value {
    let mut child = rein()
        .args(["score", "--tokens", "-", "--model"])
        .arg(dir)
        .args(extra)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rein starts");
    child.stdin.take().expect("piped").write_all(tokens.as_bytes()).expect("tokens sent");
    let output = child.wait_with_output().expect("ends");
    assert!(output.status.success(), "{}: {}", dir.display(), stderr(&output));
    serde_json::from_slice(&output.stdout).expect("json")
}

fn pairs(ours: &serde_json::Value, theirs: &serde_json::Value) -> Vec<(f64, f64)> {
    let numbers = |v: &serde_json::Value| v.as_array().expect("a list").iter().map(|x| x.as_f64()).collect::<Vec<_>>();
    let (ours, theirs) = (numbers(ours), numbers(theirs));
    assert_eq!(ours.len(), theirs.len());
    assert_eq!((ours[0], theirs[0]), (None, None));
    ours.into_iter().zip(theirs).skip(1).map(|(a, b)| (a.expect("a number"), b.expect("a number"))).collect()
}

#[test]
fn errors_name_bad_arguments() {
    let cases: &[(&[&str], &str)] = &[
        (&["serve"], "--model"),
        (&["serve", "--model", "/nonexistent/model"], "/nonexistent/model"),
        (&["serve", "--model", "x", "--tp", "0"], "--tp"),
        (&["serve", "--model", "x", "--http", "nowhere"], "--http"),
        (&["score", "--model", "x", "--tokens", "/nonexistent.json"], "--tokens"),
        (&["--config", "/nonexistent.toml", "serve"], "/nonexistent.toml"),
    ];
    for (args, names) in cases {
        let output = run(args);
        assert!(!output.status.success(), "{args:?}");
        assert!(stderr(&output).contains(names), "{args:?}: {}", stderr(&output));
    }
}

/// Before anything is bound, loaded or requested.
#[test]
fn errors_of_cluster_commands_name_the_flag() {
    let demo = demo_model();
    let demo = demo.to_str().expect("utf-8");
    let worker = ["worker", "--model", demo, "--listen", "127.0.0.1:0"];
    let router = ["router", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let cases: &[(&[&str], &[&str], &str)] = &[
        (&worker, &["--etcd", "here"], "--etcd"),
        (&worker, &["--etcd", "127.0.0.1:2379,"], "--etcd"),
        (&worker, &["--etcd-name", "etcd"], "--etcd-ca"),
        (&worker, &["--etcd-ca", "missing.pem"], "--etcd-ca: cannot read missing.pem"),
        (&worker, &["--etcd-cert", "a.pem", "--etcd-key", "b.pem"], "--etcd-cert: cannot read a.pem"),
        (&worker, &["--peer-name", "us"], "--peer-ca"),
        (&worker, &["--cluster", ".."], "--cluster"),
        (&worker, &["--id=-x", "--engine", "sim"], "--id"),
        (&worker, &["--id=.", "--engine", "sim"], "--id"),
        (&worker, &["--advertise", "http://here:1"], "--advertise"),
        (&worker, &["--otlp-endpoint", "here"], "--otlp-endpoint"),
        (&worker, &["--served-name", ""], "--served-name"),
        (&worker, &["--step-deadline", "1e300"], "--step-deadline"),
        (&worker, &["--redundant-experts", "100"], "--redundant-experts: must be below"),
        (&worker, &["--group-size", "3"], "--group-size: "),
        (&worker, &["--max-context", "100000000"], "--max-context: "),
        (&["worker", "--model", "/nowhere"], &[], "--model: /nowhere"),
        (&router, &["--chat-template", "missing.jinja"], "--chat-template: missing.jinja: No such file"),
        (&["controller"], &["--rebalance-above", "inf"], "--rebalance-above"),
        (&["serve", "--model", demo], &["--tp", "3", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"], "--tp: "),
    ];
    for (command, arguments, expected) in cases {
        let output = run(&[*command, *arguments].concat());
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn closed_output_pipes_are_no_error() {
    // Both ends of the pipes are closed, so that writing fails.
    let mut child =
        rein().args(["formats"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("rein starts");
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    let mut child = rein().args(["parse", "--format", "none"]).stderr(Stdio::piped()).spawn().expect("rein starts");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("ends").code(), Some(1));
}

#[test]
fn a_truncated_shard_is_rejected_by_name() {
    let source = demo_model();
    let dir = std::env::temp_dir().join(format!("rein-truncated-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    for entry in std::fs::read_dir(&source).expect("models/demo") {
        let path = entry.expect("entry").path();
        if path.is_file() {
            std::fs::copy(&path, dir.join(path.file_name().expect("a name"))).expect("copies");
        }
    }
    let weights = dir.join("model.safetensors");
    let size = std::fs::metadata(&weights).expect("weights").len();
    std::fs::OpenOptions::new().write(true).open(&weights).and_then(|f| f.set_len(size / 2)).expect("truncates");
    let output =
        run(&["serve", "--model", &dir.display().to_string(), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    std::fs::remove_dir_all(&dir).expect("cleans up");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("model.safetensors"), "{}", stderr(&output));
}

#[test]
fn unknown_architectures_are_rejected_by_name() {
    let dir = std::env::temp_dir().join(format!("rein-unknown-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    std::fs::write(dir.join("config.json"), r#"{"architectures": ["MambaForCausalLM"]}"#).expect("writes");
    std::fs::write(dir.join("tokens.json"), "[1, 2]").expect("writes");
    let tokens = dir.join("tokens.json").display().to_string();
    let output = run(&["score", "--model", &dir.display().to_string(), "--tokens", &tokens]);
    std::fs::remove_dir_all(&dir).expect("cleans up");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("MambaForCausalLM"), "{}", stderr(&output));
}

#[test]
fn score_rejects_tokens_out_of_vocabulary() {
    let dir = fixture("llama3");
    let path = std::env::temp_dir().join(format!("rein-tokens-{}.json", std::process::id()));
    std::fs::write(&path, "[1, 4000000]").expect("writes");
    let output = run(&["score", "--model", &dir, "--tokens", &path.display().to_string()]);
    std::fs::remove_file(&path).expect("cleans up");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("4000000"), "{}", stderr(&output));
}
