//! The open pages: each receives the state every two seconds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::super::source::Source;

/// Maximum number of open pages.
const MOST: usize = 32;
/// The time between two states.
const PAUSE: Duration = Duration::from_secs(2);

/// All open pages.
#[derive(Debug)]
pub(super) struct Viewers {
    source: Arc<Source>,
    open: Mutex<Vec<Sender<Bytes>>>,
    come: Notify,
}

impl Viewers {
    /// Must be called within a runtime.
    pub(super) fn new(source: Arc<Source>) -> Arc<Self> {
        let viewers = Arc::new(Self { source, open: Mutex::default(), come: Notify::new() });
        tokio::spawn(Arc::clone(&viewers).tell());
        viewers
    }

    /// A new page and its stream; `None` if there are too many.
    pub(super) async fn join(&self) -> Option<Receiver<Bytes>> {
        let (sender, receiver) = channel(1);
        if !self.with(|open| {
            open.retain(|other| !other.is_closed());
            let has_place = open.len() < MOST;
            has_place.then(|| open.push(sender.clone())).is_some()
        }) {
            return None;
        }
        // A concurrent caller may have stored a state already.
        let _ = sender.try_send(event(&self.source.state().await));
        self.come.notify_one();
        Some(receiver)
    }

    /// Queries slurmctld only while pages are open.
    async fn tell(self: Arc<Self>) {
        loop {
            tokio::time::sleep(PAUSE).await;
            if self.with(|open| open.is_empty()) {
                self.come.notified().await;
                continue;
            }
            let event = event(&self.source.state().await);
            // A page that has not read the last state gets the next one.
            self.with(|open| open.retain(|page| !matches!(page.try_send(event.clone()), Err(TrySendError::Closed(_)))));
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Sender<Bytes>>) -> T) -> T {
        act(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn event(state: &str) -> Bytes {
    Bytes::from(format!("data: {state}\n\n"))
}
