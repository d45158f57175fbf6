//! `slurminit jobs account`: jobs that slurmctld launched again while slurmd was suspended.

use super::*;

/// The processes `own` (slurmd), `other` (a slurmd that slurminit did not start) and `step`. Job 73 may run only once.
const SCRIPT: &str = r##"
cd "$1" && mkdir bin state && cp "$(command -v sh)" slurmd && cp slurmd slurmstepd
conf='BOOT_TIME = 2026-11-28T09:00:00\nStateSaveLocation = %s/state\nSlurmdSpoolDir = %s/spool\n'
printf "#!/bin/sh\n[ \$1 = show ] && printf '$conf'\nexit 0\n" "$PWD" "$PWD" >bin/scontrol
printf '#!/bin/sh\necho "$*" >>"%s/cancelled"\n' "$PWD" >bin/scancel
row='73              73              N/A             0               RUNNING         START     c1              '
printf "#!/bin/sh\necho '$row'\n" | sed "s/START     /$(cat start)/" >bin/squeue
chmod +x bin/*
echo 73 >state/slurminit.begun
start() { # PROGRAM LOCKS
    ( prlimit --pid=$BASHPID --locks="$2"; exec "./$1" -c "echo \$\$ >up; sleep 600 & wait" ) &
    until [ -s up ]; do :; done
    rm up
}
start slurmd 1000; own=$!
start slurmd unlimited; other=$!
start slurmstepd 1000; step=$!
PATH=$PWD/bin:$PATH SLURMINIT_CONFIG= "$0" jobs --node c1 account --held
[ ! -e cancelled ] || wait "$own" # SIGKILL was sent, and takes effect later.
for name in own other step; do
    case $(cut -d ' ' -f 3 "/proc/$((name))/stat" 2>/dev/null) in '' | Z | X) echo "$name ended" ;; *) echo "$name runs" ;; esac
done
cat cancelled 2>/dev/null
"##;

#[test]
fn slurmd_that_has_read_second_launch_is_restarted() {
    // Job 73 started before or after this slurmctld.
    for (start, processes) in [
        ("2026-11-28T10:00:00", "own ended\nother runs\nstep runs\n73\n"),
        ("2026-11-28T08:00:00", "own runs\nother runs\nstep runs\n"),
    ] {
        let (_keep, directory) = scratch();
        fs::write(directory.join("start"), format!("{start:<24}")).unwrap();
        let end = run(container_script("bash", SCRIPT, &directory));
        assert_eq!(end.stdout, processes, "{}", end.stderr);
    }
}
