//! Sums over ranks on one device: their bits, and what they cost by size.

use std::time::Instant;

use super::super::CudaDevices;
use super::super::backend::Cuda;
use super::super::ranks::WHOLE_SUM;
use super::super::tensor::Element;
use super::{DeviceCheck, Row, RowSink};
use crate::backend::{Backend, Devices};
use crate::collective::threads;
use crate::error::{KernelError, Result};
use crate::random::Random;

const RANKS: [usize; 2] = [2, 4];
/// [rows, columns] of the sums that are compared.
const SHAPES: [[usize; 2]; 4] = [[1, 7], [3, 300], [17, 64], [33, 129]];
/// Rows of bf16 of Kimi K2's width, whose sums are timed: those of decode steps and of a prefill.
const TIMED_ROWS: [usize; 5] = [1, 16, 64, 512, 4096];
const TIMED_COLS: usize = 7168;
/// An emulated device has less memory, and its times say nothing.
const LITTLE_MEMORY: usize = 8 << 30;
/// Sums between two looks at the clock, after as many to warm up.
const SUMS: usize = 20;

/// Bits of sums over ranks that share the device, then the time of a sum by size.
pub fn ranks(device: usize) -> Vec<DeviceCheck<'static>> {
    let bits = RANKS.map(|ranks| {
        let name = format!("sums over {ranks} ranks");
        DeviceCheck::new(name.clone(), move |rows| {
            rows(sums(device, ranks, name)?);
            Ok(())
        })
    });
    let times = RANKS.map(|ranks| {
        DeviceCheck::new(format!("times of sums over {ranks} ranks"), move |rows| times(device, ranks, rows))
    });
    bits.into_iter().chain(times).collect()
}

fn sums(device: usize, ranks: usize, name: String) -> Result<Row> {
    let found = on_ranks(device, ranks, |cuda| {
        let mut bits = Vec::new();
        for whole in [usize::MAX, 0] {
            cuda.whole_sum.set(whole);
            for [rows, cols] in SHAPES {
                let mut x = cuda.to_device(rows, cols, part(cuda.rank(), rows, cols));
                cuda.all_reduce(&mut x)?;
                bits.extend(cuda.to_host(&x).iter().map(|x| x.to_bits()));
            }
        }
        cuda.check()?;
        cuda.check_group()?;
        Ok(bits)
    })?;
    let sums = SHAPES.iter().chain(&SHAPES).flat_map(|&[rows, cols]| sum(ranks, rows, cols));
    let want: Vec<u32> = sums.map(f32::to_bits).collect();
    let right = found.iter().filter(|found| **found == want).count();
    let value = format!("the bits of the host's sums on {right} of {ranks} ranks, {} numbers", want.len());
    Ok(Row { passed: right == ranks, ..Row::passed(name, value) })
}

/// This rank's numbers: magnitudes differ, so that the order of additions shows.
fn part(rank: usize, rows: usize, cols: usize) -> Vec<f32> {
    Random::new((31 * rank + rows) as u64).numbers(rows * cols, 10f32.powi(rank as i32 % 5))
}

fn sum(ranks: usize, rows: usize, cols: usize) -> Vec<f32> {
    let mut sum = part(0, rows, cols);
    (1..ranks).for_each(|rank| sum.iter_mut().zip(part(rank, rows, cols)).for_each(|(sum, x)| *sum += x));
    sum
}

fn times(device: usize, ranks: usize, rows: &mut RowSink<'_>) -> Result<()> {
    let timed = on_ranks(device, ranks, |cuda| {
        let most = if cuda.device.properties.memory < LITTLE_MEMORY { 1 } else { usize::MAX };
        let mut times = Vec::new();
        for &count in TIMED_ROWS.iter().filter(|&&count| count <= most) {
            for whole in [usize::MAX, 0] {
                cuda.whole_sum.set(whole);
                times.push((count, whole > 0, time(cuda, count)?));
            }
        }
        Ok(times)
    })?;
    for (count, whole, micros) in timed.into_iter().next().unwrap_or_default() {
        let how = if whole { "whole" } else { "split" };
        let bytes = count * TIMED_COLS * Element::Bf16.bytes();
        let chosen = if whole == (bytes <= WHOLE_SUM) { ", as chosen" } else { "" };
        let name = format!("sum over {ranks} ranks, {count} rows of {TIMED_COLS} in bf16, {how}");
        rows(Row::passed(name, format!("{micros:.1} us ({} KiB{chosen})", bytes >> 10)));
    }
    Ok(())
}

/// Microseconds of a sum, over several that follow each other.
fn time(cuda: &Cuda, rows: usize) -> Result<f64> {
    let x = cuda.tensor(rows, TIMED_COLS, Element::Bf16);
    let mut micros = 0.0;
    for _ in 0..2 {
        cuda.device.wait()?;
        cuda.meet_on_hosts()?;
        let begin = Instant::now();
        (0..SUMS).for_each(|_| drop(cuda.sum_over_ranks(&x)));
        cuda.device.wait()?;
        micros = begin.elapsed().as_secs_f64() * 1e6 / SUMS as f64;
    }
    cuda.check()?;
    Ok(micros)
}

/// Runs `f` on every rank, all on one device.
fn on_ranks<R: Send>(device: usize, ranks: usize, f: impl Fn(&mut Cuda) -> Result<R> + Sync) -> Result<Vec<R>> {
    let devices = CudaDevices::open(&vec![device; ranks])?;
    let run = |rank: usize, link: threads::Threads| {
        let mut cuda = devices.open(rank, ranks, Box::new(link))?;
        cuda.connect(ranks)?;
        let result = f(&mut cuda)?;
        cuda.meet_on_hosts()?;
        Ok(result)
    };
    std::thread::scope(|scope| {
        let run = &run;
        let links = threads::group(ranks).into_iter().enumerate();
        let started: Vec<_> = links.map(|(rank, link)| scope.spawn(move || run(rank, link))).collect();
        let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<R>>| {
            thread.join().unwrap_or_else(|_| Err(KernelError::Device("a rank panicked".into())))
        };
        started.into_iter().map(ended).collect()
    })
}
