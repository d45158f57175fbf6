"""What slurminit promises in numbers and only it is asked for: many orphans, many restarts, a long rest. Prints Markdown."""

import argparse
import json
import os
import shutil
import sys
import time
from statistics import median

import measures
import orphans
from contenders import Service, Slurminit
from world import Init, children, expect, field, kib, lines_of, scratch, wait_for


# What PID 1 may hold, in KiB.
SHARE = 4096


def status(directory):
    try:
        return json.loads((directory / "run" / "status.json").read_text())
    except (OSError, ValueError):
        return None


def is_ready(directory):
    seen = status(directory)
    return seen and seen["ready"]


def restarts(contender, count=10000):
    """Resident KiB at a tenth of the restarts and at each fifth, the processes left, and the restarts per second."""
    hasty = "[supervise]\nrestart_initial_delay = 0.001\nrestart_max_delay = 0.001\ngive_up_after = 1000000\ngive_up_window = 1\n"
    with scratch() as directory:
        argv = contender.services([Service("brief", "exit 0")], directory, supervise=hasty)
        with Init(argv) as init:
            wait_for("readiness", lambda: is_ready(directory))
            start, resident = time.monotonic(), []
            for mark in [count // 10, *range(count // 5, count + 1, count // 5)]:
                wait_for(f"restart {mark}", lambda: (status(directory) or {"units": [{"restarts": 0}]})["units"][-1]["restarts"] >= mark, 300, 0.02)
                resident.append(kib(init.pid, "VmRSS"))
            rate = count / (time.monotonic() - start)
            zombies = sum(1 for child in children(init.pid) if (field(child, "State") or "").startswith("Z"))
            init.signal(15)
            expect(init.end() == 0, "its code")
            return resident, zombies, rate


def rest(argv, up, seconds):
    """Wake-ups at rest, resident KiB and the share of them (Pss), and milliseconds from TERM to exit."""
    with Init(argv) as init:
        wait_for("start", up)
        time.sleep(3)
        before = measures.switches(init.pid)
        time.sleep(seconds)
        wakes = measures.switches(init.pid) - before
        resident = kib(init.pid, "Rss", "smaps_rollup")
        share = kib(init.pid, "Pss", "smaps_rollup")
        begin = time.monotonic()
        init.signal(15)
        init.end()
        return wakes, resident, share, (time.monotonic() - begin) * 1000


def rest_of_a_command(contender, seconds):
    with scratch() as directory:
        argv = contender.command(["sh", "-c", f"echo > {directory}/up; exec sleep 1000"], directory)
        return rest(argv, lambda: lines_of(directory / "up"), seconds)


def rest_of_daemons(contender, seconds):
    with scratch() as directory:
        return rest(contender.services([], directory), lambda: is_ready(directory), seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=shutil.which("slurminit"), help="the slurminit under test (a release build)")
    parser.add_argument("--runs", type=int, default=20, help="floods of 300 orphans (default 20)")
    parser.add_argument("--seconds", type=int, default=60, help="the rest (default 60)")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bars: run this as root: it makes PID namespaces")
    if not arguments.binary:
        sys.exit("bars: no slurminit in PATH; name it with --binary")
    contender = Slurminit(str(arguments.binary))

    floods = [orphans.at_once(contender) for _ in range(arguments.runs)]
    zombies = sorted(worst for _, worst in floods)
    within = sum(worst <= 2 for worst in zombies)
    print("| what | seen |\n|---|---|")
    print(
        f"| 300 orphans die at once: zombies in the worst sample of 5 ms | median {median(zombies):g}, {zombies[0]} to {zombies[-1]};"
        f" at most 2 in {within} of {len(zombies)} runs; the last is reaped after {measures.millis([t * 1000 for t, _ in floods])} ms |",
        flush=True,
    )
    with scratch() as directory:
        resident = orphans.memory_of_a_row(contender, directory, 10000)
    print(f"| 10,000 orphans in a row | none left; resident {resident[0]} KiB after 5,000, {resident[1]} KiB after 10,000 |", flush=True)
    resident, zombies, rate = restarts(contender)
    print(
        f"| 10,000 restarts of a service, {rate:.0f} a second | {zombies} zombies; resident KiB after 1,000, 2,000, 4,000, ... 10,000:"
        f" {', '.join(map(str, resident))} |",
        flush=True,
    )
    for role, measure in (("none", rest_of_a_command), ("all", rest_of_daemons)):
        wakes, resident, share, stop = measure(contender, arguments.seconds)
        print(
            f"| at rest for {arguments.seconds} s, role `{role}` | {wakes} wake-ups; {resident} KiB resident, its share {share} KiB;"
            f" TERM to exit {stop:.1f} ms; the bar, 0 and {SHARE} KiB: {'met' if wakes == 0 and share <= SHARE else 'missed'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
