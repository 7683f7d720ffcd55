"""Runs on a node: has the run's data tokenised once, then becomes the gang's command. Standard library, Python >= 3.8.

    prepare_data.py FOLDER RANK MAKER COMMAND...     in a run folder, by the supervisor
    python - look JSON --token T                     read from standard input; prints one line, `T{json}`

FOLDER/prepare.json says where the data goes. The node whose rank is MAKER makes it, and shows that it is alive in a
file beside the data; those that see the same disk wait. Data that is there already is taken as it is: its folder is
named after all that it is made from, and appears whole.
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

from backend.node.regular_file import read_json

MAKER = "tokenise.py"
BEAT_S = 20.0
POLL_S = 0.5
ABANDONED_S = 24 * 3600.0
"""A part that has not shown life for so long belongs to nobody."""
FAILED = "megaboard: the data could not be prepared"
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
OF_TRAINING = ("USE_MCA", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
"""Variables of the ranks that would start the machinery of a training, which tokenising needs none of."""


def prepare(folder: str, rank: str, maker: str, command: list[str]) -> NoReturn:
    """Leave by becoming `command` once the data is there, or with the maker's exit status."""
    with open(os.path.join(folder, "prepare.json")) as file:
        wanted = json.load(file)
    target, part = wanted["target"], f"{wanted['target']}.{wanted['run']}.{maker}.part"
    if os.path.isdir(target):
        pass
    elif rank == maker:
        make(folder, target, part, wanted["shuffle"])
    else:
        wait(target, f"{part}/beat")
    print("megaboard: the data is ready:", target, flush=True)
    os.execv(command[0], command)  # noqa: S606 - the gang's command, no shell wanted


def make(folder: str, target: str, part: str, shuffle: int | None) -> None:
    """Let LLaMA-Factory tokenise into a folder beside the target, which then takes its name."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    forget_abandoned(target)
    shutil.rmtree(part, ignore_errors=True)
    os.mkdir(part, 0o700)
    megatron = os.environ.get("USE_MCA", "").lower() in ("true", "y", "1")
    environment = {name: text for name, text in os.environ.items() if name not in OF_TRAINING}
    # The GPUs are the ranks'. A bar is a line of the log at each of its changes.
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
    """Its exit status; until then `beat` changes every BEAT_S."""
    count = 0
    while True:
        with open(beat, "w") as file:
            file.write(str(count))
        try:
            return child.wait(BEAT_S)
        except subprocess.TimeoutExpired:
            count += 1


def move(data: str, target: str) -> None:
    """Give the data its name, unless another run was faster with the same."""
    try:
        os.rename(data, target)
    except OSError:
        if not os.path.isdir(target):
            raise


def wait(target: str, beat: str) -> None:
    """Until the data is there. A line a beat: once the maker is gone this node falls silent too, and is ended."""
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


def forget_abandoned(target: str) -> None:
    """Remove what runs that were killed have left of the same data."""
    above, name = os.path.split(target)
    for entry in os.listdir(above):
        beat = os.path.join(above, entry, "beat")
        if not (entry.startswith(f"{name}.") and entry.endswith(".part") and os.path.exists(beat)):
            continue
        if time.time() - os.path.getmtime(beat) > ABANDONED_S:
            print("megaboard: removing", entry, flush=True)
            shutil.rmtree(os.path.join(above, entry), ignore_errors=True)


def look(wanted: dict[str, Any]) -> dict[str, Any]:
    """A digest of what the data is made from: the data sets' descriptions and files, and all of the model but weights.

    Files count by size and time of change: reading them would take as long as tokenising.
    """
    folder = full(wanted["dataset_dir"])
    try:
        known = read_json(os.path.join(folder, "dataset_info.json"))
    except (OSError, ValueError):
        known = {}
    entries = {name: known.get(name) for name in wanted["datasets"]} if isinstance(known, dict) else {}
    described = [entry for entry in entries.values() if isinstance(entry, dict) and "file_name" in entry]
    named = [os.path.join(folder, str(entry["file_name"])) for entry in described]
    files = [one for path in named for one in files_of(path)]
    model = [path for path in files_of(full(wanted["model"])) if not path.endswith(WEIGHTS)]
    text = json.dumps([entries, [stamp(path) for path in files + model]], sort_keys=True)
    return {"digest": hashlib.sha256(text.encode()).hexdigest()}


def files_of(path: str) -> list[str]:
    """The file itself, or those directly in a folder."""
    if os.path.isdir(path):
        inside = sorted(os.path.join(path, name) for name in os.listdir(path))
        return [one for one in inside if os.path.isfile(one)]
    return [path] if os.path.isfile(path) else []


def stamp(path: str) -> list[Any]:
    status = os.stat(path)
    return [path, status.st_size, status.st_mtime_ns]


def full(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def main() -> None:
    if sys.argv[1] != "look":
        prepare(os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
    _, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(look(json.loads(arguments))), flush=True)


if __name__ == "__main__":
    main()
