"""Copy of the files that this node lacks, several at once, with a report of the progress."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Callable, TypeVar

from .destination import CopyError, Destination, check_room
from .files import CHUNK, sha256_of

STREAMS = 4
"""Files that are copied at once. One TCP stream does not fill a fast network."""
PROGRESS_S = 2.0
TRIES = 5

T = TypeVar("T")


class Taker:
    """Copy the files that this node lacks."""

    def __init__(self, folder: str, request: dict[str, Any]) -> None:
        self.folder, self.request = folder, request
        self.done = self.total = 0
        self.lock = threading.Lock()

    def take(self) -> None:
        """Copy all files, or raise CopyError. Parts of files stay for the next try."""
        offered = list(enumerate(json.loads(self.ask("/list"))))
        destinations = [Destination(root["root"]) for root in self.request["roots"]]
        for _, file in offered:
            destinations[file["root"]].check(file["path"])
        paths = {number: destinations[file["root"]].name(file["path"]) for number, file in offered}
        present = [(number, file) for number, file in offered if os.path.lexists(paths[number])]
        if differing := [path for number, file in present if (path := self.differing(destinations, number, file))]:
            raise CopyError("copy_differs", paths=differing[:5], count=len(differing))
        numbers = {number for number, _ in present}
        missing = [(number, file) for number, file in offered if number not in numbers]
        self.total = sum(file["size"] for _, file in missing)
        check_room(destinations, [file for _, file in missing])
        for number in {file["root"] for _, file in missing}:
            destinations[number].make_parts()
        done = threading.Event()
        reporter = threading.Thread(target=self.report_progress, args=(done,), daemon=True)
        reporter.start()
        try:
            self.take_files(destinations, missing)
        finally:
            done.set()
            reporter.join()
        for number, destination in enumerate(destinations):
            destination.settle([file["path"] for _, file in missing if file["root"] == number])

    def differing(self, destinations: list[Destination], number: int, file: dict[str, Any]) -> str:
        """Return the path of a file that differs from node 0's, or an empty text."""
        path = destinations[file["root"]].name(file["path"])
        same_size = os.path.isfile(path) and os.path.getsize(path) == file["size"]
        return "" if same_size and sha256_of(path) == self.ask(f"/sha256/{number}").decode() else path

    def take_files(self, destinations: list[Destination], missing: list[tuple[int, dict[str, Any]]]) -> None:
        with ThreadPoolExecutor(STREAMS) as pool:
            tasks = [pool.submit(self.take_file, destinations[file["root"]], number, file) for number, file in missing]
            try:
                for task in tasks:
                    task.result()
            finally:  # a failure makes the remaining tasks useless
                for task in tasks:
                    task.cancel()

    def take_file(self, destination: Destination, number: int, file: dict[str, Any]) -> None:
        part = destination.part_of(file["path"])
        os.makedirs(os.path.dirname(part), exist_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "ab") as out:
            retry(lambda: self.stream(out, number, file["size"]))
        if sha256_of(part) != self.ask(f"/sha256/{number}").decode():
            os.unlink(part)
            raise CopyError("copy_corrupt", path=destination.name(file["path"]))

    def stream(self, out: IO[bytes], number: int, size: int) -> None:
        """Receive the rest of a file, behind the part of the last try."""
        if out.tell() > size:
            out.truncate(0)
            out.seek(0, os.SEEK_END)
        start = out.tell()
        self.count(start)
        try:
            with self.response(f"/file/{number}", {"Range": f"bytes={start}-"}) as answer:
                self.receive(answer, out)
            if out.tell() != size:
                raise http.client.IncompleteRead(b"", size - out.tell())
        except BaseException:
            self.count(-out.tell())
            raise

    def receive(self, answer: IO[bytes], out: IO[bytes]) -> None:
        for block in iter(lambda: answer.read(CHUNK), b""):
            out.write(block)
            self.count(len(block))

    def ask(self, path: str) -> bytes:
        def read() -> bytes:
            with self.response(path, {}) as answer:
                return answer.read()

        return retry(read)

    def response(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        # urllib would use the proxy of the environment.
        connection = http.client.HTTPConnection(self.request["address"], self.request["port"], timeout=600)
        authorization = {"Authorization": f"Bearer {self.request['token']}", "Connection": "close"}
        connection.request("GET", path, headers={**headers, **authorization})
        answer = connection.getresponse()
        if answer.status >= 300:
            raise CopyError("copy_refused", status=answer.status)
        return answer

    def count(self, size: int) -> None:
        with self.lock:
            self.done += size

    def report_progress(self, done: threading.Event) -> None:
        reported = -1
        while True:
            is_last = done.wait(PROGRESS_S)
            if self.done != reported:
                reported = self.done
                print(f"megaboard: took {reported} of {self.total} bytes", flush=True)
                write_json(f"{self.folder}/progress.json", {"done": reported, "total": self.total})
            if is_last:
                return


def retry(call: Callable[[], T]) -> T:
    """Return the result of `call`. A failed call is tried again, because node 0 may still be starting."""
    for _ in range(TRIES - 1):
        try:
            return call()
        except (OSError, http.client.HTTPException):
            time.sleep(1)
    return call()


def write_json(path: str, content: dict[str, Any]) -> None:
    with open(f"{path}.part", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.part", path)
