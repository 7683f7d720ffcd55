"""Download of a model or a data set from a hub into a folder of this node.

    download.py FOLDER      FOLDER/download.json: `hub`, `kind`, `id`, `revision`, `endpoint`, `target`

It writes FOLDER/progress.json while it works, and FOLDER/result.json with the `code` of a failure. The files are
collected beside the target, each is compared with its hash, and then the folder gets its name. So a target that exists
is complete, and an interrupted download continues. hubs.py has the hubs. Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable
from typing import Any

from backend.node.own_folder import make_own

from .hubs import DownloadError, HuggingFace, ModelScope, RemoteFile

PART = ".downloading"
"""Ending of the folder beside the target."""
OTHER_FORMATS = re.compile(r"\.(bin|pth|pt|h5|msgpack|gguf|onnx|tflite|ot)$|^(original|onnx|openvino|coreml)/")
RESERVE_BYTES = 1 << 30
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
CHUNK = 1 << 22
EVERY_S = 1.0


def download(request: dict[str, Any], folder: str) -> None:
    """Download the repository. Raises DownloadError."""
    name, kind = request["id"], request["kind"]
    target = os.path.abspath(os.path.expanduser(request["target"]))
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise DownloadError("download_target_taken", path=target)
    hub = ModelScope(request) if request["hub"] == "modelscope" else HuggingFace(request)
    part = target + PART
    total = 0
    try:
        files = wanted_files(hub.files(), kind)
        total = sum(file.size for file in files)
        refuse_without_space(target, part, total)
        make_own(part)
        with Progress(folder, part, total):
            for file in files:
                hub.fetch(file, part)
                check_file(os.path.join(part, file.path), file)
        shutil.rmtree(os.path.join(part, ".cache"), ignore_errors=True)
        if os.path.isdir(target):
            os.rmdir(target)
        os.rename(part, target)
    except hub.faults as error:
        refuse_disk(error, target, part, total)
        raise DownloadError(hub.code_of(error), id=name, url=hub.page, detail=str(error)[:500]) from error


def refuse_disk(error: BaseException | None, target: str, part: str, total: int) -> None:
    """Raise DownloadError if the disk is the reason of an error or of one below it. The hub is not at fault then."""
    while error is not None:
        number = getattr(error, "errno", None)
        if number in FULL:
            raise no_space(target, part, total)
        if number in REFUSED:
            raise DownloadError("download_not_writable", path=target, detail=str(error)[:500])
        error = error.__cause__ or error.__context__


def wanted_files(files: Iterable[RemoteFile], kind: str) -> list[RemoteFile]:
    """Return the files, without the weights of a model in other formats than its safetensors."""
    all_files = list(files)
    if any(file.path.startswith("/") or ".." in file.path.split("/") for file in all_files):
        raise DownloadError("download_failed", id="", detail="a file has a path outside of the repository")
    if kind == "model" and any(file.path.endswith(".safetensors") for file in all_files):
        return [file for file in all_files if not OTHER_FORMATS.search(file.path)]
    return all_files


def refuse_without_space(target: str, part: str, total: int) -> None:
    """Raise DownloadError if the disk has no room for what is still missing."""
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    if shutil.disk_usage(folder).free < missing_bytes(part, total) + RESERVE_BYTES:
        raise no_space(target, part, total)


def missing_bytes(part: str, total: int) -> int:
    return max(0, total - size_of(part))


def no_space(target: str, part: str, total: int) -> DownloadError:
    """Return the error of a disk without room for what is still missing."""
    folder = os.path.dirname(target)
    needed, free = missing_bytes(part, total) + RESERVE_BYTES, shutil.disk_usage(folder).free
    return DownloadError("download_no_space", path=folder, needed=f"{needed / 1e9:.1f}", free=f"{free / 1e9:.1f}")


def size_of(folder: str) -> int:
    """Return the bytes of all files in a folder, also of those that are not complete."""
    paths = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path))


def check_file(path: str, file: RemoteFile) -> None:
    """Compare a file with the hash that the hub states. A wrong file is removed."""
    wanted = file.sha256 or file.git_id
    if not wanted:
        return
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(f"blob {os.path.getsize(path)}\0".encode())  # noqa: S324
    with open(path, "rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != wanted:
        os.unlink(path)
        raise DownloadError("download_wrong_hash", file=file.path)


class Progress:
    """Writes progress.json in the background while files arrive."""

    def __init__(self, folder: str, part: str, total: int) -> None:
        self.path, self.part, self.total = os.path.join(folder, "progress.json"), part, total
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def run(self) -> None:
        done = -1
        while not self.over.wait(EVERY_S):
            before, done = done, min(self.total, size_of(self.part))
            with contextlib.suppress(OSError):  # on a full disk, the download itself fails with the reason
                write_answer(self.path, {"done": done, "total": self.total})
            if done != before:  # the supervisor ends a program that writes nothing for a long time
                print(f"{done} of {self.total} bytes", flush=True)


def write_answer(path: str, answer: dict[str, Any]) -> None:
    """Write a file at once: a reader sees all of it or none."""
    with open(path + ".new", "w") as file:
        json.dump(answer, file)
    os.replace(path + ".new", path)


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    with open(os.path.join(folder, "download.json")) as file:
        request = json.load(file)
    try:
        download(request, folder)
    except DownloadError as error:
        write_answer(os.path.join(folder, "result.json"), error.answer)
        sys.exit(f"megaboard: {error}")


if __name__ == "__main__":
    main()
