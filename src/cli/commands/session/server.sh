# An SSH server for one connection, on standard input and output. It runs in a step of the session's job, also in a container image.
umask 077
sshd=$(PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v sshd) || {
    echo "slurminit: no sshd here: build the image with --target full; a container image needs the package openssh-server" >&2
    exit 127
}
directory=$(mktemp -d "/tmp/slurminit-session-$SLURM_JOB_ID-XXXXXX") || exit 1
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
printf '%s\n' "$SLURMINIT_SSH_HOST_KEY" >"$directory/host_key"
printf '%s\n' "$SLURMINIT_SSH_KEYS" >"$directory/authorized_keys"
unset SLURMINIT_SSH_HOST_KEY SLURMINIT_SSH_KEYS
# sshd clears the environment of its sessions, so its configuration sets the variables. All of them must be on one line with SetEnv.
{
    printf 'SetEnv'
    env | sed -nE 's/\\/\\\\/g; s/"/\\"/g; s/^((SLURM|CUDA|NVIDIA|ROCR|HIP|ZE|GPU|OMP|PMIX)[A-Z0-9_]*|PATH|LD_LIBRARY_PATH|TMPDIR|LANG|LC_[A-Z]*|TZ)=(.*)$/ "\1=\3"/p' | tr -d '\n'
    printf '\n'
    cat <<END
HostKey $directory/host_key
AuthorizedKeysFile $directory/authorized_keys
AuthenticationMethods publickey
StrictModes no
UsePAM no
UseDNS no
PermitTunnel no
X11Forwarding no
PrintMotd no
PrintLastLog no
PidFile none
LogLevel ERROR
AcceptEnv LANG LC_* COLORTERM
ClientAliveInterval 15
ClientAliveCountMax 3
Subsystem sftp internal-sftp
END
} >"$directory/sshd_config"
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
"$sshd" -i -e -f "$directory/sshd_config"
