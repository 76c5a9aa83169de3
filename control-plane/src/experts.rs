//! Where a layer's experts lie: every expert on some rank, hot ones on several, so that all ranks have as much to do.
//! A pure function of loads, room and what was before; little moves when little has changed.

/// The experts of each rank, for one layer.
pub type Layout = Vec<Vec<u32>>;

/// Copies are redistributed only where a copy that is added takes more load off than a copy that is taken away puts on, by
/// this factor.
const WORTH_A_COPY: f64 = 1.15;
/// Experts are exchanged while the busiest rank has more than this times the mean.
const GOOD_ENOUGH: f64 = 1.05;
/// Exchanges per layer.
const EXCHANGES: usize = 512;

/// Load of each rank; an expert's is shared evenly by its copies.
pub fn rank_loads(load: &[f64], layout: &Layout) -> Vec<f64> {
    let copies = count(load.len(), layout);
    let of = |expert: &u32| load[*expert as usize] / copies[*expert as usize].max(1) as f64;
    layout.iter().map(|experts| experts.iter().map(of).sum()).collect()
}

/// The busiest rank's load over the mean.
pub fn imbalance(load: &[f64], layout: &Layout) -> f64 {
    let loads = rank_loads(load, layout);
    let sum: f64 = loads.iter().sum();
    let max = loads.iter().copied().fold(0.0, f64::max);
    if sum > 0.0 { max * loads.len() as f64 / sum } else { 1.0 }
}

/// Copies of each rank that `after` has and `before` has not: what it must load.
pub fn moved(before: &Layout, after: &Layout) -> Vec<usize> {
    let new = |(before, after): (&Vec<u32>, &Vec<u32>)| after.iter().filter(|expert| !before.contains(expert)).count();
    before.iter().zip(after).map(new).collect()
}

fn count(experts: usize, layout: &Layout) -> Vec<usize> {
    let mut copies = vec![0; experts];
    layout.iter().flatten().for_each(|&expert| copies[expert as usize] += 1);
    copies
}

/// `load[e]`: how much expert e is used; `room[r]`: how many experts rank r holds at most; `before`: the layout that is to
/// be changed as little as need be. None: there is not room for all experts.
pub fn spread(load: &[f64], room: &[usize], before: Option<&Layout>) -> Option<Layout> {
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
    layout: Layout,
    /// Wanted, of each expert.
    copies: Vec<usize>,
    /// Of each rank, under `copies`.
    busy: Vec<f64>,
}

impl<'a> Layer<'a> {
    fn new(load: &'a [f64], room: &'a [usize], before: Option<&Layout>) -> Self {
        let mut layout: Layout = vec![Vec::new(); room.len()];
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

    /// One copy's load.
    fn share(&self, expert: usize) -> f64 {
        self.load[expert] / self.copies[expert].max(1) as f64
    }

    /// Decides how many copies each expert gets: all room is used, by those that need it most.
    fn share_out(&mut self) {
        self.copies.iter_mut().for_each(|copies| *copies = (*copies).max(1));
        let room: usize = self.room.iter().sum();
        let ranks = self.room.iter().filter(|&&room| room > 0).count();
        let mut used: usize = self.copies.iter().sum();
        let experts = 0..self.load.len();
        // The expert whose copies have most to do, and the one that could best spare a copy, with what its others would have.
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

    /// Makes the layout have the copies that are wanted.
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
            // All room that is left is where the expert is already: somebody else moves there, if anybody can.
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
                // One copy more than there are ranks for it.
                None => {
                    self.copies[expert] -= 1;
                    self.weigh();
                }
            }
        }
        Some(())
    }

    /// Takes load off the busiest rank, by the best exchange with any other, as long as that helps.
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
