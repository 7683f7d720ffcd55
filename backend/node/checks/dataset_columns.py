"""Columns of a data set that LLaMA-Factory reads and that its first rows lack.

The names of the columns and their defaults follow LLaMA-Factory 0.9.5, src/llamafactory/data/parser.py
(DatasetAttr.join). Which of them a row must have follows data/converter.py. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import csv
import io
import json
import os
from typing import Any

from backend.node.regular_file import open_regular

START_BYTES = 1 << 20
"""Bytes that are read of a file. They hold hundreds of usual samples."""
DEFAULTS = {"prompt": "instruction", "query": "input", "response": "output", "messages": "conversations"}
"""Columns of an entry without `columns`. An entry with `columns` has no defaults."""
OPTIONAL = ("tools", "images", "videos", "audios", "kto_tag")
"""Columns that each converter reads if the entry names them."""


def missing_columns(entry: dict[str, Any], path: str) -> list[str]:
    """Return the columns that the entry's converter reads and that none of the first rows has.

    The list is empty for a file that cannot be read, and for parquet and arrow files.
    """
    rows = first_rows(path)
    there = {name for row in rows for name in row}
    return [name for name in needed_columns(entry) if name not in there] if rows else []


def needed_columns(entry: dict[str, Any]) -> list[str]:
    """Return the columns that a row must have. `None` is a column that a ranking needs and the entry does not name."""
    given = entry.get("columns", DEFAULTS)
    if not isinstance(given, dict):
        return []
    is_ranking = bool(entry.get("ranking"))
    is_alpaca = entry.get("formatting", "alpaca") == "alpaca"
    keys = ["prompt", "query", "history", "system"] if is_alpaca else []
    keys += ["response"] if is_alpaca and not is_ranking else []
    named = [given[key] for key in (*keys, *OPTIONAL) if given.get(key)]
    always = ([] if is_alpaca else ["messages"]) + (["chosen", "rejected"] if is_ranking else [])
    names = named + [given.get(key, "None") for key in always]
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def row_without_text(names: list[str], path: str) -> int:
    """Return the number of the first row, from 1, in which none of these columns has text; 0 if each row has it.

    Only the rows at the start are read. The result is 0 for a file that cannot be read, and for parquet and arrow
    files.
    """
    return next(
        (
            number
            for number, row in enumerate(first_rows(path), 1)
            if not any(isinstance(row.get(name), str) for name in names)
        ),
        0,
    )


def has_kto_tag(entry: dict[str, Any]) -> bool:
    """Return whether the entry names the column that says whether an answer is wanted."""
    columns = entry.get("columns")
    return isinstance(columns, dict) and bool(columns.get("kto_tag"))


def first_rows(path: str) -> list[dict[str, Any]]:
    """Return the rows at the start of a file of JSON or CSV that could be read; an empty list for other files."""
    if os.path.splitext(path)[1] not in (".json", ".jsonl", ".csv"):
        return []
    try:
        with open_regular(path) as file:
            text = file.read(START_BYTES).decode("utf-8-sig", "ignore").lstrip()
    except OSError:
        return []
    if path.endswith(".csv"):
        return [dict.fromkeys(row, "") for row in list(csv.reader(io.StringIO(text)))[:1]]
    decoder, offset = json.JSONDecoder(), 1 if text.startswith("[") else 0
    rows: list[Any] = []
    while True:
        while text[offset : offset + 1] in (" ", "\t", "\r", "\n", ","):
            offset += 1
        try:
            row, offset = decoder.raw_decode(text, offset)
        except (ValueError, RecursionError):
            return [row for row in rows if isinstance(row, dict)]
        rows.append(row)
