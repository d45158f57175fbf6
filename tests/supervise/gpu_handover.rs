//! `slurminit prolog`: a GPU's device file is closed to the processes of its previous users.

use super::*;

/// A container's /dev with two GPUs, which root of a user namespace cannot create. Job 7 of user 1502 gets the first GPU.
const SETUP: &str = r#"
mount -t tmpfs -o mode=755 dev /dev && mknod -m 666 /dev/null c 1 3
for gpu in 0 1; do mknod -m 666 /dev/nvidia$gpu c 1 3 || exit 77; done
cd "$1" && mkdir run
printf 'Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia1\n' >gres.conf
printf '[paths]\nrun = "%s/run"\n' "$1" >slurminit.toml
cp "$(command -v sh)" slurmstepd
# The command of a user (1501), or of a real and an effective user, whose process hides its open files (1501:1503).
as() { echo "exec setpriv --ruid ${1%:*} --euid ${1#*:} --clear-groups"; }
await() { until [ "$(cat "/proc/$1/comm")" = sleep ] || [ ! -e "/proc/$1" ]; do :; done; }
holder() { # USER
    sh -c "$(as "$1") sleep 600" </dev/nvidia0 &
    await $!
}
child() { # PROGRAM TITLE USER [LOCKS]: a process of the user below one of root
    (
        prlimit --pid=$BASHPID --locks="${4-unlimited}"
        exec -a "$2" "$1" -c "sh -c '$(as "$3") sleep 600 </dev/nvidia0' & echo \$! >pid; wait"
    ) &
    until [ -s pid ]; do :; done
    read -r child <pid && rm pid && await "$child"
}
bystander() { # USER: notes that it was stopped for a while
    $(as "$1") sh -c 'trap "echo $0 was stopped" CONT; echo up >&3; while :; do sleep 600 & wait; done' "$1" 3>up &
    until [ -s up ]; do :; done
    rm up
}
prolog() { # Without the capability to read other users' processes, which Docker withholds.
    SLURM_JOB_ID=7 SLURM_JOB_UID=1502 SLURM_JOB_GPUS=0 SLURM_CONF=$PWD/slurm.conf SLURMINIT_CONFIG=$PWD/slurminit.toml \
        setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace "$0" prolog --gives-gpus
}
ended() { # NAME=PID...
    local pair
    for pair; do
        case $(cut -d ' ' -f 3 "/proc/${pair#*=}/stat" 2>/dev/null) in '' | Z | X) echo "${pair%=*} ended" ;; T) echo "${pair%=*} stopped" ;; esac
    done
}
"#;

/// The output of a script in a container with two GPUs, and the prolog's messages without PIDs; `None` without such device files.
fn with_gpus(script: &str) -> Option<(String, Vec<String>)> {
    let (_keep, directory) = scratch();
    let end = run(container_script("bash", &format!("{SETUP}{script}"), &directory));
    let message = |line: &str| {
        let (start, rest) = line.split_once("killed process ").unwrap_or((line, ""));
        // The prolog prints the messages itself, because there is no PID 1 to log them.
        let rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
        format!("{start}{rest}").split(" (/").next().unwrap().to_owned()
    };
    let messages = end.stderr.lines().filter(|line| line.starts_with("preparing /dev/")).map(message).collect();
    (end.code != 77).then_some((end.stdout, messages))
}

#[test]
fn kills_processes_of_other_users_that_have_gpu_of_job_open() {
    let script = r#"
holder 1501; other=$!
holder 1502; own=$!
holder 1501:1503; hidden=$!
bystander 1501 >resumed
bystander 1502 >not-stopped
prolog
until [ -s resumed ]; do :; done
ended other=$other own=$own hidden=$hidden
cat resumed not-stopped run/gpu-users
stat --format='%a %u' /dev/nvidia0
"#;
    let Some((stdout, messages)) = with_gpus(script) else { return };
    assert_eq!(stdout, "other ended\n1501 was stopped\n1502 /dev/nvidia0\n660 0\n");
    assert_eq!(
        messages,
        ["preparing /dev/nvidia0 for job 7: (sleep) of uid 1501, which still had one of these GPUs open"]
    );
}

#[test]
fn kills_hidden_processes_of_previous_users_except_logins() {
    let script = r#"
echo "1501 /dev/nvidia0" >run/gpu-users
holder 1501:1503; orphan=$!
child sh sshd 1501:1503; login=$child
child sh slurmd 1501:1503 1000; job=$child
holder 1504:1503; other=$!
prolog
ended orphan=$orphan login=$login job=$job other=$other
"#;
    let Some((stdout, messages)) = with_gpus(script) else { return };
    assert_eq!(stdout, "orphan ended\njob ended\n");
    let killed = "preparing /dev/nvidia0 for job 7: (sleep) of uid 1501, who was given one of these GPUs before; could not check whether the process still had it open";
    assert_eq!(messages, [killed; 2]);
}

#[test]
fn job_with_another_gpu_keeps_gpu_open_until_it_ends() {
    let script = r#"
echo "1501 /dev/nvidia0" >run/gpu-users
echo "1501 /dev/nvidia1" >>run/gpu-users
chown 1501 /dev/nvidia1
child ./slurmstepd "slurmstepd: [5.batch]" 1501; open=$child
child ./slurmstepd "slurmstepd: [5.0]" 1501:1503 1000; hidden=$child
child ./slurmstepd "slurmstepd: [6.batch]" 1504; other=$child
prolog
ended open=$open hidden=$hidden other=$other
"#;
    let Some((stdout, messages)) = with_gpus(script) else { return };
    assert_eq!(stdout, "other ended\n");
    let given = "preparing /dev/nvidia0 for job 7: ";
    let (killed, kept) = (
        "(sleep) of uid 1504, which still had one of these GPUs open",
        "job 5 of uid 1501 has one of these GPUs open and can use it until job 5 ends",
    );
    assert_eq!(messages, [format!("{given}{killed}"), format!("{given}{kept}")]);
}

#[test]
fn epilog_revokes_only_access_of_job_user() {
    let script = r#"
epilog() { # USER [OPTION]
    SLURM_JOB_ID=7 SLURM_JOB_UID=$1 SLURM_JOB_GPUS=0 SLURM_CONF=$PWD/slurm.conf SLURMINIT_CONFIG=$PWD/slurminit.toml "$0" epilog $2
}
open_as_job_user() {
    setpriv --reuid=1502 --regid=1502 --clear-groups sh -c ': </dev/nvidia0' 2>/dev/null && echo opened || echo refused
}
prolog
open_as_job_user
epilog 1501
open_as_job_user
epilog 1502
open_as_job_user
# As NVIDIA's libraries do in a process of root.
chmod 666 /dev/nvidia0
epilog 1502
open_as_job_user
epilog 1502 --takes-gpus
open_as_job_user
"#;
    let Some((stdout, _)) = with_gpus(script) else { return };
    assert_eq!(stdout, "opened\nopened\nrefused\nopened\nrefused\n");
}
