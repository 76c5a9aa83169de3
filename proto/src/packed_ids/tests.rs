use super::*;

#[test]
fn ids_come_back_and_cut_ids_do_not() {
    let ids = [0, 1, 255, 256, 163_839, u32::MAX];
    let bytes = pack(ids.to_vec());
    assert_eq!(bytes[12..16], [0, 1, 0, 0]);
    assert_eq!(unpack(&bytes).as_deref(), Some(&ids[..]));
    assert_eq!(unpack(&[]), Some(Vec::new()));
    for cut in 1..4 {
        assert_eq!(unpack(&bytes[..bytes.len() - cut]), None);
    }
}
