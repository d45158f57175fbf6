//! The DNS server of a namespace, because Docker's server resolves a container by its host name alone, but Kubernetes resolves a pod only
//! as POD.SERVICE.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Serves the pods' names and addresses until it is dropped.
pub(crate) struct Names {
    records: Option<Arc<Records>>,
    server: Option<JoinHandle<()>>,
}

type Records = Mutex<Vec<Record>>;

struct Record {
    pod: String,
    name: String,
    address: Ipv4Addr,
    /// Whether the name resolves even while there is no pod: a Service with an address.
    is_kept: bool,
}

/// The names of a pod, until it is dropped.
pub(crate) struct Registration {
    records: Weak<Records>,
    pod: String,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(records) = self.records.upgrade() {
            let mut records = records.lock().expect("the lock is not poisoned");
            records.retain(|record| record.is_kept || record.pod != self.pod);
        }
    }
}

impl Names {
    /// Listens on port 53 of an address of this machine, which requires root.
    #[track_caller]
    pub(crate) fn serve(address: &str) -> Self {
        let socket = UdpSocket::bind((address, 53)).expect("port 53 of the network's address (requires root)");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        let records = Arc::default();
        let weak = Arc::downgrade(&records);
        let server = std::thread::spawn(move || answer_all(&socket, &weak));
        Self { records: Some(records), server: Some(server) }
    }

    /// Registers a pod, in place of the previous pod of the same name. The flag of each name is whether the name outlives the pod.
    pub(crate) fn set(&self, pod: &str, address: &str, names: impl Iterator<Item = (String, bool)>) -> Registration {
        let shared = self.records.as_ref().expect("it serves");
        let mut records = shared.lock().expect("the lock is not poisoned");
        records.retain(|record| record.pod != pod);
        let address: Ipv4Addr = address.parse().expect("an address");
        records.extend(names.map(|(name, is_kept)| Record { pod: pod.to_owned(), name, address, is_kept }));
        Registration { records: Arc::downgrade(shared), pod: pod.to_owned() }
    }
}

impl Drop for Names {
    /// Waits until the port is free, because the next network may reuse the address.
    fn drop(&mut self) {
        self.records = None;
        self.server.take().map(JoinHandle::join);
    }
}

fn answer_all(socket: &UdpSocket, records: &Weak<Records>) {
    let mut query = [0; 512];
    loop {
        let received = socket.recv_from(&mut query);
        let Some(records) = records.upgrade() else { return };
        let Ok((length, from)) = received else { continue };
        let answer = answer(&query[..length], &records.lock().expect("the lock is not poisoned"));
        if let Some(answer) = answer {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// The reply to one question, with an address for each record of the name (RFC 1035, section 4).
fn answer(query: &[u8], records: &[Record]) -> Option<Vec<u8>> {
    let (mut name, mut at) = (String::new(), 12);
    while let length @ 1.. = usize::from(*query.get(at)?) {
        let label = query.get(at + 1..=at + length)?;
        name.push_str(&format!("{}.", String::from_utf8_lossy(label)));
        at += length + 1;
    }
    let question = query.get(12..at + 5)?;
    let matching: Vec<&Record> = records.iter().filter(|record| format!("{}.", record.name) == name).collect();
    let is_ipv4 = query.get(at + 2)? == &1;
    let addresses = matching.iter().filter(|_| is_ipv4).map(|record| record.address);
    // An authoritative answer; 3 is "no such name".
    let code = if matching.is_empty() { 3 } else { 0 };
    let count = u8::try_from(addresses.clone().count()).ok()?;
    let mut answer = [&query[..2], &[0x85, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0], question].concat();
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
