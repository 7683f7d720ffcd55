"""Entry point of the program: it reads the request and prints the answer."""

from __future__ import annotations

import json
import sys
from typing import Any

from backend.node.samples.rows import Refused

from .check import check
from .proposal import propose
from .table import read, write

ACTIONS = {"read": read, "propose": propose, "check": check, "write": write}


def answer(action: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of an action. `code` and `values` are the reason why it failed."""
    try:
        return ACTIONS[action](request)
    except Refused as refused:
        return refused.answer
    except OSError as error:
        values = {"path": error.filename or request["folder"], "reason": error.strerror or str(error)}
        return {"code": "dataset_unreadable" if action != "write" else "dataset_info_not_written", "values": values}


if __name__ == "__main__":
    name, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(answer(name, json.loads(arguments))), flush=True)
