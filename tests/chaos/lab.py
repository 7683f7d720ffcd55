"""Nodes that a test can cut off, freeze and kill. Each node has its own namespaces and its own sshd.

The bridge, links and addresses are in one private parent namespace, so their fixed names meet no others. If that
namespace's first process is killed, everything in it ends. This needs root. Run as a script, this file is that first
process.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

SUBNET = "10.88.0"
# A bridge without an address of its own takes the lowest address of its ports, and another one after that port's node
# has died. Until the living nodes ask again, seconds later, they send to the old address.
BRIDGE = "02:00:0a:58:00:fe"
WITHIN_S = 30.0
NAMESPACE = ["unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--kill-child=KILL", "--mount-proc"]
CLONE_NEWNET = 0x40000000
NOWHERE = "02:00:00:00:00:99"

# File descriptor 9 has a byte after the node's end of the cable is plugged in. /run/local is the node's own disk of 8
# MiB. The lab's file `hosts`, if there is one, is every node's /etc/hosts. bash stays the first process: it outlives
# sshd and reaps orphans.
NODE = """
hostname node$RANK
mount -t tmpfs none /run; mkdir -p /run/sshd /run/local
mount -t tmpfs -o size=8m none /run/local
[ ! -e $FOLDER/hosts ] || mount --bind $FOLDER/hosts /etc/hosts
ip link set lo up
read go <&9
exec 9<&-
ip addr add $SUBNET.$((RANK + 1))/24 dev eth0; ip link set eth0 up
/usr/sbin/sshd -e -f $FOLDER/sshd$RANK.conf 2>>$FOLDER/sshd$RANK.log
while true; do sleep 3600 & wait $!; done
"""
CONFIGURATION = """\
ListenAddress 0.0.0.0:22
HostKey {folder}/{key}
PidFile none
AuthorizedKeysFile {folder}/id.pub
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
PasswordAuthentication no
UseDNS no
{more}
SetEnv SHLVL=1
Subsystem sftp internal-sftp
"""

T = TypeVar("T")


class Lab:
    """A cluster of `nodes` nodes at SUBNET.1 and up. It is a context manager; `inside` runs a function in its network.

    `sshd` has the lines of the configuration that differ from OpenSSH's defaults.
    """

    def __init__(self, folder: Path, nodes: int, sshd: str = "") -> None:
        self.sshd = sshd
        self.folder = folder
        self.nodes = nodes
        self.addresses = [f"{SUBNET}.{rank + 1}" for rank in range(nodes)]
        self.identity_file = folder / "id"

    def __enter__(self) -> "Lab":
        for name in ("id", "host", "other"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(command, check=True)
        for rank in range(self.nodes):
            self._configure(rank, "host")
        key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        (self.folder / "known_hosts").write_text("".join(f"{address} {key}\n" for address in self.addresses))
        with (self.folder / "lab.log").open("wb") as log:
            # The nodes end with the tests, however these end.
            command = ["setpriv", "--pdeathsig", "KILL", *NAMESPACE]
            command += [sys.executable, __file__, str(self.nodes), str(self.folder)]
            self.parent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        ready = self.folder / "ready.json"
        deadline = time.monotonic() + WITHIN_S
        while not ready.exists():
            if self.parent.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError((self.folder / "lab.log").read_text()[-1000:])
            time.sleep(0.01)
        self.inits: list[int] = json.loads(ready.read_text())
        """The first process of each node, by its id in the parent namespace."""
        (self.first,) = _children(self.parent.pid)
        return self

    def __exit__(self, *_: object) -> None:
        # When unshare ends, the namespace's first process ends, and with it everything else.
        self.parent.kill()
        self.parent.wait()

    def inside(self, action: Callable[[], T]) -> T:
        """Run `action` in the parent's network, in a new thread. Threads that it starts are in that network, too."""
        ends: list[Any] = []

        def work() -> None:
            try:
                with open(f"/proc/{self.first}/ns/net") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                ends.append((action(), None))
            except BaseException as error:
                ends.append((None, error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        result, error = ends[0]
        if error:
            raise error
        return result

    def set_link(self, rank: int, state: str) -> None:
        """Unplug the node's cable (`down`) or plug it in again (`up`)."""
        self._run(["-t", str(self.first), "-n"], "ip", "link", "set", f"v{rank}", state)

    def deafen(self, rank: int) -> None:
        """Drop what the server sends to the node. What the node sends arrives."""
        self._misdirect(self.first, self.addresses[rank], "br0")

    def silence(self, rank: int, towards: int | None = None) -> None:
        """Drop what the node sends to the server or to another node. What is sent to the node arrives."""
        address = f"{SUBNET}.254" if towards is None else self.addresses[towards]
        self._misdirect(self.init(rank), address, "eth0")

    def forbid(self, rank: int) -> None:
        """Make the server's own machine refuse to send to the node, as a route or a firewall would."""
        self._run(["-t", str(self.first), "-n"], "ip", "route", "add", "prohibit", f"{self.addresses[rank]}/32")

    def allow(self, rank: int) -> None:
        """Undo `forbid`."""
        self._run(["-t", str(self.first), "-n"], "ip", "route", "del", "prohibit", f"{self.addresses[rank]}/32")

    def heal(self, rank: int) -> None:
        """Undo set_link, deafen and silence of a node."""
        self.set_link(rank, "up")
        forget = ["sh", "-c", "ip neigh flush nud permanent dev $0", "br0"]
        self._run(["-t", str(self.first), "-n"], *forget)
        self._run(["-t", str(self.init(rank)), "-n"], *forget[:-1], "eth0")

    def kill_node(self, rank: int) -> None:
        """Kill the node's first process, and so all of its processes."""
        os.kill(self.init(rank), signal.SIGKILL)

    def init(self, rank: int) -> int:
        """Return the id of the node's first process as this process sees it."""
        for pid in _children(self.first):
            for first in _children(pid):
                if f"\t{self.inits[rank]}\t1\n" in Path(f"/proc/{first}/status").read_text():
                    return first
        raise ProcessLookupError(f"node {rank} is dead")

    def processes(self, rank: int, name: str) -> list[int]:
        """Return the ids, as this process sees them, of the node's living processes whose command line holds `name`.
        The node's first process is left out."""
        init = self.init(rank)
        namespace = os.readlink(f"/proc/{init}/ns/pid")
        pids = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                line = (path / "cmdline").read_text().replace("\0", " ")
                if name in line and path.name != str(init) and os.readlink(path / "ns/pid") == namespace:
                    pids.append(int(path.name))
            except OSError:
                continue
        return sorted(pids)

    def signal(self, rank: int, name: str, number: int) -> int:
        """Send a signal to all of these processes. Return how many there were."""
        pids = self.processes(rank, name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # It ended with its parent.
                os.kill(pid, number)
        return len(pids)

    def kill(self, pid: int) -> None:
        """Kill one process, by its id as this process sees it."""
        os.kill(pid, signal.SIGKILL)

    def disk(self, rank: int) -> Path:
        """Return the path of the node's /run/local as this process sees it."""
        return Path(f"/proc/{self.init(rank)}/root/run/local")

    def start_sshd(self, rank: int, key: str = "host") -> None:
        """Start sshd again, with the same host key or another one."""
        self._configure(rank, key)
        self._run(["-t", str(self.init(rank)), "-a"], "/usr/sbin/sshd", "-f", f"{self.folder}/sshd{rank}.conf")

    def on_node(self, rank: int, *command: str) -> "subprocess.Popen[bytes]":
        """Start a command on the node without sshd. It ends with the node."""
        return subprocess.Popen(["nsenter", "-t", str(self.init(rank)), "-a", *command], stdout=subprocess.PIPE)

    def _configure(self, rank: int, key: str) -> None:
        text = CONFIGURATION.format(folder=self.folder, key=key, more=self.sshd)
        (self.folder / f"sshd{rank}.conf").write_text(text)

    def _misdirect(self, namespace_of: int, address: str, device: str) -> None:
        neighbour = ["ip", "neigh", "replace", address, "lladdr", NOWHERE, "dev", device, "nud", "permanent"]
        self._run(["-t", str(namespace_of), "-n"], *neighbour)

    def _run(self, where: list[str], *command: str) -> None:
        subprocess.run(["nsenter", *where, *command], check=True, capture_output=True)


def why_not() -> str:
    """Return what is missing for a lab on this machine; empty if it can run."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("unshare", "nsenter", "setpriv", "ip", "sshd", "ssh-keygen"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"{program} is not installed"
    tried = subprocess.run([*NAMESPACE, "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else ""


def main(nodes: int, folder: Path) -> None:
    """Run as the first process of the parent namespace: build the network, then reap processes that end."""
    bridge = f"link add br0 address {BRIDGE} type bridge"
    _ip("link set lo up", bridge, f"addr add {SUBNET}.254/24 dev br0", "link set br0 up")
    inits = [_start_node(rank, folder) for rank in range(nodes)]
    for rank in range(nodes):
        _wait_for_sshd(f"{SUBNET}.{rank + 1}")
    (folder / "ready.part").write_text(json.dumps(inits))
    (folder / "ready.part").rename(folder / "ready.json")
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


def _start_node(rank: int, folder: Path) -> int:
    read, write = os.pipe()
    environment = {**os.environ, "RANK": str(rank), "FOLDER": str(folder), "SUBNET": SUBNET}
    command = [*NAMESPACE, "bash", "-ec", f"exec 9<&{read}\n{NODE}"]
    node = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[read])
    os.close(read)
    own_network = os.readlink("/proc/self/ns/net")
    while not (first := _children(node.pid)) or os.readlink(f"/proc/{first[0]}/ns/net") == own_network:
        time.sleep(0.002)
    _ip(f"link add v{rank} type veth peer name eth0 netns {first[0]}", f"link set v{rank} master br0 up")
    os.write(write, b"go\n")
    os.close(write)
    return first[0]


def _wait_for_sshd(address: str) -> None:
    while True:
        try:
            with socket.create_connection((address, 22), timeout=0.5) as sock:
                if sock.recv(4) == b"SSH-":
                    return
        except OSError:
            time.sleep(0.01)


def _ip(*lines: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="".join(f"{line}\n" for line in lines), text=True, check=True)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
