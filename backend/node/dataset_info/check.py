"""Checks an entry before it is written: LLaMA-Factory parses it, and converts rows of its file.

LLaMA-Factory 0.9.5: src/llamafactory/data/parser.py and converter.py. No model and no tokenizer are loaded.
"""

from __future__ import annotations

import json
import os
import tempfile
from types import SimpleNamespace
from typing import Any

from backend.node.checks.dataset_columns import needed_columns
from backend.node.data_preview.reading import Faults, Kept, fault_of_key, filled, media_check, media_columns
from backend.node.samples.rows import Refused, rows_of_entry

from .table import NAME, folder_of, read_entries

SAMPLE = 600
"""Rows that are converted. Every row is read."""


def check(request: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the entry's file, its columns, and the faults that a training would meet."""
    folder, name, entry = folder_of(request), request["name"], request["entry"]
    attributes = parsed(folder, name, entry)
    faults = Faults()
    media_folder = os.path.abspath(os.path.expanduser(request.get("media_folder") or folder))
    kept = Kept(SAMPLE, media_check(media_columns(entry), media_folder, faults), 0)
    rows = rows_of_entry(folder, name, {name: entry}, kept)
    sample = kept.sample()
    columns = {key for _, row in [*kept.first, *sample] for key in row}
    for column in needed_columns(entry):
        if sample and column not in columns:
            faults.add("column_missing", column, None)
    if not faults.answer() or all(fault["code"] == "media_missing" for fault in faults.answer()):
        convert_rows(attributes, [(number, filled(row, columns)) for number, row in sample], media_folder, faults)
    return {
        "rows": rows,
        "read": kept.read,
        "converted": len(sample),
        "columns": sorted(map(str, columns))[:200],
        "faults": faults.answer(),
    }


def parsed(folder: str, name: str, entry: dict[str, Any]) -> Any:
    """Return what LLaMA-Factory's parser reads of a file with the new entry. Raises Refused with its own words."""
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.parser import get_dataset_list

    entries, _ = read_entries(folder)
    with tempfile.TemporaryDirectory() as copy:
        with open(os.path.join(copy, NAME), "w", encoding="utf-8") as file:
            json.dump({**entries, name: entry}, file)
        try:
            [attributes] = get_dataset_list([name], copy)
            get_dataset_converter(attributes.formatting, attributes, None)
        except Exception as error:  # the engine's own message says what is wrong
            reason = f"{type(error).__name__}: {error}"[:300]
            raise Refused("dataset_entry_refused", name=name, reason=reason) from error
    return attributes


def convert_rows(attributes: Any, rows: list[tuple[Any, dict[str, Any]]], media_folder: str, faults: Faults) -> None:
    """Convert rows with the engine's converter, and add those that it cannot use."""
    from llamafactory.data.converter import get_dataset_converter

    convert = get_dataset_converter(attributes.formatting, attributes, SimpleNamespace(media_dir=media_folder))
    for number, row in rows:
        try:
            converted = convert(row)
        except KeyError as error:
            faults.add(*fault_of_key(error, attributes), number)
        except Exception as error:  # the engine's own message says what is wrong
            faults.add("row_refused", f"{type(error).__name__}: {error}", number)
        else:
            if not converted["_prompt"] or len(converted["_response"]) != 1 + bool(attributes.ranking):
                faults.add("row_dropped", "", number, example=odd_roles(row, attributes))


def odd_roles(row: dict[str, Any], attributes: Any) -> str:
    """Return the roles of a conversation that are none of the entry's tags."""
    tags = {getattr(attributes, f"{role}_tag") for role in ("user", "assistant", "observation", "function", "system")}
    turns = row.get(attributes.messages) if attributes.formatting != "alpaca" else None
    roles = [str(turn.get(attributes.role_tag)) for turn in turns or [] if isinstance(turn, dict)]
    return ", ".join(dict.fromkeys(role for role in roles if role not in tags))[:200]
