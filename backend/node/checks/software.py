"""Runs on a node, read from standard input: looks, and changes nothing. Standard library only, Python >= 3.8.

    python - facts|paths JSON --token T

Prints one line, `T{json}`.
"""

from __future__ import annotations

import fcntl
import glob
import importlib.metadata
import importlib.util
import ipaddress
import json
import os
import platform
import re
import shutil
import socket
import struct
import sys
import tempfile
import time
import urllib.parse
from typing import Any

from backend.node.regular_file import read_json, read_regular

SIOCGIFADDR = 0x8915


def facts(wanted: dict[str, Any]) -> dict[str, Any]:
    """What this machine is, and which of the `modules` (import name -> distribution) this Python has."""
    return {
        "home": os.path.expanduser("~"),
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "modules": {module: version_of(module, name) for module, name in wanted["modules"].items()},
        "origins": {module: origin_of(name) for module, name in wanted["modules"].items()},
        "cuda": cuda_of_torch(),
        "nccl": nccl_version(),
        "interface": find_interface(wanted["master"]) if wanted["master"] else None,
        "machine": boot_id(),
        "time": time.time(),
    }


def boot_id() -> str:
    """The running kernel's own id; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def version_of(module: str, distribution: str) -> str | None:
    """With the commit of a git checkout; None when it cannot be imported, which would take seconds of every core."""
    try:
        # megatron is a namespace that other packages put parts into.
        if importlib.util.find_spec("megatron.core" if module == "megatron" else module) is None:
            return None
    except (ImportError, ValueError):
        return None
    origin = origin_of(distribution)
    if not origin:
        return "unknown"
    return f"{origin['version']} (commit {origin['commit'][:10]})" if origin["commit"] else str(origin["version"])


def origin_of(distribution: str) -> dict[str, str]:
    """Version, and where it was installed from (PEP 610) with the commit; empty where it is not installed."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return {}
    source = json.loads(found.read_text("direct_url.json") or "{}")
    url, git = source.get("url", ""), source.get("vcs_info", {})
    # What was copied out of a folder does not change with it.
    is_checkout = url.startswith("file:///") and source.get("dir_info", {}).get("editable", False)
    folder = urllib.parse.unquote(url[len("file://") :]) if is_checkout else ""
    return {
        "version": found.version or "unknown",
        "url": "" if is_checkout else url,
        "commit": git.get("commit_id") or (commit_of(folder) if folder else ""),
        "subdirectory": source.get("subdirectory") or "",
        "folder": folder,
    }


def commit_of(folder: str) -> str:
    """The commit that a git checkout stands at, read from its files; empty where it is none."""
    while folder != "/" and not os.path.isdir(os.path.join(folder, ".git")):
        folder = os.path.dirname(folder)
    try:
        head = read_regular(os.path.join(folder, ".git", "HEAD"), 1 << 10).decode().strip()
        if not head.startswith("ref: "):
            return head
        loose = os.path.join(folder, ".git", head[5:])
        packed = os.path.join(folder, ".git", "packed-refs")
        references = read_regular(loose if os.path.exists(loose) else packed, 16 << 20).decode()
        lines = [line.split() for line in references.splitlines()]
    except (OSError, ValueError):
        return ""
    return next((line[0] for line in lines if len(line) == 1 or line[1:] == [head[5:]]), "")


def cuda_of_torch() -> str | None:
    """The CUDA that torch was built with; empty without one; None where there is no torch, or one for other GPUs."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        with open(os.path.join(spec.submodule_search_locations[0], "version.py")) as file:
            built = dict(re.findall(r"^(cuda|hip|xpu)\b.*= *(?:'([^']*)'|None)", file.read(), re.MULTILINE))
    except OSError:
        return None
    return None if "cuda" not in built or built.get("hip") or built.get("xpu") else built["cuda"]


def nccl_version() -> str | None:
    """Of the package that torch loads; None for a torch that brings its own, or none."""
    names = (f"nvidia-nccl-cu{major}" for major in range(11, 20))
    return next((origin["version"] for origin in map(origin_of, names) if origin), None)


def find_interface(master: str) -> str | None:
    """The network interface whose address this machine uses towards `master`."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            # No packet is sent: the kernel only chooses the route.
            sock.connect(place)
            mine = sock.getsockname()[0]
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        if mine in addresses_of(name):
            return name
    return None


def addresses_of(interface: str) -> list[str]:
    """Its main IPv4 address and its IPv6 addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            found = [socket.inet_ntoa(answer[20:24])]
        except OSError:
            found = []
    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except OSError:
        rows = []
    return found + [str(ipaddress.IPv6Address(int(row[0], 16))) for row in rows if row[5] == interface]


def paths(wanted: dict[str, Any]) -> dict[str, Any]:
    """Whether the model, the data sets and room to write are there."""
    return {
        "model": os.path.isfile(os.path.join(full(wanted["model"]), "config.json")),
        "dataset": find_datasets(full(wanted["dataset_dir"]), wanted["datasets"]),
        "not_writable": {path: why for path in wanted["writable"] for why in [why_not_writable(full(path))] if why},
        "parts": find_parts(wanted["parts"], wanted["extensions"] or os.environ.get("TORCH_EXTENSIONS_DIR")),
    }


def find_parts(names: list[str], folder: str | None) -> dict[str, Any]:
    """Which of DeepSpeed's parts in C++ are not built yet, the locks in their way, and whether there is a compiler."""
    # Without the variable torch puts them into a folder for each version of Python and CUDA.
    root = full(folder) if folder else os.path.join(full("~/.cache/torch_extensions"), "*")
    spec = importlib.util.find_spec("deepspeed") if names else None
    own = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else root
    # Those that were built when DeepSpeed was installed are not looked for elsewhere.
    names = [name for name in names if not glob.glob(f"{own}/ops/**/{name}_op*.so", recursive=True)]
    return {
        "unbuilt": [name for name in names if not glob.glob(f"{root}/{name}/{name}.so")],
        "locks": [lock for name in names for lock in glob.glob(f"{root}/{name}/lock")],
        "compiler": shutil.which(os.environ.get("CXX", "c++")) is not None,
    }


def find_datasets(folder: str, names: list[str]) -> dict[str, Any]:
    """`info`: whether dataset_info.json can be read; `unknown` names; `missing` files."""
    try:
        known = read_json(os.path.join(folder, "dataset_info.json"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict):
        return {"info": False, "unknown": [], "missing": []}
    known = {name: entry for name, entry in known.items() if isinstance(entry, dict)}
    files = [
        os.path.join(folder, str(known[name]["file_name"])) for name in names if "file_name" in known.get(name, {})
    ]
    missing = [path for path in files if not os.path.exists(path)]
    return {"info": True, "unknown": [name for name in names if name not in known], "missing": missing}


def why_not_writable(folder: str) -> str:
    """Empty when a file can be made in it, or in the nearest parent where it has to be made first."""
    while not os.path.isdir(folder) and folder != "/":
        if os.path.lexists(folder):
            return f"{folder} is not a folder"
        folder = os.path.dirname(folder)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


def full(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


ACTIONS = {"facts": facts, "paths": paths}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
