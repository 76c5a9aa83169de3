//! Random requests to a simulated engine: bodies, schemas, grammars and model output. Every answer must be complete,
//! must not be a server error, and must cost bounded CPU time and memory.
//!
//! `REIN_FUZZ_SECONDS` is the time for all servers together (default 20), `REIN_FUZZ_SEED` another seed, `REIN_BIN`
//! another binary:
//!
//!     REIN_BIN=target/release/rein REIN_FUZZ_SECONDS=1800 cargo test --test it fuzz -- --nocapture
//!
//! A failure prints the smallest request that still fails. Saved as a file in `tests/fixtures/fuzz`, it is sent in each
//! run.

mod answers;
mod constraints;
mod dialects;
mod requests;
mod values;

use std::time::{Duration, Instant};

use super::process::{Server, read_response, rein, repository};
use answers::check;
use proptest::{
    prop_oneof,
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use requests::Case;

/// Arguments of the servers, besides model and engine.
const SERVERS: [&[&str]; 5] = [
    &[],
    &["--enforcement", "off"],
    &["--format", "hermes"],
    &["--format", "llama_json", "--enforcement", "off"],
    EMBEDS,
];
const EMBEDS: &[&str] = &["--task", "embed"];
const SECONDS: u64 = 20;
/// CPU time limit of one request, with the binary in `REIN_BIN` (a release build) and with the one under test.
const CPU_TIME: Duration = Duration::from_secs(1);
const UNOPTIMISED_CPU_TIME: Duration = Duration::from_secs(8);
/// Allowed growth of the process after the first half of its requests, when its caches are full, in KiB.
const GROWTH: u64 = 96 << 10;
/// A run with fewer requests does not fill the caches in its first half.
const REQUESTS_FOR_GROWTH: u64 = 50_000;
/// Time to look for a smaller failing request.
const SIMPLER: Duration = Duration::from_secs(30);

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is expected")))
}

fn proc_file(server: &Server, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{}/{name}", server.id())).expect("the server runs")
}

/// User and system time so far. The kernel counts in ticks of 10 ms.
fn cpu_time(server: &Server) -> Duration {
    let stat = proc_file(server, "stat");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in brackets").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}

/// Resident memory in KiB.
fn memory(server: &Server) -> u64 {
    let status = proc_file(server, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// What is wrong with the answer to this request.
fn try_case(server: &Server, case: &Case) -> Result<u16, String> {
    let before = cpu_time(server);
    let answer = read_response(server.send("POST", case.path, &case.body));
    let took = cpu_time(server) - before;
    check(case, &answer).map_err(|what| format!("{what}\nanswer: {:.2000}", answer.body))?;
    let limit = if std::env::var_os("REIN_BIN").is_some() { CPU_TIME } else { UNOPTIMISED_CPU_TIME };
    if took > limit {
        return Err(format!("it took {took:?} of CPU time; status {}, answer: {:.500}", answer.status, answer.body));
    }
    Ok(answer.status)
}

/// Fails with the smallest request that still fails.
fn fail(server: &Server, mut tree: impl ValueTree<Value = Case>, mut what: String) -> ! {
    let mut smallest = tree.current();
    let mut simpler = tree.simplify();
    let began = Instant::now();
    while simpler && began.elapsed() < SIMPLER {
        let case = tree.current();
        simpler = match try_case(server, &case) {
            Ok(_) => tree.complicate(),
            Err(now) => {
                (smallest, what) = (case, now);
                tree.simplify()
            }
        };
    }
    panic!("POST {}\n{}\n{what}", smallest.path, smallest.body);
}

/// Requests that failed once: the path in the first line, then the body.
fn kept() -> Vec<Case> {
    let folder = repository().join("tests/fixtures/fuzz");
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
    files.sort();
    let read = |file: &std::path::PathBuf| {
        let text = std::fs::read_to_string(file).expect("a text");
        let (path, body) = text.split_once('\n').expect("two lines");
        let path =
            requests::PATHS.into_iter().find(|known| *known == path).unwrap_or_else(|| panic!("{file:?}: {path}"));
        Case { path, body: body.trim_end().to_owned() }
    };
    files.iter().map(read).collect()
}

#[test]
fn hostile_requests_get_complete_answers_at_bounded_cost() {
    let seconds = variable("REIN_FUZZ_SECONDS", SECONDS);
    let seed = variable("REIN_FUZZ_SEED", 1);
    for (number, arguments) in (0u64..).zip(SERVERS) {
        let mut command = rein();
        command.env("REIN_LOG", "off");
        let server = Server::of(command, &[&["--engine", "sim", "--sim-step-us", "0"], arguments].concat());
        for case in kept().into_iter().filter(|_| arguments != EMBEDS) {
            if let Err(what) = try_case(&server, &case) {
                panic!("POST {}\n{}\n{what}", case.path, case.body);
            }
        }
        let mut state = [0; 32];
        state[..8].copy_from_slice(&seed.to_le_bytes());
        state[8..16].copy_from_slice(&number.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &state);
        let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
        let vocabulary = requests::vocabulary(&server);
        let cases = match arguments == EMBEDS {
            true => dialects::embedding(&vocabulary),
            false => prop_oneof![3 => requests::case(&vocabulary), 1 => dialects::generating(&vocabulary)].boxed(),
        };
        let began = Instant::now();
        let time = Duration::from_secs(seconds) / SERVERS.len() as u32;
        let (mut requests, mut succeeded, mut middle) = (0u64, 0u64, None);
        // MiB after each tenth of the time.
        let mut grown = Vec::new();
        while began.elapsed() < time {
            let tree = cases.new_tree(&mut runner).expect("no strategy rejects");
            match try_case(&server, &tree.current()) {
                Ok(status) => succeeded += u64::from(status == 200),
                Err(what) => fail(&server, tree, what),
            }
            requests += 1;
            if began.elapsed() > time.mul_f64(0.1 * (grown.len() + 1) as f64) {
                grown.push(memory(&server) >> 10);
            }
            if middle.is_none() && began.elapsed() > time / 2 {
                middle = Some(memory(&server));
            }
        }
        let (middle, end) = (middle.unwrap_or(u64::MAX), memory(&server));
        println!(
            "{arguments:?}: {requests} requests in {time:?}, {succeeded} succeeded, memory {middle} KiB in the middle, {end} KiB at the end; MiB by tenths: {grown:?}"
        );
        assert!(succeeded > requests / 10, "only {succeeded} of {requests} requests got as far as an answer");
        assert!(
            requests < REQUESTS_FOR_GROWTH || end <= middle.saturating_add(GROWTH),
            "memory grew: {middle} to {end} KiB"
        );
        assert_eq!(server.request("GET", "/health", "").status, 200);
    }
}
