//! Expert usage: Zipf with exponent 1.1, in an order of popularity that drifts. The benchmark uses it too.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

pub struct Traffic {
    order: Vec<usize>,
    rng: StdRng,
}

impl Traffic {
    pub fn new(seed: u64, experts: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..experts).collect();
        order.shuffle(&mut rng);
        Traffic { order, rng }
    }

    /// Counts of this many draws.
    pub fn counted(&mut self, draws: usize) -> Vec<f64> {
        let mut sum = 0.0;
        let mut below = Vec::new();
        for place in 1..=self.order.len() {
            sum += (place as f64).powf(-1.1);
            below.push(sum);
        }
        let mut load = vec![0.0; self.order.len()];
        for _ in 0..draws {
            let at = self.rng.random_range(0.0..sum);
            load[self.order[below.partition_point(|&below| below < at).min(self.order.len() - 1)]] += 1.0;
        }
        load
    }

    /// Swaps this many of the most popular experts with others.
    pub fn drift(&mut self, pairs: usize) {
        let experts = self.order.len();
        for _ in 0..pairs {
            let (a, b) = (self.rng.random_range(0..experts / 8), self.rng.random_range(0..experts));
            self.order.swap(a, b);
        }
    }
}

/// All layers of a model, as a leader counts them: older draws have less weight.
pub struct Drifting {
    layers: Vec<Traffic>,
    pairs: usize,
    rows: Vec<Vec<f64>>,
}

impl Drifting {
    pub fn new(layers: Vec<Traffic>, pairs: usize) -> Self {
        let rows = layers.iter().map(|layer| vec![0.0; layer.order.len()]).collect();
        Drifting { layers, pairs, rows }
    }

    /// Counts after this many more draws per layer, four half-lives later (a minute, with half-lives of 15 s).
    pub fn window(&mut self, draws: usize) -> Vec<Vec<u32>> {
        for (layer, rows) in self.layers.iter_mut().zip(&mut self.rows) {
            rows.iter_mut().zip(layer.counted(draws)).for_each(|(rows, new)| *rows = *rows / 16.0 + new);
        }
        self.rows.iter().map(|layer| layer.iter().map(|rows| *rows as u32).collect()).collect()
    }

    /// Counts of these draws only.
    pub fn now(&mut self, draws: usize) -> Vec<Vec<u32>> {
        let counted = |layer: &mut Traffic| layer.counted(draws).into_iter().map(|rows| rows as u32).collect();
        self.layers.iter_mut().map(counted).collect()
    }

    pub fn drift(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.drift(self.pairs));
    }
}
