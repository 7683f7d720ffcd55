"""Build the Python environment of a CPU node: torch, LLaMA-Factory and DeepSpeed, at locked versions.

    python -m app.demo.node_environment FOLDER

Standard library only: `make` runs this module before the packages of the page are installed.
The marker file READY is written last. An interrupted build continues at the next call.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.text import LANGUAGES, t
from backend.job.data_folder import data_folder

READY = ".ready"
LOG = "build.log"
TORCH, PACKAGES, FROM_SOURCE = LOCKS = ("torch.txt", "node.txt", "node-no-deps.txt")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
NEEDED_GB = 5
"""Disk space of the finished environment (2 GB) and of the files that pip downloads and unpacks."""

_PYTHONS = ("python3.11", "python3.12", "python3.13", "python3")
_SUITABLE = "import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))"
_IMPORT_TORCH = "import torch"
_IMPORTS = "import llamafactory.train.tuner, megatron.core, deepspeed"
_PACKAGES_A_LINE = 20
_LARGE_FILE = re.compile(r"Downloading \S+ \((\d{3,})(?:\.\d+)? MB\)")
_LOG_LINES = 5


class NodeEnvironmentError(Exception):
    """The environment cannot be built. `code` ends a catalogue key; `values` fill its placeholders."""

    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code, values)
        self.code, self.values = code, values

    def text(self, lang: str) -> str:
        """Return the reason and the fix in one sentence each."""
        return t(lang, f"cli.error.environment.{self.code}", **self.values)


def locks_folder() -> Path:
    """Return the folder of the lock files: the one inside the wheel, or the checkout's."""
    return data_folder("requirements")


def cache_folder(python: str) -> Path:
    """Return the folder in the user's cache that belongs to the lock files and to the version of `python`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    show_version = [python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    version = subprocess.run(show_version, capture_output=True, text=True, check=True).stdout.strip()
    locks = b"".join((locks_folder() / name).read_bytes() for name in LOCKS)
    digest = hashlib.sha256(locks + platform.machine().encode()).hexdigest()
    return cache / "megaboard" / f"node-{version}-{digest[:12]}"


def base_python() -> str:
    """Return a Python that can build the environment: $PYTHON, else this one, else one on PATH.

    Raises NodeEnvironmentError.
    """
    given = os.environ.get("PYTHON")
    for name in [given] if given else [sys.executable, *_PYTHONS]:
        path = shutil.which(name)
        if path and not subprocess.run([path, "-c", _SUITABLE], capture_output=True, check=False).returncode:
            return path
    raise NodeEnvironmentError("python", given=given or "PYTHON")


def is_ready(folder: Path) -> bool:
    """Return whether the build of `folder` was finished and its interpreter still exists."""
    return (folder / READY).exists() and (folder / "bin" / "python").exists()


def build(folder: Path, python: str, lang: str, show: Callable[[str], None]) -> None:
    """Build the environment with the interpreter `python`; `show` gets lines about the progress.

    Raises NodeEnvironmentError.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with _only_builder(folder, lambda: show(t(lang, "cli.demo.environment.wait", folder=folder))) as lock:
        if is_ready(folder):
            return
        free_gb = shutil.disk_usage(folder).free / 1e9
        if free_gb < NEEDED_GB:
            raise NodeEnvironmentError("space", folder=folder, free=f"{free_gb:.1f}", needed=NEEDED_GB)
        show(t(lang, "cli.demo.environment.start", folder=folder))
        started = time.monotonic()
        _Build(folder, python, lang, show, lock).run()
        show(t(lang, "cli.demo.environment.done", seconds=round(time.monotonic() - started)))


@contextmanager
def _only_builder(folder: Path, tell_wait: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of `folder` and return its descriptor.

    The lock is on the folder itself. Processes that inherit the descriptor hold the lock too, so nobody builds
    beside a pip whose parent was killed.
    """
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


class _Build:
    """The steps of a build. Each may run again: pip skips what is installed."""

    def __init__(self, folder: Path, python: str, lang: str, show: Callable[[str], None], lock: int) -> None:
        self.folder, self.base, self.lang, self.show, self.lock = folder, python, lang, show, lock
        self.python = str(folder / "bin" / "python")

    def run(self) -> None:
        (self.folder / READY).unlink(missing_ok=True)
        (self.folder / LOG).unlink(missing_ok=True)
        # The C++ parts that DeepSpeed compiled at run time belong to earlier versions.
        shutil.rmtree(self.folder / "torch_extensions", ignore_errors=True)
        steps = {
            "venv": self._make_venv,
            "torch": self._install_torch,
            "packages": self._install_packages,
            "source": self._install_from_source,
            "imports": self._try_imports,
        }
        for number, (name, step) in enumerate(steps.items(), 1):
            title = t(self.lang, f"cli.demo.environment.step.{name}")
            self.show(f"[{number}/{len(steps)}] {title}")
            step()
        (self.folder / READY).touch()

    def _make_venv(self) -> None:
        remove_unfinished(self.folder)
        if (self.folder / "bin" / "pip").exists() and Path(self.python).exists():
            return
        # An interpreter that was removed leaves a dead link, which only --clear replaces.
        clear = [] if Path(self.python).exists() else ["--clear"]
        self._run([self.base, "-m", "venv", *clear, str(self.folder)])

    def _install_torch(self) -> None:
        # 2.13.0+cpu sorts above 2.13.0, so pip takes a CPU wheel wherever one is offered.
        self._install(TORCH, "--retries", "1", "--timeout", "20", "--extra-index-url", _torch_index())

    def _install_packages(self) -> None:
        self._install(PACKAGES, "--require-hashes")
        self._try_torch()

    def _try_torch(self) -> None:
        """Import torch. Remove a build that does not start."""
        try:
            self._run([self.python, "-c", _IMPORT_TORCH])
        except NodeEnvironmentError as error:
            # PyPI's build for x86-64 needs CUDA's libraries. pip would take it as already installed in the next try.
            self._run([self.python, "-m", "pip", "uninstall", "--yes", "torch"])
            raise NodeEnvironmentError("torch", index=_torch_index(), **error.values) from error

    def _install_from_source(self) -> None:
        # DeepSpeed's setup.py imports torch, so it is built in this environment.
        self._install(FROM_SOURCE, "--require-hashes", "--use-pep517", "--no-build-isolation")
        # The compiled files of torchaudio need CUDA.
        for library in self.folder.glob("lib/python*/site-packages/torchaudio/lib/*.so"):
            library.unlink()

    def _try_imports(self) -> None:
        # The first import compiles only the modules that training uses, a third of all. Hence --no-compile.
        self._run([self.python, "-W", "ignore", "-c", _IMPORTS])

    def _install(self, lock_file: str, *options: str) -> None:
        pip = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-compile"]
        self._run([*pip, *options, "-r", str(locks_folder() / lock_file)])

    def _run(self, command: list[str]) -> None:
        """Run a command, keep its output in the log, and show its progress. Raises NodeEnvironmentError."""
        # DS_BUILD_OPS: DeepSpeed compiles its C++ parts when they are first used.
        # DS_ACCELERATOR: without it, DeepSpeed warns that it found no GPU.
        environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu", "PYTHONUNBUFFERED": "1"}
        with (
            (self.folder / LOG).open("a", encoding="utf-8") as log,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                pass_fds=[self.lock],
            ) as process,
        ):
            progress = _Progress(self.lang, self.show)
            for line in process.stdout or ():
                log.write(line)
                progress.read(line)
        if process.returncode:
            path = self.folder / LOG
            lines = path.read_text(encoding="utf-8").splitlines()[-_LOG_LINES:]
            raise NodeEnvironmentError("command", log=path, lines="\n    ".join(lines))


class _Progress:
    """Turns pip's output into a few lines."""

    def __init__(self, lang: str, show: Callable[[str], None]) -> None:
        self.lang, self.show = lang, show
        self.collected = 0

    def read(self, line: str) -> None:
        """Show large downloads, a count after every 20 packages, and that pip starts to unpack."""
        size = _LARGE_FILE.search(line)
        if size:
            self._show("downloading", megabytes=size[1])
        elif line.startswith("Collecting "):
            self.collected += 1
            if self.collected % _PACKAGES_A_LINE == 0:
                self._show("collected", count=self.collected)
        elif line.startswith("Installing collected packages"):
            self._show("unpacking", count=line.count(",") + 1)

    def _show(self, code: str, **values: object) -> None:
        self.show("      " + t(self.lang, f"cli.demo.environment.{code}", **values))


def _torch_index() -> str:
    return os.environ.get("TORCH_INDEX") or TORCH_INDEX


def remove_unfinished(folder: Path) -> None:
    """Remove the metadata of packages that pip did not finish: without it, pip installs them again.

    pip writes RECORD last. It takes a package without RECORD for installed.
    """
    for metadata in folder.glob("lib/python*/site-packages/*.dist-info"):
        if not (metadata / "RECORD").exists():
            shutil.rmtree(metadata)


def main() -> int:
    """Build the environment in the folder of the first argument, for `make`."""
    try:
        build(Path(sys.argv[1]), base_python(), LANGUAGES[0], lambda line: print(line, flush=True))
    except NodeEnvironmentError as error:
        print(error.text(LANGUAGES[0]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
