"""What is measured. The rounds alternate between the contenders, so that all meet the same noise."""

import time
from statistics import median

import orphans
import services
from world import Init, NotClaimed, field, kib, lines_of, scratch, wait_for


def to_exec(contender):
    """Milliseconds from PID 1's exec to its child's, both said by a shell's clock."""
    with scratch() as directory:
        child = ["bash", "-c", f"echo $EPOCHREALTIME > {directory}/child; exec sleep 1000"]
        argv = contender.command(child, directory) if contender else child
        first = ["bash", "-c", f'echo $EPOCHREALTIME > {directory}/first; exec "$@"', "bash"]
        with Init([*first, *argv]):
            end = wait_for("child", lambda: lines_of(directory / "child"))
            begin = lines_of(directory / "first")
            return (float(end[0]) - float(begin[0])) * 1000


def to_exit(contender):
    """Milliseconds from TERM to the end of PID 1 and its namespace, with a command or a daemon that leaves at once."""
    with scratch() as directory:
        argv = contender.command(["sh", "-c", f"echo > {directory}/up; exec sleep 1000"], directory)
        with Init(argv) as init:
            wait_for("command", lambda: lines_of(directory / "up"))
            time.sleep(1.2)
            begin = time.monotonic()
            init.signal(15)
            init.end()
            return (time.monotonic() - begin) * 1000


def at_rest(contender, seconds=10):
    """Resident and private KiB of PID 1, and its wake-ups, with a command that sleeps."""
    with scratch() as directory:
        argv = contender.command(["sh", "-c", f"echo > {directory}/up; exec sleep 1000"], directory)
        with Init(argv) as init:
            wait_for("command", lambda: lines_of(directory / "up"))
            time.sleep(2)
            before = switches(init.pid)
            time.sleep(seconds)
            wakes = switches(init.pid) - before
            private = sum(kib(init.pid, name, "smaps_rollup") for name in ("Private_Clean", "Private_Dirty"))
            return kib(init.pid, "Rss", "smaps_rollup"), private, wakes


def switches(pid):
    """How often it slept; to be put aside for another process is no wake-up."""
    return int(field(pid, "voluntary_ctxt_switches"))


def restart(contender):
    if not contender.supervises:
        raise NotClaimed("runs one command")
    return services.restart(contender) * 1000


def rounds(measure, contenders, runs):
    """For each contender what was measured, in order; the contenders take turns."""
    seen = {contender: [] for contender in contenders}
    for _ in range(runs):
        for contender, values in seen.items():
            try:
                values.append(measure(contender))
            except NotClaimed:
                pass
    return seen


def row(label, seen, shown):
    return label, {contender: shown(values) if values else "n.a." for contender, values in seen.items()}


def millis(values):
    value = median(values)
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(contenders, runs):
    """Rows of (label, {contender: text})."""
    starts = rounds(to_exec, [None, *contenders], runs)
    bare = millis(starts.pop(None))
    yield row(f"exec to its child's exec, ms (without any PID 1: {bare})", starts, millis)
    yield row("TERM to exit, ms", rounds(to_exit, contenders, runs), millis)
    yield row("restart of a killed daemon, ms", rounds(restart, contenders, min(runs, 5)), millis)
    many = rounds(orphans.at_once, contenders, runs)
    yield row("300 orphans at once: ms until the last is reaped", many, lambda values: millis([took * 1000 for took, _ in values]))
    yield row(
        "300 orphans at once: zombies in the worst 5 ms sample, median (least-most)",
        many,
        lambda values: f"{median(z for _, z in values):g} ({min(z for _, z in values)}-{max(z for _, z in values)})",
    )
    rest = rounds(at_rest, contenders, 1)
    yield row("resident / private KiB of PID 1", rest, lambda values: f"{values[0][0]} / {values[0][1]}")
    yield row("wake-ups in 10 s at rest", rest, lambda values: f"{values[0][2]}")
