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
            "masking",
            "keeper",
            "commands",
        ),
    ),
    COPIER: ("copier", ("files", "give", "place", "take", "main")),
    SAMPLES: ("samples", ("drawn", "rows", "lengths", "main")),
}
"""Program -> its package, and the modules of it in the order in which they build on one another."""
READERS = ("compare_node.py", "inspect_node.py", "prepare_data.py", "checkpoint_files.py", SAMPLES)
"""Programs that read files which a user named: regular_file.py goes in front of them."""
_HERE = Path(__file__).parent
_alone = Lock()
"""Python 3.11's ast.parse raises SystemError in threads that parse at once, and nodes are asked at once."""


def node_program(name: str) -> bytes:
    """The text of a program."""
    if name not in JOINED and name not in READERS:
        return (_HERE / name).read_bytes()
    with _alone:
        return _joined(name).encode()


@cache
def _joined(name: str) -> str:
    """The modules of a program joined into one text, without the imports between them."""
    head, files = "", [_HERE / name]
    if name in JOINED:
        folder, modules = _HERE / JOINED[name][0], JOINED[name][1]
        head = (folder / "__init__.py").read_text(encoding="utf-8")
        files = [folder / f"{module}.py" for module in modules]
    if name in READERS:
        files.insert(0, _HERE / "regular_file.py")
    parts = [_without_own_imports(file.read_text(encoding="utf-8")) for file in files]
    return "\n\n".join([head + "\nfrom __future__ import annotations\n", *parts])


def _without_own_imports(text: str) -> str:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.level or node.module == "__future__"):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines).strip() + "\n"
