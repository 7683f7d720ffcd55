"""Runs on nodes, by the supervisor: node 0 gives files, others take those they lack. Standard library, Python >= 3.8.

    copy_files.py FOLDER give|take

FOLDER/copy.json holds the giver's `address` and `port`, a `token` that every request must show, and `roots`: folders,
each with the `names` in it that are meant, or null for all. A taker never changes a file that it has: what differs is
told and nothing is copied. What it takes appears whole, after its hash was compared; what was taken of a file before is
kept beside its place, so that the next try goes on from there. FOLDER/progress.json says how far a taker is,
FOLDER/result.json why it failed.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import http.client
import http.server
import json
import os
import shutil
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Iterator, NoReturn  # noqa: UP035 - Python 3.8

CHUNK = 1 << 20
STREAMS = 4
"""Files that a taker takes at once: one TCP stream does not fill a fast network."""
SPARE = 0.05
"""Part of a taker's disk that stays free, at most SPARE_BYTES."""
SPARE_BYTES = 1 << 30
TELL_S = 2.0
TRIES = 5
PART = ".megaboard-part"


class CopyError(Exception):
    """Why a taker gives up; `code` and values for the user."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(f"{code} {values}")
        self.answer = {"code": code, **values}


def files_of(root: str, names: list[str] | None) -> Iterator[tuple[str, int]]:
    """(path below root, bytes) of every file that is meant, what links lead to included."""
    seen: set[str] = set()
    for start in [root] if names is None else [os.path.join(root, name) for name in names]:
        if os.path.isfile(start):
            yield os.path.relpath(start, root), os.path.getsize(start)
        for folder, folders, files in os.walk(start, followlinks=True):
            real = os.path.realpath(folder)
            folders[:] = sorted(one for one in folders if one != PART)
            if real in seen:  # a link that leads back up
                folders[:] = []
                continue
            seen.add(real)
            for name in sorted(files):
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    yield os.path.relpath(path, root), os.path.getsize(path)


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            digest.update(block)
    return digest.hexdigest()


class Offer:
    """What the giver gives: the files by number, their hashes when they are asked for."""

    def __init__(self, roots: list[dict[str, Any]]) -> None:
        self.files: list[dict[str, Any]] = [
            {"root": number, "path": path, "size": size}
            for number, root in enumerate(roots)
            for path, size in files_of(root["root"], root["names"])
        ]
        self.roots = [root["root"] for root in roots]
        self.hashes: dict[int, str] = {}
        self.locks = [threading.Lock() for _ in self.files]
        self.sent = 0

    def path(self, number: int) -> str:
        file = self.files[number]
        return os.path.join(str(self.roots[file["root"]]), str(file["path"]))

    def sha256(self, number: int) -> str:
        """Read once, however many takers ask."""
        with self.locks[number]:
            if number not in self.hashes:
                self.hashes[number] = sha256_of(self.path(number))
            return self.hashes[number]


def make_handler(offer: Offer, token: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """/list, /sha256/NUMBER, and /file/NUMBER with a Range; nothing that is not offered has a number."""

        protocol_version = "HTTP/1.1"
        timeout = 600

        def do_GET(self) -> None:
            if not hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {token}"):
                self.send_error(403)
                return
            _, what, *rest = self.path.split("/")
            if what == "list":
                self.answer(json.dumps(offer.files).encode())
            elif not (len(rest) == 1 and rest[0].isdigit() and int(rest[0]) < len(offer.files)):
                self.send_error(404)
            elif what == "sha256":
                self.answer(offer.sha256(int(rest[0])).encode())
            else:
                self.give(int(rest[0]))

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def give(self, number: int) -> None:
            start = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
            with open(offer.path(number), "rb") as file:
                file.seek(start)
                self.send_response(206)
                self.send_header("Content-Length", str(offer.files[number]["size"] - start))
                self.end_headers()
                for block in iter(lambda: file.read(CHUNK), b""):
                    self.wfile.write(block)
                    offer.sent += len(block)

        def log_message(self, format: str, *args: Any) -> None:
            """A line for every request would be a line for every file."""

    return Handler


def serve(wanted: dict[str, Any]) -> tuple[http.server.ThreadingHTTPServer, Offer]:
    """A giver that serves in a thread of its own."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in wanted["address"] else socket.AF_INET

    offer = Offer(wanted["roots"])
    handler = make_handler(offer, wanted["token"])
    try:
        server = Server((wanted["address"], wanted["port"]), handler)
    except OSError as error:
        # The others may dial an address that is translated on its way here.
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        server = Server(("", wanted["port"]), handler)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    return server, offer


def give(wanted: dict[str, Any]) -> NoReturn:
    """Until the supervisor ends it: on request, or because nobody takes anything any more."""
    _, offer = serve(wanted)
    print(f"megaboard: giving {len(offer.files)} files", flush=True)
    told = 0
    while True:
        time.sleep(TELL_S)
        if offer.sent != told:
            told = offer.sent
            print(f"megaboard: gave {told} bytes", flush=True)


class Taker:
    """Takes what this node lacks."""

    def __init__(self, folder: str, wanted: dict[str, Any]) -> None:
        self.folder, self.wanted = folder, wanted
        self.done = self.total = 0
        self.lock = threading.Lock()

    def take(self) -> None:
        """Everything, or a CopyError; what was taken of files stays for the next try."""
        offered = list(enumerate(json.loads(self.ask("/list"))))
        places = [Place(root["root"]) for root in self.wanted["roots"]]
        for _, file in offered:
            places[file["root"]].check(file["path"])
        found = [(number, file) for number, file in offered if os.path.lexists(places[file["root"]].name(file["path"]))]
        if differing := [path for number, file in found if (path := self.differing(places, number, file))]:
            raise CopyError("copy_differs", paths=differing[:5], count=len(differing))
        has = {number for number, _ in found}
        lacking = [(number, file) for number, file in offered if number not in has]
        self.total = sum(file["size"] for _, file in lacking)
        make_room(places, [file for _, file in lacking])
        telling = threading.Event()
        teller = threading.Thread(target=self.tell_on, args=(telling,), daemon=True)
        teller.start()
        try:
            self.take_files(places, lacking)
        finally:
            telling.set()
            teller.join()
        for number, place in enumerate(places):
            place.settle([file["path"] for _, file in lacking if file["root"] == number])

    def differing(self, places: list[Place], number: int, file: dict[str, Any]) -> str:
        """Path of a file that is not what the giver has; empty where it is."""
        path = places[file["root"]].name(file["path"])
        same_size = os.path.isfile(path) and os.path.getsize(path) == file["size"]
        return "" if same_size and sha256_of(path) == self.ask(f"/sha256/{number}").decode() else path

    def take_files(self, places: list[Place], lacking: list[tuple[int, dict[str, Any]]]) -> None:
        with ThreadPoolExecutor(STREAMS) as pool:
            tasks = [pool.submit(self.take_file, places[file["root"]], number, file) for number, file in lacking]
            try:
                for task in tasks:
                    task.result()
            finally:  # after the first failure the rest need not be tried
                for task in tasks:
                    task.cancel()

    def take_file(self, place: Place, number: int, file: dict[str, Any]) -> None:
        part = place.part_of(file["path"])
        os.makedirs(os.path.dirname(part), exist_ok=True)
        for last in [False] * (TRIES - 1) + [True]:
            try:
                self.stream(part, number, file["size"])
                break
            except (OSError, http.client.HTTPException):
                if last:
                    raise
                time.sleep(1)  # the giver may only just be starting
        if sha256_of(part) != self.ask(f"/sha256/{number}").decode():
            os.unlink(part)
            raise CopyError("copy_corrupt", path=place.name(file["path"]))

    def stream(self, part: str, number: int, size: int) -> None:
        """From where the last try ended."""
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
        for last in [False] * (TRIES - 1) + [True]:
            try:
                with self.response(path, {}) as answer:
                    return bytes(answer.read())
            except OSError:
                if last:
                    raise
                time.sleep(1)
        raise AssertionError("the last try returns or raises")

    def response(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        # Not urllib, which would go through the proxy that the environment may name.
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


class Place:
    """One folder of a taker: where its files come to be, and where they wait until all are there."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.is_new = not os.path.lexists(root)
        # On the same disk as the folder itself, which may be a mount of its own.
        self.parts = f"{root}{PART}" if self.is_new else os.path.join(root, PART)
        self.above = root
        while not os.path.isdir(self.above):
            self.above = os.path.dirname(self.above)
        self.disk = os.stat(self.above).st_dev

    def check(self, path: str) -> None:
        """A giver has no say over what lies outside."""
        if os.path.isabs(path) or ".." in path.split(os.sep):
            raise CopyError("copy_refused", status=path)

    def name(self, path: str) -> str:
        return os.path.join(self.root, path)

    def part_of(self, path: str) -> str:
        return os.path.join(self.parts, path)

    def settle(self, paths: list[str]) -> None:
        """Give the files their names: the whole folder at once where there was none, else each where nothing is."""
        if self.is_new and paths:
            self.forget_others({self.part_of(path) for path in paths})
            os.rename(self.parts, self.root)
            return
        for path in paths:
            target = self.name(path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.link(self.part_of(path), target)
        shutil.rmtree(self.parts, ignore_errors=True)

    def forget_others(self, parts: set[str]) -> None:
        """Remove what an earlier try took of files that are no longer given: nobody has compared it."""
        for folder, _, names in os.walk(self.parts):
            for name in names:
                if os.path.join(folder, name) not in parts:
                    os.unlink(os.path.join(folder, name))


def make_room(places: list[Place], lacking: list[dict[str, Any]]) -> None:
    """CopyError unless the disks hold what is to come."""
    needed: dict[int, int] = {}
    for file in lacking:
        place = places[file["root"]]
        part = place.part_of(file["path"])
        there = os.path.getsize(part) if os.path.exists(part) else 0
        needed[place.disk] = needed.get(place.disk, 0) + max(0, file["size"] - there)
    for place in places:
        total, _, free = shutil.disk_usage(place.above)
        if place.disk in needed and needed[place.disk] + min(SPARE * total, SPARE_BYTES) > free:
            values = {"needed_gib": round(needed[place.disk] / 2**30, 1), "free_gib": round(free / 2**30, 1)}
            raise CopyError("copy_no_room", path=place.root, **values)


def write_json(path: str, content: dict[str, Any]) -> None:
    with open(f"{path}.part", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.part", path)


def main() -> None:
    folder, role = os.path.abspath(sys.argv[1]), sys.argv[2]
    with open(f"{folder}/copy.json") as file:
        wanted = json.load(file)
    # A token that nobody needs any more need not lie on a disk.
    os.unlink(f"{folder}/copy.json")
    for root in wanted["roots"]:
        root["root"] = os.path.abspath(os.path.expanduser(root["root"]))
    if role == "give":
        give(wanted)
    try:
        Taker(folder, wanted).take()
    except CopyError as error:
        write_json(f"{folder}/result.json", error.answer)
        sys.exit(f"megaboard: {error}")


if __name__ == "__main__":
    main()
