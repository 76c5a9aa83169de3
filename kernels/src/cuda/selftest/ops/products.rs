//! Products with weights of every form.

use half::bf16;

use super::{BF16, Differences, Pair, Random, Row};
use crate::backend::*;
use crate::error::Result;
use crate::quant::MXFP4_GROUP;
use crate::{quant, reference};

/// A weight that is not f32, and the numbers that it stands for.
pub(super) struct Stored {
    pub weight: HostMatrix,
    pub numbers: Vec<f32>,
}

const BLOCK: [usize; 2] = [128, 128];

impl Random {
    pub(super) fn bf16(&mut self, outs: usize, ins: usize) -> Result<Stored> {
        let numbers = rounded(&self.numbers(outs * ins, (ins as f32).powf(-0.5)));
        let data = HostData::Bf16(numbers.iter().map(|&x| bf16::from_f32(x)).collect());
        Ok(Stored { weight: HostMatrix { rows: outs, cols: ins, data }, numbers })
    }

    /// With scales by block.
    pub(super) fn fp8(&mut self, outs: usize, ins: usize) -> Result<Stored> {
        self.fp8_by(BLOCK, outs, ins)
    }

    pub(super) fn fp8_by_output(&mut self, outs: usize, ins: usize) -> Result<Stored> {
        self.fp8_by([1, ins], outs, ins)
    }

    fn fp8_by(&mut self, block: [usize; 2], outs: usize, ins: usize) -> Result<Stored> {
        // Codes 0x7f and 0xff are NaN. The deviation of a random code's value is about 100.
        let codes: Vec<u8> = (0..outs * ins).map(|_| (self.below(0x7f) | self.below(2) << 7) as u8).collect();
        let deviation = (ins as f32).powf(-0.5) / 100.0;
        let scales: Vec<f32> = (0..outs.div_ceil(block[0]) * ins.div_ceil(block[1]))
            .map(|_| deviation * (1 + self.below(64)) as f32 / 32.0)
            .collect();
        let numbers = quant::fp8_block_dequant(&codes, outs, ins, &scales, block)?;
        Ok(Stored {
            weight: HostMatrix { rows: outs, cols: ins, data: HostData::Fp8 { codes: codes.into(), scales, block } },
            numbers,
        })
    }

    pub(super) fn mxfp4(&mut self, outs: usize, ins: usize) -> Result<Stored> {
        let packed: Vec<u8> = (0..outs * ins.div_ceil(8) * 4).map(|_| self.below(256) as u8).collect();
        // Powers of two near that with which results are of about unit size.
        let middle = 125 - ins.ilog2() as u8 / 2;
        let scales = (0..outs * ins.div_ceil(MXFP4_GROUP)).map(|_| middle + self.below(3) as u8 - 1).collect();
        let weight = HostMatrix { rows: outs, cols: ins, data: HostData::Mxfp4 { packed, scales } };
        let HostData::F32(numbers) = weight.clone().into_form(HostForm::F32)?.data else { unreachable!("f32") };
        Ok(Stored { weight, numbers })
    }

    pub(super) fn int4(&mut self, outs: usize, ins: usize, group: usize, form: ScaleForm) -> Result<Stored> {
        let packed: Vec<u8> = (0..outs * ins.div_ceil(8) * 4).map(|_| self.below(256) as u8).collect();
        let deviation = (ins as f32).powf(-0.5) / 4.6;
        let scales: Vec<f32> =
            (0..outs * ins.div_ceil(group)).map(|_| deviation * (1 + self.below(64)) as f32 / 32.0).collect();
        let scales = match form {
            ScaleForm::F32 => GroupScales::F32(scales),
            ScaleForm::Bf16 => GroupScales::Bf16(scales.into_iter().map(bf16::from_f32).collect()),
        };
        let numbers = quant::int4_group_dequant(&packed, outs, ins, &scales.clone().into_f32(), group)?;
        Ok(Stored {
            weight: HostMatrix { rows: outs, cols: ins, data: HostData::Int4 { packed: packed.into(), scales, group } },
            numbers,
        })
    }
}

pub(super) fn rounded(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
}

impl<B: Backend> Pair<B> {
    pub(super) fn products(&mut self) -> Result<Row> {
        let mut check = self.differences();
        let shapes: &[(usize, usize)] = &[(1, 1), (64, 64), (96, 200), (520, 77), (33, 130)];
        for &(ins, outs) in shapes {
            let weight = self.random.weight(outs, ins);
            let on_device = self.device.linear_weight(weight.clone(), self.precision)?;
            let on_cpu = self.cpu.linear_weight(weight, self.precision)?;
            let (bias, bias_cpu) = self.vectors(outs)?;
            for &rows in self.row_counts() {
                let (x, x_cpu) = self.activation(rows, ins)?;
                let got = self.device.to_host(&self.device.linear(&x, &on_device, None));
                let want = self.cpu.linear(&x_cpu, &on_cpu, None);
                check.compare(format_args!("[{rows}, {ins}] to {outs}"), &got, want.data());
                let got = self.device.to_host(&self.device.linear(&x, &on_device, Some(&bias)));
                let want = self.cpu.linear(&x_cpu, &on_cpu, Some(&bias_cpu));
                check.compare(format_args!("[{rows}, {ins}] to {outs} with bias"), &got, want.data());
            }
        }
        Ok(check.row())
    }

    pub(super) fn fp8_products(&mut self) -> Result<Row> {
        let mut check = Differences::within(BF16);
        for (ins, outs, by_output) in [
            (1, 3, false),
            (128, 64, false),
            (300, 200, false),
            (256, 130, false),
            (1, 1, true),
            (128, 64, true),
            (300, 200, true),
        ] {
            let Stored { weight, numbers } = match by_output {
                true => self.random.fp8_by_output(outs, ins)?,
                false => self.random.fp8(outs, ins)?,
            };
            let on_device = self.device.linear_weight(weight, self.precision)?;
            let (bias, bias_cpu) = self.vectors(outs)?;
            for &rows in self.row_counts() {
                let (x, x_cpu) = self.activation(rows, ins)?;
                let codes = reference::quantize_fp8(x_cpu.data(), ins);
                for (bias, bias_cpu) in [(None, None), (Some(&bias), Some(&bias_cpu[..]))] {
                    let got = self.device.to_host(&self.device.linear(&x, &on_device, bias));
                    let want = reference::linear(&codes, &numbers, ins, bias_cpu);
                    let by = if by_output { "output" } else { "block" };
                    check.compare(format_args!("[{rows}, {ins}] to {outs}, scales by {by}"), &got, &want);
                }
            }
        }
        Ok(check.row())
    }

    pub(super) fn int4_products(&mut self, scales: ScaleForm) -> Result<Row> {
        let mut check = Differences::within(BF16);
        for (ins, outs, group) in [(32, 3, 32), (128, 64, 32), (300, 77, 32), (260, 130, 128)] {
            let Stored { weight, numbers } = self.random.int4(outs, ins, group, scales)?;
            let on_device = self.device.linear_weight(weight, self.precision)?;
            for &rows in self.row_counts() {
                let (x, x_cpu) = self.activation(rows, ins)?;
                let got = self.device.to_host(&self.device.linear(&x, &on_device, None));
                let want = reference::linear(x_cpu.data(), &numbers, ins, None);
                check.compare(format_args!("[{rows}, {ins}] to {outs}, groups of {group}"), &got, &want);
            }
        }
        Ok(check.row())
    }
}
