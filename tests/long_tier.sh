# shellcheck shell=bash
# The parts of docker/test's long tier, one function each, and their samples for each run. Sourced.
# shellcheck disable=SC2154 # docker_cmd is engine.sh's, the rest docker/test's

# The image tests that use the images of `build`.
of_these_images='not test(/^(printed|vendors|upgrade)::/)'

long() { image_tests "long image tests" "$of_these_images and test(/^long::/)"; }

# A sample of each kind of check other than the image tests.
sample() {
    fuzz_seconds=1 fuzz
    manifests
    bake
    podman_cases=host-network podman
}

vendors() {
    check "images: nvidia, amd, cuda, rocm" tests/image/build "${yes[@]}" nvidia amd cuda rocm
    SLURMINIT_TEST_BUILT="nvidia amd cuda rocm" image_tests "image tests of vendors and base images" 'test(/^(vendors|contents)::/)'
}

fuzz() { check_if "need ${CXX:-c++} g++" "no C++ compiler" "fuzz" tests/fuzz/run --seconds "${fuzz_seconds:-60}" --unoptimized; }
bake() { check_if ensure_buildx "no docker buildx" "docker/bake.hcl" cargo_test 'binary(host) and test(/^bake::/)' --run-ignored only; }
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
    check_if ensure_chromium "not installed" "the page in Chromium" cargo_test 'binary(host) and test(/^page::/)' --run-ignored only
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
        "NVIDIA's own library, without a driver" cargo_test 'binary(host) and test(real_library)' --run-ignored only
}
fetch_nvml() { mkdir "$scratch/nvml" && tests/real-nvml/fetch "$scratch/nvml" >&2; }
versions() { check "later releases of Slurm, and upgrades" tests/versions/run; }
kubernetes() { check_if has_helm_and_kubectl "no helm or kubectl" "the chart in the cluster of kubectl's context" tests/kubernetes/run; }
