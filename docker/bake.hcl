# Every image of a release: docs/contributing.md.
#
#   docker buildx bake -f docker/bake.hcl --print release           what would be built
#   docker buildx bake -f docker/bake.hcl slurm-24-11-nvidia        one image
#   docker buildx bake -f docker/bake.hcl --push release            all, with their attestations, to the repository that IMAGE names

# The repository, such as ghcr.io/you/slurminit.
variable "IMAGE" { default = "slurminit" }
# slurminit's own version, and the commit; both also in the labels.
variable "VERSION" { default = "" }
variable "REVISION" { default = "" }
# URL of the source of this build, for the image labels.
variable "SOURCE" { default = "" }
# Build time, RFC 3339. Empty: now.
variable "CREATED" { default = "" }
# Platforms, comma-separated. Building both, as for a release, needs a builder for both: docs/contributing.md.
variable "PLATFORMS" { default = "linux/amd64,linux/arm64" }
# CA certificates of a TLS-inspecting proxy, for the stages that download.
variable "EXTRA_CA_CERTS" { default = "" }

# The Slurm releases of src/model/inventory/slurm.rs: from the base's packages, or from source if `source` names a version.
variable "SLURM" {
  default = [
    { release = "22.05", base = "debian:bookworm-slim", source = "" },
    { release = "23.11", base = "ubuntu:24.04", source = "" },
    { release = "24.11", base = "debian:trixie-slim", source = "" },
    { release = "25.11", base = "debian:trixie-slim", source = "25.11.7" },
    { release = "26.05", base = "debian:trixie-slim", source = "26.05.3" },
  ]
}
# The release of the tag `latest` and of tags without a release.
variable "DEFAULT_RELEASE" { default = "24.11" }

group "default" { targets = ["slurm-24-11"] }
group "release" { targets = ["image", "accounting", "demo"] }

# 24.11-nvidia, and for one slurminit 0.1.0-24.11-nvidia; the default release without GPUs is also `latest`.
function "tags" {
  params = [release, suffix]
  result = concat(
    ["${IMAGE}:${release}${suffix}"],
    VERSION == "" ? [] : ["${IMAGE}:${VERSION}-${release}${suffix}"],
    release != DEFAULT_RELEASE ? [] : [suffix == "" ? "${IMAGE}:latest" : "${IMAGE}:${substr(suffix, 1, -1)}"],
  )
}

target "_any" {
  context = "."
  dockerfile = "Dockerfile"
  args = {
    VERSION = VERSION
    REVISION = REVISION
    EXTRA_CA_CERTS = EXTRA_CA_CERTS
  }
  labels = {
    "org.opencontainers.image.created" = CREATED == "" ? timestamp() : CREATED
    "org.opencontainers.image.source" = SOURCE == "" ? null : SOURCE
  }
  platforms = split(",", PLATFORMS)
  # SBOM and provenance attestations.
  attest = ["type=sbom", "type=provenance,mode=max"]
}

target "image" {
  inherits = ["_any"]
  name = gpu == "none" ? "slurm-${replace(slurm.release, ".", "-")}" : "slurm-${replace(slurm.release, ".", "-")}-${gpu}"
  matrix = {
    slurm = SLURM
    gpu = ["none", "nvidia", "amd", "intel"]
  }
  target = "image"
  args = { BASE_IMAGE = slurm.base, SLURM_VERSION = slurm.source, GPU_TYPE = gpu }
  # AMD's and Intel's libraries are packaged for this one.
  platforms = gpu == "amd" || gpu == "intel" ? ["linux/amd64"] : split(",", PLATFORMS)
  tags = tags(slurm.release, gpu == "none" ? "" : "-${gpu}")
}

target "accounting" {
  inherits = ["_any"]
  name = gpu == "none" ? "slurm-${replace(slurm.release, ".", "-")}-accounting" : "slurm-${replace(slurm.release, ".", "-")}-${gpu}-accounting"
  matrix = {
    slurm = SLURM
    gpu = ["none", "nvidia"]
  }
  target = "accounting"
  args = { BASE_IMAGE = slurm.base, SLURM_VERSION = slurm.source, GPU_TYPE = gpu }
  tags = tags(slurm.release, gpu == "none" ? "-accounting" : "-${gpu}-accounting")
}

# Simulated GPUs, as for tests of programs that use Slurm.
target "demo" {
  inherits = ["_any"]
  name = "slurm-${replace(slurm.release, ".", "-")}-demo"
  matrix = { slurm = SLURM }
  target = "demo"
  args = { BASE_IMAGE = slurm.base, SLURM_VERSION = slurm.source, GPU_TYPE = "nvidia" }
  tags = tags(slurm.release, "-demo")
}
