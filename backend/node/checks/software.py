"""Program on a node, read from standard input. It reads the node's software and changes nothing.

    python - facts|paths JSON --token T

It prints one line, `T{json}`. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import pwd
import re
import shutil
import socket
import sys
import tempfile
import time
import urllib.parse
from typing import Any

from backend.node.checks.dataset_columns import has_kto_tag, missing_columns, row_without_text
from backend.node.checks.logins import has_wandb_login
from backend.node.checks.model_code import undivided_loss
from backend.node.checks.model_folder import fault_of_config, lacking_weights, unmatched_targets
from backend.node.interface import find_interface
from backend.node.own_folder import owner_of_new
from backend.node.regular_file import full_path, read_json, read_regular


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """Return the machine's facts, and the versions of the `modules` (import name -> distribution) in this Python."""
    return {
        "home": os.path.expanduser("~"),
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "modules": {module: version_of(module, name) for module, name in request["modules"].items()},
        "origins": {module: origin_of(name) for module, name in request["modules"].items()},
        "cuda": cuda_of_torch(),
        "nccl": nccl_version(),
        "has_pip": importlib.util.find_spec("pip") is not None,
        "interface": find_interface(request["master"]) if request["master"] else None,
        "machine": boot_id(),
        "time": time.time(),
    }


def boot_id() -> str:
    """Return the id of the kernel's boot, or an empty text without one."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def version_of(module: str, distribution: str) -> str | None:
    """Return a module's version, with the commit of a git checkout, or None if no such module is installed.

    The function does not import the module, which would take seconds.
    """
    try:
        # megatron is a namespace that other packages share.
        if importlib.util.find_spec("megatron.core" if module == "megatron" else module) is None:
            return None
    except (ImportError, ValueError):
        return None
    origin = origin_of(distribution)
    if not origin:
        return "unknown"
    return f"{origin['version']} (commit {origin['commit'][:10]})" if origin["commit"] else str(origin["version"])


def origin_of(distribution: str) -> dict[str, str]:
    """Return a package's version and its source (PEP 610) with the commit. Empty if it is not installed."""
    try:
        package = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return {}
    source = json.loads(package.read_text("direct_url.json") or "{}")
    url, git = source.get("url", ""), source.get("vcs_info", {})
    # A package that was copied from a folder does not change with the folder.
    is_checkout = url.startswith("file:///") and source.get("dir_info", {}).get("editable", False)
    folder = urllib.parse.unquote(url[len("file://") :]) if is_checkout else ""
    return {
        "version": package.version or "unknown",
        "url": "" if is_checkout else url,
        "commit": git.get("commit_id") or (commit_of(folder) if folder else ""),
        "subdirectory": source.get("subdirectory") or "",
        "folder": folder,
    }


def commit_of(folder: str) -> str:
    """Return the commit of a git checkout from its files, or an empty text for another folder."""
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
    """Return the CUDA version of torch's build. Empty: built without CUDA. None: no torch, or torch for other GPUs."""
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
    """Return the version of the NCCL package that torch loads, or None without such a package."""
    names = (f"nvidia-nccl-cu{major}" for major in range(11, 20))
    return next((origin["version"] for origin in map(origin_of, names) if origin), None)


def paths(request: dict[str, Any]) -> dict[str, Any]:
    """Return whether the model, the data sets, the writable folders and DeepSpeed's extensions are ready."""
    return {
        "model": os.path.isfile(os.path.join(full_path(request["model"]), "config.json")),
        "config": fault_of_config(full_path(request["model"])),
        "lacking": lacking_weights(full_path(request["model"])),
        "unmatched": unmatched_targets(full_path(request["model"]), request["lora_targets"]),
        "undivided": undivided_loss(full_path(request["model"])) if request.get("own_code") else "",
        "wandb": has_wandb_login(),
        "dataset": find_files(request["datasets"], request.get("answers") or [])
        if request.get("plain")
        else find_datasets(full_path(request["dataset_dir"]), request["datasets"]),
        "not_writable": {
            path: error for path in request["writable"] for error in [write_error(full_path(path))] if error
        },
        "foreign": {path: name for path in request["writable"] for name in [other_owner(full_path(path))] if name},
        "parts": find_parts(request["parts"], request["extensions"] or os.environ.get("TORCH_EXTENSIONS_DIR")),
    }


def find_parts(names: list[str], folder: str | None) -> dict[str, Any]:
    """Return DeepSpeed's C++ extensions that are not built yet, their locks, and whether the node has a compiler."""
    # Without the variable torch has a folder for each version of Python and CUDA.
    root = full_path(folder) if folder else os.path.join(full_path("~/.cache/torch_extensions"), "*")
    spec = importlib.util.find_spec("deepspeed") if names else None
    own = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else root
    # DeepSpeed uses the extensions that were built with its installation.
    names = [name for name in names if not glob.glob(f"{own}/ops/**/{name}_op*.so", recursive=True)]
    return {
        "unbuilt": [name for name in names if not glob.glob(f"{root}/{name}/{name}.so")],
        "locks": [lock for name in names for lock in glob.glob(f"{root}/{name}/lock")],
        "compiler": shutil.which(os.environ.get("CXX", "c++")) is not None,
    }


def find_files(paths: list[str], answers: list[str]) -> dict[str, Any]:
    """Return the `missing` ones of data sets that are files or folders. `#n` behind a path takes n rows of it.

    `unanswered`: path -> number of the first row without text in any of the columns `answers`.
    """
    places = {path: (full_path(path), full_path(path.partition("#")[0])) for path in paths}
    files = {path: next(filter(os.path.exists, either), "") for path, either in places.items()}
    rows = {path: row_without_text(answers, file) for path, file in files.items() if answers and file}
    return {
        "info": False,
        "unknown": [],
        "missing": [path for path, file in files.items() if not file],
        "columns": {},
        "unanswered": {path: row for path, row in rows.items() if row},
    }


def find_datasets(folder: str, names: list[str]) -> dict[str, Any]:
    """Return `info` (whether dataset_info.json can be read), the `unknown` names and the `missing` files.

    `columns`: name -> the columns that the first rows of its file lack. `ranking`: the names whose rows have a chosen
    and a rejected answer. `judged`: the names whose rows have a `kto_tag`.
    """
    try:
        known = read_json(os.path.join(folder, "dataset_info.json"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict):
        return {"info": False, "unknown": [], "missing": [], "columns": {}}
    known = {name: entry for name, entry in known.items() if isinstance(entry, dict)}
    described = {name: known[name] for name in names if name in known}
    files = {
        name: os.path.join(folder, str(known[name]["file_name"]))
        for name in names
        if "file_name" in known.get(name, {})
    }
    return {
        "info": True,
        "unknown": [name for name in names if name not in known],
        "missing": [path for path in files.values() if not os.path.exists(path)],
        "columns": {
            name: lacking for name, path in files.items() for lacking in [missing_columns(known[name], path)] if lacking
        },
        "ranking": [name for name, entry in described.items() if entry.get("ranking")],
        "judged": [name for name, entry in described.items() if has_kto_tag(entry)],
    }


def write_error(folder: str) -> str:
    """Return why no file can be created in a folder, or in the nearest parent if it does not exist. Empty: it can."""
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


def other_owner(folder: str) -> str:
    """Return the name of the user who owns a folder, if it is another one. Empty: this user, root, or no folder."""
    try:
        owner = os.stat(folder).st_uid
        if owner in (0, os.geteuid()) or owner == owner_of_new(folder):
            return ""
    except OSError:
        return ""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)


ACTIONS = {"facts": facts, "paths": paths}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
