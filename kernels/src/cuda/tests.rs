use super::image::{kernel_image, machine_code};
use super::selftest::ptx_cases;
use super::{CudaError, Version};

fn version(major: u32, minor: u32) -> Version {
    Version { major, minor }
}

#[test]
fn machine_code_for_an_architecture_runs_on_no_other() {
    assert_eq!(machine_code(version(8, 0)), Some("sm_80"));
    assert_eq!(machine_code(version(8, 9)), Some("sm_80"));
    assert_eq!(machine_code(version(9, 0)), Some("sm_90a"));
    assert_eq!(machine_code(version(10, 0)), Some("sm_100a"));
    assert_eq!(machine_code(version(10, 3)), None);
    assert_eq!(machine_code(version(12, 0)), None);
}

/// The compute capabilities, times 10, for which a fat binary has machine code, and those for which it has PTX.
fn forms(image: &[u8]) -> [Vec<u32>; 2] {
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap()) as usize;
    assert_eq!((word(0), long(8) + 16), (0xba55_ed50, image.len()), "the header of a fat binary");
    let (mut found, mut at) = ([Vec::new(), Vec::new()], 16);
    while at < image.len() {
        let (kind, header, capability) = (word(at) & 0xffff, word(at + 4) as usize, word(at + 28));
        // 1: PTX, 2: machine code.
        found[usize::from(kind == 1)].push(capability);
        at += header + long(at + 8);
    }
    found
}

#[test]
fn the_kernels_have_the_machine_code_that_is_promised_and_ptx_for_other_devices() {
    // Without `make cuda` there are none.
    if !kernel_image().is_empty() {
        assert_eq!(forms(kernel_image()), [vec![80, 90, 100], vec![80]]);
    }
}

#[test]
fn versions_compare_by_number() {
    assert!(version(12, 9) < version(13, 0) && version(13, 0) < version(13, 1) && version(9, 0) < version(10, 0));
}

#[test]
fn expected_words_are_read() {
    let cases = ptx_cases("ptx_mma 80 3\n00000001 ffffffff 7fff0000\nptx_wgmma_64 90a 1\n0000000a\n").unwrap();
    assert_eq!(cases.len(), 2);
    assert_eq!((cases[0].kernel, cases[0].least, &*cases[0].words), ("ptx_mma", "80", &[1, u32::MAX, 0x7fff_0000][..]));
    assert_eq!((cases[1].kernel, cases[1].least, &*cases[1].words), ("ptx_wgmma_64", "90a", &[10][..]));
    assert_eq!(ptx_cases("").unwrap(), []);
    // A file that was cut off.
    assert_eq!(ptx_cases("ptx_mma 80 3\n00000001 ffffffff"), None);
    assert_eq!(ptx_cases("ptx_mma 80"), None);
}

#[test]
fn errors_say_what_is_there_and_what_is_expected() {
    let none = CudaError::NoDevice { index: 0, count: 0, visible: Some(String::new()) };
    assert_eq!(none.to_string(), "no CUDA device with CUDA_VISIBLE_DEVICES=: the driver reports none");
    let one = CudaError::NoDevice { index: 1, count: 1, visible: None };
    assert_eq!(one.to_string(), "device 1 does not exist: the driver reports device 0 only");
    let several = CudaError::NoDevice { index: 9, count: 4, visible: Some("0,1,2,3".into()) };
    let text = "device 9 does not exist with CUDA_VISIBLE_DEVICES=0,1,2,3: the driver reports devices 0 to 3";
    assert_eq!(several.to_string(), text);
    let old = CudaError::OldDriver { found: version(12, 4) };
    let text = "the NVIDIA driver supports CUDA 12.4, expected 13.0 or later: install driver 580 or later";
    assert_eq!(old.to_string(), text);
    let old = CudaError::OldDevice { index: 2, name: "Tesla T4".into(), found: version(7, 5) };
    assert_eq!(old.to_string(), "device 2 (Tesla T4) has compute capability 7.5, expected 8.0 or later");
}
