//! `slurminit epilog`: the processes that a job left behind are ended, and no others.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A container with a GPU whose /proc has only its own processes. User 1501 has run job 7 with the GPU.
const SETUP: &str = r#"
cd "$1" && mkdir run dev
mount --rbind /dev dev && mount -t tmpfs -o mode=755 dev /dev && touch /dev/null /dev/nvidia0 && mount --bind dev/null /dev/null
printf 'Name=gpu File=/dev/nvidia0\n' >gres.conf
printf '[paths]\nrun = "%s/run"\n' "$1" >slurminit.toml
cp "$(command -v sh)" slurmd && cp slurmd slurmstepd
# Starts a process of the user, which ends as `sleep`. slurmd's descendants have a limit of file locks.
process() { # LOCKS PROGRAM...
    prlimit --pid=$BASHPID --locks="$1"
    shift
    exec setpriv --reuid=1501 --regid=1501 --clear-groups setsid env -i "$@"
}
await() { until [ "$(cat "/proc/$1/comm")" = sleep ]; do :; done; } # PID
orphan() { # VARIABLE LOCKS PROGRAM...
    local name=$1
    shift
    (process "$@" & echo $! >pid)
    read -r "$name" <pid
    await ${!name}
}
step() { # VARIABLE PROGRAM...: of job 8
    local name=$1
    shift
    rm -f pid
    (prlimit --pid=$BASHPID --locks=1000 && exec -a 'slurmstepd: [8.batch]' ./slurmstepd -c '"$@" & echo $! >pid; wait' sh \
        setpriv --reuid=1501 --regid=1501 --clear-groups "$@") &
    until [ -s pid ]; do :; done
    read -r "$name" <pid
    await ${!name}
}
epilog() { # OPTION-OF-SETPRIV...
    export SLURM_JOB_ID=7 SLURM_JOB_UID=1501 SLURM_JOB_USER=alice SLURM_JOB_GPUS=0
    export SLURM_CONF=$PWD/slurm.conf SLURMINIT_CONFIG=$PWD/slurminit.toml
    # The time limits must not depend on the machine's load.
    (prlimit --pid=$BASHPID --locks=1000 && exec nice -n -20 ./slurmd -c '"$@" && :' sh setpriv "$@" "$0" epilog)
}
state() { # NAME...: of variables with PIDs
    local name
    for name; do
        case $(cut -d ' ' -f 3 "/proc/${!name}/stat" 2>/dev/null) in '' | Z | X) echo "$name ended" ;; *) echo "$name runs" ;; esac
    done
}
"#;

/// The output of a script in the container, and the messages of the epilog, without PIDs and the signals.
fn in_container_with_gpu(script: &str) -> (String, Vec<String>) {
    let (_keep, directory) = scratch();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let end = run(container_script("bash", &format!("{SETUP}{script}"), &directory));
    // The epilog prints the messages itself, because there is no PID 1 to log them.
    let messages = end.stderr.lines().filter_map(|line| line.strip_prefix("job 7 of alice left ")).map(|line| {
        let words = line.split(": ended with SIGTERM").next().unwrap().split(' ');
        words.filter(|word| word.parse::<i32>().is_err()).collect::<Vec<_>>().join(" ")
    });
    (end.stdout, messages.collect())
}

#[test]
fn epilog_ends_processes_of_its_job_only() {
    let script = r#"
orphan own 1000 SLURM_JOB_ID=7 sleep 600
orphan deaf 900 SLURM_JOB_ID=7 sh -c 'trap "" TERM; exec sleep 600'
orphan holder 1000 sh -c 'exec sleep 600 </dev/nvidia0'
orphan other 1000 SLURM_JOB_ID=8 sleep 600
orphan unknown 1000 sleep 600
orphan service unlimited SLURM_JOB_ID=7 sleep 600
step task sleep 600
epilog
state own deaf holder other unknown service task
"#;
    let (stdout, messages) = in_container_with_gpu(script);
    let expected = "own ended\ndeaf ended\nholder ended\nother runs\nunknown runs\nservice runs\ntask runs\n";
    assert_eq!(stdout, expected);
    let process = "process (sleep) behind";
    assert_eq!(messages, [&format!("{process}, which held /dev/nvidia0 open"), process, process]);
}

#[test]
fn epilog_ends_all_processes_of_user_without_another_job() {
    let script = r#"
orphan unknown 1000 sleep 600
orphan holder 1000 sh -c 'exec sleep 600 </dev/nvidia0'
epilog
state unknown holder
orphan unknown 1000 sleep 600
# Root may not send signals to processes of others here, so only the user itself can end them.
epilog --bounding-set=-kill --inh-caps=-kill
state unknown
"#;
    let (stdout, messages) = in_container_with_gpu(script);
    assert_eq!(stdout, "unknown ended\nholder ended\nunknown ended\n");
    let process = "process (sleep) behind";
    assert_eq!(messages, [&format!("{process}, which held /dev/nvidia0 open"), process, process]);
}

#[test]
fn epilog_reports_processes_that_survive_until_its_deadline() {
    let script = r#"
orphan own 1000 sleep 600
orphan service unlimited sleep 600
start=$(date +%s%3N)
epilog --bounding-set=-kill --inh-caps=-kill
[ $(($(date +%s%3N) - start)) -ge 700 ] && echo waited
state own service
"#;
    let (stdout, messages) = in_container_with_gpu(script);
    assert_eq!(stdout, "waited\nown runs\nservice runs\n");
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0].starts_with("processes that survive SIGKILL and may hold its GPUs: (sleep); in all"),
        "{messages:?}"
    );
}
