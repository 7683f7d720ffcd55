"""Copies the files that this node lacks, several at once, and reports progress."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Callable, TypeVar

from .destination import CopyError, Destination, make_room
from .files import CHUNK, sha256_of

STREAMS = 4
"""Files that are copied at once. One TCP stream does not fill a fast network."""
TELL_S = 2.0
TRIES = 5

T = TypeVar("T")


class Taker:
    """Copies the files that this node lacks."""

    def __init__(self, folder: str, wanted: dict[str, Any]) -> None:
        self.folder, self.wanted = folder, wanted
        self.done = self.total = 0
        self.lock = threading.Lock()

    def take(self) -> None:
        """Copy all files, or raise CopyError. Parts of files stay for the next try."""
        offered = list(enumerate(json.loads(self.ask("/list"))))
        destinations = [Destination(root["root"]) for root in self.wanted["roots"]]
        for _, file in offered:
            destinations[file["root"]].check(file["path"])
        paths = {number: destinations[file["root"]].name(file["path"]) for number, file in offered}
        present = [(number, file) for number, file in offered if os.path.lexists(paths[number])]
        if differing := [path for number, file in present if (path := self.differing(destinations, number, file))]:
            raise CopyError("copy_differs", paths=differing[:5], count=len(differing))
        numbers = {number for number, _ in present}
        lacking = [(number, file) for number, file in offered if number not in numbers]
        self.total = sum(file["size"] for _, file in lacking)
        make_room(destinations, [file for _, file in lacking])
        telling = threading.Event()
        teller = threading.Thread(target=self.tell_on, args=(telling,), daemon=True)
        teller.start()
        try:
            self.take_files(destinations, lacking)
        finally:
            telling.set()
            teller.join()
        for number, destination in enumerate(destinations):
            destination.settle([file["path"] for _, file in lacking if file["root"] == number])

    def differing(self, destinations: list[Destination], number: int, file: dict[str, Any]) -> str:
        """Return the path of a file that differs from node 0's, or an empty text."""
        path = destinations[file["root"]].name(file["path"])
        same_size = os.path.isfile(path) and os.path.getsize(path) == file["size"]
        return "" if same_size and sha256_of(path) == self.ask(f"/sha256/{number}").decode() else path

    def take_files(self, destinations: list[Destination], lacking: list[tuple[int, dict[str, Any]]]) -> None:
        with ThreadPoolExecutor(STREAMS) as pool:
            tasks = [pool.submit(self.take_file, destinations[file["root"]], number, file) for number, file in lacking]
            try:
                for task in tasks:
                    task.result()
            finally:  # after the first failure the rest is not needed
                for task in tasks:
                    task.cancel()

    def take_file(self, destination: Destination, number: int, file: dict[str, Any]) -> None:
        part = destination.part_of(file["path"])
        os.makedirs(os.path.dirname(part), exist_ok=True)
        persist(lambda: self.stream(part, number, file["size"]))
        if sha256_of(part) != self.ask(f"/sha256/{number}").decode():
            os.unlink(part)
            raise CopyError("copy_corrupt", path=destination.name(file["path"]))

    def stream(self, part: str, number: int, size: int) -> None:
        """Receive the rest of a file, from the end of the last try."""
        with open(part, "ab") as out:
            if out.tell() > size:
                out.truncate(0)
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

        return persist(read)

    def response(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        # urllib would use the proxy of the environment.
        connection = http.client.HTTPConnection(self.wanted["address"], self.wanted["port"], timeout=600)
        authorization = {"Authorization": f"Bearer {self.wanted['token']}", "Connection": "close"}
        connection.request("GET", path, headers={**headers, **authorization})
        answer = connection.getresponse()
        if answer.status >= 300:
            raise CopyError("copy_refused", status=answer.status)
        return answer

    def count(self, size: int) -> None:
        with self.lock:
            self.done += size

    def tell_on(self, over: threading.Event) -> None:
        told = -1
        while True:
            is_last = over.wait(TELL_S)
            if self.done != told:
                told = self.done
                print(f"megaboard: took {told} of {self.total} bytes", flush=True)
                write_json(f"{self.folder}/progress.json", {"done": told, "total": self.total})
            if is_last:
                return


def persist(act: Callable[[], T]) -> T:
    """Return the result of `act`. Try again where it fails: node 0 may still be starting."""
    for _ in range(TRIES - 1):
        try:
            return act()
        except (OSError, http.client.HTTPException):
            time.sleep(1)
    return act()


def write_json(path: str, content: dict[str, Any]) -> None:
    with open(f"{path}.part", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.part", path)
