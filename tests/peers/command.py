"""The container's command: its code, its signals, its surroundings. For those that run one."""

import os
import pty
import subprocess
import time

from world import Failed, Init, NotClaimed, children, expect, field, lines_of, run, scratch, wait_for

# All but KILL, STOP, CHLD, job control's, and the two that glibc keeps.
STANDARD = [n for n in range(1, 32) if n not in (9, 17, 19, 20, 21, 22)]
REAL_TIME = range(34, 65)


def runs_a_command(contender):
    if not contender.runs_a_command:
        raise NotClaimed("runs no command")


def exit_codes(contender):
    runs_a_command(contender)
    for code in range(256):
        got = run(contender.command(["sh", "-c", f"exit {code}"], None))[0]
        expect(got == code, f"{code} became {got}")


def signal_codes(contender):
    runs_a_command(contender)
    for number in (1, 2, 3, 6, 9, 11, 13, 15, 31, 34, 64):
        got = run(contender.command(["sh", "-c", f"kill -{number} $$"], None))[0]
        expect(got == 128 + number, f"signal {number} became {got}")


def cannot_be_executed(contender):
    runs_a_command(contender)
    with scratch() as directory:
        no_x = directory / "no-x"
        no_x.write_text("#!/bin/sh\n")
        for file, code in ((directory / "absent", 127), ("no-such-program", 127), (directory, 126), (no_x, 126)):
            got, _, said = run(contender.command([str(file)], None))
            expect(got == code, f"{got} instead of {code}")
            expect(str(file) in said, "does not name the file")


def no_known_format(contender):
    runs_a_command(contender)
    with scratch() as directory:
        file = directory / "no-format"
        file.write_text("no program\n")
        file.chmod(0o755)
        got = run(contender.command([str(file)], None))[0]
        expect(got == 126, f"{got}")


# os.write, as a handler may come in the middle of a print; sleeps, as one that comes just before a pause would wait for the next.
CATCHER = """import os, signal, sys, time
def say(number, frame): os.write(1, b'%d\\n' % number)
for number in map(int, sys.argv[1].split(',')): signal.signal(number, say)
os.write(1, b'set\\n')
while True: time.sleep(0.01)"""


def forwards(contender, numbers):
    runs_a_command(contender)
    with scratch() as directory, open(directory / "log", "w+b") as log:
        argv = ["python3", "-c", CATCHER, ",".join(map(str, numbers))]
        with Init(contender.command(argv, directory), stdout=log) as init:
            wait_for("handlers", lambda: lines_of(directory / "log"))
            missing = []
            for number in numbers:
                init.signal(number)
                try:
                    wait_for("signal", lambda n=number: str(n) in lines_of(directory / "log"), 0.3)
                except Failed:
                    missing.append(number)
            expect(len(missing) < len(numbers), "none of them")
            expect(not missing, "not " + ", ".join(map(str, missing)))


def standard_signals(contender):
    forwards(contender, STANDARD)


def real_time_signals(contender):
    forwards(contender, list(REAL_TIME))


def mask_and_ignored(contender):
    runs_a_command(contender)

    def signals_of(status):
        return [line for line in status.splitlines() if line.startswith(("SigBlk:", "SigIgn:"))]

    status = ["cat", "/proc/self/status"]
    expect(signals_of(run(contender.command(status, None))[1]) == signals_of(run(status)[1]), "a clean start is not clean")
    # What was ignored stays ignored: HUP and PIPE.
    ignoring = ["sh", "-c", "trap '' HUP PIPE; exec \"$@\"", "sh"]
    expect(
        signals_of(run([*ignoring, *contender.command(status, None)])[1]) == signals_of(run([*ignoring, *status])[1]),
        "ignored signals change",
    )


def descriptors(contender):
    runs_a_command(contender)
    with open("/dev/null", "rb") as passed:
        os.dup2(passed.fileno(), 7)
    try:
        for extra in ((), (7,)):
            plain = run(["ls", "/proc/self/fd"], pass_fds=extra)[1]
            expect(run(contender.command(["ls", "/proc/self/fd"], None), pass_fds=extra)[1] == plain, "differ")
    finally:
        os.close(7)


def surroundings(contender):
    runs_a_command(contender)
    argv = contender.command(["sh", "-c", "pwd; echo $GREETING; cat"], None)
    with Init(argv, cwd="/usr", env=os.environ | {"GREETING": "hello"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as init:
        said = init.outer.communicate(b"from outside\n", timeout=20)[0]
    expect(said == b"/usr\nhello\nfrom outside\n", repr(said))


def terminal(contender):
    runs_a_command(contender)
    with scratch() as directory:
        up = directory / "up"
        argv = contender.command(["sh", "-c", f"echo up > {up}; exec sleep 1000"], None)
        pid, terminal_fd = pty.fork()
        if pid == 0:
            os.execvp("unshare", ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--", *map(str, argv)])
        try:
            wait_for("command", lambda: lines_of(up))
            # The shell has said that it is up; `sleep` must have taken its place, or the shell's own code is seen.
            init = children(pid)[0]
            wait_for("sleep", lambda: field(children(init)[0], "Name") == "sleep")
            os.write(terminal_fd, b"\x03")
            status = wait_for("end", lambda: (lambda got: got[1] + 1 if got[0] else None)(os.waitpid(pid, os.WNOHANG)), 5)
        except Failed:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(terminal_fd)
        code = os.waitstatus_to_exitcode(status - 1)
        code = code if code >= 0 else 128 - code
        expect(code == 130, f"{code}")


def leftovers(contender):
    runs_a_command(contender)
    with scratch() as directory:
        said = directory / "said"
        # One that takes TERM and needs a moment to finish, one that ignores it.
        script = (
            f"sh -c 'trap \"echo term > {said}; sleep 0.3; echo finished >> {said}; exit 0\" TERM; echo > {said}.up;"
            " while :; do sleep 0.01; done' &"
            " sh -c 'trap \"\" TERM; while :; do sleep 0.01; done' &"
            f" until [ -e {said}.up ]; do sleep 0.01; done; exit 5"
        )
        start = time.monotonic()
        code = run(contender.command(["sh", "-c", script], directory))[0]
        took = time.monotonic() - start
        expect(code == 5, f"code {code}")
        expect(lines_of(said) != [], "KILL at once")
        expect(lines_of(said) == ["term", "finished"], "TERM, then KILL at once")
        expect(took < 5, f"took {took:.1f} s")


def as_subreaper(contender):
    runs_a_command(contender)
    with scratch() as directory:
        file = directory / "orphan"
        argv = contender.subreaper(["sh", "-c", f"( sleep 0.2 & echo $! > {file} ); exec sleep 1000"])
        with Init(argv, namespace=False) as init:
            orphan = int(wait_for("orphan", lambda: lines_of(file))[0])
            expect(orphan in children(init.pid), "the orphan is not its child")
            wait_for("reaping", lambda: orphan not in children(init.pid), 2)
            init.signal(15)
            init.end(5)


CASES = [
    ("exit codes 0-255 passed on", exit_codes),
    ("ended by signal n: 128+n", signal_codes),
    ("not found 127, not executable 126, names the file", cannot_be_executed),
    ("a file of no known format: 126", no_known_format),
    ("signals 1-31 reach the command", standard_signals),
    ("real-time signals reach it", real_time_signals),
    ("starts with the mask and the ignored set given", mask_and_ignored),
    ("inherits 0, 1, 2 and what was passed, nothing else", descriptors),
    ("keeps directory, input, environment", surroundings),
    ("on a terminal, Ctrl-C ends it with 130", terminal),
    ("what it leaves running gets TERM, time, KILL", leftovers),
    ("not as PID 1: subreaper, orphans reaped", as_subreaper),
]
