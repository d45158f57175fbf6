"""`slurminit notebook` with JupyterLab: two users run cells in their jobs, through the port, and cannot reach each other's notebooks."""

import hashlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
import websocket

USERS = {"tester": 1501, "other": 1502}


class Notebook:
    def __init__(self, user, port, *options):
        command = ["slurminit", "notebook", "--gpus", "0", "--port", str(port), *options]
        home = f"/home/{user}"
        env = {"PATH": os.environ["PATH"], "HOME": home, "USER": user, "LANG": "C.UTF-8"}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            command, user=user, group=user, extra_groups=[], cwd=home, env=env, text=True, **pipes
        )
        self.url = self.process.stdout.readline().strip()
        self.address, _, self.token = self.url.removeprefix("http://").partition("/lab?token=")

    def __enter__(self):
        assert self.token, self.process.communicate()
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)

    def request(self, path, token=None, **options):
        """Sends a request; returns the status code and the body of the response."""
        headers = {"Authorization": f"token {self.token if token is None else token}"}
        request = urllib.request.Request(f"http://{self.address}{path}", headers=headers, **options)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, b""

    def start_kernel(self):
        return json.loads(self.request("/api/kernels", data=b"{}", method="POST")[1])["id"]

    def run(self, code):
        """Runs a cell in a new kernel; returns what it printed."""
        url = f"ws://{self.address}/api/kernels/{self.start_kernel()}/channels?token={self.token}"
        channels = websocket.create_connection(url, timeout=60)
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "content": content}
        channels.send(json.dumps(message))
        printed = ""
        while True:
            message = json.loads(channels.recv())
            if message["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            assert message["msg_type"] != "error", message
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                channels.close()
                return printed


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def jobs():
    return subprocess.check_output(["squeue", "--noheader", "--format=%u %A"], text=True).split("\n")[:-1]


def processes():
    """The command lines of JupyterLab and of kernels."""
    def read(path):
        try:
            return path.read_bytes()
        except OSError:
            return b""
    lines = map(read, Path("/proc").glob("[0-9]*/cmdline"))
    return [line for line in lines if b"ipykernel" in line or b"/jupyter-lab\0" in line]


def test_cells_of_two_users_run_in_their_jobs_and_neither_reaches_the_other():
    with Notebook("tester", 8888) as mine, Notebook("other", 8889) as others:
        for notebook, user in [(mine, "tester"), (others, "other")]:
            uid, job, directory = notebook.run(
                "import os; print(os.getuid(), os.environ['SLURM_JOB_ID'], os.getcwd())"
            ).split()
            assert (int(uid), directory) == (USERS[user], f"/home/{user}")
            assert f"{user} {job}" in jobs()
        assert mine.request("/lab")[0] == 200
        for token in ["", others.token]:
            assert mine.request("/api/contents", token)[0] == 403
        # A kernel's output is on sockets, not on ports, and another user cannot enter the directory of the sockets.
        [directory] = [path for path in Path("/tmp").glob("slurminit-session-*") if path.stat().st_uid == USERS["tester"]]
        [connection] = directory.glob("kernel-*.json")
        assert len(processes()) == 4 and json.loads(connection.read_text())["transport"] == "ipc"
        assert subprocess.run(["ls", directory], user="other", group="other", extra_groups=[]).returncode != 0
        command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert not any(mine.token.encode() in line for line in command_lines)


def test_large_file_arrives_unchanged_in_both_directions():
    data = os.urandom(20 << 20)
    with Notebook("tester", 8888) as notebook:
        Path("/home/tester/big").write_bytes(data)
        os.chown("/home/tester/big", 1501, 1501)
        assert hashlib.sha256(notebook.request("/files/big")[1]).digest() == hashlib.sha256(data).digest()
        body = json.dumps({"type": "file", "format": "text", "content": data.hex()}).encode()
        assert notebook.request("/api/contents/copy", data=body, method="PUT")[0] == 201
        assert bytes.fromhex(Path("/home/tester/copy").read_text()) == data


def test_ctrl_c_ends_job_server_and_kernels():
    with Notebook("tester", 8888) as notebook:
        notebook.start_kernel()
    assert notebook.process.returncode == 0
    wait_until(lambda: not jobs() and not processes(), 30)
    assert not list(Path("/tmp").glob("slurminit-session-*"))


def test_idle_kernel_and_then_the_job_end():
    with Notebook("tester", 8888, "--idle", "1m") as notebook:
        notebook.run("print(1)")
        wait_until(lambda: not jobs(), 300)


@pytest.mark.parametrize("token", ["", "mine"])
def test_configuration_with_another_token_is_refused(token):
    file = Path("/home/tester/.jupyter/jupyter_server_config.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"c.IdentityProvider.token = {token!r}\n")
    try:
        refused = Notebook("tester", 8888)
        output, error = refused.process.communicate(timeout=60)
        assert refused.process.returncode != 0 and not refused.url and not output
        assert "remove token and password from ~/.jupyter" in error
    finally:
        file.unlink()
