"""Reads every row of a data set once: keeps the first rows and a random sample, and finds what no training can read.

A data set that the engine could not read at all is refused, with the number of the first bad row.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from backend.node.samples.drawn import Drawn

FIRST = 2
"""Rows at the beginning that are always kept."""
SHOWN_NUMBERS = 20
"""Rows that are listed for one fault."""
MOST_FAULTS = 20
READ_S = 60.0
"""Reading stops after this time. The answer says how many rows were read."""
MOST_HASHES = 2_000_000
"""Rows among which duplicates are searched."""


class Faults:
    """Rows with the same fault: how many, and the first of them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._rows: dict[tuple[str, str], list[list[Any]]] = {}

    def add(self, code: str, detail: str, number: int | None, *, example: str = "") -> None:
        """Count a row. Faults are equal if `code` and `detail` are; `example` is what this row has."""
        key = (code, detail[:300])
        self._counts[key] = self._counts.get(key, 0) + 1
        rows = self._rows.setdefault(key, [])
        if len(rows) < SHOWN_NUMBERS:
            rows.append([number, example[:300]])

    def answer(self) -> list[dict[str, Any]]:
        """Return the faults, the most frequent first."""
        keys = sorted(self._counts, key=lambda key: -self._counts[key])[:MOST_FAULTS]
        return [
            {"code": code, "detail": detail, "count": self._counts[code, detail], "rows": self._rows[code, detail]}
            for code, detail in keys
        ]


class Kept(Drawn):
    """The first rows and a random sample of a stream, each with its number, which begins at 1.

    `check(row, number)` is called for every row that is read one by one.
    """

    def __init__(self, most: int, check: Callable[[dict[str, Any], int], None], seed: int) -> None:
        super().__init__(most, seed)
        self.first: list[tuple[int, dict[str, Any]]] = []
        self.read = 0
        self.is_cut = False
        self.duplicates = 0
        """Rows that are equal to an earlier one."""
        self.duplicate_rows: list[list[int]] = []
        """[earlier row, equal row] of the first of them."""
        self._check = check
        self._hashes: dict[bytes, int] = {}
        self._until = time.monotonic() + READ_S

    def offer_all(self, rows: Iterable[Any]) -> int:
        """Read rows one by one. Raises ValueError with the number of a row that is no JSON object."""
        return super().offer_all(self._numbered(rows))

    def sample(self) -> list[tuple[int | None, dict[str, Any]]]:
        """Return the drawn rows with their numbers, in order. Rows of a table have no number."""
        rows = [row if isinstance(row, tuple) else (None, row) for row in self.rows()]
        return sorted(rows, key=lambda row: row[0] or 0)

    def _numbered(self, rows: Iterable[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in rows:
            if self.read % 1024 == 0 and time.monotonic() > self._until:
                self.is_cut = True
                return
            self.read += 1
            mapping = to_mapping(row, self.read)
            if len(self.first) < FIRST:
                self.first.append((self.read, mapping))
            self._find_duplicate(mapping)
            self._check(mapping, self.read)
            yield self.read, mapping

    def _find_duplicate(self, row: dict[str, Any]) -> None:
        if len(self._hashes) >= MOST_HASHES:
            return
        text = json.dumps(row, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=12).digest()
        first = self._hashes.setdefault(digest, self.read)
        if first == self.read:
            return
        self.duplicates += 1
        if len(self.duplicate_rows) < SHOWN_NUMBERS:
            self.duplicate_rows.append([first, self.read])


def to_mapping(row: Any, number: int) -> dict[str, Any]:
    """Return a row as a mapping. Raises ValueError."""
    if isinstance(row, bytes):
        try:
            row = json.loads(row)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"row {number}: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"row {number}: {type(row).__name__} instead of a JSON object")
    return row


def media_check(
    columns: Iterable[str], folder: str, faults: Faults, is_path: Callable[[str], bool] = bool
) -> Callable[[dict[str, Any], int], None]:
    """Return a check of a row's media paths in some columns. `is_path`: whether a text names a file.

    LLaMA-Factory 0.9.5 src/llamafactory/data/converter.py (_find_medias): a path below `media_dir`, or else as it is.
    """

    def check(row: dict[str, Any], number: int) -> None:
        for column in columns:
            for path in paths_in(row.get(column)):
                is_there = os.path.isfile(os.path.join(folder, path)) or os.path.isfile(path)
                if is_path(path) and not is_there:
                    faults.add("media_missing", "", number, example=path)

    return check


def paths_in(value: Any) -> Iterator[str]:
    """Yield every path in a column of media. Other values, such as bytes of an image, are no paths."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from paths_in(value.get("path"))
    elif isinstance(value, list):
        for item in value:
            yield from paths_in(item)


MEDIA = ("images", "videos", "audios")


def media_columns(entry: Any) -> dict[str, str]:
    """Return the columns of media of an entry: images, videos, audios -> column."""
    columns = entry.get("columns") if isinstance(entry, dict) else None
    return {key: columns[key] for key in MEDIA if columns.get(key)} if isinstance(columns, dict) else {}


def filled(row: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a row with every column of the sample: None where it lacks one, as the engine's table has it."""
    return {**dict.fromkeys(names), **row}


def fault_of_key(error: KeyError, attributes: Any) -> tuple[str, str]:
    """Return the code and the detail of a key that a row lacks: of a message, or a column of the row."""
    key = str(error.args[0] if error.args else error)
    tags = (attributes.role_tag, attributes.content_tag) if attributes.formatting != "alpaca" else ()
    return ("message_key_missing" if key in tags else "column_missing"), key
