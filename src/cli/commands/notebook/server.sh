# JupyterLab on a Unix socket. It runs in a step of the session's job, also in a container image. Arguments: a new directory, options of jupyter-lab.
# The token is on standard input: command lines and Slurm's records are public.
umask 077
command -v jupyter-lab >/dev/null || {
    echo "slurminit: no jupyter-lab on this node. Use an image: --container docker://quay.io/jupyter/scipy-notebook; or install it below your" \
        "home or /data: python3 -m venv ~/jupyter && ~/jupyter/bin/pip install jupyterlab, then PATH=~/jupyter/bin:\$PATH slurminit notebook" >&2
    exit 127
}
directory=$1
shift
mkdir "$directory" || exit 1
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
read -r token && printf %s "$token" >"$directory/token" || exit 1
export JUPYTER_TOKEN_FILE="$directory/token" JUPYTER_RUNTIME_DIR="$directory"
unset JUPYTER_TOKEN
[ "$(id -u)" != 0 ] || set -- "$@" --allow-root
# The kernels use Unix sockets, too: on ports, another user could read their output.
jupyter-lab --no-browser --ServerApp.sock="$directory/socket" --ServerApp.sock_mode=0600 --KernelManager.transport=ipc "$@" \
    >"$directory/log" 2>&1 </dev/null || {
    tail -n 20 "$directory/log" >&2
    exit 1
}
