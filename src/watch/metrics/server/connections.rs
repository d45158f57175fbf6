//! The open connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;

/// Maximum number of connections.
const MOST: usize = 256;

/// All connections, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Connection>,
}

#[derive(Debug, Default)]
struct Connection {
    /// Whether the connection's request has arrived.
    asks: bool,
    task: Option<AbortHandle>,
}

impl Connections {
    /// A slot for a new connection. Closes the oldest one without a request if needed; `None` if all have one.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Place> {
        self.with(|table| {
            if table.open.len() >= MOST {
                let idle = table.open.iter().find(|(_, connection)| !connection.asks).map(|(number, _)| *number)?;
                let task = table.open.remove(&idle).and_then(|connection| connection.task);
                task.inspect(AbortHandle::abort);
            }
            table.next += 1;
            table.open.insert(table.next, Connection::default());
            Some(Place { number: table.next, connections: Arc::clone(self) })
        })
    }

    /// Sets the task that serves the connection.
    pub(super) fn started(&self, number: u64, task: AbortHandle) {
        self.with(|table| table.open.get_mut(&number).map(|connection| connection.task = Some(task)));
    }

    fn with<T>(&self, act: impl FnOnce(&mut Table) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection's slot, which is released on drop.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    connections: Arc<Connections>,
}

impl Place {
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Marks that the request has arrived.
    pub(super) fn asks(&self) {
        self.connections.with(|table| table.open.get_mut(&self.number).map(|connection| connection.asks = true));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.with(|table| table.open.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_oldest_connection_without_request() {
        let connections = Arc::new(Connections::default());
        let mut places: Vec<Place> = (0..MOST).filter_map(|_| connections.enter()).collect();
        assert_eq!(places.len(), MOST);
        places[0].asks();
        let next = connections.enter().unwrap();
        assert!(connections.with(|table| table.open.contains_key(&1) && !table.open.contains_key(&2)));
        next.asks();
        places.iter().for_each(Place::asks);
        assert!(connections.enter().is_none());
        places.truncate(1);
        assert!(connections.enter().is_some());
    }
}
