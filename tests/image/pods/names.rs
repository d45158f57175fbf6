//! The name server of a namespace. Docker's own knows each container by its host name alone, Kubernetes' only with a Service's name behind it.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The pods' names and addresses, as long as this lives.
pub(crate) struct Names {
    records: Option<Arc<Mutex<Vec<Record>>>>,
    server: Option<JoinHandle<()>>,
}

struct Record {
    pod: String,
    name: String,
    address: Ipv4Addr,
}

impl Names {
    /// Answers at an address of this machine, which needs root.
    #[track_caller]
    pub(crate) fn serve(address: &str) -> Self {
        let socket = UdpSocket::bind((address, 53)).expect("port 53 of the network's own address: it needs root");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        let records = Arc::default();
        let known = Arc::downgrade(&records);
        let server = std::thread::spawn(move || answer_all(&socket, &known));
        Self { records: Some(records), server: Some(server) }
    }

    /// A pod is there, in place of a former one of its name.
    pub(crate) fn set(&self, pod: &str, address: &str, names: impl Iterator<Item = String>) {
        let Some(records) = &self.records else { return };
        let mut records = records.lock().expect("no test panics with it");
        records.retain(|record| record.pod != pod);
        let address: Ipv4Addr = address.parse().expect("an address");
        records.extend(names.map(|name| Record { pod: pod.to_owned(), name, address }));
    }
}

impl Drop for Names {
    /// Waits until the port is free: the next network may have this one's addresses.
    fn drop(&mut self) {
        self.records = None;
        self.server.take().map(JoinHandle::join);
    }
}

fn answer_all(socket: &UdpSocket, records: &Weak<Mutex<Vec<Record>>>) {
    let mut query = [0; 512];
    loop {
        let received = socket.recv_from(&mut query);
        let Some(records) = records.upgrade() else { return };
        let Ok((length, from)) = received else { continue };
        let answer = answer(&query[..length], &records.lock().expect("no test panics with it"));
        if let Some(answer) = answer {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// RFC 1035, section 4: one question, and an address for each record of the name.
fn answer(query: &[u8], records: &[Record]) -> Option<Vec<u8>> {
    let (mut name, mut at) = (String::new(), 12);
    while let length @ 1.. = usize::from(*query.get(at)?) {
        let label = query.get(at + 1..=at + length)?;
        name.push_str(&format!("{}.", String::from_utf8_lossy(label)));
        at += length + 1;
    }
    let question = query.get(12..at + 5)?;
    let known: Vec<&Record> = records.iter().filter(|record| format!("{}.", record.name) == name).collect();
    let is_ipv4 = query.get(at + 2)? == &1;
    let addresses = known.iter().filter(|_| is_ipv4).map(|record| record.address);
    // An authoritative answer; 3 is "no such name".
    let code = if known.is_empty() { 3 } else { 0 };
    let count = u8::try_from(addresses.clone().count()).ok()?;
    let mut answer = [&query[..2], &[0x85, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0], question].concat();
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
