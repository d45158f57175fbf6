# slurminit: Slurm in one container, its GPUs detected at every start.
#
#   docker build -t slurminit:latest .                              without GPUs
#   docker build -t slurminit:latest --build-arg GPU_TYPE=nvidia .  or amd, intel
#   docker build -t slurminit:full --target full .                  with accounting, the REST API and SSH for users
#   docker build -t slurminit:demo --target demo --build-arg GPU_TYPE=nvidia .   simulated GPUs
#   docker build -t slurminit:25.11 --build-arg SLURM_VERSION=25.11.8 .          another Slurm, from source
#
# Needs BuildKit: Docker 23 or newer with buildx, or DOCKER_BUILDKIT=1 before.

# Debian 13 (Slurm 24.11). With SLURM_VERSION also Debian 12 or Ubuntu 24.04, whose Slurm packages are too old, or an image based on them, such as one with
# CUDA: docs/your-software.md.
ARG BASE_IMAGE=debian:trixie-slim
# Must have Rust 1.85 or newer; its glibc may be newer than BASE_IMAGE's (tests/image checks which symbols are used).
ARG BUILDER_IMAGE=debian:trixie-slim
ARG GPU_TYPE=none
# Empty: Slurm from BASE_IMAGE's packages. A full version, such as 25.11.8: Slurm from source (docs/your-software.md).
ARG SLURM_VERSION=

# cargo-auditable, if the distribution has it, writes the list of crates into the programs, which SBOM scanners read.
FROM ${BUILDER_IMAGE} AS builder
RUN apt-get update \
 && auditable="$(apt-cache pkgnames cargo-auditable)" \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates cargo gcc libc6-dev rsync rustc ${auditable} \
 && rm -rf /var/lib/apt/lists/*
# Rust's library uses two functions of glibc 2.39 if they exist, but the linker then makes the programs require that version, and Debian 12 has 2.36. If they
# are defined as 0, the library treats them as missing and uses older functions. The relocation table, which each start reads in full, is packed, which glibc
# supports since 2.36: PID 1 then needs 200 KiB less memory.
ENV RUSTFLAGS="-C link-arg=-Wl,--defsym=pidfd_spawnp=0 -C link-arg=-Wl,--defsym=pidfd_getpid=0 -C link-arg=-Wl,-z,pack-relative-relocs"
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY tests tests
COPY config/reference.toml config/slurminit.schema.json config/
COPY docs/reference/exit-codes.md docs/reference/
COPY docker/third-party-notices docker/
# The crates that an interrupted build has compiled are kept, also for other versions. cargo compares time stamps, which a checkout may set to any time: so only
# files whose content differs are copied, with the current time. docker/engine.sh counts the crates.
#
# CA certificates (PEM text) of a TLS-inspecting proxy are passed with --secret id=extra-ca-certs,src=FILE, or by compose as an argument, which is limited to
# 128 KiB. Neither ends up in the image.
ARG EXTRA_CA_CERTS=
RUN --mount=type=cache,target=/root/.cargo/registry --mount=type=cache,target=/build,sharing=locked \
    --mount=type=secret,id=extra-ca-certs \
    { cat /etc/ssl/certs/ca-certificates.crt /run/secrets/extra-ca-certs 2>/dev/null; echo "${EXTRA_CA_CERTS}"; } > /tmp/ca.pem \
 && export CARGO_HTTP_CAINFO=/tmp/ca.pem \
 && rsync --recursive --checksum --delete --exclude=/target ./ /build/ \
 && cd /build \
 && packages='--package slurminit --package init --package fake-nvml --package manual' \
 && export CARGO_TARGET_DIR="target/$(uname -m)" \
 && echo "crates: $(cargo tree --locked --edges normal,build --prefix none ${packages} | cut -d ' ' -f 1,2 | sort -u | wc -l)" \
 && auditable="$(! cargo auditable --version >/dev/null 2>&1 || echo auditable)" \
 && cargo ${auditable} build --release --locked ${packages} \
 && docker/third-party-notices --package slurminit --package init --package fake-nvml > /third-party-notices && gzip -n /third-party-notices \
 && cd "$CARGO_TARGET_DIR/release" \
 && install -D -t /built slurminit slurminit-init libfake_nvml.so \
 && mv /third-party-notices.gz /built \
 && ./slurminit-manual /built


# Builds Slurm on the image's base, so that it is linked with the same libraries. Without SLURM_VERSION it does nothing.
FROM ${BASE_IMAGE} AS slurm-build
COPY docker/build-slurm /usr/local/bin/
ARG SLURM_VERSION
ARG SLURM_SHA256=
ARG EXTRA_CA_CERTS=
RUN build-slurm tools
COPY docker/slurm-source /usr/src/slurm-source
COPY docker/slurm-patches /usr/src/slurm-patches
RUN --mount=type=secret,id=extra-ca-certs build-slurm build


FROM ${BASE_IMAGE} AS slurm
ARG SLURM_VERSION
COPY --from=slurm-build /slurm/common/ /
# munge gets a fixed user ID: the key is in a volume, and must still belong to munge when the image is rebuilt on
# another Debian. slurm has Debian's fixed 64030 everywhere.
RUN groupadd --gid 640 --system munge \
 && useradd --uid 640 --gid munge --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin munge \
 && useradd --uid 643 --user-group --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin slurminit
# systemd-standalone-sysusers replaces systemd, if the package exists. The packages make a munge key at install time: it is removed in the same layer, so that
# the image contains no key. 24.11 logs an error about the stock plugstack.conf at every start, because its include matches no file. PMIx plugins whose library
# is not among the packages (Ubuntu) log errors at every start, so they are removed. A Slurm built from source lists the packages it needs, and its user gets
# Debian's user ID of slurm.
#
# PRoot runs jobs in container images if user namespaces are refused. Two indirect dependencies contain files that are not needed: libX11 its locales, and Level
# Zero's loader its layers for debugging, 2 MB that it loads only if a variable requests them. skopeo pulls images for jobs; with gpg the rest of GnuPG is not
# installed. skopeo does not use the container network that one of its dependencies installs, 55 MB (docs/decisions/pull-images-with-skopeo.md).
# nss-myhostname resolves the host's own name if /etc/hosts is read-only and no name server has the name. It is the last source, because other hosts may need
# the address of a name server.
# dpkg's previous status and the symbols files, which only the build of a Debian package reads and can do without, are 400 kB. The packages of Slurm share one
# licence text of 50 kB: hard links keep each package's copyright file when another package is removed.
#
# The base image's packages are upgraded first, because base images are built less often than Debian publishes fixes. All set-user-id and set-group-id bits are
# removed, because nothing here needs them: accounts have no passwords, and only root, who needs no password, calls su. The build prints the files that lose
# their bits, and the image keeps the list: docs/your-software.md.
RUN mkdir -p /usr/share/slurminit \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get upgrade -y --no-install-recommends \
 && sysusers="$(apt-cache pkgnames systemd-standalone-sysusers)" \
 && if [ -z "${SLURM_VERSION}" ]; then packages='slurm-client slurmctld slurmd'; else \
      packages="procps $(cat /usr/share/slurminit/packages-common)" \
      && useradd --uid 64030 --user-group --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin slurm \
      && mkdir -p /etc/slurm /var/lib/slurm; \
    fi \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends munge proot skopeo ca-certificates gpg libnss-myhostname ${packages} ${sysusers} \
 && rm -rf /etc/munge/munge.key /var/lib/munge/munge.seed /var/lib/apt/lists/* /var/cache/apt/*.bin \
      /var/cache/debconf/* /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /usr/share/X11/locale \
      /usr/lib/*/libze_validation_layer.so* /usr/lib/*/libze_tracing_layer.so* /usr/lib/cni \
      /var/lib/dpkg/*-old /var/lib/dpkg/info/*.symbols \
 && for package in slurm-client slurmctld slurm-wlm-basic-plugins; do \
      ! cmp -s /usr/share/doc/slurmd/copyright "/usr/share/doc/$package/copyright" \
        || ln -f /usr/share/doc/slurmd/copyright "/usr/share/doc/$package/copyright"; \
    done \
 && find / -xdev -type f -perm /6000 -printf '%m %p\n' -exec chmod ug-s {} + >> /usr/share/slurminit/setuid-removed \
 && cat /usr/share/slurminit/setuid-removed \
 && sed -i -E '/^hosts:/ { s/ myhostname//; s/$/ myhostname/ }' /etc/nsswitch.conf \
 && echo '# optional and required SPANK plugins: man spank' > /etc/slurm/plugstack.conf \
 && echo '[ ! -r /usr/share/bash-completion/completions/slurminit ] || . /usr/share/bash-completion/completions/slurminit' >> /etc/bash.bashrc \
 && slurmd -V > /usr/share/slurminit/slurm-version \
 && case "$(cat /usr/share/slurminit/slurm-version)" in \
      *' '2[0-3].* | *' 24.05.'*) \
        echo "BASE_IMAGE has $(cat /usr/share/slurminit/slurm-version); slurminit needs 24.11 or newer: --build-arg SLURM_VERSION=26.05.5" >&2; exit 1 ;; \
    esac \
 && if ! ldconfig -p | grep -q libpmix; then find /usr/lib -name 'mpi_pmix*.so' -delete; fi \
 && install -d -o munge -g munge -m 0700 /etc/munge /var/lib/munge /var/log/munge \
 && install -d -o munge -g munge -m 0755 /run/munge \
 && install -d -o slurm -g slurm -m 0755 /var/log/slurm \
 && install -d -o slurm -g slurm -m 0700 /var/lib/slurm/slurmctld \
 && install -d -o root -g root -m 0755 /var/lib/slurm/slurmd /config \
 && install -d -o root -g root -m 1777 /data \
 && chown root:root /var/lib/slurm && chmod 0755 /var/lib/slurm


# Variables for the vendor's container runtime; a variable cannot depend on another one, but a stage's name can.
FROM slurm AS gpu-type-none
FROM slurm AS gpu-type-amd
FROM slurm AS gpu-type-intel
FROM slurm AS gpu-type-nvidia
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# GKE and others mount the driver here, and NVIDIA's own images search these directories, too.
ENV PATH=${PATH}:/usr/local/nvidia/bin LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-/usr/local/nvidia/lib64}


# GPU_TYPE must be none, nvidia, amd or intel.
FROM gpu-type-${GPU_TYPE} AS vendor
ARG GPU_TYPE
ARG SLURM_VERSION
COPY --from=slurm-build /slurm/gpu-${GPU_TYPE}/ /
# Debian keeps the NVML plugin in contrib. It loads the driver's library, which the NVIDIA runtime provides. Ubuntu does not have the plugin. A Slurm from
# source has its own. The distribution's AMD tools would hide those of a base with ROCm. Each release packages other parts of Intel's runtime, Debian 13 only
# the loader: there the driver has to be in BASE_IMAGE. No release has Slurm's oneapi plugin.
RUN if [ "${GPU_TYPE}" = none ]; then exit 0; fi \
 && find /etc/apt -name '*.sources' -exec sed -i 's/^Components: main$/Components: main contrib/' {} + \
 && find /etc/apt -name '*.list' -exec sed -i 's/ main$/ main contrib/' {} + \
 && apt-get update \
 && case "${GPU_TYPE}" in \
      nvidia) packages="$(apt-cache pkgnames slurm-wlm-nvml-plugin | grep -x slurm-wlm-nvml-plugin || true)" ;; \
      amd) packages='librocm-smi64-1 slurm-wlm-rsmi-plugin' \
        && { [ -e /opt/rocm ] || packages="$packages rocm-smi rocminfo"; } ;; \
      intel) packages="$(apt-cache pkgnames | grep -xE 'clinfo|intel-opencl-icd|libze1|libze-intel-gpu1' || true)" ;; \
    esac \
 && if [ -n "${SLURM_VERSION}" ]; then packages="$(printf '%s\n' ${packages} | grep -v '^slurm-wlm-' || true)"; fi \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${packages} \
 && find / -xdev -type f -perm /6000 -printf '%m %p\n' -exec chmod ug-s {} + >> /usr/share/slurminit/setuid-removed \
 && cat /usr/share/slurminit/setuid-removed \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/* /var/log/apt /var/log/dpkg.log \
      /var/lib/dpkg/*-old /var/lib/dpkg/info/*.symbols
COPY --from=builder /built/slurminit /built/slurminit-init /usr/local/bin/
# Wrappers of Slurm's commands that pass their environment to a job: they remove the secrets from it (src/cli/slurm_client.rs).
RUN cd /usr/local/bin && for name in salloc sbatch srun; do ln -s slurminit "$name"; done
COPY docker/image-client /usr/share/slurminit/client
COPY config/slurminit.schema.json /usr/share/slurminit/
COPY LICENSE /usr/share/doc/slurminit/
COPY --from=builder /built/third-party-notices.gz /usr/share/doc/slurminit/
# For an image with man: Debian's slim images leave out man and the manual pages of all packages, but not these.
COPY --from=builder /built/man/*.1 /usr/local/share/man/man1/
COPY --from=builder /built/man/*.5 /usr/local/share/man/man5/
COPY --from=builder /built/completions/slurminit.bash /usr/share/bash-completion/completions/slurminit
COPY --from=builder /built/completions/slurminit.fish /usr/share/fish/vendor_completions.d/
COPY --from=builder /built/completions/slurminit.zsh /usr/share/zsh/vendor-completions/_slurminit
ENV GPU_TYPE=${GPU_TYPE}
# Version, commit and the digest of BASE_IMAGE, set by the builder (docker/engine.sh does); empty otherwise.
ARG VERSION=
ARG REVISION=
ARG BASE_IMAGE
ARG BASE_DIGEST=
LABEL org.opencontainers.image.title="slurminit" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.description="Slurm in one container; PID 1 finds the GPUs at every start and configures Slurm for them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      io.slurminit.gpu-type="${GPU_TYPE}" \
      io.slurminit.slurm-version="${SLURM_VERSION}"
# Docker detects a change of readiness within two seconds, with one command every ten seconds: each command waits at most nine seconds for a change. (Engines
# before 25 do not support --start-interval.)
HEALTHCHECK --interval=1s --timeout=20s --start-period=60s --retries=3 CMD ["/usr/local/bin/slurminit", "health", "--wait", "10", "--hold", "9"]
STOPSIGNAL SIGTERM
# Absolute paths: a derived image may set another PATH. Arguments after the image name in `docker run` are a command for the cluster. Verbs: docker exec NAME slurminit status
ENTRYPOINT ["/usr/local/bin/slurminit", "run", "--"]


# Simulated GPUs, for a trial without hardware. Never part of the image itself.
FROM vendor AS demo
COPY --from=builder /built/libfake_nvml.so /usr/lib/libnvidia-ml.so.1
COPY docker/demo-gpus /usr/local/bin/demo-gpus
# void: keeps a container runtime from adding real GPUs beside the simulated ones.
ENV SLURMINIT_DEMO=1 DEMO_GPUS=2 NVIDIA_VISIBLE_DEVICES=void
LABEL org.opencontainers.image.title="slurminit (SIMULATED GPUs)"
ENTRYPOINT ["/usr/local/bin/demo-gpus", "/usr/local/bin/slurminit", "run", "--"]
# The commit is in the last layer of each target, because it differs after each commit.
ARG REVISION=
RUN echo "${REVISION}" > /usr/share/slurminit/commit


FROM vendor AS image
ARG REVISION=
RUN echo "${REVISION}" > /usr/share/slurminit/commit


# Accounting, the REST API and logins: slurmdbd and a database of its own, slurmrestd, and sshd, which runs if [login] sets `port`. The database's tables are
# created here, so that the first start only copies a directory. The SSH package creates host keys, which no image may contain. Its set-user-id and set-group-id
# programs serve host-based authentication and hide an agent from its user's other programs; neither is used.
FROM vendor AS full
ARG SLURM_VERSION
COPY --from=slurm-build /slurm/accounting/ /
RUN groupadd --gid 641 --system mysql \
 && useradd --uid 641 --gid mysql --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin mysql \
 && usermod --append --groups mysql slurm \
 && useradd --uid 642 --user-group --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin slurmrestd \
 && apt-get update \
 && if [ -z "${SLURM_VERSION}" ]; then packages='slurmdbd slurmrestd slurm-wlm-jwt-plugin'; else \
      packages="$(cat /usr/share/slurminit/packages-accounting)"; \
    fi \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mariadb-server-core openssh-server ${packages} \
 && find / -xdev -type f -perm /6000 -printf '%m %p\n' -exec chmod ug-s {} + >> /usr/share/slurminit/setuid-removed \
 && cat /usr/share/slurminit/setuid-removed \
 && rm -rf /etc/ssh/ssh_host_* /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/* /var/log/apt /var/log/dpkg.log \
      /etc/slurm/slurmdbd.conf /var/lib/dpkg/*-old /var/lib/dpkg/info/*.symbols \
 && install -d -o mysql -g mysql -m 0755 /usr/share/slurminit/mariadb \
 && install -d -o mysql -g mysql -m 0750 /run/mysqld \
 && { echo 'create database mysql;' && echo 'use mysql;' \
      && cat /usr/share/m*/m*_system_tables.sql /usr/share/m*/m*_performance_tables.sql /usr/share/m*/m*_system_tables_data.sql \
      && printf '%s;\n' "delete from global_priv where User=''" 'flush privileges' 'create database slurm_acct_db' \
           'create user slurm@localhost identified via unix_socket' 'grant all on slurm_acct_db.* to slurm@localhost'; } \
  | mariadbd --no-defaults --bootstrap --user=mysql --datadir=/usr/share/slurminit/mariadb --skip-log-bin \
      --innodb-undo-tablespaces=0 --innodb-data-file-path=ibdata1:4M:autoextend --innodb-autoextend-increment=1 \
      --innodb-log-file-size=4M --innodb-buffer-pool-size=16M \
 && test -e /usr/share/slurminit/mariadb/mysql/global_priv.frm
ENV ACCOUNTING=embedded
ARG REVISION=
RUN echo "${REVISION}" > /usr/share/slurminit/commit


# The same with simulated GPUs: docker/up --demo-gpus 2 --with accounting.
FROM full AS demo-full
COPY --from=demo /usr/lib/libnvidia-ml.so.1 /usr/lib/
COPY docker/demo-gpus /usr/local/bin/demo-gpus
ENV SLURMINIT_DEMO=1 DEMO_GPUS=2 NVIDIA_VISIBLE_DEVICES=void
LABEL org.opencontainers.image.title="slurminit (SIMULATED GPUs)"
ENTRYPOINT ["/usr/local/bin/demo-gpus", "/usr/local/bin/slurminit", "run", "--"]


# The default target.
FROM image
