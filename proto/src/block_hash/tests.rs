use super::*;

/// Computed with the reference implementation (Python's xxhash).
#[test]
fn the_hashes_of_version_1_match_the_reference_implementation() {
    assert_eq!(VERSION, 1);
    assert_eq!(root(""), 0x2D06_8005_38D3_94C2);
    assert_eq!(chain("", &[1, 2, 3, 4, 5], 2).collect::<Vec<_>>(), [0xCECE_D13F_A2EC_D5F5, 0x9B62_CD63_5F4E_1898]);
    let long: Vec<u32> = (0..300).collect();
    assert_eq!(chain("tenant", &long, 150).collect::<Vec<_>>(), [0xB347_ABB9_2B94_F662, 0x7C30_6E29_E297_3CE2]);
}

#[test]
fn a_hash_depends_on_salt_order_and_the_whole_past() {
    let of = |salt: &str, tokens: &[u32]| chain(salt, tokens, 2).last();
    let tokens = [1, 2, 3, 4];
    assert_ne!(of("", &tokens), of("tenant", &tokens));
    assert_ne!(of("", &tokens), of("", &[2, 1, 3, 4]));
    assert_ne!(of("", &tokens), of("", &tokens[2..]));
    assert_ne!(chain("", &tokens, 4).last(), of("", &tokens));
    assert_eq!(of("", &tokens), of("", &[1, 2, 3, 4, 9]), "what does not fill a block is left out");
    assert_eq!(of("", &[1]), None);
}
