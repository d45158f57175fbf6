# Every image of a release: docs/contributing.md.
#
#   docker buildx bake -f docker/bake.hcl --print release           what would be built
#   docker buildx bake -f docker/bake.hcl slurm-24-11-nvidia        one image
#   docker buildx bake -f docker/bake.hcl slurm-cuda                on NVIDIA's image with CUDA; slurm-rocm: on AMD's with ROCm
#
# docker/release builds and publishes them.

# The repository, such as ghcr.io/you/slurminit.
variable "IMAGE" { default = "slurminit" }
# slurminit's own version, and the commit; both also in the labels.
variable "VERSION" { default = "" }
variable "REVISION" { default = "" }
# URL of the source of this build, for the image labels.
variable "SOURCE" { default = "" }
# Build time, RFC 3339. Empty: now.
variable "CREATED" { default = "" }
# The digest of each base and of BUILDER: {"debian:trixie-slim": "sha256:..."}. docker/release sets it.
variable "BASE_DIGESTS" { default = "{}" }
# Platforms, comma-separated. Building both, as for a release, needs a builder for both: docs/contributing.md.
variable "PLATFORMS" { default = "linux/amd64,linux/arm64" }
# A file with the CA certificates of a TLS-inspecting proxy, for the stages that download.
variable "EXTRA_CA_CERTS_FILE" { default = "" }

# The image that the programs are compiled in.
variable "BUILDER" { default = "debian:trixie-slim" }
# The Slurm releases, as in src/model/inventory/slurm.rs (a test compares them): from the base's packages, or from source if `source` names a
# version. `sha256` is that of slurm-VERSION.tar.bz2. docker/release refuses a source without one: download it, compare it with the checksum on
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
# Vendors' images with compilers and libraries, with a Slurm release from source, because the packages of their Ubuntu 24.04 are too old. They are
# not in the group release: whether the vendor's licence lets you publish them is for you to decide.
variable "TOOLKITS" {
  default = [
    { name = "cuda", gpu = "nvidia", release = "26.05", base = "nvidia/cuda:12.9.1-devel-ubuntu24.04" },
    { name = "rocm", gpu = "amd", release = "26.05", base = "rocm/dev-ubuntu-24.04:6.4" },
  ]
}
# The files of docker/slurm-patches, for the labels.
variable "SLURM_PATCHES" { default = "25.05-login-environment-without-namespaces.patch" }
# The release of the tag `latest` and of tags without a release. Only this release has images for Intel.
variable "DEFAULT_RELEASE" { default = "24.11" }

group "default" { targets = ["slurm-24-11"] }
group "release" { targets = ["image", "demo"] }
group "toolkits" { targets = ["toolkit"] }

# Joins the non-empty words of a tag.
function "tag" {
  params = [words]
  result = "${IMAGE}:${join("-", compact(words))}"
}

# The tags of an image. The release 24.11 for NVIDIA in slurminit 0.1.0 has 0.1.0-24.11-nvidia and 24.11-nvidia. The default release also has
# 0.1.0-nvidia and nvidia, or without a vendor 0.1.0 and latest. docker/release never changes a tag that begins with a version, but moves the
# other tags.
function "tags" {
  params = [release, suffix]
  result = concat(
    [tag([release, suffix])],
    release == DEFAULT_RELEASE ? [tag([suffix == "" ? "latest" : suffix])] : [],
    VERSION == "" ? [] : [tag([VERSION, release, suffix])],
    VERSION == "" || release != DEFAULT_RELEASE ? [] : [tag([VERSION, suffix])],
  )
}

# The release of a toolkit, on its base.
function "of_toolkit" {
  params = [toolkit]
  result = merge([for slurm in SLURM : slurm if slurm.release == toolkit.release][0], { base = toolkit.base })
}

# The image, with its digest if that is known.
function "pinned" {
  params = [image]
  result = lookup(jsondecode(BASE_DIGESTS), image, "") == "" ? image : "${image}@${lookup(jsondecode(BASE_DIGESTS), image, "")}"
}

# The build arguments for a release and a vendor.
function "of_base" {
  params = [slurm, gpu]
  result = {
    BASE_IMAGE = pinned(slurm.base)
    BASE_DIGEST = lookup(jsondecode(BASE_DIGESTS), slurm.base, "")
    BUILDER_IMAGE = pinned(BUILDER)
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
  }
  secret = EXTRA_CA_CERTS_FILE == "" ? [] : ["id=extra-ca-certs,src=${EXTRA_CA_CERTS_FILE}"]
  labels = {
    "org.opencontainers.image.created" = CREATED == "" ? timestamp() : CREATED
    "org.opencontainers.image.source" = SOURCE == "" ? null : SOURCE
  }
  platforms = split(",", PLATFORMS)
  # SBOM and provenance attestations.
  attest = ["type=sbom", "type=provenance,mode=max"]
}

# Without and with the target full: accounting, the REST API and SSH.
target "image" {
  inherits = ["_any"]
  name = join("-", compact(["slurm", replace(build.slurm.release, ".", "-"), build.gpu == "none" ? "" : build.gpu, stage == "image" ? "" : stage]))
  matrix = {
    build = flatten([for slurm in SLURM : [
      for gpu in ["none", "nvidia", "amd", "intel"] : { slurm = slurm, gpu = gpu } if gpu != "intel" || slurm.release == DEFAULT_RELEASE
    ]])
    stage = ["image", "full"]
  }
  target = stage
  args = of_base(build.slurm, build.gpu)
  labels = of_slurm(build.slurm)
  # AMD's and Intel's libraries are packaged only for this platform.
  platforms = build.gpu == "amd" || build.gpu == "intel" ? ["linux/amd64"] : split(",", PLATFORMS)
  tags = tags(build.slurm.release, join("-", compact([build.gpu == "none" ? "" : build.gpu, stage == "image" ? "" : stage])))
}

# Simulated GPUs, as for tests of programs that use Slurm.
target "demo" {
  inherits = ["_any"]
  name = "slurm-${replace(slurm.release, ".", "-")}-demo"
  matrix = { slurm = SLURM }
  target = "demo"
  args = of_base(slurm, "nvidia")
  labels = of_slurm(slurm)
  tags = tags(slurm.release, "demo")
}

target "toolkit" {
  inherits = ["_any"]
  name = "slurm-${toolkit.name}"
  matrix = { toolkit = TOOLKITS }
  target = "image"
  args = of_base(of_toolkit(toolkit), toolkit.gpu)
  labels = of_slurm(of_toolkit(toolkit))
  # AMD publishes its images only for this platform.
  platforms = toolkit.gpu == "amd" ? ["linux/amd64"] : split(",", PLATFORMS)
  tags = concat(["${IMAGE}:${toolkit.name}"], tags(toolkit.release, toolkit.name))
}
