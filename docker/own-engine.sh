# shellcheck shell=bash
# A separate Docker engine for the tests. Sourced by docker/test, after docker/engine.sh.
#
# With fuse-overlayfs each file that a container opens goes through a process, and vfs copies whole images: the tests, which start
# hundreds of containers, take twice as long. The images stay in the directory for the next run.
# shellcheck disable=SC2154 # docker_cmd is engine.sh's

own_engine_dir=/var/lib/slurminit-test-engine
own_engine_run=/run/slurminit-test-engine
own_engine_bridge=slurminit0

# The first /16 without a route into it, other than a default route (a VPN has two halves), and without a name server of this machine.
free_range() {
    local prefix
    for prefix in 172.{28..31} 172.{27..18}; do
        [ -z "$(ip route show table all root "$prefix.0.0/16")" ] &&
            ! ip route show table all match "$prefix.0.0/16" | grep -vE '^(default|0\.0\.0\.0/1|128\.0\.0\.0/1) ' >/dev/null &&
            ! grep -F "nameserver $prefix." /etc/resolv.conf >/dev/null && echo "$prefix" && return
    done
    echo "each of 172.18.0.0/16 to 172.31.0.0/16 has a route on this machine" >&2
    return 1
}

# The engine writes no rules (--iptables=false), because at its start it would empty the chains of the host's engine, whose containers would lose
# their published ports. Its containers need only the rules below.
own_engine_rules() { # -I | -D, RANGE
    local ours=(-m comment --comment slurminit-test-engine)
    iptables --wait -t nat "$1" POSTROUTING -s "$2" ! -d "$2" "${ours[@]}" -j MASQUERADE &&
        iptables --wait "$1" FORWARD -s "$2" "${ours[@]}" -j ACCEPT && iptables --wait "$1" FORWARD -d "$2" "${ours[@]}" -j ACCEPT
}

# Also removes the remains of a killed run. The bridge has its own name, so that docker0 stays; `--bridge none` would remove it.
remove_own_network() {
    local range
    ip link delete "$own_engine_bridge" 2>/dev/null || true
    range=$(cat "$own_engine_run/range" 2>/dev/null) || return 0
    own_engine_rules -D "$range" 2>/dev/null || true
    rm -f "$own_engine_run/range"
}

uses_own_engine() { [ -n "${own_engine:-}" ]; }

# Sets DOCKER_HOST, and SLURMINIT_TEST_RUNC for tests/image/docker.rs; or leaves the tests to this machine's engine and prints the reason.
ensure_fast_engine() {
    local driver
    [ -z "${DOCKER_HOST:-}" ] || return 0
    driver=$("${docker_cmd[@]}" info --format '{{.Driver}}')
    case "$driver" in fuse-overlayfs | vfs) ;; *) return 0 ;; esac
    if [ "$(id -u)" != 0 ] || ! command -v dockerd >/dev/null; then
        say "the Docker engine uses the storage driver $driver: the tests take twice as long as with overlay2"
        return 0
    fi
    agreed "The engine here has the storage driver $driver, with which the tests take twice as long. Start one with overlay2 for them?" ||
        return 0
    mkdir -p "$own_engine_run"
    # Processes that outlive a killed run must not hold the lock.
    exec {own_engine_lock}>"$own_engine_run/lock"
    flock --nonblock "$own_engine_lock" || {
        say "another docker/test uses the tests' engine, so these tests use the existing one"
        return 0
    }
    { command -v ip && command -v iptables && command -v dnsmasq; } >/dev/null || ! is_debian_like ||
        apt_install iproute2 iptables dnsmasq-base || true
    say "starting an engine with overlay2 for the tests, in $own_engine_dir"
    start_own_engine || {
        say "the tests' engine did not start, so the tests use the existing one: $(tail -n 1 "$own_engine_run/log")"
        stop_own_engine
        unset DOCKER_HOST SLURMINIT_TEST_RUNC
    }
}

# Its bridge and networks are separate from the host engine's. Each starting container looks up a dozen names that do not exist. A name server drops
# some of these many queries, and then the daemons wait ten seconds; so dnsmasq answers them itself.
start_own_engine() {
    local deadline=$((SECONDS + 60)) mtu
    echo '{}' >"$own_engine_run/daemon.json"
    # A bridge that a killed run has left.
    end_former dockerd "$own_engine_run/pid"
    end_former dnsmasq "$own_engine_run/dnsmasq.pid"
    remove_own_network
    # An engine with address pools that finds its previous default network removes docker0, whatever its own bridge is called (20.10 to 28,
    # initNetworkController).
    rm -rf "$own_engine_dir/network"
    own_engine_range=$(free_range 2>"$own_engine_run/log") || return
    echo "$own_engine_range.0.0/16" >"$own_engine_run/range"
    mtu=$(cat /sys/class/net/docker0/mtu 2>/dev/null || echo 1500)
    {
        # A bridge without its own MAC address takes that of a container. The address then changes whenever containers start or stop, and other
        # containers lose packets for seconds.
        ip link add "$own_engine_bridge" address 02:42:ac:1d:ff:01 type bridge &&
            ip address add "$own_engine_range.255.1/24" dev "$own_engine_bridge" && ip link set "$own_engine_bridge" up &&
            own_engine_rules -I "$own_engine_range.0.0/16"
    } >"$own_engine_run/log" 2>&1 || return
    dnsmasq --listen-address="$own_engine_range.255.1" --bind-interfaces --domain-needed --bogus-priv --neg-ttl=3600 --cache-size=10000 \
        --pid-file="$own_engine_run/dnsmasq.pid" >>"$own_engine_run/log" 2>&1 {own_engine_lock}>&- || return
    setsid nohup dockerd --config-file "$own_engine_run/daemon.json" --storage-driver overlay2 --data-root "$own_engine_dir" \
        --exec-root "$own_engine_run/exec" --pidfile "$own_engine_run/pid" --host "unix://$own_engine_run/docker.sock" \
        --bridge "$own_engine_bridge" --default-address-pool "base=$own_engine_range.0.0/17,size=24" --mtu "$mtu" --dns "$own_engine_range.255.1" \
        --iptables=false --ip6tables=false \
        </dev/null >"$own_engine_run/log" 2>&1 {own_engine_lock}>&- &
    own_engine=$!
    export DOCKER_HOST=unix://$own_engine_run/docker.sock SLURMINIT_TEST_RUNC=$own_engine_run/exec/runtime-runc/moby
    until engine_answers; do
        [ "$SECONDS" -lt "$deadline" ] && kill -0 "$own_engine" 2>/dev/null || return
        sleep 0.2
    done
}

# The PID may have been reused.
end_former() { # PROGRAM PID-FILE
    local pid
    pid=$(cat "$2" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] && kill "$pid" || return 0
    timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
}

stop_own_engine() {
    # If this run did not start the engine, the network belongs to another docker/test.
    [ -n "${own_engine_range:-}" ] || return 0
    [ -z "${own_engine:-}" ] || ! kill "$own_engine" 2>/dev/null || wait "$own_engine" || true
    end_former dnsmasq "$own_engine_run/dnsmasq.pid"
    remove_own_network
}
