"""Runs on a node, read from standard input: counts the samples of data sets without holding one in memory.

    python - count JSON --token T

Python >= 3.8; parquet and arrow need pyarrow, which the engines bring. Prints one line, `T{json}`. How LLaMA-Factory
finds a data set's files and how many of their rows it takes: its 0.9.5 src/llamafactory/data/{parser,loader}.py;
ms-swift is given files.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
from collections.abc import Iterable
from typing import IO, Any

CHUNK = 1 << 22
LONGEST = 1 << 28
"""Letters that one element of a JSON list may have: what is longer is no sample, but a broken file."""
BETWEEN = re.compile(r"[\s,]*")


class Refused(Exception):
    """The data set cannot be counted; `code` and `values` say why."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(code)
        self.answer = {"code": code, "values": values}


def count(wanted: dict[str, Any]) -> dict[str, Any]:
    """`samples` that are trained on and `rows` of each data set, or why not: `code` and `values`."""
    folder = os.path.abspath(os.path.expanduser(wanted["folder"]))
    try:
        take = rows_of_entry if wanted["described"] else rows_of_file
        table = read_table(folder) if wanted["described"] else {}
        rows = {name: limited(take(folder, name, table), wanted["max_samples"]) for name in wanted["names"]}
    except Refused as refused:
        return refused.answer
    except OSError as error:
        return Refused("dataset_unreadable", path=error.filename or folder, reason=error.strerror or str(error)).answer
    return {"samples": without_validation(sum(rows.values()), wanted["val_size"]), "rows": rows}


def limited(rows: int, most: int | None) -> int:
    return rows if most is None else min(rows, most)


def without_validation(rows: int, share: float) -> int:
    """What is left for training when a share, or from 1 on a number, is kept back for evaluation."""
    kept = int(share) if share > 1 else math.ceil(rows * share)
    return max(0, rows - kept)


def read_table(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, "dataset_info.json"), encoding="utf-8") as file:
            table = json.load(file)
    except (OSError, ValueError):
        table = None
    if not isinstance(table, dict):
        raise Refused("dataset_info_missing", path=folder)
    return table


def rows_of_entry(folder: str, name: str, table: dict[str, Any]) -> int:
    """Rows that LLaMA-Factory takes of one entry of dataset_info.json."""
    entry = table.get(name)
    if not isinstance(entry, dict):
        raise Refused("dataset_unknown", path=folder, names=name)
    if isinstance(entry.get("num_samples"), int):
        # It draws as many, some of them twice where there are fewer.
        return int(entry["num_samples"])
    if "file_name" not in entry or any(key.endswith("_hub_url") for key in entry):
        raise Refused("dataset_not_local", name=name)
    path = os.path.join(folder, str(entry["file_name"]))
    names = [os.path.join(path, one) for one in os.listdir(path)] if os.path.isdir(path) else [path]
    return sum(map(rows_in, names))


def rows_of_file(folder: str, name: str, table: dict[str, Any]) -> int:
    """Rows of a file that ms-swift is given; `#n` behind its name takes n of them."""
    _, mark, number = os.path.join(folder, name).rpartition("#")
    return int(number) if mark and number.isdigit() else rows_in(os.path.join(folder, name))


def rows_in(path: str) -> int:
    """Samples in one file, by the kind that its name tells."""
    if not os.path.isfile(path):
        raise Refused("dataset_file_missing", paths=path)
    kind = os.path.splitext(path)[1][1:]
    if kind not in KINDS:
        raise Refused("dataset_kind", path=path, kinds=", ".join(KINDS))
    try:
        return KINDS[kind](path)
    except (ValueError, csv.Error) as error:
        raise Refused("dataset_unreadable", path=path, reason=str(error)[:300]) from error
    except ImportError as error:
        raise Refused("dataset_needs_module", path=path, module=error.name or "pyarrow") from error


def rows_of_json(path: str) -> int:
    """A list, or one object a line."""
    with open(path, encoding="utf-8-sig") as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
        if start == "[":
            return elements(file)
    with open(path, "rb") as raw:
        return sum(1 for line in raw if line.strip())


def elements(file: IO[str]) -> int:
    """Elements of the list whose `[` was read, decoded one after the other."""
    decoder, text, place, found = json.JSONDecoder(), "", 0, 0
    while True:
        place = end_of(BETWEEN.match(text, place))
        if text.startswith("]", place):
            return found
        try:
            _, place = decoder.raw_decode(text, place)
            found += 1
        except ValueError as error:
            rest = text[place:]
            # As much again as is left, so that a long element is not tried from its start once a chunk.
            more = file.read(max(CHUNK, len(rest)))
            if not more or len(rest) > LONGEST:
                raise ValueError(f"element {found + 1}: {error}") from error
            text, place = rest + more, 0


def end_of(match: re.Match[str] | None) -> int:
    return match.end() if match else 0


def rows_of_csv(path: str) -> int:
    csv.field_size_limit(LONGEST)
    with open(path, encoding="utf-8-sig", newline="") as file:
        return max(0, sum(1 for row in csv.reader(file) if row) - 1)


def rows_of_text(path: str) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def rows_of_parquet(path: str) -> int:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        return int(file.metadata.num_rows)


def rows_of_arrow(path: str) -> int:
    import pyarrow

    with pyarrow.memory_map(path) as source:
        try:
            batches: Iterable[Any] = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(source)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        return sum(batch.num_rows for batch in batches)


KINDS = {
    "json": rows_of_json,
    "jsonl": rows_of_json,
    "csv": rows_of_csv,
    "txt": rows_of_text,
    "parquet": rows_of_parquet,
    "arrow": rows_of_arrow,
}

ACTIONS = {"count": count}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
