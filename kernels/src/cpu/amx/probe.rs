//! Whether this process may use tile registers, and whether they multiply as the manual says.

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::{COLUMNS, TILE_ROWS, WIDTH, bytes, dots, halves, pairs, released, shaped};

/// The bits of CPUID's leaf 7, register EDX: AMX-BF16, AMX-TILE, AMX-INT8.
const WANTED: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// Asked once: the system gives leave to the whole process.
pub fn are_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    // SAFETY: the first two say that there are registers and that the process may use them.
    *USABLE.get_or_init(|| are_there() && are_allowed() && unsafe { multiply_right() })
}

fn are_there() -> bool {
    // Every processor with AVX-512 has this leaf.
    let leaf = __cpuid_count(7, 0);
    leaf.edx & WANTED == WANTED
}

/// Linux saves the registers of processes that have asked (Documentation/arch/x86/xstate.rst).
fn are_allowed() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: the call takes two numbers and has no effect but the leave.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Random products of the three kinds, each bit compared. A processor that differs multiplies as if it had none.
///
/// # Safety
/// The process may use the registers.
pub unsafe fn multiply_right() -> bool {
    let mut state = 1u64;
    let mut random = || {
        // Knuth's generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    [1, 7, 16, 17, TILE_ROWS].into_iter().all(|rows| {
        let mut words = |count: usize| -> Vec<u32> { (0..count).map(|_| random()).collect() };
        let (a, w) = (words(2 * rows * 16), words(2 * 16 * COLUMNS));
        // SAFETY: the caller's promise; a and w have two blocks, of which integers use the first.
        unsafe { pairs_are_right(&a, &w, rows) && bytes_are_right(&a, &w, rows) && halves_are_right(&a, &w, rows) }
    })
}

/// Column c of the weights of a block from step `from` on.
fn column(w: &[u32], from: usize, steps: usize, c: usize) -> impl Iterator<Item = u32> {
    w[from * COLUMNS..].iter().skip(c).step_by(COLUMNS).take(steps).copied()
}

fn all(rows: usize, right: impl Fn(usize, usize) -> bool) -> bool {
    (0..rows * COLUMNS).all(|at| right(at / COLUMNS, at % COLUMNS))
}

unsafe fn pairs_are_right(a: &[u32], w: &[u32], rows: usize) -> bool {
    // Ordinary numbers: an exponent near that of 1.
    let ordinary = |word: &u32| word & 0x83ff_83ff | 0x3c00_3c00;
    let (a, w): (Vec<u32>, Vec<u32>) = (a.iter().map(ordinary).collect(), w.iter().map(ordinary).collect());
    let begin: Vec<f32> = (0..TILE_ROWS * COLUMNS).map(|i| i as f32 / 7.0 - 70.0).collect();
    let mut sums = begin.clone();
    // SAFETY: two blocks of activations and weights, and sums of all rows.
    unsafe {
        shaped(rows, WIDTH);
        pairs(a.as_ptr(), rows, w.as_ptr().cast(), 2, sums.as_mut_ptr(), false);
        released();
    }
    all(rows, |r, c| {
        let want = (0..2).fold(begin[r * COLUMNS + c], |sum, block| {
            let a = a[(block * rows + r) * 16..][..16].iter().copied();
            dots::of_pairs(sum, a, column(&w, block * 16, 16, c))
        });
        sums[r * COLUMNS + c].to_bits() == want.to_bits()
    })
}

unsafe fn bytes_are_right(a: &[u32], w: &[u32], rows: usize) -> bool {
    // Parts of 16 and of 32 bytes.
    [4, 8].into_iter().all(|steps: usize| {
        let mut sums = vec![0.0f32; TILE_ROWS * COLUMNS];
        let (x, w_at) = ((a.as_ptr().cast::<u8>(), 32), w.as_ptr().cast());
        // SAFETY: rows of 32 bytes, eight steps of weights, and sums of all rows.
        unsafe {
            shaped(rows, 4 * steps);
            bytes(x, rows, w_at, sums.as_mut_ptr());
            released();
        }
        all(rows, |r, c| {
            let a = a[r * 8..][..steps].iter().copied();
            dots::of_bytes(0, [true, false], a, column(w, 0, steps, c)) == sums[r * COLUMNS + c].to_bits() as i32
        })
    })
}

unsafe fn halves_are_right(a: &[u32], w: &[u32], rows: usize) -> bool {
    let mut sums = vec![0.0f32; 2 * TILE_ROWS * COLUMNS];
    let (high, low) = sums.split_at_mut(TILE_ROWS * COLUMNS);
    // SAFETY: rows of 64 bytes, eight steps of weights, and sums of all rows, twice.
    unsafe {
        shaped(rows, 32);
        halves(a.as_ptr(), rows, w.as_ptr().cast(), [high.as_mut_ptr(), low.as_mut_ptr()]);
        released();
    }
    all(rows, |r, c| {
        [(&*high, 0, true), (&*low, 8, false)].into_iter().all(|(sums, from, signed)| {
            let a = a[r * 16 + from..][..8].iter().copied();
            dots::of_bytes(0, [signed, true], a, column(w, 0, 8, c)) == sums[r * COLUMNS + c].to_bits() as i32
        })
    })
}
