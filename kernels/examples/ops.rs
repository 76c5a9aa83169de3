//! Speed of the CPU ops, compared with the machine's limits.
//!
//! `cargo run --release -p rein-kernels --example ops -- [threads] [products|model|draws|all] [cpu-time]`
//!
//! `cpu-time` measures the process's processor time instead of wall time: for one thread on a shared machine.
//!
//! Memory bandwidth is measured before and after, because it limits small batches. `model` runs the ops of a 0.68
//! B-parameter DeepSeek-V3-style decoder (hidden 1024, 12 layers, 64 experts of 256, top-8, vocabulary 32,256) with
//! random weights.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use half::bf16;
use rein_kernels::collective::threads::group;
use rein_kernels::cpu::{Cpu, Expansion, Experts, KvCache, Linear};
use rein_kernels::probe::memory_bandwidth;
use rein_kernels::sample::SampleSpec;
use rein_kernels::*;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let what = args.next().unwrap_or_default();
    CPU_TIME.store(args.next().is_some_and(|a| a == "cpu-time"), Relaxed);
    let mut cpu = Cpu::new(threads, Box::new(group(1).remove(0)));
    println!("{:?}, {threads} threads", cpu.isa());
    bandwidth(threads);
    let wanted = |part: &str| what.is_empty() || what == "all" || what == part;
    if wanted("products") {
        products(&cpu);
    }
    if wanted("draws") {
        draws(&mut cpu);
    }
    if wanted("model") {
        model(&mut cpu, Precision::Bf16);
        model(&mut cpu, Precision::Int8);
    }
    bandwidth(threads);
}

/// Prints the memory bandwidth. With processor time, that of a plain loop in one thread.
fn bandwidth(threads: usize) {
    if !CPU_TIME.load(Relaxed) {
        return println!("{:.1} GB/s read", memory_bandwidth(threads, 0.5));
    }
    let words = vec![1u64; 64 << 20];
    let time = seconds(|| {
        std::hint::black_box(words.iter().fold(0u64, |a, b| a.wrapping_add(*b)));
    });
    println!("{:.1} GB/s read by one thread", (words.len() * 8) as f64 / time / 1e9);
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> HostMatrix {
        let scale = 3.0 / (cols as f32).sqrt();
        let data = (0..rows * cols).map(|_| bf16::from_f32(self.next() * scale)).collect();
        HostMatrix { rows, cols, data: HostData::Bf16(data) }
    }

    fn values(&mut self, rows: usize, cols: usize) -> Vec<f32> {
        (0..rows * cols).map(|_| self.next()).collect()
    }
}

static CPU_TIME: AtomicBool = AtomicBool::new(false);

/// Seconds of the clock in use.
fn now() -> f64 {
    if CPU_TIME.load(Relaxed) {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call fills the struct that it is given.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        return time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
    }
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Median seconds of a call, measured for about a second.
fn seconds(mut f: impl FnMut()) -> f64 {
    f();
    let mut times = Vec::new();
    let first = now();
    while times.len() < 5 || (now() - first < 1.0 && times.len() < 200) {
        let start = now();
        f();
        times.push(now() - start);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn products(cpu: &Cpu) {
    let mut rng = Numbers(1);
    let (n, count) = (2048, 32);
    let numbers = |precision: Precision| (format!("{precision:?}"), rng.matrix(n, n), precision);
    let mut all: Vec<_> = [Precision::F32, Precision::Bf16, Precision::Int8].into_iter().map(numbers).collect();
    for form in [BlockForm::Q4_0, BlockForm::Q4K, BlockForm::Q5_0, BlockForm::Q6K, BlockForm::Q8_0] {
        // Without the bits that would make factors infinite.
        let bytes = (0..n * n / form.numbers() * form.bytes()).map(|i| (i * 37 % 251) as u8 & 0x3b).collect();
        let data = HostData::Blocks { form, bytes };
        all.push((form.name().to_owned(), HostMatrix { rows: n, cols: n, data }, Precision::Bf16));
    }
    let codes = (0..n * n).map(|i| (i * 37 % 251) as u8 & 0x77).collect();
    let data = HostData::Fp8 { codes, scales: vec![0.01; (n / 128) * (n / 128)], block: [128, 128] };
    all.push(("FP8".to_owned(), HostMatrix { rows: n, cols: n, data }, Precision::Bf16));
    for (name, source, precision) in all {
        let bytes = match (&source.data, precision) {
            (HostData::Blocks { bytes, .. }, _) => bytes.len() as f64 / (n * n) as f64,
            (HostData::Fp8 { .. }, _) => 1.03125,
            (_, Precision::F32) => 4.0,
            (_, Precision::Bf16) => 2.0,
            (_, Precision::Int8) => 1.0625,
        };
        let weights: Vec<Linear> =
            (0..count).map(|_| cpu.linear_weight(source.clone(), precision).expect("memory")).collect();
        let time = seconds(|| drop(cpu.linear_weight(source.clone(), precision)));
        println!("{name} packing: {:.2} GB/s of bf16", (2 * n * n) as f64 / time / 1e9);
        for rows in [1, 2, 4, 8, 16] {
            let x = cpu.to_device(rows, n, rng.values(rows, n));
            let time = seconds(|| weights.iter().for_each(|w| drop(cpu.linear(&x, w, None))));
            let gb = (count * n * n) as f64 * bytes / time / 1e9;
            let flops = (2 * rows * count * n * n) as f64 / time / 1e9;
            println!("{name} {rows:2} rows x {count} weights {n} x {n}: {gb:6.1} GB/s, {flops:6.0} GFLOPS");
        }
        let x = cpu.to_device(512, n, rng.values(512, n));
        let time = seconds(|| drop(cpu.linear(&x, &weights[0], None)));
        println!("{name} 512 x {n} x {n}: {:.0} GFLOPS", (2 * 512 * n * n) as f64 / time / 1e9);
    }
}

/// Draws from a vocabulary of the size of Kimi K2's, with a product so small that the draws take most of the time. The
/// logits are spread as a model's (standard deviation 3.5). One thread and all threads take turns.
fn draws(cpu: &mut Cpu) {
    const ENTRIES: usize = 163_840;
    let (mut rng, hidden) = (Numbers(3), 32);
    let (norm, weight) = (vec![1.0; hidden], rng.matrix(ENTRIES, hidden));
    let weight = cpu.linear_weight(weight, Precision::Bf16).expect("memory");
    let head = OutputHead { norm: &norm, norm_bias: None, eps: 1e-6, weight: Some(&weight), scale: 4.0 };
    let mut alone = Cpu::new(1, Box::new(group(1).remove(0)));
    for (name, sample) in [
        ("greedy", SampleSpec { temperature: 0.0, ..SampleSpec::default() }),
        ("temperature 1", SampleSpec::default()),
        ("top-p 0.95", SampleSpec { top_p: 0.95, ..SampleSpec::default() }),
    ] {
        for rows in [1, 16, 64] {
            let x = cpu.to_device(rows, hidden, rng.values(rows, hidden));
            let draw = |row| Draw { from: LogitsOf::Row(row), sample, history: None, slot: None, logprobs: None };
            let step = StepInputs { ids: vec![0; rows], draws: (0..rows).map(draw).collect(), ..StepInputs::default() };
            let batch = cpu.begin(step).expect("no spans");
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..21 {
                for (cpu, times) in [&mut alone, &mut *cpu].into_iter().zip(&mut times) {
                    let start = now();
                    drop(cpu.draw(&batch, Some(&x), &head).expect("one rank"));
                    times.push(now() - start);
                }
            }
            let [one, all] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[times.len() / 2] * 1e3
            });
            let ratio = one / all;
            println!(
                "draw of {rows:2} rows x {ENTRIES}, {name}: {one:.2} ms alone, {all:.2} ms, {ratio:.2} times as fast"
            );
        }
    }
}

const HIDDEN: usize = 1024;
const LAYERS: usize = 12;
const EXPERTS: usize = 64;
const INTER: usize = 256;
const VOCAB: usize = 32_256;
const CONTEXT: usize = 2560;
const BLOCK: usize = 16;
const MLA: MlaSpec = MlaSpec { heads: 8, nope_dim: 128, rope_dim: 64, v_dim: 128, kv_rank: 512, scale: 0.072 };

struct Layer {
    norms: [Vec<f32>; 4],
    q_a: Linear,
    q_b: Linear,
    kv_a: Linear,
    kv_b: Expansion,
    o: Linear,
    /// gate, up, down of the dense layer or the shared expert.
    mlp: [Linear; 3],
    router: Option<Linear>,
    experts: Option<Experts>,
    cache: KvCache,
}

fn model(cpu: &mut Cpu, precision: Precision) {
    let mut rng = Numbers(2);
    let start = Instant::now();
    let device = &*cpu;
    let linear = |rng: &mut Numbers, outs, ins, precision| {
        device.linear_weight(rng.matrix(outs, ins), precision).expect("memory")
    };
    let one = [rng.matrix(INTER, HIDDEN), rng.matrix(INTER, HIDDEN), rng.matrix(HIDDEN, INTER)];
    let mut layers: Vec<Layer> = (0..LAYERS)
        .map(|l| {
            let inter = if l == 0 { 2816 } else { INTER };
            let kv_b = rng.matrix(MLA.heads * (MLA.nope_dim + MLA.v_dim), MLA.kv_rank);
            let mut experts = (0..EXPERTS as u32)
                .map(|id| Ok(ExpertWeights { id, gate: one[0].clone(), up: one[1].clone(), down: one[2].clone() }));
            Layer {
                norms: [vec![1.0; HIDDEN], vec![1.0; 384], vec![1.0; MLA.kv_rank], vec![1.0; HIDDEN]],
                q_a: linear(&mut rng, 384, HIDDEN, precision),
                q_b: linear(&mut rng, MLA.heads * 192, 384, precision),
                kv_a: linear(&mut rng, 576, HIDDEN, precision),
                kv_b: cpu.mla_weight(kv_b, &MLA, precision).expect("memory"),
                o: linear(&mut rng, HIDDEN, MLA.heads * 128, precision),
                mlp: [
                    linear(&mut rng, inter, HIDDEN, precision),
                    linear(&mut rng, inter, HIDDEN, precision),
                    linear(&mut rng, HIDDEN, inter, precision),
                ],
                router: (l > 0).then(|| linear(&mut rng, EXPERTS, HIDDEN, Precision::F32)),
                experts: (l > 0).then(|| cpu.experts(ExpertTable::default(), &mut experts, precision).expect("memory")),
                cache: cpu.cache(16 * CONTEXT / BLOCK, BLOCK, [512, 64], CacheForm::of(precision)).expect("memory"),
            }
        })
        .collect();
    let (norm, head) = (vec![1.0; HIDDEN], linear(&mut rng, VOCAB, HIDDEN, precision));
    let per_weight = if precision == Precision::Int8 { 1.0625 } else { 2.0 };
    println!("{precision:?} model made in {:.1} s", start.elapsed().as_secs_f64());

    let rope = RopeSpec {
        head_dim: 192,
        offset: 128,
        dims: 64,
        interleaved: true,
        inv_freq: (0..32).map(|i| 50_000f64.powf(-f64::from(i) / 32.0)).collect(),
        magnitude: 1.0,
        growth: None,
    };
    let key_rope = RopeSpec { head_dim: 64, offset: 0, ..rope.clone() };
    let route =
        RouteSpec { top_k: 8, scoring: Scoring::Sigmoid, n_group: 1, topk_group: 1, normalize: true, scaling: 2.827 };
    let mut parts = [0.0f64; 6];
    let mut forward = |x: &[f32], spans: &[Span]| {
        let mut x = cpu.to_device(x.len() / HIDDEN, HIDDEN, x.to_vec());
        let ids = vec![0; spans.iter().map(|span| span.len).sum()];
        let draw = |span: &Span| Draw {
            history: None,
            slot: None,
            from: LogitsOf::Row(span.row + span.len - 1),
            sample: SampleSpec::default(),
            logprobs: None,
        };
        let rows =
            StepInputs { ids, spans: spans.to_vec(), draws: spans.iter().map(draw).collect(), ..StepInputs::default() };
        let batch = cpu.begin(rows).expect("spans");
        for layer in &mut layers {
            let t0 = now();
            let h = cpu.rms_norm(&x, &layer.norms[0], 1e-6);
            let q = cpu.rms_norm(&cpu.linear(&h, &layer.q_a, None), &layer.norms[1], 1e-6);
            let mut q = cpu.linear(&q, &layer.q_b, None);
            let kv = cpu.linear(&h, &layer.kv_a, None);
            let t1 = now();
            let latent = cpu.rms_norm(&cpu.slice_cols(&kv, 0, 512), &layer.norms[2], 1e-6);
            let mut key = cpu.slice_cols(&kv, 512, 64);
            cpu.rope(&batch, &mut q, &rope);
            cpu.rope(&batch, &mut key, &key_rope);
            let t2 = now();
            let mixed =
                cpu.mla_attention(&batch, &q, &latent, &key, &layer.kv_b, None, &mut layer.cache, &MLA).expect("alone");
            let t3 = now();
            let attended = cpu.linear(&mixed, &layer.o, None);
            let h = cpu.add_norm(&mut x, &attended, 1.0, &layer.norms[3], 1e-6);
            let gate = cpu.linear(&h, &layer.mlp[0], None);
            let up = cpu.linear(&h, &layer.mlp[1], None);
            let out = cpu.linear(&cpu.silu_mul(&gate, &up), &layer.mlp[2], None);
            cpu.add_scaled(&mut x, &out, 1.0);
            let t4 = now();
            if let (Some(router), Some(experts)) = (&layer.router, &layer.experts) {
                let routes = cpu.moe_route(&cpu.linear(&h, router, None), None, &route);
                let t5 = now();
                parts[4] += t5 - t4;
                let out = cpu.moe(&batch, &h, &routes, experts, None, None).expect("one rank");
                cpu.add_scaled(&mut x, &out, 1.0);
                parts[3] += now() - t5;
            }
            parts[0] += t1 - t0 + (t4 - t3);
            parts[1] += t2 - t1;
            parts[2] += t3 - t2;
        }
        let t0 = now();
        let head = OutputHead { norm: &norm, norm_bias: None, eps: 1e-6, weight: Some(&head), scale: 1.0 };
        drop(cpu.draw(&batch, Some(&x), &head).expect("one rank"));
        parts[5] += now() - t0;
        std::mem::take(&mut parts)
    };
    let table = |s: usize| -> Vec<u32> { ((s * CONTEXT / BLOCK) as u32..((s + 1) * CONTEXT / BLOCK) as u32).collect() };
    let mut step = |name: &str, rows: usize, len: usize, start: usize, bytes: f64| {
        let x = rng.values(rows * len, HIDDEN);
        let tables: Vec<Vec<u32>> = (0..rows).map(table).collect();
        let span = |(s, blocks)| Span { row: s * len, len, start, blocks };
        let spans: Vec<Span> = tables.iter().map(Vec::as_slice).enumerate().map(span).collect();
        let mut split = [0.0; 6];
        let time = seconds(|| split = forward(&x, &spans));
        let split: Vec<String> = ["linears", "rope", "attention", "experts", "route", "head and draw"]
            .iter()
            .zip(split)
            .map(|(n, s)| format!("{n} {:.2}", s * 1e3))
            .collect();
        let bound = if bytes > 0.0 { format!(", {:.1} GB/s of weights", bytes / time / 1e9) } else { String::new() };
        println!(
            "{name}: {:.1} tok/s, {:.2} ms{bound}; ms: {}",
            (rows * len) as f64 / time,
            time * 1e3,
            split.join(", ")
        );
    };
    step("prefill of 512", 1, 512, 0, 0.0);
    // 164.3 M active weights for one row; the embedding is not read here.
    step("decode, 1 row", 1, 1, 64, 164.3e6 * per_weight);
    step("decode, 4 rows", 4, 1, 64, 0.0);
    step("decode, 8 rows", 8, 1, 64, 0.0);
    step("decode, 16 rows", 16, 1, 64, 0.0);
    step("decode, 1 row at 2048", 1, 1, 2048, 164.3e6 * per_weight);
}
