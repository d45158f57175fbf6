//! The open pages: each receives the state every two seconds.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::super::source::Source;

/// Maximum number of open pages.
const MAX_PAGES: usize = 32;
/// The time between two states.
const INTERVAL: Duration = Duration::from_secs(2);

/// An open page.
#[derive(Debug)]
struct Page {
    peer: IpAddr,
    events: Sender<Bytes>,
}

/// All open pages, in the order in which they came.
#[derive(Debug)]
pub(super) struct Viewers {
    source: Arc<Source>,
    open: Mutex<Vec<Page>>,
    page_added: Notify,
}

impl Viewers {
    /// Must be called within a runtime.
    pub(super) fn new(source: Arc<Source>) -> Arc<Self> {
        let viewers = Arc::new(Self { source, open: Mutex::default(), page_added: Notify::new() });
        tokio::spawn(Arc::clone(&viewers).publish());
        viewers
    }

    /// Adds a page, and returns its events. If there are too many pages, one is closed.
    pub(super) async fn join(&self, peer: IpAddr) -> Receiver<Bytes> {
        let (sender, receiver) = channel(1);
        self.with(|open| {
            open.retain(|other| !other.events.is_closed());
            if open.len() >= MAX_PAGES {
                let peers: Vec<IpAddr> = open.iter().map(|page| page.peer).collect();
                surplus_page(&peers).map(|index| open.remove(index));
            }
            open.push(Page { peer, events: sender.clone() });
        });
        // Another task may have sent a state already.
        let _ = sender.try_send(event(&self.source.state().await));
        self.page_added.notify_one();
        receiver
    }

    /// Queries slurmctld only while pages are open.
    async fn publish(self: Arc<Self>) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if self.with(|open| open.is_empty()) {
                self.page_added.notified().await;
                continue;
            }
            let event = event(&self.source.state().await);
            // A page that has not taken the last state gets the next one.
            self.with(|open| {
                open.retain(|page| !matches!(page.events.try_send(event.clone()), Err(TrySendError::Closed(_))))
            });
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Page>) -> T) -> T {
        act(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn event(state: &str) -> Bytes {
    Bytes::from(format!("data: {state}\n\n"))
}

/// The oldest page of the address that has the most: a client with many pages locks no other client out.
fn surplus_page(peers: &[IpAddr]) -> Option<usize> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for peer in peers {
        *counts.entry(*peer).or_default() += 1;
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    peers.iter().position(|peer| *peer == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_oldest_page_of_busiest_address() {
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!(surplus_page(&[one, other, other, one, other]), Some(1));
        assert_eq!(surplus_page(&[one]), Some(0));
        assert_eq!(surplus_page(&[]), None);
    }
}
