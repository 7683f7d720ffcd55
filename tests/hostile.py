"""Text that breaks careless quoting, for every text value of the job file.

The values are read off the job's dataclasses, so a new text field is tested as soon as it exists. A hostile text would
make a file CANARY appear in the working folder of any shell that ran a part of it.
"""

import dataclasses
import random
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backend.engines import check_engine
from backend.job.job import Job
from backend.job.launch_rules import check_launch
from backend.job.mapping import parse_job
from backend.job.parameters import split_optional
from backend.job.problems import errors
from backend.job.rules import check

CANARY = "canary"

Path = tuple[str | int, ...]

_COMMANDS = (
    f"$(>{CANARY})", f"`>{CANARY}`", f";>{CANARY};", f"|>{CANARY}", f"&>{CANARY}&", f"\n>{CANARY}\n", f"';>{CANARY};'",
    f'";>{CANARY};"', f"'$(>{CANARY})'", f"\\';>{CANARY};", f"||>{CANARY}", f"${{x:->{CANARY}}}", f"<(>{CANARY})",
    f"\r\n>{CANARY}\r\n", f")\n>{CANARY}", f"}}\n>{CANARY}", f"$'\\n'>{CANARY}", f"#\n>{CANARY}\n",
    f"{{{{x}}}};>{CANARY}",
)  # fmt: skip
_SYNTAX = (
    "'", '"', "\\", "\\\\", " ", "  ", "\t", "\n", "\r", "$", "$HOME", "${IFS}", "$0", "$@", "*", "?", "[a]", "~",
    "~/x", "!", "!!", "#", " # ", "%s", "%n", "{", "}", "{0}", "{rank}", "{a,b}", "=", ",", ":", ": ", "- ", "--",
    "-rf", "-o", "<<E", ">", "&", "|", ";", "(", ")", "^", "@", "/", "//", "/../", ".", "..", "+", "0x10", "1e3",
    "null", "true", "&a", "*a", "!!python/object", "${oc.env:HOME}", "\\n", "\\x41", "\\u0041",
)  # fmt: skip
_LETTERS = (
    "a", "run", "Z9", "_", "é", "中文", "用户", "ß", "İ", "ñ", "日本語", "Ж", "ا", "👩‍🚀", "e\u0301", "\u00a0",
    "\u3000",
    "\u200b", "\u202e", "\u2028", "\u2029", "\u0085", "\ufeff", "\ud800", "\udfff", "\U0001f680", "\x7f", "\x9b",
    "\x00", "\x1b[31m", "\x07", "\uffff",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One text of a job's mapping: the value or the key at a path."""

    path: Path
    pattern: str | None
    is_key: bool = False

    @property
    def field(self) -> str:
        """Return its dotted path as problems name it, without the part after a free key."""
        parts = self.path[:-1] if self.is_key else self.path
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")


def slots(mapping: Mapping[str, Any]) -> list[Slot]:
    """Return every text of a job that has the lists and tables of `mapping`."""
    return [slot for slot in _slots(Job, mapping, ()) if slot.path[0] != "unknown"]


def _slots(owner: type, mapping: Mapping[str, Any], path: Path) -> Iterator[Slot]:
    hints = typing.get_type_hints(owner)
    for item in dataclasses.fields(owner):
        hint, _ = split_optional(hints[item.name])
        if item.name == "scheduler" and item.name not in mapping:
            continue  # its nodes take the place of the hosts; tests/engines/test_slurm_export.py has its texts
        yield from _of_hint(hint, mapping.get(item.name), (*path, item.name), item.metadata.get("pattern"))


def _of_hint(hint: Any, value: Any, path: Path, pattern: str | None) -> Iterator[Slot]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is str or (str in inner and origin in (types.UnionType, typing.Union)):
        yield Slot(path=path, pattern=pattern)
    elif dataclasses.is_dataclass(hint):
        yield from _slots(typing.cast(type, hint), value or {}, path)
    elif origin is tuple:
        for number, item in enumerate(value or ()):
            yield from _of_hint(inner[0], item, (*path, number), pattern)
    elif origin is _MAP:
        for key, item in (value or {}).items():
            yield from _of_hint(inner[1], item, (*path, key), pattern)
            yield Slot(path=(*path, key), pattern=None, is_key=True)
    elif hint is Any:
        yield Slot(path=path, pattern=None)
    elif hint not in (int, float, bool) and origin is not typing.Literal:
        raise AssertionError(f"{path}: no idea whether {hint} holds text")


_MAP = typing.get_origin(Mapping[str, str])


def text(source: random.Random, pattern: str | None) -> str:
    """Return a hostile text. Two of three match `pattern`, unless none can match."""
    atoms = [source.choice(source.choice((_COMMANDS, _SYNTAX, _LETTERS))) for _ in range(source.randint(1, 5))]
    joined = "".join(atoms)
    if pattern is None or source.random() < 1 / 3:
        return joined
    start = next((start for start in ("", "/", "~/", "a") if re.fullmatch(pattern, f"{start}a")), "")
    shaped = start
    for letter in [*joined, "a"]:
        if re.fullmatch(pattern, f"{shaped}{letter}a") or re.fullmatch(pattern, shaped + letter):
            shaped += letter
    while shaped and not re.fullmatch(pattern, shaped):
        shaped = shaped[:-1]
    return shaped or joined


def put(mapping: dict[str, Any], slot: Slot, new: str) -> None:
    """Set the slot's value, or rename its key."""
    owner: Any = mapping
    for part in slot.path[:-1]:
        owner = owner[part] if isinstance(part, int) else owner.setdefault(part, {})
    if slot.is_key:
        owner[new] = owner.pop(slot.path[-1])
    else:
        owner[slot.path[-1]] = new


def refusals(mapping: Mapping[str, Any], slot: Slot, new: str) -> list[str]:
    """Return the fields that the job's own checks refuse if only this slot is hostile; empty if it is accepted."""
    changed = copied(mapping)
    put(changed, slot, new)
    job, problems = parse_job(changed)
    if job is not None:
        problems = [*problems, *check(job), *check_launch(job), *check_engine(job)]
    return [problem.field for problem in errors(problems)]


def copied(value: Any) -> Any:
    """Return a deep copy of mappings and lists."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value
