"""What is asked for, and the answer."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

from .drawn import Drawn
from .lengths import Unmeasured, mean_tokens
from .rows import Refused, read_table, rows_of_entry, rows_of_file


def count(wanted: dict[str, Any]) -> dict[str, Any]:
    """`samples` that are trained on, `rows` of each data set and `tokens` of a mean sample, or why not.

    Why nothing can be counted: `code` and `values`; why no tokens are told: `unmeasured`.
    """
    folder = os.path.abspath(os.path.expanduser(wanted["folder"]))
    rows, drawn = {}, {}
    try:
        take = rows_of_entry if wanted["described"] else rows_of_file
        table = read_table(folder) if wanted["described"] else {}
        for name in wanted["names"]:
            drawn[name] = Drawn()
            rows[name] = limited(take(folder, name, table, drawn[name]), wanted["max_samples"])
        found = {"samples": without_validation(sum(rows.values()), wanted["val_size"]), "rows": rows}
        return {**found, **lengths(rows, drawn, table, wanted)}
    except Refused as refused:
        return refused.answer
    except OSError as error:
        return Refused("dataset_unreadable", path=error.filename or folder, reason=error.strerror or str(error)).answer


def lengths(
    rows: dict[str, int], drawn: dict[str, Drawn], table: dict[str, Any], wanted: dict[str, Any]
) -> dict[str, Any]:
    """`tokens` of a mean sample of all data sets, or why they are `unmeasured`."""
    model, chat = wanted["model"], wanted["chat"]
    found = {name: one.rows() for name, one in drawn.items()}
    if not model or not any(found.values()):
        return {"unmeasured": "no rows on this node" if model else "no folder of the model (model.path)"}
    try:
        means = {
            name: mean_tokens(some, table.get(name, {}).get("columns"), model, chat=chat)
            for name, some in found.items()
            if some
        }
    except Unmeasured as why:
        return {"unmeasured": str(why)}
    total = sum(rows[name] for name in means)
    return {"tokens": round(sum(rows[name] * mean for name, mean in means.items()) / max(1, total))}


def limited(rows: int, most: int | None) -> int:
    return rows if most is None else min(rows, most)


def without_validation(rows: int, share: float) -> int:
    """What is left for training when a share, or from 1 on a number, is kept back for evaluation."""
    kept = int(share) if share > 1 else math.ceil(rows * share)
    return max(0, rows - kept)


ACTIONS = {"count": count}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
