use std::mem::offset_of;

use super::super::grouped::room_for;
use super::super::latent::{FP8_SHARED, SHARED};
use super::super::piece_lists::LatentWork;
use super::args::{FastDivisor, FastMap, GemmBf16Args, GemmFp8Args, Int4Args, Int4RepackArgs, LatentArgs};
use super::int4;
use super::plan::TILES;

/// Registers, spills, shared memory and parameters of the compiled kernels.
const REPORT: &str = include_str!("../../../cuda/fast/report.txt");

/// Of a kernel: its line's words after the name.
fn reported(kernel: &str) -> Vec<&'static str> {
    let mut lines = REPORT.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.find(|words| words[0] == kernel).unwrap_or_else(|| panic!("{kernel} is not in the report"))[1..].to_vec()
}

/// Offset and bytes of each parameter, as the compiled kernel has them.
fn parameters(kernel: &str) -> Vec<(usize, usize)> {
    let number = |text: &str| text.parse().expect("a number");
    let pair = |word: &&str| word.split_once(':').map(|(offset, bytes)| (number(offset), number(bytes)));
    reported(kernel).iter().filter_map(pair).collect()
}

#[test]
fn structs_have_the_layout_of_the_compiled_kernels_parameters() {
    let map = size_of::<FastMap>();
    let fp8 = [
        (offset_of!(GemmFp8Args, w_scales), 8),
        (offset_of!(GemmFp8Args, ends), 8),
        (offset_of!(GemmFp8Args, rows), 4),
        (offset_of!(GemmFp8Args, n), 4),
        (offset_of!(GemmFp8Args, k), 4),
        (offset_of!(GemmFp8Args, x), map),
        (offset_of!(GemmFp8Args, w), map),
        (offset_of!(GemmFp8Args, out), map),
        (offset_of!(GemmFp8Args, x_scales), map),
    ];
    let bf16 = [
        (offset_of!(GemmBf16Args, ends), 8),
        (offset_of!(GemmBf16Args, rows), 4),
        (offset_of!(GemmBf16Args, n), 4),
        (offset_of!(GemmBf16Args, k), 4),
        (offset_of!(GemmBf16Args, x), map),
        (offset_of!(GemmBf16Args, w), map),
        (offset_of!(GemmBf16Args, out), map),
    ];
    for tile in TILES {
        let expected = if tile.kernel.starts_with("fp8") { &fp8[..] } else { &bf16[..] };
        assert_eq!(parameters(tile.kernel), expected, "{}", tile.kernel);
    }
    let mut of_int4 = vec![
        (offset_of!(Int4Args, x), map),
        (offset_of!(Int4Args, w), map),
        (offset_of!(Int4Args, out), 8),
        (offset_of!(Int4Args, unused), 8),
        (offset_of!(Int4Args, unused) + 8, 8),
        (offset_of!(Int4Args, scales), map),
    ];
    of_int4.extend((0..6).map(|i| (offset_of!(Int4Args, none) + 8 * i, 8)));
    of_int4.push((offset_of!(Int4Args, starts), 8));
    of_int4.extend((0..2).map(|i| (offset_of!(Int4Args, buffers) + 8 * i, 8)));
    of_int4.extend([(offset_of!(Int4Args, rows), 4), (offset_of!(Int4Args, top_k), 4)]);
    of_int4.push((offset_of!(Int4Args, long_starts), 1));
    for tile in int4::TILES {
        assert_eq!(parameters(tile.kernel), of_int4, "{}", tile.kernel);
    }
    let repack = [
        (offset_of!(Int4RepackArgs, from), 8),
        (offset_of!(Int4RepackArgs, to), 8),
        (offset_of!(Int4RepackArgs, zeros), 8),
        (offset_of!(Int4RepackArgs, n), 4),
        (offset_of!(Int4RepackArgs, k), 4),
        (offset_of!(Int4RepackArgs, padded_n), 4),
        (offset_of!(Int4RepackArgs, padded_k), 4),
        (offset_of!(Int4RepackArgs, interleaved), 4),
    ];
    assert_eq!(parameters("int4_repack"), repack);
    for kernel in ["latent_attention", "latent_attention_fp8"] {
        assert_eq!(parameters(kernel), [(0, size_of::<LatentArgs>())]);
    }
}

#[test]
fn no_compiled_kernel_spills_and_all_threads_have_their_registers() {
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let of_gemm = TILES.iter().map(|tile| (tile.kernel, tile.launch(7168).threads));
    let of_int4 = int4::TILES.iter().map(|tile| (tile.kernel, int4::INT4_THREADS));
    for (name, threads) in of_gemm.chain(of_int4).chain([("latent_attention", 256), ("latent_attention_fp8", 256)]) {
        let words = reported(name);
        let [registers, spills, stack, most] = [0, 1, 2, 4].map(|i| number(words[i]));
        assert_eq!((spills, stack), (0, 0), "{name}");
        assert!(registers * threads as usize <= 65_536 && most == threads as usize, "{name}: {words:?}");
    }
    assert_eq!(number(reported("latent_attention_shared")[0]), SHARED);
    assert_eq!(number(reported("latent_attention_fp8_shared")[0]), FP8_SHARED);
    for tile in int4::TILES {
        assert_eq!(number(reported(&format!("{}_shared", tile.kernel))[0]), tile.shared, "{}", tile.kernel);
    }
}

#[test]
fn a_divisor_divides_every_number() {
    for by in (1..=130).chain([255, 256, 257, 1000, 65_535, 65_536, 65_537, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff]) {
        let FastDivisor { multiplier, add, shift, .. } = FastDivisor::new(by);
        let divide = |x: u32| match multiplier {
            0 => x >> shift,
            _ => (((u64::from(x) + u64::from(add)) * u64::from(multiplier)) >> 32 >> shift) as u32,
        };
        let near = |x: u64| [x.saturating_sub(1), x, x + 1].map(|x| x.min(0xffff_fffe) as u32);
        for x in (0..64).flat_map(|i| near(u64::from(by) * i)).chain(near(1 << 31)).chain(near(0xffff_fffe)) {
            assert_eq!(divide(x), x / by, "{x} / {by}");
        }
    }
}

#[test]
fn places_have_room_for_any_routes() {
    // All to one expert, one to each, and as uneven as it gets.
    for (routes, held) in [(1, 1), (8, 48), (64, 48), (512, 48), (513, 3), (65_536, 48), (5, 0)] {
        for tile in [16usize, 64, 128] {
            let used =
                |counts: &[usize]| counts.iter().map(|count: &usize| count.next_multiple_of(tile)).sum::<usize>();
            let room = room_for(routes, held, tile);
            let busy = routes.min(held);
            if busy > 0 {
                assert!(used(&[routes]) <= room);
                let mut counts = vec![1; busy];
                counts[0] = routes - (busy - 1);
                assert!(used(&counts) <= room, "{routes} routes, {held} experts, tiles of {tile}: {room}");
                assert!(used(&vec![routes / busy; busy]) <= room);
            }
            assert!(room.is_multiple_of(tile) && room <= routes + held * tile);
        }
    }
}

#[test]
fn work_fits_its_memory_however_long_the_context_is() {
    let work = |rows, heads, positions| LatentWork::new(rows, heads, [512, 64], positions, 1);
    assert_eq!(work(64, 8, 4096), Some(LatentWork { rows: 64, chunks: 8, tile: 8 }));
    assert_eq!(work(8192, 8, 4096), Some(LatentWork { rows: 4096, chunks: 8, tile: 8 }));
    assert_eq!(work(8192, 64, 131_072), Some(LatentWork { rows: 16, chunks: 256, tile: 1 }));
    assert_eq!(work(1, 1, 1), Some(LatentWork { rows: 1, chunks: 1, tile: 64 }));
    assert_eq!(work(1, 64, 1 << 30).map(|work| work.rows), Some(1));
    for heads in [0, 3, 128] {
        assert_eq!(work(64, heads, 4096), None, "{heads} heads");
    }
    assert_eq!(LatentWork::new(64, 8, [32, 8], 4096, 1), None, "other widths");
}
