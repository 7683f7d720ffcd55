"""Write presets/key_versions.yaml: the first examined version of a program that has each of its keys.

    pip download --no-deps -d WHEELS llamafactory==0.9.0 ... transformers==4.55.4 ... ms-swift==4.0.0 ...
    python -m tools.write_key_versions WHEELS ROLL

WHEELS is a folder of wheels from PyPI. ROLL is a clone of https://github.com/alibaba/ROLL; its history has the versions
of mcore_adapter. Keys are the annotated fields of the argument classes. Nothing is imported.
"""

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from backend.engines.known_keys import programs

FILE = Path(__file__).parents[1] / "presets" / "key_versions.yaml"
MODULES = {
    "llamafactory": r"llamafactory/hparams/.*\.py",
    "transformers": r"transformers/training_args(_seq2seq)?\.py",
    "ms_swift": r"swift/(arguments|megatron/arguments|rlhf_trainers|trainers)(/.*)?/?\w*arg\w*\.py",
}
NAMES = {"ms_swift": "swift"}
ARGUMENTS = "mcore_adapter/src/mcore_adapter/training_args.py"
VERSIONED = ("mcore_adapter/pyproject.toml", "mcore_adapter/src/mcore_adapter/__init__.py")
"""Files that hold its version. Since 0.9.0 it is in the first one."""
HEAD = """\
# The versions of each program that were looked at, oldest first; and for keys that the oldest does not take, the first
# one that does. Written by tools/write_key_versions.py from PyPI's wheels, for mcore_adapter from its history.
"""


def fields(text: str) -> set[str]:
    """Return the annotated names in the classes of a module."""
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    return {item.target.id for node in classes for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)}  # fmt: skip


def of_wheels(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return program -> version -> fields."""
    by_program: dict[str, dict[str, set[str]]] = {}
    for path in sorted(folder.glob("*.whl")):
        package, version = path.name.split("-")[:2]
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if re.fullmatch(MODULES.get(package, "-"), name)]
            keys = set[str]().union(*(fields(wheel.read(name).decode()) for name in names))
        if names:
            by_program.setdefault(NAMES.get(package, package), {})[version] = keys
    return by_program


def of_history(clone: Path) -> dict[str, set[str]]:
    """Return mcore_adapter's version -> the fields of the newest commit of that version."""
    commits = _git(clone, "log", "--reverse", "--format=%H", "--", ARGUMENTS, *VERSIONED).split()
    by_version: dict[str, set[str]] = {}
    for commit in commits:
        files = set(_git(clone, "ls-tree", "-r", "--name-only", commit, "mcore_adapter").split())
        text = next(_git(clone, "show", f"{commit}:{path}") for path in VERSIONED if path in files)
        if match := re.search(r'^(?:__version__|version)\s*=\s*"([^"]+)"', text, re.MULTILINE):
            by_version[match[1]] = fields(_git(clone, "show", f"{commit}:{ARGUMENTS}"))
    return by_version


def _git(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def since(versions: Mapping[str, set[str]], keys: Iterable[str]) -> dict[str, str]:
    """Return key -> the first version since which every version has it, without keys that all versions have."""
    ordered = sorted(versions, key=order)
    since_version = {}
    for key in sorted(keys):
        lacking = [index for index, version in enumerate(ordered) if key not in versions[version]]
        if lacking and lacking[-1] + 1 < len(ordered):
            since_version[key] = ordered[lacking[-1] + 1]
    return since_version


def main() -> None:
    wheels, clone = Path(sys.argv[1]), Path(sys.argv[2])
    by_program = {**of_wheels(wheels), "mcore_adapter": of_history(clone)}
    lines = [HEAD.rstrip()]
    for program, versions in sorted(by_program.items()):
        lines += [f"{program}:", f"  examined: [{', '.join(sorted(versions, key=order))}]", "  since:"]
        first = since(versions, programs()[program].keys)
        lines += [f"    {key}: {version}" for key, version in first.items()] or ["    {}"]
    text = "\n".join(lines) + "\n"
    yaml.safe_load(text)
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
