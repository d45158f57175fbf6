//! Attacks by alice on bob and root: images, steps, secrets, logins, links, GPUs, memory.
//!
//! root records harm in /root/harm and counts rounds in /root/rounds; alice counts her attempts in /tmp/tries.

use super::attack::Attack;
use crate::docker::{DEMO, FULL, Image, PLAIN};
use crate::images::EXPORT;
use crate::long::faults::sign::Sign;

const ALICE: u32 = 1501;
const USERS: &str = "[[user]]\nname = \"alice\"\nuid = 1501\n[[user]]\nname = \"bob\"\nuid = 1502\n";
/// Shell functions of root.
const ROOT: &str = r#"
as_bob() { setpriv --reuid=1502 --regid=1502 --clear-groups env HOME=/home/bob "$@"; }
harm() { echo "$*" >>/root/harm; }
"#;
/// Succeeds if root completed at least one round without recording harm, and alice made at least one attempt.
const CHECK: &str = "wc -l /root/rounds /tmp/tries; cat /root/harm 2>/dev/null; ! [ -s /root/harm ] && [ -s /root/rounds ] && [ -s /tmp/tries ]";
const KEY: &str = "of-no-other-cluster/the-munge-key-of-this-test-0123456789";

fn attack(name: &'static str, image: &str, script: &str, root_loop: &str, sign: Sign) -> Attack {
    Attack {
        image: Image::new(image).with(["--hostname", "node1"]),
        toml: USERS.to_owned(),
        attacker: ALICE,
        root_script: format!("{ROOT}while :; do {root_loop}\necho >>/root/rounds; done"),
        check: CHECK.to_owned(),
        ..Attack::new(name, script, sign)
    }
}

pub(super) fn attacks() -> Vec<Attack> {
    vec![images(), steps(), slurmstepd(), secrets(), logins(), gpus(), memory()]
}

/// alice plants images that root and bob could use, swaps directories that root imports, and places links where root's jobs write.
fn images() -> Attack {
    let script = r#"
        own=~/.local/share/slurminit/images/planted; mkdir -p $own/rootfs; cp -r /tmp/image/. $own/rootfs; echo '{}' >$own/image.json
        cp -r /tmp/image /data/tree
        perl -e 'while (1) {
            for my $part ("", "/etc") { rename "/data/tree$part", "/data/away"; symlink "/root/private", "/data/tree$part";
                unlink "/data/tree$part"; rename "/data/away", "/data/tree$part" } }' &
        while :; do
            mkdir /data/images/planted; mv /data/images/small /data/images/other; ln -sfn $own /data/images/small
            next=$(scontrol show config | sed -n 's/^NEXT_JOB_ID *= //p')
            for place in /data /data/jobs /data/images /root; do
                for job in $next $((next + 1)) $((next + 2)); do ln -s /root/victim $place/slurm-$job.out; done
            done
            echo >>/tmp/tries
        done 2>/dev/null"#;
    let root_loop = r#"
        timeout 30 slurminit image import leak /data/tree; ! grep -rqs of-root-alone /data/images || harm leak
        ! [ -e /data/images/leak ] || slurminit image remove leak
        ! HOME=/home/alice srun --mem=16 --container=planted true || harm root ran a planted image
        [ "$(as_bob srun --mem=16 --container=small cat /etc/mark)" = inside ] || harm bob ran another image
        (cd /data/jobs && sbatch --wait --mem=16 --wrap id) || harm sbatch"#;
    Attack {
        prepare: format!(
            "{EXPORT}\nslurminit image import small /tmp/image.tar; mkdir -m 700 /root/private; echo of-root-alone >/root/private/file; \
             mkdir /data/jobs; echo kept >/root/victim"
        ),
        check: format!(
            "{CHECK} && [ \"$(cat /root/victim)\" = kept ] && [ \"$(stat -c %a /root/private)\" = 700 ] && \
             [ -z \"$(find /data/images ! -user root)\" ]"
        ),
        ..attack(
            "plants images and links where root and others use them",
            PLAIN,
            script,
            root_loop,
            Sign::event("ready"),
        )
    }
}

/// As root, slurmstepd creates directories below a directory of alice, who replaces them with links.
fn steps() -> Attack {
    let script = r#"
        while :; do timeout 20 srun --mem=16 --container=small true; done >/dev/null 2>&1 &
        perl -e 'chdir "/run/slurminit/oci/1501" or die; my $n = 0;
            while (1) {
                mkdir "/run/slurminit/oci/$_" for 0, 7, 1502; chmod 0500, "." if $n % 50 == 0;
                for my $name (glob "*-*") { if (-l $name) { unlink $name } else { rename $name, "away" . $n++; symlink "/srv/victim", $name } }
                my $job = (stat "/tmp/job")[7];
                for my $next ($job .. $job + 3) { symlink "/srv/victim", "$next-0-localhost$_" for "", "-0"; }
                chmod 0700, "."; system "rm -rf away*" if $n % 50 == 49; $n++;
                if ($n % 100 == 0) { open F, ">>", "/tmp/tries"; print F "\n"; close F }
            }' &
        # The size of the file is the next job ID.
        while :; do head -c "$(scontrol show config | sed -n 's/^NEXT_JOB_ID *= //p')" /dev/zero >/tmp/next; mv /tmp/next /tmp/job; done"#;
    let root_loop = r#"
        [ "$(srun --mem=16 --container=small sh -c 'id -u; cat /etc/mark' | tr '\n' ' ')" = '0 inside ' ] || harm root ran something else
        [ "$(as_bob srun --mem=16 --container=small id -u)" = 1502 ] || harm bob ran something else"#;
    Attack {
        prepare: format!(
            "{EXPORT}\nslurminit image import small /tmp/image.tar; mkdir -m 755 /srv/victim; echo kept >/srv/victim/environment"
        ),
        check: format!(
            "{CHECK} && [ \"$(cat /srv/victim/*)\" = kept ] && [ -z \"$(find /srv /etc /root -user alice)\" ] && \
             [ \"$(stat -c '%U %a' /run/slurminit/oci /run/slurminit/oci/0 | tr '\\n' ' ')\" = 'root 711 root 700 ' ]"
        ),
        ..attack("replaces what slurmstepd creates for steps in images", PLAIN, script, root_loop, Sign::event("ready"))
    }
}

/// Each connection to a slurmstepd creates a thread that runs as root. Some connections to each job succeed before its sockets are closed to users.
/// Without the protection all 270 would succeed within one job.
fn slurmstepd() -> Attack {
    let script = r#"exec perl -MSocket -e '
        my @held; my %of; my $most = 0; my $job = 1; my $directory = "/var/lib/slurm/slurmd";
        while (1) {
            for my $id ($job .. $job + 3) { for my $step (0, 4294967291, 4294967292) {
                socket(my $new, AF_UNIX, SOCK_STREAM, 0) or next;
                if (@held < 270 && connect($new, pack_sockaddr_un("$directory/localhost_$id.$step"))) {
                    push @held, $new; $most = $of{$id} if ++$of{$id} > $most;
                }
            } }
            $job = $job < 200 && -e "$directory/localhost_" . ($job + 3) . ".0" ? $job + 1 : $job;
            if ($most != $last || !$tried++) { $last = $most; open F, ">", "/tmp/new"; print F "$most\n"; close F; rename "/tmp/new", "/tmp/tries" }
        }'"#;
    let root_loop = "as_bob srun --mem=16 sleep 0.5 || harm a step of bob";
    Attack {
        image: Image::new(PLAIN).with(["--hostname", "node1", "--pids-limit=400"]),
        check: format!("{CHECK} && [ \"$(cat /tmp/tries)\" -lt 135 ]"),
        ..attack("270 connections to slurmstepd under --pids-limit 400", PLAIN, script, root_loop, Sign::event("ready"))
    }
}

/// The attacker is a system account, because a container with a secret may not have ordinary users.
fn secrets() -> Attack {
    let script = format!(
        r#"key='{KEY}'
        while :; do
            for file in /proc/[0-9]*/environ; do ! tr '\0' '\n' <$file | grep -q "$key" || echo $file >>/tmp/found; done 2>/dev/null
            ! {{ srun --mem=16 env; scontrol show job; scontrol show config; }} 2>/dev/null | grep -q "$key" || echo slurm >>/tmp/found
            ! grep -rqsF "$key" /etc /run /var/lib/slurm /var/spool /data || echo file >>/tmp/found
            echo >>/tmp/tries
        done"#
    );
    let root_loop = r#"
        srun --mem=16 sh -c 'env >/root/env; sleep 0.2'; ! grep -q 'MUNGE_KEY' /root/env || harm srun
        sbatch --wait --mem=16 --output=/root/env --wrap env; ! grep -q 'MUNGE_KEY' /root/env || harm sbatch"#;
    Attack {
        image: Image::new(PLAIN).with(["--hostname", "node1", "--env", &format!("SLURMINIT_MUNGE_KEY={KEY}")]),
        toml: String::new(),
        attacker: 65534,
        check: format!("{CHECK} && cat /tmp/found 2>/dev/null; ! [ -e /tmp/found ]"),
        ..attack(
            "looks for secrets of the container's environment",
            PLAIN,
            &script,
            root_loop,
            Sign::event("exposed-secrets"),
        )
    }
}

/// Unauthenticated connections from an address that differs from the other users' address.
fn logins() -> Attack {
    let script = r#"exec perl -MIO::Socket::INET -e '
        my @held;
        while (1) {
            @held = grep { my $bits = ""; vec($bits, fileno($_), 1) = 1; !(select($bits, undef, undef, 0) && !sysread($_, my $byte, 100)) } @held;
            while (@held < 150) { push @held, IO::Socket::INET->new(PeerAddr => "127.0.0.1:22", LocalAddr => "127.0.0.2") || last }
            open F, ">>", "/tmp/tries"; print F "\n"; close F; select undef, undef, undef, 0.1;
        }'"#;
    let root_loop = "[ \"$(timeout 20 ssh -i /root/id -o BatchMode=yes -o StrictHostKeyChecking=no -o LogLevel=ERROR bob@127.0.0.1 id -u)\" = 1502 ] || \
                     harm a login of bob; sleep 0.5";
    Attack {
        toml: format!("[login]\nport = 22\n{USERS}"),
        prepare: "ssh-keygen -q -t ed25519 -N '' -f /root/id && install -d -o bob -g bob -m 700 /home/bob/.ssh && \
                  install -o bob -g bob -m 600 /root/id.pub /home/bob/.ssh/authorized_keys"
            .to_owned(),
        ..attack("150 connections to sshd without logging in", FULL, script, root_loop, Sign::Words("drop connection"))
    }
}

/// Processes that keep GPUs open after their jobs, in a container where slurminit is not PID 1.
fn gpus() -> Attack {
    let hold = r#"syscall(157, 4, 0, 0, 0, 0); open $f{$_}, "+<", "/dev/nvidia$_" for 0, 1; sleep 600"#;
    let script = format!(
        r#"printf '%s' '{hold}' >/tmp/hold
        while :; do
            srun --mem=16 --gres=gpu:2 sh -c '(setsid perl /tmp/hold & env -i setsid perl /tmp/hold & perl /tmp/hold &) >/dev/null 2>&1 </dev/null; sleep 0.3'
            echo >>/tmp/tries
        done 2>/dev/null"#
    );
    let root_loop = r#"
        rm -f /data/bob; (as_bob timeout 60 srun --mem=16 --gres=gpu:2 sh -c 'echo >/data/bob; sleep 1; rm /data/bob') &
        until [ -e /data/bob ] || ! kill -0 $!; do sleep 0.05; done
        for process in $(pgrep -U 1501); do
            ! ls -l /proc/$process/fd 2>/dev/null | grep -q 'nvidia[01]$' || ! [ -e /data/bob ] || harm process $process has a GPU of bob
        done
        wait $! || harm a job of bob"#;
    Attack {
        image: Image::new(DEMO).with(["--init", "--hostname", "node1", "--env", "DEMO_GPUS=2"]),
        ..attack(
            "keeps GPUs open after its jobs, under --init",
            DEMO,
            &script,
            root_loop,
            Sign::event("gpu-user-killed"),
        )
    }
}

/// alice fills /dev/shm. The memory guard must not cancel another user's job because of that.
fn memory() -> Attack {
    let script = r#"while :; do
            echo >>/tmp/tries; head -c 600M /dev/zero >/dev/shm/full; sleep 3; rm -f /dev/shm/full; sleep 1
        done"#;
    let toml = format!("[agent]\ninterval = 0.5\n[memory]\nguard = true\nclose_below = 48\ncancel_below = 45\n{USERS}");
    Attack {
        toml,
        image: Image::new(PLAIN).with(["--hostname", "node1", "--memory=1g", "--memory-swap=1g", "--shm-size=900m"]),
        // The node is resumed once the file is removed.
        check: format!("{CHECK} && rm -f /dev/shm/full"),
        ..attack(
            "fills /dev/shm where the memory guard is on",
            PLAIN,
            script,
            "timeout 60 squeue >/dev/null || harm squeue; sleep 0.5",
            Sign::event("no-job-cancelled-for-memory"),
        )
    }
}
