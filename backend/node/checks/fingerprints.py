"""Program on a node, read from standard input. It computes fingerprints of files, and tests a shared folder.

    python - prints|write|read|remove JSON --token T

`write` creates one small file, and `remove` deletes it. The others change nothing. The program prints one line,
`T{json}`. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from typing import Any

from backend.node.regular_file import full_path, open_regular, read_json, read_regular

WHOLE = 1 << 20
"""Smaller files are read whole, larger files in three parts. A model may have a hundred files of 5 GB."""
BLOCK = 1 << 16
MOST_FILES = 2000
NOT_LOADED = (".md", ".gitattributes", ".gitignore", ".png", ".pdf")
"""Engines do not read these files, and copies of a model often lack them."""


def prints(request: dict[str, Any]) -> dict[str, Any]:
    """Return the fingerprints of the `model`'s files and of the `data` sets, by path. None: missing."""
    model = full_path(request["model"])
    return {"model": in_folder(model), "data": data_prints(request["folder"], request["datasets"], request["plain"])}


def in_folder(folder: str) -> dict[str, str] | None:
    """Return the fingerprints of a model's files by name. None: no model, which another check reports."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return None
    if "config.json" not in names:
        return None
    kept = [name for name in names if not name.startswith(".") and not name.endswith(NOT_LOADED)]
    return {name: print_of(os.path.join(folder, name)) for name in kept[:MOST_FILES]}


def data_prints(folder: str, names: list[str], plain: bool) -> dict[str, str] | None:
    """Return the fingerprints of each data set's description and file, or of the files only if they are `plain`.

    The keys are the job's paths, because home folders differ. None: one is missing, which another check reports.
    """
    if plain:
        paths = {name.partition("#")[0]: full_path(name.partition("#")[0]) for name in names}
        is_whole = all(os.path.exists(path) for path in paths.values())
        return {name: print_of_either(path) for name, path in paths.items()} if is_whole else None
    try:
        known = read_json(os.path.join(full_path(folder), "dataset_info.json"))
        entries = {name: known[name] for name in names}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    fingerprints = {}
    for name, entry in entries.items():
        text = json.dumps(entry, sort_keys=True)
        fingerprints[f"{folder}/dataset_info.json: {name}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        if isinstance(entry, dict) and "file_name" in entry:
            path = os.path.join(folder, str(entry["file_name"]))
            if not os.path.exists(full_path(path)):
                return None
            fingerprints[path] = print_of_either(full_path(path))
    return fingerprints


def print_of_either(path: str) -> str:
    """Return the fingerprint of a file, or of all files in a folder."""
    if not os.path.isdir(path):
        return print_of(path)
    files = sorted(os.path.join(top, name) for top, _, names in os.walk(path) for name in names)[:MOST_FILES]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{os.path.relpath(file, path)} {print_of(file)}\n".encode(errors="surrogateescape"))
    return f"{len(files)} files {digest.hexdigest()[:16]}"


def print_of(path: str) -> str:
    """Return `size digest`, or the reason why the file cannot be read."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256()
            if size <= WHOLE:
                digest.update(file.read(WHOLE))
            else:
                for offset in (0, size // 2, size - BLOCK):
                    file.seek(offset)
                    digest.update(file.read(BLOCK))
    except OSError as error:
        return str(error.strerror)
    return f"{size} {digest.hexdigest()[:16]}"


def write(request: dict[str, Any]) -> dict[str, Any]:
    """Create the file `name` in `folder`, or in the nearest existing parent."""
    folder = full_path(request["folder"])
    while not os.path.isdir(folder) and folder != "/":
        folder = os.path.dirname(folder)
    path = os.path.join(folder, request["name"])
    try:
        with open(path, "x") as file:
            file.write(request["name"])
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return {"written": False, "detail": str(error)}
    return {"written": True}


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return whether the file appears in `folder` or a parent within `seconds`. Network disks are late."""
    deadline = time.monotonic() + request["seconds"]
    while True:
        if find(full_path(request["folder"]), request["name"]):
            return {"seen": True}
        if time.monotonic() >= deadline:
            return {"seen": False}
        time.sleep(0.2)


def find(folder: str, name: str) -> str | None:
    """Return the path of the file `name` that contains its name, in a folder or the nearest parent."""
    while True:
        path = os.path.join(folder, name)
        if _contains_its_name(path):
            return path
        if folder == "/":
            return None
        folder = os.path.dirname(folder)


NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EACCES)
"""Answers to a path at which this user finds no file. NFS answers ESTALE until it has read the folder again."""
OTHER_FILE = (errno.EINVAL, errno.EFBIG, errno.ELOOP, errno.ENXIO)
"""Errors of `read_regular` and `open` for a path that is not a regular file, or not the expected one."""


def _contains_its_name(path: str) -> bool:
    """Return whether a file is there and contains its name. Raises OSError if the disk fails."""
    name = os.path.basename(path).encode()
    try:
        return read_regular(path, len(name)) == name
    except OSError as error:
        if error.errno in NO_FILE or error.errno in OTHER_FILE:
            return False
        raise


def remove(request: dict[str, Any]) -> dict[str, Any]:
    """Delete the file of `write`. A file with other content stays."""
    path = find(full_path(request["folder"]), request["name"])
    if path is not None:
        os.unlink(path)
    return {}


ACTIONS = {"prints": prints, "write": write, "read": read, "remove": remove}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
