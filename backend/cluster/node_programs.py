"""Our programs that run on the nodes, as they are sent there: each is one file."""

import ast
from functools import cache
from pathlib import Path
from threading import Lock

from backend import node

SUPERVISOR = "supervisor.py"
COPIER = "copy_files.py"
SAMPLES = "count_samples.py"
FALLBACK_STOP = "fallback_stop.sh"
SOURCES = {
    SUPERVISOR: "supervisor",
    COPIER: "copier",
    SAMPLES: "samples",
    FALLBACK_STOP: "fallback_stop.sh",
    "entry.py": "training/entry.py",
    "rank_facts.py": "training/rank_facts.py",
    "swift_entry.py": "training/swift_entry.py",
    "prepare_data.py": "training/prepare_data.py",
    "tokenise.py": "training/tokenise.py",
    "export_model.py": "training/export_model.py",
    "benchmark.py": "benchmark.py",
    "software.py": "checks/software.py",
    "hardware.py": "checks/hardware.py",
    "fingerprints.py": "checks/fingerprints.py",
    "dial.py": "checks/dial.py",
    "engine_args.py": "checks/engine_args.py",
    "checkpoint_files.py": "checks/checkpoint_files.py",
}
"""Program, by its file name on a node -> its file or package in backend/node."""
MODULES = {
    SUPERVISOR: (
        "files",
        "processes",
        "tools",
        "locks",
        "heartbeat",
        "kernel_log",
        "gpus",
        "activity",
        "shutdown",
        "masking",
        "keeper",
        "commands",
    ),
    COPIER: ("files", "give", "place", "take", "main"),
    SAMPLES: ("drawn", "rows", "lengths", "main"),
}
"""Program that is a package -> its modules, in the order in which they build on one another."""
READERS = ("fingerprints.py", "software.py", "prepare_data.py", "checkpoint_files.py", SAMPLES)
"""Programs that read files which a user named: regular_file.py goes in front of them."""
_NODE = Path(node.__file__).parent
_alone = Lock()
"""Python 3.11's ast.parse raises SystemError in threads that parse at once, and nodes are asked at once."""


def node_program(name: str) -> bytes:
    """The text of a program."""
    if name not in MODULES and name not in READERS:
        return (_NODE / SOURCES[name]).read_bytes()
    with _alone:
        return _joined(name).encode()


@cache
def _joined(name: str) -> str:
    """The modules of a program joined into one text, without the imports between them."""
    source = _NODE / SOURCES[name]
    head, files = "", [source]
    if name in MODULES:
        head = (source / "__init__.py").read_text(encoding="utf-8")
        files = [source / f"{module}.py" for module in MODULES[name]]
    if name in READERS:
        files.insert(0, _NODE / "regular_file.py")
    parts = [_without_own_imports(file.read_text(encoding="utf-8")) for file in files]
    return "\n\n".join([head + "\nfrom __future__ import annotations\n", *parts])


def _without_own_imports(text: str) -> str:
    lines = text.splitlines()
    for line in ast.parse(text).body:
        if isinstance(line, ast.ImportFrom) and (line.level or _root(line) in ("__future__", "backend")):
            lines[line.lineno - 1 : line.end_lineno] = [""] * ((line.end_lineno or line.lineno) - line.lineno + 1)
    return "\n".join(lines).strip() + "\n"


def _root(line: ast.ImportFrom) -> str:
    return (line.module or "").partition(".")[0]
