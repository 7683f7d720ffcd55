"""Our programs that run on the nodes, as they are sent there: each is one file."""

import ast
from functools import cache
from pathlib import Path
from threading import Lock

SUPERVISOR = "supervisor.py"
COPIER = "copy_files.py"
SAMPLES = "count_samples.py"
LAST_RESORT = "last_resort.sh"
JOINED = {
    SUPERVISOR: (
        "supervisor",
        (
            "files",
            "processes",
            "tools",
            "locks",
            "heartbeat",
            "kernel_log",
            "gpus",
            "work",
            "endings",
            "keeper",
            "commands",
        ),
    ),
    COPIER: ("copier", ("files", "give", "place", "take", "main")),
    SAMPLES: ("samples", ("drawn", "rows", "lengths", "main")),
}
"""Program -> its package, and the modules of it in the order in which they build on one another."""
_HERE = Path(__file__).parent
_alone = Lock()
"""Python 3.11's ast.parse raises SystemError in threads that parse at once, and nodes are asked at once."""


def node_program(name: str) -> bytes:
    """The text of a program."""
    if name not in JOINED:
        return (_HERE / name).read_bytes()
    with _alone:
        return _joined(name).encode()


@cache
def _joined(name: str) -> str:
    """A package's modules one behind the other, without what they import from one another."""
    folder, modules = _HERE / JOINED[name][0], JOINED[name][1]
    head = (folder / "__init__.py").read_text(encoding="utf-8")
    parts = [_without_own_imports((folder / f"{module}.py").read_text(encoding="utf-8")) for module in modules]
    return "\n\n".join([head + "\nfrom __future__ import annotations\n", *parts])


def _without_own_imports(text: str) -> str:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.level or node.module == "__future__"):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines).strip() + "\n"
