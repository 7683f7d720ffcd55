"""Preparation of a run's data: one node tokenises it, and then each node runs the gang's command.

    prepare_data.py FOLDER RANK MAKER COMMAND...     in a run folder; the supervisor starts it
    python - digest JSON --token T                   read from standard input; prints one line, `T{json}`

FOLDER/prepare.json has the folder of the data. The node whose rank is MAKER tokenises the data, and changes a heartbeat
file beside it. The other nodes of the same disk wait. Existing data is used unchanged: the name of its folder is a
digest of all its sources, and the folder appears whole. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

from backend.node.regular_file import full_path, read_json

MAKER = "tokenise.py"
BEAT_S = 20.0
POLL_S = 0.5
ABANDONED_S = 24 * 3600.0
"""A part whose heartbeat is older than this was abandoned."""
FAILED = "megaboard: the data could not be prepared"
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
OF_TRAINING = ("USE_MCA", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
"""Variables of the ranks for distributed training. Tokenising needs none of them."""


def prepare(folder: str, rank: str, maker: str, command: list[str]) -> NoReturn:
    """Wait for the data, then replace this process by `command`. A failed maker exits with its program's status."""
    with open(os.path.join(folder, "prepare.json")) as file:
        request = json.load(file)
    target, part = request["target"], f"{request['target']}.{request['run']}.{maker}.part"
    if os.path.isdir(target):
        pass
    elif rank == maker:
        make(folder, target, part, request["shuffle"])
    else:
        wait(target, f"{part}/beat")
    print("megaboard: the data is ready:", target, flush=True)
    os.execv(command[0], command)  # noqa: S606 - the gang's command, no shell wanted


def make(folder: str, target: str, part: str, shuffle: int | None) -> None:
    """Let LLaMA-Factory tokenise into a folder beside the target. The folder then gets the target's name."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    remove_abandoned(target)
    shutil.rmtree(part, ignore_errors=True)
    os.mkdir(part, 0o700)
    megatron = os.environ.get("USE_MCA", "").lower() in ("true", "y", "1")
    environment = {name: text for name, text in os.environ.items() if name not in OF_TRAINING}
    # The ranks use the GPUs. Each change of a progress bar is a line of the log.
    environment.update(CUDA_VISIBLE_DEVICES="", ALLOW_EXTRA_ARGS="1", TQDM_MININTERVAL="2")
    options = [json.dumps({"shuffle": shuffle, "megatron": megatron})]
    child = subprocess.Popen([sys.executable, f"{folder}/{MAKER}", folder, f"{part}/data", *options], env=environment)
    try:
        status = watch(child, f"{part}/beat")
        if status:
            print(f"{FAILED} (exit {status})", file=sys.stderr, flush=True)
            sys.exit(status if status > 0 else 128 - status)
        move(f"{part}/data", target)
    finally:
        child.terminate()
        child.wait()
        shutil.rmtree(part, ignore_errors=True)


def watch(child: subprocess.Popen[bytes], beat: str) -> int:
    """Change the heartbeat file `beat` every BEAT_S until the child ends, and return its exit status."""
    count = 0
    while True:
        with open(beat, "w") as file:
            file.write(str(count))
        try:
            return child.wait(BEAT_S)
        except subprocess.TimeoutExpired:
            count += 1


def move(data: str, target: str) -> None:
    """Give the data its name, unless another run has finished the same data first."""
    try:
        os.rename(data, target)
    except OSError:
        if not os.path.isdir(target):
            raise


def wait(target: str, beat: str) -> None:
    """Wait for the data. Each heartbeat adds a line to the log, so a lost maker makes this node stall as well."""
    seen = ""
    while not os.path.isdir(target):
        try:
            with open(beat) as file:
                now = file.read()
        except OSError:
            now = seen
        if now != seen:
            seen = now
            print(f"megaboard: waiting for the node that prepares the data ({now})", flush=True)
        time.sleep(POLL_S)


def remove_abandoned(target: str) -> None:
    """Remove parts of the same data that killed runs have left."""
    above, name = os.path.split(target)
    for entry in os.listdir(above):
        beat = os.path.join(above, entry, "beat")
        if not (entry.startswith(f"{name}.") and entry.endswith(".part") and os.path.exists(beat)):
            continue
        if time.time() - os.path.getmtime(beat) > ABANDONED_S:
            print("megaboard: removing", entry, flush=True)
            shutil.rmtree(os.path.join(above, entry), ignore_errors=True)


def digest_of(request: dict[str, Any]) -> dict[str, Any]:
    """Return a digest of the data's sources: descriptions and files of data sets, and the model without its weights.

    The digest has the size and the time of the last change of each file. Reading the files would take as long as
    tokenising.
    """
    folder = full_path(request["dataset_dir"])
    try:
        known = read_json(os.path.join(folder, "dataset_info.json"))
    except (OSError, ValueError):
        known = {}
    entries = {name: known.get(name) for name in request["datasets"]} if isinstance(known, dict) else {}
    with_file = [entry for entry in entries.values() if isinstance(entry, dict) and "file_name" in entry]
    paths = [os.path.join(folder, str(entry["file_name"])) for entry in with_file]
    files = [file for path in paths for file in files_of(path)]
    model = [path for path in files_of(full_path(request["model"])) if not path.endswith(WEIGHTS)]
    text = json.dumps([entries, [stamp(path) for path in files + model]], sort_keys=True)
    return {"digest": hashlib.sha256(text.encode()).hexdigest()}


def files_of(path: str) -> list[str]:
    """Return the file itself, or the files directly in a folder."""
    if os.path.isdir(path):
        entries = sorted(os.path.join(path, name) for name in os.listdir(path))
        return [entry for entry in entries if os.path.isfile(entry)]
    return [path] if os.path.isfile(path) else []


def stamp(path: str) -> list[Any]:
    status = os.stat(path)
    return [path, status.st_size, status.st_mtime_ns]


def main() -> None:
    if sys.argv[1] != "digest":
        prepare(os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
    _, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(digest_of(json.loads(arguments))), flush=True)


if __name__ == "__main__":
    main()
