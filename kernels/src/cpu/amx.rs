//! Instructions of AMX: eight registers of 16 rows by 64 bytes, and products of two that are added to a third. Sums of
//! a tile of activations with a panel of 32 outputs are in registers 0 to 3 (those of the first 16 rows by halves of
//! the panel, then those of further rows), activations in 4 and 5, weights in 6 and 7.
//!
//! The compiler knows no such register, so what a block of assembly leaves in them is there for the next one, until
//! `released`.

mod dots;
#[cfg(all(test, target_os = "linux"))]
mod emulated;
mod probe;

use std::arch::asm;

#[cfg(all(test, target_os = "linux"))]
pub use emulated::install as emulate;
pub use probe::are_usable;
#[cfg(test)]
pub use probe::multiply_right;

/// Outputs of a panel.
pub const COLUMNS: usize = 32;
/// Rows of a register.
const HEIGHT: usize = 16;
/// Rows of a tile of activations.
pub const TILE_ROWS: usize = 2 * HEIGHT;
/// Bytes of a row of a register.
pub const WIDTH: usize = 64;
/// Bytes from one row of sums, or of weights, to the next.
const PANEL_STRIDE: usize = 4 * COLUMNS;

/// The operand of LDTILECFG (Intel's manual, volume 1, 18.3.1).
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Shapes the registers for tiles of so many rows, of which products take so many bytes at a time. Needs AMX.
pub unsafe fn shaped(rows: usize, bytes: usize) {
    let (first, others) = (rows.min(HEIGHT), rows.saturating_sub(HEIGHT));
    let mut shape = Shape { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    let mut set = |register: usize, rows: usize, bytes: usize| {
        if rows > 0 {
            (shape.rows[register], shape.row_bytes[register]) = (rows as u8, bytes as u16);
        }
    };
    for half in 0..2 {
        set(half, first, WIDTH);
        set(2 + half, others, WIDTH);
        set(6 + half, bytes / 4, WIDTH);
    }
    set(4, first, bytes);
    set(5, others, bytes);
    // SAFETY: the operand is a valid shape of 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly, preserves_flags)) };
}

/// Leaves the registers empty, so that they are not saved at a change of threads. Needs AMX.
pub unsafe fn released() {
    // SAFETY: the caller has AMX.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

/// Adds the products of `steps` blocks of 32 inputs to `sums` [rows][32], or begins with zeros.
///
/// # Safety
/// The registers are `shaped(rows, 64)`; a has `steps` blocks of rows * 16 words, w of 16 * 32. TWO: rows > 16.
unsafe fn pairs_of<const TWO: bool>(
    (a, rows): (*const u32, usize),
    w: *const f32,
    steps: usize,
    sums: *mut f32,
    first: bool,
) {
    // SAFETY: as the caller promises; a register reads and writes as many rows as it is shaped for.
    unsafe {
        if TWO {
            asm!(
                "test {first}, {first}",
                "jz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 4f",
                "3:",
                "tileloadd tmm0, [{sums} + {panel}*1]",
                "tileloadd tmm1, [{sums} + {panel}*1 + 64]",
                "tileloadd tmm2, [{sums} + {panel}*1 + 2048]",
                "tileloadd tmm3, [{sums} + {panel}*1 + 2112]",
                "4:",
                "2:",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm6, [{w} + {panel}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {panel}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, {block}",
                "add {w}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {panel}*1], tmm0",
                "tilestored [{sums} + {panel}*1 + 64], tmm1",
                "tilestored [{sums} + {panel}*1 + 2048], tmm2",
                "tilestored [{sums} + {panel}*1 + 2112], tmm3",
                first = in(reg) u64::from(first), sums = in(reg) sums, panel = in(reg) PANEL_STRIDE,
                row = in(reg) WIDTH, block = in(reg) rows * WIDTH,
                a = inout(reg) a => _, w = inout(reg) w => _, steps = inout(reg) steps => _,
                options(nostack)
            );
        } else {
            asm!(
                "test {first}, {first}",
                "jz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "jmp 4f",
                "3:",
                "tileloadd tmm0, [{sums} + {panel}*1]",
                "tileloadd tmm1, [{sums} + {panel}*1 + 64]",
                "4:",
                "2:",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm6, [{w} + {panel}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {panel}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {a}, {block}",
                "add {w}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {panel}*1], tmm0",
                "tilestored [{sums} + {panel}*1 + 64], tmm1",
                first = in(reg) u64::from(first), sums = in(reg) sums, panel = in(reg) PANEL_STRIDE,
                row = in(reg) WIDTH, block = in(reg) rows * WIDTH,
                a = inout(reg) a => _, w = inout(reg) w => _, steps = inout(reg) steps => _,
                options(nostack)
            );
        }
    }
}

/// Sums of products of signed bytes of activations, `stride` bytes from row to row, with unsigned weights.
///
/// # Safety
/// The registers are `shaped(rows, bytes)`; a has that many bytes in each row, w bytes / 4 * 32 words. TWO: rows > 16.
unsafe fn bytes_of<const TWO: bool>((a, stride): (*const u8, usize), w: *const f32, sums: *mut f32) {
    // SAFETY: as the caller promises; a register reads and writes as many rows as it is shaped for.
    unsafe {
        if TWO {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm6, [{w} + {panel}*1]",
                "tdpbsud tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {panel}*1 + 64]",
                "tdpbsud tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{other} + {row}*1]",
                "tdpbsud tmm2, tmm5, tmm6",
                "tdpbsud tmm3, tmm5, tmm7",
                "tilestored [{sums} + {panel}*1], tmm0",
                "tilestored [{sums} + {panel}*1 + 64], tmm1",
                "tilestored [{sums} + {panel}*1 + 2048], tmm2",
                "tilestored [{sums} + {panel}*1 + 2112], tmm3",
                a = in(reg) a, other = in(reg) a.wrapping_add(HEIGHT * stride), row = in(reg) stride, w = in(reg) w,
                sums = in(reg) sums, panel = in(reg) PANEL_STRIDE,
                options(nostack, preserves_flags)
            );
        } else {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm6, [{w} + {panel}*1]",
                "tdpbsud tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {panel}*1 + 64]",
                "tdpbsud tmm1, tmm4, tmm7",
                "tilestored [{sums} + {panel}*1], tmm0",
                "tilestored [{sums} + {panel}*1 + 64], tmm1",
                a = in(reg) a, row = in(reg) stride, w = in(reg) w, sums = in(reg) sums, panel = in(reg) PANEL_STRIDE,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Sums of products of 16-bit activations with signed bytes of weights: of their high bytes, and of their low ones.
/// Those of a group of inputs are [row][high, low][32].
///
/// # Safety
/// The registers are `shaped(rows, 32)`; a has 64 bytes for each row, w 8 * 32 words. TWO: rows > 16.
unsafe fn halves_of<const TWO: bool>(a: *const u32, w: *const f32, [high, low]: [*mut f32; 2]) {
    for half in [0, 16] {
        let (w, high, low) = (w.wrapping_add(half), high.wrapping_add(half), low.wrapping_add(half));
        // SAFETY: as the caller promises; a register reads and writes as many rows as it is shaped for.
        unsafe {
            if TWO {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm6, [{w} + {panel}*1]",
                    "tileloadd tmm4, [{a} + {row}*1]",
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                    "tdpbssd tmm2, tmm5, tmm6",
                    "tileloadd tmm4, [{a} + {row}*1 + 32]",
                    "tdpbusd tmm1, tmm4, tmm6",
                    "tileloadd tmm5, [{a} + {row}*1 + 1056]",
                    "tdpbusd tmm3, tmm5, tmm6",
                    "tilestored [{high} + {panel}*1], tmm0",
                    "tilestored [{low} + {panel}*1], tmm1",
                    "tilestored [{high} + {panel}*1 + 2048], tmm2",
                    "tilestored [{low} + {panel}*1 + 2048], tmm3",
                    a = in(reg) a, row = in(reg) WIDTH, w = in(reg) w, high = in(reg) high, low = in(reg) low,
                    panel = in(reg) PANEL_STRIDE,
                    options(nostack, preserves_flags)
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tileloadd tmm6, [{w} + {panel}*1]",
                    "tileloadd tmm4, [{a} + {row}*1]",
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tileloadd tmm4, [{a} + {row}*1 + 32]",
                    "tdpbusd tmm1, tmm4, tmm6",
                    "tilestored [{high} + {panel}*1], tmm0",
                    "tilestored [{low} + {panel}*1], tmm1",
                    a = in(reg) a, row = in(reg) WIDTH, w = in(reg) w, high = in(reg) high, low = in(reg) low,
                    panel = in(reg) PANEL_STRIDE,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

/// As `pairs_of`, for any number of rows of a tile.
///
/// # Safety
/// As there.
pub unsafe fn pairs(a: *const u32, rows: usize, w: *const f32, steps: usize, sums: *mut f32, first: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows > HEIGHT {
            true => pairs_of::<true>((a, rows), w, steps, sums, first),
            false => pairs_of::<false>((a, rows), w, steps, sums, first),
        }
    }
}

/// As `bytes_of`, likewise.
///
/// # Safety
/// As there.
pub unsafe fn bytes((a, stride): (*const u8, usize), rows: usize, w: *const f32, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows > HEIGHT {
            true => bytes_of::<true>((a, stride), w, sums),
            false => bytes_of::<false>((a, stride), w, sums),
        }
    }
}

/// As `halves_of`, likewise.
///
/// # Safety
/// As there.
pub unsafe fn halves(a: *const u32, rows: usize, w: *const f32, sums: [*mut f32; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows > HEIGHT {
            true => halves_of::<true>(a, w, sums),
            false => halves_of::<false>(a, w, sums),
        }
    }
}
