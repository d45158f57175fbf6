//! Messages to PID 1 over its sockets, and arguments that it passes to its children.
#![no_main]

use config::StartOnlyTables;
use machine::protocol::{line, parse_answer, take_request};
use init::handover::{Claim, Kinship, check_claim, main_pid};
use libfuzzer_sys::fuzz_target;
use sys::proc::Stat;

const MAIN: i32 = 40;

fuzz_target!(|bytes: &[u8]| {
    for ended in [false, true] {
        if let Some(Ok(request)) = take_request(bytes, ended) {
            assert_eq!(take_request(&line(&request), false), Some(Ok(request)));
        }
    }
    let _ = parse_answer(bytes);

    let process = Stat::parse(&String::from_utf8_lossy(bytes)).map(Kinship::from);
    if let Ok(Some(named)) = main_pid(bytes) {
        assert!(named > 0);
        let claim = Claim { main: MAIN, session: MAIN, init: 1, sender: (MAIN, None), candidate: (named, process) };
        if let Ok(Some(successor)) = check_claim(&claim) {
            assert_eq!(process.map(|process| process.session), Some(MAIN), "{successor:?} is in another session");
        }
    }

    if let Ok(tables) = String::from_utf8_lossy(bytes).parse::<StartOnlyTables>() {
        assert_eq!(tables.to_string().parse(), Ok(tables));
    }
});
