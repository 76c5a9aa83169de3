//! Every op of a backend against the CPU backend, over enumerated shapes, in f32 and in bf16. Products with FP8 and
//! int4 weights are compared with loops in f64 that round as the kernels do. It does not know kernels.

mod attention;
mod draw;
mod experts;
mod fast;
mod figures;
mod low_rank;
mod products;

use std::fmt::Display;

use self::experts::ExpertForm;
pub use self::fast::fast;
use self::products::Stored;
use super::super::{CudaDevice, CudaDevices};
use super::{DeviceCheck, Row};
use crate::backend::*;
use crate::collective::threads::group;
use crate::cpu::{Cpu, Tensor};
use crate::diff::{count_beyond, worst_number};
use crate::error::Result;
use crate::random::Random;

/// f32 activations and weights; the unit is that of `Differences`.
const F32: f64 = 1e-5;
/// A rounding to bf16 at the end.
const BF16: f64 = 1e-2;
/// Several roundings to bf16 on the way, where the CPU keeps f32. Loops that round alike are compared within BF16.
const BF16_WITHIN: f64 = 3e-2;

impl Random {
    /// A weight whose products with numbers of deviation 1 have deviation 1.
    fn weight(&mut self, outs: usize, ins: usize) -> HostMatrix {
        self.matrix(outs, ins, (ins as f32).powf(-0.5))
    }
}

/// The same between two ways that round activations in between. A number that only one of them rounds up changes a
/// result by as much as all others together: one of `RARE` results may differ by this.
const BF16_RARELY: f64 = 1e-1;
const RARE: usize = 1000;

/// The largest differences between results and what they should be, as in `worst_number`.
struct Differences {
    allowed: f64,
    /// One of `RARE` numbers may differ by so much.
    rarely: f64,
    largest: f64,
    at: String,
    cases: usize,
    /// The cases with numbers beyond what is allowed.
    wrong: Vec<String>,
}

/// So many wrong cases are described.
const DESCRIBED: usize = 3;

impl Differences {
    fn within(allowed: f64) -> Self {
        Differences { allowed, rarely: allowed, largest: 0.0, at: String::new(), cases: 0, wrong: Vec::new() }
    }

    fn of_roundings() -> Self {
        Differences { rarely: BF16_RARELY, ..Differences::within(BF16_WITHIN) }
    }

    fn compare(&mut self, case: impl Display, got: &[f32], want: &[f32]) {
        self.cases += 1;
        let worst = worst_number(got, want);
        if worst.apart > self.largest || self.cases == 1 {
            (self.largest, self.at) = (worst.apart, case.to_string());
        }
        let beyond = count_beyond(got, want, self.allowed);
        let rare = worst.apart <= self.rarely && beyond * RARE <= want.len();
        if beyond > 0 && !rare {
            self.wrong.push(format!("{case}: {beyond} of {} numbers differ, {worst}", want.len()));
        }
    }

    /// Its name is that of the check.
    fn row(self) -> Row {
        let Differences { allowed, rarely, largest, at, cases, wrong } = self;
        let rarely = if rarely > allowed { format!(", {rarely:.0e} for one of {RARE}") } else { String::new() };
        let mut value = format!(
            "largest difference {largest:.1e}, allowed {allowed:.0e}{rarely}; {cases} cases, the largest in: {at}"
        );
        if !wrong.is_empty() {
            let described = wrong.iter().take(DESCRIBED).map(String::as_str).collect::<Vec<_>>().join("; ");
            value += &format!("; wrong in {} of them: {described}", wrong.len());
        }
        Row { passed: wrong.is_empty(), ..Row::passed(String::new(), value) }
    }
}

/// The same work on a device and on the CPU.
struct Pair<B: Backend> {
    device: B,
    cpu: Cpu,
    random: Random,
    precision: Precision,
    /// Few and small shapes, for a device that is slow.
    small: bool,
}

/// A device with fewer multiprocessors is no GPU that models run on, and gets the small set of shapes.
const FEW_MULTIPROCESSORS: u32 = 8;

/// Every op on the device.
pub fn ops(device: &CudaDevice) -> Result<Vec<DeviceCheck<'static>>> {
    let small = device.properties.multiprocessors < FEW_MULTIPROCESSORS;
    let mut checks = op_checks(&CudaDevices::open(&[device.index])?, small);
    if small {
        let what = format!("the small set: the device has fewer than {FEW_MULTIPROCESSORS} multiprocessors");
        let row = Row::passed("shapes", what);
        checks.insert(
            0,
            DeviceCheck::new("shapes", move |rows| {
                rows(row);
                Ok(())
            }),
        );
    }
    Ok(checks)
}

type OpCheck<B> = fn(&mut Pair<B>) -> Result<Row>;

/// Every op of the first of these devices. `small`: over fewer shapes.
fn op_checks<D: Devices>(devices: &D, small: bool) -> Vec<DeviceCheck<'static>> {
    let ops: [(&str, OpCheck<D::Backend>); 12] = [
        ("embed", Pair::embed),
        ("add_scaled, scale", Pair::sums),
        ("silu_mul", Pair::silu_mul),
        ("rms_norm, add_norm", Pair::norms),
        ("rope", Pair::rope),
        ("linear", Pair::products),
        ("add_low_rank", Pair::low_rank),
        ("gqa_attention", Pair::gqa),
        ("mla_attention", Pair::latent),
        ("moe_route, moe", Pair::experts),
        ("moe with adapters", Pair::adapted_experts),
        ("draw", Pair::draws),
    ];
    // Against loops that round where the kernels do.
    let quantized: [(&str, OpCheck<D::Backend>); 9] = [
        ("linear FP8", Pair::fp8_products),
        ("linear int4, f32 scales", |pair| pair.int4_products(ScaleForm::F32)),
        ("linear int4, bf16 scales", |pair| pair.int4_products(ScaleForm::Bf16)),
        ("moe bf16, rounded alike", |pair| pair.experts_of(ExpertForm::Bf16)),
        ("moe FP8, rounded alike", |pair| pair.experts_of(ExpertForm::Fp8)),
        ("moe FP8 with scales by output, rounded alike", |pair| pair.experts_of(ExpertForm::Fp8ByOutput)),
        ("moe int4, f32 scales, rounded alike", |pair| pair.experts_of(ExpertForm::Int4(ScaleForm::F32))),
        ("moe int4, bf16 scales, rounded alike", |pair| pair.experts_of(ExpertForm::Int4(ScaleForm::Bf16))),
        ("moe with gate of another form, rounded alike", |pair| pair.experts_of(ExpertForm::Mixed)),
    ];
    let check = |name: String, precision, run: OpCheck<D::Backend>| {
        let devices = devices.clone();
        DeviceCheck::new(name.clone(), move |rows| {
            let mut pair = Pair::new(&devices, precision, small)?;
            let found = run(&mut pair)?;
            // Results are zeros after an op that the device could not run: the error says more.
            pair.device.begin(StepInputs::default())?;
            rows(Row { name, ..found });
            Ok(())
        })
    };
    let mut checks = Vec::new();
    for (precision, form) in [(Precision::F32, "f32"), (Precision::Bf16, "bf16")] {
        checks.extend(ops.iter().map(|(op, run)| check(format!("{op} {form}"), precision, *run)));
    }
    checks.extend(quantized.iter().map(|(name, run)| check((*name).to_owned(), Precision::Bf16, *run)));
    checks
}

impl<B: Backend> Pair<B> {
    fn new<D: Devices<Backend = B>>(devices: &D, precision: Precision, small: bool) -> Result<Self> {
        let device = devices.open(0, 1, Box::new(group(1).remove(0)))?;
        let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
        let cpu = Cpu::new(threads, Box::new(group(1).remove(0)));
        let mut random = Random::new(1);
        // The embedding decides the type of activations.
        device.embedding(random.weight(1, 1), 0, precision)?;
        Ok(Pair { device, cpu, random, precision, small })
    }
}

impl<B: Backend> Pair<B> {
    /// Of an op that rounds to bf16 at the end, if at all.
    fn differences(&self) -> Differences {
        Differences::within(if self.precision == Precision::F32 { F32 } else { BF16 })
    }

    /// Of an op whose results on the way are stored as bf16, where the CPU keeps f32.
    fn differences_within(&self) -> Differences {
        Differences::within(if self.precision == Precision::F32 { F32 } else { BF16_WITHIN })
    }

    fn row_counts(&self) -> &'static [usize] {
        if self.small { &[1, 3, 17] } else { &[1, 3, 17, 65] }
    }

    /// The residual stream.
    fn residual(&mut self, rows: usize, cols: usize) -> (B::Tensor, Tensor) {
        let values = self.random.numbers(rows * cols, 1.0);
        (self.device.to_device(rows, cols, values.clone()), self.cpu.to_device(rows, cols, values))
    }

    /// Activations: a norm has their type. The CPU gets the device's numbers.
    fn activation(&mut self, rows: usize, cols: usize) -> Result<(B::Tensor, Tensor)> {
        let ones = self.device.vector(vec![1.0; cols])?;
        let (x, _) = self.residual(rows, cols);
        let x = self.device.rms_norm(&x, &ones, 1e-6);
        let values = self.device.to_host(&x);
        Ok((x, self.cpu.to_device(rows, cols, values)))
    }

    fn vectors(&mut self, n: usize) -> Result<(B::Vector, Vec<f32>)> {
        let values = self.random.numbers(n, 1.0);
        Ok((self.device.vector(values.clone())?, self.cpu.vector(values)?))
    }

    fn embed(&mut self) -> Result<Row> {
        let mut check = Differences::within(0.0);
        for (vocab, hidden) in [(3, 1), (11, 64), (300, 300)] {
            let table = self.random.weight(vocab, hidden);
            let on_device = self.device.embedding(table.clone(), 0, self.precision)?;
            let on_cpu = self.cpu.embedding(table, 0, self.precision)?;
            for &rows in self.row_counts() {
                let ids: Vec<u32> = (0..rows).map(|_| self.random.below(vocab) as u32).collect();
                let step = StepInputs { ids, ..StepInputs::default() };
                let batch = self.device.begin(step.clone())?;
                let got = self.device.to_host(&self.device.embed(&on_device, &batch));
                let batch = self.cpu.begin(step)?;
                let want = self.cpu.to_host(&self.cpu.embed(&on_cpu, &batch));
                check.compare(format_args!("{rows} rows of [{vocab}, {hidden}]"), &got, &want);
            }
        }
        Ok(check.row())
    }

    fn sums(&mut self) -> Result<Row> {
        let mut check = Differences::within(F32);
        for &rows in self.row_counts() {
            for cols in [1, 70, 513] {
                let (mut x, mut want) = self.residual(rows, cols);
                let (y, y_cpu) = self.activation(rows, cols)?;
                self.device.add_scaled(&mut x, &y, 0.75);
                self.device.scale(&mut x, -3.0);
                self.cpu.add_scaled(&mut want, &y_cpu, 0.75);
                self.cpu.scale(&mut want, -3.0);
                check.compare(format_args!("[{rows}, {cols}]"), &self.device.to_host(&x), want.data());
            }
        }
        Ok(check.row())
    }

    /// Apart, and as the halves of one product.
    fn silu_mul(&mut self) -> Result<Row> {
        let mut check = self.differences();
        for &rows in self.row_counts() {
            for cols in [1, 70, 513] {
                let (gate, gate_cpu) = self.activation(rows, cols)?;
                let (up, up_cpu) = self.activation(rows, cols)?;
                let got = self.device.to_host(&self.device.silu_mul(&gate, &up));
                check.compare(format_args!("[{rows}, {cols}]"), &got, self.cpu.silu_mul(&gate_cpu, &up_cpu).data());
                let got = self.device.to_host(&self.device.gelu_mul(&gate, &up));
                check.compare(
                    format_args!("gelu [{rows}, {cols}]"),
                    &got,
                    self.cpu.gelu_mul(&gate_cpu, &up_cpu).data(),
                );
                for form in [Gelu::Erf, Gelu::Tanh] {
                    let got = self.device.to_host(&self.device.gelu(&gate, form));
                    let want = self.cpu.gelu(&gate_cpu, form);
                    check.compare(format_args!("{form:?} [{rows}, {cols}]"), &got, want.data());
                }
                let (both, both_cpu) = self.activation(rows, 2 * cols)?;
                let (gate, up) = (self.device.slice_cols(&both, 0, cols), self.device.slice_cols(&both, cols, cols));
                let got = self.device.to_host(&self.device.silu_mul(&gate, &up));
                let (gate, up) = (self.cpu.slice_cols(&both_cpu, 0, cols), self.cpu.slice_cols(&both_cpu, cols, cols));
                check.compare(format_args!("[{rows}, 2 x {cols}]"), &got, self.cpu.silu_mul(&gate, &up).data());
            }
        }
        Ok(check.row())
    }

    /// Of the residual stream with and without a sum, and of each head of an activation.
    fn norms(&mut self) -> Result<Row> {
        let mut check = self.differences();
        for &rows in self.row_counts() {
            for cols in [2, 70, 513] {
                let (weight, weight_cpu) = self.vectors(cols)?;
                let (mut x, mut x_cpu) = self.residual(rows, cols);
                let got = self.device.to_host(&self.device.rms_norm(&x, &weight, 1e-5));
                let want = self.cpu.rms_norm(&x_cpu, &weight_cpu, 1e-5);
                check.compare(format_args!("[{rows}, {cols}]"), &got, want.data());
                let (bias, bias_cpu) = self.vectors(cols)?;
                let got = self.device.to_host(&self.device.layer_norm(&x, &weight, &bias, 1e-5));
                let want = self.cpu.layer_norm(&x_cpu, &weight_cpu, &bias_cpu, 1e-5);
                check.compare(format_args!("layer [{rows}, {cols}]"), &got, want.data());
                let (y, y_cpu) = self.activation(rows, cols)?;
                let got = self.device.add_norm(&mut x, &y, 0.5, &weight, 1e-5);
                let want = self.cpu.add_norm(&mut x_cpu, &y_cpu, 0.5, &weight_cpu, 1e-5);
                check.compare(format_args!("add [{rows}, {cols}]"), &self.device.to_host(&got), want.data());
                check.compare(format_args!("sum [{rows}, {cols}]"), &self.device.to_host(&x), x_cpu.data());
            }
            for (cols, from, len) in [(70, 10, 20), (256, 0, 128), (513, 500, 13), (8, 4, 0)] {
                let (x, x_cpu) = self.activation(rows, cols)?;
                let (y, y_cpu) = self.activation(rows, cols)?;
                let (weight, weight_cpu) = self.vectors(cols)?;
                let sums = self.device.square_sums(&x, &y, from..from + len);
                let sums_cpu = self.cpu.square_sums(&x_cpu, &y_cpu, from..from + len);
                for column in [0, 1] {
                    let of = WholeRow { column, width: 2 * cols, eps: 1e-5 };
                    let got = self.device.to_host(&self.device.norm_of_part(&y, &weight, &sums, of));
                    let want = self.cpu.norm_of_part(&y_cpu, &weight_cpu, &sums_cpu, of);
                    check.compare(format_args!("part [{rows}, {cols}], {len} counted, {column}"), &got, want.data());
                }
            }
            for (heads, dim) in [(3, 5), (2, 64), (1, 300)] {
                let (weight, weight_cpu) = self.vectors(dim)?;
                let (x, x_cpu) = self.activation(rows, heads * dim)?;
                let got = self.device.to_host(&self.device.rms_norm(&x, &weight, 1e-5));
                let want = self.cpu.rms_norm(&x_cpu, &weight_cpu, 1e-5);
                check.compare(format_args!("{heads} heads of {dim}, {rows} rows"), &got, want.data());
            }
        }
        Ok(check.row())
    }

    fn rope(&mut self) -> Result<Row> {
        let mut check = self.differences();
        let rotation = |(heads, head_dim, offset, dims, interleaved)| {
            let inv_freq: Vec<f64> = (0..dims / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / dims as f64)).collect();
            (heads, RopeSpec { head_dim, offset, dims, interleaved, inv_freq, magnitude: 1.25, growth: None })
        };
        let kinds = [(3, 64, 0, 64, false), (20, 48, 32, 16, true), (4, 24, 4, 10, false), (1, 128, 0, 128, true)];
        let growing = (300, RopeSpec::growing(Growth { length: 4, beta: 0.3 }));
        for (heads, spec) in kinds.map(rotation).into_iter().chain([growing]) {
            let RopeSpec { head_dim, dims, .. } = spec;
            for &rows in self.row_counts() {
                // Two sequences; the second has only its last row here.
                let blocks: Vec<u32> = (0..100).collect();
                let one = Span { row: rows - 1, len: 1, start: 61, blocks: &blocks };
                let spans = if rows == 1 {
                    vec![one]
                } else {
                    vec![Span { row: 0, len: rows - 1, start: 7, blocks: &blocks }, one]
                };
                let (mut x, mut x_cpu) = self.activation(rows, heads * head_dim)?;
                let step = StepInputs { ids: vec![0; rows], spans, ..StepInputs::default() };
                let batch_on_device = self.device.begin(step.clone())?;
                self.device.rope(&batch_on_device, &mut x, &spec);
                let batch = self.cpu.begin(step)?;
                self.cpu.rope(&batch, &mut x_cpu, &spec);
                let case = format_args!("{heads} heads, {dims} of {head_dim} columns, {rows} rows").to_string();
                check.compare(case, &self.device.to_host(&x), x_cpu.data());
                let (table, table_cpu) = self.vectors(100 * dims)?;
                let (mut x, mut x_cpu) = self.residual(rows, dims);
                self.device.add_positions(&batch_on_device, &mut x, &table);
                self.cpu.add_positions(&batch, &mut x_cpu, &table_cpu);
                check.compare(format_args!("{rows} learned positions"), &self.device.to_host(&x), x_cpu.data());
            }
        }
        Ok(check.row())
    }
}
