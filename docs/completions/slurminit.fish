# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_slurminit_global_optspecs
    string join \n h/help V/version
end

function __fish_slurminit_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_slurminit_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_slurminit_using_subcommand
    set -l cmd (__fish_slurminit_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c slurminit -n "__fish_slurminit_needs_command" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_needs_command" -s V -l version -d 'Print version'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "run" -d 'Start the cluster and supervise its daemons (the image\'s entry point)'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "up" -d 'Start the cluster in a container whose PID 1 is another program, and wait until it is ready'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "detect" -d 'Show the GPUs, CPUs and memory that this container can use'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "render" -d 'Show the Slurm files that a start would write; changes nothing'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "config" -d 'Check a slurminit.toml, or show each effective value and its origin'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "configure" -d 'Check Docker and the GPUs of this host, and write compose.gpus.yaml and .env'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "doctor" -d 'Check for all known faults, on the host or in the container, and show the repairs'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "reload" -d 'Detect again and apply changes of hardware and configuration, with as few restarts as possible'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "status" -d 'Show the daemons, the node and the GPUs'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "nodes" -d 'Show all nodes of the cluster and the users of their GPUs'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "top" -d 'Show GPUs, queue, nodes and daemons in the terminal, live (q quits)'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "drain" -d 'Drain nodes: no new jobs start there, running jobs continue'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "resume" -d 'Resume drained nodes'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "gpu" -d 'Release a GPU for a reset on the host, and give it back to jobs'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "token" -d 'Make a token for the REST API, which authenticates its holder as that user'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "usage" -d 'Show how many GPU and CPU hours each user has used'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "image" -d 'Import, list and remove container images for jobs (`srun --container=NAME`)'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "submit" -d 'Submit a command to particular nodes and GPUs, one job for each'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "health" -d 'Exit with 0 if the cluster is ready (or, with --live, alive), else print the reason and exit with 1'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "restart" -d 'Restart a daemon or service, and wait until it is ready'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "stop" -d 'Stop the container in order, as `docker stop` does'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "logs" -d 'Show the last lines of a daemon, of a service, or of slurminit itself'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "join-command" -d 'Print the command that joins another machine to this controller\'s cluster (it contains the cluster\'s key)'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "sbatch-args" -d 'Print the arguments of sbatch for the resources of a method.json'
complete -c slurminit -n "__fish_slurminit_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c slurminit -n "__fish_slurminit_using_subcommand run" -l role -d 'Which daemons to run: all, controller, compute, login, or none for a plain init of CMD' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand run" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand run" -l nodes -d 'Simulate a cluster with this number of nodes in this container' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand run" -l join -d 'Join the cluster of this token, which `slurminit join-command` prints in the controller\'s container' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand run" -l inherited -d 'The signal mask and ignored signals of the process that executes itself again without a join token' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand run" -l wait-jobs -d 'Continue after the end of CMD until no job is left that can still run'
complete -c slurminit -n "__fish_slurminit_using_subcommand run" -l detached -d 'Leave the terminal and session of the parent process: for `slurminit up`'
complete -c slurminit -n "__fish_slurminit_using_subcommand run" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand up" -l role -d 'Which daemons to run: all, controller, compute, login, or none for a plain init of CMD' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand up" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand up" -l nodes -d 'Simulate a cluster with this number of nodes in this container' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand up" -l timeout -d 'Wait until the cluster is ready, at most this many seconds [default: the configured timeout of a start, 90]' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand up" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand detect" -l root -d 'Look for /proc, /sys, /dev and /usr below this directory' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand detect" -l timeout -d 'Timeout of the whole detection' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand detect" -l nvml-library -d 'The NVIDIA management library, if it is not in the usual places' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand detect" -l config -d 'The configuration with the requirements of GPUs; /config/slurminit.toml if it exists' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand detect" -l json -d 'Print everything as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand detect" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand render" -l config -d 'The operator\'s file [default: SLURMINIT_CONFIG, else /config/slurminit.toml if it exists]' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand render" -l root -d 'Read below this directory' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand render" -l inventory -d 'Use this inventory (the output of `slurminit detect --json`) instead of detection' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand render" -l diff -d 'Show the differences from the installed files'
complete -c slurminit -n "__fish_slurminit_using_subcommand render" -l explain -d 'Show every decision with its reason'
complete -c slurminit -n "__fish_slurminit_using_subcommand render" -l json -d 'Print files, decisions and findings as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand render" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and not __fish_seen_subcommand_from check show help" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and not __fish_seen_subcommand_from check show help" -f -a "check" -d 'Check a slurminit.toml, and print its first error with line and key'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and not __fish_seen_subcommand_from check show help" -f -a "show" -d 'Show each effective value and its origin: default, file, variable, or the token of a cluster'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and not __fish_seen_subcommand_from check show help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and __fish_seen_subcommand_from show" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and __fish_seen_subcommand_from show" -l json -d 'Print everything as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "check" -d 'Check a slurminit.toml, and print its first error with line and key'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show each effective value and its origin: default, file, variable, or the token of a cluster'
complete -c slurminit -n "__fish_slurminit_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l root -d 'Look for the host\'s /proc, /sys, /dev, /etc and /usr below this directory' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l directory -d 'Where compose.yaml is, and the files are written' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l gpus -d 'The GPUs that the container gets: all, or comma-separated numbers, GPU-... and MIG-... ids' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l gpu-type -d 'The GPU vendor of the image, overriding the checks' -r -f -a "nvidia\t'nvidia GPUs'
amd\t'amd GPUs'
intel\t'intel GPUs'
none\t'No GPU'"
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l image -d 'The image for testing the GPUs, if the engine has it' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l timeout -d 'How long each of docker, compose and nvidia-smi may take' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l no-trial -d 'Start no container'
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l dry-run -d 'Change nothing, and show what would be written'
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -l print -d 'Change nothing, and print compose.gpus.yaml; the report goes to standard error'
complete -c slurminit -n "__fish_slurminit_using_subcommand configure" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l root -d 'The host\'s files are below this directory: `docker run -v /:/host:ro ... doctor --root /host`' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l timeout -d 'Timeout of each check' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l config -d 'In the container: the configuration; /config/slurminit.toml if it exists' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l credential -d 'In the container: a munge credential that another machine has just made; `-` reads it from standard input' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l image -d 'On the host: the image for testing the GPUs, if the engine has it' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l json -d 'Print everything as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l brief -d 'Show only faults, warnings and checks that failed to run'
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l no-trial -d 'Skip the container that tests the GPUs, on the host'
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -l container -d 'Examine the directory of --root as a container, not as a host'
complete -c slurminit -n "__fish_slurminit_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand reload" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand reload" -l dry-run -d 'Show what would change and how it would be applied; changes nothing'
complete -c slurminit -n "__fish_slurminit_using_subcommand reload" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand status" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand status" -l json -d 'Print everything as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand status" -l watch -d 'Refresh every second and at every change, until Ctrl-C'
complete -c slurminit -n "__fish_slurminit_using_subcommand status" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand nodes" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand nodes" -l json -d 'Print everything as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand nodes" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand top" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand top" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand drain" -l reason -d 'The reason, which Slurm shows with the node' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand drain" -l wait -d 'Wait until the jobs there have ended; exit with 1 if some have not' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand drain" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand drain" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand resume" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand resume" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and not __fish_seen_subcommand_from release return help" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and not __fish_seen_subcommand_from release return help" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and not __fish_seen_subcommand_from release return help" -f -a "release" -d 'Keep the GPU from jobs, wait until none has it, and close it, so that the host can reset it'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and not __fish_seen_subcommand_from release return help" -f -a "return" -d 'Check the GPU, and give it to jobs again'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and not __fish_seen_subcommand_from release return help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and __fish_seen_subcommand_from release" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and __fish_seen_subcommand_from return" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and __fish_seen_subcommand_from help" -f -a "release" -d 'Keep the GPU from jobs, wait until none has it, and close it, so that the host can reset it'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and __fish_seen_subcommand_from help" -f -a "return" -d 'Check the GPU, and give it to jobs again'
complete -c slurminit -n "__fish_slurminit_using_subcommand gpu; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c slurminit -n "__fish_slurminit_using_subcommand token" -l lifespan -d 'Validity' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand token" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand usage" -l since -d 'Start of the period: 2026-11-01, now-7days, or another time accepted by sacct' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand usage" -l until -d 'End of the period' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand usage" -l json -d 'Print everything as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand usage" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and not __fish_seen_subcommand_from import pull list show remove help" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and not __fish_seen_subcommand_from import pull list show remove help" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and not __fish_seen_subcommand_from import pull list show remove help" -f -a "import" -d 'Import an image: for all users as root, otherwise for this user'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and not __fish_seen_subcommand_from import pull list show remove help" -f -a "pull" -d 'Import an image from a registry with skopeo, as `import` does'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and not __fish_seen_subcommand_from import pull list show remove help" -f -a "list" -d 'List the images that this user\'s jobs can use'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and not __fish_seen_subcommand_from import pull list show remove help" -f -a "show" -d 'Show an image: size, origin, architecture, program, variables'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and not __fish_seen_subcommand_from import pull list show remove help" -f -a "remove" -d 'Remove an image; a running job that uses it loses its files'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and not __fish_seen_subcommand_from import pull list show remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from import" -l replace -d 'Replace an image of the same name'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from import" -l json -d 'Print the image\'s record as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from import" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from pull" -l replace -d 'Replace an image of the same name'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from pull" -l json -d 'Print the image\'s record as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from pull" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from list" -l json -d 'Print everything as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from show" -l json -d 'Print everything as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from remove" -l json -d 'Print the image\'s record as JSON'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "import" -d 'Import an image: for all users as root, otherwise for this user'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "pull" -d 'Import an image from a registry with skopeo, as `import` does'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the images that this user\'s jobs can use'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show an image: size, origin, architecture, program, variables'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Remove an image; a running job that uses it loses its files'
complete -c slurminit -n "__fish_slurminit_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c slurminit -n "__fish_slurminit_using_subcommand submit" -s t -l target -d 'A node and its GPUs: compute-1::0,2 or compute-1::all; without GPUs: compute-1' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand submit" -s c -l cores -d 'The CPUs of each job' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand submit" -s m -l memory -d 'The memory of each job, such as 16G' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand submit" -s o -l output -d 'The file for the command\'s output; %j is the job ID' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand submit" -l sbatch -d 'Another option of sbatch: --sbatch=--time=10; can be repeated' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand submit" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand submit" -l wait -d 'Wait until all jobs have ended; exit with 1 if one has failed'
complete -c slurminit -n "__fish_slurminit_using_subcommand submit" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand health" -l wait -d 'Wait until the check succeeds, at most this many seconds' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand health" -l hold -d 'For HEALTHCHECK: report success only if it lasts for this many seconds; report at once in the first seconds of being ready' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand health" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand health" -l ready -d 'Check whether jobs can run now (the default)'
complete -c slurminit -n "__fish_slurminit_using_subcommand health" -l live -d 'Check whether PID 1 responds and no essential daemon was given up; also succeeds during a start and a stop'
complete -c slurminit -n "__fish_slurminit_using_subcommand health" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand restart" -l timeout -d 'Timeout, in seconds [default: supervise.stop_timeout and ready_timeout together]' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand restart" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand restart" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand stop" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand stop" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand logs" -s n -l lines -d 'The maximum number of lines; 64 KiB are kept' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand logs" -l config -d 'The configuration; /config/slurminit.toml if there is one' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand logs" -s f -l follow -d 'Continue with each new line, across restarts of the daemon, until Ctrl-C'
complete -c slurminit -n "__fish_slurminit_using_subcommand logs" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand join-command" -l network -d 'The network of the new container: host, or a network of the container engine that the controller is in [default: host, if the controller uses its host\'s network]' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand join-command" -l address -d 'The controller\'s address for the new node [default: that of the default route]' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand join-command" -l expires -d 'Validity of the token: 30m, 12h, 7d' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand join-command" -l name -d 'The name of the new container, and of the node unless --network is host [default: compute, or compute-N]' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand join-command" -l image -d 'The image\'s name on the other machine [default: SLURMINIT_IMAGE, else slurminit:latest]' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand join-command" -l volume -d 'A volume, or a directory of the host, for the new container; can be repeated [default: this container\'s, on the same host]' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand join-command" -l config -d 'The operator\'s file [default: SLURMINIT_CONFIG, else /config/slurminit.toml if it exists]' -r -F
complete -c slurminit -n "__fish_slurminit_using_subcommand join-command" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand sbatch-args" -l partition -d 'The partition for the job, if not the default one' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand sbatch-args" -l timeout -d 'Timeout for the cluster\'s response' -r
complete -c slurminit -n "__fish_slurminit_using_subcommand sbatch-args" -l offline -d 'Do not check whether the cluster has the requested resources'
complete -c slurminit -n "__fish_slurminit_using_subcommand sbatch-args" -s h -l help -d 'Print help'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "run" -d 'Start the cluster and supervise its daemons (the image\'s entry point)'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "up" -d 'Start the cluster in a container whose PID 1 is another program, and wait until it is ready'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "detect" -d 'Show the GPUs, CPUs and memory that this container can use'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "render" -d 'Show the Slurm files that a start would write; changes nothing'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "config" -d 'Check a slurminit.toml, or show each effective value and its origin'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "configure" -d 'Check Docker and the GPUs of this host, and write compose.gpus.yaml and .env'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "doctor" -d 'Check for all known faults, on the host or in the container, and show the repairs'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "reload" -d 'Detect again and apply changes of hardware and configuration, with as few restarts as possible'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "status" -d 'Show the daemons, the node and the GPUs'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "nodes" -d 'Show all nodes of the cluster and the users of their GPUs'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "top" -d 'Show GPUs, queue, nodes and daemons in the terminal, live (q quits)'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "drain" -d 'Drain nodes: no new jobs start there, running jobs continue'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "resume" -d 'Resume drained nodes'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "gpu" -d 'Release a GPU for a reset on the host, and give it back to jobs'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "token" -d 'Make a token for the REST API, which authenticates its holder as that user'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "usage" -d 'Show how many GPU and CPU hours each user has used'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "image" -d 'Import, list and remove container images for jobs (`srun --container=NAME`)'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "submit" -d 'Submit a command to particular nodes and GPUs, one job for each'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "health" -d 'Exit with 0 if the cluster is ready (or, with --live, alive), else print the reason and exit with 1'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "restart" -d 'Restart a daemon or service, and wait until it is ready'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "stop" -d 'Stop the container in order, as `docker stop` does'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "logs" -d 'Show the last lines of a daemon, of a service, or of slurminit itself'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "join-command" -d 'Print the command that joins another machine to this controller\'s cluster (it contains the cluster\'s key)'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "sbatch-args" -d 'Print the arguments of sbatch for the resources of a method.json'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and not __fish_seen_subcommand_from run up detect render config configure doctor reload status nodes top drain resume gpu token usage image submit health restart stop logs join-command sbatch-args help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "check" -d 'Check a slurminit.toml, and print its first error with line and key'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "show" -d 'Show each effective value and its origin: default, file, variable, or the token of a cluster'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from gpu" -f -a "release" -d 'Keep the GPU from jobs, wait until none has it, and close it, so that the host can reset it'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from gpu" -f -a "return" -d 'Check the GPU, and give it to jobs again'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "import" -d 'Import an image: for all users as root, otherwise for this user'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "pull" -d 'Import an image from a registry with skopeo, as `import` does'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "list" -d 'List the images that this user\'s jobs can use'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "show" -d 'Show an image: size, origin, architecture, program, variables'
complete -c slurminit -n "__fish_slurminit_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "remove" -d 'Remove an image; a running job that uses it loses its files'
