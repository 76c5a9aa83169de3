use super::*;

fn routes(experts: &[u32]) -> Routes {
    Routes { top_k: 2, experts: experts.to_vec(), weights: vec![1.0; experts.len()] }
}

#[test]
fn copies_share_the_rows_of_a_hot_expert_whatever_the_batch() {
    let single = ExpertTable { layer: 0, holders: vec![vec![0], vec![0], vec![1], vec![1]] };
    let (ids, positions) = ([5, 5, 7], [0, 1, 1]);
    assert_eq!(dispatch(&single, &routes(&[0, 1, 0, 1, 0, 3]), &ids, &positions).unwrap(), [0, 0, 0, 0, 0, 1]);

    let copied = ExpertTable { layer: 0, holders: vec![vec![0, 1], vec![0, 1, 2], vec![1]] };
    let all = routes(&[0, 1].repeat(3000));
    let (ids, positions): (Vec<u32>, Vec<u32>) = (0..3000).map(|row| (row % 7, row / 7)).unzip();
    let together = dispatch(&copied, &all, &ids, &positions).unwrap();
    for (expert, share) in [(0, 1500), (1, 1000)] {
        let of_rank = |rank| together.iter().skip(expert).step_by(2).filter(|&&to| to == rank).count();
        for &rank in &copied.holders[expert] {
            assert!(of_rank(rank).abs_diff(share) < share / 10, "rank {rank} computes {} rows", of_rank(rank));
        }
    }
    for (row, chosen) in together.chunks(2).enumerate() {
        let alone = dispatch(&copied, &routes(&[0, 1]), &ids[row..][..1], &positions[row..][..1]).unwrap();
        assert_eq!(alone, chosen, "row {row}");
    }

    let none = ExpertTable { layer: 0, holders: vec![vec![0], Vec::new()] };
    let error = dispatch(&none, &routes(&[0, 1]), &[5], &[0]).unwrap_err();
    assert_eq!(error.to_string(), "moe: no rank holds expert 1");
}

#[test]
fn counts_add_up() {
    let counts = Counts::new(&[0, 4]);
    counts.add(1, &routes(&[0, 1, 0, 3]));
    counts.add(1, &routes(&[0, 2]));
    assert_eq!(counts.read(), [vec![], vec![3, 1, 1, 1]]);
}
