"""The steps that make an environment. Each may run again: an interrupted installation goes on."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
import subprocess
import threading
import time
from typing import Any, Callable

from .folder import MARKER, InstallError, check_space, only_installer, read_marker, state_of, write_record
from .interpreters import find_pythons, find_uv
from .packages import count_pins, remove_unfinished

REPORT_EVERY_S = 1.0
LOG_LINES = 12
REASONS = (
    (r"hash mismatch|do not match the hashes|mismatched sha", "install_wrong_hash"),
    (r"no space left on device|disk quota exceeded", "install_disk_full"),
    (
        r"dns error|failed to lookup|name or service not known|temporary failure in name resolution"
        r"|network is unreachable|connection refused|connection reset|no route to host|timed out|tcp connect error"
        r"|newconnectionerror|network connectivity is disabled|error sending request",
        "install_no_index",
    ),
    (r"no solution found|no matching distribution|was not found in the|unsatisfiable", "install_no_package"),
)
"""What uv and pip print (lower case), and the code of the problem. The first match counts."""


class Build:
    """One installation on this node. `run` makes the environment, or raises InstallError."""

    def __init__(self, work: str, request: dict[str, Any]) -> None:
        self.work, self.request = work, request
        self.folder = os.path.join(os.path.abspath(os.path.expanduser(request["root"])), request["folder"])
        self.python = os.path.join(self.folder, "bin", "python")
        self.uv = find_uv(request["uv"] and os.path.expanduser(request["uv"]))
        self.step = "start"
        self.total = sum(count_pins(os.path.join(work, step["lock"])) for step in request["steps"])

    def run(self) -> None:
        with only_installer(self.folder):
            state = state_of(self.folder, self.request["digest"])
            if state == "ready":
                print("megaboard: the environment is already there", flush=True)
                self.add_pip()
                self.verify()
                return
            if state == "foreign":
                raise InstallError("install_foreign_folder", path=self.folder)
            check_space(self.folder, max(0, self.request["needed_bytes"] - size_of(self.folder)))
            os.makedirs(self.folder, exist_ok=True)
            self.mark("building")
            steps: list[tuple[str, Callable[[], None]]] = [("venv", self.make_venv)]
            steps += [(step["lock"], functools.partial(self.install, step)) for step in self.request["steps"]]
            steps += [("remove", self.remove_files), ("verify", self.verify)]
            stop = threading.Event()
            reporter = threading.Thread(target=self.report, args=(stop,), daemon=True)
            reporter.start()
            try:
                for name, action in steps:
                    self.step = name
                    print(f"megaboard: {name}", flush=True)
                    action()
            finally:
                stop.set()
                reporter.join()
                self.write_progress()
            self.mark("ready")

    def mark(self, state: str) -> None:
        """Write the marker file. `id` is equal on nodes that see one disk."""
        old = read_marker(self.folder) or {}
        content = {"name": self.request["name"], "digest": self.request["digest"], "state": state, "time": time.time()}
        write_record(os.path.join(self.folder, MARKER), {**content, "id": old.get("id") or os.urandom(8).hex()})

    def make_venv(self) -> None:
        remove_unfinished(self.folder)
        if not (os.access(self.python, os.X_OK) and os.path.exists(os.path.join(self.folder, "pyvenv.cfg"))):
            self.create_venv()
        lines = self.add_pip()
        if lines is not None and not self.uv:
            raise InstallError("install_no_pip", path=self.folder, lines=lines)

    def create_venv(self) -> None:
        version = self.request["python"]
        interpreter = find_pythons([version], self.uv, with_pip=not self.uv).get(version)
        if self.uv:
            base = interpreter or self.downloaded_python(version)
            self.call([self.uv, "venv", "--no-project", "--allow-existing", "--python", base, self.folder])
        elif interpreter:
            self.call([interpreter, "-m", "venv", self.folder])
        else:
            raise InstallError("install_no_python", versions=version, found="")

    def add_pip(self) -> str | None:
        """Put pip into an environment without it, as uv makes them: users run the commands of the preflight with it.

        Return the last lines of the output if this Python brings no pip.
        """
        is_there = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pip') is None)"
        if self.output_of([self.python, "-c", is_there])[0] == 0:
            return None
        status, lines = self.output_of([self.python, "-m", "ensurepip"])
        return lines if status else None

    def downloaded_python(self, version: str) -> str:
        """Return the version, which uv then downloads into the environment, where the job allows that."""
        if not self.request["python_download"]:
            raise InstallError("install_no_python", versions=version, found="")
        return version

    def install(self, step: dict[str, Any]) -> None:
        lock = os.path.join(self.work, step["lock"])
        if self.uv:
            command = [self.uv, "pip", "install", "--python", self.python]
        else:
            command = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
        command += ["--no-deps", "-r", lock]
        command += ["--require-hashes"] if step["hashes"] else []
        command += ["--no-build-isolation"] if step["from_source"] else []
        command += ["--no-index"] if self.request["offline"] else []
        command += (
            ["--find-links", os.path.expanduser(self.request["find_links"])] if self.request["find_links"] else []
        )
        if not self.request["offline"]:
            command += ["--index-url", self.request["index_url"]] if self.request["index_url"] else []
            command += ["--extra-index-url", step["index"]] if step["index"] and reaches(step["index"]) else []
        self.call(command)

    def remove_files(self) -> None:
        """Remove files that the set names. They belong to packages of this folder."""
        for pattern in self.request["remove"]:
            for path in glob.glob(os.path.join(self.folder, pattern)):
                os.unlink(path)

    def verify(self) -> None:
        """Import the engine with the environment's own interpreter."""
        self.step = "verify"
        status, lines = self.output_of([self.python, "-W", "ignore", "-c", self.request["imports"]])
        if status:
            raise InstallError("install_import_failed", imports=self.request["imports"], lines=lines)

    def call(self, command: list[str]) -> None:
        """Run a command. Raises InstallError, which names why it failed, as far as its output says."""
        status, lines = self.output_of(command)
        if status:
            low = lines.lower()
            code = next((code for pattern, code in REASONS if re.search(pattern, low)), "install_command_failed")
            raise InstallError(code, path=self.folder, lines=lines)

    def output_of(self, command: list[str]) -> tuple[int, str]:
        """Run a command with its output in the log of this node; return its exit status and last lines."""
        environment = {**os.environ, **self.request["variables"], "PYTHONUNBUFFERED": "1", "UV_NO_PROGRESS": "1"}
        environment["UV_PYTHON_DOWNLOADS"] = "automatic" if self.request["python_download"] else "never"
        environment["UV_PYTHON_INSTALL_DIR"] = os.path.join(self.folder, "python")
        # A site's mirror may have a certificate that only the node's own store knows. The name differs by uv's version.
        environment.update({"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "PIP_NO_INPUT": "1"})
        last: list[str] = []
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        ) as process:
            for raw in process.stdout or ():
                line = raw.decode(errors="replace").rstrip()
                print(line, flush=True)
                last = [*last, line][-LOG_LINES:] if line.strip() else last
        return process.returncode, "\n".join(last)

    def report(self, stop: threading.Event) -> None:
        while not stop.wait(REPORT_EVERY_S):
            self.write_progress()

    def write_progress(self) -> None:
        done = len(glob.glob(os.path.join(glob.escape(self.folder), "lib", "python*", "site-packages", "*.dist-info")))
        content = {"step": self.step, "done": min(done, self.total), "total": self.total}
        with contextlib.suppress(OSError):  # on a full disk, the step itself fails with the reason
            write_record(os.path.join(self.work, "progress.json"), content)


def reaches(index: str) -> bool:
    """Return whether this machine reaches an extra index. Without it, the packages of the main index are taken."""
    import urllib.request

    try:
        with urllib.request.urlopen(index, timeout=10):  # noqa: S310, the address is a constant of ours
            return True
    except (OSError, ValueError) as error:
        print(f"megaboard: {index} does not answer ({error}); taking the packages of the main index", flush=True)
        return False


def size_of(folder: str) -> int:
    """Return the bytes of the files below a folder."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:  # the installer has removed the file meanwhile
                continue
    return size
