# shellcheck shell=bash
# Where Debian packages come from. Read by docker/base-image and docker/engine.sh.

# A laboratory with a mirror of its own has it in apt's configuration; only Debian's own layout is of use to us.
host_mirror() { # PATH: debian or debian-security
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
        grep -v '^[[:space:]]*#' | grep -Eo 'https?://[^][[:space:]]+/'"$1"'/?([[:space:]]|$)' | head -n 1 |
        sed 's,[[:space:]]*$,,; s,/*$,,' || true
}

# DEBIAN_MIRROR, else this machine's own, else what debootstrap takes by default; empty if none is known.
debian_mirror() {
    local mirror=${DEBIAN_MIRROR:-$(host_mirror debian)}
    [ -n "$mirror" ] || ! command -v debootstrap >/dev/null ||
        mirror=$(sed -n 's/^DEF_MIRROR="\(.*\)"$/\1/p' "$(command -v debootstrap)")
    printf '%s' "$mirror"
}
