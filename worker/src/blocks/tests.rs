use super::*;

fn fill(blocks: &mut BlockPool, salt: &Arc<str>, tokens: &[u32]) -> Vec<BlockId> {
    let mut table = Vec::new();
    for chunk in tokens.chunks_exact(blocks.block_size()) {
        let fresh = blocks.allocate(table.len()).expect("room");
        let block = blocks.register(fresh, table.last().copied(), salt, chunk);
        table.push(block.expect("the block before is registered"));
    }
    table
}

fn hashes_of(blocks: &BlockPool) -> Vec<u64> {
    blocks.hashes().map(|(hash, _)| hash).collect()
}

fn release(blocks: &mut BlockPool, table: &[BlockId]) {
    table.iter().rev().for_each(|&block| blocks.release(block));
}

#[test]
fn a_prefix_is_found_only_under_its_salt_and_its_whole_past() {
    let mut blocks = BlockPool::new(8, 2, true, None);
    let (salt, other): (Arc<str>, Arc<str>) = ("".into(), "tenant".into());
    let table = fill(&mut blocks, &salt, &[1, 2, 3, 4]);
    assert_eq!(blocks.lookup(&salt, &[1, 2, 3, 4, 5]).blocks, table);
    assert_eq!(blocks.lookup(&salt, &[1, 2, 9, 9]).blocks, table[..1]);
    assert!(blocks.lookup(&salt, &[3, 4]).blocks.is_empty());
    assert!(blocks.lookup(&other, &[1, 2, 3, 4]).blocks.is_empty());
}

#[test]
fn branches_of_a_prefix_are_found_in_any_order() {
    let mut blocks = BlockPool::new(8, 2, true, None);
    let salt: Arc<str> = "".into();
    let first = fill(&mut blocks, &salt, &[1, 2, 3, 4, 5, 6]);
    let second = fill(&mut blocks, &salt, &[1, 2, 7, 8]);
    assert_eq!(second[0], first[0]);
    for _ in 0..2 {
        assert_eq!(blocks.lookup(&salt, &[1, 2, 3, 4, 5, 6]).blocks, first);
        assert_eq!(blocks.lookup(&salt, &[1, 2, 7, 8, 5, 6]).blocks, second);
    }
    assert_eq!(blocks.lookup(&salt, &[1, 2, 3, 4]).blocks, first[..2]);
    release(&mut blocks, &second);
    release(&mut blocks, &first);
    while blocks.available() > 2 {
        blocks.allocate(0).expect("room");
    }
    // The block that followed the first one holds something else now.
    assert_eq!(fill(&mut blocks, &salt, &[3, 4]), first[1..2]);
    assert_eq!(blocks.lookup(&salt, &[1, 2, 3, 4]).blocks, first[..1]);
    assert_eq!(blocks.lookup(&salt, &[3, 4, 5, 6]).blocks, first[1..2]);
}

#[test]
fn equal_contents_end_up_in_one_block() {
    let mut blocks = BlockPool::new(4, 2, true, None);
    let salt: Arc<str> = "".into();
    let first = fill(&mut blocks, &salt, &[1, 2]);
    assert_eq!(fill(&mut blocks, &salt, &[1, 2]), first);
    assert_eq!(blocks.used(), 1);
    assert!(!blocks.reclaim(first[0]));
    blocks.release(first[0]);
    assert!(blocks.reclaim(first[0]));
    assert!(blocks.writable(first[0]));
}

#[test]
fn the_least_recently_used_block_is_evicted_first_and_children_before_parents() {
    let mut blocks = BlockPool::new(4, 2, true, None);
    let salt: Arc<str> = "".into();
    let old = fill(&mut blocks, &salt, &[1, 2, 3, 4]);
    release(&mut blocks, &old);
    let new = fill(&mut blocks, &salt, &[5, 6, 7, 8]);
    release(&mut blocks, &new);
    assert_eq!(blocks.available(), 4);
    assert_eq!(blocks.allocate(0), Some(old[1]));
    assert_eq!(blocks.lookup(&salt, &[1, 2, 3, 4]).blocks, old[..1]);
    blocks.retain(new[0]);
    assert_eq!(blocks.allocate(0), Some(old[0]));
    assert_eq!(blocks.allocate(0), Some(new[1]));
    assert_eq!(blocks.allocate(0), None);
}

#[test]
fn registrations_and_evictions_are_recorded_under_the_hash_that_routers_compute() {
    let mut blocks = BlockPool::new(3, 2, true, None);
    let salt: Arc<str> = "tenant".into();
    let tokens = [1, 2, 3, 4, 5, 6];
    let table = fill(&mut blocks, &salt, &tokens[..2]);
    assert!(blocks.take_changes().is_empty(), "nobody listened");
    blocks.listen(true);
    let hashes: Vec<u64> = block_hash::chain("tenant", &tokens, 2).collect();
    assert_eq!(hashes_of(&blocks), hashes[..1]);
    release(&mut blocks, &table);
    let table = fill(&mut blocks, &salt, &tokens);
    release(&mut blocks, &table);
    let stored = |hash| BlockChange { hash, stored: true, tier: BlockTier::Cache };
    assert_eq!(blocks.take_changes(), [stored(hashes[0]), stored(hashes[1]), stored(hashes[2])][1..]);
    // The last block is evicted, the first is reclaimed.
    let evicted = blocks.allocate(0).expect("room");
    blocks.retain(table[0]);
    assert!(blocks.reclaim(table[0]));
    let removed = |hash| BlockChange { hash, stored: false, tier: BlockTier::Cache };
    assert_eq!(blocks.take_changes(), [removed(hashes[2]), removed(hashes[0])]);
    assert_eq!((evicted, hashes_of(&blocks)), (table[2], vec![hashes[1]]));
    blocks.listen(false);
    blocks.release(evicted);
    fill(&mut blocks, &salt, &tokens[..2]);
    assert!(!blocks.listening() && blocks.take_changes().is_empty());
}
