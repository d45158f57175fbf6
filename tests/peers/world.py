"""A program as PID 1 of a PID namespace of its own, seen from outside through /proc."""

import os
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

# The longest that anything here may take.
PATIENCE = 20.0


class Failed(Exception):
    """The contender did not do it."""


class NotClaimed(Exception):
    """The contender's manual does not say that it does it."""


def expect(good, otherwise):
    if not good:
        raise Failed(otherwise)


def wait_for(what, look, patience=PATIENCE, every=0.002):
    """Polls: from outside there is no event."""
    deadline = time.monotonic() + patience
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise Failed(f"no {what} within {patience:g} s")
        time.sleep(every)


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def field(pid, name, file="status"):
    """A field of /proc/PID/status or a file like it; None once the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name + ":")), None)


def kib(pid, name, file="status"):
    return int((field(pid, name, file) or "0 kB").split()[0])


def descendants(pid):
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def by_inner_pid(init, inner):
    """The pid out here of the process that calls itself `inner` in the namespace of `init`."""
    inner = str(inner).strip()
    return next((pid for pid in descendants(init) if (field(pid, "NSpid") or "").split()[-1:] == [inner]), None)


@contextmanager
def scratch():
    """A directory in one of its own: slurminit watches what its files lie in, and others work in /tmp."""
    with tempfile.TemporaryDirectory(prefix="peers-") as parent:
        directory = Path(parent) / "scratch"
        directory.mkdir()
        yield directory


def lines_of(file):
    """The whole lines that are in the file by now."""
    try:
        return file.read_text().split("\n")[:-1]
    except OSError:
        return []


class Init:
    """A running PID 1. Used with `with`: nothing of it stays behind."""

    def __init__(self, argv, namespace=True, **how):
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | how
        unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"] if namespace else []
        self.outer = subprocess.Popen(unshare + [str(word) for word in argv], **how)
        self.pid = wait_for("PID 1", lambda: next(iter(children(self.outer.pid)), None) or self.ended()) if namespace else self.outer.pid

    def ended(self):
        return self.outer.poll() is not None and -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in (self.pid, self.outer.pid):
            try:
                if self.outer.poll() is None and pid > 0:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.outer.wait()
        for pipe in (self.outer.stdin, self.outer.stdout, self.outer.stderr):
            if pipe:
                pipe.close()

    def signal(self, number):
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            raise Failed("it has ended already") from None

    def end(self, patience=PATIENCE):
        """Waits for its end: the exit code, as a shell gives it."""
        try:
            code = self.outer.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {patience:g} s") from None
        return code if code >= 0 else 128 - code


def run(argv, **how):
    """Runs it to its end: exit code, standard output, standard error."""
    with Init(argv, **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how)) as init:
        try:
            out, err = init.outer.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {PATIENCE:g} s") from None
        code = init.outer.returncode
        return code if code >= 0 else 128 - code, out.decode(errors="replace"), err.decode(errors="replace")
