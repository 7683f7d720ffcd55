"""Counts the rows of a data set's files without holding one in memory, and draws some of them.

Parquet and arrow need pyarrow, which the engines bring. How LLaMA-Factory finds a data set's files and how many of
their rows it takes: its 0.9.5 src/llamafactory/data/{parser,loader}.py; ms-swift is given files.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any

from backend.node.regular_file import read_json

from .drawn import EACH, Drawn

CHUNK = 1 << 22
LONGEST = 1 << 28
"""Letters that one element of a JSON list may have: what is longer is no sample, but a broken file."""
BETWEEN = re.compile(r"[\s,]*")


class Refused(Exception):
    """The data set cannot be counted; `code` and `values` say why."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(code)
        self.answer = {"code": code, "values": values}


def read_table(folder: str) -> dict[str, Any]:
    try:
        table = read_json(os.path.join(folder, "dataset_info.json"))
    except (OSError, ValueError):
        table = None
    if not isinstance(table, dict):
        raise Refused("dataset_info_missing", path=folder)
    return table


def rows_of_entry(folder: str, name: str, table: dict[str, Any], drawn: Drawn) -> int:
    """Rows that LLaMA-Factory takes of one entry of dataset_info.json."""
    entry = table.get(name)
    if not isinstance(entry, dict):
        raise Refused("dataset_unknown", path=folder, names=name)
    # It draws as many, some of them twice where there are fewer.
    wanted = entry["num_samples"] if isinstance(entry.get("num_samples"), int) else None
    if "file_name" not in entry or any(key.endswith("_hub_url") for key in entry):
        if wanted is None:
            raise Refused("dataset_not_local", name=name)
        return int(wanted)
    path = os.path.join(folder, str(entry["file_name"]))
    names = [os.path.join(path, one) for one in os.listdir(path)] if os.path.isdir(path) else [path]
    found = sum(rows_in(name, drawn) for name in names)
    return found if wanted is None else int(wanted)


def rows_of_file(folder: str, name: str, table: dict[str, Any], drawn: Drawn) -> int:
    """Rows of a file that ms-swift is given; `#n` behind its name takes n of them."""
    file, mark, number = name.rpartition("#")
    found = rows_in(os.path.join(folder, file if mark and number.isdigit() else name), drawn)
    return int(number) if mark and number.isdigit() else found


def rows_in(path: str, drawn: Drawn) -> int:
    """Samples in one file, by the kind that its name tells."""
    if not os.path.isfile(path):
        raise Refused("dataset_file_missing", paths=path)
    kind = os.path.splitext(path)[1][1:]
    if kind not in KINDS:
        raise Refused("dataset_kind", path=path, kinds=", ".join(KINDS))
    try:
        return KINDS[kind](path, drawn)
    except (ValueError, RecursionError, csv.Error) as error:
        raise Refused("dataset_unreadable", path=path, reason=str(error)[:300]) from error
    except ImportError as error:
        raise Refused("dataset_needs_module", path=path, module=error.name or "pyarrow") from error


def rows_of_json(path: str, drawn: Drawn) -> int:
    """A list, or one object a line."""
    with open(path, encoding="utf-8-sig") as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
        if start == "[":
            return drawn.offer_all(elements(file))
    with open(path, "rb") as raw:
        return drawn.offer_all(line for line in lines_of(raw) if line.strip())


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """ValueError for one that is longer than any sample: a file without line ends may be larger than the memory."""
    while line := file.readline(LONGEST):
        if len(line) == LONGEST:
            raise ValueError(f"a line of more than {LONGEST >> 20} MiB")
        yield line


def elements(file: IO[str]) -> Iterator[Any]:
    """Elements of the list whose `[` was read, one after the other."""
    decoder, text, place, found = json.JSONDecoder(), "", 0, 0
    while True:
        place = end_of(BETWEEN.match(text, place))
        if text.startswith("]", place):
            return
        try:
            element, place = decoder.raw_decode(text, place)
        except ValueError as error:
            rest = text[place:]
            # As much again as is left, so that a long element is not tried from its start once a chunk.
            more = file.read(max(CHUNK, len(rest)))
            if not more or len(rest) > LONGEST:
                raise ValueError(f"element {found + 1}: {error}") from error
            text, place = rest + more, 0
        else:
            found += 1
            yield element


def end_of(match: re.Match[str] | None) -> int:
    return match.end() if match else 0


def rows_of_csv(path: str, drawn: Drawn) -> int:
    csv.field_size_limit(LONGEST)
    with open(path, encoding="utf-8-sig", newline="") as file:
        return drawn.offer_all(csv.DictReader(file))


def rows_of_text(path: str, drawn: Drawn) -> int:
    with open(path, "rb") as file:
        return drawn.offer_all({"text": line.decode("utf-8", "replace")} for line in lines_of(file))


def rows_of_parquet(path: str, drawn: Drawn) -> int:
    from pyarrow import parquet

    def some() -> list[Any]:
        with parquet.ParquetFile(path) as file:
            group = drawn.dice.randrange(max(1, file.num_row_groups))
            return [row for batch in file.iter_batches(EACH, row_groups=[group]) for row in batch.to_pylist()][:EACH]

    with parquet.ParquetFile(path) as file:
        return drawn.offer_table(int(file.metadata.num_rows), some)


def rows_of_arrow(path: str, drawn: Drawn) -> int:
    import pyarrow

    def batches(source: Any) -> Iterable[Any]:
        try:
            stream: Iterable[Any] = pyarrow.ipc.open_stream(source)
            return stream
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(source)
            return (reader.get_batch(number) for number in range(reader.num_record_batches))

    def some() -> list[Any]:
        wanted = drawn.dice.randrange(len(sizes))
        with pyarrow.memory_map(path) as source:
            return next(b.slice(0, EACH).to_pylist() for number, b in enumerate(batches(source)) if number == wanted)

    with pyarrow.memory_map(path) as source:
        sizes = [batch.num_rows for batch in batches(source)]
    return drawn.offer_table(sum(sizes), some)


KINDS = {
    "json": rows_of_json,
    "jsonl": rows_of_json,
    "csv": rows_of_csv,
    "txt": rows_of_text,
    "parquet": rows_of_parquet,
    "arrow": rows_of_arrow,
}
