//! Limits of keys that hold over all routers of a cluster: routers draw from what the store has. This module does not
//! know requests.

use std::{collections::HashSet, convert::Infallible, sync::Arc, time::Duration};

use futures::{TryStreamExt, stream};
use rein_control_plane::{
    KeyCondition, Keys, LeaseId, SessionState, Store, StoreError, Transaction,
    records::{LimitLevels, decode, encode},
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use super::{ApiKeys, locked, usage::Division, usage::KeyUsage};

/// How often a router looks whether it should draw or give back.
const TICK: Duration = Duration::from_millis(50);
/// Pause between two rounds, which bounds the store's load.
const ROUND_PAUSE: Duration = Duration::from_millis(2);
/// Keys that draw at once.
const CONCURRENT_DRAWS: usize = 16;
/// Attempts of one draw while other routers draw from the same limit.
const ATTEMPTS: u32 = 8;
/// How long the store may take for one draw.
const STORE_TIME: Duration = Duration::from_millis(500);
/// Pause between attempts to reach the store.
const RETRY: Duration = Duration::from_secs(1);
/// How long a router that starts tries without a pause before it counts by itself.
const START_TIME: Duration = Duration::from_secs(2);
/// How often a router counts the routers, and renews the lease of levels.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// How long levels stay that nobody writes. A rate is full again after a minute.
const LEVELS_TTL: Duration = Duration::from_secs(180);

/// Where routers share what is left of limits.
pub struct LimitStore {
    pub store: Arc<dyn Store>,
    pub keys: Keys,
    /// This router's id.
    pub router: String,
    /// Its session, whose lease holds the slots that it has taken.
    pub session: watch::Receiver<SessionState>,
    /// The time in milliseconds since 1970.
    pub clock: fn() -> u64,
}

/// A connection to the store while it works.
struct Account<'a> {
    with: &'a LimitStore,
    /// Of the levels.
    lease: LeaseId,
    /// Of the slots.
    session: LeaseId,
    routers: u32,
}

impl ApiKeys {
    /// Shares the limits with the other routers. Never returns.
    pub async fn share(&self, with: LimitStore) -> Infallible {
        let (mut is_lost, mut starts) = (false, Some(Instant::now()));
        // Not the whole limit, which others may have used.
        self.divide(Division::Drawn);
        loop {
            let lost = match timeout(STORE_TIME, Account::open(&with)).await.unwrap_or_else(|_| Err(late())) {
                Ok(mut account) => {
                    if std::mem::take(&mut is_lost) {
                        tracing::info!("limits of API keys hold over all routers again");
                    }
                    starts = None;
                    self.divide(Division::Drawn);
                    let Err(lost) = self.draw(&mut account).await;
                    self.divide(Division::Part(account.routers));
                    Some((lost, account.routers))
                }
                Err(error) => {
                    tracing::debug!(%error, "limits of API keys cannot be shared yet");
                    None
                }
            };
            if starts.is_some_and(|began| began.elapsed() < START_TIME) {
                sleep(TICK).await;
                continue;
            }
            if starts.take().is_some() {
                self.divide(Division::Whole);
            }
            if let Some((error, routers)) = lost {
                is_lost = true;
                tracing::warn!(%error, routers, "limits of API keys are divided equally between the routers for now");
            }
            sleep(RETRY).await;
        }
    }

    fn divide(&self, division: Division) {
        let mut usages = locked(&self.usages);
        usages.division = division;
        usages.of.values().for_each(|usage| usage.divide(division, Instant::now()));
    }

    /// Draws and gives back for all keys, until the store is lost.
    async fn draw(&self, account: &mut Account<'_>) -> Result<Infallible, StoreError> {
        let wanted = locked(&self.usages).wanted.clone();
        let (mut ticks, mut counted) = (interval(TICK), Instant::now());
        let mut drawn = HashSet::new();
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = wanted.notified() => {}
                _ = ticks.tick() => {}
            }
            if counted.elapsed() > COUNT_INTERVAL {
                counted = Instant::now();
                timeout(STORE_TIME, account.renew()).await.unwrap_or_else(|_| Err(late()))?;
            }
            let lost = account.has_new_session()?;
            let removed: Vec<String>;
            let due: Vec<(String, Arc<KeyUsage>)> = {
                let (usages, now) = (locked(&self.usages), Instant::now());
                removed = drawn.extract_if(|name| !usages.of.contains_key(name)).collect();
                if lost {
                    usages.of.values().for_each(|usage| usage.set_stale());
                }
                let due = usages.of.iter().filter(|(_, usage)| usage.is_due(account.routers, now));
                due.map(|(name, usage)| (name.clone(), usage.clone())).collect()
            };
            drawn.extend(due.iter().map(|(name, _)| name.clone()));
            let account = &*account;
            for name in removed {
                timeout(STORE_TIME, account.forget(&name)).await.unwrap_or_else(|_| Err(late()))?;
            }
            let draw = |(name, usage): (String, Arc<KeyUsage>)| async move {
                timeout(STORE_TIME, account.draw(&name, &usage)).await.unwrap_or_else(|_| Err(late()))
            };
            stream::iter(due.into_iter().map(Ok)).try_for_each_concurrent(CONCURRENT_DRAWS, draw).await?;
            sleep(ROUND_PAUSE).await;
        }
    }
}

impl<'a> Account<'a> {
    async fn open(with: &'a LimitStore) -> Result<Self, StoreError> {
        let session = with.session.borrow().lease.ok_or(StoreError::LeaseLost)?;
        let lease = with.store.grant(LEVELS_TTL).await?;
        let mut account = Account { with, lease, session, routers: 1 };
        account.count_routers().await?;
        Ok(account)
    }

    async fn renew(&mut self) -> Result<(), StoreError> {
        self.with.store.renew(self.lease).await?;
        self.count_routers().await
    }

    async fn count_routers(&mut self) -> Result<(), StoreError> {
        let routers = self.with.store.read(&self.with.keys.routers()).await?.entries.len();
        self.routers = u32::try_from(routers).unwrap_or(u32::MAX).max(1);
        Ok(())
    }

    /// Whether the session had to begin again, and with it all slots are lost.
    fn has_new_session(&mut self) -> Result<bool, StoreError> {
        let session = self.with.session.borrow().lease.ok_or(StoreError::LeaseLost)?;
        Ok(std::mem::replace(&mut self.session, session) != session)
    }

    /// Of a key that is not in the file any more. It is the same file at all routers.
    async fn forget(&self, name: &str) -> Result<(), StoreError> {
        let LimitStore { store, keys, router, .. } = self.with;
        let both = Transaction::default().delete(keys.limit_levels(name)).delete(keys.limit_slots(name, router));
        store.commit(both).await.map(drop)
    }

    /// Draws for one key, or gives back.
    async fn draw(&self, name: &str, usage: &KeyUsage) -> Result<(), StoreError> {
        let LimitStore { store, keys, router, clock, .. } = self.with;
        let (levels_key, slots_key) = (keys.limit_levels(name), keys.limit_slots(name, router));
        for attempt in 1..=ATTEMPTS {
            let known = store.read(&keys.limits(name)).await?.entries;
            let levels = known.get(&levels_key);
            let condition = match levels {
                Some(entry) => KeyCondition::At(levels_key.clone(), entry.revision),
                None => KeyCondition::Absent(levels_key.clone()),
            };
            // What cannot be read is written over.
            let levels = levels.and_then(|entry| decode::<LimitLevels>(&entry.value).ok()).unwrap_or_default();
            let slots_of = |key: &String| decode::<u32>(&known.get(key)?.value).ok();
            let others = known.keys().filter(|key| **key != levels_key && **key != slots_key).filter_map(slots_of);
            let others = others.fold(0, u32::saturating_add);
            let draw = usage.draw(levels, others, self.routers, clock());
            // Written for slots alone, too: so two routers that take some at once cannot both succeed.
            let levels = encode(draw.levels.as_ref().unwrap_or(&LimitLevels::default()));
            let write = Transaction::default().when(condition).put(levels_key.clone(), levels, Some(self.lease));
            let write = match draw.slots {
                Some(slots) if slots > 0 => write.put(slots_key.clone(), encode(&slots), Some(self.session)),
                _ => write.delete(slots_key.clone()),
            };
            if store.commit(write).await?.is_some() {
                usage.apply(&draw, Instant::now());
                return Ok(());
            }
            // The more often it failed, the longer, and not as long as the others.
            let pause = rand::random_range(0.0..1.0) * f64::from(attempt);
            sleep(Duration::from_secs_f64(pause / 1000.0)).await;
        }
        Ok(())
    }
}

fn late() -> StoreError {
    StoreError::Unavailable("no answer in time".into())
}

#[cfg(test)]
mod tests;
