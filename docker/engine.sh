# shellcheck shell=bash
# Ensures a running Docker engine and compose for docker/up, docker/test and docker/base-image. Sourced.
#
# The sourcing script defines say and die. It may set assume_yes=1, and scratch to a directory that it removes. After ensure_engine the
# array docker_cmd holds the docker command, after ensure_compose the array compose_cmd holds compose's.

# shellcheck disable=SC2034 # compose_cmd is for the sourcing script
: "${assume_yes:=0}"
docker_cmd=(docker)
compose_cmd=()
# On Debian, dockerd and debootstrap are not in an ordinary user's PATH.
[ "$(id -u)" = 0 ] || PATH=$PATH:/usr/sbin:/sbin
# shellcheck source=docker/mirror.sh
. "$(dirname "${BASH_SOURCE[0]}")/mirror.sh"

# sudo drops the proxy variables, which apt-get and debootstrap need.
as_root() {
    local variable environment=()
    if [ "$(id -u)" = 0 ]; then "$@"; return; fi
    command -v sudo >/dev/null || die "root rights are required for: $*. There is no sudo here; run this as root"
    for variable in "${proxy_variables[@]}"; do
        [ -z "${!variable:-}" ] || environment+=("$variable=${!variable}")
    done
    sudo ${environment[0]:+env "${environment[@]}"} "$@"
}
proxy_variables=(http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY)

# Consent is --yes, or an answer at a terminal. A CI variable is not consent.
agreed() { # QUESTION
    [ "$assume_yes" = 1 ] && return
    [ -t 0 ] || return
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

# An unreachable mirror fails within seconds, and a package manager at work is waited for.
apt=(apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 -o DPkg::Lock::Timeout=120)

# Once per run, docker/base-image included.
apt_update() {
    [ -z "${SLURMINIT_APT_UPDATED:-}" ] || return 0
    as_root "${apt[@]}" update || return
    export SLURMINIT_APT_UPDATED=1
}

# Descriptor 8 is docker/up's standard error, 9 its lock: an engine that starts must keep neither.
apt_install() { # PACKAGE...
    say "installing $*"
    apt_update || true
    as_root env DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "$@" </dev/null >/dev/null 8>&- 9>&-
}

# Reads all input: with `grep -q` the writer would end with SIGPIPE, which pipefail treats as a failure.
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

how_to_install_compose() {
    if is_debian_like; then echo "run this again with --yes, or see https://docs.docker.com/compose/install/linux/"; else how_to_install_docker; fi
}

how_to_install_buildx() {
    if is_debian_like; then echo "run this again with --yes, or see https://docs.docker.com/go/buildx/"; else echo "https://docs.docker.com/go/buildx/"; fi
}

# Ends a command after this many seconds, with status 124. macOS has perl, but no timeout.
limited() { # SECONDS PROGRAM ARGUMENT...
    local status=0
    if command -v timeout >/dev/null; then timeout "$@"; return; fi
    perl -e 'alarm shift; exec @ARGV or exit 127' "$@" || status=$?
    # Ended by SIGALRM.
    [ "$status" != 142 ] || status=124
    return "$status"
}

# Checks whether the engine responds; otherwise sets engine_error to docker's message.
engine_answers() {
    local status=0
    engine_error=$(limited 20 "${docker_cmd[@]}" version --format '{{.Server.Version}}' 2>&1 >/dev/null) || status=$?
    # The last line is the cause; warnings come first.
    engine_error=${engine_error##*$'\n'} engine_error=${engine_error% Is the docker daemon running?} engine_error=${engine_error%.}
    [ "$status" != 124 ] || engine_error="no answer within 20 s"
    return "$status"
}

start_engine() {
    say "starting the Docker engine"
    local log=/var/log/docker.log
    if [ -d /run/systemd/system ]; then
        log="journalctl -u docker"
        as_root systemctl start docker || true
    # Debian 12's service fails if it may not raise limits.
    elif ! { [ -x /etc/init.d/docker ] && as_root service docker start >/dev/null; } 8>&- 9>&-; then
        log=/var/log/dockerd.log
        # Detached: a reader of this script's output must not wait for the engine.
        as_root sh -c 'exec setsid nohup dockerd </dev/null >/var/log/dockerd.log 2>&1 &' 8>&- 9>&-
    fi
    local deadline=$((SECONDS + 60))
    until engine_answers || [[ $engine_error == *'permission denied'* ]]; do
        [ "$SECONDS" -lt "$deadline" ] || die "the Docker engine does not answer after 60 s; see its log: $log"
        sleep 0.5
    done
}

install_engine() {
    is_debian_like || die "there is no Docker engine on this machine. Fix: $(how_to_install_docker)"
    agreed "There is no Docker engine on this machine. Install this distribution's docker.io?" ||
        die "there is no Docker engine on this machine. Fix: sudo apt-get install docker.io, or run this again with --yes"
    local packages=(docker.io)
    apt_update || true
    # Debian 13 has the command in a package of its own.
    ! is_in_apt docker-cli || packages+=(docker-cli)
    apt_install "${packages[@]}" || die "docker.io could not be installed (output above). Check the network and run this again"
}

use_sudo() {
    local user
    user=$(id -un)
    command -v sudo >/dev/null || die "the user $user may not use Docker, and there is no sudo: $engine_error." \
        "As root: usermod -aG docker $user (which amounts to root rights on this host), then log in again"
    agreed "The user $user may not use Docker. Use 'sudo docker'?" || die "the user $user may not use Docker: $engine_error." \
        "Fix: sudo usermod -aG docker $user (which amounts to root rights on this host) and log in again, or run this again with --yes to use sudo"
    docker_cmd=(sudo "--preserve-env=COMPOSE_FILE,COMPOSE_PROJECT_NAME,GPU_TYPE,GPU_COMPOSE_FILE,VIDEO_GID,RENDER_GID,DEMO_GPUS,PAGE_PORT,DOCKER_BUILDKIT" docker)
}

ensure_engine() {
    local host
    command -v docker >/dev/null || install_engine
    engine_answers && return
    if [[ $engine_error == *'permission denied'* ]]; then
        use_sudo
        engine_answers && return
    fi
    host=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null || printf '%s' "${DOCKER_HOST:-}")
    case "$host" in
        '' | unix:///var/run/docker.sock | unix:///run/docker.sock) ;;
        *) die "the Docker engine at $host does not answer: $engine_error. Start it, or unset DOCKER_HOST or the docker context" ;;
    esac
    if ! command -v dockerd >/dev/null; then
        case "$(uname -s):$engine_error" in
            # An engine that hangs, or was not installed from this machine's packages.
            Darwin:* | *:'no answer'*) die "the Docker engine does not answer: $engine_error. Start or restart it (such as Docker Desktop), then run this again" ;;
        esac
        install_engine
        engine_answers && return
    fi
    agreed "The Docker engine does not run. Start it?" || die "the Docker engine does not run: $engine_error." \
        "Fix: sudo systemctl start docker, or run this again with --yes"
    start_engine
    engine_answers || use_sudo
    engine_answers || die "the Docker engine does not answer: $engine_error"
}

# Installs a package of Debian 13 that also works on Debian 12.
install_of_debian_13() { # PACKAGE
    local package=$1 dir mirror
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || return
    agreed "This release has no $package that fits. Install the package of Debian 13, from $mirror?" || return
    dir=$(mktemp -d "${scratch:-/tmp}/XXXXXX")
    chmod 0755 "$dir"
    mkdir -p "$dir/lists/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" \
        >"$dir/sources.list"
    local apt_13=("${apt[@]}" -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$dir/lists"
        -o APT::Sandbox::User=root)
    say "installing $package of Debian 13"
    local status=0
    (cd "$dir" && as_root "${apt_13[@]}" update && "${apt_13[@]}" download "$package" >/dev/null) &&
        as_root env DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "$dir/$package"_*.deb \
            </dev/null >/dev/null 8>&- 9>&- || status=$?
    as_root rm -rf "$dir"
    return "$status"
}

# Installs the first package that this release has, or the last one from Debian 13.
install_first_of() { # PACKAGE...
    local package
    apt_update || true
    for package in "$@"; do
        # Debian 12's docker-compose is version 1, which is another program.
        if is_in_apt "$package" "$([ "$package" = docker-compose ] && echo '[2-9]')"; then
            agreed "$package is not installed. Install it?" && apt_install "$package"
            return
        fi
    done
    install_of_debian_13 "$package"
}

ensure_compose() {
    if ! "${docker_cmd[@]}" compose version >/dev/null 2>&1 && is_debian_like; then
        install_first_of docker-compose-v2 docker-compose-plugin docker-compose || say "compose 2 was not installed"
    fi
    if "${docker_cmd[@]}" compose version >/dev/null 2>&1; then
        compose_cmd=("${docker_cmd[@]}" compose)
    elif [[ $(docker-compose version --short 2>/dev/null) =~ ^(1\.(2[89]|[3-9])|[2-9]) ]]; then
        say "no compose 2; using docker-compose $(docker-compose version --short)"
        compose_cmd=(docker-compose)
    else
        die "there is no 'docker compose' (version 2) on this machine. Fix: $(how_to_install_compose)"
    fi
}

# Works without a running engine.
ensure_buildx() {
    docker buildx version >/dev/null 2>&1 && return
    is_debian_like || return
    install_first_of docker-buildx || say "docker buildx was not installed"
    docker buildx version >/dev/null 2>&1
}

# BuildKit is part of the docker command before Docker 23, and of buildx since then.
ensure_buildkit() {
    if [[ $(docker --version) =~ 'version '(1[89]|20)\. ]]; then
        export DOCKER_BUILDKIT=1
    else
        ensure_buildx || die "there is no 'docker buildx' on this machine, which builds the image. Fix: $(how_to_install_buildx)"
    fi
}

# CA certificates that were added to this machine, such as that of a TLS-inspecting proxy.
extra_ca_certs() {
    local file
    for file in /usr/local/share/ca-certificates/*.crt /etc/pki/ca-trust/source/anchors/*; do
        [ ! -f "$file" ] || { cat "$file" && echo; }
    done
}

package_version() {
    sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml
}

# Sets base_image to the default base: Debian's image, or a local one if no registry is reachable.
ensure_base_image() {
    local options=()
    [ -z "${base_image:-}" ] || return 0
    [ "$assume_yes" != 1 ] || options=(--yes)
    base_image=$(DOCKER="${docker_cmd[*]}" docker/base-image ${options[@]+"${options[@]}"} trixie)
}

# Shows one line for each step, and one for each tenth crate.
show_progress() { # reads the output of docker build
    local line compiled=0 crates='?'
    while IFS= read -r line; do
        if [[ $line =~ ^#[0-9]+\ \[ ]]; then
            printf '    %.110s\n' "$line"
        elif [[ $line =~ ' crates: '([0-9]+)$ ]]; then
            crates=${BASH_REMATCH[1]}
        elif [[ $line =~ ' Compiling '([^ ]+) ]]; then
            compiled=$((compiled + 1))
            [ $((compiled % 10)) != 0 ] || printf '    compiling crate %d of %s: %s\n' "$compiled" "$crates" "${BASH_REMATCH[1]}"
        fi
    done
}

# Prints the progress; the whole output only when it fails. Later arguments override earlier ones.
build_image() { # TAG, then docker build's arguments
    local tag=$1 log status=0 arguments=() argument base certs variable digest
    shift
    ensure_buildkit
    ensure_base_image || return
    arguments=(--build-arg "BASE_IMAGE=$base_image" --build-arg "BUILDER_IMAGE=$base_image")
    log=$(mktemp "${scratch:-/tmp}/XXXXXX")
    # Uses a file, because an argument is limited to 128 KiB.
    certs=$(mktemp "${scratch:-/tmp}/XXXXXX")
    extra_ca_certs >"$certs"
    [ ! -s "$certs" ] || arguments+=(--secret "id=extra-ca-certs,src=$certs")
    for variable in "${proxy_variables[@]}"; do
        [ -z "${!variable:-}" ] || arguments+=(--build-arg "$variable")
    done
    arguments+=(--build-arg "VERSION=$(package_version)" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)")
    base=$base_image
    for argument; do [[ $argument != BASE_IMAGE=* ]] || base=${argument#BASE_IMAGE=}; done
    # A base image that was created here, or is yet to be pulled, has no digest.
    digest=$("${docker_cmd[@]}" image inspect --format '{{join .RepoDigests " "}}' "$base" 2>/dev/null) || digest=''
    digest=${digest#*@}
    arguments+=(--build-arg "BASE_DIGEST=${digest%% *}")
    "${docker_cmd[@]}" build --progress plain --tag "$tag" "${arguments[@]}" "$@" . 2>&1 | tee "$log" | show_progress || status=$?
    if [ "$status" != 0 ]; then
        tail -n 40 "$log" >&2
        ! grep -i 'no space left on device' "$log" >/dev/null ||
            say "the disk is full. 'docker system df' shows what Docker uses, 'docker image prune' removes unused images"
    fi
    rm -f "$log" "$certs"
    return "$status"
}
