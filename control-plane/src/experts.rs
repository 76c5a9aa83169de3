//! The expert layout of one layer: every expert on at least one rank, hot experts on several, so that all ranks have
//! the same load. A pure function of load, room and the previous layout; small changes of load move few experts.
//!
//! This module does not know groups, epochs or workers.

/// For each rank, its experts in one layer.
pub type ExpertLayout = Vec<Vec<u32>>;

/// A copy moves to another expert only if that takes off this factor more load than it adds elsewhere.
const WORTH_A_COPY: f64 = 1.15;
/// Experts are exchanged while the busiest rank has more than this times the mean load.
const GOOD_ENOUGH: f64 = 1.05;
/// Limit of exchanges per layer.
const EXCHANGES: usize = 512;

/// The load of each rank; the copies of an expert share its load evenly.
pub fn rank_loads(load: &[f64], layout: &ExpertLayout) -> Vec<f64> {
    let copies = count(load.len(), layout);
    let of = |expert: &u32| load[*expert as usize] / copies[*expert as usize].max(1) as f64;
    layout.iter().map(|experts| experts.iter().map(of).sum()).collect()
}

/// The load of the busiest rank over the mean.
pub fn imbalance(load: &[f64], layout: &ExpertLayout) -> f64 {
    let loads = rank_loads(load, layout);
    let sum: f64 = loads.iter().sum();
    let max = loads.iter().copied().fold(0.0, f64::max);
    if sum > 0.0 { max * loads.len() as f64 / sum } else { 1.0 }
}

/// For each rank, the number of experts that `after` adds: what it must load.
pub fn moved(before: &ExpertLayout, after: &ExpertLayout) -> Vec<usize> {
    let new = |(before, after): (&Vec<u32>, &Vec<u32>)| after.iter().filter(|expert| !before.contains(expert)).count();
    before.iter().zip(after).map(new).collect()
}

fn count(experts: usize, layout: &ExpertLayout) -> Vec<usize> {
    let mut copies = vec![0; experts];
    layout.iter().flatten().for_each(|&expert| copies[expert as usize] += 1);
    copies
}

/// `load[e]` is the use of expert e, `room[r]` the number of experts that rank r can hold, `before` the layout to
/// change as little as possible. None: there is not enough room for all experts.
pub fn compute_layout(load: &[f64], room: &[usize], before: Option<&ExpertLayout>) -> Option<ExpertLayout> {
    let room: Vec<usize> = room.iter().map(|&room| room.min(load.len())).collect();
    if room.iter().sum::<usize>() < load.len() {
        return None;
    }
    let mut layer = Layer::new(load, &room, before);
    layer.share_out();
    layer.place()?;
    layer.exchange();
    let mut layout = layer.layout;
    layout.iter_mut().for_each(|experts| experts.sort_unstable());
    Some(layout)
}

struct Layer<'a> {
    load: &'a [f64],
    room: &'a [usize],
    layout: ExpertLayout,
    /// The number of copies wanted per expert.
    copies: Vec<usize>,
    /// The load of each rank under `copies`.
    busy: Vec<f64>,
}

impl<'a> Layer<'a> {
    fn new(load: &'a [f64], room: &'a [usize], before: Option<&ExpertLayout>) -> Self {
        let mut layout: ExpertLayout = vec![Vec::new(); room.len()];
        for (rank, experts) in before.into_iter().flatten().enumerate().take(room.len()) {
            for &expert in experts {
                let known = (expert as usize) < load.len() && !layout[rank].contains(&expert);
                if known && layout[rank].len() < room[rank] {
                    layout[rank].push(expert);
                }
            }
        }
        let copies = count(load.len(), &layout);
        Layer { load, room, layout, copies, busy: Vec::new() }
    }

    /// The load of one copy.
    fn share(&self, expert: usize) -> f64 {
        self.load[expert] / self.copies[expert].max(1) as f64
    }

    /// Decides the number of copies per expert: all room is used, by the experts with the highest load.
    fn share_out(&mut self) {
        self.copies.iter_mut().for_each(|copies| *copies = (*copies).max(1));
        let room: usize = self.room.iter().sum();
        let ranks = self.room.iter().filter(|&&room| room > 0).count();
        let mut used: usize = self.copies.iter().sum();
        let experts = 0..self.load.len();
        // The expert with the most load per copy, and the one that can best spare a copy, with the load per copy that
        // it would then have.
        let needy = |copies: &[usize]| {
            let all = experts.clone().filter(|&e| copies[e] < ranks).map(|e| (e, self.load[e] / copies[e] as f64));
            all.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
        };
        let spare = |copies: &[usize]| {
            let all = experts.clone().filter(|&e| copies[e] > 1).map(|e| (e, self.load[e] / (copies[e] - 1) as f64));
            all.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
        };
        let mut copies = self.copies.clone();
        while used > room {
            let Some((expert, _)) = spare(&copies) else { break };
            copies[expert] -= 1;
            used -= 1;
        }
        while used < room {
            let Some((expert, _)) = needy(&copies) else { break };
            copies[expert] += 1;
            used += 1;
        }
        while let (Some((to, most)), Some((from, least))) = (needy(&copies), spare(&copies)) {
            if to == from || most <= least * WORTH_A_COPY {
                break;
            }
            copies[to] += 1;
            copies[from] -= 1;
        }
        self.copies = copies;
    }

    fn weigh(&mut self) {
        self.busy = (0..self.layout.len())
            .map(|rank| self.layout[rank].iter().map(|&expert| self.share(expert as usize)).sum())
            .collect();
    }

    fn holds(&self, rank: usize, expert: usize) -> bool {
        self.layout[rank].contains(&(expert as u32))
    }

    fn add(&mut self, rank: usize, expert: usize) {
        self.layout[rank].push(expert as u32);
        self.busy[rank] += self.share(expert);
    }

    fn remove(&mut self, rank: usize, expert: usize) {
        self.layout[rank].retain(|&held| held != expert as u32);
        self.busy[rank] -= self.share(expert);
    }

    /// Changes the layout until every expert has its number of copies.
    fn place(&mut self) -> Option<()> {
        self.weigh();
        let mut held = count(self.load.len(), &self.layout);
        for (expert, held) in held.iter_mut().enumerate() {
            while *held > self.copies[expert] {
                let holders = (0..self.layout.len()).filter(|&rank| self.holds(rank, expert));
                let rank = holders.max_by(|&a, &b| self.busy[a].total_cmp(&self.busy[b]))?;
                self.remove(rank, expert);
                *held -= 1;
            }
        }
        let mut new: Vec<usize> =
            (0..self.load.len()).flat_map(|expert| vec![expert; self.copies[expert] - held[expert]]).collect();
        new.sort_by(|&a, &b| self.share(b).total_cmp(&self.share(a)).then(a.cmp(&b)));
        for expert in new {
            let open = |layer: &Self, rank: usize| layer.layout[rank].len() < layer.room[rank];
            let idle = |layer: &Self, ranks: Vec<usize>| {
                ranks.into_iter().min_by(|&a, &b| layer.busy[a].total_cmp(&layer.busy[b]))
            };
            let ranks = 0..self.layout.len();
            let free = ranks.clone().filter(|&rank| open(self, rank) && !self.holds(rank, expert)).collect();
            if let Some(rank) = idle(self, free) {
                self.add(rank, expert);
                continue;
            }
            // Every rank with room holds the expert already: move another expert out of some rank.
            let to = idle(self, ranks.clone().filter(|&rank| open(self, rank)).collect())?;
            let moving = ranks
                .filter(|&rank| !self.holds(rank, expert))
                .flat_map(|rank| self.layout[rank].iter().map(move |&other| (rank, other as usize)))
                .filter(|&(_, other)| !self.holds(to, other))
                .min_by(|a, b| self.share(a.1).total_cmp(&self.share(b.1)));
            match moving {
                Some((from, other)) => {
                    self.remove(from, other);
                    self.add(to, other);
                    self.add(from, expert);
                }
                // There are more copies than ranks that could hold them.
                None => {
                    self.copies[expert] -= 1;
                    self.weigh();
                }
            }
        }
        Some(())
    }

    /// Takes load off the busiest rank by the best exchange with another rank, as long as that helps.
    fn exchange(&mut self) {
        let mean = self.busy.iter().sum::<f64>() / self.busy.len().max(1) as f64;
        for _ in 0..EXCHANGES {
            let Some(most) = (0..self.busy.len()).max_by(|&a, &b| self.busy[a].total_cmp(&self.busy[b])) else {
                return;
            };
            if self.busy[most] <= mean * GOOD_ENOUGH {
                return;
            }
            let mut best: Option<(f64, usize, usize, Option<usize>)> = None;
            for rank in (0..self.busy.len()).filter(|&rank| rank != most) {
                for &out in &self.layout[most] {
                    let out = out as usize;
                    if self.holds(rank, out) {
                        continue;
                    }
                    let back = self.layout[rank].iter().map(|&back| Some(back as usize));
                    let open = self.layout[rank].len() < self.room[rank];
                    for back in back.chain(open.then_some(None)) {
                        if back.is_some_and(|back| self.holds(most, back)) {
                            continue;
                        }
                        let less = self.share(out) - back.map_or(0.0, |back| self.share(back));
                        let worse = (self.busy[most] - less).max(self.busy[rank] + less);
                        if less > 0.0 && best.is_none_or(|(least, ..)| worse < least) {
                            best = Some((worse, rank, out, back));
                        }
                    }
                }
            }
            let Some((_, rank, out, back)) = best.filter(|(worse, ..)| *worse < self.busy[most]) else { return };
            self.remove(most, out);
            if let Some(back) = back {
                self.remove(rank, back);
                self.add(most, back);
            }
            self.add(rank, out);
        }
    }
}
