//! The store of a fleet: etcd over its v3 API.

use std::{future::Future, path::PathBuf, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, EventType, GetOptions, Identity,
    PutOptions, TlsOptions, Txn, TxnOp, WatchOptions, WatchResponse, WatchStream,
};
use futures::stream;
use tokio::{sync::OnceCell, time::timeout};

use crate::{
    limits,
    store::{Changes, Condition, Entry, LeaseId, Revision, Snapshot, Store, StoreError, Transaction, Watch, Write},
};

/// gRPC codes after which the same call would fail again.
const FINAL: [tonic::Code; 5] = [
    tonic::Code::InvalidArgument,
    tonic::Code::FailedPrecondition,
    tonic::Code::PermissionDenied,
    tonic::Code::Unauthenticated,
    tonic::Code::Unimplemented,
];

#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    /// As `host:port` or with a scheme; https, or any of `tls`, makes the connection a TLS one.
    pub endpoints: Vec<String>,
    pub user: Option<(String, String)>,
    pub tls: EtcdTls,
}

/// PEM files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// Whose signature the servers' certificates must bear.
    pub ca: Option<PathBuf>,
    /// This client's certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the servers' certificates must have, where it is not the endpoint's.
    pub name: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error("etcd: no endpoint is named")]
    NoEndpoint,
    #[error("etcd: cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
}

pub struct Etcd {
    options: EtcdOptions,
    connect: ConnectOptions,
    /// Made at the first call: with a user, etcd has to be there for it.
    client: OnceCell<Client>,
}

impl Etcd {
    pub fn new(options: EtcdOptions) -> Result<Self, EtcdError> {
        if options.endpoints.is_empty() {
            return Err(EtcdError::NoEndpoint);
        }
        let mut connect = ConnectOptions::new()
            .with_connect_timeout(limits::STORE_CALL)
            .with_keep_alive(limits::STORE_SILENCE / 2, limits::STORE_SILENCE / 2)
            .with_keep_alive_while_idle(true)
            .with_auto_token_refresh(true);
        if let Some((user, password)) = &options.user {
            connect = connect.with_user(user, password);
        }
        let tls = &options.tls;
        if *tls != EtcdTls::default() {
            let read =
                |path: &PathBuf| std::fs::read(path).map_err(|source| EtcdError::Read { path: path.clone(), source });
            let mut with = TlsOptions::new();
            if let Some(ca) = &tls.ca {
                with = with.ca_certificate(Certificate::from_pem(read(ca)?));
            }
            if let Some((certificate, key)) = &tls.identity {
                with = with.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            if let Some(name) = &tls.name {
                with = with.domain_name(name);
            }
            connect = connect.with_tls(with);
        }
        Ok(Etcd { options, connect, client: OnceCell::new() })
    }

    async fn client(&self) -> Result<Client, Error> {
        let connect = || Client::connect(&self.options.endpoints, Some(self.connect.clone()));
        self.client.get_or_try_init(connect).await.cloned()
    }

    /// A call of a connected client that ends in time.
    async fn call<T, F>(&self, call: impl FnOnce(Client) -> F + Send) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let answer = timeout(limits::STORE_CALL, async { call(self.client().await?).await }).await;
        answer.map_err(|_| StoreError::Unavailable("it does not answer".into()))?.map_err(read_error)
    }
}

fn read_error(error: Error) -> StoreError {
    match error {
        // What etcd says of a lease that has expired, to a write and to a renewal.
        Error::GRpcStatus(status) if status.code() == tonic::Code::NotFound => StoreError::LeaseLost,
        Error::LeaseKeepAliveError(why) if why.contains("not found") => StoreError::LeaseLost,
        Error::GRpcStatus(status) if FINAL.contains(&status.code()) => StoreError::Refused(status.message().to_owned()),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            StoreError::Refused(error.to_string())
        }
        error => StoreError::Unavailable(error.to_string()),
    }
}

fn entry(pair: &etcd_client::KeyValue) -> (String, Entry) {
    let entry = Entry { value: Bytes::copy_from_slice(pair.value()), revision: pair.mod_revision() as Revision };
    (String::from_utf8_lossy(pair.key()).into_owned(), entry)
}

fn changes(response: &WatchResponse) -> Result<Option<Changes>, StoreError> {
    if response.compact_revision() > 0 {
        return Err(StoreError::Compacted(response.compact_revision() as Revision));
    }
    if response.canceled() {
        return Err(StoreError::Unavailable(format!("the watch was cancelled: {}", response.cancel_reason())));
    }
    let keys: Vec<_> = response
        .events()
        .iter()
        .filter_map(|event| {
            let (key, entry) = entry(event.kv()?);
            Some((key, (event.event_type() == EventType::Put).then_some(entry)))
        })
        .collect();
    let revision = response.header().map_or(0, |header| header.revision()) as Revision;
    Ok((!keys.is_empty()).then_some(Changes { revision, keys }))
}

/// What etcd says next. It may be silent for long; a connection that is broken ends by its keepalive.
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

#[async_trait]
impl Store for Etcd {
    async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let options = GetOptions::new().with_prefix();
        let answer = self.call(|mut etcd| async move { etcd.get(prefix, Some(options)).await }).await?;
        let revision = answer.header().map_or(0, |header| header.revision()) as Revision;
        Ok(Snapshot { revision, entries: answer.kvs().iter().map(entry).collect() })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        let options = WatchOptions::new().with_prefix().with_start_revision(after as i64 + 1);
        let watch = self.call(|mut etcd| async move { etcd.watch(prefix, Some(options)).await }).await?;
        Ok(Box::pin(stream::unfold(Some(watch), |watch| async { next(watch?).await })))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        let conditions: Vec<Compare> = transaction
            .conditions
            .into_iter()
            .map(|condition| match condition {
                Condition::Absent(key) => Compare::create_revision(key, CompareOp::Equal, 0),
                Condition::At(key, revision) => Compare::mod_revision(key, CompareOp::Equal, revision as i64),
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
        Ok(LeaseId(answer.id()))
    }

    async fn renew(&self, LeaseId(id): LeaseId) -> Result<(), StoreError> {
        self.call(|mut etcd| async move { etcd.lease_keep_alive(id).await.map(drop) }).await
    }

    async fn revoke(&self, LeaseId(id): LeaseId) -> Result<(), StoreError> {
        match self.call(|mut etcd| async move { etcd.lease_revoke(id).await.map(drop) }).await {
            Err(StoreError::LeaseLost) => Ok(()),
            answer => answer,
        }
    }
}
