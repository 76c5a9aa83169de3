use super::*;
use crate::rank::GpuKernels;

#[test]
fn weights_stay_on_their_devices() {
    assert_eq!(assign(&[None, None, None], None), [0, 1, 2]);
    assert_eq!(assign(&[Some(1), None, None], None), [1, 0, 2]);
    assert_eq!(assign(&[None, Some(2), None], Some(8)), [0, 2, 1]);
}

#[test]
fn more_ranks_than_devices_are_spread_over_them() {
    assert_eq!(assign(&[Some(0), None], Some(1)), [0, 0]);
    assert_eq!(assign(&[None, Some(1), None, None], Some(2)), [0, 1, 0, 1]);
    assert_eq!(assign(&[], Some(2)), [0; 0]);
}

#[cfg(feature = "cuda")]
#[test]
fn a_process_stands_in_for_the_other_half_of_its_group_on_gpus() {
    assert_eq!(most_on_gpus(2, 1, 2, false), 2);
    assert_eq!(most_on_gpus(8, 4, 8, false), 8);
    // Not enough memory, or others would remain, whom only NCCL reaches.
    assert_eq!(most_on_gpus(1, 1, 2, false), 1);
    assert_eq!(most_on_gpus(3, 1, 3, false), 1);
    assert_eq!(most_on_gpus(3, 1, 3, true), 3);
    assert_eq!(most_on_gpus(2, 1, 3, true), 2);
}

#[test]
fn the_banner_names_the_kernels_of_gpus() {
    assert_eq!(DeviceChoice::Cpu.kernels(), None);
    assert!(DeviceChoice::gpus(vec![0]).kernels().is_some_and(|kernels| kernels.starts_with("plain")));
    let named =
        [(GpuKernels::Plain, true), (GpuKernels::Fast, true), (GpuKernels::Plain, false), (GpuKernels::Fast, false)];
    assert_eq!(
        named.map(|(kernels, built)| kernels.described(built)),
        [
            "plain",
            "fast, on GPUs of compute capability 9.0",
            "plain; this binary was built without the fast ones for Hopper",
            "plain; this binary was built without the fast ones for Hopper",
        ]
    );
}
