use clap::{CommandFactory, Parser};

use super::*;
use crate::args::{Cli, Command};
use crate::reference::assert_current;

fn args(line: &str) -> CapacityArgs {
    let cli = Cli::try_parse_from(line.split(' ')).expect("a command line");
    match cli.command {
        Command::Capacity(args) => args,
        _ => panic!("{line}: not rein capacity"),
    }
}

fn of(line: &str) -> Capacity {
    find(&args(line)).expect(line)
}

/// The commands on the page, and what to read from each.
const PAGE: &[(&str, &str)] = &[
    ("rein capacity kimi-k2 --gpus 8", "Kimi K2 in FP8 on 8 GPUs: the weights leave room for few tokens."),
    (
        "rein capacity kimi-k2 --gpus 8 --kv-parallel --kv-dtype fp8",
        "The same GPUs with `--kv-parallel` and `--kv-dtype fp8`: each holds an eighth of the positions, in half the bytes.",
    ),
    (
        "rein capacity kimi-k2 --gpus 16",
        "On 16 GPUs there is room. With latent attention, every GPU holds the KV entries of all heads.",
    ),
    (
        "rein capacity kimi-k2-thinking --gpus 8",
        "In int4, 8 GPUs are enough. Scales (bf16, one for 32 weights) are a ninth of the experts' bytes.",
    ),
    (
        "rein capacity kimi-k2-thinking --gpus 8 --kv-parallel --kv-dtype fp8",
        "The same with a KV cache that is split, in FP8.",
    ),
    ("rein capacity deepseek-v3 --gpus 8", "DeepSeek-V3 in FP8."),
    (
        "rein capacity qwen3-235b-a22b --gpus 8",
        "Qwen3-235B-A22B in bf16. 8 GPUs hold each of the 4 key/value heads twice.",
    ),
    (
        "rein capacity gpt-oss-120b --gpus 1 --gpu h100",
        "gpt-oss-120b with its experts as MXFP4: one GPU of 80 GB is enough.",
    ),
    ("rein capacity minimax-m2 --gpus 4", "MiniMax-M2 in FP8: 4 GPUs leave half of their memory to the KV cache."),
];

#[test]
fn the_page_is_current() {
    assert_current("docs/reference/capacity.md", |page| {
        let intro = page.split("\n## ").next().expect("an introduction").trim_end();
        let section = |(line, what): &(&str, &str)| {
            let args = args(line);
            format!(
                "\n## {} on {} GPU{}{}\n\n{what}\n\n```text\n$ {line}\n{}```\n",
                args.model.display(),
                args.gpus,
                if args.gpus == 1 { "" } else { "s" },
                if args.kv_parallel { ", KV cache split" } else { "" },
                text(&args.model.to_string_lossy(), &of(line))
            )
        };
        format!("{intro}\n{}", PAGE.iter().map(section).collect::<String>())
    });
}

#[test]
fn the_help_names_every_shape() {
    let mut command = Cli::command();
    let capacity = command.find_subcommand_mut("capacity").expect("the command");
    let help =
        capacity.get_arguments().find(|arg| arg.get_id() == "model").and_then(|arg| arg.get_help()).expect("help");
    let help = help.to_string().replace('\n', " ");
    let listed = help.rsplit(": ").next().expect("names").split(", ");
    assert!(listed.eq(shapes::names()), "{help}");
}

#[test]
fn every_shape_has_a_capacity() {
    for name in shapes::names() {
        let found = of(&format!("rein capacity {name} --gpus 8"));
        assert!(found.memory.kv_tokens > 0, "{name}: {found:?}");
        assert!(found.steps.iter().all(|step| step.seconds > 0.0), "{name}");
    }
}

/// By hand, from the shapes of Kimi K2's weights.
#[test]
fn kimi_k2_takes_what_its_shapes_say() {
    let gib = |bytes: usize| bytes as f64 / GIB;
    let expert: u64 = 3 * 7168 * 2048;
    let experts = 60 * 384 / 8 * expert;
    let shared = 60 * expert / 8 + 3 * 7168 * 18432 / 8;
    let head: u64 = 163_840 * 7168 / 8;
    // Down projections of queries and keys on every GPU, the others by heads; kv_b in bf16.
    let (down, up): (u64, u64) = (7168 * 1536 + 7168 * 576, (1536 * 192 + 128 * 7168) * 64 / 8);
    let kv_b: u64 = 512 * 256 * 64 / 8;
    let routers: u64 = 60 * 384 * 7168 * 4;
    let all = |large: f64, experts_each: f64, attention_each: f64| {
        experts as f64 * experts_each
            + shared as f64 * large
            + (61 * (down + up)) as f64 * attention_each
            + (61 * kv_b * 2 + 2 * 2 * head + routers) as f64
    };
    let near = |found: usize, by_hand: f64| assert!((found as f64 / by_hand - 1.0).abs() < 1e-3, "{found}, {by_hand}");
    let fp8 = of("rein capacity kimi-k2 --gpus 8").memory;
    near(fp8.weights.total(), all(1.0, 1.0, 1.0));
    assert_eq!(fp8.kv_bytes_per_token, 61 * 576 * 2);
    assert!((119.0..123.0).contains(&gib(fp8.weights.total())), "{}", gib(fp8.weights.total()));
    let int4 = of("rein capacity kimi-k2-thinking --gpus 8").memory;
    near(int4.weights.total(), all(2.0, 0.5 + 2.0 / 32.0, 2.0));
    assert!(int4.kv_tokens > 4 * fp8.kv_tokens, "{int4:?}");
}

#[test]
fn a_floor_is_bytes_over_bandwidth_or_products_over_their_rate() {
    let found = of("rein capacity qwen3-30b-a3b --sequences 1,4096 --context 1");
    let [one, many] = &found.steps[..] else { panic!("two steps") };
    let op = |step: &rein_worker::rank::capacity::DecodeFloor, name: &str| {
        step.ops.iter().find(|op| op.op == name).expect(name).clone()
    };
    let head = op(one, "head");
    assert_eq!(head.bytes, 2.0 * 151_936.0 * 2048.0);
    assert_eq!((head.seconds, head.by_products), (head.bytes / 4.8e12, false));
    let head = op(many, "head");
    assert_eq!((head.flops, head.by_products), (2.0 * 4096.0 * 151_936.0 * 2048.0, true));
    assert_eq!(head.seconds, head.flops / 989e12);
    // One row reads its 8 of 128 experts, many rows read all.
    let all = 48.0 * 128.0 * 3.0 * 2048.0 * 768.0 * 2.0;
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a}, {b}");
    near(op(one, "experts").bytes, all * 8.0 / 128.0);
    near(op(many, "experts").bytes, all);
    near(op(one, "attention").bytes, 48.0 * 2.0 * 4.0 * 128.0 * 2.0);
    near(one.seconds, one.ops.iter().map(|op| op.seconds).sum());
}

#[test]
fn errors_name_the_option() {
    let error = |line: &str| find(&args(line)).expect_err(line).to_string();
    assert!(error("rein capacity kimi-k2 --gpus 7").starts_with("--gpus: cannot split 64 attention heads"));
    let long = error("rein capacity qwen3-30b-a3b --context 40961");
    assert_eq!(long, "--context: must be from 1 to 40960 (max_position_embeddings), got 40961");
    let unknown = error("rein capacity nowhere");
    assert!(unknown.contains("nowhere: cannot read its config.json") && unknown.contains("kimi-k2, "), "{unknown}");
    let small = of("rein capacity kimi-k2 --gpus 4 --gpu-memory 80");
    assert_eq!((small.memory.kv_tokens, small.least_gpus), (0, Some(16)));
    assert!(text("kimi-k2", &small).contains("The weights do not fit. 16 such GPUs hold a sequence."));
}
