"""Program on a node, read from standard input. It reads the machine's hardware and changes nothing.

    python - hardware JSON --token T

It prints one line, `T{json}`, with the unchanged texts of tools and /sys. The server parses them. Standard library
only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import ipaddress
import json
import os
import pwd
import re
import resource
import shutil
import socket
import struct
import sys
from typing import Any

from backend.node.nvidia_smi import read_inventory
from backend.node.tools import run_tool

SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
SHM = "/dev/shm"  # noqa: S108 - only its size is read
TOOL_S = 20.0
MEMORY = "/proc/meminfo"
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with a container's memory limit, for cgroup 2 and 1."""
CGROUP = "/proc/self/cgroup"
_LOGIND = "org.freedesktop.login1"
LOGIND = ["busctl", "get-property", _LOGIND, "/org/freedesktop/login1", f"{_LOGIND}.Manager",
          "KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers"]  # fmt: skip


def hardware(request: dict[str, Any]) -> dict[str, Any]:
    """Return the hardware, and the disks of `folders`."""
    smi = read_inventory()
    return {
        "smi": smi,
        "owners": owners_of(smi["apps"]["out"]) if smi else {},
        "rdma": find_rdma(),
        "interfaces": [describe(name) for _, name in socket.if_nameindex()],
        "default_routes": default_routes(),
        "shm": disk_of(SHM) if os.path.isdir(SHM) else None,
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "disks": {folder: disk_of(folder) for folder in request["folders"]},
        "quota": run_tool(["quota", "-w", "-p"], TOOL_S).out if shutil.which("quota") else "",
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": memory_mib(),
        "ends_at_logout": ends_at_logout(),
    }


def memory_mib() -> int:
    """Return the memory of the machine, or the limit of the container. A file without a limit contains `max`."""
    whole = int(re.findall(r"^MemTotal:\s*(\d+) kB", text_of(MEMORY), re.MULTILINE)[0]) << 10
    limits = [text_of(path) for path in LIMITS]
    return min([whole, *(int(text) for text in limits if text.isdigit())]) >> 20


def ends_at_logout() -> bool:
    """Return whether systemd-logind ends all processes of a log-in at its end: logind.conf(5), KillUserProcesses.

    The properties: https://www.freedesktop.org/software/systemd/man/org.freedesktop.login1.html
    """
    if not re.search(r"/session-[^/]+\.scope", text_of(CGROUP)):
        return False
    words = [line.split()[1:] for line in run_tool(LOGIND, TOOL_S).out.splitlines()]
    if len(words) != 3 or words[0] != ["true"]:
        return False
    only, excluded = ({word.strip('"') for word in line[1:]} for line in words[1:])
    return user_name() not in excluded and (not only or user_name() in only)


def user_name() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def owners_of(text: str) -> dict[str, str]:
    """Return the user of each process whose id is a number in the text, by id."""
    owners = {}
    for pid in set(re.findall(r"\b\d+\b", text)):
        try:
            user = os.stat(f"/proc/{pid}").st_uid
            owners[pid] = pwd.getpwuid(user).pw_name
        except KeyError:
            owners[pid] = str(user)
        except OSError:  # the process has ended
            continue
    return owners


def find_rdma() -> list[dict[str, Any]]:
    """Return every port of every RDMA device: /sys/class/infiniband."""
    ports = []
    for port in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        device = port.split("/")[4]
        gids = {}
        for path in glob.glob(f"{port}/gids/*"):
            index = os.path.basename(path)
            # Reading the type of an empty entry fails with EINVAL.
            kind = text_of(f"{port}/gid_attrs/types/{index}")
            if kind:
                gids[index] = [text_of(path), kind]
        ports.append({
            "device": device, "port": os.path.basename(port), "gids": gids, "state": text_of(f"{port}/state"),
            "rate": text_of(f"{port}/rate"), "link_layer": text_of(f"{port}/link_layer"),
            "interfaces": sorted(map(os.path.basename, glob.glob(f"/sys/class/infiniband/{device}/device/net/*"))),
        })  # fmt: skip
    return ports


def text_of(path: str) -> str:
    """Return the text of a file, or an empty text if it cannot be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def describe(name: str) -> dict[str, Any]:
    """Return the state of a network interface."""
    folder = f"/sys/class/net/{name}"
    return {
        "name": name,
        "state": text_of(f"{folder}/operstate"),
        "speed": text_of(f"{folder}/speed"),
        "tunnel": os.path.exists(f"{folder}/tun_flags"),
        "bonded": os.path.exists(f"{folder}/master/bonding"),
        "networks": networks_of(name),
    }


def networks_of(name: str) -> list[str]:
    """Return `address/prefix` of an interface's main IPv4 address and of its global IPv6 addresses."""
    network = _ipv4_network(name)
    networks = [] if network is None else [network]
    for line in text_of("/proc/net/if_inet6").splitlines():
        digits, _, prefix, scope, _, interface = line.split()
        if interface == name and scope == "00":
            networks.append(f"{ipaddress.IPv6Address(int(digits, 16))}/{int(prefix, 16)}")
    return networks


def _ipv4_network(name: str) -> str | None:
    packed = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            address, mask = (
                socket.inet_ntoa(fcntl.ioctl(sock, request, packed)[20:24]) for request in (SIOCGIFADDR, SIOCGIFNETMASK)
            )
        except OSError as error:
            # The interface has no IPv4 address, or it is gone (man 7 netdevice).
            if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
                return None
            raise
    return str(ipaddress.ip_interface(f"{address}/{mask}"))


def default_routes() -> list[str]:
    """Return the interfaces of the default routes, the preferred one first."""
    rows = [line.split() for line in text_of("/proc/net/route").splitlines()[1:]]
    routes = [(int(row[6]), row[0]) for row in rows if row[1] == row[7] == "00000000"]
    rows = [line.split() for line in text_of("/proc/net/ipv6_route").splitlines()]
    routes += [(int(row[5], 16), row[9]) for row in rows if row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"]
    return list(dict.fromkeys(name for _, name in sorted(routes)))


def disk_of(folder: str) -> dict[str, Any]:
    """Return the file system of a folder, which may not exist yet."""
    folder = os.path.abspath(os.path.expanduser(folder))
    while not os.path.isdir(folder) and folder != "/":
        folder = os.path.dirname(folder)
    disk = os.statvfs(folder)
    source, kind = mount_of(folder)
    return {"free": disk.f_bavail * disk.f_frsize, "total": disk.f_blocks * disk.f_frsize,
            "source": source, "kind": kind}  # fmt: skip


def mount_of(folder: str) -> tuple[str, str]:
    """Return (source, kind) of the mount with the longest mount point above a folder."""
    best = ("", "", "")
    real = os.path.realpath(folder)
    for line in text_of("/proc/mounts").splitlines():
        source, point, kind = line.split()[:3]
        point = point.replace("\\040", " ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, source, kind)
    return best[1], best[2]


ACTIONS = {"hardware": hardware}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
