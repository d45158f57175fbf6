//! Output that PID 1 parses: from sinfo, from `slurminit prepare`, and the daemons' log lines in chunks of any size.
#![no_main]

use init::logs::{Circumstances, LineSplitter, parse_daemon_line};
use libfuzzer_sys::fuzz_target;
use machine::node_report::NodeReport;
use model::inventory::{CpuSet, PciAddress};
use model::prepared::PrepareEvent;

fuzz_target!(|bytes: &[u8]| {
    let mut whole = Vec::new();
    for chunk_size in [1, 7, 4096] {
        let mut splitter = LineSplitter::default();
        let mut lines = Vec::new();
        for chunk in bytes.chunks(chunk_size) {
            splitter.push(chunk, |line| lines.push(line.to_vec()));
        }
        splitter.finish(|line| lines.push(line.to_vec()));
        assert!(whole.is_empty() || whole == lines, "the chunk size changed the lines");
        whole = lines;
    }
    // With these circumstances every line of the table of harmless lines can match.
    let first_start = Circumstances { new_state: true, without_cgroups: true, daemon_uids: vec![0] };
    for line in &whole {
        for daemon in ["munged", "slurmctld", "slurmd", "api"] {
            let (_, message) = parse_daemon_line(daemon, line, &first_start);
            assert!(message.len() <= line.len());
        }
        let text = String::from_utf8_lossy(line);
        if let Some(report) = NodeReport::parse(&text) {
            let _ = report.verdict();
            assert!(!report.state.is_empty());
        }
        let _ = serde_json::from_slice::<PrepareEvent>(line);
        if let Ok(address) = text.parse::<PciAddress>() {
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        if let Ok(set) = text.parse::<CpuSet>() {
            assert_eq!(set.to_string().parse(), Ok(set));
        }
    }
});
