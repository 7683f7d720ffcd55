"""What a node can make an environment with: uv or pip, and the versions of Python."""

from __future__ import annotations

import os
import platform
import re
import shutil
from typing import Any

from backend.node.tools import run_tool

from .folder import free_bytes, state_of

UV_PATHS = ("~/.local/bin/uv", "~/.cargo/bin/uv")
ASK_TOOL_S = 20.0
VENV = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def find_uv(sent: str | None = None) -> str | None:
    """Return a uv that runs here: the node's own one, or the copy that the server sent."""
    paths = [shutil.which("uv"), *map(os.path.expanduser, UV_PATHS), sent]
    return next((path for path in paths if path and runs(path)), None)


def runs(uv: str) -> bool:
    """Return whether this uv starts. One for another processor or libc does not."""
    if not os.path.isfile(uv):
        return False
    return run_tool([uv, "--version"], ASK_TOOL_S).code == 0


def find_pythons(versions: list[str], uv: str | None, *, with_pip: bool) -> dict[str, str]:
    """Return version -> interpreter for the versions that are installed here. `with_pip`: it needs `venv` and pip."""
    interpreters: dict[str, str] = {}
    for version in versions:
        for name in (f"python{version}", "python3"):
            path = shutil.which(name)
            if path and version not in interpreters and version_of(path, with_pip) == version:
                interpreters[version] = os.path.realpath(path)
        if version not in interpreters and uv:
            answer = run_tool([uv, "python", "find", "--no-python-downloads", "--system", version], ASK_TOOL_S)
            if answer.code == 0 and answer.out.strip():
                interpreters[version] = answer.out.strip()
    return interpreters


def version_of(python: str, with_pip: bool) -> str | None:
    """Return `3.11` of an interpreter that can make an environment; None for another one."""
    program = VENV if with_pip else "import sys; print('%d.%d' % sys.version_info[:2])"
    answer = run_tool([python, "-c", program], ASK_TOOL_S)
    return answer.out.strip() if answer.code == 0 else None


def read_tools(request: dict[str, Any]) -> dict[str, Any]:
    """Return what this node has: uv, interpreters, free space, and the state of the environment's folders."""
    uv = find_uv()
    root = os.path.abspath(os.path.expanduser(request["root"]))
    folders = {version: os.path.join(root, name) for version, name in request["folders"].items()}
    return {
        "uv": uv,
        "pythons": find_pythons(request["pythons"], uv, with_pip=not uv and not request["uv_comes"]),
        "own_python": platform.python_version(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "free": free_bytes(root),
        "root": root,
        "states": {version: state_of(folder, request["digest"]) for version, folder in folders.items()},
        "driver_cuda": driver_cuda(),
    }


def driver_cuda() -> str | None:
    """Return the newest CUDA version that the driver supports, as nvidia-smi prints it. None without a driver."""
    if not shutil.which("nvidia-smi"):
        return None
    match = re.search(r"CUDA Version: (\d+\.\d+)", run_tool(["nvidia-smi"], ASK_TOOL_S).out)
    return match[1] if match else None
