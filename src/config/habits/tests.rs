use clap::CommandFactory;

use super::*;

#[test]
fn options_of_other_servers_are_explained() {
    let of = |line: &str| {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = crate::config::defaults(&[]).expect("no file").try_get_matches_from(&args).expect_err(line);
        explain(&crate::args::Cli::command(), &error, &args)
    };
    let says = |line: &str, text: &str| {
        let explained = of(line).unwrap_or_default();
        assert!(explained.contains(text), "{line}: {explained:?}");
    };
    says("rein serve --model m --max-model-len 8192", "--max-model-len is an option of vLLM; in Rein: --max-context");
    says("rein serve --model m --gpu-memory-utilization=0.9", "the KV cache's size in MiB (Size memory)");
    says("rein serve --model m -tp 2", "-tp is an option of vLLM");
    says("rein serve --model m -c 4096", "-c is an option of llama-server; in Rein: --max-context");
    says("rein serve --model m -ngl 99", "-ngl is an option of llama-server");
    says("rein worker --model m --served-model-name a", "--served-name");
    assert_eq!(of("rein serve --model m --no-such-option"), None);
    // All of them at once, and only where a server is started.
    let all = of("rein serve m --max-num-seqs 4 --max-model-len=100 --http 127.0.0.1:1 --enable-auto-tool-choice");
    let all = all.unwrap_or_default();
    let names: Vec<&str> = all.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["--max-num-seqs", "--max-model-len", "--enable-auto-tool-choice"], "{all}");
    assert_eq!(of("rein chat --port 8000"), None);
    // Rein's own options are not, whatever is wrong with them or with others.
    assert_eq!(of("rein --config rein.toml router --etcd bad"), None);
    assert_eq!(of("rein --config rein.toml serve --no-such-option"), None);
    let with_config = of("rein --config rein.toml serve --max-num-seqs 4").unwrap_or_default();
    assert!(with_config.lines().eq(with_config.lines().filter(|line| line.starts_with("--max-num-seqs"))));
    says("rein --model m", "options follow a command");
    let habits: Habits = toml::from_str(OPTIONS).expect("valid");
    assert!(habits.option.len() > 50);
}
