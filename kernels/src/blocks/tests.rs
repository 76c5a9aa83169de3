use super::*;

const FORMS: [BlockForm; 8] = [
    BlockForm::Q4_0,
    BlockForm::Q4_1,
    BlockForm::Q5_0,
    BlockForm::Q5_1,
    BlockForm::Q8_0,
    BlockForm::Q4K,
    BlockForm::Q5K,
    BlockForm::Q6K,
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

/// Written by tests/fixtures/make_blocks.py.
#[test]
fn numbers_equal_those_that_gguf_reads() {
    let mut seen = Vec::new();
    for line in include_str!("blocks.txt").lines() {
        let [name, blocks, numbers] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("three fields") };
        let form = FORMS.into_iter().find(|form| form.name() == name).expect(name);
        let want: Vec<f32> = bytes(numbers).as_chunks().0.iter().map(|bits| f32::from_be_bytes(*bits)).collect();
        assert_eq!(bytes(blocks).len(), 2 * form.bytes());
        assert_eq!(form.decode(&bytes(blocks)), want, "{name}");
        seen.push(form);
    }
    assert_eq!(seen, FORMS);
}
