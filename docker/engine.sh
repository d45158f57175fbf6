# shellcheck shell=bash
# What docker/up and docker/test need of the host: a Docker engine that answers, and compose. Sourced.
#
# The sourcing script defines say and die and may set assume_yes=1. After ensure_engine the array docker_cmd holds the docker
# command, after ensure_compose the array compose_cmd holds compose's.

# shellcheck disable=SC2034 # compose_cmd is for the sourcing script
: "${assume_yes:=0}"
docker_cmd=(docker)
compose_cmd=()
# shellcheck source=docker/mirror.sh
. "$(dirname "${BASH_SOURCE[0]}")/mirror.sh"

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Yes if --yes was given, or where nobody can answer in a CI.
agreed() { # QUESTION
    [ "$assume_yes" = 1 ] && return
    if [ ! -t 0 ]; then
        [ "${CI:-}" = true ]
        return
    fi
    local answer
    read -r -p "$1 [Y/n] " answer
    case "$answer" in '' | [Yy]*) ;; *) return 1 ;; esac
}

os_release() { # KEY
    [ ! -r /etc/os-release ] || sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" /etc/os-release
}

is_debian_like() {
    command -v apt-get >/dev/null && case " $(os_release ID) $(os_release ID_LIKE) " in *" debian "*) ;; *) false ;; esac
}

apt_install() { # PACKAGE...
    say "installing $*"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" </dev/null >/dev/null
}

# A pipe into `grep -q` would end the writer with SIGPIPE, and with pipefail that is a failure: so read it all.
is_in_apt() { # PACKAGE [VERSION-PATTERN]
    grep "Candidate: ${2:-[0-9]}" <<<"$(apt-cache policy "$1" 2>/dev/null)" >/dev/null
}

how_to_install_docker() {
    case "$(uname -s):$(os_release ID)" in
        Darwin:*) echo "install Docker Desktop: https://docs.docker.com/desktop/setup/install/mac-install/ (GPUs are out of reach on macOS)" ;;
        *:fedora | *:rhel | *:centos | *:rocky | *:almalinux)
            echo "sudo dnf install -y moby-engine docker-compose && sudo systemctl enable --now docker" \
                "(not in your repositories: https://docs.docker.com/engine/install/rhel/)" ;;
        *:arch) echo "sudo pacman -S docker docker-buildx docker-compose && sudo systemctl enable --now docker" ;;
        *:opensuse* | *:sles) echo "sudo zypper install docker docker-compose && sudo systemctl enable --now docker" ;;
        *:alpine) echo "sudo apk add docker docker-cli-compose && sudo rc-update add docker && sudo service docker start" ;;
        *) echo "see https://docs.docker.com/engine/install/ and https://docs.docker.com/compose/install/linux/" ;;
    esac
}

engine_answers() {
    timeout 20 "${docker_cmd[@]}" version --format '{{.Server.Version}}' >/dev/null 2>&1
}

start_engine() {
    say "starting the Docker engine"
    local log=/var/log/docker.log
    if [ -d /run/systemd/system ]; then
        log="journalctl -u docker"
        as_root systemctl start docker || true
    # The service of Debian 12 raises limits first, and starts nothing where it may not.
    elif ! { [ -x /etc/init.d/docker ] && as_root service docker start >/dev/null; }; then
        log=/var/log/dockerd.log
        # The engine outlives this script, and holds nothing open that a reader of it waits for.
        as_root sh -c 'exec setsid nohup dockerd </dev/null >/var/log/dockerd.log 2>&1 &'
    fi
    local deadline=$((SECONDS + 60))
    until engine_answers; do
        [ "$SECONDS" -lt "$deadline" ] || die "the Docker engine does not answer after 60 s; its log says why: $log"
        sleep 0.5
    done
}

ensure_engine() {
    if ! command -v docker >/dev/null || ! { command -v dockerd >/dev/null || engine_answers; }; then
        is_debian_like || die "there is no Docker engine on this machine. To repair: $(how_to_install_docker)"
        agreed "There is no Docker engine on this machine. Install this distribution's docker.io?" ||
            die "Docker is needed. To repair: sudo apt-get install docker.io, or run this again with --yes"
        local packages=(docker.io)
        as_root apt-get update -qq
        # Debian 13 has the command in a package of its own.
        ! is_in_apt docker-cli || packages+=(docker-cli)
        apt_install "${packages[@]}"
    fi
    engine_answers && return
    if [ "$(id -u)" != 0 ] && as_root docker version >/dev/null 2>&1; then
        docker_cmd=(sudo "--preserve-env=COMPOSE_FILE,COMPOSE_PROJECT_NAME,GPU_TYPE,GPU_COMPOSE_FILE,VIDEO_GID,RENDER_GID,DEMO_GPUS" docker)
        return
    fi
    start_engine
}

# For packages of Debian 13 that install on Debian 12 as they are.
install_of_debian_13() { # PACKAGE
    local package=$1 dir mirror
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || return 1
    dir=$(mktemp -d)
    chmod 0755 "$dir"
    mkdir -p "$dir/lists/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" \
        >"$dir/sources.list"
    local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$dir/lists"
        -o APT::Sandbox::User=root)
    say "installing $package of Debian 13"
    (cd "$dir" && as_root "${apt[@]}" update && "${apt[@]}" download "$package" >/dev/null) &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$dir/$package"_*.deb \
            </dev/null >/dev/null
    local status=$?
    as_root rm -rf "$dir"
    return "$status"
}

install_compose() {
    as_root apt-get update -qq
    if is_in_apt docker-compose-v2; then
        apt_install docker-compose-v2
    elif is_in_apt docker-compose-plugin; then
        apt_install docker-compose-plugin
    elif is_in_apt docker-compose '[2-9]'; then
        apt_install docker-compose
    else
        # Debian 12 has only compose 1; this is a plugin for the same docker command.
        install_of_debian_13 docker-compose
    fi
}

ensure_compose() {
    if "${docker_cmd[@]}" compose version >/dev/null 2>&1; then
        compose_cmd=("${docker_cmd[@]}" compose)
        return
    fi
    if is_debian_like && agreed "There is no 'docker compose' (version 2) on this machine. Install it?"; then
        install_compose || say "that did not work"
    fi
    if "${docker_cmd[@]}" compose version >/dev/null 2>&1; then
        compose_cmd=("${docker_cmd[@]}" compose)
    elif [[ $(docker-compose version --short 2>/dev/null) =~ ^(1\.(2[89]|[3-9])|[2-9]) ]]; then
        say "no compose 2; going on with docker-compose $(docker-compose version --short)"
        compose_cmd=(docker-compose)
    else
        die "there is no compose on this machine. To repair: $(how_to_install_docker)"
    fi
}

# Needs no engine that answers.
ensure_buildx() {
    docker buildx version >/dev/null 2>&1 && return
    is_debian_like && agreed "There is no 'docker buildx' on this machine. Install it?" || return
    as_root apt-get update -qq || true
    if is_in_apt docker-buildx; then apt_install docker-buildx; else install_of_debian_13 docker-buildx; fi || say "that did not work"
    docker buildx version >/dev/null 2>&1
}

# The certificates that this machine trusts beside its distribution's: a proxy that looks into TLS has put one there.
extra_ca_certs() {
    local file
    for file in /usr/local/share/ca-certificates/*.crt /etc/pki/ca-trust/source/anchors/*; do
        [ ! -f "$file" ] || { cat "$file" && echo; }
    done
}

package_version() {
    sed -n '/^\[package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml
}

# Builds and shows one line for each step; the whole output only when it fails.
build_image() { # TAG, then docker build's arguments
    local tag=$1 log status=0 arguments=()
    shift
    log=$(mktemp)
    local certs variable
    certs=$(extra_ca_certs)
    [ -z "$certs" ] || arguments+=(--build-arg "EXTRA_CA_CERTS=$certs")
    for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
        [ -z "${!variable:-}" ] || arguments+=(--build-arg "$variable")
    done
    arguments+=(--build-arg "VERSION=$(package_version)" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)")
    # The braces end in true, so the pipe's status is the build's.
    "${docker_cmd[@]}" build --tag "$tag" "${arguments[@]}" "$@" . 2>&1 |
        { tee "$log" | sed -un -E '/^(Step [0-9]+\/|#[0-9]+ \[)/ { s/^(.{110}).*/\1/; s/^/    /p }' || true; } ||
        status=$?
    [ "$status" = 0 ] || tail -n 40 "$log" >&2
    rm -f "$log"
    return "$status"
}
