"""Entry point of the program: it reads the request and prints the answer."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

from backend.node.samples.rows import Refused, read_table, rows_of_entry
from backend.node.training.engine_data import EngineData, read_engine

from .encoding import IGNORED, UNCUT, Encoder, RowRefused
from .reading import FIRST, Faults, Kept, filled, media_check, media_columns

SAMPLE, SAMPLE_WITH_MEDIA = 600, 64
"""Rows of a data set that are encoded to measure their lengths. The engine opens every image."""
ENCODE_S = 60.0
"""Encoding stops after this time, and the lengths are those of fewer rows."""
RANDOM = 3
"""Random rows that are shown, beside the first ones."""
TRIED = 4
"""Rows that are tried for each row that is shown."""


def preview(request: dict[str, Any]) -> dict[str, Any]:
    """Return the data sets of a configuration, examples of their rows, and the lengths of a sample.

    `code` and `values` are the reason why a data set cannot be read at all.
    """
    from llamafactory.data.parser import get_dataset_list

    engine = read_engine(of_data(request["config"]), request["megatron"])
    data = engine.data
    folder = os.path.abspath(os.path.expanduser(data.dataset_dir))
    answer: dict[str, Any] = {"datasets": [], "examples": [], "lengths": [], "trained": [], "cutoff": data.cutoff_len}
    data.packing = data.neat_packing = False
    try:
        table = read_table(folder)
        for name in data.dataset:
            read_one(name, table, folder, engine, get_dataset_list, request["seed"], answer)
    except Refused as refused:
        return {**refused.answer, "dataset": name}
    except OSError as error:
        values = {"path": error.filename or folder, "reason": error.strerror or str(error)}
        return {"code": "dataset_unreadable", "values": values}
    answer["packs"] = packs(answer["lengths"], engine)
    return answer


def of_data(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that the data code reads. The engine's other keys may need its GPUs."""
    from dataclasses import fields

    from llamafactory.hparams import DataArguments, ModelArguments

    names = {field.name for arguments in (DataArguments, ModelArguments) for field in fields(arguments)}
    kept = {key: value for key, value in config.items() if key in names or key == "stage"}
    return {**kept, "do_train": True, "finetuning_type": "full", "output_dir": "unused"}


def read_one(
    name: str,
    table: dict[str, Any],
    folder: str,
    engine: EngineData,
    list_of: Any,
    seed: int,
    answer: dict[str, Any],
) -> None:
    """Read and encode one data set, and add what was found to the answer."""
    faults = Faults()
    media = media_columns(table.get(name))
    media_folder = os.path.abspath(os.path.expanduser(engine.data.media_dir or folder))
    kept = Kept(SAMPLE_WITH_MEDIA if media else SAMPLE, media_check(media, media_folder, faults), seed)
    rows = rows_of_entry(folder, name, table, kept)
    encoder = Encoder(engine, list_of([name], engine.data.dataset_dir)[0])
    sample = kept.sample()
    names = {key for _, row in [*kept.first, *sample] for key in row}
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
        for sequence in sequences:
            answer["lengths"].append(len(sequence.ids))
            answer["trained"].append(sum(label != IGNORED for label in sequence.labels))
    return len(sample)


def packs(lengths: list[int], engine: EngineData) -> int:
    """Return into how many sequences of the cut-off length the engine would pack the sample."""
    from llamafactory.data.processor.processor_utils import greedy_knapsack

    cutoff = engine.data.cutoff_len
    return len(greedy_knapsack([min(length, cutoff) for length in lengths], cutoff))


ACTIONS = {"preview": preview}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
