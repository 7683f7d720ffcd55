"""Our programs that run on the nodes, as they are sent there: each is one file."""

import ast
from functools import cache
from pathlib import Path
from threading import Lock

SUPERVISOR = "supervisor.py"
_MODULES = (
    "files", "processes", "tools", "locks", "heartbeat", "kernel_log", "gpus", "endings", "keeper", "commands",
)  # fmt: skip
"""Of supervisor/, in the order in which they build on one another."""
_HERE = Path(__file__).parent
_alone = Lock()
"""Python 3.11's ast.parse raises SystemError in threads that parse at once, and nodes are asked at once."""


def node_program(name: str) -> bytes:
    """The text of a program."""
    return supervisor_text().encode() if name == SUPERVISOR else (_HERE / name).read_bytes()


def supervisor_text() -> str:
    """The supervisor's modules one behind the other, without what they import from one another."""
    with _alone:
        return _joined()


@cache
def _joined() -> str:
    head = (_HERE / "supervisor/__init__.py").read_text(encoding="utf-8")
    parts = [_without_own_imports((_HERE / f"supervisor/{name}.py").read_text(encoding="utf-8")) for name in _MODULES]
    return "\n\n".join([head + "\nfrom __future__ import annotations\n", *parts])


def _without_own_imports(text: str) -> str:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.level or node.module == "__future__"):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines).strip() + "\n"
