"""Orphans: everybody's business. A supervisor gets them from its one daemon."""

import os
import random
import time

from world import Init, Failed, by_inner_pid, children, expect, field, kib, lines_of, scratch, wait_for

SAMPLE = 0.005


def any_depth(contender):
    with scratch() as directory:
        flag = directory / "flag"
        script = f"for i in 1 2 3 4 5; do ( ( ( ( sleep 0.05 ) & ) & ) & ); done; echo > {flag}; exec sleep 1000"
        with Init(contender.command(["sh", "-c", script], directory)) as init:
            wait_for("command", lambda: lines_of(flag))
            wait_for("reaping of all", lambda: len(children(init.pid)) == 1, 5)


class Gate:
    """What many processes wait for, and what comes to all of them in the same moment: the end of a pipe."""

    def __init__(self, directory):
        self.path = directory / "gate"
        os.mkfifo(self.path)

    def open(self):
        return os.open(self.path, os.O_WRONLY)


def state(descriptor):
    try:
        return os.pread(descriptor, 512, 0).rsplit(b")", 1)[1][1:2]
    except OSError:
        return b""


def at_once(contender, count=300):
    """Seconds until the last is reaped, and the most zombies in a sample of 5 ms."""
    with scratch() as directory:
        gate = Gate(directory)
        script = f"exec 3<{gate.path}; i=0; while [ $i -lt {count} ]; do ( cat <&3 & ); i=$((i+1)); done; echo > {directory}/up; exec sleep 1000"
        with Init(contender.command(["sh", "-c", script], directory)) as init:
            writer = gate.open()
            wait_for("orphans", lambda: lines_of(directory / "up"))
            orphans = wait_for("orphans", lambda: (lambda seen: len(seen) == count and seen)(orphans_of(init.pid)))
            watched = [os.open(f"/proc/{pid}/stat", os.O_RDONLY) for pid in orphans]
            time.sleep(0.2)  # they have all come to their read, and the machine to rest
            os.close(writer)
            start = time.monotonic()
            # The samples know nothing of the moment: the first comes somewhere in its 5 ms.
            worst, tick = 0, start + random.uniform(0, SAMPLE)
            time.sleep(tick - start)
            while watched:
                states = [(state(descriptor), descriptor) for descriptor in watched]
                worst = max(worst, sum(seen == b"Z" for seen, _ in states))
                for gone in [descriptor for seen, descriptor in states if not seen]:
                    os.close(gone)
                watched = [descriptor for seen, descriptor in states if seen]
                now = time.monotonic()
                if now - start > 20:
                    raise Failed(f"{len(watched)} of {count} left after 20 s")
                tick = max(tick + SAMPLE, now)
                if watched:
                    time.sleep(tick - now)
            return time.monotonic() - start, worst


def orphans_of(pid):
    return [child for child in children(pid) if field(child, "Name") == "cat"]


def gone_at_once(contender):
    took, worst = at_once(contender)
    expect(took < 1, f"{took:.1f} s, {worst} zombies")


def memory_of_a_row(contender, directory, count):
    """Resident KiB of PID 1 after half of them and after all."""
    half = f"i=0; while [ $i -lt {count // 2} ]; do ( : & ); i=$((i+1)); done"
    script = f"{half}; echo > {directory}/half; read go < {directory}/gate; {half}; echo > {directory}/done; exec sleep 1000"
    gate = Gate(directory)
    with Init(contender.command(["sh", "-c", script], directory)) as init:

        def resident_after(flag):
            wait_for(f"{count} orphans", lambda: lines_of(directory / flag), 120, 0.02)
            wait_for("reaping of all", lambda: len(children(init.pid)) == 1, 10)
            return kib(init.pid, "VmRSS")

        before = resident_after("half")
        os.close(gate.open())
        return before, resident_after("done")


def in_a_row(contender, count=10000):
    with scratch() as directory:
        before, after = memory_of_a_row(contender, directory, count)
        expect(after <= before, f"grew by {after - before} KiB")


def orphan_of_a_dead_daemon(contender):
    """The parent dies of a signal, the orphan later: it goes too."""
    with scratch() as directory:
        script = f"sh -c '( sleep 0.3 & echo $! > {directory}/orphan ); kill -9 $$'; exec sleep 1000"
        with Init(contender.command(["sh", "-c", script], directory)) as init:
            inner = wait_for("orphan", lambda: lines_of(directory / "orphan"))[0]
            pid = by_inner_pid(init.pid, inner)
            wait_for("reaping", lambda: not os.path.exists(f"/proc/{pid}"), 3)


CASES = [
    ("orphans of any depth reaped", any_depth),
    ("orphans of a parent that was killed reaped", orphan_of_a_dead_daemon),
    ("300 that die at once gone within 1 s", gone_at_once),
    ("10,000 in a row: none left, no growth", in_a_row),
]
