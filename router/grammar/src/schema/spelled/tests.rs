use super::*;

#[test]
fn hexadecimal_numbers_of_ranges_and_no_others_are_spelled() {
    for ranges in [
        vec![(0, 0xffff)],
        vec![(0, 0x60), (0x62, 0xd7ff), (0xe000, 0xffff)],
        vec![(0, 0xfff), (0x1000, 0x1000), (0x2fff, 0x3fff)],
        vec![(0xabcd, 0xabcd)],
        vec![(0, 0x0), (0xffff, 0xffff)],
    ] {
        let spelled = regex::Regex::new(&format!("^{}$", hex(&ranges, 4))).expect("an expression");
        for number in 0..=0xffff_u32 {
            let within = ranges.iter().any(|(low, high)| (*low..=*high).contains(&number));
            assert_eq!(spelled.is_match(&format!("{number:04x}")), within, "{number:x} of {ranges:x?}");
        }
        assert!(!spelled.is_match("12345") && !spelled.is_match("123"));
    }
    assert_eq!(hex(&[(0, 0xff)], 2), hex(&[(0, 0x7f), (0x80, 0xff)], 2), "as one range or two");
}
