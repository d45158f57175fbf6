# shellcheck shell=bash
# The project of docker/up's directory: its name, and its .env. Sourced by docker/up, after docker/engine.sh.
# shellcheck disable=SC2154 # computes, docker_cmd and typed are docker/up's

# The lines of .env by which plain `docker compose` uses the cluster of `docker/up --computes` or `--demo-gpus`. They are the last ones of the file.
own_mark='# docker/up: docker/up replaces this line and those below it'

own_lines() {
    [ ! -f .env ] || sed -n "\\|^$own_mark\$|,\$p" .env
}

is_project_of_own_lines() { # PROJECT
    own_lines | grep -xF "COMPOSE_PROJECT_NAME=$1" >/dev/null
}

# .env is replaced as a whole: a full disk or an interrupt leaves the old one.
replace_env() { # reads the new text
    [ ! -f .env ] || cp -p .env ".env.$$"
    cat >".env.$$" && mv ".env.$$" .env
}

append_to_env() { # reads lines
    # The last line of the user's file may lack a newline.
    { [ ! -s .env ] || awk 1 .env; cat; } | replace_env
}

remove_own_lines() {
    [ -n "$(own_lines)" ] || return 0
    sed "\\|^$own_mark\$|,\$d" .env | replace_env
    [ -s .env ] || rm .env
}

# compose reads only the files in COMPOSE_FILE: those of docker/up, then files that the user has added, and compose.override.yaml.
with_own_files() { # FILE:FILE...
    local files=$1 file former=''
    [ ! -f .env ] || former=$(sed -n 's/^COMPOSE_FILE=//p' .env | tail -n 1)
    for file in ${former//:/ } compose.override.yaml; do
        case "$file" in compose.yaml | compose.cluster.yaml | docker/*) continue ;; esac
        [[ ":$files:" == *":$file:"* || ! -f $file ]] || files+=:$file
    done
    printf '%s' "$files"
}

write_own_lines() { # PROJECT LINE...
    local project=$1 wanted
    shift
    wanted=$(printf '%s\n' "$own_mark" "COMPOSE_PROJECT_NAME=$project" "$@")
    [ "$(own_lines)" != "$wanted" ] || return 0
    remove_own_lines
    append_to_env <<<"$wanted"
}

# The line GPU_TYPE=... of .env, which belongs to `slurminit configure`.
configured_gpu_type() {
    [ ! -f .env ] || sed -n 's/^GPU_TYPE=\([a-z]*\)\r\{0,1\}$/\1/p' .env | tail -n 1
}

# The variable as compose reads it: from the environment, else from .env.
of_env() { # VARIABLE
    local value=${!1:-}
    [ -n "$value" ] || [ ! -f .env ] || value=$(sed -n "s/^$1=//p" .env | tail -n 1)
    printf '%s' "$value"
}

# The name that compose derives from the directory.
project_name() {
    local name=${COMPOSE_PROJECT_NAME:-}
    [ -n "$name" ] || [ ! -f .env ] || name=$(sed -n "\\|^$own_mark\$|q; s/^COMPOSE_PROJECT_NAME=//p" .env | tail -n 1)
    basename "${name:-$PWD}" | tr '[:upper:]' '[:lower:]' | tr -cd 'a-z0-9_-' | sed 's/^[_-]*//'
}

# Whether this directory has been set up for the GPUs of this host, or has a cluster other than this project.
has_other_cluster() { # PROJECT
    [ -z "$(configured_gpu_type)" ] || return 0
    [ -z "$(own_lines)" ] || is_project_of_own_lines "$1" || return 0
    [ -n "$("${docker_cmd[@]}" ps --all --quiet --filter "label=com.docker.compose.project=${1%-demo}")" ]
}

# compose identifies a cluster only by its name, and would silently replace the containers of a cluster of another
# directory.
refuse_project_of_another_directory() { # PROJECT
    local directory
    while IFS= read -r directory; do
        [ -z "$directory" ] || [ "$directory" -ef . ] ||
            die "the cluster $1 belongs to another directory: $directory. Started from here, it would lose its containers and their jobs." \
                "Fix: put the line COMPOSE_PROJECT_NAME=$(project_name)-$(id -un | tr -cd 'a-z0-9_-') at the top of .env in $PWD;" \
                "or, if that directory has become this one: $typed -p $1 down (its volumes stay)"
    done < <("${docker_cmd[@]}" ps --all --filter "label=com.docker.compose.project=$1" \
        --format '{{.Label "com.docker.compose.project.working_dir"}}' | sort -u)
}

# Whether the kernel lists a GPU of a vendor that slurminit supports: on the PCI bus, in WSL2, or an integrated NVIDIA GPU. HOST_ROOT is for tests.
has_gpu() {
    local device vendor
    for device in "${HOST_ROOT:-}"/sys/bus/pci/devices/*; do
        case "$(cat "$device/class" 2>/dev/null)" in 0x03* | 0x12*) ;; *) continue ;; esac
        vendor=$(cat "$device/vendor" 2>/dev/null) || continue
        case "$vendor" in 0x10de | 0x1002 | 0x8086) return 0 ;; esac
    done
    for device in /dev/dxg /dev/nvidiactl /dev/nvhost-gpu /dev/kfd; do [ ! -e "${HOST_ROOT:-}$device" ] || return 0; done
    return 1
}
