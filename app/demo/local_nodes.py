"""A cluster on one machine: OpenSSH servers of the current user on 127.0.0.1, one port per node.

    python -m app.demo.local_nodes start|stop FOLDER

FOLDER contains all files: keys, known_hosts, configuration, logs, and nodes.json with the process id and the start
time of each server, which identify the server to stop. Linux only. sshd of root needs /run/sshd: it is created if
missing, and stays.
"""

import argparse
import getpass
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.private_file import write_atomically
from backend.job.cluster import Host
from backend.node.supervisor.processes import Process, find_process, read_process, send_signal

_log = logging.getLogger(__name__)

READY_WITHIN_S = 10.0
STOP_WITHIN_S = 10.0
PORT_TRIES = 5
PRIVILEGE_SEPARATION = Path("/run/sshd")
_INSTALL_SSHD = {
    "apt-get": "apt-get install openssh-server",
    "dnf": "dnf install openssh-server",
    "zypper": "zypper install openssh-server",
    "pacman": "pacman -S openssh",
    "apk": "apk add openssh",
}
"""The command of each package manager that installs sshd and ssh-keygen."""

# StrictModes: the folder may be under /tmp, whose mode is 1777.
# PermitTTY: no command here needs a terminal, and some devpts mounts break a connection that opens one.
# SetEnv: MEGABOARD_NODE tells a process which node it runs on. With SHLVL=1, bash does not read ~/.bashrc, which can
# take longer than the command.
CONFIGURATION = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host{rank}
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
AllowUsers {user}
UsePAM no
StrictModes no
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
PermitTTY no
X11Forwarding no
AllowTcpForwarding local
PrintMotd no
PrintLastLog no
MaxStartups 64:30:128
MaxSessions 64
SetEnv MEGABOARD_NODE=node{rank} SHLVL=1
Subsystem sftp internal-sftp
"""


class DemoError(Exception):
    """The demo cluster cannot run here. The message says why, and the fix."""


class LocalNodes:
    """Runs `nodes` SSH servers. Another process may call start() or stop() again.

    The next start uses the same host keys and client key, and the same ports if they are still free.
    """

    def __init__(self, folder: Path, nodes: int = 4) -> None:
        self.folder = folder.absolute()
        self.nodes = nodes
        self.identity_file = self.folder / "id_ed25519"
        self.run_root = self.folder / "run"

    def start(self) -> list[Host]:
        """Start the servers that do not run yet, and return all nodes. Raises DemoError."""
        sshd = find_sshd()
        self._prepare()
        recorded = self._recorded()
        try:
            for rank in range(self.nodes):
                last = recorded.get(rank)
                if last is None or find_process(last["pid"], last["start"]) is None:
                    recorded[rank] = self._start_node(sshd, rank, last["port"] if last else 0)
                    self._record(recorded)
        except BaseException:
            self.stop()
            raise
        return self.hosts()

    def hosts(self) -> list[Host]:
        """Return the nodes in nodes.json, in rank order."""
        return [
            Host(address="127.0.0.1", port=node["port"], user=getpass.getuser(), identity_file=str(self.identity_file))
            for _, node in sorted(self._recorded().items())
        ]

    def cluster_mapping(self, python: str) -> dict[str, Any]:
        """Return the `cluster` part of a job file for these nodes. `python` is an interpreter with LLaMA-Factory."""
        return {
            "gpu": "cpu",
            "nodes": self.nodes,
            "gpus_per_node": 1,
            "run_root": str(self.run_root),
            "port_range": self._port_range(),
            "environments": {"llamafactory": {"python": python}},
            "hosts": [
                {"address": host.address, "port": host.port, "user": host.user, "identity_file": host.identity_file}
                for host in self.hosts()
            ],
        }

    def _port_range(self) -> list[int]:
        """Return a range of 100 ports below the ephemeral ports. Two clusters seldom get the same range."""
        first = 20000 + 100 * (self.hosts()[0].port % 100)
        return [first, first + 99]

    def stop(self) -> list[int]:
        """Stop the runs, the servers and their sessions. Returns the ids of processes that did not end."""
        self._stop_runs()
        listeners = [find_process(node["pid"], node["start"]) for node in self._recorded().values()]
        trees = [process for listener in listeners if listener for process in _process_tree(listener)]
        for process in trees:
            send_signal(process, 15)
        return [process.pid for process in _wait_gone(trees, STOP_WITHIN_S)]

    def _prepare(self) -> None:
        self.run_root.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        if os.geteuid() == 0:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        for key in [self.identity_file, *(self.folder / f"host{rank}" for rank in range(self.nodes))]:
            if not key.exists():
                comment = f"megaboard-demo-{key.name}"
                command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)]
                subprocess.run(command, check=True)
        shutil.copyfile(self.identity_file.with_suffix(".pub"), self.folder / "authorized_keys")

    def _start_node(self, sshd: str, rank: int, port: int) -> dict[str, int]:
        for _ in range(PORT_TRIES):
            port = _free_port(port)
            configuration = self.folder / f"sshd{rank}.conf"
            text = CONFIGURATION.format(folder=self.folder, rank=rank, port=port, user=getpass.getuser())
            configuration.write_text(text)
            with (self.folder / f"sshd{rank}.log").open("ab") as log:
                # -D: without it, sshd forks and the recorded id is wrong. sshd needs its absolute path to re-execute.
                server = subprocess.Popen(
                    [sshd, "-D", "-e", "-f", configuration],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if _wait_ready(server, port):
                return {"pid": server.pid, "start": _start_of(server.pid), "port": port}
            port = 0
        lines = (self.folder / f"sshd{rank}.log").read_text(errors="replace").splitlines()
        raise DemoError(f"sshd does not start: {' / '.join(lines[-3:])}")

    def _stop_runs(self) -> None:
        for folder in self.run_root.glob("*/*/node*"):
            if (folder / "pid").exists() and not (folder / "exit").exists():
                command = [sys.executable, str(folder / "supervisor.py"), "stop", str(folder), "--grace", "5"]
                answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                _log.info("stopped %s: %s", folder, answer.stdout.strip())

    def _recorded(self) -> dict[int, dict[str, int]]:
        try:
            nodes = json.loads((self.folder / "nodes.json").read_text())
        except FileNotFoundError:
            return {}
        return {int(rank): node for rank, node in nodes.items()}

    def _record(self, nodes: Mapping[int, Mapping[str, int]]) -> None:
        write_atomically(self.folder / "nodes.json", json.dumps(nodes), replace=True)
        keys = {rank: (self.folder / f"host{rank}.pub").read_text().split()[:2] for rank in nodes}
        lines = [f"[127.0.0.1]:{node['port']} {' '.join(keys[rank])}\n" for rank, node in nodes.items()]
        write_atomically(self.folder / "known_hosts", "".join(lines), replace=True)


def find_sshd() -> str:
    """Return the absolute path of sshd. Raises DemoError with the command that installs it."""
    if not sys.platform.startswith("linux"):
        raise DemoError("the demo cluster needs Linux, because its nodes read /proc")
    path = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if path is None:
        raise DemoError(f"there is no sshd; install it: {_install_command()}")
    return os.path.abspath(path)


def _install_command() -> str:
    managers = (tool for tool in _INSTALL_SSHD if shutil.which(tool))
    return "sudo " + _INSTALL_SSHD[next(managers, "apt-get")]


def _start_of(pid: int) -> int:
    process = read_process(pid)
    if process is None:
        raise DemoError(f"process {pid} ended at once")
    return process.start


def _free_port(preferred: int) -> int:
    """Return `preferred` if it is free, else another free port. Another program may still take it before sshd does."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", preferred))
        except OSError:
            sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_ready(server: "subprocess.Popen[bytes]", port: int) -> bool:
    """Wait until `server` sends its SSH banner on `port`. Returns False if it ends or is late; it is killed then."""
    deadline = time.monotonic() + READY_WITHIN_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                if sock.recv(4) == b"SSH-":
                    return server.poll() is None
        except OSError:
            time.sleep(0.01)
    server.kill()
    server.wait()
    return False


def _process_tree(root: Process) -> list[Process]:
    """Return a server process and all its descendants, such as its sessions."""
    processes = [process for name in os.listdir("/proc") if name.isdigit() and (process := read_process(int(name)))]
    tree, size = {root.pid: root}, 0
    while len(tree) > size:
        size = len(tree)
        tree |= {process.pid: process for process in processes if process.parent in tree}
    return list(tree.values())


def _wait_gone(processes: list[Process], within_s: float) -> list[Process]:
    """Wait for the end of the processes. Returns those that are still alive after `within_s`."""
    deadline = time.monotonic() + within_s
    alive = processes
    while alive and time.monotonic() < deadline:
        alive = [process for process in alive if find_process(process.pid, process.start)]
        time.sleep(0.005 if alive else 0)
    return alive


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.demo.local_nodes", description="SSH servers on this machine")
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    options = parser.parse_args(arguments)
    cluster = LocalNodes(options.folder, options.nodes)
    if options.action == "start":
        try:
            print(json.dumps([f"{host.address}:{host.port}" for host in cluster.start()]))
        except DemoError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    alive = cluster.stop()
    if alive:
        print(f"still running: {alive}", file=sys.stderr)
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
