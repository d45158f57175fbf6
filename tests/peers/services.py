"""Daemons that are kept alive. For those that supervise."""

import os
import subprocess
import time

from contenders import Service
from world import Init, by_inner_pid, expect, lines_of, scratch, wait_for

SLEEP = "while :; do sleep 1000 & wait; done"
# Says its pid each time it starts, and ends when it is told to.
STEADY = f"trap 'exit 0' TERM\necho $$ >> {{0}}.starts\n{SLEEP}"


def steady(directory, name, **more):
    return Service(name, STEADY.format(directory / name), **more)


def starts(directory, name):
    return lines_of(directory / f"{name}.starts")


def restart(contender):
    """Seconds from the KILL of a daemon that ran for 1.5 s to its next start; another one stays as it is."""
    with scratch() as directory:
        argv = contender.services([steady(directory, "one"), steady(directory, "two")], directory)
        with Init(argv) as init:
            wait_for("starts", lambda: starts(directory, "one") and starts(directory, "two"))
            time.sleep(1.5)  # long enough to count as started, for all of them
            pid = by_inner_pid(init.pid, starts(directory, "one")[0])
            begin = time.monotonic()
            os.kill(pid, 9)
            wait_for("restart", lambda: len(starts(directory, "one")) == 2)
            took = time.monotonic() - begin
            expect(len(starts(directory, "two")) == 1, "the other one was restarted too")
            return took


def is_restarted(contender):
    took = restart(contender)
    expect(took < 3, f"{took:.1f} s")


def readiness_order(contender):
    with scratch() as directory:
        first = Service("first", f"sleep 0.5\necho ready >> {directory}/story\nREADY\n{SLEEP}")
        second = Service("second", f"echo second >> {directory}/story\n{SLEEP}", after="first")
        with Init(contender.services([first, second], directory)):
            wait_for("two words", lambda: len(lines_of(directory / "story")) == 2)
            expect(lines_of(directory / "story") == ["ready", "second"], "started before the other was ready")


def stop_order(contender):
    with scratch() as directory:

        def one(name, seconds, **more):
            trap = f"trap 'sleep {seconds}; echo {name} >> {directory}/story; exit 0' TERM"
            return Service(name, f"{trap}\necho > {directory}/{name}.up\nREADY\n{SLEEP}", **more)

        with Init(contender.services([one("first", 0), one("second", 0.5, after="first")], directory)) as init:
            wait_for("both", lambda: lines_of(directory / "first.up") and lines_of(directory / "second.up"))
            time.sleep(1.2)
            init.signal(15)
            init.end(15)
            expect(lines_of(directory / "story") == ["second", "first"], "as " + ", ".join(lines_of(directory / "story")))


def deaf_daemon(contender):
    with scratch() as directory:
        deaf = Service("deaf", f"trap '' TERM\necho > {directory}/up\nwhile :; do sleep 0.05; done", stop_seconds=1)
        with Init(contender.services([deaf], directory)) as init:
            wait_for("daemon", lambda: lines_of(directory / "up"))
            begin = time.monotonic()
            init.signal(15)
            init.end(10)
            took = time.monotonic() - begin
            expect(0.8 < took < 4, f"{took:.1f} s")


def stopped_daemon(contender):
    with scratch() as directory:
        with Init(contender.services([steady(directory, "frozen", stop_seconds=2)], directory)) as init:
            inner = wait_for("daemon", lambda: starts(directory, "frozen"))[0]
            time.sleep(0.3)
            os.kill(by_inner_pid(init.pid, inner), 19)
            init.signal(15)
            init.end(10)


def escaped_processes(contender):
    """What a daemon left in a session of its own has something to save."""
    with scratch() as directory:
        script = f"trap 'echo told > {directory}/told; sleep 0.3; echo saved > {directory}/saved; exit 0' TERM\\necho > {directory}/up\\nwhile :; do sleep 0.01; done"
        (directory / "escaped").write_text(script.replace("\\n", "\n"))
        daemon = Service("daemon", f"setsid sh {directory}/escaped &\n" + STEADY.format(directory / "daemon"))
        with Init(contender.services([daemon], directory)) as init:
            wait_for("both", lambda: lines_of(directory / "up") and starts(directory, "daemon"))
            time.sleep(0.3)
            init.signal(15)
            init.end(15)
            expect(lines_of(directory / "told"), "KILL at once")
            expect(lines_of(directory / "saved"), "TERM, then KILL within 0.3 s")


def flood(directory):
    """25 MB of log, which is far more than a pipe holds."""
    text = f"i=0; while [ $i -lt 400 ]; do head -c 65536 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; echo > {directory}/said\n{SLEEP}"
    return Service("chatty", text)


def unread_log_daemon(contender):
    with scratch() as directory:
        argv = contender.services([flood(directory)], directory)
        with Init(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
            wait_for("end of what it says", lambda: lines_of(directory / "said"), 10)


def unread_log_supervisor(contender):
    with scratch() as directory:
        argv = contender.services([steady(directory, "steady"), flood(directory)], directory)
        with Init(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as init:
            inner = wait_for("daemon", lambda: starts(directory, "steady"))[0]
            time.sleep(2)  # the pipe is full
            os.kill(by_inner_pid(init.pid, inner), 9)
            wait_for("restart", lambda: len(starts(directory, "steady")) == 2, 5)
            init.signal(15)
            init.end(8)


CASES = [
    ("a daemon that dies is started again, the others stay", is_restarted),
    ("one starts when the one before it is *ready*", readiness_order),
    ("they stop in reverse, each when the next is gone", stop_order),
    ("one that ignores TERM is killed at its deadline", deaf_daemon),
    ("one that is stopped (SIGSTOP) ends too", stopped_daemon),
    ("what a daemon left in another session gets TERM and time", escaped_processes),
    ("nobody reads the log: the daemons go on", unread_log_daemon),
    ("nobody reads the log: restart and TERM work", unread_log_supervisor),
]
