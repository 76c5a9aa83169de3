//! What an API key has used of its limits. A router that is alone counts by itself. Routers of one cluster draw from
//! what they share, a little more than they need, so that not every request has to ask; while they cannot, each has an
//! equal part. This module does not know the store.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rein_control_plane::records::{Level, LimitLevels};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use crate::{
    admission::rate::{TokenBucket, whole},
    fair::FairSemaphore,
};

pub const LIMITS: [&str; 3] = ["requests", "tokens", "in_flight"];
pub const REQUESTS: usize = 0;
pub const TOKENS: usize = 1;
pub const IN_FLIGHT: usize = 2;

/// All routers together hold one part in this many of a limit in reserve.
const RESERVES: u64 = 20;
/// How long a request waits for what other routers may give back. Longer than the store may take.
const DRAW_TIME: Duration = Duration::from_millis(600);
/// Pause between two attempts to draw what is not there.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// Longest time for which a rate is held to be used up without looking again.
const SHORT_TIME: Duration = Duration::from_secs(1);
/// After this time without a request, a router keeps no slot in reserve.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// How a router comes by its part of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Division {
    /// It has all.
    #[default]
    Whole,
    /// It draws from what all routers share.
    Drawn,
    /// What all share is out of reach: it has one of this many equal parts.
    Part(u32),
}

/// The usage of the key with a name. It survives reloads of the file.
pub struct KeyUsage {
    spending: Mutex<Spending>,
    pub requests: AtomicU64,
    pub tokens: AtomicU64,
    pub limited: [AtomicU64; LIMITS.len()],
    /// One permit for all long grammar compilations.
    pub long_grammars: FairSemaphore,
    /// Counts what was drawn.
    draws: watch::Sender<u64>,
    /// Somebody waits for a draw. One for all keys.
    wanted: Arc<Notify>,
}

struct Spending {
    division: Division,
    rates: [Option<Allowance>; 2],
    slots: Slots,
    /// Requests that wait for a draw, and the slots that they wait for.
    wanted: [u32; LIMITS.len()],
    /// What the store has is older than this.
    is_stale: bool,
}

/// A limit per minute.
struct Allowance {
    limit: u64,
    /// What this router may use, or what all share, as it was seen last.
    bucket: TokenBucket,
    /// What has been drawn and not used. Negative: it was used first. A router that does not draw counts, too, what it
    /// will owe.
    drawn: f64,
    is_used: bool,
    /// Until then there is no more to be drawn.
    short: Option<Instant>,
}

/// A limit of what is in flight at once.
struct Slots {
    limit: u32,
    used: u32,
    drawn: u32,
    short: Option<Instant>,
    /// When the last one was left.
    left: Option<Instant>,
}

/// Why something is refused for now.
enum Shortage {
    Limit(usize, Duration),
    /// It must be drawn.
    Undrawn(usize, u32),
}

/// A limit that refuses a request, and the time after which it may not.
#[derive(Debug, PartialEq, Eq)]
pub struct LimitReached {
    pub limit: usize,
    pub wait: Duration,
}

/// What is to be written, and what this router gets with it.
pub struct LimitDraw {
    /// None: the key has no limit per minute.
    pub levels: Option<LimitLevels>,
    /// The slots that this router has from now on. None: the key has no limit of them.
    pub slots: Option<u32>,
    drawn: [f64; 2],
    /// Of which limits there was less than this router needs.
    short: [bool; LIMITS.len()],
}

struct Waiting<'a> {
    usage: &'a KeyUsage,
    limit: usize,
    amount: u32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.usage.spending().wanted[self.limit] -= self.amount;
    }
}

impl KeyUsage {
    pub fn new(division: Division, wanted: Arc<Notify>) -> Self {
        let slots = Slots { limit: u32::MAX, used: 0, drawn: 0, short: None, left: None };
        let spending = Spending { division, rates: [None, None], slots, wanted: [0; LIMITS.len()], is_stale: false };
        KeyUsage {
            spending: Mutex::new(spending),
            requests: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            limited: Default::default(),
            long_grammars: FairSemaphore::new(1),
            draws: watch::Sender::new(0),
            wanted,
        }
    }

    fn spending(&self) -> MutexGuard<'_, Spending> {
        self.spending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_limits(&self, rates: [Option<u64>; 2], slots: u32, now: Instant) {
        let mut spending = self.spending();
        let division = spending.division;
        for (allowance, limit) in spending.rates.iter_mut().zip(rates) {
            match (allowance.as_mut(), limit) {
                (Some(allowance), Some(limit)) => allowance.resize(limit, division, now),
                (_, limit) => *allowance = limit.map(|limit| Allowance::new(limit, division, now)),
            }
        }
        spending.slots.limit = slots;
    }

    /// Counts one request.
    pub async fn begin(&self) -> Result<(), LimitReached> {
        self.spend(|spending, now| {
            let Spending { division, rates: [requests, tokens], .. } = spending;
            if let Some(tokens) = tokens {
                tokens.ready(*division, now).map_err(|wait| wait.at(TOKENS))?;
            }
            if let Some(requests) = requests {
                requests.ready(*division, now).map_err(|wait| wait.at(REQUESTS))?;
                requests.take(1, *division, now);
            }
            Ok(())
        })
        .await?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts tokens, even if there are not as many.
    pub fn charge(&self, tokens: u64, now: Instant) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
        let mut spending = self.spending();
        let division = spending.division;
        if let [_, Some(allowance)] = &mut spending.rates {
            allowance.take(tokens, division, now);
        }
    }

    /// Takes slots.
    pub async fn enter(&self, slots: u32) -> Result<(), LimitReached> {
        self.spend(|spending, _| {
            let cap = spending.slots.cap(spending.division);
            if spending.slots.used.saturating_add(slots) <= cap {
                spending.slots.used += slots;
                return Ok(());
            }
            match spending.division {
                Division::Drawn if slots <= spending.slots.limit => Err(Shortage::Undrawn(IN_FLIGHT, slots)),
                _ => Err(Shortage::Limit(IN_FLIGHT, SHORT_TIME)),
            }
        })
        .await
    }

    pub fn leave(&self, slots: u32) {
        let mut spending = self.spending();
        spending.slots.used -= slots;
        spending.slots.left = Some(Instant::now());
    }

    pub fn in_flight(&self) -> u32 {
        self.spending().slots.used
    }

    /// What is left of the rates, and how long until all of it is.
    pub fn rates(&self, now: Instant) -> [Option<(u64, u64, Duration)>; 2] {
        let mut spending = self.spending();
        let Spending { division, rates, .. } = &mut *spending;
        let is_drawn = *division == Division::Drawn;
        rates.each_mut().map(|allowance| {
            let Allowance { limit, bucket, drawn, .. } = allowance.as_mut()?;
            let left = bucket.level(now) + if is_drawn { *drawn } else { 0.0 };
            let missing = (bucket.limit() as f64 - left).max(0.0);
            let reset = Duration::try_from_secs_f64(missing * 60.0 / bucket.limit() as f64).unwrap_or(Duration::MAX);
            Some((*limit, whole(left), reset))
        })
    }

    /// Tries until the limits allow it, or refuse it.
    async fn spend(
        &self,
        mut attempt: impl FnMut(&mut Spending, Instant) -> Result<(), Shortage>,
    ) -> Result<(), LimitReached> {
        let mut draws = self.draws.subscribe();
        let until = Instant::now() + DRAW_TIME;
        let mut waiting: Option<Waiting<'_>> = None;
        loop {
            let tried = attempt(&mut self.spending(), Instant::now());
            let (limit, amount) = match tried {
                Ok(()) => return Ok(()),
                Err(Shortage::Limit(limit, wait)) => return Err(LimitReached { limit, wait }),
                Err(Shortage::Undrawn(limit, amount)) => (limit, amount),
            };
            if waiting.as_ref().is_none_or(|waiting| waiting.limit != limit) {
                self.spending().wanted[limit] += amount;
                waiting = Some(Waiting { usage: self, limit, amount });
            }
            self.wanted.notify_one();
            if timeout_at(until, draws.changed()).await.is_err() {
                return Err(LimitReached { limit, wait: SHORT_TIME });
            }
        }
    }

    /// Changes how this router comes by its part. What it has used stays used.
    pub fn divide(&self, division: Division, now: Instant) {
        let mut spending = self.spending();
        let before = std::mem::replace(&mut spending.division, division);
        for allowance in spending.rates.iter_mut().flatten() {
            allowance.divide(before, division, now);
        }
        spending.slots.short = None;
        spending.set_stale();
        self.draws.send_modify(|draws| *draws += 1);
    }

    /// The store has lost what this router had taken.
    pub fn set_stale(&self) {
        self.spending().set_stale();
    }

    /// Whether this router should draw, or give back.
    pub fn is_due(&self, routers: u32, now: Instant) -> bool {
        let spending = self.spending();
        let Spending { rates, slots, wanted, is_stale, .. } = &*spending;
        let low = |(allowance, wanted): (&Option<Allowance>, &u32)| {
            let low = |allowance: &Allowance| allowance.is_low(*wanted, routers, now);
            allowance.as_ref().is_some_and(low)
        };
        let is_stale = *is_stale && slots.is_limited();
        is_stale || rates.iter().zip(wanted).any(low) || slots.is_due(wanted[IN_FLIGHT], routers, now)
    }

    /// What to write and to get, where this is what the routers share and `others` the slots that others have taken.
    /// Slots that are to be given back are not used from now on.
    pub fn draw(&self, known: LimitLevels, others: u32, routers: u32, wall: u64) -> LimitDraw {
        let mut spending = self.spending();
        let Spending { rates: [requests, tokens], slots, wanted, is_stale, .. } = &mut *spending;
        let draw = |allowance: &Option<Allowance>, known, wanted| match allowance {
            None => (None, 0.0, false),
            Some(allowance) => allowance.draw(known, wanted, routers, wall),
        };
        let (requests, drawn_requests, few_requests) = draw(requests, known.requests, wanted[REQUESTS]);
        let (tokens, drawn_tokens, few_tokens) = draw(tokens, known.tokens, wanted[TOKENS]);
        let levels = (requests.is_some() || tokens.is_some()).then_some(LimitLevels { requests, tokens });
        let goal = slots.is_limited().then(|| slots.goal(wanted[IN_FLIGHT], others, routers));
        if let Some(goal) = goal.filter(|goal| *goal < slots.drawn) {
            (slots.drawn, *is_stale) = (goal, true);
        }
        let few_slots = goal.is_some_and(|goal| goal < slots.used.saturating_add(wanted[IN_FLIGHT]));
        let short = [few_requests, few_tokens, few_slots];
        LimitDraw { levels, slots: goal, drawn: [drawn_requests, drawn_tokens], short }
    }

    /// This was written.
    pub fn apply(&self, draw: &LimitDraw, now: Instant) {
        let mut spending = self.spending();
        if spending.division != Division::Drawn {
            return;
        }
        let levels = draw.levels.clone().unwrap_or_default();
        let rates = spending.rates.iter_mut().zip([levels.requests, levels.tokens]).zip(draw.drawn).zip(draw.short);
        for (((allowance, level), drawn), short) in rates {
            if let (Some(allowance), Some(level)) = (allowance, level) {
                allowance.drawn += drawn;
                allowance.bucket = TokenBucket::with_level(allowance.limit, level.level, now);
                let pause = allowance.wait(now).clamp(SHORT_PAUSE, SHORT_TIME);
                allowance.short = short.then(|| now + pause);
            }
        }
        if let Some(drawn) = draw.slots {
            spending.slots.drawn = drawn;
            spending.slots.short = draw.short[IN_FLIGHT].then(|| now + SHORT_PAUSE);
        }
        spending.is_stale = false;
        drop(spending);
        self.draws.send_modify(|draws| *draws += 1);
    }
}

impl Spending {
    fn set_stale(&mut self) {
        self.is_stale = self.slots.used > 0 || self.slots.drawn > 0;
    }
}

impl Allowance {
    fn new(limit: u64, division: Division, now: Instant) -> Self {
        let part = part(limit, division);
        Allowance { limit, bucket: TokenBucket::new(part, now), drawn: 0.0, is_used: false, short: None }
    }

    fn resize(&mut self, limit: u64, division: Division, now: Instant) {
        if self.limit != limit {
            self.limit = limit;
            self.bucket.resize(part(limit, division), now);
            self.short = None;
        }
    }

    /// Err: what it takes, and how long.
    fn ready(&mut self, division: Division, now: Instant) -> Result<(), Wait> {
        match division {
            Division::Whole | Division::Part(_) => self.bucket.ready(now).map_err(Wait::For),
            Division::Drawn if self.drawn >= 1.0 => Ok(()),
            Division::Drawn => Err(match self.short.filter(|short| now < *short) {
                Some(short) => Wait::For((short - now).max(self.wait(now))),
                None => Wait::Draw,
            }),
        }
    }

    fn take(&mut self, amount: u64, division: Division, now: Instant) {
        self.is_used = true;
        self.drawn -= amount as f64;
        if division != Division::Drawn {
            self.bucket.charge(amount, now);
        }
    }

    /// How long until what all share has one more.
    fn wait(&mut self, now: Instant) -> Duration {
        self.bucket.ready(now).err().unwrap_or_default()
    }

    fn reserve(&self, routers: u32) -> f64 {
        (self.limit / (RESERVES * u64::from(routers))) as f64
    }

    fn is_low(&self, wanted: u32, routers: u32, now: Instant) -> bool {
        let reserve = if self.is_used { self.reserve(routers) / 2.0 } else { 0.0 };
        self.drawn < f64::from(wanted) + reserve && self.short.is_none_or(|short| short <= now)
    }

    /// What all share from now on, what this router gets, and whether that is less than it needs.
    fn draw(&self, known: Option<Level>, wanted: u32, routers: u32, wall: u64) -> (Option<Level>, f64, bool) {
        let limit = self.limit as f64;
        let full = Level { level: limit, at: wall };
        let Level { level, at } = known.filter(|known| known.level.is_finite()).unwrap_or(full);
        let refilled = (level + wall.saturating_sub(at) as f64 / 60_000.0 * limit).min(limit);
        let owed = (-self.drawn).max(0.0);
        let left = refilled - owed;
        let needed = f64::from(wanted) + self.reserve(routers) - self.drawn.max(0.0);
        let drawn = needed.min(left.floor()).max(0.0);
        (Some(Level { level: left - drawn, at: wall.max(at) }), owed + drawn, drawn < needed)
    }

    fn divide(&mut self, before: Division, after: Division, now: Instant) {
        let level = self.bucket.level(now);
        self.short = None;
        if after == Division::Drawn {
            // What all share was refilled meanwhile, as the part was: no more is owed than the part misses.
            let missing = part(self.limit, before) as f64 - level;
            self.drawn = self.drawn.max(-missing);
        } else {
            // An equal part of what is left, and what was drawn.
            let part = part(self.limit, after);
            let level = level * part as f64 / self.limit as f64 + self.drawn;
            self.bucket = TokenBucket::with_level(part, level, now);
        }
    }
}

/// What a rate takes.
enum Wait {
    For(Duration),
    Draw,
}

impl Wait {
    fn at(self, limit: usize) -> Shortage {
        match self {
            Wait::For(wait) => Shortage::Limit(limit, wait),
            Wait::Draw => Shortage::Undrawn(limit, 1),
        }
    }
}

/// A router's part of a rate.
fn part(limit: u64, division: Division) -> u64 {
    match division {
        Division::Whole | Division::Drawn => limit,
        Division::Part(routers) => limit.div_ceil(u64::from(routers.max(1))),
    }
}

impl Slots {
    fn is_limited(&self) -> bool {
        self.limit < u32::MAX
    }

    /// How many may be used now.
    fn cap(&self, division: Division) -> u32 {
        match division {
            _ if !self.is_limited() => u32::MAX,
            Division::Whole => self.limit,
            Division::Drawn => self.drawn.min(self.limit),
            Division::Part(routers) => self.limit.div_ceil(routers.max(1)).max(self.drawn.min(self.limit)),
        }
    }

    fn reserve(&self, routers: u32) -> u32 {
        u32::try_from(u64::from(self.limit) / (RESERVES * u64::from(routers))).unwrap_or(u32::MAX)
    }

    /// How many this router should have.
    fn goal(&self, wanted: u32, others: u32, routers: u32) -> u32 {
        let needed = self.used.saturating_add(wanted);
        let goal = if needed == 0 { 0 } else { needed.saturating_add(self.reserve(routers)) };
        goal.min(self.limit.saturating_sub(others)).max(self.used)
    }

    fn is_due(&self, wanted: u32, routers: u32, now: Instant) -> bool {
        if !self.is_limited() || self.short.is_some_and(|short| now < short) {
            return false;
        }
        let (reserve, needed) = (self.reserve(routers), self.used.saturating_add(wanted));
        let is_low = needed > self.drawn || self.used > 0 && needed + reserve / 2 > self.drawn;
        let is_high = needed + reserve + reserve / 2 < self.drawn;
        let is_idle = needed == 0 && self.drawn > 0 && self.left.is_none_or(|left| now >= left + IDLE_TIME);
        is_low || is_high || is_idle
    }
}
