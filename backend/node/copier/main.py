"""Reads what is to be copied, and gives or takes it."""

from __future__ import annotations

import json
import os
import sys

from .give import give
from .place import CopyError
from .take import Taker, write_json


def main() -> None:
    folder, role = os.path.abspath(sys.argv[1]), sys.argv[2]
    with open(f"{folder}/copy.json") as file:
        wanted = json.load(file)
    # A token that nobody needs any more need not lie on a disk.
    os.unlink(f"{folder}/copy.json")
    for root in wanted["roots"]:
        root["root"] = os.path.abspath(os.path.expanduser(root["root"]))
    if role == "give":
        give(wanted)
    try:
        Taker(folder, wanted).take()
    except CopyError as error:
        write_json(f"{folder}/result.json", error.answer)
        sys.exit(f"megaboard: {error}")


if __name__ == "__main__":
    main()
