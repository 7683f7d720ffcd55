"""Reads and replaces dataset_info.json. A reader sees the old file or the new one, and the old one is kept."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from backend.node.regular_file import MOST_JSON_BYTES, read_regular
from backend.node.samples.rows import KINDS, Refused

NAME = "dataset_info.json"
BACKUP = "dataset_info.json.bak"
MOST_ENTRIES = 2000
MOST_FILES = 200
"""Files of the folder that are listed."""


def folder_of(request: dict[str, Any]) -> str:
    """Return the absolute path of the folder of the data sets."""
    folder = os.path.abspath(os.path.expanduser(str(request["folder"])))
    if not os.path.isdir(folder):
        raise Refused("dataset_folder_missing", path=folder)
    return folder


def read_entries(folder: str) -> tuple[dict[str, Any], str | None]:
    """Return the entries and the text of dataset_info.json; no entries and None without the file."""
    path = os.path.join(folder, NAME)
    try:
        text = read_regular(path, MOST_JSON_BYTES).decode("utf-8-sig")
        entries = json.loads(text)
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, RecursionError) as error:
        raise Refused("dataset_info_broken", path=path, reason=str(error)[:300]) from error
    if not isinstance(entries, dict):
        raise Refused("dataset_info_broken", path=path, reason=f"{type(entries).__name__} instead of a JSON object")
    return entries, text


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return the entries, and the files of the folder that a data set could have."""
    folder = folder_of(request)
    entries, text = read_entries(folder)
    files = sorted(name for name in os.listdir(folder) if os.path.splitext(name)[1][1:] in KINDS and name != NAME)
    shown = list(entries.items())[:MOST_ENTRIES]
    return {
        "folder": folder,
        "is_there": text is not None,
        "entries": [[name, entry] for name, entry in shown],
        "files": files[:MOST_FILES],
    }


def write(request: dict[str, Any]) -> dict[str, Any]:
    """Replace one entry, or remove it if `entry` is None. `seen`: its versions that the user saw on the nodes.

    None in `seen` stands for a node without the entry. An entry that somebody else changed since is not overwritten.
    """
    folder, name, entry = folder_of(request), request["name"], request["entry"]
    entries, text = read_entries(folder)
    if entries.get(name) == entry and (entry is not None or name not in entries):
        return {"is_changed": False}
    if entries.get(name) not in request["seen"]:
        raise Refused("dataset_entry_changed", path=os.path.join(folder, NAME), name=name)
    if entry is None:
        del entries[name]
    else:
        entries[name] = entry
    # LLaMA-Factory reads the file in the encoding of the node's locale. ASCII is the same in all of them.
    is_ascii = text is None or text.isascii()
    if text is not None:
        replace_file(os.path.join(folder, BACKUP), text)
    # A symbolic link to the file stays, and its target is replaced.
    replace_file(
        os.path.realpath(os.path.join(folder, NAME)), json.dumps(entries, indent=2, ensure_ascii=is_ascii) + "\n"
    )
    return {"is_changed": True}


def replace_file(path: str, text: str) -> None:
    """Replace a file or a symbolic link at once, with the permissions that the file has."""
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o644
    handle, new = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(new, mode)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
