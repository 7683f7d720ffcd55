"""Count of the rows of a data set's files, with a random sample. No file is held in memory.

Parquet and arrow need pyarrow, which the engines install. LLaMA-Factory 0.9.5 finds the files of a data set, and the
number of rows that it takes, in src/llamafactory/data/{parser,loader}.py. A data set of ms-swift is a file.
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
"""Maximum length of one element of a JSON list. A longer element is no sample, so the file is broken."""
BETWEEN = re.compile(r"[\s,]*")


class Refused(Exception):
    """The data set cannot be counted. `answer` has the reason as `code` and `values`."""

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
    """Return the number of rows that LLaMA-Factory takes from one entry of dataset_info.json."""
    entry = table.get(name)
    if not isinstance(entry, dict):
        raise Refused("dataset_unknown", path=folder, names=name)
    # LLaMA-Factory draws `num_samples` rows, some of them twice where the file has fewer rows.
    number = entry["num_samples"] if isinstance(entry.get("num_samples"), int) else None
    if "file_name" not in entry or any(key.endswith("_hub_url") for key in entry):
        if number is None:
            raise Refused("dataset_not_local", name=name)
        return int(number)
    path = os.path.join(folder, str(entry["file_name"]))
    files = [os.path.join(path, file) for file in os.listdir(path)] if os.path.isdir(path) else [path]
    rows = sum(rows_in(file, drawn) for file in files)
    return rows if number is None else int(number)


def rows_of_file(folder: str, name: str, table: dict[str, Any], drawn: Drawn) -> int:
    """Return the number of rows of an ms-swift file. `#n` behind its name takes n of them."""
    file, mark, number = name.rpartition("#")
    rows = rows_in(os.path.join(folder, file if mark and number.isdigit() else name), drawn)
    return int(number) if mark and number.isdigit() else rows


def rows_in(path: str, drawn: Drawn) -> int:
    """Return the number of samples in one file. The end of its name is its kind."""
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
    """Count a JSON list, or a file with one object per line."""
    with open(path, encoding="utf-8-sig") as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
        if start == "[":
            return drawn.offer_all(elements(file))
    with open(path, "rb") as raw:
        return drawn.offer_all(line for line in lines_of(raw) if line.strip())


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines. Raises ValueError for a line that is longer than any sample and may exceed the memory."""
    while line := file.readline(LONGEST):
        if len(line) == LONGEST:
            raise ValueError(f"a line of more than {LONGEST >> 20} MiB")
        yield line


def elements(file: IO[str]) -> Iterator[Any]:
    """Yield the elements of a list whose `[` has been read."""
    decoder, text, offset, count = json.JSONDecoder(), "", 0, 0
    while True:
        offset = end_of(BETWEEN.match(text, offset))
        if text.startswith("]", offset):
            return
        try:
            element, offset = decoder.raw_decode(text, offset)
        except ValueError as error:
            rest = text[offset:]
            # The text doubles each time, because each try parses a long element from its start.
            more = file.read(max(CHUNK, len(rest)))
            if not more or len(rest) > LONGEST:
                raise ValueError(f"element {count + 1}: {error}") from error
            text, offset = rest + more, 0
        else:
            count += 1
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

    def read_some() -> list[Any]:
        with parquet.ParquetFile(path) as file:
            group = drawn.dice.randrange(max(1, file.num_row_groups))
            return [row for batch in file.iter_batches(EACH, row_groups=[group]) for row in batch.to_pylist()][:EACH]

    with parquet.ParquetFile(path) as file:
        return drawn.offer_table(int(file.metadata.num_rows), read_some)


def rows_of_arrow(path: str, drawn: Drawn) -> int:
    import pyarrow

    def batches(source: Any) -> Iterable[Any]:
        try:
            stream: Iterable[Any] = pyarrow.ipc.open_stream(source)
            return stream
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(source)
            return (reader.get_batch(number) for number in range(reader.num_record_batches))

    def read_some() -> list[Any]:
        index = drawn.dice.randrange(len(sizes))
        with pyarrow.memory_map(path) as source:
            return next(b.slice(0, EACH).to_pylist() for number, b in enumerate(batches(source)) if number == index)

    with pyarrow.memory_map(path) as source:
        sizes = [batch.num_rows for batch in batches(source)]
    return drawn.offer_table(sum(sizes), read_some)


KINDS = {
    "json": rows_of_json,
    "jsonl": rows_of_json,
    "csv": rows_of_csv,
    "txt": rows_of_text,
    "parquet": rows_of_parquet,
    "arrow": rows_of_arrow,
}
