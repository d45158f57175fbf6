//! The open connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;

/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 256;

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
    has_request: bool,
    task: Option<AbortHandle>,
}

impl Connections {
    /// A slot for a new connection. Closes the oldest one without a request if needed; `None` if all have one.
    pub(super) fn open_slot(self: &Arc<Self>) -> Option<Slot> {
        self.with(|table| {
            if table.open.len() >= MAX_CONNECTIONS {
                let idle =
                    table.open.iter().find(|(_, connection)| !connection.has_request).map(|(number, _)| *number)?;
                let task = table.open.remove(&idle).and_then(|connection| connection.task);
                task.inspect(AbortHandle::abort);
            }
            table.next += 1;
            table.open.insert(table.next, Connection::default());
            Some(Slot { number: table.next, connections: Arc::clone(self) })
        })
    }

    /// Sets the task that serves the connection.
    pub(super) fn set_task(&self, number: u64, task: AbortHandle) {
        self.with(|table| table.open.get_mut(&number).map(|connection| connection.task = Some(task)));
    }

    fn with<T>(&self, act: impl FnOnce(&mut Table) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection's slot, which is released on drop.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    connections: Arc<Connections>,
}

impl Slot {
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Marks that the request has arrived.
    pub(super) fn mark_request(&self) {
        self.connections.with(|table| table.open.get_mut(&self.number).map(|connection| connection.has_request = true));
    }
}

impl Drop for Slot {
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
        let mut slots: Vec<Slot> = (0..MAX_CONNECTIONS).filter_map(|_| connections.open_slot()).collect();
        assert_eq!(slots.len(), MAX_CONNECTIONS);
        slots[0].mark_request();
        let next = connections.open_slot().unwrap();
        assert!(connections.with(|table| table.open.contains_key(&1) && !table.open.contains_key(&2)));
        next.mark_request();
        slots.iter().for_each(Slot::mark_request);
        assert!(connections.open_slot().is_none());
        slots.truncate(1);
        assert!(connections.open_slot().is_some());
    }
}
