"""Entry point of the program: it reads the request and prints the answer."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

from .drawn import Drawn
from .lengths import Unmeasured, mean_tokens
from .rows import Refused, read_table, rows_of_entry, rows_of_file


def count(request: dict[str, Any]) -> dict[str, Any]:
    """Return the `samples` of the training, the `rows` of each data set and the mean `tokens` of a sample.

    `code` and `values` are the reason why nothing can be counted, and `unmeasured` the reason why there are no tokens.
    """
    folder = os.path.abspath(os.path.expanduser(request["folder"]))
    rows, drawn = {}, {}
    try:
        take = rows_of_entry if request["described"] else rows_of_file
        table = read_table(folder) if request["described"] else {}
        for name in request["names"]:
            drawn[name] = Drawn()
            rows[name] = limited(take(folder, name, table, drawn[name]), request["max_samples"])
        taken = mixed(rows, request["mix_strategy"], request["shares"])
        counts = {"samples": without_validation(round(sum(taken.values())), request["val_size"]), "rows": rows}
        return {**counts, **lengths(taken, drawn, table, request)}
    except Refused as refused:
        return refused.answer
    except OSError as error:
        return Refused("dataset_unreadable", path=error.filename or folder, reason=error.strerror or str(error)).answer


def mixed(rows: dict[str, int], strategy: str, shares: list[float] | None) -> dict[str, float]:
    """Return the rows that an epoch has of each data set, in the mean over the draws if there are shares.

    Source: datasets 4.0.0 arrow_dataset.py _interleave_map_style_datasets. `interleave_under` ends with the first data
    set whose rows are used up, `interleave_over` when all rows of all data sets were drawn.
    """
    if len(rows) < 2 or strategy not in ("interleave_under", "interleave_over") or not all(rows.values()):
        return {**rows}
    if not shares or len(shares) != len(rows) or min(shares) <= 0:
        shares = [1 / len(rows)] * len(rows)
    ends_at = min if strategy == "interleave_under" else max
    total = ends_at(count / share for count, share in zip(rows.values(), shares))
    return {name: total * share for name, share in zip(rows, shares)}


def lengths(
    rows: dict[str, float], drawn: dict[str, Drawn], table: dict[str, Any], request: dict[str, Any]
) -> dict[str, Any]:
    """Return the mean `tokens` of a sample of all data sets, or why they are `unmeasured`."""
    model, chat = request["model"], request["chat"]
    samples = {name: sample.rows() for name, sample in drawn.items()}
    if not model or not any(samples.values()):
        return {"unmeasured": "no rows on this node" if model else "no folder of the model (model.path)"}
    try:
        means = {
            name: mean_tokens(sample, table.get(name, {}).get("columns"), model, chat=chat)
            for name, sample in samples.items()
            if sample
        }
    except Unmeasured as error:
        return {"unmeasured": str(error)}
    total = sum(rows[name] for name in means)
    return {"tokens": round(sum(rows[name] * mean for name, mean in means.items()) / max(1, total))}


def limited(rows: int, most: int | None) -> int:
    return rows if most is None else min(rows, most)


def without_validation(rows: int, share: float) -> int:
    """Return the rows for training without those for evaluation: a share of all rows, or a number if above 1."""
    evaluated = int(share) if share > 1 else math.ceil(rows * share)
    return max(0, rows - evaluated)


ACTIONS = {"count": count}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
