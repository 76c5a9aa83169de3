use super::*;

fn routes(experts: &[u32]) -> Routes {
    Routes { top_k: 2, experts: experts.to_vec(), weights: vec![1.0; experts.len()] }
}

#[test]
fn copies_share_the_rows_of_a_hot_expert() {
    let hot = routes(&[0, 1, 0, 1, 0, 3]);
    let single = [vec![0], vec![0], vec![1], vec![1]];
    assert_eq!(dispatch(&single, 2, &hot).unwrap(), [0, 0, 0, 0, 0, 1]);
    let copied = [vec![0, 1], vec![0], vec![1], vec![1]];
    // Rank 0 computes two rows of expert 1, rank 1 one row of expert 3; the three rows of expert 0 balance them.
    assert_eq!(dispatch(&copied, 2, &hot).unwrap(), [1, 0, 0, 0, 1, 1]);
    let error = dispatch(&[vec![0], Vec::new()], 2, &routes(&[0, 1])).unwrap_err();
    assert_eq!(error.to_string(), "moe: no rank holds expert 1");
}

#[test]
fn counts_add_up() {
    let counts = Counts::new(&[0, 4]);
    counts.add(1, &routes(&[0, 1, 0, 3]));
    counts.add(1, &routes(&[0, 2]));
    assert_eq!(counts.read(), [vec![], vec![3, 1, 1, 1]]);
}
