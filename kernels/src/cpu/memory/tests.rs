use super::*;

#[test]
fn blocks_are_zeroed_aligned_and_disjoint() {
    let arena = Arena::default();
    let blocks: Vec<Block> =
        [1usize, 100, 4096, 20 << 20, 65, 17 << 20].iter().map(|&n| arena.take(n).unwrap()).collect();
    for (i, block) in blocks.iter().enumerate() {
        assert_eq!(block.ptr() as usize % ALIGN, 0);
        // SAFETY: the block owns these bytes and nobody else writes them.
        let bytes = unsafe { std::slice::from_raw_parts_mut(block.ptr(), block.len()) };
        assert!(bytes.iter().all(|&b| b == 0));
        bytes.fill(i as u8 + 1);
    }
    for (i, block) in blocks.iter().enumerate() {
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(block.ptr(), block.len()) };
        assert!(bytes.iter().all(|&b| b == i as u8 + 1));
    }
}

#[test]
fn an_absurd_size_is_an_error() {
    assert!(matches!(Arena::default().take(usize::MAX / 2), Err(KernelError::OutOfMemory(_))));
}
