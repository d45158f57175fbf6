"""Runs every case for every contender and prints two tables as Markdown. `compare` starts it in a container."""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import command
import measures
import orphans
import services
from contenders import all_of_them
from world import Failed, NotClaimed

NEEDED = {"tini": "tini", "dumb-init": "dumb-init", "s6-svscan": "s6", "supervisord": "supervisor", "unshare": "util-linux"}
PARTS = (("The command", command.CASES), ("Orphans", orphans.CASES), ("Daemons", services.CASES))


def missing():
    return sorted(package for program, package in NEEDED.items() if not shutil.which(program))


def verdict(case, contender):
    """The word for the table, and why."""
    try:
        contender.must_claim(case.__name__)
        case(contender)
    except NotClaimed as why:
        return "n.a.", str(why)
    except Failed as why:
        return "**fails**", str(why)
    return "passes", ""


def print_row(label, words):
    print("| " + " | ".join([label, *words]) + " |", flush=True)


def print_head(label, contenders):
    print_row(label, [f"{contender.name} {contender.version()}" for contender in contenders])
    print_row("---", ["---"] * len(contenders))


def print_cases(contenders, only):
    notes = []
    print_head("case", contenders)
    for part, cases in PARTS:
        print_row(f"**{part}**", [""] * len(contenders))
        for label, case in cases:
            if only and only not in case.__name__:
                continue
            words = []
            for contender in contenders:
                begin = time.monotonic()
                word, why = verdict(case, contender)
                print(f"{case.__name__} {contender.name}: {word} {why} ({time.monotonic() - begin:.1f} s)", file=sys.stderr)
                if word != "n.a." and why or case.__name__ in contender.unclaimed:
                    notes.append(f"{contender.name}, {label}: {why}")
                words.append(word)
            print_row(label, words)
    print("\nWhat was seen where a case failed, and why one does not apply to a supervisor:\n")
    for note in notes:
        print(f"- {note}")
    if not notes:
        print("- none failed")


def print_measures(contenders, runs):
    print_head("measure", contenders)
    for label, words in measures.table(contenders, runs):
        print_row(label, [words[contender] for contender in contenders])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, default=shutil.which("slurminit"), help="the slurminit under test (a release build)")
    parser.add_argument("--runs", type=int, default=8, help="rounds of each measure (default 8)")
    parser.add_argument("--only", default="", help="only the cases whose name has this word, and no measures")
    parser.add_argument("--contender", action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("compare: run this as root: it makes PID namespaces")
    if missing():
        sys.exit(f"compare: not installed: apt-get install {' '.join(missing())}")
    if not arguments.binary:
        sys.exit("compare: no slurminit in PATH; name it with --binary")
    contenders = [c for c in all_of_them(str(arguments.binary)) if not arguments.contender or c.name in arguments.contender]
    print_cases(contenders, arguments.only)
    if not arguments.only:
        print()
        print_measures(contenders, arguments.runs)


if __name__ == "__main__":
    main()
