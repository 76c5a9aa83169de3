use rein_control_plane::{ModelShape, place};

use super::*;

#[test]
fn holders_follow_the_placement() {
    let shape = ModelShape { attention_heads: 2, kv_heads: 2, experts: vec![0, 4] };
    let mut placement = place(&shape, 2, 1).expect("fits");
    assert_eq!(holders(&placement, 1, 4), [[0], [0], [1], [1]]);
    placement.ranks[1].experts[1] = vec![0, 2, 3];
    assert_eq!(holders(&placement, 1, 4), [vec![0, 1], vec![0], vec![1], vec![1]]);
    placement.ranks[0].experts[1] = vec![0];
    assert_eq!(holders(&placement, 1, 4)[1], Vec::<u32>::new());
}
