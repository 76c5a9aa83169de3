//! API keys: authentication, and rate limits per key. It does not know requests.
//!
//! The file has only hashes. A key is 256 random bits, so a plain SHA-256 is enough: a slow password hash protects only
//! against guessing, and nobody can guess 256 random bits.

mod file;
mod shared;
mod usage;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, SecondsFormat, Utc};
use prometheus_client::registry::Registry;
use rein_text::sha256_hex;
use ring::digest::{SHA256, digest};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tokio::{sync::Notify, time::Instant};

use crate::{
    error::{Error, ErrorKind},
    fair::{CallerName, FairSemaphore, Requester},
    hot_reload::{FileError, FileProblem, HotReloaded, WatchedFile},
    metrics::{NO_LABELS, Samples, on_scrape},
};

use self::file::HASH_BYTES;
use self::usage::{Division, IN_FLIGHT, KeyUsage, LIMITS, LimitReached};
pub use self::{
    file::{KeyEntry, instant, read_key_file},
    shared::LimitStore,
};

/// The keys of a file, which is reloaded when it changes.
#[derive(Clone)]
pub struct ApiKeys {
    clients: Arc<HotReloaded<Vec<Arc<Client>>>>,
    usages: Arc<Mutex<Usages>>,
    refused: Arc<AtomicU64>,
}

/// The usage of each name.
#[derive(Default)]
struct Usages {
    of: HashMap<String, Arc<KeyUsage>>,
    division: Division,
    /// See [`KeyUsage::new`].
    wanted: Arc<Notify>,
}

struct Client {
    name: Arc<str>,
    hash: [u8; HASH_BYTES],
    rates: [Option<u64>; 2],
    max_in_flight: u32,
    priority: i64,
    share_prefix_cache: bool,
    expires: Option<DateTime<Utc>>,
    models: Option<BTreeSet<String>>,
    usage: Arc<KeyUsage>,
}

/// The key that a request was authenticated with.
#[derive(Clone)]
pub struct ApiCaller(Arc<Client>);

/// A limit per minute, the rest of it, and how long until all of it is available again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub limit: u64,
    pub remaining: u64,
    pub reset: Duration,
}

/// A request's share of its key's `max_in_flight`. It is returned when dropped.
pub struct KeyPermit {
    key: ApiCaller,
    slots: u32,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clients.get().iter().map(|client| &client.name)).finish()
    }
}

impl fmt::Debug for ApiCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Caller").field(&self.0.name).finish()
    }
}

impl ApiKeys {
    /// `flag` is the command line option that names the file.
    pub fn open(flag: &'static str, path: PathBuf) -> Result<Self, FileError> {
        let usages: Arc<Mutex<Usages>> = Arc::default();
        let build = {
            let usages = usages.clone();
            move |files: &[Vec<u8>]| {
                let mut usages = locked(&usages);
                parse_clients(&files[0], &mut usages, Instant::now()).map_err(|what| FileProblem::new(0, what))
            }
        };
        let clients = HotReloaded::open(vec![WatchedFile { flag, path }], build)?;
        Ok(ApiKeys { clients: Arc::new(clients), usages, refused: Arc::default() })
    }

    /// Finds the key that a request has sent.
    pub fn authenticate(&self, key: Option<&[u8]>, now: DateTime<Utc>) -> Result<ApiCaller, Error> {
        let Some(key) = key else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let message = "an API key is required: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'";
            return Err(Error::unauthenticated(message));
        };
        let refused = |message: &str| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            // The error must not repeat any part of the key.
            Error::unauthenticated(message)
        };
        let found = self.find(key).ok_or_else(|| refused("the API key is not valid for this server"))?;
        match found.0.expires.filter(|expires| *expires <= now) {
            Some(expires) => {
                let time = expires.to_rfc3339_opts(SecondsFormat::Secs, true);
                Err(refused(&format!("the API key '{}' has expired at {time}", found.name())))
            }
            None => Ok(found),
        }
    }

    /// Takes the same time for valid and invalid keys, so that the time reveals nothing about the keys.
    fn find(&self, key: &[u8]) -> Option<ApiCaller> {
        let clients = self.clients.get();
        let given = digest(&SHA256, key);
        let (mut found, mut at) = (Choice::from(0), 0u32);
        for (i, client) in clients.iter().enumerate() {
            let same = client.hash.as_slice().ct_eq(given.as_ref());
            at.conditional_assign(&(i as u32), same);
            found |= same;
        }
        bool::from(found).then(|| clients.get(at as usize).cloned().map(ApiCaller)).flatten()
    }

    pub fn register(&self, registry: &mut Registry) {
        let keys = self.clone();
        on_scrape(registry, move |samples| keys.write(samples));
    }

    fn write(&self, samples: &mut Samples<'_>) -> fmt::Result {
        let clients = self.clients.get();
        let read = |read: fn(&KeyUsage) -> u64| {
            clients.iter().map(move |client| ([("key", &*client.name)], read(&client.usage)))
        };
        let requests = read(|usage| usage.requests.load(Ordering::Relaxed));
        samples.counter("rein_key_requests", "Requests by API key", requests)?;
        let tokens = read(|usage| usage.tokens.load(Ordering::Relaxed));
        samples.counter("rein_key_tokens", "Prompt and generated tokens by API key", tokens)?;
        let open = read(|usage| usage.in_flight().into());
        samples.gauge("rein_key_requests_in_flight", "Requests in flight by API key", open)?;
        let limited = clients.iter().flat_map(|client| {
            let counts = LIMITS.iter().zip(&client.usage.limited);
            counts.map(|(limit, count)| ([("key", &*client.name), ("limit", *limit)], count.load(Ordering::Relaxed)))
        });
        samples.counter("rein_key_limited", "Requests refused by a limit of their API key", limited)?;
        let refused = [(NO_LABELS, self.refused.load(Ordering::Relaxed))];
        samples.counter("rein_unauthenticated", "Requests without a valid API key", refused)
    }

    #[cfg(test)]
    pub fn refresh(&self) {
        self.clients.refresh();
    }
}

/// The salt of a key with this name that shares its cached prefixes with no other.
pub fn cache_salt(name: &str, asked: Option<&str>) -> String {
    sha256_hex(format!("key\0{name}\0{}", asked.unwrap_or_default()).as_bytes())
}

/// The name of a request's key.
pub fn caller_name(caller: Option<&ApiCaller>) -> CallerName {
    caller.map(|caller| caller.0.name.clone())
}

/// The request that work is done for.
pub fn requester(caller: Option<&ApiCaller>, deadline: Instant) -> Requester {
    Requester { caller: caller_name(caller), deadline }
}

impl ApiCaller {
    /// The key's name, which may be shown and logged.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether it may use the model of this name.
    pub fn may_use(&self, model: &str) -> bool {
        self.0.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// The request's priority. It may be less urgent than its key's, but not more.
    pub fn priority(&self, asked: Option<i64>) -> i64 {
        asked.map_or(self.0.priority, |asked| asked.max(self.0.priority))
    }

    /// The salt under which prefixes of this key's prompts are cached. Otherwise the time of an answer, or its count of
    /// cached tokens, would tell a key what others have asked. A key that shares the cache does so with all that do.
    pub fn cache_salt(&self, asked: Option<&str>) -> Option<String> {
        let Client { name, share_prefix_cache, .. } = &*self.0;
        match (share_prefix_cache, asked) {
            (true, None) => None,
            // Hashed, so that no client can ask for the salt of another key.
            (true, Some(asked)) => Some(sha256_hex(format!("shared\0{asked}").as_bytes())),
            (false, asked) => Some(cache_salt(name, asked)),
        }
    }

    /// The most in-flight slots that this key may hold at once.
    pub fn max_in_flight(&self) -> u32 {
        self.0.max_in_flight
    }

    /// One permit for all long grammar compilations of this key.
    pub fn long_grammars(&self) -> &FairSemaphore {
        &self.0.usage.long_grammars
    }

    /// Counts one request. Err: it exceeds a rate limit of the key.
    pub async fn begin(&self) -> Result<(), Error> {
        let reached = self.0.usage.begin().await.err();
        reached.map_or(Ok(()), |LimitReached { limit, wait }| {
            let (rate, what) = (self.0.rates[limit].unwrap_or_default(), LIMITS[limit]);
            Err(self.limited(limit, format!("{rate} {what} per minute"), wait))
        })
    }

    /// Counts prompt or generated tokens.
    pub fn charge(&self, tokens: u64, now: Instant) {
        self.0.usage.charge(tokens, now);
    }

    /// Takes one of the key's `max_in_flight`. Err: none is free.
    pub async fn enter(&self) -> Result<KeyPermit, Error> {
        let mut permit = KeyPermit { key: self.clone(), slots: 0 };
        permit.extend_to(1).await?;
        Ok(permit)
    }

    fn limited(&self, limit: usize, what: String, wait: Duration) -> Error {
        self.0.usage.limited[limit].fetch_add(1, Ordering::Relaxed);
        let message = format!("the key '{}' is limited to {what}; try again later", self.0.name);
        Error { retry_after: Some(wait), code: Some("rate_limit_exceeded"), ..Error::full(message) }
    }

    /// The key's rates of requests and of tokens. None: there is no limit.
    pub fn rates(&self, now: Instant) -> [Option<Rate>; 2] {
        let rate = |(limit, left, reset)| Rate { limit, remaining: left, reset };
        self.0.usage.rates(now).map(|known| known.map(rate))
    }
}

impl KeyPermit {
    /// Takes more of the key's `max_in_flight`, up to this many. Err: they are not free, or the key never has as many.
    pub async fn extend_to(&mut self, slots: usize) -> Result<(), Error> {
        let Client { max_in_flight, usage, name, .. } = &*self.key.0;
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        if slots > *max_in_flight {
            let message = format!(
                "this request has {slots} choices ('n' for each prompt); the key '{name}' may have {max_in_flight} at once"
            );
            return Err(Error::invalid("n", message));
        }
        if slots <= self.slots {
            return Ok(());
        }
        // Returned first: requests that each keep one and wait for more would all be refused.
        usage.leave(std::mem::take(&mut self.slots));
        if let Err(LimitReached { wait, .. }) = usage.enter(slots).await {
            let what = format!("{max_in_flight} requests at once, where each choice counts");
            return Err(self.key.limited(IN_FLIGHT, what, wait));
        }
        self.slots = slots;
        Ok(())
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        self.key.0.usage.leave(self.slots);
    }
}

fn locked(usages: &Mutex<Usages>) -> MutexGuard<'_, Usages> {
    usages.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the file. Err: its first error.
fn parse_clients(bytes: &[u8], usages: &mut Usages, now: Instant) -> Result<Vec<Arc<Client>>, String> {
    let entries = read_key_file(bytes)?;
    let Usages { of, division, wanted } = usages;
    // Only a valid file changes anything.
    of.retain(|name, _| entries.iter().any(|entry| entry.name == *name));
    let client = |entry: KeyEntry| {
        let new = || Arc::new(KeyUsage::new(*division, wanted.clone()));
        let usage = of.entry(entry.name.clone()).or_insert_with(new).clone();
        let rates = [entry.requests_per_minute, entry.tokens_per_minute];
        let max_in_flight = entry.max_in_flight.unwrap_or(u32::MAX);
        usage.set_limits(rates, max_in_flight, now);
        Arc::new(Client {
            name: entry.name.into(),
            hash: entry.hash,
            rates,
            max_in_flight,
            priority: entry.priority,
            share_prefix_cache: entry.share_prefix_cache,
            expires: entry.expires,
            models: entry.models.map(BTreeSet::from_iter),
            usage,
        })
    };
    Ok(entries.into_iter().map(client).collect())
}

/// The hash of a key, as it is written in the file.
pub fn key_hash(key: &str) -> String {
    sha256_hex(key.as_bytes())
}

impl Error {
    pub fn unauthenticated(message: &str) -> Self {
        Error { code: Some("invalid_api_key"), ..Error::new(ErrorKind::Unauthenticated, message) }
    }
}

#[cfg(test)]
mod tests;
