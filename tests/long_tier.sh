# shellcheck shell=bash
# The parts of docker/test's long tier, one function each, and the seventh that a day selects. Sourced.
# shellcheck disable=SC2154 # docker_cmd is engine.sh's, the rest docker/test's

long() { image_tests "long image tests" long:: "${of_other_images[@]}"; }

rotation() {
    local tests
    tests=$(known_seventh)
    # shellcheck disable=SC2086 # one word for each
    image_tests "a seventh of the long image tests" --exact $tests
    part_of_day
}

part_of_day() {
    local part=${rotation[day % ${#rotation[@]}]}
    say "day $day of the year: $part"
    fuzz_seconds=5 "$part"
}
page_and_release() { check_if can_release "no docker-registry, jq or Python" "a release without GitHub, twice" tests/release/run; }
can_release() { need docker-registry docker-registry && need jq jq && need python3 python3-venv && ensure_buildx; }
manifests() { page; manifests; }
bake_and_workflows() { bake; workflows; }

# Tests of images that `build` does not make.
of_other_images=(--skip vendors:: --skip upgrade::)
listed() { cargo_test --test image --test differential -- --ignored --list "$@" 2>/dev/null | sed -n 's/: test$//p'; }
# Of those that need the machine for themselves one a day: several would take longer than all other tests.
seventh() {
    listed long:: "${of_other_images[@]}" | awk -v day="$day" '
        /^long::(adversary|between|change_rounds|faults|jobs_rounds)::/ { alone[count++] = $0; next }
        ++others % 7 == day % 7
        END { if (count) print alone[day % count] }'
}

# Without a name, libtest would run every test.
known_seventh() { seventh | grep . || die "no test of the part long was listed: cargo test --test image -- --ignored --list long::"; }

vendors() {
    check "images: nvidia, amd, cuda, rocm" tests/image/build "${yes[@]}" nvidia amd cuda rocm
    SLURMINIT_TEST_BUILT="nvidia amd cuda rocm" image_tests "image tests of vendors and base images" vendors:: contents::
}

fuzz() { check_if "need ${CXX:-c++} g++" "no C++ compiler" "fuzz" tests/fuzz/run --seconds "${fuzz_seconds:-60}" --unoptimized; }
bake() { check_if ensure_buildx "no docker buildx" "docker/bake.hcl" cargo_test --test bake -- --ignored; }
workflows() {
    check_if "need python3 python3-venv" "no Python" "the workflows of GitHub, without it" tests/workflows/run
    check_if "need python3 python3-venv" "no Python" "the site of the documentation" tests/site/run
    check_if "need python3 python3-venv" "no Python" "licenses and sources of the dependencies" tests/workflows/dependencies bans licenses sources
    check_if reaches_advisories "github.com is not reachable" \
        "known vulnerabilities of the dependencies" tests/workflows/dependencies advisories
}
reaches_advisories() { git ls-remote --exit-code https://github.com/RustSec/advisory-db main >/dev/null 2>&1; }
release() { check_if can_release "no docker-registry, jq or Python" "a release without GitHub, twice" tests/release/run; }
can_release() { need docker-registry docker-registry && need jq jq && need python3 python3-venv && ensure_buildx; }
manifests() { check_if can_render_chart "no Helm library for $(uname -m)" "Helm chart and manifests" tests/manifests/run; }

page() {
    check "promtool check metrics" tests/page/promtool
    check_if ensure_chromium "not installed" "the page in Chromium" cargo_test --test page -- --ignored
}

cgroup2() { build && check "the image on cgroup v2" env DOCKER="${docker_cmd[*]}" tests/cgroup2/run; }
# podman_cases: some of tests/podman/cases, such as host-network, which takes seconds.
podman() {
    build
    check "Debian's podman and runc" build_image "$SLURMINIT_TEST_IMAGE-podman" --file tests/podman/Dockerfile
    # shellcheck disable=SC2086 # one word for each
    check_if is_root "namespaces need root" "the image under podman" env DOCKER="${docker_cmd[*]}" IMAGE="$SLURMINIT_TEST_IMAGE" \
        PODMAN_IMAGE="$SLURMINIT_TEST_IMAGE-podman" tests/podman/run ${podman_cases:-}
}
is_root() { [ "$(id -u)" = 0 ]; }

arm64() {
    check "tools and dependencies for arm64" build_image "$SLURMINIT_TEST_IMAGE-arm64" --file tests/arm64/Dockerfile
    check "tests on arm64, under qemu" env DOCKER="${docker_cmd[*]}" IMAGE="$SLURMINIT_TEST_IMAGE-arm64" tests/arm64/run
}

clients() { build && check "programs that submit to Slurm" env DOCKER="${docker_cmd[*]}" IMAGE="$SLURMINIT_TEST_IMAGE-full" tests/clients/run; }
nvml() {
    SLURMINIT_REAL_NVML=$scratch/nvml check_if fetch_nvml "libnvidia-ml1 cannot be downloaded from Debian's non-free" \
        "NVIDIA's own library, without a driver" cargo_test --test detect -- --ignored real_library
}
fetch_nvml() { mkdir "$scratch/nvml" && tests/real-nvml/fetch "$scratch/nvml" >&2; }
versions() { check "later releases of Slurm, and upgrades" tests/versions/run; }
kubernetes() { check_if has_helm_and_kubectl "no helm or kubectl" "the chart in the cluster of kubectl's context" tests/kubernetes/run; }
