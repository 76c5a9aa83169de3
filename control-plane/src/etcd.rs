//! The store of a cluster: etcd over its v3 API.
//!
//! This module does not know what the keys mean.

use std::{
    collections::HashMap,
    error::Error as _,
    future::Future,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, EventType, GetOptions, Identity,
    LeaseKeepAliveStream, LeaseKeeper, PutOptions, TlsOptions, Txn, TxnOp, WatchOptions, WatchResponse, WatchStream,
};
use futures::stream;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::{
    limits,
    store::{
        ChangeStream, Changes, Entry, KeyCondition, LeaseId, Revision, Snapshot, Store, StoreError, Transaction, Write,
    },
};

/// gRPC codes for which a retry is useless.
const FINAL: [tonic::Code; 5] = [
    tonic::Code::InvalidArgument,
    tonic::Code::FailedPrecondition,
    tonic::Code::PermissionDenied,
    tonic::Code::Unauthenticated,
    tonic::Code::Unimplemented,
];

#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    /// As `host:port` or with a scheme. `https`, or any field of `tls`, turns TLS on.
    pub endpoints: Vec<String>,
    pub user: Option<(String, String)>,
    pub tls: EtcdTls,
}

/// PEM files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// The CA that signs the servers' certificates.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the servers' certificates, if it is not the endpoint's host.
    pub name: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error("--etcd: no endpoint given")]
    NoEndpoint,
    #[error("etcd: cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
}

pub struct Etcd {
    options: EtcdOptions,
    calls: Semaphore,
    client: tokio::sync::Mutex<Connected>,
    /// One renewal stream per lease. With a stream per renewal, etcd would answer on closed streams, and h2 closes a
    /// connection after a thousand such answers (`max_local_error_reset_streams`).
    renewals: Mutex<HashMap<LeaseId, Renewal>>,
}

/// A client, and the certificates that it connects with.
struct Connected {
    /// Created at the first call: authentication needs a reachable etcd.
    client: Option<Client>,
    pem: Pem,
    /// When the files were last compared with it.
    compared: Instant,
    /// A thread that reads them has a clone.
    reads: Arc<()>,
}

/// The contents of the files of [`EtcdTls`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Pem {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Pem {
    fn read(tls: &EtcdTls) -> Result<Pem, EtcdError> {
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|source| EtcdError::Read { path: path.clone(), source });
        let both = |(certificate, key): &(PathBuf, PathBuf)| Ok((read(certificate)?, read(key)?));
        Ok(Pem { ca: tls.ca.as_ref().map(read).transpose()?, identity: tls.identity.as_ref().map(both).transpose()? })
    }
}

/// The stream on which a lease is renewed.
struct Renewal {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    /// The lease has expired if it was not renewed by then.
    until: Instant,
}

impl Etcd {
    pub fn new(options: EtcdOptions) -> Result<Self, EtcdError> {
        if options.endpoints.is_empty() {
            return Err(EtcdError::NoEndpoint);
        }
        let pem = Pem::read(&options.tls)?;
        let calls = Semaphore::new(limits::STORE_CALLS);
        let client =
            tokio::sync::Mutex::new(Connected { client: None, pem, compared: Instant::now(), reads: Arc::default() });
        Ok(Etcd { options, calls, client, renewals: Mutex::default() })
    }

    async fn client(&self) -> Result<Client, Error> {
        let mut connected = self.client.lock().await;
        if let Some(client) = &connected.client {
            return Ok(client.clone());
        }
        let client = Client::connect(&self.options.endpoints, Some(self.connect_options(&connected.pem))).await?;
        connected.client = Some(client.clone());
        Ok(client)
    }

    fn connect_options(&self, pem: &Pem) -> ConnectOptions {
        let EtcdOptions { user, tls, .. } = &self.options;
        let mut connect = ConnectOptions::new()
            .with_connect_timeout(limits::STORE_CALL)
            .with_keep_alive(limits::STORE_SILENCE / 2, limits::STORE_SILENCE / 2)
            .with_keep_alive_while_idle(true)
            .with_auto_token_refresh(true);
        if let Some((user, password)) = user {
            connect = connect.with_user(user, password);
        }
        if *tls != EtcdTls::default() {
            let mut with = TlsOptions::new();
            if let Some(ca) = &pem.ca {
                with = with.ca_certificate(Certificate::from_pem(ca));
            }
            if let Some((certificate, key)) = &pem.identity {
                with = with.identity(Identity::from_pem(certificate, key));
            }
            if let Some(name) = &tls.name {
                with = with.domain_name(name);
            }
            connect = connect.with_tls(with);
        }
        connect
    }

    /// After a failure: if the certificates' files have changed, the next call connects with the new ones. A client
    /// keeps those that it was made with.
    async fn use_new_certificates(&self) {
        if self.options.tls == EtcdTls::default() {
            return;
        }
        let reads = {
            let mut connected = self.client.lock().await;
            if connected.compared.elapsed() < limits::CERTIFICATE_CHECK || Arc::strong_count(&connected.reads) > 1 {
                return;
            }
            connected.compared = Instant::now();
            connected.reads.clone()
        };
        let tls = self.options.tls.clone();
        // Another thread reads, and calls go on: a file system may hang.
        let read = tokio::task::spawn_blocking(move || {
            let _reads = reads;
            Pem::read(&tls)
        });
        // Files that are being replaced are read again after the next failure.
        let Ok(Ok(Ok(pem))) = timeout(limits::STORE_CALL, read).await else { return };
        let mut connected = self.client.lock().await;
        if pem != connected.pem {
            tracing::info!("the certificate files for etcd have changed; connecting with the new ones");
            (connected.client, connected.pem) = (None, pem);
        }
    }

    fn renewals(&self) -> MutexGuard<'_, HashMap<LeaseId, Renewal>> {
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a connected client, within `limits::STORE_CALL`.
    async fn call<T, F>(&self, call: impl FnOnce(Client) -> F + Send) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        self.within(async {
            // The semaphore is never closed.
            let _turn = self.calls.acquire().await.ok();
            call(self.client().await?).await
        })
        .await
    }

    async fn within<T>(&self, call: impl Future<Output = Result<T, Error>> + Send) -> Result<T, StoreError> {
        let answer = timeout(limits::STORE_CALL, call).await;
        let answer = match answer {
            Ok(answer) => answer.map_err(read_error),
            Err(_) => Err(StoreError::Unavailable("no answer in time".into())),
        };
        if let Err(StoreError::Unavailable(_)) = &answer {
            self.use_new_certificates().await;
        }
        answer
    }
}

fn read_error(error: Error) -> StoreError {
    match error {
        // How etcd reports an expired lease, for a write and for a renewal.
        Error::GRpcStatus(status) if status.code() == tonic::Code::NotFound => StoreError::LeaseLost,
        Error::LeaseKeepAliveError(why) if why.contains("not found") => StoreError::LeaseLost,
        Error::GRpcStatus(status) if FINAL.contains(&status.code()) => StoreError::Refused(status.message().to_owned()),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            StoreError::Refused(error.to_string())
        }
        error => StoreError::Unavailable(messages(&error)),
    }
}

/// The messages of an error and its sources. The client's own text has the sources as Rust debug text.
fn messages(error: &Error) -> String {
    let (first, source) = match error {
        Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        Error::TransportError(error) => (error.to_string(), error.source()),
        Error::IoError(error) => (error.to_string(), error.source()),
        error => (error.to_string(), None),
    };
    let sources = std::iter::successors(source, |&error| error.source()).map(ToString::to_string);
    let mut all: Vec<String> = Vec::new();
    for message in std::iter::once(first).chain(sources) {
        // Layers of the transport repeat each other's messages, and parts of them.
        for part in message.split(": ").filter(|part| !part.is_empty()) {
            if !all.iter().any(|known| known == part) {
                all.push(part.to_owned());
            }
        }
    }
    match (all.is_empty(), error) {
        (true, Error::GRpcStatus(status)) => status.code().to_string(),
        _ => all.join(": "),
    }
}

fn entry(pair: &etcd_client::KeyValue) -> (String, Entry) {
    let entry = Entry {
        value: Bytes::copy_from_slice(pair.value()),
        revision: pair.mod_revision() as Revision,
        lease: Some(LeaseId(pair.lease())).filter(|lease| lease.0 != 0),
    };
    (String::from_utf8_lossy(pair.key()).into_owned(), entry)
}

fn changes(response: &WatchResponse) -> Result<Option<Changes>, StoreError> {
    if response.compact_revision() > 0 {
        return Err(StoreError::Compacted(response.compact_revision() as Revision));
    }
    if response.canceled() {
        return Err(StoreError::Unavailable(format!("the watch was cancelled: {}", response.cancel_reason())));
    }
    let events = || response.events().iter().filter_map(|event| Some((event.kv()?, event.event_type())));
    let keys: Vec<_> = events()
        .map(|(pair, kind)| {
            let (key, entry) = entry(pair);
            (key, (kind == EventType::Put).then_some(entry))
        })
        .collect();
    // The revision in the header is the store's, which may be ahead of these events.
    let revision = events().map(|(pair, _)| pair.mod_revision()).max().unwrap_or(0) as Revision;
    Ok((!keys.is_empty()).then_some(Changes { revision, keys }))
}

/// The next changes. A watch may be silent for long; keepalive ends a broken connection.
async fn next(mut watch: WatchStream) -> Option<(Result<Changes, StoreError>, Option<WatchStream>)> {
    loop {
        let heard = match watch.message().await {
            Ok(Some(response)) => changes(&response),
            Ok(None) => Err(StoreError::Unavailable("the watch ended".into())),
            Err(error) => Err(read_error(error)),
        };
        match heard {
            Ok(Some(changes)) => return Some((Ok(changes), Some(watch))),
            Ok(None) => {}
            Err(error) => return Some((Err(error), None)),
        }
    }
}

/// Uses the lease's stream if there is one. After an error, a stream is dropped.
async fn renew(mut etcd: Client, lease: LeaseId, known: Option<Renewal>, asked: Instant) -> Result<Renewal, Error> {
    let lost = || Error::LeaseKeepAliveError("lease not found".to_owned());
    let Some(mut renewal) = known else {
        // Opening the stream renewed the lease once. The next renewal tells the TTL.
        let (keeper, answers) = etcd.lease_keep_alive(lease.0).await?;
        return Ok(Renewal { keeper, answers, until: asked + limits::RENEWAL_FIRST });
    };
    renewal.keeper.keep_alive().await?;
    let answer =
        renewal.answers.message().await?.ok_or_else(|| Error::LeaseKeepAliveError("the stream ended".to_owned()))?;
    let ttl = u64::try_from(answer.ttl()).ok().filter(|ttl| *ttl > 0).ok_or_else(lost)?;
    renewal.until = asked + Duration::from_secs(ttl);
    Ok(renewal)
}

#[async_trait]
impl Store for Etcd {
    async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let options = GetOptions::new().with_prefix();
        let answer = self.call(|mut etcd| async move { etcd.get(prefix, Some(options)).await }).await?;
        let (cluster, revision) = answer.header().map_or((0, 0), |header| (header.cluster_id(), header.revision()));
        let entries = answer.kvs().iter().map(entry).collect();
        Ok(Snapshot { cluster, revision: revision as Revision, entries })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError> {
        let options = WatchOptions::new().with_prefix().with_start_revision(after as i64 + 1);
        let watch = self.call(|mut etcd| async move { etcd.watch(prefix, Some(options)).await }).await?;
        Ok(Box::pin(stream::unfold(Some(watch), |watch| async { next(watch?).await })))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        let conditions: Vec<Compare> = transaction
            .conditions
            .into_iter()
            .map(|condition| match condition {
                KeyCondition::Absent(key) => Compare::create_revision(key, CompareOp::Equal, 0),
                KeyCondition::Present(key) => Compare::create_revision(key, CompareOp::Greater, 0),
                KeyCondition::At(key, revision) => Compare::mod_revision(key, CompareOp::Equal, revision as i64),
            })
            .collect();
        let writes: Vec<TxnOp> = transaction
            .writes
            .into_iter()
            .map(|write| match write {
                Write::Put { key, value, lease } => {
                    TxnOp::put(key, value, lease.map(|LeaseId(id)| PutOptions::new().with_lease(id)))
                }
                Write::Delete { key } => TxnOp::delete(key, None::<DeleteOptions>),
            })
            .collect();
        let txn = Txn::new().when(conditions).and_then(writes);
        let answer = self.call(|mut etcd| async move { etcd.txn(txn).await }).await?;
        let revision = answer.header().map_or(0, |header| header.revision()) as Revision;
        Ok(answer.succeeded().then_some(revision))
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let seconds = ttl.as_secs_f64().ceil().max(1.0) as i64;
        let answer = self.call(|mut etcd| async move { etcd.lease_grant(seconds, None).await }).await?;
        // Drops the streams of leases that were abandoned.
        let now = Instant::now();
        self.renewals().retain(|_, renewal| renewal.until > now);
        Ok(LeaseId(answer.id()))
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        let known = self.renewals().remove(&lease);
        let asked = Instant::now();
        // Bypasses the call limit: losing a lease is worse than exceeding it.
        let renewal = self.within(async { renew(self.client().await?, lease, known, asked).await }).await?;
        self.renewals().insert(lease, renewal);
        Ok(())
    }

    async fn revoke(&self, LeaseId(id): LeaseId) -> Result<(), StoreError> {
        self.renewals().remove(&LeaseId(id));
        match self.call(|mut etcd| async move { etcd.lease_revoke(id).await.map(drop) }).await {
            Err(StoreError::LeaseLost) => Ok(()),
            answer => answer,
        }
    }
}

#[cfg(test)]
mod tests;
