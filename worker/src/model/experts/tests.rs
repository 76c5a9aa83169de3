use rein_control_plane::{ModelShape, place};

use super::*;

fn routes(experts: &[u32]) -> Routes {
    Routes { top_k: 2, experts: experts.to_vec(), weights: vec![1.0; experts.len()] }
}

#[test]
fn copies_share_the_rows_of_a_hot_expert() {
    let shape = ModelShape { attention_heads: 2, kv_heads: 2, experts: vec![0, 4] };
    let mut placement = place(&shape, 2, 1).expect("fits");
    let holders = Holders::new(&placement, 1, 4);
    assert_eq!(holders.dispatch(&routes(&[0, 1, 0, 1, 0, 3])), [0, 0, 0, 0, 0, 1]);
    placement.ranks[1].experts[1] = vec![0, 2, 3];
    let holders = Holders::new(&placement, 1, 4);
    // Rank 0 computes two rows of expert 1, rank 1 one row of expert 3; the three rows of expert 0 balance them.
    assert_eq!(holders.dispatch(&routes(&[0, 1, 0, 1, 0, 3])), [1, 0, 0, 0, 1, 1]);
    assert_eq!(holders.missing(), None);
    placement.ranks[0].experts[1] = vec![0];
    assert_eq!(Holders::new(&placement, 1, 4).missing(), Some(1));
}

#[test]
fn counts_add_up() {
    let counts = ExpertCounts::new(&[0, 4]);
    counts.add(1, &routes(&[0, 1, 0, 3]));
    counts.add(1, &routes(&[0, 2]));
    assert_eq!(counts.read(), [vec![], vec![3, 1, 1, 1]]);
}
