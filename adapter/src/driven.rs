//! A queue whose sender runs in the task of its receiver. It does not know what is sent.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tokio::sync::mpsc;

/// A future that sends to a queue of the same task: it runs when somebody asks for the next item, and no task is woken
/// for an item.
pub struct Driven<T> {
    run: Option<BoxFuture<'static, ()>>,
    items: mpsc::Receiver<T>,
}

impl<T> Driven<T> {
    pub fn new(run: impl Future<Output = ()> + Send + 'static, items: mpsc::Receiver<T>) -> Self {
        Driven { run: Some(Box::pin(run)), items }
    }

    /// None: the future has ended, and all items were taken.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(run) = &mut self.run
            && Pin::new(run).poll(context).is_ready()
        {
            self.run = None;
        }
        match self.items.try_recv() {
            Ok(item) => Poll::Ready(Some(item)),
            Err(_) if self.run.is_none() => Poll::Ready(None),
            Err(_) => Poll::Pending,
        }
    }

    /// What is left to run.
    pub fn into_rest(self) -> Option<BoxFuture<'static, ()>> {
        self.run
    }
}

#[cfg(test)]
mod tests;
