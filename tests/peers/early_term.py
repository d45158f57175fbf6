"""Sends SIGTERM to containers in their first milliseconds, through the Docker API, and counts those that survive.

The kernel drops a signal that PID 1 neither blocks nor handles, and `docker stop` then ends with 137.

    early_term.py IMAGE [ROUNDS] [CMD...]    e.g.  early_term.py slurminit:test 200 --role none -- sleep 60
    early_term.py --init IMAGE [ROUNDS]      the engine's own init (tini) instead, for comparison

No PID 1 can keep a signal between its exec and its first instruction. That takes a fraction of a millisecond on an idle machine, and
longer if others want the CPU.
"""

import http.client
import json
import os
import random
import socket
import sys
import time

LATEST = 0.060
PATIENCE = float(os.environ.get("PATIENCE", "20"))


class Engine(http.client.HTTPConnection):
    """The engine's API on its Unix socket."""

    def __init__(self):
        super().__init__("localhost")

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))

    def call(self, method, path, body=None):
        self.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        response = self.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text.strip() else None


def container(image, command, has_init):
    body = {"Image": image, "Entrypoint": ["slurminit", "run"], "Cmd": command or ["--"], "Healthcheck": {"Test": ["NONE"]}}
    return {**body, "Entrypoint": ["sleep", "60"], "Cmd": [], "HostConfig": {"Init": True}} if has_init else body


def round_of(engine, image, body, delay):
    """The container's exit code, or None if it survived."""
    status, made = engine.call("POST", "/containers/create", body)
    if status != 201:
        sys.exit(f"cannot create a container of {image}: {made}")
    path = f"/containers/{made['Id']}"
    try:
        status, why = engine.call("POST", f"{path}/start")
        if status != 204:
            sys.exit(f"cannot start a container of {image}: {why}")
        until = time.perf_counter() + delay
        while time.perf_counter() < until:
            pass
        engine.call("POST", f"{path}/kill?signal=TERM")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            state = engine.call("GET", f"{path}/json")[1]["State"]
            if not state["Running"]:
                return state["ExitCode"]
            time.sleep(0.01)
        return None
    finally:
        engine.call("DELETE", f"{path}?force=1&v=1")


def main():
    words = [word for word in sys.argv[1:2] if word != "--init"] + sys.argv[2:]
    image, rounds, command = words[0], int((words + ["200"])[1]), words[2:]
    body = container(image, command, sys.argv[1] == "--init")
    engine, codes = Engine(), {}
    for _ in range(rounds):
        delay = random.uniform(0, LATEST)
        code = round_of(engine, image, body, delay)
        if code is None:
            print(f"survived a SIGTERM sent {delay * 1000:.1f} ms after the start", flush=True)
        codes[code] = codes.get(code, 0) + 1
    survived = codes.pop(None, 0)
    print(f"{survived} of {rounds} survived; exit codes: {dict(sorted(codes.items()))}")
    sys.exit(survived > 0)


if __name__ == "__main__":
    main()
