"""Entry point of the program: it reads the request and prints the answer."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Union

from backend.node.samples.rows import Refused

from .encoding import IGNORED, UNCUT, Encoder, RowRefused
from .llamafactory_rows import LlamaFactoryData
from .reading import FIRST, Faults, Kept, filled, media_check
from .swift_rows import SwiftData

DataSets = Union[LlamaFactoryData, SwiftData]

SAMPLE, SAMPLE_WITH_MEDIA = 600, 64
"""Rows of a data set that are encoded to measure their lengths. The engine opens every image."""
ENCODE_S = 60.0
"""Encoding stops after this time, and the lengths are those of fewer rows."""
RANDOM = 3
"""Random rows that are shown, beside the first ones."""
TRIED = 4
"""Rows that are tried for each row that is shown."""


ENGINES: dict[str, Callable[[dict[str, Any]], DataSets]] = {"llamafactory": LlamaFactoryData, "swift": SwiftData}


def preview(request: dict[str, Any]) -> dict[str, Any]:
    """Return the data sets of a configuration, examples of their rows, and the lengths of a sample.

    `code` and `values` are the reason why a data set cannot be read at all.
    """
    answer: dict[str, Any] = {"datasets": [], "examples": [], "lengths": [], "trained": []}
    name = ""
    try:
        data = ENGINES[request["engine"]](request)
        for name in data.names:
            read_one(name, data, request["seed"], answer)
    except Refused as refused:
        return {**refused.answer, "dataset": name}
    except ImportError as error:
        return {"code": "dataset_needs_module", "values": {"path": request["folder"] or "", "module": lacking(error)}}
    except OSError as error:
        values = {"path": error.filename or "", "reason": error.strerror or str(error)}
        return {"code": "dataset_unreadable", "values": values}
    return {**answer, "cutoff": data.cutoff, "packs": data.packs(answer["lengths"])}


def lacking(error: ImportError) -> str:
    """Return the package that an engine did not find. The message of ms-swift quotes it, with its version."""
    quoted = re.search(r"'([\w.<>=-]+)' distribution", str(error))
    return quoted.group(1) if quoted else str(error.name or error)[:100]


def read_one(name: str, data: DataSets, seed: int, answer: dict[str, Any]) -> None:
    """Read and encode one data set, and add what was found to the answer."""
    faults = Faults()
    media = data.media(name)
    kept = Kept(
        SAMPLE_WITH_MEDIA if media else SAMPLE, media_check(media, data.media_folder, faults, data.is_path), seed
    )
    rows = data.read(name, kept)
    sample = kept.sample()
    names = {key for _, row in [*kept.first, *sample] for key in row}
    encoder = data.encoder(name, names)
    encoded = measure(encoder, [(number, filled(row, names)) for number, row in sample], faults, answer)
    kept.dice.shuffle(sample)
    rows_shown = show(encoder, "first", [(number, filled(row, names)) for number, row in kept.first], FIRST)
    first = {number for number, _ in kept.first}
    others = [(number, filled(row, names)) for number, row in sample if number not in first]
    rows_shown += show(encoder, "random", others, RANDOM)
    answer["examples"] += [{"dataset": name, **example} for example in rows_shown]
    answer["datasets"].append(
        {
            "name": name,
            "rows": rows,
            "read": kept.read,
            "is_cut": kept.is_cut,
            "encoded": encoded,
            "columns": sorted(map(str, names))[:200],
            "faults": faults.answer(),
            "duplicates": kept.duplicates,
            "duplicate_rows": kept.duplicate_rows,
        }
    )


def show(encoder: Encoder, kind: str, rows: list[tuple[Any, dict[str, Any]]], most: int) -> list[dict[str, Any]]:
    """Return the first rows that the engine can use, for the page."""
    shown: list[dict[str, Any]] = []
    for number, row in rows[: TRIED * most]:
        if len(shown) < most:
            with suppress(RowRefused):  # `measure` counts it
                shown.append({"row": number, "kind": kind, **encoder.example(row)})
    return shown


def measure(encoder: Encoder, sample: list[tuple[Any, dict[str, Any]]], faults: Faults, answer: dict[str, Any]) -> int:
    """Add the lengths of the sample before they are cut. Return the number of rows that were tried."""
    until = time.monotonic() + ENCODE_S
    for tried, (number, row) in enumerate(sample):
        if time.monotonic() > until:
            return tried
        try:
            sequences, _ = encoder.encode(row, UNCUT)
        except RowRefused as refused:
            # The check of all rows counts missing media.
            if refused.code != "media_unreadable" or os.path.exists(refused.detail):
                faults.add(refused.code, refused.detail, number)
            continue
        if encoder.drops_long and any(len(sequence.ids) > encoder.cutoff for sequence in sequences):
            faults.add("row_too_long", "", number)
        for sequence in sequences:
            answer["lengths"].append(len(sequence.ids))
            answer["trained"].append(sum(label != IGNORED for label in sequence.labels))
    return len(sample)


ACTIONS = {"preview": preview}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
