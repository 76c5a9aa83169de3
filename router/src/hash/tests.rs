use super::*;

#[test]
fn it_is_splitmix64() {
    // The first numbers from seed 0, as the authors' reference implementation prints them.
    let drawn: Vec<u64> = (0..3u64).map(|n| mix(n.wrapping_mul(STRIDE))).collect();
    assert_eq!(drawn, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
}
