# Every image of a release: docs/contributing.md.
#
#   docker buildx bake -f docker/bake.hcl --print release           what would be built
#   docker buildx bake -f docker/bake.hcl slurm-24-11-nvidia        one image
#   docker buildx bake -f docker/bake.hcl slurm-cuda                on NVIDIA's image with CUDA; slurm-rocm: on AMD's with ROCm
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
# The digest of each base: {"debian:trixie-slim": "sha256:..."}. docker/release sets it.
variable "BASE_DIGESTS" { default = "{}" }
# Platforms, comma-separated. Building both, as for a release, needs a builder for both: docs/contributing.md.
variable "PLATFORMS" { default = "linux/amd64,linux/arm64" }
# CA certificates of a TLS-inspecting proxy, for the stages that download. The provenance shows them: pass no keys.
variable "EXTRA_CA_CERTS" { default = "" }

# The Slurm releases of src/model/inventory/slurm.rs, a test compares them: from the base's packages, or from source if `source` names a version.
# `sha256` is that of slurm-VERSION.tar.bz2. docker/release refuses a source without one: download it, compare it with the checksum on
# https://www.schedmd.com/download-slurm/, and write it here.
variable "SLURM" {
  default = [
    { release = "24.11", base = "debian:trixie-slim", source = "", sha256 = "" },
    {
      release = "25.11", base = "debian:trixie-slim", source = "25.11.8",
      sha256 = "34ace13f81011add6094569d13bfc4006ad8868201c2236e2905443c7e526393"
    },
    {
      release = "26.05", base = "debian:trixie-slim", source = "26.05.5",
      sha256 = ""
    },
  ]
}
# Images of vendors with compilers and libraries, with a release of SLURM from source: the packages of their Ubuntu 24.04 are too old. Not in
# the group release: whether the vendor's licence lets you publish them is for you to decide.
variable "TOOLKITS" {
  default = [
    { name = "cuda", gpu = "nvidia", release = "26.05", base = "nvidia/cuda:12.9.1-devel-ubuntu24.04" },
    { name = "rocm", gpu = "amd", release = "26.05", base = "rocm/dev-ubuntu-24.04:6.4" },
  ]
}
# The files of docker/slurm-patches, for the labels.
variable "SLURM_PATCHES" { default = "25.05-login-environment-without-namespaces.patch" }
# The release of the tag `latest` and of tags without a release.
variable "DEFAULT_RELEASE" { default = "24.11" }

group "default" { targets = ["slurm-24-11"] }
group "release" { targets = ["image", "accounting", "login", "demo"] }
group "toolkits" { targets = ["toolkit"] }

# 24.11-nvidia, and for one slurminit 0.1.0-24.11-nvidia; the default release without GPUs is also `latest`.
function "tags" {
  params = [release, suffix]
  result = concat(
    ["${IMAGE}:${release}${suffix}"],
    VERSION == "" ? [] : ["${IMAGE}:${VERSION}-${release}${suffix}"],
    release != DEFAULT_RELEASE ? [] : [suffix == "" ? "${IMAGE}:latest" : "${IMAGE}:${substr(suffix, 1, -1)}"],
  )
}

# The release of a toolkit, on its base.
function "of_toolkit" {
  params = [toolkit]
  result = merge([for slurm in SLURM : slurm if slurm.release == toolkit.release][0], { base = toolkit.base })
}

# The build arguments for a release and a vendor. The base is pinned, where its digest is known.
function "of_base" {
  params = [slurm, gpu]
  result = {
    BASE_IMAGE = lookup(jsondecode(BASE_DIGESTS), slurm.base, "") == "" ? slurm.base : "${slurm.base}@${lookup(jsondecode(BASE_DIGESTS), slurm.base, "")}"
    BASE_DIGEST = lookup(jsondecode(BASE_DIGESTS), slurm.base, "")
    SLURM_VERSION = slurm.source
    SLURM_SHA256 = slurm.sha256
    GPU_TYPE = gpu
  }
}

# The labels of a release.
function "of_slurm" {
  params = [slurm]
  result = {
    "io.slurminit.slurm-version" = slurm.source == "" ? slurm.release : slurm.source
    "io.slurminit.slurm-source" = slurm.source == "" ? "packages of ${slurm.base}" : "https://download.schedmd.com/slurm/slurm-${slurm.source}.tar.bz2"
    "io.slurminit.slurm-patches" = slurm.source == "" ? "" : SLURM_PATCHES
  }
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
  args = of_base(slurm, gpu)
  labels = of_slurm(slurm)
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
  args = of_base(slurm, gpu)
  labels = of_slurm(slurm)
  tags = tags(slurm.release, gpu == "none" ? "-accounting" : "-${gpu}-accounting")
}

# SSH for users.
target "login" {
  inherits = ["_any"]
  name = gpu == "none" ? "slurm-${replace(slurm.release, ".", "-")}-login" : "slurm-${replace(slurm.release, ".", "-")}-${gpu}-login"
  matrix = {
    slurm = SLURM
    gpu = ["none", "nvidia"]
  }
  target = "login"
  args = of_base(slurm, gpu)
  labels = of_slurm(slurm)
  tags = tags(slurm.release, gpu == "none" ? "-login" : "-${gpu}-login")
}

# Simulated GPUs, as for tests of programs that use Slurm.
target "demo" {
  inherits = ["_any"]
  name = "slurm-${replace(slurm.release, ".", "-")}-demo"
  matrix = { slurm = SLURM }
  target = "demo"
  args = of_base(slurm, "nvidia")
  labels = of_slurm(slurm)
  tags = tags(slurm.release, "-demo")
}

target "toolkit" {
  inherits = ["_any"]
  name = "slurm-${toolkit.name}"
  matrix = { toolkit = TOOLKITS }
  target = "image"
  args = of_base(of_toolkit(toolkit), toolkit.gpu)
  labels = of_slurm(of_toolkit(toolkit))
  # AMD publishes its images for this one.
  platforms = toolkit.gpu == "amd" ? ["linux/amd64"] : split(",", PLATFORMS)
  tags = concat(["${IMAGE}:${toolkit.name}"], tags(toolkit.release, "-${toolkit.name}"))
}
