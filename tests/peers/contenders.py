"""Who is compared, and how each is set up: as its manual says, in the version that Debian ships."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from world import NotClaimed


@dataclass
class Service:
    """A daemon: a shell script, in which the word READY stands for telling that it is ready."""

    name: str
    script: str
    after: str = ""
    stop_seconds: float = 5


def write_script(file: Path, text):
    file.write_text(text)
    file.chmod(0o755)
    return file


class Contender:
    name = ""
    package = ""
    runs_a_command = True
    supervises = False
    # What its manual does not say that it does: the case's name, and what it says instead.
    unclaimed = {}
    # For those that look: a file.
    tell_ready = "touch {directory}/{name}.ready"

    def must_claim(self, case):
        if case in self.unclaimed:
            raise NotClaimed(self.unclaimed[case])

    def version(self):
        shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", self.package], capture_output=True, text=True, check=False)
        return shown.stdout or "?"

    def command(self, argv, directory):
        """The PID 1 that runs this command once; for a supervisor the command is its one daemon."""
        raise NotImplementedError

    def subreaper(self, argv):
        raise NotClaimed("is no subreaper")

    def services(self, services, directory):
        raise NotClaimed("runs one command")

    def script_of(self, service, directory):
        ready = self.tell_ready.format(directory=directory, name=service.name)
        return write_script(directory / f"{service.name}.sh", "#!/bin/sh\n" + service.script.replace("READY", ready) + "\n")


class Tini(Contender):
    name, package = "tini", "tini"

    def command(self, argv, directory):
        return ["tini", "--", *argv]

    def subreaper(self, argv):
        return ["tini", "-s", "--", *argv]


class DumbInit(Contender):
    name, package = "dumb-init", "dumb-init"

    def command(self, argv, directory):
        return ["dumb-init", "--", *argv]


class S6(Contender):
    """s6-svscan with a service directory for each daemon; what comes after another waits with s6-svwait for its readiness."""

    name, package = "s6", "s6"
    runs_a_command = False
    supervises = True
    unclaimed = {
        "stop_order": "all are told at once; order is s6-rc's",
        "escaped_processes": "left to the script .s6-svscan/finish",
        "unread_log_daemon": "a daemon writes to the container's output itself; s6-log keeps logs in files",
    }
    tell_ready = "touch {directory}/{name}.ready; echo >&3"

    def scan_directory(self, directory):
        scan = directory / "scan"
        (scan / ".s6-svscan").mkdir(parents=True)
        write_script(scan / ".s6-svscan" / "finish", "#!/bin/sh\nexit 0\n")
        return scan

    def command(self, argv, directory):
        scan = self.scan_directory(directory)
        (scan / "cmd").mkdir()
        words = " ".join("'" + str(word).replace("'", "'\\''") + "'" for word in argv)
        write_script(scan / "cmd" / "run", f"#!/bin/sh\nexec {words}\n")
        return ["s6-svscan", scan]

    def services(self, services, directory):
        scan = self.scan_directory(directory)
        for service in services:
            home = scan / service.name
            home.mkdir()
            first = f"s6-svwait -U {scan}/{service.after} || exit 1\n" if service.after else ""
            write_script(home / "run", f"#!/bin/sh\n{first}exec {self.script_of(service, directory)}\n")
            if "READY" in service.script:
                (home / "notification-fd").write_text("3\n")
            (home / "timeout-kill").write_text(f"{int(service.stop_seconds * 1000)}\n")
        return ["s6-svscan", scan]


class Supervisord(Contender):
    name, package = "supervisord", "supervisor"
    runs_a_command = False
    supervises = True
    unclaimed = {
        "readiness_order": "`priority` orders the starts, and waits for nothing",
        "escaped_processes": "`stopasgroup` reaches the daemon's own process group",
    }

    def start(self, programs, directory):
        file = directory / "supervisord.conf"
        head = f"[supervisord]\nnodaemon = true\nuser = root\nlogfile = /dev/null\nlogfile_maxbytes = 0\npidfile = {directory}/pid\n"
        # To the container's own output, as is usual there.
        out = "stdout_logfile = /dev/fd/1\nstdout_logfile_maxbytes = 0\nredirect_stderr = true\n"
        file.write_text(head + "".join(f"[program:{name}]\n{keys}{out}" for name, keys in programs))
        return ["supervisord", "-c", file]

    def command(self, argv, directory):
        # Through a script: supervisord has quotes and percent signs of its own.
        words = " ".join("'" + str(word).replace("'", "'\\''") + "'" for word in argv)
        script = write_script(directory / "cmd.sh", f"#!/bin/sh\nexec {words}\n")
        return self.start([("cmd", f"command = {script}\nautorestart = false\nstartsecs = 0\n")], directory)

    def services(self, services, directory):
        programs = []
        for order, service in enumerate(services):
            script = self.script_of(service, directory)
            keys = f"command = {script}\nautorestart = true\npriority = {order + 1}\nstopwaitsecs = {service.stop_seconds:g}\n"
            programs.append((service.name, keys))
        return self.start(programs, directory)


class Slurminit(Contender):
    """In the role `none` for a command; in the role `all`, with `sleep` in place of Slurm's daemons, for services."""

    name = "slurminit"
    supervises = True

    def __init__(self, binary):
        self.binary = binary

    def version(self):
        return subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]

    def command(self, argv, directory):
        return [self.binary, "run", "--role", "none", "--", *argv]

    def subreaper(self, argv):
        return self.command(argv, None)

    def services(self, services, directory, supervise=""):
        d = directory
        text = f"""[paths]
slurm = "{d}/slurm"
config = "{d}/config"
state = "{d}/state"
run = "{d}/run"
munge_key = "{d}/munge/munge.key"
munge_socket = "{d}/munge-run/socket"
munge_secret = "{d}/no-secret"
"""
        for daemon in ("munged", "slurmctld", "slurmd"):
            text += f'[daemon.{daemon}]\ncommand = ["sleep", "infinity"]\nuser = "root"\nreadiness = "started"\nliveness = "off"\n'
        for service in services:
            text += f'[[service]]\nname = "{service.name}"\ncommand = ["{self.script_of(service, d)}"]\n'
            text += f"stop_timeout = {service.stop_seconds:g}\n"
            if service.after:
                text += f'after = ["{service.after}"]\n'
            if "READY" in service.script:
                text += f'readiness = {{ command = ["test", "-e", "{d}/{service.name}.ready"] }}\n'
        (d / "slurminit.toml").write_text(text + supervise)
        # What asks Slurm for its node gets an answer.
        (d / "bin").mkdir()
        write_script(d / "bin" / "sinfo", "#!/bin/sh\necho 'idle|none'\n")
        return ["env", f"PATH={d}/bin:/usr/sbin:/usr/bin:/sbin:/bin", self.binary, "run", "--config", d / "slurminit.toml"]


def all_of_them(binary):
    return [Slurminit(binary), Tini(), DumbInit(), S6(), Supervisord()]
