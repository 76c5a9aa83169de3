//! The router's end of a sequence: hears tokens, knows which of them count, and steers.

use bytes::Bytes;
use futures::FutureExt;
use rein_proto::internal::{
    Admitted, Finish, FromEngine, Start, Steer, ToEngine, TokenLogprob, Tokens, from_engine, to_engine,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{error::Error, limits, pool::Lease};

/// A token that was drawn under the current epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    pub id: u32,
    pub logprob: Option<TokenLogprob>,
}

#[derive(Debug)]
pub enum Heard {
    /// The prompt has been computed. At most once, before any token.
    Admitted(Admitted),
    /// At least one token, in order, after those heard before.
    Tokens(Vec<Drawn>),
    /// The engine's last word, unless the sequence is steered on.
    Finish(Finish),
}

/// What to tell the engine: keep so many generated tokens, append these, and so on. See `Steer` in engine.proto.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Steering {
    pub(crate) keep: usize,
    pub(crate) append: Vec<u32>,
    pub(crate) mask: Option<Bytes>,
    pub(crate) hold: bool,
    pub(crate) stop: bool,
}

impl Steering {
    pub fn keep(keep: usize) -> Self {
        Steering { keep, ..Steering::default() }
    }

    pub fn append(mut self, ids: impl IntoIterator<Item = u32>) -> Self {
        self.append.extend(ids);
        self
    }

    /// One bit per token id for the position after what is kept and appended.
    pub fn mask(mut self, mask: Bytes) -> Self {
        self.mask = Some(mask);
        self
    }

    pub fn hold(mut self) -> Self {
        self.hold = true;
        self
    }

    pub fn stop(mut self) -> Self {
        self.stop = true;
        self
    }
}

/// Which tokens of the engine count: pure bookkeeping of epoch and position.
#[derive(Debug, Default)]
struct Course {
    epoch: u64,
    accepted: Vec<u32>,
}

impl Course {
    /// The tokens of this message that are new under the current epoch.
    fn hear(&mut self, tokens: Tokens) -> Result<Vec<Drawn>, Error> {
        if tokens.epoch < self.epoch {
            return Ok(Vec::new());
        }
        let position = tokens.position as usize;
        let known =
            self.accepted.len().checked_sub(position).filter(|_| tokens.epoch == self.epoch).ok_or_else(|| {
                let cause = format!(
                    "tokens of epoch {} at {position}, but {} are known under epoch {}",
                    tokens.epoch,
                    self.accepted.len(),
                    self.epoch
                );
                Error::internal("the engine's tokens came out of order", cause)
            })?;
        if !tokens.logprobs.is_empty() && tokens.logprobs.len() != tokens.ids.len() {
            let cause = format!("{} ids with {} logprobs", tokens.ids.len(), tokens.logprobs.len());
            return Err(Error::internal("the engine's logprobs do not match its tokens", cause));
        }
        let mut logprobs = tokens.logprobs.into_iter();
        let drawn = tokens.ids.into_iter().map(|id| Drawn { id, logprob: logprobs.next() });
        let drawn: Vec<Drawn> = drawn.skip(known).collect();
        self.accepted.extend(drawn.iter().map(|drawn| drawn.id));
        Ok(drawn)
    }

    fn steer(&mut self, steering: Steering) -> Steer {
        self.epoch += 1;
        self.accepted.truncate(steering.keep);
        let keep = self.accepted.len() as u32;
        self.accepted.extend(&steering.append);
        Steer {
            epoch: self.epoch,
            keep,
            append: steering.append,
            mask: steering.mask,
            hold: steering.hold,
            stop: steering.stop,
        }
    }
}

/// One sequence on an engine. Dropping it frees the sequence's slot.
pub struct EngineStream {
    to: mpsc::Sender<ToEngine>,
    from: Streaming<FromEngine>,
    course: Course,
    deadline: Instant,
    finished: bool,
    lease: Lease,
}

impl EngineStream {
    /// Returns when the engine has taken the sequence into its queue, or refused it.
    pub async fn open(lease: Lease, start: Start, deadline: Instant) -> Result<Self, Error> {
        let course = Course { epoch: 0, accepted: start.resume.clone() };
        let (to, queue) = mpsc::channel(limits::STEER_QUEUE);
        // An empty queue takes it.
        to.try_send(ToEngine { kind: Some(to_engine::Kind::Start(start)) })
            .map_err(|error| Error::internal("the request could not be sent to the engine", error))?;
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        let mut client = lease.engine().client();
        let call = async move { client.generate(request).await }.boxed();
        let from = match timeout_at(deadline, call).await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return Err(Error::from_engine(&status)),
            Err(_) => return Err(Error::deadline()),
        };
        Ok(EngineStream { to, from, course, deadline, finished: false, lease })
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The generated tokens that count, resumed and appended ones included.
    pub fn accepted(&self) -> &[u32] {
        &self.course.accepted
    }

    /// What the engine says next under the current epoch. Cancel-safe.
    pub async fn hear(&mut self) -> Result<Heard, Error> {
        loop {
            let message = match timeout_at(self.deadline, self.from.message()).await {
                Ok(Ok(Some(message))) => message,
                Ok(Ok(None)) => {
                    let cause = if self.finished { "read past the finish" } else { "the stream ended with no finish" };
                    return Err(Error::internal("the engine ended this request", cause));
                }
                Ok(Err(status)) => return Err(Error::from_engine(&status)),
                Err(_) => return Err(Error::deadline()),
            };
            match message.kind {
                Some(from_engine::Kind::Admitted(admitted)) => return Ok(Heard::Admitted(admitted)),
                Some(from_engine::Kind::Tokens(tokens)) => {
                    let drawn = self.course.hear(tokens)?;
                    if !drawn.is_empty() {
                        return Ok(Heard::Tokens(drawn));
                    }
                }
                Some(from_engine::Kind::Finish(finish)) if finish.epoch == self.course.epoch => {
                    self.finished = true;
                    return Ok(Heard::Finish(finish));
                }
                // Of an older epoch, or of a newer protocol.
                Some(from_engine::Kind::Finish(_)) | None => {}
            }
        }
    }

    /// From here on, only what the engine says after this counts.
    pub async fn steer(&mut self, steering: Steering) -> Result<(), Error> {
        let steer = self.course.steer(steering);
        self.finished = false;
        let sent = self.to.send(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) });
        match timeout_at(self.deadline, sent).await {
            // An engine that hung up says why on its own stream.
            Ok(_) => Ok(()),
            Err(_) => Err(Error::deadline()),
        }
    }

    /// Ends the sequence after `keep` tokens. What comes back is of no interest; if even the queue is full, dropping
    /// the stream does the same.
    pub fn stop(mut self, keep: usize) {
        let steer = self.course.steer(Steering::keep(keep).stop());
        let _ = self.to.try_send(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(epoch: u64, position: u32, ids: &[u32]) -> Tokens {
        Tokens { epoch, position, ids: ids.to_vec(), logprobs: Vec::new() }
    }

    fn ids(drawn: Vec<Drawn>) -> Vec<u32> {
        drawn.into_iter().map(|drawn| drawn.id).collect()
    }

    #[test]
    fn older_epochs_are_ignored_and_appended_tokens_count() {
        let mut course = Course::default();
        assert_eq!(ids(course.hear(tokens(0, 0, &[1, 2, 3])).unwrap()), [1, 2, 3]);
        let steer = course.steer(Steering::keep(1).append([9, 8]).hold());
        assert_eq!((steer.epoch, steer.keep, steer.append.as_slice(), steer.hold), (1, 1, [9, 8].as_slice(), true));
        assert_eq!(ids(course.hear(tokens(0, 3, &[4])).unwrap()), Vec::<u32>::new());
        assert_eq!(course.accepted, [1, 9, 8]);
        // Whether the engine repeats what was appended or not, it counts once.
        assert_eq!(ids(course.hear(tokens(1, 1, &[9, 8, 5])).unwrap()), [5]);
        assert_eq!(ids(course.hear(tokens(1, 4, &[6])).unwrap()), [6]);
        assert_eq!(course.accepted, [1, 9, 8, 5, 6]);
    }

    #[test]
    fn a_gap_or_an_epoch_from_nowhere_is_an_error() {
        assert!(Course::default().hear(tokens(0, 1, &[7])).is_err());
        assert!(Course::default().hear(tokens(1, 0, &[7])).is_err());
    }

    #[test]
    fn keeping_more_than_there_is_keeps_what_there_is() {
        let mut course = Course { epoch: 4, accepted: vec![1, 2] };
        let steer = course.steer(Steering::keep(9));
        assert_eq!((steer.epoch, steer.keep), (5, 2));
    }
}
