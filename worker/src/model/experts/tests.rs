use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rein_control_plane::experts::compute_layout;
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

/// Experts that `top_k` draws of a row choose, with popularities by Zipf's law (exponent 1.1).
struct Popularity {
    cumulated: Vec<f64>,
    rng: StdRng,
}

impl Popularity {
    fn new(experts: usize) -> Self {
        let mut sum = 0.0;
        let cumulated = (1..=experts).map(|rank| {
            sum += (rank as f64).powf(-1.1);
            sum
        });
        Popularity { cumulated: cumulated.collect(), rng: StdRng::seed_from_u64(1) }
    }

    fn row(&mut self, top_k: usize) -> Vec<u32> {
        let mut row = Vec::new();
        while row.len() < top_k {
            let at = self.rng.random_range(0.0..self.cumulated[self.cumulated.len() - 1]);
            let expert = self.cumulated.partition_point(|&sum| sum <= at) as u32;
            if !row.contains(&expert) {
                row.push(expert);
            }
        }
        row
    }
}

/// The busiest rank's routes over the mean, with copies chosen by `choose`.
fn busiest(ranks: usize, routes: usize, choose: impl FnMut(&mut [usize])) -> f64 {
    let (mut busy, mut choose) = (vec![0; ranks], choose);
    choose(&mut busy);
    assert_eq!(busy.iter().sum::<usize>(), routes);
    busy.into_iter().max().unwrap_or(0) as f64 * ranks as f64 / routes as f64
}

/// `cargo test -p rein-worker --lib a_copy_is_chosen -- --nocapture` prints the loads.
#[test]
fn a_copy_is_chosen_by_its_row_alone_and_the_ranks_stay_even() {
    const EXPERTS: usize = 384;
    const RANKS: usize = 16;
    const TOP_K: usize = 8;
    let mut popularity = Popularity::new(EXPERTS);
    let mut load = vec![0.0; EXPERTS];
    (0..25_000).for_each(|_| popularity.row(TOP_K).into_iter().for_each(|expert| load[expert as usize] += 1.0));
    let layout = compute_layout(&load, &[EXPERTS / RANKS + 4; RANKS], None).expect("room for all");
    let mut table = ExpertTable { layer: 0, holders: vec![Vec::new(); EXPERTS] };
    for (rank, held) in layout.iter().enumerate() {
        held.iter().for_each(|&expert| table.holders[expert as usize].push(rank as u32));
    }
    let mut rng = StdRng::seed_from_u64(2);
    for (name, rows, steps) in
        [("64 rows, each anywhere", 64, 300), ("64 rows, one position", 64, 300), ("2048 rows of one prompt", 2048, 20)]
    {
        let mut sums = [0.0; 3];
        for step in 0..steps {
            let place = |row: u32, rng: &mut StdRng| match name {
                "64 rows, each anywhere" => rng.random_range(0..32_768),
                "64 rows, one position" => 1000 + step,
                _ => row,
            };
            let rows: Vec<_> = (0..rows)
                .map(|row| (place(row, &mut rng), rng.random_range(0..163_840), popularity.row(TOP_K)))
                .collect();
            let routes = rows.len() * TOP_K;
            let each = || {
                rows.iter().flat_map(|(position, token, experts)| experts.iter().map(move |e| (*e, *token, *position)))
            };
            let holder = |expert, token, position| table.holder(expert, token, position).expect("held") as usize;
            sums[0] += busiest(RANKS, routes, |busy| {
                // The most even choice: experts with one holder first, then each copy to the rank with the least work.
                let mut all: Vec<&Vec<u32>> = each().map(|(e, ..)| &table.holders[e as usize]).collect();
                all.sort_by_key(|holders| holders.len());
                for holders in all {
                    let least = holders.iter().min_by_key(|&&rank| busy[rank as usize]).expect("held");
                    busy[*least as usize] += 1;
                }
            });
            sums[1] += busiest(RANKS, routes, |busy| each().for_each(|(e, token, at)| busy[holder(e, token, at)] += 1));
            sums[2] += busiest(RANKS, routes, |busy| each().for_each(|(e, _, at)| busy[holder(e, 0, at)] += 1));
        }
        let [least, row, position] = sums.map(|sum| sum / f64::from(steps));
        println!(
            "{name}: busiest rank over the mean: least work {least:.2}, by row {row:.2}, by position alone {position:.2}"
        );
        assert!(row < 1.6 * least, "{name}: {row} against {least}");
    }
}
