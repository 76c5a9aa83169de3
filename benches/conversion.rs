//! Benchmark of the conversion of a coding agent's body of the Messages API to a job.
//!
//!     cargo bench --bench conversion
//!
//! Prints the CPU time of the thread, and the time that passed, which includes what else the machine runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rein_router::seal::Seal;
use rustix::time::{ClockId, clock_gettime};

#[path = "conversion/agent_body.rs"]
mod agent_body;

const TOOLS: usize = 24;
const RUNS: usize = 2_000;
const ROUNDS: usize = 5;

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time")
}

fn shares(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |permille: usize| times[(times.len() * permille / 1000).min(times.len() - 1)].as_secs_f64() * 1e3;
    format!("median {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms", at(500), at(990), at(999))
}

fn main() {
    let (body, seal) = (agent_body::agent_body(TOOLS), Seal::random());
    println!("a body of {} bytes with {TOOLS} tools, {ROUNDS} rounds of {RUNS} conversions", body.len());
    for _ in 0..ROUNDS {
        let (mut cpu, mut passed) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let (began, at) = (cpu_time(), Instant::now());
            let tools = rein_router::convert_messages(black_box(body.as_bytes()), &seal).expect("the body is valid");
            passed.push(at.elapsed());
            cpu.push(cpu_time() - began);
            assert_eq!(tools, TOOLS);
        }
        println!("CPU time: {}; time that passed: {}", shares(cpu), shares(passed));
    }
}
