//! Sums over ranks: their bits, and what they cost by size, beside NCCL's own. Ranks share the device; over NCCL each
//! has one of its own if there are enough.

use std::time::Instant;

use super::super::CudaDevices;
use super::super::backend::Cuda;
use super::super::fast::KernelTier;
use super::super::form::Element;
use super::super::ranks::{JOIN_TIME, NcclLink, WHOLE_SUM, links_on_one_gpu};
use super::group::{Group, on_ranks};
use super::lanes::lanes;
use super::{DeviceCheck, Row, RowSink};
use crate::backend::{Backend, Devices};
use crate::collective::threads;
use crate::error::Result;
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

/// Bytes that one rank sends to itself.
const ECHO: usize = 1 << 20;

/// Bits of sums over ranks, then the time of a sum by size.
pub fn ranks(device: usize, fast: bool) -> Vec<DeviceCheck<'static>> {
    let bits = RANKS.map(|ranks| {
        DeviceCheck::new(format!("sums over {ranks} ranks"), move |rows| {
            rows(sums(&Group::of_peers(device, ranks), format!("sums over {ranks} ranks"))?);
            Ok(())
        })
    });
    let alone = DeviceCheck::new("NCCL with one rank", move |rows| {
        rows(one_rank(device)?);
        Ok(())
    });
    let over_nccl = RANKS.map(|ranks| {
        let name = format!("sums over {ranks} ranks by NCCL");
        DeviceCheck::new(name.clone(), move |rows| {
            rows(match Group::over_nccl(device, ranks)? {
                Ok(group) => sums(&group, name)?,
                Err(why) => Row::passed(name, format!("not possible here: {why}")),
            });
            Ok(())
        })
    });
    let times = RANKS.map(|ranks| {
        DeviceCheck::new(format!("times of sums over {ranks} ranks"), move |rows| {
            times(&Group::of_peers(device, ranks), rows)?;
            // Why it cannot be is in the rows above.
            Group::over_nccl(device, ranks)?.map_or(Ok(()), |group| times(&group, rows))
        })
    });
    bits.into_iter().chain([alone]).chain(over_nccl).chain(lanes(device, fast)).chain(times).collect()
}

/// A communicator of one rank moves bytes, and is aborted.
fn one_rank(device: usize) -> Result<Row> {
    let name = "NCCL with one rank";
    if let Err(error) = links_on_one_gpu() {
        return Ok(Row::passed(name, format!("not possible here: {error}")));
    }
    let devices = CudaDevices::open(&[device])?;
    let cuda = devices.open(0, 1, Box::new(threads::alone()))?;
    let nccl = NcclLink::open(&cuda.ops.device, &threads::alone(), JOIN_TIME)?;
    let sent: Vec<u32> = (0..ECHO as u32 / 4).collect();
    let (from, mut to) = (cuda.ops.upload(&sent)?, cuda.ops.device.allocate(ECHO)?);
    to.fill(&cuda.ops.device, 0)?;
    nccl.echo(&cuda.ops.device, 0, &from, &to)?;
    let came = to.read::<u32>(&cuda.ops.device, sent.len())? == sent;
    nccl.leave();
    // A second abort does nothing.
    nccl.leave();
    let value = format!("version {}: {}", nccl.version(), if came { "all bytes came" } else { "other bytes came" });
    Ok(Row { passed: came, ..Row::passed(name, value) })
}

fn sums(group: &Group, name: String) -> Result<Row> {
    let ranks = group.ranks();
    let found = on_ranks(group, KernelTier::Plain, |cuda| {
        let mut bits = Vec::new();
        for whole in [usize::MAX, 0] {
            cuda.group.whole_sum.set(whole);
            for [rows, cols] in SHAPES {
                let mut x = cuda.to_device(rows, cols, part(cuda.rank(), rows, cols));
                cuda.all_reduce(&mut x)?;
                bits.extend(cuda.to_host(&x).iter().map(|x| x.to_bits()));
            }
        }
        cuda.ops.check()?;
        cuda.group.check()?;
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

/// What a sum costs.
struct SumTime {
    rows: usize,
    how: SumBy,
    micros: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SumBy {
    /// Every rank reads all parts.
    Whole,
    /// Each rank adds up its share of the rows.
    Split,
    /// NCCL's own.
    AllReduce,
}

fn times(group: &Group, rows: &mut RowSink<'_>) -> Result<()> {
    let (ranks, by) = (group.ranks(), if group.is_over_nccl() { "NCCL" } else { "peers" });
    let timed = on_ranks(group, KernelTier::Plain, |cuda| {
        let most = if cuda.ops.device.properties.memory < LITTLE_MEMORY { 1 } else { usize::MAX };
        let mut times = Vec::new();
        for &rows in TIMED_ROWS.iter().filter(|&&rows| rows <= most) {
            for (how, whole) in [(SumBy::Whole, usize::MAX), (SumBy::Split, 0)] {
                cuda.group.whole_sum.set(whole);
                let x = cuda.ops.tensor(rows, TIMED_COLS, Element::Bf16);
                let micros = time(cuda, || {
                    drop(cuda.over_ranks().sum_over_ranks(&x));
                    Ok(())
                })?;
                times.push(SumTime { rows, how, micros });
            }
            if let Some(nccl) = cuda.group.data.as_ref().and_then(|data| data.nccl()) {
                let count = rows * TIMED_COLS;
                let (from, to) = (cuda.ops.device.allocate(2 * count)?, cuda.ops.device.allocate(2 * count)?);
                let micros = time(cuda, || nccl.all_reduce(&cuda.ops.device, &from, &to, count))?;
                times.push(SumTime { rows, how: SumBy::AllReduce, micros });
                // The driver may wait for the device when it frees memory, and ranks may share it.
                cuda.group.meet_on_hosts()?;
            }
        }
        Ok(times)
    })?;
    for SumTime { rows: count, how, micros } in timed.into_iter().next().unwrap_or_default() {
        let bytes = count * TIMED_COLS * Element::Bf16.bytes();
        let chosen = if bytes <= WHOLE_SUM { SumBy::Whole } else { SumBy::Split };
        let what = match how {
            SumBy::Whole => format!("by {by}, whole"),
            SumBy::Split => format!("by {by}, split"),
            SumBy::AllReduce => "NCCL's all-reduce".to_owned(),
        };
        let name = format!("sum over {ranks} ranks, {count} rows of {TIMED_COLS} in bf16, {what}");
        let chosen = if how == chosen { ", as chosen" } else { "" };
        rows(Row::passed(name, format!("{micros:.1} us ({} KiB{chosen})", bytes >> 10)));
    }
    Ok(())
}

/// Microseconds of a sum, over several that follow each other.
fn time(cuda: &Cuda, sum: impl Fn() -> Result<()>) -> Result<f64> {
    let mut micros = 0.0;
    for _ in 0..2 {
        cuda.ops.device.wait()?;
        cuda.group.meet_on_hosts()?;
        let begin = Instant::now();
        (0..SUMS).try_for_each(|_| sum())?;
        cuda.ops.device.wait()?;
        micros = begin.elapsed().as_secs_f64() * 1e6 / SUMS as f64;
    }
    cuda.ops.check()?;
    Ok(micros)
}
