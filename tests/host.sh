# shellcheck shell=bash
# Host requirements of docker/test in addition to Docker. Sourced after docker/engine.sh.
# shellcheck disable=SC2154 # docker_cmd is engine.sh's

need() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null || { is_debian_like && agreed "The tests need $2. Install it?" && apt_install "$2"; } || true
    command -v "$1" >/dev/null
}

# The package with Helm's library exists only for Linux on x86_64.
can_render_chart() { [ "$(uname -m)" = x86_64 ]; }

has_helm_and_kubectl() { command -v helm && command -v kubectl; } >/dev/null

has_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null

ensure_chromium() {
    has_chromium || ! is_debian_like || ! agreed "The tests of the page need Chromium. Install it?" || apt_install chromium fonts-dejavu-core || true
    has_chromium
}

# The Docker objects that a run created and did not remove.
remove_test_objects() { # RUN
    local kind names all force
    for kind in container volume network; do
        all='' force=--force
        [ "$kind" != container ] || all=--all
        [ "$kind" != network ] || force=''
        # shellcheck disable=SC2086 # one word for each
        names=$("${docker_cmd[@]}" "$kind" ls --quiet $all --filter "label=slurminit.test=$1" 2>/dev/null) || return 0
        # shellcheck disable=SC2086
        [ -z "$names" ] || "${docker_cmd[@]}" "$kind" rm $force $names >/dev/null 2>&1 || true
    done
}

# /proc also shows the processes of other users, which cannot be signalled.
is_running() { kill -0 "$1" 2>/dev/null || [ -d "/proc/$1" ]; } # PID

# A killed run has removed nothing.
remove_objects_of_killed_runs() {
    local run
    {
        "${docker_cmd[@]}" container ls --all --format '{{.Label "slurminit.test"}}'
        "${docker_cmd[@]}" volume ls --format '{{.Label "slurminit.test"}}'
        "${docker_cmd[@]}" network ls --format '{{.Label "slurminit.test"}}'
    } | sort -u | while read -r run; do
        [ -z "$run" ] || is_running "$run" || remove_test_objects "$run"
    done
}
