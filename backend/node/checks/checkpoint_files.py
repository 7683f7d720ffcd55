"""Program on a node, read from standard input. It lists the checkpoints of a run, or renames some of them.

    python - list|set_aside JSON --token T

It prints one line, `T{json}`. JSON has `folder`, the output folder of a run. For `set_aside` it also has the `steps` of
the checkpoints to rename, and the `prefix` of their new names. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import sys
from typing import Any

from backend.node.regular_file import MOST_JSON_BYTES, open_regular

NAME = re.compile(r"checkpoint-(\d+)")
END_OF_ZIP = b"PK\x05\x06"
"""Start of the last 22 bytes of a file of torch.save. A file without these bytes was cut."""
STEP = re.compile(rb'"global_step"\s*:\s*(\d+)')
HEAD_BYTES, TAIL_BYTES = 64 << 10, 1 << 10
"""Bytes that are read of a JSON file that is too large to be read whole."""


def list_checkpoints(request: dict[str, Any]) -> dict[str, Any]:
    """Return the files of each checkpoint by step, and the damaged ones among them."""
    folder = os.path.expanduser(request["folder"])
    checkpoints = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        match = NAME.fullmatch(name)
        if match and os.path.isdir(os.path.join(folder, name)):
            checkpoints[match.group(1)] = list_files(os.path.join(folder, name), int(match.group(1)))
    return {"folder": folder, "checkpoints": checkpoints}


def list_files(folder: str, step: int) -> dict[str, list[str]]:
    files = sorted(
        os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names
    )
    return {"files": files, "damaged": [file for file in files if is_damaged(folder, file, step)]}


def is_damaged(folder: str, file: str, step: int) -> bool:
    """Return whether a file is incomplete. The answer is False for kinds of files that do not show it."""
    try:
        with open_regular(os.path.join(folder, file)) as stream:
            size = os.fstat(stream.fileno()).st_size
            if file.endswith((".pt", ".pth", ".bin")):
                return is_cut(stream, size)
            if file.endswith(".safetensors"):
                return is_other_size(stream, size)
            if file.endswith(".json") and size > MOST_JSON_BYTES:
                return is_cut_json(stream, size, os.path.basename(file), step)
            if file.endswith(".json"):
                return is_inconsistent(folder, os.path.basename(file), json.loads(stream.read(size)), step)
            if file == "latest":  # DeepSpeed writes the name of a folder
                name = stream.read(100).decode()
                return not (name and os.path.isdir(os.path.join(folder, name)))
            return size == 0 and os.path.basename(file) in (".metadata", "latest_checkpointed_iteration.txt")
    except FileNotFoundError:  # the engine has deleted the checkpoint
        return True
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, struct.error):
        return True
    except OSError as error:
        if error.errno == errno.EINVAL:  # a pipe, a device
            return True
        raise


def is_cut(stream: Any, size: int) -> bool:
    start = stream.read(2)
    stream.seek(max(0, size - 22))
    end = stream.read()
    # Old versions of torch.save wrote pickles, which end with a full stop.
    return bool(end[:4] != END_OF_ZIP if start == b"PK" else end[-1:] != b".")


def is_other_size(stream: Any, size: int) -> bool:
    """Return whether the size of a safetensors file differs from the size in its header.

    A header that is too large to be read has to fit into the file.
    """
    (length,) = struct.unpack("<Q", stream.read(8))
    if length > MOST_JSON_BYTES:
        return bool(size < 8 + length)
    tensors = json.loads(stream.read(length))
    ends = [int(tensor["data_offsets"][1]) for name, tensor in tensors.items() if name != "__metadata__"]
    return bool(size != 8 + length + max(ends, default=0))


def is_cut_json(stream: Any, size: int, name: str, step: int) -> bool:
    """Return whether a large JSON file was cut, or is the trainer's state of another step.

    A trainer's state gets a record with every logged step, and `global_step` comes before these records.
    """
    head = stream.read(HEAD_BYTES)
    stream.seek(size - TAIL_BYTES)
    if not stream.read(TAIL_BYTES).rstrip().endswith((b"}", b"]")):
        return True
    match = STEP.search(head.split(b'"log_history"')[0]) if name == "trainer_state.json" else None
    return match is not None and int(match.group(1)) != step


def is_inconsistent(folder: str, name: str, content: Any, step: int) -> bool:
    """Return whether an index names a missing part, or the trainer's state is of another step."""
    if name.endswith(".index.json"):
        return not all(os.path.exists(os.path.join(folder, part)) for part in set(content["weight_map"].values()))
    return name == "trainer_state.json" and bool(content["global_step"] != step)


def set_aside(request: dict[str, Any]) -> dict[str, Any]:
    """Rename checkpoints so that trainers ignore them. On a shared disk another node may have renamed them."""
    folder, moved = os.path.expanduser(request["folder"]), []
    for step in request["steps"]:
        name = f"checkpoint-{step}"
        try:
            os.rename(os.path.join(folder, name), os.path.join(folder, f"{request['prefix']}{name}"))
            moved.append(step)
        except FileNotFoundError:
            continue
    return {"moved": moved}


def main() -> None:
    _, action, request, _, token = sys.argv
    actions = {"list": list_checkpoints, "set_aside": set_aside}
    try:
        answer = actions[action](json.loads(request))
    except OSError as error:
        answer = {"error": f"{error.strerror}: {error.filename}"}
    print(token + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
