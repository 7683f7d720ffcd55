"""Runs on a node, read from standard input: what nodes have to have in common. Standard library only, Python >= 3.8.

    python - prints|write|read|remove JSON --token T

`write` leaves one small file, which `remove` takes away; the others change nothing. Prints one line, `T{json}`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

from backend.node.regular_file import open_regular, read_json, read_regular

WHOLE = 1 << 20
"""Files up to this size are read whole, larger ones in three places: a model has a hundred of 5 GB."""
BLOCK = 1 << 16
MOST_FILES = 2000
NOT_LOADED = (".md", ".gitattributes", ".gitignore", ".png", ".pdf")
"""No engine reads these, and a copy of a model often lacks them."""


def prints(wanted: dict[str, Any]) -> dict[str, Any]:
    """Fingerprints by path of the `model`'s files and of those of its `data` sets; None for what is not there."""
    model = full(wanted["model"])
    return {"model": in_folder(model), "data": data_prints(wanted["folder"], wanted["datasets"], wanted["plain"])}


def in_folder(folder: str) -> dict[str, str] | None:
    """Of the files of the model that lies in it, by name; None where there is none, which is told elsewhere."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return None
    if "config.json" not in names:
        return None
    kept = [name for name in names if not name.startswith(".") and not name.endswith(NOT_LOADED)]
    return {name: print_of(os.path.join(folder, name)) for name in kept[:MOST_FILES]}


def data_prints(folder: str, names: list[str], plain: bool) -> dict[str, str] | None:
    """Of each data set's description and file, or of the files themselves where they are `plain`.

    By the paths that the job names, for home folders differ. None where one is missing, which is told elsewhere.
    """
    if plain:
        paths = {name.partition("#")[0]: full(name.partition("#")[0]) for name in names}
        is_whole = all(os.path.exists(path) for path in paths.values())
        return {name: print_of_either(path) for name, path in paths.items()} if is_whole else None
    try:
        known = read_json(os.path.join(full(folder), "dataset_info.json"))
        entries = {name: known[name] for name in names}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    found = {}
    for name, entry in entries.items():
        text = json.dumps(entry, sort_keys=True)
        found[f"{folder}/dataset_info.json: {name}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        if isinstance(entry, dict) and "file_name" in entry:
            path = os.path.join(folder, str(entry["file_name"]))
            if not os.path.exists(full(path)):
                return None
            found[path] = print_of_either(full(path))
    return found


def print_of_either(path: str) -> str:
    """Of a file, or of all files below a folder."""
    if not os.path.isdir(path):
        return print_of(path)
    files = sorted(os.path.join(top, name) for top, _, names in os.walk(path) for name in names)[:MOST_FILES]
    digest = hashlib.sha256()
    for one in files:
        digest.update(f"{os.path.relpath(one, path)} {print_of(one)}\n".encode(errors="surrogateescape"))
    return f"{len(files)} files {digest.hexdigest()[:16]}"


def print_of(path: str) -> str:
    """`size digest`; the reason where it cannot be read."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256()
            if size <= WHOLE:
                digest.update(file.read(WHOLE))
            else:
                for place in (0, size // 2, size - BLOCK):
                    file.seek(place)
                    digest.update(file.read(BLOCK))
    except OSError as error:
        return str(error.strerror)
    return f"{size} {digest.hexdigest()[:16]}"


def write(wanted: dict[str, Any]) -> dict[str, Any]:
    """A file called `name` in `folder`, or in the nearest folder above it."""
    folder = full(wanted["folder"])
    while not os.path.isdir(folder) and folder != "/":
        folder = os.path.dirname(folder)
    path = os.path.join(folder, wanted["name"])
    try:
        with open(path, "x") as file:
            file.write(wanted["name"])
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return {"written": False, "detail": str(error)}
    return {"written": True}


def read(wanted: dict[str, Any]) -> dict[str, Any]:
    """Whether the file can be seen in what is `folder` here, or above it, within `seconds`: network disks lag."""
    deadline = time.monotonic() + wanted["seconds"]
    while True:
        if find(full(wanted["folder"]), wanted["name"]):
            return {"seen": True}
        if time.monotonic() >= deadline:
            return {"seen": False}
        time.sleep(0.2)


def find(folder: str, name: str) -> str | None:
    """The file called `name` with its name inside, in a folder or the nearest one above it."""
    while True:
        path = os.path.join(folder, name)
        try:
            if read_regular(path, len(name.encode())) == name.encode():
                return path
        except OSError:
            pass  # Not there, or not yet.
        if folder == "/":
            return None
        folder = os.path.dirname(folder)


def remove(wanted: dict[str, Any]) -> dict[str, Any]:
    """The file that `write` has made; one that holds anything else stays."""
    path = find(full(wanted["folder"]), wanted["name"])
    if path is not None:
        os.unlink(path)
    return {}


def full(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


ACTIONS = {"prints": prints, "write": write, "read": read, "remove": remove}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
