//! The block forms of llama.cpp (ggml-quants.h): 32 or 256 numbers of a row as integer codes, with what they are
//! multiplied by. It does not know how they are computed with.

use half::f16;

/// Numbers whose codes share factors, in every form.
pub const CODE_GROUP: usize = 32;

/// How a block stores its numbers. The names are those of the GGUF format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockForm {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

/// What the codes of a group are multiplied by, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factors {
    /// A scale: (code - zero) * scale.
    Scale,
    /// A scale and a minimum: code * scale + minimum.
    ScaleMin,
    /// A scale and a zero, which is a code: (code - zero) * scale.
    ScaleZero,
    /// Codes of a scale and a minimum, whose factors eight groups share: code * (d * scale) - dmin * minimum.
    Shared,
    /// Codes of two scales, one for each half of the group, whose factor eight groups share:
    /// (code - zero) * (d * scale).
    SharedHalves,
}

/// 32 codes and their factors as stored.
#[derive(Debug, Clone, Copy)]
pub struct CodeGroup {
    /// Of eight bits: as i8.
    pub codes: [u8; CODE_GROUP],
    /// `Scale` and `ScaleMin`: bits of f16. `Shared`: codes of six bits. `SharedHalves`: codes as i8.
    pub own: [u16; 2],
    /// d and dmin, bits of f16.
    pub shared: [u16; 2],
}

impl BlockForm {
    pub fn name(self) -> &'static str {
        match self {
            BlockForm::Q4_0 => "Q4_0",
            BlockForm::Q4_1 => "Q4_1",
            BlockForm::Q5_0 => "Q5_0",
            BlockForm::Q5_1 => "Q5_1",
            BlockForm::Q8_0 => "Q8_0",
            BlockForm::Q4K => "Q4_K",
            BlockForm::Q5K => "Q5_K",
            BlockForm::Q6K => "Q6_K",
        }
    }

    /// Numbers of a block.
    pub fn numbers(self) -> usize {
        match self.factors() {
            Factors::Scale | Factors::ScaleMin | Factors::ScaleZero => CODE_GROUP,
            Factors::Shared | Factors::SharedHalves => 8 * CODE_GROUP,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            BlockForm::Q4_0 => 18,
            BlockForm::Q4_1 => 20,
            BlockForm::Q5_0 => 22,
            BlockForm::Q5_1 => 24,
            BlockForm::Q8_0 => 34,
            BlockForm::Q4K => 144,
            BlockForm::Q5K => 176,
            BlockForm::Q6K => 210,
        }
    }

    /// Bits of a code.
    pub fn bits(self) -> u32 {
        match self {
            BlockForm::Q4_0 | BlockForm::Q4_1 | BlockForm::Q4K => 4,
            BlockForm::Q5_0 | BlockForm::Q5_1 | BlockForm::Q5K => 5,
            BlockForm::Q6K => 6,
            BlockForm::Q8_0 => 8,
        }
    }

    pub fn factors(self) -> Factors {
        match self {
            BlockForm::Q4_0 | BlockForm::Q5_0 | BlockForm::Q8_0 => Factors::Scale,
            BlockForm::Q4_1 | BlockForm::Q5_1 => Factors::ScaleMin,
            BlockForm::Q4K | BlockForm::Q5K => Factors::Shared,
            BlockForm::Q6K => Factors::SharedHalves,
        }
    }

    /// The code of zero.
    pub fn zero(self) -> u8 {
        match self {
            BlockForm::Q4_0 => 8,
            BlockForm::Q5_0 => 16,
            BlockForm::Q6K => 32,
            _ => 0,
        }
    }

    /// Bytes of a row of `cols` numbers; None if they do not fill whole blocks.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        cols.is_multiple_of(self.numbers()).then(|| cols / self.numbers() * self.bytes())
    }

    /// Group g of a block, which must have `bytes()` bytes.
    #[inline]
    pub fn group(self, block: &[u8], g: usize) -> CodeGroup {
        let word = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        let mut codes = [0; CODE_GROUP];
        let halves = |codes: &mut [u8; CODE_GROUP], from: &[u8]| {
            for j in 0..CODE_GROUP / 2 {
                (codes[j], codes[j + 16]) = (from[j] & 0xf, from[j] >> 4);
            }
        };
        // Bit j of a little-endian word is the fifth bit of code j.
        let fifths = |codes: &mut [u8; CODE_GROUP], from: &[u8]| {
            let bits = u32::from_le_bytes([from[0], from[1], from[2], from[3]]);
            codes.iter_mut().enumerate().for_each(|(j, code)| *code |= ((bits >> j & 1) << 4) as u8);
        };
        match self {
            BlockForm::Q4_0 => {
                halves(&mut codes, &block[2..18]);
                CodeGroup { codes, own: [word(0), 0], shared: [0; 2] }
            }
            BlockForm::Q4_1 => {
                halves(&mut codes, &block[4..20]);
                CodeGroup { codes, own: [word(0), word(2)], shared: [0; 2] }
            }
            BlockForm::Q5_0 => {
                halves(&mut codes, &block[6..22]);
                fifths(&mut codes, &block[2..6]);
                CodeGroup { codes, own: [word(0), 0], shared: [0; 2] }
            }
            BlockForm::Q5_1 => {
                halves(&mut codes, &block[8..24]);
                fifths(&mut codes, &block[4..8]);
                CodeGroup { codes, own: [word(0), word(2)], shared: [0; 2] }
            }
            BlockForm::Q8_0 => {
                codes.copy_from_slice(&block[2..34]);
                CodeGroup { codes, own: [word(0), 0], shared: [0; 2] }
            }
            BlockForm::Q4K | BlockForm::Q5K => {
                let six = self == BlockForm::Q5K;
                let low = &block[if six { 48 } else { 16 } + g / 2 * CODE_GROUP..][..CODE_GROUP];
                for (code, byte) in codes.iter_mut().zip(low) {
                    *code = byte >> (4 * (g % 2)) & 0xf;
                }
                if six {
                    let high = &block[16..48];
                    codes.iter_mut().zip(high).for_each(|(code, byte)| *code |= (byte >> g & 1) << 4);
                }
                let packed = &block[4..16];
                let own = match g {
                    0..4 => [packed[g] & 63, packed[g + 4] & 63],
                    _ => [packed[g + 4] & 0xf | packed[g - 4] >> 6 << 4, packed[g + 4] >> 4 | packed[g] >> 6 << 4],
                };
                CodeGroup { codes, own: own.map(u16::from), shared: [word(0), word(2)] }
            }
            BlockForm::Q6K => {
                let (half, part) = (g / 4, g % 4);
                let low = &block[64 * half + CODE_GROUP * (part % 2)..][..CODE_GROUP];
                let high = &block[128 + CODE_GROUP * half..][..CODE_GROUP];
                for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                    *code = low >> (4 * (part / 2)) & 0xf | (high >> (2 * part) & 3) << 4;
                }
                let scales = &block[192 + 8 * half + 2 * part..][..2];
                CodeGroup { codes, own: [scales[0], scales[1]].map(u16::from), shared: [word(208), 0] }
            }
        }
    }

    /// The numbers of whole blocks, with llama.cpp's order of operations.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::with_capacity(bytes.len() / self.bytes() * self.numbers());
        for block in bytes.chunks_exact(self.bytes()) {
            for g in 0..self.numbers() / CODE_GROUP {
                let group = self.group(block, g);
                let factors = group.factors(self.factors());
                let number = |(i, &code): (usize, &u8)| {
                    let code = if self.bits() == 8 { f32::from(code as i8) } else { f32::from(code) };
                    self.factors().number(i, code, f32::from(self.zero()), factors)
                };
                out.extend(group.codes.iter().enumerate().map(number));
            }
        }
        out
    }
}

impl Factors {
    /// The number of code i of a group. `zero`: the code of zero, where the form has one.
    #[inline]
    pub fn number(self, i: usize, code: f32, zero: f32, [first, second]: [f32; 2]) -> f32 {
        match self {
            Factors::Scale => (code - zero) * first,
            Factors::ScaleZero => (code - second) * first,
            Factors::ScaleMin | Factors::Shared => code * first + second,
            Factors::SharedHalves => (code - zero) * if i < CODE_GROUP / 2 { first } else { second },
        }
    }
}

impl CodeGroup {
    /// The scale and what is added (of `ScaleZero`: the zero), or the two scales.
    #[inline]
    pub fn factors(&self, kind: Factors) -> [f32; 2] {
        let ([a, b], [d, dmin]) = (self.own, self.shared.map(|bits| f16::from_bits(bits).to_f32()));
        match kind {
            Factors::Scale | Factors::ScaleMin | Factors::ScaleZero => {
                [f16::from_bits(a).to_f32(), f16::from_bits(b).to_f32()]
            }
            Factors::Shared => [d * f32::from(a), -(dmin * f32::from(b))],
            Factors::SharedHalves => [d * f32::from(a as u8 as i8), d * f32::from(b as u8 as i8)],
        }
    }
}

#[cfg(test)]
mod tests;
