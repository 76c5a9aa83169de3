use super::*;

fn shape(heads: usize, kv_heads: usize) -> ModelShape {
    ModelShape { attention_heads: heads, kv_heads, experts: vec![0, 10] }
}

#[test]
fn every_head_and_expert_has_one_rank() {
    for ranks in [1, 2, 4, 8] {
        let p = place(&shape(8, 8), ranks, 7).expect("fits");
        let heads: Vec<usize> = p.ranks.iter().flat_map(|r| r.heads.clone()).collect();
        assert_eq!(heads, (0..8).collect::<Vec<_>>());
        let experts: Vec<u32> = p.ranks.iter().flat_map(|r| r.experts[1].clone()).collect();
        assert_eq!(experts, (0..10).collect::<Vec<_>>());
        assert_eq!(p.epoch, 7);
    }
}

#[test]
fn kv_heads_are_replicated_when_there_are_fewer_than_ranks() {
    let p = place(&shape(8, 2), 4, 1).expect("fits");
    let kv: Vec<_> = p.ranks.iter().map(|r| r.kv_heads.clone()).collect();
    assert_eq!(kv, [0..1, 0..1, 1..2, 1..2]);
}

#[test]
fn a_model_that_cannot_be_split_is_rejected() {
    assert_eq!(place(&shape(8, 8), 0, 1), Err(PlacementError::NoRanks));
    assert_eq!(place(&shape(8, 8), 3, 1), Err(PlacementError::Heads { heads: 8, ranks: 3 }));
    assert_eq!(place(&shape(12, 3), 2, 1), Err(PlacementError::KvHeads { kv_heads: 3, ranks: 2 }));
}
