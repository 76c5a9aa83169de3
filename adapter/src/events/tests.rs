use super::*;

/// A batch with these events.
fn batch(events: Vec<Value>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let batch = Value::Array(vec![Value::F64(1.5), Value::Array(events), Value::Nil]);
    rmpv::encode::write_value(&mut bytes, &batch).expect("encodes");
    bytes
}

fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect())
}

fn hashes(numbers: &[u64]) -> Value {
    Value::Array(numbers.iter().map(|number| Value::Binary(number.to_be_bytes().to_vec())).collect())
}

fn ids(range: std::ops::Range<u32>) -> Value {
    Value::Array(range.map(Value::from).collect())
}

fn stored(blocks: &[u64], parent: Option<u64>, tokens: std::ops::Range<u32>, more: &[(&str, Value)]) -> Value {
    let parent = parent.map_or(Value::Nil, |parent| Value::Binary(parent.to_be_bytes().to_vec()));
    let mut fields = vec![
        ("type", "BlockStored".into()),
        ("block_hashes", hashes(blocks)),
        ("parent_block_hash", parent),
        ("token_ids", ids(tokens)),
        ("block_size", 4.into()),
        ("lora_id", Value::Nil),
    ];
    fields.extend_from_slice(more);
    map(&fields)
}

fn chain(salt: &str, tokens: std::ops::Range<u32>) -> Vec<u64> {
    block_hash::chain(salt, &tokens.collect::<Vec<_>>(), 4).collect()
}

#[test]
fn events_become_the_hashes_of_the_same_tokens() {
    let mut reader = EventReader::of_blocks(4, 4);
    let want = chain("", 0..12);
    let changes = reader.read(0, &batch(vec![stored(&[1, 2], None, 0..8, &[])])).expect("read");
    assert_eq!(changes, [CacheChange::Stored(want[0]), CacheChange::Stored(want[1])]);
    let changes = reader.read(1, &batch(vec![stored(&[3], Some(2), 8..12, &[])])).expect("read");
    assert_eq!(changes, [CacheChange::Stored(want[2])]);
    let removed = map(&[("type", "BlockRemoved".into()), ("block_hashes", hashes(&[3, 9])), ("medium", "GPU".into())]);
    assert_eq!(reader.read(2, &batch(vec![removed])).expect("read"), [CacheChange::Removed(want[2])]);
    let cleared = map(&[("type", "AllBlocksCleared".into())]);
    assert_eq!(reader.read(3, &batch(vec![cleared])).expect("read"), [CacheChange::Cleared]);
    // The parent is not known any more.
    assert_eq!(reader.read(4, &batch(vec![stored(&[3], Some(2), 8..12, &[])])).expect("read"), []);
}

#[test]
fn sglang_writes_events_as_arrays_with_numbers() {
    let mut reader = EventReader::of_blocks(4, 4);
    let stored = Value::Array(vec![
        "BlockStored".into(),
        Value::Array(vec![(-7).into(), u64::MAX.into()]),
        Value::Nil,
        ids(0..8),
        4.into(),
        Value::Nil,
    ]);
    let removed = Value::Array(vec!["BlockRemoved".into(), Value::Array(vec![(-7).into()])]);
    let want = chain("", 0..8);
    assert_eq!(
        reader.read(0, &batch(vec![stored, removed])).expect("read"),
        [CacheChange::Stored(want[0]), CacheChange::Stored(want[1]), CacheChange::Removed(want[0])]
    );
}

#[test]
fn pages_of_one_token_become_blocks() {
    let mut reader = EventReader::of_blocks(1, 4);
    let page = |page: u64, token: u32, salt: Value| {
        let parent = page.checked_sub(1).map_or(Value::Nil, |parent| parent.into());
        map(&[
            ("type", "BlockStored".into()),
            ("block_hashes", Value::Array(vec![page.into()])),
            ("parent_block_hash", parent),
            ("token_ids", ids(token..token + 1)),
            ("block_size", 1.into()),
            ("cache_salt", salt),
        ])
    };
    let pages = |range: std::ops::Range<u64>| {
        batch(range.map(|at| page(at, at as u32, if at == 0 { "salt".into() } else { Value::Nil })).collect())
    };
    let want = chain("salt", 0..12);
    assert_eq!(reader.read(0, &pages(0..6)), Ok(vec![CacheChange::Stored(want[0])]));
    assert_eq!(reader.read(1, &pages(6..9)), Ok(vec![CacheChange::Stored(want[1])]));
    // Evicted from the end; the block is gone with its last page.
    let removed = |range: std::ops::Range<u64>| {
        let pages = Value::Array(range.map(Value::from).collect());
        batch(vec![map(&[("type", "BlockRemoved".into()), ("block_hashes", pages)])])
    };
    assert_eq!(reader.read(2, &removed(8..9)), Ok(vec![]));
    assert_eq!(reader.read(3, &removed(5..8)), Ok(vec![CacheChange::Removed(want[1])]));
    assert_eq!(reader.read(4, &pages(5..8)), Ok(vec![CacheChange::Stored(want[1])]));
}

#[test]
fn salts_are_part_of_the_hash_and_other_keys_are_left_out() {
    let mut reader = EventReader::of_blocks(4, 4);
    let keys = |keys: Vec<Value>| ("extra_keys", Value::Array(vec![Value::Array(keys)]));
    let changes = reader.read(0, &batch(vec![stored(&[1], None, 0..4, &[keys(vec!["salt".into()])])])).expect("read");
    assert_eq!(changes, [CacheChange::Stored(chain("salt", 0..4)[0])]);
    let image = Value::Array(vec!["image".into(), 3.into()]);
    let others = [keys(vec![image]), keys(vec!["a".into(), "b".into()]), ("lora_name", "adapter".into())];
    for (number, more) in (1..).zip(others) {
        assert_eq!(reader.read(number, &batch(vec![stored(&[2], None, 0..4, &[more])])), Ok(vec![]));
    }
}

#[test]
fn an_engine_that_begins_again_has_an_empty_cache() {
    let mut reader = EventReader::of_blocks(4, 4);
    reader.read(7, &batch(vec![stored(&[1], None, 0..4, &[])])).expect("read");
    let changes = reader.read(0, &batch(vec![stored(&[5], None, 4..8, &[])])).expect("read");
    assert_eq!(changes, [CacheChange::Cleared, CacheChange::Stored(chain("", 4..8)[0])]);
}

#[test]
fn what_is_not_understood_is_an_error() {
    let other_size = stored(&[1], None, 0..4, &[]);
    let mut reader = EventReader::of_blocks(16, 16);
    assert_eq!(reader.read(0, &batch(vec![other_size])), Err("block_size must be 16, got Some(4)".into()));
    let mut deep = vec![0x91; 100_000];
    deep.push(0xc0);
    for wrong in [&b""[..], b"\xc1", b"\x90", &deep, &batch(vec![Value::Nil]), &batch(vec![map(&[("type", 3.into())])])]
    {
        EventReader::of_blocks(4, 4).read(0, wrong).expect_err("not a batch");
    }
}
