//! Memory: whatever a user fills, the cluster is not what the kernel takes for it.

use super::attack::Attack;
use crate::long::faults::sign::Sign;

/// A limit, and no swap that would make it another one.
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
    // Each round has a file of its own, every second one without a name, and ends with the processes that have it open.
    let more = "i=0; while :; do i=$((i + 1)); \
                sh -c \"exec 3>/dev/shm/full-$i; [ $((i % 2)) = 1 ] || rm /dev/shm/full-$i; exec head -c 1000M /dev/zero >&3\"; done";
    let mut beyond =
        Attack::new("fills /dev/shm, 1 GiB of 512 MiB", more, Sign::event("memory-ran-out").with("user", "nobody"));
    beyond.image = beyond.image.with(["--memory=512m", "--memory-swap=512m", "--shm-size=1g"]);
    // On a busy machine the kernel can be faster than slurminit (docs/security.md).
    beyond.may_cost_a_job = true;
    vec![shm, tmp, processes, beyond]
}
