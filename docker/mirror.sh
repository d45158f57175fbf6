# shellcheck shell=bash
# Where Debian packages come from. Read by docker/base-image and docker/engine.sh.

# A site with its own mirror has it in apt's configuration; only a mirror with Debian's layout can be used.
host_mirror() { # PATH: debian or debian-security
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
        grep -v '^[[:space:]]*#' | grep -Eo 'https?://[^][[:space:]]+/'"$1"'/?([[:space:]]|$)' | head -n 1 |
        sed 's,[[:space:]]*$,,; s,/*$,,' || true
}

# DEBIAN_MIRROR, else this machine's mirror, else debootstrap's default; empty if none is known.
debian_mirror() {
    local mirror=${DEBIAN_MIRROR:-$(host_mirror debian)}
    [ -n "$mirror" ] || ! command -v debootstrap >/dev/null ||
        mirror=$(sed -n 's/^DEF_MIRROR="\(.*\)"$/\1/p' "$(command -v debootstrap)")
    printf '%s' "$mirror"
}
