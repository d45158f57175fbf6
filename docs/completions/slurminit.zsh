#compdef slurminit

autoload -U is-at-least

_slurminit() {
    typeset -A opt_args
    typeset -a _arguments_options
    local ret=1

    if is-at-least 5.2; then
        _arguments_options=(-s -S -C)
    else
        _arguments_options=(-s -C)
    fi

    local context curcontext="$curcontext" state line
    _arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_slurminit_commands" \
"*::: :->slurminit" \
&& ret=0
    case $state in
    (slurminit)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-command-$line[1]:"
        case $line[1] in
            (run)
_arguments "${_arguments_options[@]}" : \
'--role=[Which daemons to run\: all, controller, compute, login, or none for a plain init of CMD]:ROLE:_default' \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'--nodes=[Simulate a cluster with this number of nodes in this container]:N:_default' \
'--join=[Join the cluster of this token, which \`slurminit join-command\` prints in the controller'\''s container]:TOKEN:_default' \
'--inherited=[The signal mask and ignored signals of the process that executes itself again without a join token]:INHERITED:_default' \
'--wait-jobs[Continue after the end of CMD until no job is left that can still run]' \
'--detached[Leave the terminal and session of the parent process\: for \`slurminit up\`]' \
'-h[Print help]' \
'--help[Print help]' \
'*::cmd -- The command to run when the cluster is ready; its exit code becomes the container'\''s:_default' \
&& ret=0
;;
(up)
_arguments "${_arguments_options[@]}" : \
'--role=[Which daemons to run\: all, controller, compute, login, or none for a plain init of CMD]:ROLE:_default' \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'--nodes=[Simulate a cluster with this number of nodes in this container]:N:_default' \
'--timeout=[Wait until the cluster is ready, at most this many seconds \[default\: the configured timeout of a start, 90\]]:SECONDS:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(detect)
_arguments "${_arguments_options[@]}" : \
'--root=[Look for /proc, /sys, /dev and /usr below this directory]:DIR:_files' \
'--timeout=[Timeout of the whole detection]:SECONDS:_default' \
'--nvml-library=[The NVIDIA management library, if it is not in the usual places]:FILE:_files' \
'--config=[The configuration with the requirements of GPUs; /config/slurminit.toml if it exists]:FILE:_files' \
'--json[Print everything as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(render)
_arguments "${_arguments_options[@]}" : \
'--config=[The operator'\''s file \[default\: SLURMINIT_CONFIG, else /config/slurminit.toml if it exists\]]:FILE:_files' \
'--root=[Read below this directory]:DIR:_files' \
'--inventory=[Use this inventory (the output of \`slurminit detect --json\`) instead of detection]:FILE:_files' \
'--diff[Show the differences from the installed files]' \
'--explain[Show every decision with its reason]' \
'(--diff --explain)--json[Print files, decisions and findings as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(config)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
":: :_slurminit__subcmd__config_commands" \
"*::: :->config" \
&& ret=0

    case $state in
    (config)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-config-command-$line[1]:"
        case $line[1] in
            (check)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
':file -- The file:_files' \
&& ret=0
;;
(show)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'--json[Print everything as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
":: :_slurminit__subcmd__config__subcmd__help_commands" \
"*::: :->help" \
&& ret=0

    case $state in
    (help)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-config-help-command-$line[1]:"
        case $line[1] in
            (check)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(show)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
        esac
    ;;
esac
;;
(configure)
_arguments "${_arguments_options[@]}" : \
'--root=[Look for the host'\''s /proc, /sys, /dev, /etc and /usr below this directory]:DIR:_files' \
'--directory=[Where compose.yaml is, and the files are written]:DIR:_files' \
'--gpus=[The GPUs that the container gets\: all, or comma-separated numbers, GPU-... and MIG-... ids]:LIST:_default' \
'--gpu-type=[The GPU vendor of the image, overriding the checks]:TYPE:((nvidia\:"nvidia GPUs"
amd\:"amd GPUs"
intel\:"intel GPUs"
none\:"No GPU"))' \
'--image=[The image for testing the GPUs, if the engine has it]:IMAGE:_default' \
'--timeout=[How long each of docker, compose and nvidia-smi may take]:SECONDS:_default' \
'--no-trial[Start no container]' \
'(--print)--dry-run[Change nothing, and show what would be written]' \
'--print[Change nothing, and print compose.gpus.yaml; the report goes to standard error]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
&& ret=0
;;
(doctor)
_arguments "${_arguments_options[@]}" : \
'--root=[The host'\''s files are below this directory\: \`docker run -v /\:/host\:ro ... doctor --root /host\`]:DIR:_files' \
'--timeout=[Timeout of each check]:SECONDS:_default' \
'--config=[In the container\: the configuration; /config/slurminit.toml if it exists]:FILE:_files' \
'--credential=[In the container\: a munge credential that another machine has just made; \`-\` reads it from standard input]:FILE:_files' \
'--image=[On the host\: the image for testing the GPUs, if the engine has it]:IMAGE:_default' \
'--json[Print everything as JSON]' \
'(--json)--brief[Show only faults, warnings and checks that failed to run]' \
'--no-trial[Skip the container that tests the GPUs, on the host]' \
'--container[Examine the directory of --root as a container, not as a host]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(reload)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'--dry-run[Show what would change and how it would be applied; changes nothing]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(status)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'--json[Print everything as JSON]' \
'(--json)--watch[Refresh every second and at every change, until Ctrl-C]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(nodes)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'--json[Print everything as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(top)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(drain)
_arguments "${_arguments_options[@]}" : \
'--reason=[The reason, which Slurm shows with the node]:TEXT:_default' \
'--wait=[Wait until the jobs there have ended; exit with 1 if some have not]:SECONDS:_default' \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
'*::nodes -- The nodes\: compute-1, or compute-\[1-3\]:_default' \
&& ret=0
;;
(resume)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
'*::nodes -- The nodes\: compute-1, or compute-\[1-3\]:_default' \
&& ret=0
;;
(gpu)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
":: :_slurminit__subcmd__gpu_commands" \
"*::: :->gpu" \
&& ret=0

    case $state in
    (gpu)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-gpu-command-$line[1]:"
        case $line[1] in
            (release)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
':gpu -- The number, as in `slurminit status`:_default' \
&& ret=0
;;
(return)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
':gpu -- The number, as in `slurminit status`:_default' \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
":: :_slurminit__subcmd__gpu__subcmd__help_commands" \
"*::: :->help" \
&& ret=0

    case $state in
    (help)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-gpu-help-command-$line[1]:"
        case $line[1] in
            (release)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(return)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
        esac
    ;;
esac
;;
(token)
_arguments "${_arguments_options[@]}" : \
'--lifespan=[Validity]:SECONDS:_default' \
'-h[Print help]' \
'--help[Print help]' \
':user -- The user that the token authenticates:_default' \
&& ret=0
;;
(usage)
_arguments "${_arguments_options[@]}" : \
'--since=[Start of the period\: 2026-11-01, now-7days, or another time accepted by sacct]:TIME:_default' \
'--until=[End of the period]:TIME:_default' \
'--json[Print everything as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(image)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
":: :_slurminit__subcmd__image_commands" \
"*::: :->image" \
&& ret=0

    case $state in
    (image)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-image-command-$line[1]:"
        case $line[1] in
            (import)
_arguments "${_arguments_options[@]}" : \
'--replace[Replace an image of the same name]' \
'--json[Print the image'\''s record as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
':name -- The name for `--container=NAME`:_default' \
'::from -- An archive of `docker save`, `docker export` or an OCI layout, or a directory; - is standard input:_files' \
&& ret=0
;;
(pull)
_arguments "${_arguments_options[@]}" : \
'--replace[Replace an image of the same name]' \
'--json[Print the image'\''s record as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
':name -- The name for `--container=NAME`:_default' \
':from -- The image, such as docker\://ghcr.io/owner/image\:tag:_default' \
&& ret=0
;;
(list)
_arguments "${_arguments_options[@]}" : \
'--json[Print everything as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(show)
_arguments "${_arguments_options[@]}" : \
'--json[Print everything as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
':name -- The image:_default' \
&& ret=0
;;
(remove)
_arguments "${_arguments_options[@]}" : \
'--json[Print the image'\''s record as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
':name -- The image:_default' \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
":: :_slurminit__subcmd__image__subcmd__help_commands" \
"*::: :->help" \
&& ret=0

    case $state in
    (help)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-image-help-command-$line[1]:"
        case $line[1] in
            (import)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(pull)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(list)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(show)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(remove)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
        esac
    ;;
esac
;;
(submit)
_arguments "${_arguments_options[@]}" : \
'*-t+[A node and its GPUs\: compute-1\:\:0,2 or compute-1\:\:all; without GPUs\: compute-1]:NODE[::GPUS]:_default' \
'*--target=[A node and its GPUs\: compute-1\:\:0,2 or compute-1\:\:all; without GPUs\: compute-1]:NODE[::GPUS]:_default' \
'-c+[The CPUs of each job]:COUNT:_default' \
'--cores=[The CPUs of each job]:COUNT:_default' \
'-m+[The memory of each job, such as 16G]:SIZE:_default' \
'--memory=[The memory of each job, such as 16G]:SIZE:_default' \
'-o+[The file for the command'\''s output; %j is the job ID]:FILE:_default' \
'--output=[The file for the command'\''s output; %j is the job ID]:FILE:_default' \
'*--sbatch=[Another option of sbatch\: --sbatch=--time=10; can be repeated]:OPTION:_default' \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'--wait[Wait until all jobs have ended; exit with 1 if one has failed]' \
'-h[Print help]' \
'--help[Print help]' \
'*::command -- The command and its arguments:_default' \
&& ret=0
;;
(health)
_arguments "${_arguments_options[@]}" : \
'(--live)--wait=[Wait until the check succeeds, at most this many seconds]:SECONDS:_default' \
'(--live)--hold=[For HEALTHCHECK\: report success only if it lasts for this many seconds; report at once in the first seconds of being ready]:SECONDS:_default' \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'--ready[Check whether jobs can run now (the default)]' \
'(--ready)--live[Check whether PID 1 responds and no essential daemon was given up; also succeeds during a start and a stop]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(restart)
_arguments "${_arguments_options[@]}" : \
'--timeout=[Timeout, in seconds \[default\: supervise.stop_timeout and ready_timeout together\]]:SECONDS:_default' \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
':name -- The daemon or service:_default' \
&& ret=0
;;
(stop)
_arguments "${_arguments_options[@]}" : \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(logs)
_arguments "${_arguments_options[@]}" : \
'-n+[The maximum number of lines; 64 KiB are kept]:N:_default' \
'--lines=[The maximum number of lines; 64 KiB are kept]:N:_default' \
'--config=[The configuration; /config/slurminit.toml if there is one]:FILE:_files' \
'-f[Continue with each new line, across restarts of the daemon, until Ctrl-C]' \
'--follow[Continue with each new line, across restarts of the daemon, until Ctrl-C]' \
'-h[Print help]' \
'--help[Print help]' \
'::name -- The daemon or service; slurminit for its own lines; without a name\: the list of names. For the whole log see `docker logs`, or after `slurminit up` /var/log/slurminit.log:_default' \
&& ret=0
;;
(join-command)
_arguments "${_arguments_options[@]}" : \
'--network=[The network of the new container\: host, or a network of the container engine that the controller is in \[default\: host, if the controller uses its host'\''s network\]]:NAME:_default' \
'--address=[The controller'\''s address for the new node \[default\: that of the default route\]]:ADDRESS:_default' \
'--expires=[Validity of the token\: 30m, 12h, 7d]:TIME:_default' \
'--name=[The name of the new container, and of the node unless --network is host \[default\: compute, or compute-N\]]:NAME:_default' \
'--image=[The image'\''s name on the other machine \[default\: SLURMINIT_IMAGE, else slurminit\:latest\]]:IMAGE:_default' \
'*--volume=[A volume, or a directory of the host, for the new container; can be repeated \[default\: this container'\''s, on the same host\]]:SOURCE:TARGET[:ro]:_default' \
'--config=[The operator'\''s file \[default\: SLURMINIT_CONFIG, else /config/slurminit.toml if it exists\]]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(sbatch-args)
_arguments "${_arguments_options[@]}" : \
'--partition=[The partition for the job, if not the default one]:NAME:_default' \
'--timeout=[Timeout for the cluster'\''s response]:SECONDS:_default' \
'--offline[Do not check whether the cluster has the requested resources]' \
'-h[Print help]' \
'--help[Print help]' \
':method -- The method.json; `-` is standard input:_files' \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
":: :_slurminit__subcmd__help_commands" \
"*::: :->help" \
&& ret=0

    case $state in
    (help)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-help-command-$line[1]:"
        case $line[1] in
            (run)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(up)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(detect)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(render)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(config)
_arguments "${_arguments_options[@]}" : \
":: :_slurminit__subcmd__help__subcmd__config_commands" \
"*::: :->config" \
&& ret=0

    case $state in
    (config)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-help-config-command-$line[1]:"
        case $line[1] in
            (check)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(show)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
(configure)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(doctor)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(reload)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(status)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(nodes)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(top)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(drain)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(resume)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(gpu)
_arguments "${_arguments_options[@]}" : \
":: :_slurminit__subcmd__help__subcmd__gpu_commands" \
"*::: :->gpu" \
&& ret=0

    case $state in
    (gpu)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-help-gpu-command-$line[1]:"
        case $line[1] in
            (release)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(return)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
(token)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(usage)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(image)
_arguments "${_arguments_options[@]}" : \
":: :_slurminit__subcmd__help__subcmd__image_commands" \
"*::: :->image" \
&& ret=0

    case $state in
    (image)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:slurminit-help-image-command-$line[1]:"
        case $line[1] in
            (import)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(pull)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(list)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(show)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(remove)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
(submit)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(health)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(restart)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(stop)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(logs)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(join-command)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(sbatch-args)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
        esac
    ;;
esac
}

(( $+functions[_slurminit_commands] )) ||
_slurminit_commands() {
    local commands; commands=(
'run:Start the cluster and supervise its daemons (the image'\''s entry point)' \
'up:Start the cluster in a container whose PID 1 is another program, and wait until it is ready' \
'detect:Show the GPUs, CPUs and memory that this container can use' \
'render:Show the Slurm files that a start would write; changes nothing' \
'config:Check a slurminit.toml, or show each effective value and its origin' \
'configure:Check Docker and the GPUs of this host, and write compose.gpus.yaml and .env' \
'doctor:Check for all known faults, on the host or in the container, and show the repairs' \
'reload:Detect again and apply changes of hardware and configuration, with as few restarts as possible' \
'status:Show the daemons, the node and the GPUs' \
'nodes:Show all nodes of the cluster and the users of their GPUs' \
'top:Show GPUs, queue, nodes and daemons in the terminal, live (q quits)' \
'drain:Drain nodes\: no new jobs start there, running jobs continue' \
'resume:Resume drained nodes' \
'gpu:Release a GPU for a reset on the host, and give it back to jobs' \
'token:Make a token for the REST API, which authenticates its holder as that user' \
'usage:Show how many GPU and CPU hours each user has used' \
'image:Import, list and remove container images for jobs (\`srun --container=NAME\`)' \
'submit:Submit a command to particular nodes and GPUs, one job for each' \
'health:Exit with 0 if the cluster is ready (or, with --live, alive), else print the reason and exit with 1' \
'restart:Restart a daemon or service, and wait until it is ready' \
'stop:Stop the container in order, as \`docker stop\` does' \
'logs:Show the last lines of a daemon, of a service, or of slurminit itself' \
'join-command:Print the command that joins another machine to this controller'\''s cluster (it contains the cluster'\''s key)' \
'sbatch-args:Print the arguments of sbatch for the resources of a method.json' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'slurminit commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__config_commands] )) ||
_slurminit__subcmd__config_commands() {
    local commands; commands=(
'check:Check a slurminit.toml, and print its first error with line and key' \
'show:Show each effective value and its origin\: default, file, variable, or the token of a cluster' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'slurminit config commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__config__subcmd__check_commands] )) ||
_slurminit__subcmd__config__subcmd__check_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit config check commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__config__subcmd__help_commands] )) ||
_slurminit__subcmd__config__subcmd__help_commands() {
    local commands; commands=(
'check:Check a slurminit.toml, and print its first error with line and key' \
'show:Show each effective value and its origin\: default, file, variable, or the token of a cluster' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'slurminit config help commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__config__subcmd__help__subcmd__check_commands] )) ||
_slurminit__subcmd__config__subcmd__help__subcmd__check_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit config help check commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__config__subcmd__help__subcmd__help_commands] )) ||
_slurminit__subcmd__config__subcmd__help__subcmd__help_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit config help help commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__config__subcmd__help__subcmd__show_commands] )) ||
_slurminit__subcmd__config__subcmd__help__subcmd__show_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit config help show commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__config__subcmd__show_commands] )) ||
_slurminit__subcmd__config__subcmd__show_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit config show commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__configure_commands] )) ||
_slurminit__subcmd__configure_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit configure commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__detect_commands] )) ||
_slurminit__subcmd__detect_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit detect commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__doctor_commands] )) ||
_slurminit__subcmd__doctor_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit doctor commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__drain_commands] )) ||
_slurminit__subcmd__drain_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit drain commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__gpu_commands] )) ||
_slurminit__subcmd__gpu_commands() {
    local commands; commands=(
'release:Keep the GPU from jobs, wait until none has it, and close it, so that the host can reset it' \
'return:Check the GPU, and give it to jobs again' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'slurminit gpu commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__gpu__subcmd__help_commands] )) ||
_slurminit__subcmd__gpu__subcmd__help_commands() {
    local commands; commands=(
'release:Keep the GPU from jobs, wait until none has it, and close it, so that the host can reset it' \
'return:Check the GPU, and give it to jobs again' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'slurminit gpu help commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__gpu__subcmd__help__subcmd__help_commands] )) ||
_slurminit__subcmd__gpu__subcmd__help__subcmd__help_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit gpu help help commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__gpu__subcmd__help__subcmd__release_commands] )) ||
_slurminit__subcmd__gpu__subcmd__help__subcmd__release_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit gpu help release commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__gpu__subcmd__help__subcmd__return_commands] )) ||
_slurminit__subcmd__gpu__subcmd__help__subcmd__return_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit gpu help return commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__gpu__subcmd__release_commands] )) ||
_slurminit__subcmd__gpu__subcmd__release_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit gpu release commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__gpu__subcmd__return_commands] )) ||
_slurminit__subcmd__gpu__subcmd__return_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit gpu return commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__health_commands] )) ||
_slurminit__subcmd__health_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit health commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help_commands] )) ||
_slurminit__subcmd__help_commands() {
    local commands; commands=(
'run:Start the cluster and supervise its daemons (the image'\''s entry point)' \
'up:Start the cluster in a container whose PID 1 is another program, and wait until it is ready' \
'detect:Show the GPUs, CPUs and memory that this container can use' \
'render:Show the Slurm files that a start would write; changes nothing' \
'config:Check a slurminit.toml, or show each effective value and its origin' \
'configure:Check Docker and the GPUs of this host, and write compose.gpus.yaml and .env' \
'doctor:Check for all known faults, on the host or in the container, and show the repairs' \
'reload:Detect again and apply changes of hardware and configuration, with as few restarts as possible' \
'status:Show the daemons, the node and the GPUs' \
'nodes:Show all nodes of the cluster and the users of their GPUs' \
'top:Show GPUs, queue, nodes and daemons in the terminal, live (q quits)' \
'drain:Drain nodes\: no new jobs start there, running jobs continue' \
'resume:Resume drained nodes' \
'gpu:Release a GPU for a reset on the host, and give it back to jobs' \
'token:Make a token for the REST API, which authenticates its holder as that user' \
'usage:Show how many GPU and CPU hours each user has used' \
'image:Import, list and remove container images for jobs (\`srun --container=NAME\`)' \
'submit:Submit a command to particular nodes and GPUs, one job for each' \
'health:Exit with 0 if the cluster is ready (or, with --live, alive), else print the reason and exit with 1' \
'restart:Restart a daemon or service, and wait until it is ready' \
'stop:Stop the container in order, as \`docker stop\` does' \
'logs:Show the last lines of a daemon, of a service, or of slurminit itself' \
'join-command:Print the command that joins another machine to this controller'\''s cluster (it contains the cluster'\''s key)' \
'sbatch-args:Print the arguments of sbatch for the resources of a method.json' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'slurminit help commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__config_commands] )) ||
_slurminit__subcmd__help__subcmd__config_commands() {
    local commands; commands=(
'check:Check a slurminit.toml, and print its first error with line and key' \
'show:Show each effective value and its origin\: default, file, variable, or the token of a cluster' \
    )
    _describe -t commands 'slurminit help config commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__config__subcmd__check_commands] )) ||
_slurminit__subcmd__help__subcmd__config__subcmd__check_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help config check commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__config__subcmd__show_commands] )) ||
_slurminit__subcmd__help__subcmd__config__subcmd__show_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help config show commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__configure_commands] )) ||
_slurminit__subcmd__help__subcmd__configure_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help configure commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__detect_commands] )) ||
_slurminit__subcmd__help__subcmd__detect_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help detect commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__doctor_commands] )) ||
_slurminit__subcmd__help__subcmd__doctor_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help doctor commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__drain_commands] )) ||
_slurminit__subcmd__help__subcmd__drain_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help drain commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__gpu_commands] )) ||
_slurminit__subcmd__help__subcmd__gpu_commands() {
    local commands; commands=(
'release:Keep the GPU from jobs, wait until none has it, and close it, so that the host can reset it' \
'return:Check the GPU, and give it to jobs again' \
    )
    _describe -t commands 'slurminit help gpu commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__gpu__subcmd__release_commands] )) ||
_slurminit__subcmd__help__subcmd__gpu__subcmd__release_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help gpu release commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__gpu__subcmd__return_commands] )) ||
_slurminit__subcmd__help__subcmd__gpu__subcmd__return_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help gpu return commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__health_commands] )) ||
_slurminit__subcmd__help__subcmd__health_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help health commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__help_commands] )) ||
_slurminit__subcmd__help__subcmd__help_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help help commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__image_commands] )) ||
_slurminit__subcmd__help__subcmd__image_commands() {
    local commands; commands=(
'import:Import an image\: for all users as root, otherwise for this user' \
'pull:Import an image from a registry with skopeo, as \`import\` does' \
'list:List the images that this user'\''s jobs can use' \
'show:Show an image\: size, origin, architecture, program, variables' \
'remove:Remove an image; a running job that uses it loses its files' \
    )
    _describe -t commands 'slurminit help image commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__image__subcmd__import_commands] )) ||
_slurminit__subcmd__help__subcmd__image__subcmd__import_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help image import commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__image__subcmd__list_commands] )) ||
_slurminit__subcmd__help__subcmd__image__subcmd__list_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help image list commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__image__subcmd__pull_commands] )) ||
_slurminit__subcmd__help__subcmd__image__subcmd__pull_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help image pull commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__image__subcmd__remove_commands] )) ||
_slurminit__subcmd__help__subcmd__image__subcmd__remove_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help image remove commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__image__subcmd__show_commands] )) ||
_slurminit__subcmd__help__subcmd__image__subcmd__show_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help image show commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__join-command_commands] )) ||
_slurminit__subcmd__help__subcmd__join-command_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help join-command commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__logs_commands] )) ||
_slurminit__subcmd__help__subcmd__logs_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help logs commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__nodes_commands] )) ||
_slurminit__subcmd__help__subcmd__nodes_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help nodes commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__reload_commands] )) ||
_slurminit__subcmd__help__subcmd__reload_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help reload commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__render_commands] )) ||
_slurminit__subcmd__help__subcmd__render_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help render commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__restart_commands] )) ||
_slurminit__subcmd__help__subcmd__restart_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help restart commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__resume_commands] )) ||
_slurminit__subcmd__help__subcmd__resume_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help resume commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__run_commands] )) ||
_slurminit__subcmd__help__subcmd__run_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help run commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__sbatch-args_commands] )) ||
_slurminit__subcmd__help__subcmd__sbatch-args_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help sbatch-args commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__status_commands] )) ||
_slurminit__subcmd__help__subcmd__status_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help status commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__stop_commands] )) ||
_slurminit__subcmd__help__subcmd__stop_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help stop commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__submit_commands] )) ||
_slurminit__subcmd__help__subcmd__submit_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help submit commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__token_commands] )) ||
_slurminit__subcmd__help__subcmd__token_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help token commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__top_commands] )) ||
_slurminit__subcmd__help__subcmd__top_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help top commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__up_commands] )) ||
_slurminit__subcmd__help__subcmd__up_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help up commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__help__subcmd__usage_commands] )) ||
_slurminit__subcmd__help__subcmd__usage_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit help usage commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image_commands] )) ||
_slurminit__subcmd__image_commands() {
    local commands; commands=(
'import:Import an image\: for all users as root, otherwise for this user' \
'pull:Import an image from a registry with skopeo, as \`import\` does' \
'list:List the images that this user'\''s jobs can use' \
'show:Show an image\: size, origin, architecture, program, variables' \
'remove:Remove an image; a running job that uses it loses its files' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'slurminit image commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__help_commands] )) ||
_slurminit__subcmd__image__subcmd__help_commands() {
    local commands; commands=(
'import:Import an image\: for all users as root, otherwise for this user' \
'pull:Import an image from a registry with skopeo, as \`import\` does' \
'list:List the images that this user'\''s jobs can use' \
'show:Show an image\: size, origin, architecture, program, variables' \
'remove:Remove an image; a running job that uses it loses its files' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'slurminit image help commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__help__subcmd__help_commands] )) ||
_slurminit__subcmd__image__subcmd__help__subcmd__help_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image help help commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__help__subcmd__import_commands] )) ||
_slurminit__subcmd__image__subcmd__help__subcmd__import_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image help import commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__help__subcmd__list_commands] )) ||
_slurminit__subcmd__image__subcmd__help__subcmd__list_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image help list commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__help__subcmd__pull_commands] )) ||
_slurminit__subcmd__image__subcmd__help__subcmd__pull_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image help pull commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__help__subcmd__remove_commands] )) ||
_slurminit__subcmd__image__subcmd__help__subcmd__remove_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image help remove commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__help__subcmd__show_commands] )) ||
_slurminit__subcmd__image__subcmd__help__subcmd__show_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image help show commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__import_commands] )) ||
_slurminit__subcmd__image__subcmd__import_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image import commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__list_commands] )) ||
_slurminit__subcmd__image__subcmd__list_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image list commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__pull_commands] )) ||
_slurminit__subcmd__image__subcmd__pull_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image pull commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__remove_commands] )) ||
_slurminit__subcmd__image__subcmd__remove_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image remove commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__image__subcmd__show_commands] )) ||
_slurminit__subcmd__image__subcmd__show_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit image show commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__join-command_commands] )) ||
_slurminit__subcmd__join-command_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit join-command commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__logs_commands] )) ||
_slurminit__subcmd__logs_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit logs commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__nodes_commands] )) ||
_slurminit__subcmd__nodes_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit nodes commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__reload_commands] )) ||
_slurminit__subcmd__reload_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit reload commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__render_commands] )) ||
_slurminit__subcmd__render_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit render commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__restart_commands] )) ||
_slurminit__subcmd__restart_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit restart commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__resume_commands] )) ||
_slurminit__subcmd__resume_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit resume commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__run_commands] )) ||
_slurminit__subcmd__run_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit run commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__sbatch-args_commands] )) ||
_slurminit__subcmd__sbatch-args_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit sbatch-args commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__status_commands] )) ||
_slurminit__subcmd__status_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit status commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__stop_commands] )) ||
_slurminit__subcmd__stop_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit stop commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__submit_commands] )) ||
_slurminit__subcmd__submit_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit submit commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__token_commands] )) ||
_slurminit__subcmd__token_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit token commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__top_commands] )) ||
_slurminit__subcmd__top_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit top commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__up_commands] )) ||
_slurminit__subcmd__up_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit up commands' commands "$@"
}
(( $+functions[_slurminit__subcmd__usage_commands] )) ||
_slurminit__subcmd__usage_commands() {
    local commands; commands=()
    _describe -t commands 'slurminit usage commands' commands "$@"
}

if [ "$funcstack[1]" = "_slurminit" ]; then
    _slurminit "$@"
else
    compdef _slurminit slurminit
fi
