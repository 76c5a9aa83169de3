//! Whether an engine is still the one that joined: by each new connection, by what its answers say of it, and by the
//! checks of the join at intervals. It does not know sequences.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::sync::Notify;

use crate::connection::{EngineHttp, Proof, ProofStep};
use crate::dialect::{EngineDialect, Said};
use crate::join::{Deployment, EngineJoinError, Joined, join, tokens};

#[derive(Debug)]
pub struct Identity {
    http: Arc<EngineHttp>,
    dialect: EngineDialect,
    deployment: Deployment,
    joined: Joined,
    /// What its answers said when it was proven last.
    heard: Mutex<Said>,
    doubts: Notify,
}

/// Why an engine is not proven to be the one that joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unproven {
    /// It does not answer.
    Silent(String),
    /// It is another one.
    Other(String),
}

impl Identity {
    /// From now on, each new connection is proven.
    pub fn new(http: Arc<EngineHttp>, dialect: EngineDialect, deployment: Deployment, joined: Joined) -> Self {
        http.prove_connections(proof(dialect, &deployment, &joined));
        let (heard, doubts) = (Mutex::default(), Notify::new());
        Identity { http, dialect, deployment, joined, heard, doubts }
    }

    pub fn joined(&self) -> &Joined {
        &self.joined
    }

    /// Asks the engine again all that it was asked when it joined.
    pub async fn prove(&self) -> Result<(), Unproven> {
        match join(&self.http, self.dialect, &self.deployment).await {
            Ok(found) if found.is_same(&self.joined) => Ok(()),
            Ok(found) => {
                let (was, is) = (self.joined.kind(self.dialect), found.kind(self.dialect));
                Err(Unproven::Other(format!(
                    "it was {was} and is {is} now, or has another context or block size; restart this process to use it"
                )))
            }
            Err(EngineJoinError::Unanswered(why)) => Err(Unproven::Silent(why)),
            Err(error @ EngineJoinError::Refused { .. }) => Err(Unproven::Other(error.to_string())),
        }
    }

    /// An answer says something of its engine. If that is new, the engine is proven again.
    pub async fn hear(&self, said: &Said) -> Result<(), Unproven> {
        if self.knows(said) {
            return Ok(());
        }
        self.prove().await?;
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.take(said, true);
        Ok(())
    }

    /// The same for an answer that has ended: the engine is proven in the background.
    pub fn hear_late(&self, said: &Said) {
        if !self.knows(said) {
            self.doubts.notify_one();
        }
    }

    /// Waits until there is a doubt.
    pub async fn doubted(&self) {
        self.doubts.notified().await;
        // The proof follows, and counts for what is said then.
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Said::default();
    }

    /// Whether nothing new is said. What was never heard is believed: the connection has been proven.
    fn knows(&self, said: &Said) -> bool {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let known = said.agrees(&heard);
        if known {
            heard.take(said, false);
        }
        known
    }
}

fn proof(dialect: EngineDialect, deployment: &Deployment, joined: &Joined) -> Proof {
    let paths = dialect.probes();
    let model = joined.model.clone();
    let answered = |path: &str, status: StatusCode| match status {
        StatusCode::OK => Ok(()),
        status => Err(format!("{path} answers {}", status.as_u16())),
    };
    let models = ProofStep {
        method: Method::GET,
        path: paths.models,
        body: Bytes::new(),
        check: Box::new(move |status, answer| {
            answered(paths.models, status)?;
            match dialect.facts(answer, None, None)?.models.contains(&model) {
                true => Ok(()),
                false => Err(format!("another engine answers: it does not list the model {model}")),
            }
        }),
    };
    let text = deployment.probes.iter().max_by_key(|(_, ids)| ids.len()).map(|(text, ids)| {
        let ids = ids.clone();
        ProofStep {
            method: Method::POST,
            path: paths.tokenize,
            body: dialect.tokenize_body(text, &joined.model),
            check: Box::new(move |status, answer| {
                answered(paths.tokenize, status)?;
                match tokens(answer)? == ids {
                    true => Ok(()),
                    false => Err("another engine answers: its tokenizer differs".into()),
                }
            }),
        }
    });
    [models].into_iter().chain(text).collect()
}
