use super::*;
use crate::tests::{Header, Put, text};

fn small() -> Header {
    Header::new()
        .put("a.u32", Put::U32(7))
        .put("a.i32", Put::I32(-7))
        .put("a.f32", Put::F32(1e-6))
        .put("a.bool", Put::Bool(true))
        .put("a.text", Put::Str("grüße"))
        .put("a.texts", Put::Strs(&["x", "", "yz"]))
        .put("a.numbers", Put::I32s(&[1, -2]))
        .tensor("t", &[4, 3])
        .tensor_at("u", &[32], 64)
}

fn error(bytes: &[u8]) -> String {
    Gguf::read(bytes).expect_err("the header is invalid").to_string()
}

#[test]
fn metadata_and_tensors_are_read_and_offsets_are_those_in_the_file() {
    for version in [2, 3] {
        let bytes = small().version(version).bytes();
        let gguf = Gguf::read(bytes.as_slice()).unwrap();
        let start = (bytes.len() as u64).next_multiple_of(32);
        assert_eq!(gguf.data_start, start);
        assert_eq!(gguf.metadata["a.u32"], MetadataValue::Unsigned(7));
        assert_eq!(gguf.metadata["a.i32"], MetadataValue::Signed(-7));
        assert_eq!(gguf.metadata["a.f32"], MetadataValue::Float(1e-6));
        assert_eq!(gguf.metadata["a.text"], MetadataValue::String("grüße".into()));
        let texts = ["x", "", "yz"].map(String::from).to_vec();
        assert_eq!(gguf.metadata["a.texts"], MetadataValue::Array(MetadataArray::String(texts)));
        assert_eq!(gguf.metadata["a.numbers"], MetadataValue::Array(MetadataArray::Signed(vec![1, -2])));
        assert_eq!(gguf.tensor("t").unwrap().dims, [4, 3]);
        assert_eq!(gguf.tensor("u").unwrap().offset, start + 64);
        assert_eq!(gguf.tensor("missing"), None);
    }
}

#[test]
fn nothing_after_the_header_is_read() {
    let bytes = small().bytes();
    let mut reader = bytes.as_slice().chain(b"data".as_slice());
    Gguf::read(&mut reader).unwrap();
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"data");
}

#[test]
fn the_alignment_of_the_data_is_the_file_s() {
    let header = Header::new().put("general.alignment", Put::U32(4096)).tensor_at("t", &[1], 4096);
    let gguf = header.read();
    assert_eq!((gguf.data_start, gguf.tensors[0].offset), (4096, 8192));
    for bad in [0, 3, 1 << 21] {
        let header = Header::new().put("general.alignment", Put::U32(bad));
        assert!(error(&header.bytes()).contains("general.alignment: must be a power of two up to 1048576"));
    }
    let header = Header::new().tensor_at("t", &[1], 33);
    assert_eq!(error(&header.bytes()), "t: the offset must be a multiple of the alignment, 32, got 33");
}

#[test]
fn other_formats_are_refused_by_name() {
    assert_eq!(error(b"PK\x03\x04rest"), "magic: must be \"GGUF\", got \"PK\\x03\\x04\"");
    assert!(error(&small().version(1).bytes()).contains("version: must be 2 or 3, got 1"));
    let swapped = small().version(3_u32.swap_bytes());
    assert!(error(&swapped.bytes()).contains("version: the file is big-endian"));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = small().bytes();
    for length in 0..bytes.len() {
        let message = error(&bytes[..length]);
        assert!(message.contains("truncated"), "{length}: {message}");
    }
}

#[test]
fn names_must_be_unique() {
    let twice = Header::new().put("k", Put::U32(1)).put("k", Put::U32(1));
    assert_eq!(error(&twice.bytes()), "k: appears twice; a key must appear once");
    let twice = Header::new().tensor("t", &[1]).tensor("t", &[1]);
    assert_eq!(error(&twice.bytes()), "t: the tensor appears twice; a name must appear once");
}

#[test]
fn false_counts_are_refused_before_they_are_allocated() {
    let header = |tensors: u64, keys: u64| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        bytes
    };
    assert!(error(&header(u64::MAX, 0)).contains("the number of tensors: must be at most 1048576"));
    assert!(error(&header(0, u64::MAX)).contains("the number of metadata keys: must be at most 65536"));
    assert!(error(&header(1 << 20, 0)).contains("truncated"));
    let key = |value: &[u8]| Header::new().put("k", Put::Raw(value)).bytes();
    let mut array = [9_u32.to_le_bytes(), 8_u32.to_le_bytes()].concat();
    let counted = |count: u64| [array.as_slice(), &count.to_le_bytes()].concat();
    assert!(error(&key(&counted(u64::MAX))).contains("k: the file's arrays may have 16777216 elements"));
    assert!(error(&key(&counted(1 << 24))).contains("k: the file ends here"));
    let mut string = 8_u32.to_le_bytes().to_vec();
    string.extend(u64::MAX.to_le_bytes());
    assert!(error(&key(&string)).contains("k: the string may have 67108864 bytes"));
    let mut string = 8_u32.to_le_bytes().to_vec();
    string.extend((64_u64 << 20).to_le_bytes());
    assert!(error(&key(&string)).contains("k: the file ends here"));
    array = 9_u32.to_le_bytes().to_vec();
    for _ in 0..9 {
        array.extend(9_u32.to_le_bytes());
        array.extend(1_u64.to_le_bytes());
    }
    assert!(error(&key(&array)).contains("k: arrays may be nested at most 4 deep"));
}

#[test]
fn values_must_be_what_their_type_says() {
    let key = |value: &[u8]| error(&Header::new().put("k", Put::Raw(value)).bytes());
    assert_eq!(key(&[7, 0, 0, 0, 2]), "k: a bool must be 0 or 1, got 2");
    assert_eq!(key(&[13, 0, 0, 0]), "k: the value's type must be from 0 to 12, got 13");
    let mut invalid = vec![8, 0, 0, 0];
    text(&mut invalid, "xy");
    *invalid.last_mut().unwrap() = 0xff;
    assert!(key(&invalid).contains("k: the string must be UTF-8"));
    let dims = |dims: &[u64]| error(&Header::new().tensor("t", dims).bytes());
    assert_eq!(dims(&[1; 5]), "t: must have at most 4 dimensions, got 5");
    assert!(dims(&[u64::MAX, 2]).contains("t: must have from 1 to 2^63 elements"));
    assert!(dims(&[4, 0]).contains("t: must have from 1 to 2^63 elements"));
}

/// Damaged headers are errors or other headers, never panics.
#[test]
fn damaged_headers_do_not_panic() {
    let bytes = Header::dense("llama").bytes();
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for _ in 0..20_000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random() % 3 {
            let at = random() % damaged.len();
            damaged[at] = if random() % 2 == 0 { random() as u8 } else { 0xff };
        }
        if let Ok(gguf) = Gguf::read(damaged.as_slice()) {
            let _ = crate::hf_files(&gguf, &crate::RopeFactors::new());
            let _ = crate::hf_tensors(&gguf);
        }
    }
}
