//! Memory: when a user fills it, the kernel must not kill the cluster's daemons.

use super::attack::Attack;
use crate::long::faults::sign::Sign;

/// Memory limit without swap, which would raise it.
const LIMIT: [&str; 2] = ["--memory=300m", "--memory-swap=300m"];

pub(super) fn attacks() -> Vec<Attack> {
    let fills =
        |place: &str| format!("while :; do head -c 1000M /dev/zero >{place}/full; sleep 1; rm -f {place}/full; done");
    let small = "i=0; while [ $i -lt 250 ]; do i=$((i + 1)); \
                 perl -e 'my @a; while (1) { push @a, \"x\" x 100000; select(undef, undef, undef, 0.1) }' & done; wait";
    let mut shm = Attack::new("fills /dev/shm, 64 MiB of 300", &fills("/dev/shm"), Sign::event("ready"));
    shm.image = shm.image.with(LIMIT);
    let mut tmp = Attack::new("fills a tmpfs of 100 MiB of 300", &fills("/scratch"), Sign::event("ready"));
    tmp.image = tmp.image.with(LIMIT).with(["--tmpfs=/scratch:size=100m"]);
    let mut processes = Attack::new("250 small processes until 300 MiB are full", small, Sign::event("ready"));
    processes.image = processes.image.with(LIMIT);
    vec![shm, tmp, processes]
}
